"""OpenAI's chat completions, and servers with the same API (vLLM and similar), to common events.

A chunk has the next piece of one or several choices, without marks where a block begins or ends (see ``choices``). The
first choice is the message; others are shown next to it.

An answer that is whole, as a ``message`` or as a completion's ``text``, is one complete message. It grows in one piece,
like a stream, so that both are read by the same rules; its blocks are promoted if they are whole. Otherwise (a call
whose arguments break off) it is a stream that ended, and so are the other choices.

There are few signs of another attempt. One id is one message, whatever the other members: some servers send ``role`` in
every chunk. A new id is a sign, but not a sufficient one: Groq's compound models give every chunk a different id,
Perplexity's last chunk has another, and gateways invent the first one. It counts together with a role, or with content
if the ids were steady until then. Without ids, the sign is a role that is repeated after it was omitted. A chunk that
finishes a choice never begins one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import ClassVar, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct

from reknit.pipeline.providers.openai_chat.stream.choices import CUT, FAILED, Blocks, ChoiceWriter, Growing
from reknit.pipeline.providers.openai_chat.stream.wire import (
    Choice,
    Chunk,
    Delta,
    holds_json,
    is_whole,
    members_of,
    plain_words,
    read_chunk,
    read_message,
    says_something,
    siblings_of_text,
    usage,
)
from reknit.pipeline.streams.decoder import PayloadDecoder, whole_call
from reknit.pipeline.streams.events import (
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
    WholeBlock,
    WholeMessage,
    unrecognized,
)
from reknit.pipeline.streams.fields import Fields, is_json, read_object
from reknit.pipeline.streams.framing import DONE
from reknit.pipeline.streams.framing.repair import check_strings

# The number of remembered ids of finished messages, by which late chunks are recognised.
_MOST_PAST = 8
# The reason of a choice that ended without one.
_UNSAID = "unsaid"
_BlockEvent: TypeAlias = BlockStarted | BlockDelta | BlockNoted | BlockStopped


class ChatDecoderState(Struct):
    """The message that streams, and the ids of earlier ones.

    ``steady`` says that its id was in two chunks; ``finished`` that each choice has its reason, ``failed`` that an
    error arrived instead, ``over`` that ``[DONE]`` did, or that the answer was whole. ``noted`` are digests of the
    notes about its text.
    """

    id: str | None = None
    steady: bool = False
    finished: bool = False
    failed: bool = False
    over: bool = False
    blocks: Blocks = msgspec.field(default_factory=Blocks)
    choices: dict[int, Growing] = {}
    past: list[str] = []
    noted: dict[str, str] = {}


class OpenAiChat(PayloadDecoder[ChatDecoderState]):
    issuer: ClassVar[str] = "openai-chat"

    def __init__(self) -> None:
        super().__init__(ChatDecoderState)

    def payload(self, payload: bytes) -> list[Event]:
        try:
            chunk = read_chunk(payload)
        except msgspec.DecodeError:
            if payload.strip() == DONE:
                return self.done()  # with blanks after it, as some proxies write it
            raise
        state = self.state
        choices = chunk.choices
        if choices and chunk.id == state.id and len(choices) == 1:
            # Nearly every chunk is a few more words of the text that grows already.
            growing = state.choices.get(0)
            if growing is not None and growing.kind == "text" and growing.plain and not state.failed:
                words = plain_words(chunk, choices[0])
                if words:
                    state.steady = True
                    return [BlockDelta(growing.block, "text_delta", words)]
        is_past = bool(choices) and chunk.id in state.past
        if is_past or holds_json(chunk):
            check_strings(payload)
        if not choices:
            return self._take_siblings(chunk)
        for choice in choices:
            if choice.text and choice.delta is None and choice.message is UNSET:
                choice.delta = Delta(content=choice.text)
        if self._is_whole(choices):
            return self._take_whole(chunk, choices)
        if is_past:
            return [unrecognized("a chunk of a message that is over", event=msgspec.json.decode(payload, type=Fields))]
        return [
            *self._begin_message(chunk, choices),
            *self._note_siblings_of_text(chunk),
            *self._take_choices(choices, is_error=bool(chunk.error)),
            *self._take_siblings(chunk, noted=True),
        ]

    def done(self) -> list[Event]:
        """``[DONE]`` ends a message, also where no chunk has said why it stopped (Snowflake)."""
        state = self.state
        if state.id is None or state.over:
            return []
        events: list[Event] = []
        if not (state.failed or state.finished):
            for growing in state.choices.values():
                if not growing.reason:
                    writer = self._writer(growing)
                    writer.release_waiting()
                    writer.end_choice(growing.late or _UNSAID)
                    events += writer.events
            events += self._finish_message(is_error=False)
        state.over = True
        return [*events, MessageStopped()]

    def odd(self, fields: Fields) -> list[Event]:
        if fields.get("object") == Raw(b'"error"'):
            fields = {"error": Raw(msgspec.json.encode(fields))}
        events = super().odd(fields)
        if not any(isinstance(event, Failed) for event in events):
            return events
        self.state.failed = True
        return [*self.release_held(), *events]

    # The message.

    def _begin_message(self, chunk: Chunk, choices: list[Choice]) -> list[Event]:
        state = self.state
        if state.id is None or self._is_another(chunk, choices):
            return self._begin_another(chunk)
        state.steady = state.steady or chunk.id == state.id
        return []

    def _begin_another(self, chunk: Chunk) -> list[Event]:
        state = self.state
        rest = self.release_held()
        past = state.past if not state.id or state.id == chunk.id else [*state.past, state.id][-_MOST_PAST:]
        self.state = ChatDecoderState(id=chunk.id or "", past=past)
        return [*rest, MessageStarted(chunk.id or None, chunk.model or None)]

    def _is_another(self, chunk: Chunk, choices: list[Choice]) -> bool:
        state = self.state
        says = any(says_something(choice) for choice in choices)
        roles = [choice for choice in choices if choice.delta is not None and choice.delta.role]
        is_new = bool(chunk.id and state.id and chunk.id != state.id)
        if state.over:
            return True
        if state.failed or (state.finished and (is_new or not chunk.id)):
            return says or (is_new and bool(roles))
        if any(choice.finish_reason for choice in choices):
            return False
        if is_new:
            return bool(roles) or (says and state.steady)
        if chunk.id and state.id:
            return False
        return any((growing := state.choices.get(choice.index or 0)) and growing.plain for choice in roles)

    def _take_choices(self, choices: list[Choice], *, is_error: bool) -> list[Event]:
        """Return the events of a chunk's choices; ``is_error`` says that the chunk itself reports an error."""
        state = self.state
        events: list[Event] = []
        for choice in choices:
            number = choice.index or 0
            growing = state.choices.setdefault(number, Growing(number))
            growing.plain = growing.plain or not (choice.delta and choice.delta.role)
            if growing.reason:
                # Some servers repeat the end without content; some continue after it.
                if not (choice.others or says_something(choice)):
                    continue
                if not state.finished:
                    events.append(unrecognized("after the end of its choice", event=members_of(choice)))
                    continue
                growing.reason, growing.late = "", growing.reason
                state.finished = False
            writer = self._writer(growing)
            writer.take_choice(choice)
            if choice.finish_reason:
                writer.release_waiting()
                writer.end_choice(choice.finish_reason)
            events += writer.events
        if not state.finished and all(growing.reason for growing in state.choices.values()):
            events += self._finish_message(is_error=is_error)
        return events

    def _finish_message(self, *, is_error: bool) -> list[Event]:
        """The message stops for the reason of its first choice."""
        state = self.state
        reason = state.choices[min(state.choices)].reason
        if reason == FAILED:
            state.failed = True
            return [] if is_error else [Failed("the server ended its answer with an error", FAILED)]
        state.finished = True
        return [self._stopped_for(reason)]

    def _stopped_for(self, reason: str) -> MessageDelta:
        return MessageDelta("" if reason == _UNSAID else reason, cut=reason in CUT)

    def release_held(self) -> list[Event]:
        """Return the events of held pieces; a choice that continued after its end ends again."""
        state = self.state
        events: list[Event] = []
        for growing in state.choices.values():
            writer = self._writer(growing)
            writer.release_waiting()
            if growing.late and not growing.reason:
                writer.end_choice(growing.late)
            events += writer.events
        if events and not (state.finished or state.failed) and all(one.reason for one in state.choices.values()):
            events += self._finish_message(is_error=False)
        return events

    def _writer(self, growing: Growing) -> ChoiceWriter:
        return ChoiceWriter(growing, self.state.blocks.next)

    # Members next to the choices.

    def _take_siblings(self, chunk: Chunk, *, noted: bool = False) -> list[Event]:
        """Return the events of a chunk's members next to its choices; ``noted``: notes on the text are included."""
        state = self.state
        tokens = chunk.x_groq.usage if chunk.usage is None and chunk.x_groq is not None else chunk.usage
        events: list[Event] = [] if tokens is None or state.id is None else [UsageKnown(usage(tokens))]
        if not noted:
            events += self._note_siblings_of_text(chunk)
        if chunk.error:
            events += self.odd({"error": Raw(msgspec.json.encode(chunk.error))})
        return events

    def _note_siblings_of_text(self, chunk: Chunk) -> list[Event]:
        """Note a chunk's members about the text, equal ones only once. After the end they are a separate block."""
        state = self.state
        events: list[Event] = []
        for name, value in siblings_of_text(chunk):
            if state.id is None or state.over or state.failed:
                events.append(unrecognized("beside no message", event={name: value}))
                continue
            digest = hashlib.blake2b(value, digest_size=8).hexdigest()
            if state.noted.get(name) == digest:
                continue
            state.noted[name] = digest
            first = state.choices.setdefault(0, Growing(0))
            writer = self._writer(first)
            if first.reason:
                writer.end_block(writer.begin_own_block(name, {name: value}))
            else:
                writer.note_text(name, value)
            events += writer.events
            events += [self._stopped_for(first.reason)] if first.reason and state.finished else []
        return events

    # Answers that come whole.

    def _is_whole(self, choices: list[Choice]) -> bool:
        """Return True if these choices are whole answers, not pieces of some that stream.

        Perplexity's pieces also have the message so far.
        """
        state = self.state
        if not state.over and any(growing.has_begun() for growing in state.choices.values()):
            return all(choice.message is not UNSET and choice.delta is None for choice in choices)
        return all(map(is_whole, choices))

    def _take_whole(self, chunk: Chunk, choices: list[Choice]) -> list[Event]:
        """A whole answer. One with the id of the message that streams completes it; any other is another one."""
        state = self.state
        is_rest = bool(chunk.id) and chunk.id == state.id and not (state.over or state.finished or state.failed)
        begun = self.release_held() if is_rest and state.blocks.count else self._begin_another(chunk)
        state = self.state
        first = min(choice.index or 0 for choice in choices)
        events: list[Event] = []
        others: list[Event] = []
        reason = ""
        for choice in choices:
            said, unread = read_message(choice.message) if choice.message is not UNSET else (choice.delta, Fields())
            growing = Growing(choice.index or 0)
            writer = self._writer(growing)
            why = choice.finish_reason or _UNSAID
            if growing.number == first:
                reason = why
                for name, value in siblings_of_text(chunk):
                    writer.note_text(name, value)
            writer.take_choice(Choice(said, choice.index, others=choice.others | unread))
            writer.release_waiting()
            writer.end_choice(why)
            (events if growing.number == first else others).extend(writer.events)
        issuer = {"provider": self.issuer} | ({"model": chunk.model} if chunk.model else {})
        blocks, rest = ([], events) if reason == FAILED else _promoted(events, issuer)
        if is_rest:
            blocks = [msgspec.structs.replace(block, index=None) for block in blocks]
        whole = [WholeMessage(message_id=chunk.id or None, blocks=tuple(blocks))] if blocks else []
        state.over = True
        state.failed = reason == FAILED
        state.finished = not state.failed
        is_error = self._take_siblings(chunk, noted=True)
        if state.failed:
            ended: list[Event] = [] if chunk.error else [Failed("the server ended its answer with an error", FAILED)]
        else:
            ended = [self._stopped_for(reason)]
        return [*begun, *whole, *rest, *others, *ended, *is_error, MessageStopped()]


def _promoted(events: Sequence[Event], issuer: dict[str, str]) -> tuple[list[WholeBlock], list[Event]]:
    """Return the whole blocks in the events of a message's stream, and the other events, both in order.

    ``issuer`` is the provider that continues the reasoning.
    """
    grown: dict[int, list[_BlockEvent]] = {}
    for event in events:
        if isinstance(event, _BlockEvent):
            grown.setdefault(event.index, []).append(event)
    blocks: list[WholeBlock] = []
    rest: list[Event] = []
    for own in grown.values():
        whole = _whole_block(own, issuer)
        if whole is None:
            rest += own
        else:
            blocks.append(whole)
    return blocks, rest


def _whole_block(events: Sequence[_BlockEvent], issuer: dict[str, str]) -> WholeBlock | None:
    """The block whose events these are; None where it is not whole, or another answer's."""
    started = events[0]
    if not isinstance(started, BlockStarted) or not any(isinstance(event, BlockStopped) for event in events):
        return None
    deltas = [event for event in events if isinstance(event, BlockDelta)]
    signature = "".join(delta.content for delta in deltas if delta.kind == "signature_delta")
    text = "".join(delta.content for delta in deltas if delta.kind != "signature_delta")
    notes = [event for event in events if isinstance(event, BlockNoted)]
    lists: dict[str, list[Raw]] = {}
    for note in notes:
        if note.appends:
            lists.setdefault(note.name, []).append(note.value)
    noted = {note.name: note.value for note in notes if not note.appends}
    noted |= {name: Raw(msgspec.json.encode(values)) for name, values in lists.items()}
    extras = noted or UNSET
    asides = {note.name for note in notes if note.aside}
    members = {name: value for name, value in noted.items() if name not in asides}
    index, kind = started.index, started.kind
    if kind == "text":
        raw = Raw(msgspec.json.encode({"type": kind, "text": text} | members))
        return WholeBlock(kind=kind, raw=raw, index=index, text=text, extras=extras)
    if kind == "thinking" and text:
        signed = {"signature": signature} if signature else {}
        raw = Raw(msgspec.json.encode({"type": kind, "thinking": text} | signed | members | {"issuer": issuer}))
        return WholeBlock(kind=kind, raw=raw, index=index, text=text, extras=extras)
    if kind == "redacted_thinking":
        raw = Raw(msgspec.json.encode({"type": kind} | members | {"issuer": issuer}))
        return WholeBlock(kind=kind, raw=raw, index=index, extras=extras)
    if kind == "tool_use" and is_json(text):
        return whole_call(started.tool_id, started.name, Raw(text.encode()), index=index)
    if started.raw is UNSET or kind == "choice":
        return None
    own = read_object(started.raw) | members
    return WholeBlock(kind=kind, raw=Raw(msgspec.json.encode(own)), index=index, extras=extras, opaque=True)
