"""The Anthropic Messages API's stream to common events.

It comes as SSE or JSON lines; from Bedrock in binary frames, each with an event in base64. Blocks of types that have no
place of their own (results of server tools, compaction, ...) stay whole, so that the next request can repeat them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from reknit.pipeline.losses import CODE, losses_in
from reknit.pipeline.providers.anthropic.stream import wire
from reknit.pipeline.providers.anthropic.stream.wire import WORDS, whole_block
from reknit.pipeline.streams import fields as read
from reknit.pipeline.streams import framing
from reknit.pipeline.streams.decoder import UNREADABLE, PayloadDecoder
from reknit.pipeline.streams.events import (
    CALLS,
    BlockDelta,
    BlockNoted,
    BlockStarted,
    BlockStopped,
    Event,
    MessageDelta,
    MessageStarted,
    MessageStopped,
    Rewritten,
    UsageKnown,
    WholeMessage,
)
from reknit.pipeline.streams.fields import Fields
from reknit.pipeline.streams.framing import payloads
from reknit.pipeline.streams.framing.repair import check_strings

# Stop reasons for which the output ended before its end.
_CUT: Final = frozenset({"max_tokens", "model_context_window_exceeded", "refusal"})
# Members that a block's own events report; others are noted unchanged.
_KNOWN: Final = frozenset({"type", "text", "thinking", "signature"})
_KNOWN_OF_CALLS: Final = frozenset({"type", "id", "name", "input"})


class AnthropicDecoderState(Struct, array_like=True):
    """The state of the message: its counts, and inputs that were in the start of their call.

    ``own`` are the blocks of types without a canonical form.
    """

    counts: wire.Counts | None = None
    inputs: dict[int, str] = {}
    own: set[int] = set()


class Anthropic(PayloadDecoder[AnthropicDecoderState]):
    framing = staticmethod(framing.frames)

    def __init__(self) -> None:
        super().__init__(AnthropicDecoderState)

    def split(self, data: bytes) -> list[bytes]:
        return payloads.of_frames(data) if payloads.is_binary(data) else payloads.of_events(data)

    def read_all(self, payloads: Sequence[bytes]) -> list[Event]:
        """The events of several payloads; deltas, which are nearly all of them, in a path of their own."""
        events: list[Event] = []
        deltas: list[wire.Delta] = []
        for payload in payloads:
            try:
                event = None if self.halves.waiting or self.halves.masked else wire.decode(payload)
            except UNREADABLE:
                event = None
            if type(event) is wire.Delta:
                deltas.append(event)
                continue
            if deltas:
                events += self._deltas(deltas)
                deltas = []
            events += self.read(payload) if event is None else self._checked(event, payload)
        if deltas:
            events += self._deltas(deltas)
        return events

    def _checked(self, event: wire.Event, payload: bytes) -> list[Event]:
        """The events of an event that was decoded, unless there is something amiss in what was left raw."""
        try:
            check_strings(payload)
            return self._event(event)
        except UNREADABLE:
            return self.read(payload)

    def payload(self, payload: bytes) -> list[Event]:
        event = wire.decode(payload)
        if type(event) is wire.Delta:
            return [*self._deltas([event])]
        check_strings(payload)
        return self._event(event)

    def _deltas(self, deltas: list[wire.Delta]) -> list[BlockDelta]:
        """Return adjacent deltas, with those of one block joined; an input that has deltas was not in its start."""
        events = wire.joined_deltas(deltas)
        if self.state.inputs:
            for event in events:
                if event.content:
                    self.state.inputs.pop(event.index, None)
        return events

    def _event(self, event: wire.Event) -> list[Event]:
        match event:
            case wire.BlockStop():
                return [*self._inputs(event.index), BlockStopped(event.index)]
            case wire.BlockStart():
                return self._block(event.index, event.content_block)
            case wire.MessageStart():
                return self._message_start(event)
            case wire.MessageChange():
                return self._message_change(event)
            case wire.MessageStop():
                return [*self._inputs(), MessageStopped()]
            case wire.WholeAnswer():
                return self._whole(event)
        return []

    def odd(self, fields: Fields) -> list[Event]:
        kind, index = read.text(fields, "type"), read.index(fields, "index")
        delta = read.members(fields, "delta")
        if kind == "content_block_delta" and index is not None and delta is not None:
            return _odd_delta(index, delta, fields["delta"], own=index in self.state.own)
        inner = payloads.of_chunk(fields.get("chunk") or msgspec.json.encode(fields))
        if inner is not None and not kind:
            return self.feed(inner)
        return super().odd(fields)

    def release_held(self) -> list[Event]:
        return self._inputs()

    def _message_start(self, event: wire.MessageStart) -> list[Event]:
        message = event.message
        self.state = AnthropicDecoderState(message.usage or wire.Counts())
        events: list[Event] = [MessageStarted(message.id or None, message.model or None)]
        events += _losses(message.input_transformations)
        for index, raw in enumerate(message.content):
            events += [*self._block(index, raw), *self._inputs(index), BlockStopped(index)]
        if message.usage is not None:
            events.append(UsageKnown(message.usage.usage()))
        return [*events, _stopped_for(message.stop_reason, {})] if message.stop_reason else events

    def _block(self, index: int, raw: Raw) -> list[Event]:
        """Begin a block with the content of its start."""
        self.state.own.discard(index)
        try:
            plain = wire.decode_start(raw)
        except msgspec.DecodeError:
            return self._odd_block(index, raw)
        if isinstance(plain, wire.TextStart):
            return [BlockStarted(index=index, kind="text", text=plain.text)]
        if isinstance(plain, wire.ThinkingStart):
            started = BlockStarted(index=index, kind="thinking", text=plain.thinking)
            return [started, BlockDelta(index, "signature_delta", plain.signature)] if plain.signature else [started]
        if plain.input:
            self.state.inputs[index] = msgspec.json.encode(plain.input).decode()
        return [BlockStarted(index=index, kind="tool_use", tool_id=plain.id or None, name=plain.name)]

    def _odd_block(self, index: int, raw: Raw) -> list[Event]:
        """A block that is more than its type needs, or of a type that has no place of its own."""
        block = read.members({"block": raw}, "block")
        if block is None:
            raise msgspec.ValidationError("a content block is an object")
        kind = read.text(block, "type")
        told = _KNOWN_OF_CALLS if kind in CALLS else _KNOWN
        if kind not in CALLS and kind not in WORDS:
            renamed = _model_after(block)
            self.state.own.add(index)
            return [BlockStarted(index=index, kind=kind or "unknown", raw=raw.copy()), *renamed]
        started = BlockStarted(
            index=index,
            kind=kind,
            tool_id=read.text(block, "id") or None,
            name=read.text(block, "name") if kind in CALLS else "",
            text=read.text(block, "thinking" if kind == "thinking" else "text"),
        )
        events: list[Event] = [started]
        if kind in CALLS and read.members(block, "input"):
            self.state.inputs[index] = bytes(block["input"]).decode()
        if read.text(block, "signature"):
            events.append(BlockDelta(index, "signature_delta", read.text(block, "signature")))
        # More of them may come in deltas.
        cited = read.elements(block, "citations") or []
        events += [BlockNoted(index, "citations", read.own(citation), appends=True) for citation in cited]
        others = read.others(block, told | {"citations"} if cited else told)
        return events + [BlockNoted(index, name, value) for name, value in (others or {}).items()]

    def _inputs(self, index: int | None = None) -> list[Event]:
        """Inputs that stood in the start of their call and got no deltas: of one block, or all that are left."""
        inputs = self.state.inputs
        if not inputs:
            return []
        indexes = list(inputs) if index is None else [index] if index in inputs else []
        return [BlockDelta(at, "input_json_delta", inputs.pop(at)) for at in indexes]

    def _message_change(self, event: wire.MessageChange) -> list[Event]:
        events = [*self._inputs(), *_losses(event.input_transformations)]
        if event.usage is not None:
            self.state.counts = (self.state.counts or wire.Counts()).updated(event.usage)
            events.append(UsageKnown(self.state.counts.usage()))
        reason = read.text(event.delta, "stop_reason")
        if reason:
            edits = event.context_management
            events.append(_stopped_for(reason, event.delta | ({} if edits is UNSET else {"context_management": edits})))
        return events

    def _whole(self, event: wire.WholeAnswer) -> list[Event]:
        blocks = [msgspec.structs.replace(whole_block(raw), index=at) for at, raw in enumerate(event.content)]
        counts = event.usage or wire.Counts()
        events: list[Event] = [
            MessageStarted(event.id or None, event.model or None),
            *_losses(event.input_transformations),
            WholeMessage(message_id=event.id or None, blocks=tuple(blocks), model=event.model or None),
            UsageKnown(counts.usage()),
        ]
        if event.stop_reason:
            events.append(_stopped_for(event.stop_reason, {}))
        return [*events, MessageStopped()]


def _losses(transformations: Raw | UnsetType) -> list[Event]:
    if transformations is UNSET:
        return []
    return [Rewritten(-1, CODE, path=loss.path, detail=loss.reason) for loss in losses_in(transformations)]


def _stopped_for(reason: str, told: Fields) -> MessageDelta:
    return MessageDelta(reason, cut=reason in _CUT, details=read.others(told, {"stop_reason"}))


def _odd_delta(index: int, delta: Fields, raw: Raw, *, own: bool) -> list[Event]:
    """Pass on a delta that is not text, and note its members if the block's canonical form is known.

    An unknown delta of an unknown block is only passed on: the block's JSON is kept unchanged.
    """
    kind = read.text(delta, "type") or "unknown"
    events: list[Event] = [BlockDelta(index, kind, "", None, raw.copy())]
    if kind == "citations_delta" and "citation" in delta:
        events.append(BlockNoted(index, "citations", delta["citation"].copy(), appends=True))
    elif kind == "compaction_delta":
        members = read.others(delta, {"type"}) or {}
        events += [BlockNoted(index, name, value) for name, value in members.items()]
    elif own:
        events.append(BlockNoted(index, "deltas", raw.copy(), appends=True))
    return events


def _model_after(block: Fields) -> list[Event]:
    """Return the model that a fallback block names for the rest of the message."""
    model = read.text(read.members(block, "to") or {}, "model")
    return [UsageKnown(None, model)] if read.text(block, "type") == "fallback" and model else []
