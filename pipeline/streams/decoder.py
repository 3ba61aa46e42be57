"""Decoders: a source's bytes to common events. This docstring is the guide for writing one.

A decoder serves one session of one source, run after run. It receives whole events (``feed``), is notified when a run
ends (``end_run``), and is saved with the session's state after every batch (``save``, ``load``), so that it continues
with the same events after a restart. It knows the wire format only: it does not decide what was lost, and does not hold
back text. ``recovery`` decides what an attempt is worth when the next event arrives.

**Writing one.** Almost every source sends one JSON object for each event, in SSE or in lines. Subclass
``PayloadDecoder`` and write ``payload``: one event's JSON to common events. Decode it with a typed msgspec decoder that
has a struct for each kind of event (a tagged union if the source has a tag), and let a misfit raise. The base class
then reads the event tolerantly (lone surrogates, bytes that are not UTF-8), treats an ``error`` member as a failure,
and makes ``agent/unrecognized`` of the rest, so an exception never leaves ``feed`` and nothing is lost. The base class
also joins adjacent deltas of one block, so ``payload`` need not. State between events is one small msgspec struct,
``self.state``; its class is passed to ``__init__``. The base class saves and restores it, and renews it at the end of a
run. ``[DONE]`` arrives at ``done``. A source whose bytes are not SSE or lines replaces ``split`` (bytes of whole events
to payloads; ``payloads.of_values`` is for arrays) and ``framing`` (where events end). The source's description
(``source``) names the class and has everything else that holds for the source.

    class Chat(PayloadDecoder[ChatDecoderState]):
        def __init__(self) -> None:
            super().__init__(ChatDecoderState)

        def payload(self, payload: bytes) -> list[Event]:
            chunk = _decode(payload)
            ...

**The events of one message**, in order (``events`` has each struct):

1. ``MessageStarted(id, model)``, when the message's first event arrives. Another one in the same run replaces an
   unfinished message (a retry) or follows a finished one. If the protocol has no start, send one when the id changes.
2. For each block ``BlockStarted(index, kind, tool_id, name)``, ``BlockDelta(index, kind, content)``...,
   ``BlockStopped(index)``. Indexes are arbitrary, as long as they identify a block within its message; blocks may
   interleave and arrive in any order. ``kind`` is ``text``, ``thinking``, ``tool_use``, ``redacted_thinking``, or the
   source's own word, with the block's JSON in ``raw``. Delta kinds: ``text_delta``, ``thinking_delta``,
   ``input_json_delta`` (JSON text of a call's input), ``signature_delta``; any other has its JSON in ``raw`` and is
   passed on. A call's id and name are needed at its start, so wait for them. If the source has no ids, leave
   ``tool_id`` None: the history then uses the item's id, which is unique in the session.
3. ``BlockNoted(index, name, value)``: a member of the block's canonical form besides its text (citations, a redacted
   block's ``data``, an item's id). It is written to the history, and to ``item/completed`` as an extra. ``appends``:
   the member is a list, and this is its next element.
4. ``MessageDelta(stop_reason)``, once it is known: the source's own word for the stop reason; refusals and filters are
   stop reasons as well. ``cut=True`` if the word means that the output is not complete (token limits, filters). The
   decoder must first stop blocks that the protocol never stops explicitly (a chat chunk's blocks).
5. ``UsageKnown(usage)``: token counts of the whole message so far; the last one counts, and items report it once.
6. ``MessageStopped()``: the last event of the message, such as ``[DONE]`` or a final usage chunk; nothing if there is
   no such event.

A source that repeats blocks or the message whole sends ``WholeMessage(message_id, blocks)`` with ``WholeBlock(index=)``
each time. Streamed blocks are completed with the content that they missed, the others are promoted, and complete ones
stay unchanged, so it may be sent any number of times. Without an index, blocks are distinguished by their order.

An error in the stream is ``Failed(message, code)`` (see ``failure``): the attempt was cut. An event that is not about a
message is ``Aside``. Keep-alives are ``[]``. A decoder that changes the output (``cascade``, which also holds back text
that may become a call) reports each change by ``Rewritten``, after the delta that it belongs to. A decoder drops
redelivered events only if the source names or numbers its events (``sequence_number``). Events without an id are never
compared by content; ``SeenLines`` remembers the ids.
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
from reknit.pipeline.streams.framing.repair import MASK, Halves, make_sound, read_fields

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Decoder(Protocol):
    """The interface between recovery and a source.

    ``halves`` are characters that were cut between two deltas; they are saved separately. ``framing`` finds the ends of
    events in bytes.
    """

    halves: Halves

    @property
    def framing(self) -> Framing:
        """Return the end of the last whole event in the bytes; see ``reknit.pipeline.streams.framing``."""
        ...

    def feed(self, data: bytes) -> list[Event]:
        """Return the events in the bytes of one or several whole events. Their content never raises."""
        ...

    def feed_each(self, records: Sequence[bytes]) -> list[Event]:
        """Return the events of several such bytes; equal to feeding them one after the other.

        The meaning of one never depends on the others, however damaged they are.
        """
        ...

    def end_run(self) -> list[Event]:
        """Return the remaining events when the run ends; the next feed belongs to another run."""
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
        """Return the common events of one event's JSON. Raises ``msgspec.DecodeError`` if it cannot be decoded."""
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
        """Return the events of any payload: one that cannot be decoded is repaired, or passed on unchanged."""
        try:
            events = self.payload(payload)
        except UNREADABLE:
            events = self.done() if payload == DONE else self._unreadable(payload)
        return self._without_masks(events) if self.halves.waiting or self.halves.masked else events

    def _without_masks(self, events: list[Event]) -> list[Event]:
        """Return the events with masked halves joined; text that is held back may keep its masks."""
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
        """Return the events of a JSON object that is strict JSON after repair, or has its event's name now."""
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
    """Return the error that an object reports, in any of the usual shapes; None if it reports none.

    Shapes: ``{"error": {"message", "type" | "code" | "status"}}``, ``{"error": "words"}``, and both within ``{"type":
    "error", ...}``.
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


# Redelivery: lines that were received before. A line is a redelivery if its uuid and its content were both received
# within the last two messages of its run. The uuid alone proves nothing: two different lines of one fallback had the
# same one (Claude CLI 2.0.37). A line without a uuid is never compared by content, because a model may say the same
# thing twice.

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
        # Saved with every batch, so it only grows at its end and is never rebuilt.
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
        """Return the marks of the current message and of the previous one, for a loop that looks them up itself.

        The caller adds new marks to the first. The window owns both until the next ``enter``.
        """
        if len(self._seen.known) >= MOST_LINES:
            self._before, self._seen = self._seen, Marks()
        return self._seen, self._before

    def is_known(self, uuid: str, line: bytes) -> bool:
        """Return True if the line came before; if not, it is known from now on."""
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
