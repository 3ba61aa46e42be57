"""Bedrock's ConverseStream to common events.

It arrives in binary frames, or as JSON events: ``{"contentBlockDelta": {...}}`` in lines or SSE, or the inner object
alone, with its name as an SSE event's name, or without a name: its members identify it. Texts and reasoning have no
start, so their first delta starts them. If their stop is lost, the message's stop reason stops them, unless it means a
cut. The stream names neither its message nor the model.
"""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct

from reknit.pipeline.providers.bedrock_converse.stream import wire
from reknit.pipeline.streams import fields as read
from reknit.pipeline.streams import framing
from reknit.pipeline.streams.decoder import PayloadDecoder
from reknit.pipeline.streams.events import (
    CALLS,
    Aside,
    BlockDelta,
    BlockNoted,
    BlockStarted,
    BlockStopped,
    Event,
    Failed,
    MessageDelta,
    MessageStarted,
    MessageStopped,
    UsageKnown,
    WholeMessage,
)
from reknit.pipeline.streams.fields import Fields
from reknit.pipeline.streams.framing import payloads
from reknit.pipeline.streams.framing.repair import check_strings
from reknit.topics.items import SessionSystem

# Stop reasons for which the output ended before its end.
_CUT: Final = frozenset(
    {
        "max_tokens",
        "model_context_window_exceeded",
        "guardrail_intervened",
        "content_filtered",
        "malformed_model_output",
        "malformed_tool_use",
    }
)
# Members of a delta that have a struct; one that does not fit it is malformed.
_TYPED: Final = frozenset({"text", "toolUse", "reasoningContent"})
_EMPTY: Final = frozenset({b"{}", b"null"})
# An event without its name, by a member that only it has; what has none of these is the stop of a block.
_KINDS: Final = {
    "delta": "contentBlockDelta",
    "start": "contentBlockStart",
    "stopReason": "messageStop",
    "usage": "metadata",
    "role": "messageStart",
    "contentBlockIndex": "contentBlockStop",
}


class ConverseDecoderState(Struct, array_like=True):
    """The state of the message.

    ``kinds`` are the blocks that have begun, ``redacted`` the pieces of redacted reasoning, and ``results`` the start
    and the deltas so far of a block of the service's own, such as a server tool's result, all by block. ``stopped`` and
    ``counted``: the stop reason and the token counts have arrived.
    """

    kinds: dict[int, str] = {}
    redacted: dict[int, list[str]] = {}
    results: dict[int, list[bytes]] = {}
    stopped: bool = False
    counted: bool = False


class BedrockConverse(PayloadDecoder[ConverseDecoderState]):
    framing = staticmethod(framing.frames)

    def __init__(self) -> None:
        super().__init__(ConverseDecoderState)

    def split(self, data: bytes) -> list[bytes]:
        """Return the payloads of frames, SSE or lines, each under its event's name if that is given separately."""
        if payloads.is_binary(data):
            return payloads.of_frames(data)
        if b"event:" not in data:
            return payloads.of_events(data)
        return [_named(name, payload) for name, payload in payloads.with_names(data)]

    def split_each(self, records: Sequence[bytes]) -> list[bytes]:
        """The payloads of several such bytes; an event's name counts, so none of them are plain."""
        return [payload for record in records for payload in self.split(record)]

    def payload(self, payload: bytes) -> list[Event]:
        event = wire.decode(payload)
        if event.content_block_delta is not None:
            return self._delta(event.content_block_delta)
        check_strings(payload)
        if event.content_block_start is not None:
            return self._start_block(event.content_block_start)
        if event.content_block_stop is not None:
            return self._stop_block(event.content_block_stop.index)
        if event.message_start is not None:
            left = self.release_held()
            self.state = ConverseDecoderState()
            return [*left, MessageStarted(None)]
        if event.message_stop is not None:
            return self._message_stop(event.message_stop)
        if event.metadata is not None:
            return self._metadata(event.metadata)
        if event.output is not UNSET:
            return self._whole(wire.decode_answer(payload))
        raise msgspec.ValidationError("none of the service's events")

    def odd(self, fields: Fields) -> list[Event]:
        body = read.members(fields, "contentBlockDelta")
        piece = read.members(body or {}, "delta")
        if body and piece and _TYPED.isdisjoint(piece):
            return self._odd_delta(read.index(body, "contentBlockIndex") or 0, piece)
        name = next((name for member, name in _KINDS.items() if member in fields and "output" not in fields), "")
        if name:
            return self.read_again({name: Raw(msgspec.json.encode(fields))})
        fault = next((name for name in fields if name.endswith("Exception")), "")
        if fault:
            words = read.text(read.members(fields, fault) or {}, "message", "Message")
            return [Failed(words or fault, fault)]
        return super().odd(fields)

    def release_held(self) -> list[Event]:
        """Redacted reasoning and blocks of the service's own that never stopped."""
        sealed = [event for index in list(self.state.redacted) for event in self._sealed(index)]
        return sealed + [event for index in list(self.state.results) for event in self._result(index)]

    def _begun(self, index: int, kind: str) -> list[Event]:
        """The start of a block that has none of its own, at its first delta."""
        if self.state.kinds.get(index) == kind:
            return []
        return [*self._begins(index, kind), BlockStarted(index=index, kind=kind)]

    def _begins(self, index: int, kind: str) -> list[Event]:
        """Return the rest of the previous block at this place, if another one begins there."""
        left = self._result(index)
        self.state.kinds[index] = kind
        return left

    def _delta(self, event: wire.Delta) -> list[Event]:
        index, piece = event.index, event.delta
        if piece.text is not None:
            if self.state.kinds.get(index) == "text":
                return [BlockDelta(index, "text_delta", piece.text)]
            return [*self._begun(index, "text"), BlockDelta(index, "text_delta", piece.text)]
        if piece.tool_use is not None:
            return [*self._call_begun(index), BlockDelta(index, "input_json_delta", piece.tool_use.input)]
        if piece.reasoning_content is not None:
            return self._reasoning(index, piece.reasoning_content)
        raise msgspec.ValidationError("a delta of another kind")

    def _call_begun(self, index: int) -> list[Event]:
        """A call whose start was lost has neither name nor id."""
        return [] if self.state.kinds.get(index, "").endswith("tool_use") else self._begun(index, "tool_use")

    def _reasoning(self, index: int, piece: wire.Reasoning) -> list[Event]:
        if piece.redacted is not None:
            return self._redacted(index, piece.redacted)
        events = self._begun(index, "thinking")
        if piece.text:
            events.append(BlockDelta(index, "thinking_delta", piece.text))
        if piece.signature:
            events.append(BlockDelta(index, "signature_delta", piece.signature))
        return events

    def _redacted(self, index: int, piece: str) -> list[Event]:
        """Reasoning in base64, which may come in several pieces, each encoded for itself."""
        events = self._begun(index, "redacted_thinking")
        self.state.redacted.setdefault(index, []).append(piece)
        return [*events, BlockDelta(index, "redacted_delta", "", None, Raw(msgspec.json.encode(piece)))]

    def _sealed(self, index: int) -> list[Event]:
        """The redacted reasoning of a block that has ended, in one."""
        pieces = self.state.redacted.pop(index, None)
        if pieces is None:
            return []
        try:
            data = msgspec.json.encode(b"".join(map(binascii.a2b_base64, pieces)))
        except ValueError:
            data = msgspec.json.encode("".join(pieces))
        return [BlockNoted(index, "data", Raw(data))]

    def _start_block(self, event: wire.Start) -> list[Event]:
        index, start = event.index, event.start
        if "toolUse" in start:
            call = wire.decode_tool(start["toolUse"])
            kind = "server_tool_use" if call.type == "server_tool_use" else "tool_use"
            left = self._begins(index, kind)
            return [*left, BlockStarted(index=index, kind=kind, tool_id=call.id or None, name=call.name)]
        if not start:
            return []
        kind = next(iter(start))
        left = self._begins(index, kind)
        self.state.results[index] = [bytes(start[kind])]
        return [*left, BlockStarted(index=index, kind=kind, raw=Raw(msgspec.json.encode(start)))]

    def _odd_delta(self, index: int, piece: Fields) -> list[Event]:
        """A delta that is not text, reasoning or input: passed on as it is, and kept for the block's own form."""
        kind = next(iter(piece))
        delta = BlockDelta(index, f"{kind}_delta", "", None, Raw(msgspec.json.encode(piece)))
        if kind == "citation":
            return [
                *self._begun(index, "text"),
                delta,
                BlockNoted(index, "citations", piece[kind].copy(), appends=True),
            ]
        begun: list[Event] = []
        if self.state.kinds.get(index) != kind:
            raw = Raw(msgspec.json.encode({kind: {}}))
            begun = [*self._begins(index, kind), BlockStarted(index=index, kind=kind, raw=raw)]
            self.state.results[index] = [b"{}"]
        parts = read.elements(piece, kind) if kind == "toolResult" else None
        self.state.results.setdefault(index, [b"{}"]).extend(map(bytes, parts or [piece[kind]]))
        return [*begun, delta]

    def _stop_block(self, index: int) -> list[Event]:
        left = [*self._sealed(index), *self._result(index)]
        self.state.kinds.pop(index, None)
        return [*left, BlockStopped(index)]

    def _result(self, index: int) -> list[Event]:
        """A block of the service's own that has ended, in one."""
        pieces = self.state.results.pop(index, None)
        if pieces is None:
            return []
        kind = self.state.kinds.get(index, "")
        return [BlockNoted(index, kind, wire.put_together(kind, pieces))] if len(pieces) > 1 else []

    def _message_stop(self, event: wire.MessageStop) -> list[Event]:
        more = event.additional_model_response_fields
        details = UNSET if more is UNSET else {"additionalModelResponseFields": more.copy()}
        self.state.stopped = True
        cut = event.stop_reason in _CUT
        # A call is whole only with its own stop, for what is lost with it may be its input.
        open_ = [] if cut else [index for index, kind in self.state.kinds.items() if kind not in CALLS]
        stops = [stop for index in open_ for stop in self._stop_block(index)]
        finish = MessageDelta(event.stop_reason, cut=cut, details=details)
        return [*stops, finish, *self._ended()]

    def _metadata(self, event: wire.Metadata) -> list[Event]:
        self.state.counted = True
        events: list[Event] = [] if event.usage is None else [UsageKnown(event.usage.usage())]
        if event.trace is not UNSET and bytes(event.trace) not in _EMPTY:
            events.append(Aside(SessionSystem(subtype="trace", event=event.trace.copy())))
        return [*events, *self._ended()]

    def _whole(self, answer: wire.WholeAnswer) -> list[Event]:
        left = self.release_held()
        self.state = ConverseDecoderState()
        blocks = wire.whole_blocks(answer.output.message.content)
        events = [*left, MessageStarted(None), WholeMessage(message_id=None, blocks=blocks)]
        more = answer.additional_model_response_fields
        if answer.stop_reason:
            events += self._message_stop(wire.MessageStop(answer.stop_reason, more))
        events += self._metadata(wire.Metadata(answer.usage, answer.trace))
        self.state = ConverseDecoderState()
        return events if answer.stop_reason else [*events, MessageStopped()]

    def _ended(self) -> list[Event]:
        """The end of the message, when its stop reason and its counts have come, in whichever order."""
        if not (self.state.stopped and self.state.counted):
            return []
        left = self.release_held()
        self.state = ConverseDecoderState()
        return [*left, MessageStopped()]


def _named(name: bytes, payload: bytes) -> bytes:
    """Return a payload under its separate name, unless it has the name itself."""
    bare = name and name not in {b"error", b"message", b"chunk"} and b'"%b"' % name not in payload
    return b"{%b:%b}" % (msgspec.json.encode(name.decode("utf-8", "replace")), payload) if bare else payload
