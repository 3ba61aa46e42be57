"""Decoders: a source's bytes to common events. This page is what the writer of a new one needs.

A decoder serves one session of one source, run after run. It is fed whole events (``feed``), is told when a run ends
(``end_run``), and is saved with the session's state after every batch (``save``, ``load``), so that it goes on with the
same events after a restart. It knows the wire format and nothing else: it keeps no opinion about what was lost and
does not hold back text. What an attempt is worth when the next thing comes is decided by ``recovery``.

**Writing one.** Almost every source sends one JSON object an event, in SSE or in lines. Subclass ``PayloadDecoder``
and write ``payload``: one event's JSON to common events. Decode it with a typed msgspec decoder that has a struct for
each kind of event (a tagged union where the source has a tag), and let what does not fit raise: the base reads it a
second time tolerantly (lone surrogates, bytes that are not UTF-8), takes an ``error`` member for a failure, and makes
``agent/unrecognized`` of the rest, so an exception never leaves ``feed`` and nothing is lost. The base also joins
neighbouring deltas of one block, so ``payload`` need not. What is remembered from event to event is one small msgspec
struct, ``self.state``; its class is given to ``__init__``. The base saves, restores and, at the end of a run, renews
it. ``[DONE]`` arrives at ``done``. A source whose bytes are not SSE or lines replaces ``split`` (bytes of whole events
to payloads; ``payloads.of_values`` is for arrays) and ``framing`` (where events end). What else holds for the source
stands in its line in ``sources``, from which the class is known.

    class Chat(PayloadDecoder[ChatDecoderState]):
        def __init__(self) -> None:
            super().__init__(ChatDecoderState)

        def payload(self, payload: bytes) -> list[Event]:
            chunk = _decode(payload)
            ...

**The events of one message**, in order (``events`` has each struct):

1. ``MessageStarted(id, model)``, when the message's first event comes. Another one in the same run replaces what is
   not finished (a retry) or follows what is. Where the protocol has no start, send one when the id changes.
2. For each block ``BlockStarted(index, kind, tool_id, name)``, ``BlockDelta(index, kind, content)``...,
   ``BlockStopped(index)``. Indexes are yours, as long as they name a block within its message; blocks may interleave
   and come in any order. ``kind`` is ``text``, ``thinking``, ``tool_use``, ``redacted_thinking``, or the source's own
   word, with the block's JSON in ``raw``. Delta kinds: ``text_delta``, ``thinking_delta``, ``input_json_delta`` (JSON
   text of a call's input), ``signature_delta``; any other has its JSON in ``raw`` and is passed on.
   A call's id and name are needed at its start, so wait for them; where the source has no ids, leave ``tool_id`` None,
   and the item's id, which is unique in the session, serves in the history.
3. ``BlockNoted(index, name, value)``: a member that the block has in the canonical form beside its text (citations,
   a redacted block's ``data``, an item's id): it stands in the history and in ``item/completed`` as an extra.
   ``appends``: the member is a list, and this its next element.
4. ``MessageDelta(stop_reason)``, once there is one: the source's own word for why it stopped; refusals and filters are
   stop reasons like any other. ``cut=True`` where the word means that the output ended before its end (token limits,
   filters). What the protocol never stops explicitly (a chat chunk's blocks) is to be stopped by the decoder before.
5. ``UsageKnown(usage)``: token counts of the whole message so far; the last one counts, and items tell it once.
6. ``MessageStopped()``: the last event of the message. ``[DONE]``, a final usage chunk; nothing, if there is none.

A source that repeats blocks or the message whole sends ``WholeMessage(message_id, blocks)`` with ``WholeBlock(index=)``
whenever it does: blocks that were streamed are completed with what they missed, those that were not are promoted, and
those that are complete already are left alone, so it may be sent as often as the source says it. Without an index,
blocks are told apart by their order.

An error in the stream is ``Failed(message, code)`` (see ``failure``): the attempt was cut. What is not about a message
is ``Aside``. Keep-alives are ``[]``. A decoder that has to change what was said (``cascade``, which also holds back
what may become a call) tells each change by ``Rewritten``, behind the delta where it stands. A decoder drops
redelivered events only where the source names or numbers its events (``sequence_number``); what has no id is never told
apart by its content; ``SeenLines`` remembers which those were.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar
from zlib import crc32

import msgspec
from msgspec import UNSET, Raw, Struct

from reknit.pipeline.streams import fields as read
from reknit.pipeline.streams.events import BlockDelta, Event, Extras, Failed, ToolResult, WholeBlock, unrecognized
from reknit.pipeline.streams.fields import Fields
from reknit.pipeline.streams.framing import DONE, Framing, lines, payloads
from reknit.pipeline.streams.framing.mending import MASK, Halves, make_sound, read_fields

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Decoder(Protocol):
    """What recovery needs of a source.

    ``halves`` are characters that were cut between two deltas; they are saved apart. ``framing`` says where events end
    in bytes.
    """

    halves: Halves

    @property
    def framing(self) -> Framing:
        """Where whole events end in the next piece of bytes; see ``reknit.pipeline.streams.framing``."""
        ...

    def feed(self, data: bytes) -> list[Event]:
        """The events in the bytes of one or several whole events. Never raises for what stands in them."""
        ...

    def feed_each(self, records: Sequence[bytes]) -> list[Event]:
        """The events of several such bytes, which adds up to feeding one after the other.

        What one of them means is never changed by what stands beside it, however damaged that is.
        """
        ...

    def end_run(self) -> list[Event]:
        """What is left when the run ends; what is fed next is another run's."""
        ...

    def save(self) -> bytes: ...

    def load(self, saved: bytes) -> None: ...


S = TypeVar("S", bound=Struct)


class PayloadDecoder(Generic[S]):
    """A source with one JSON object an event, in SSE or in lines. Subclasses write ``payload``."""

    def __init__(self, state: type[S]) -> None:
        self._fresh = state
        self.state: S = state()
        self.halves = Halves()

    framing = staticmethod(lines)  # a source with another framing replaces this

    def feed(self, data: bytes) -> list[Event]:
        payloads = self.split(data)
        if len(payloads) == 1:
            events = self.read(payloads[0])
            return events if len(events) < 2 else joined(events)
        return self.read_all(payloads)

    def feed_each(self, records: Sequence[bytes]) -> list[Event]:
        return self.read_all(self.split_each(records))

    def read_all(self, payloads: Sequence[bytes]) -> list[Event]:
        return joined([event for payload in payloads for event in self.read(payload)])

    def split(self, data: bytes) -> list[bytes]:
        """The payloads in bytes of whole events; a source with another format than SSE and lines replaces this."""
        return payloads.of_events(data)

    def split_each(self, records: Sequence[bytes]) -> list[bytes]:
        """The payloads of several such bytes, each of them split on its own; plain SSE can be split all at once.

        A source that reads an event's name, which plain SSE passes over, replaces this.
        """
        plain = payloads.of_records(records)
        return [payload for record in records for payload in self.split(record)] if plain is None else plain

    def payload(self, payload: bytes) -> list[Event]:
        """The common events of one event's JSON. What cannot be decoded raises ``msgspec.DecodeError``."""
        raise NotImplementedError

    def done(self) -> list[Event]:
        return []

    def odd(self, fields: Fields) -> list[Event]:
        """The events of a JSON object that ``payload`` could not decode."""
        found = failure(fields)
        return [unrecognized(_reason(fields), event=fields) if found is None else found]

    def release_held(self) -> list[Event]:
        return []

    def end_run(self) -> list[Event]:
        left = self.release_held()
        if self.halves.are_open():
            left = [*self.halves.follow(left), *self.halves.end_run()]
        self.state = self._fresh()
        return left

    def save(self) -> bytes:
        return msgspec.msgpack.encode(self.state)

    def load(self, saved: bytes) -> None:
        self.state = msgspec.msgpack.decode(saved, type=self._fresh)

    def read(self, payload: bytes) -> list[Event]:
        """The events of a payload, whatever it is: what cannot be decoded is mended, or passed on as it is."""
        try:
            events = self.payload(payload)
        except UNREADABLE:
            events = self.done() if payload == DONE else self._unreadable(payload)
        return self._without_masks(events) if self.halves.waiting or self.halves.masked else events

    def _without_masks(self, events: list[Event]) -> list[Event]:
        """The events with the characters whose halves they bring; masks may be left in what is not told yet."""
        events = self.halves.follow(events)
        self.halves.masked = self.halves.masked and MASK.is_in(self.save())
        return events

    def _unreadable(self, payload: bytes) -> list[Event]:
        sound, masked = make_sound(payload)
        self.halves.masked |= masked
        try:
            fields = read_fields(sound)
        except TypeError:
            return [unrecognized("not a JSON object", line=payload)]
        except RecursionError:
            return [unrecognized("nesting too deep", line=payload)]
        except ValueError:
            return [unrecognized("non-JSON output", line=payload)]
        return self.read_again(fields)

    def read_again(self, fields: Fields) -> list[Event]:
        """The events of a JSON object that is strict JSON now, or stands under its name now."""
        try:
            return self.payload(msgspec.json.encode(fields))
        except UNREADABLE:
            pass
        plain = read.with_plain_counts(fields)
        if plain != fields:
            return self.read_again(plain)
        try:
            return self.odd(fields)
        except UNREADABLE:
            return [unrecognized(_reason(fields), event=fields)]


def failure(fields: Fields) -> Failed | None:
    """The error that an object tells, in any of the usual shapes; None if it tells none.

    Shapes: ``{"error": {"message", "type" | "code" | "status"}}``, ``{"error": "words"}``, and both within
    ``{"type": "error", ...}``.
    """
    error = read.members(fields, "error")
    if error is not None:
        code = read.text(error, "type", "code", "status") or str(read.integer(error, "code") or "")
        return Failed(read.text(error, "message", "error", "detail") or code or "error", code)
    words = read.text(fields, "error")
    if words:
        return Failed(read.text(fields, "message", "detail") or words, read.text(fields, "code", "type"))
    if read.text(fields, "type") == "error":
        code = read.text(fields, "code")
        return Failed(read.text(fields, "message", "detail") or code or "error", code)
    return None


def whole_call(
    tool_id: str | None, name: str, given: Raw, *, index: int | None = None, extras: Extras = UNSET
) -> WholeBlock:
    raw = Raw(msgspec.json.encode({"type": "tool_use", "id": tool_id, "name": name, "input": given}))
    return WholeBlock(kind="tool_use", raw=raw, index=index, tool_id=tool_id, name=name, input=given, extras=extras)


def tool_result(tool_id: str, content: Raw, *, failed: bool) -> ToolResult:
    block = {"type": "tool_result", "tool_use_id": tool_id, "content": content}
    raw = Raw(msgspec.json.encode(block | {"is_error": True} if failed else block))
    return ToolResult(tool_id=tool_id, content=content, block=raw, is_error=failed)


def _reason(fields: Fields) -> str:
    kind = read.text(fields, "type", "object")
    return f"unknown or malformed event: {kind}" if kind else "unknown or malformed event"


def joined(events: Sequence[Event]) -> list[Event]:
    """The same events with neighbouring deltas of one block made one."""
    found: list[Event] = []
    run: list[BlockDelta] = []
    for event in events:
        if type(event) is BlockDelta and event.raw is UNSET:
            if not run or (event.index == run[0].index and event.kind == run[0].kind):
                run.append(event)
                continue
            found.append(_as_one(run))
            run = [event]
        elif run:
            found += (_as_one(run), event)
            run = []
        else:
            found.append(event)
    if run:
        found.append(_as_one(run))
    return found


def _as_one(run: list[BlockDelta]) -> BlockDelta:
    first = run[0]
    if len(run) == 1:
        return first
    content = "".join([delta.content for delta in run])
    return BlockDelta(first.index, first.kind, content, first.message_id, UNSET, sum([delta.count for delta in run]))


# Redelivery: which lines were seen before. A line is a redelivery when its uuid and its content were both seen within
# the last two messages of its run. A uuid alone proves nothing: two different lines of one fallback were seen to share
# one (Claude CLI 2.0.37). What has no uuid is never told apart by its content, for a model may well say the same thing
# twice.

# An agent program that idles writes lines without end; beyond this many in one message the oldest are forgotten.
MOST_LINES = 65_536


class SavedLines(Struct, array_like=True):
    """The window as state: message ids, and eight bytes a line."""

    messages: list[str]
    seen: bytes
    before: bytes


class Marks:
    """The lines of one message: a set to look them up, and the same in the order they came, ready to be saved."""

    __slots__ = ("known", "packed")

    def __init__(self, packed: bytes = b"") -> None:
        # Saved with every batch, so it only grows at its end and is never put together anew.
        self.packed = array("Q", packed)
        self.known = set(self.packed)

    def add_mark(self, mark: int) -> None:
        self.known.add(mark)
        self.packed.append(mark)


class SeenLines:
    """The lines of the last two messages, each as 64 bits: checksums of its uuid and of its bytes."""

    __slots__ = ("_before", "_messages", "_seen")

    def __init__(self) -> None:
        self._messages: list[str] = []
        self._seen = Marks()
        self._before = Marks()

    def window(self) -> tuple[Marks, Marks]:
        """The marks of the current message and of the one before, for a loop that looks them up itself.

        They are the window's own until the next ``enter``. What is new is to be added to the first.
        """
        if len(self._seen.known) >= MOST_LINES:
            self._before, self._seen = self._seen, Marks()
        return self._seen, self._before

    def is_known(self, uuid: str, line: bytes) -> bool:
        """Whether the line came before; if not, it is known from now on."""
        seen, before = self.window()
        found = mark_of(uuid, line)
        if found in seen.known or found in before.known:
            return True
        seen.add_mark(found)
        return False

    def enter(self, message_id: str | None, uuid: str | None, line: bytes) -> None:
        """A line that says its message has come: if the message is a new one, the window moves on, to this line."""
        message_id = message_id or ""
        if message_id in self._messages:
            return
        self._messages = [*self._messages[-1:], message_id]
        self._before, self._seen = self._seen, Marks()
        if uuid:
            self._seen.add_mark(mark_of(uuid, line))

    def save(self) -> SavedLines:
        return SavedLines(self._messages, self._seen.packed.tobytes(), self._before.packed.tobytes())

    @classmethod
    def load(cls, saved: SavedLines) -> SeenLines:
        lines = cls()
        lines._messages = saved.messages
        lines._seen, lines._before = Marks(saved.seen), Marks(saved.before)
        return lines


def mark_of(uuid: str, line: bytes) -> int:
    return crc32(uuid.encode()) << 32 | crc32(line)
