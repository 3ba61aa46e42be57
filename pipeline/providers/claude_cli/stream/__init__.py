"""The Claude CLI's ``stream-json`` output to common events.

Almost every line is a text delta, so these have a separate path: one typed decode, one look-up in the redelivery
window, and adjacent deltas become one event. Other lines are read member by member (``lines``), and lines that strict
JSON refuses are read tolerantly (``salvage``).

A ``stream_event`` line has an event of the Messages API, and around it the CLI's own members. An event that does not
fit its type (an unknown type, a member of the wrong type) fails to decode and is read member by member; for one that
fits, both paths give the same event.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final
from zlib import crc32

import msgspec
from msgspec import UNSET, Struct

from reknit.pipeline.providers.anthropic.stream import wire
from reknit.pipeline.providers.anthropic.stream.wire import WORDS, Delta, joined_deltas
from reknit.pipeline.providers.claude_cli.stream.lines import line_events
from reknit.pipeline.streams import fields as read
from reknit.pipeline.streams.decoder import SavedLines, SeenLines
from reknit.pipeline.streams.events import (
    CALLS,
    BlockDelta,
    BlockStarted,
    BlockStopped,
    Event,
    MessageDelta,
    MessageStarted,
    MessageStopped,
    WholeMessage,
    unrecognized,
)
from reknit.pipeline.streams.fields import Fields, Index
from reknit.pipeline.streams.framing import whole_lines
from reknit.pipeline.streams.framing.repair import Halves, make_sound, read_fields, take_apart

# Lines that are events of the Messages API.


class _Abandoned(Struct, gc=False):
    api_message_id: str | None = None
    from_block_index: Index | None = None


class StreamEvent(Struct, tag_field="type", tag="stream_event", gc=False):
    """The line around an event."""

    event: wire.Streamed
    uuid: str | None = None
    parent_tool_use_id: str | None = None
    api_message_id: str | None = None
    abandoned_blocks: _Abandoned | None = None


decode = msgspec.json.Decoder(StreamEvent).decode
_reason = msgspec.json.Decoder(str | None)


def plain_event(line: StreamEvent) -> Event:
    """The event of a decoded line that is not a delta.

    Raises:
        msgspec.DecodeError: it is not plain within, and has to be read member by member.
    """
    event, message_id = line.event, line.api_message_id or None
    if type(event) is wire.BlockStart:
        return _plain_start(event, message_id)
    if type(event) is wire.BlockStop:
        return BlockStopped(event.index, message_id)
    if type(event) is wire.MessageStart:
        return MessageStarted(event.message.id or message_id, event.message.model or None)
    if type(event) is wire.MessageChange:
        return MessageDelta(_reason.decode(event.delta.get("stop_reason", b"null")) or None, message_id)
    abandoned = line.abandoned_blocks
    if abandoned is None:
        return MessageStopped(message_id)
    return MessageStopped(abandoned.api_message_id or message_id, abandoned.from_block_index or 0)


def _plain_start(event: wire.BlockStart, message_id: str | None) -> Event:
    block = wire.decode_start(event.content_block)
    if isinstance(block, wire.CallStart):
        tool_id, name = block.id or None, block.name
        return BlockStarted(index=event.index, kind="tool_use", message_id=message_id, tool_id=tool_id, name=name)
    if isinstance(block, wire.ThinkingStart):
        return BlockStarted(index=event.index, kind="thinking", message_id=message_id, text=block.thinking)
    return BlockStarted(index=event.index, kind="text", message_id=message_id, text=block.text)


# Member by member.

# Where a delta of each kind has its content.
_CONTENT_OF: Final[dict[str, tuple[str, ...]]] = {
    "text_delta": ("text",),
    "thinking_delta": ("thinking", "text"),
    "input_json_delta": ("partial_json",),
    "signature_delta": ("signature",),
}


def stream_events(fields: Fields) -> list[Event]:
    """The event in a ``stream_event`` line. A sub-agent's is passed over: its complete messages bring all of it."""
    if read.text(fields, "parent_tool_use_id"):
        return []
    event = read.members(fields, "event") or {}
    kind = read.text(event, "type")
    if kind == "ping":
        return []
    reader = _READERS.get(kind)
    if reader is None:
        reason = f"unknown stream event type: {kind}" if kind else "malformed stream_event"
        return [unrecognized(reason, event=fields)]
    found = reader(event, fields, read.text(fields, "api_message_id") or None)
    return [found if found is not None else unrecognized("malformed stream_event", event=fields)]


def _message_start(event: Fields, _line: Fields, message_id: str | None) -> Event:
    message = read.members(event, "message") or {}
    return MessageStarted(read.text(message, "id") or message_id, read.text(message, "model") or None)


def _message_delta(event: Fields, _line: Fields, message_id: str | None) -> Event:
    delta = read.members(event, "delta") or {}
    return MessageDelta(read.text(delta, "stop_reason") or None, message_id)


def _message_stop(_event: Fields, line: Fields, message_id: str | None) -> Event:
    abandoned = read.members(line, "abandoned_blocks")
    if abandoned is None:
        return MessageStopped(message_id)
    named = read.text(abandoned, "api_message_id") or message_id
    return MessageStopped(named, read.index(abandoned, "from_block_index") or 0)


def _block_start(event: Fields, _line: Fields, message_id: str | None) -> Event | None:
    index, block = read.index(event, "index"), read.members(event, "content_block")
    if index is None or block is None:
        return None
    kind = read.text(block, "type")
    return BlockStarted(
        index=index,
        kind=kind,
        message_id=message_id,
        tool_id=read.text(block, "id") or None,
        name=read.text(block, "name"),
        text=read.text(block, "thinking" if kind == "thinking" else "text"),
        raw=UNSET if kind in WORDS or kind in CALLS else read.own(event["content_block"]),
    )


def _block_delta(event: Fields, _line: Fields, message_id: str | None) -> Event | None:
    index, delta = read.index(event, "index"), read.members(event, "delta")
    if index is None or delta is None:
        return None
    kind = read.text(delta, "type")
    keys = _CONTENT_OF.get(kind)
    if keys is None:
        return BlockDelta(index, kind or "unknown", "", message_id, read.own(event["delta"]))
    return BlockDelta(index, kind, read.text(delta, *keys), message_id)


def _block_stop(event: Fields, _line: Fields, message_id: str | None) -> Event | None:
    index = read.index(event, "index")
    return None if index is None else BlockStopped(index, message_id)


_READERS: Final[dict[str, Callable[[Fields, Fields, str | None], Event | None]]] = {
    "message_start": _message_start,
    "message_delta": _message_delta,
    "message_stop": _message_stop,
    "content_block_start": _block_start,
    "content_block_delta": _block_delta,
    "content_block_stop": _block_stop,
}


# The whole output.

# The maximum number of whole lines between the halves of a line that was cut.
_PATIENCE = 16


class _Saved(Struct, array_like=True):
    seen: SavedLines
    half: bytes | None
    patience: int


class ClaudeCli:
    """One run after another of the CLI's output, in whole lines."""

    framing = staticmethod(whole_lines)

    def __init__(self) -> None:
        self._seen = SeenLines()
        self._half: bytes | None = None
        self._patience = 0
        self.halves = Halves()

    def feed_each(self, records: Sequence[bytes]) -> list[Event]:
        """The events of several records; each of them is lines, and a line means the same in any record."""
        return self.feed(b"\n".join(records))

    def feed(self, data: bytes) -> list[Event]:
        events: list[Event] = []
        seen, before = self._seen.window()
        deltas: list[Delta] = []  # of one message, which continue until another event arrives
        message_id: str | None = None
        torn = bool(self.halves.waiting)
        for line in data.split(b"\n"):
            try:
                wire = None if torn or self._half is not None else decode(line)
            except (ValueError, RecursionError):
                wire = None
            if wire is not None and type(wire.event) is Delta and wire.parent_tool_use_id is None:
                if wire.uuid:
                    known = crc32(wire.uuid.encode()) << 32 | crc32(line)  # mark_of, without the call
                    if known in seen.known or known in before.known:
                        continue
                    seen.known.add(known)  # Marks.add_mark, without the call
                    seen.packed.append(known)
                if deltas and wire.api_message_id != message_id:
                    events += joined_deltas(deltas, message_id or None)
                    deltas = []
                message_id = wire.api_message_id
                deltas.append(wire.event)
                continue
            if deltas:
                events += joined_deltas(deltas, message_id or None)
                deltas = []
            found = None if wire is None else self._plain(wire, line)
            if found is None:
                found = self._line(line)
                events += self.halves.follow(found) if torn or self.halves.masked else found
                torn, self.halves.masked = bool(self.halves.waiting), False
            else:
                events += found
            seen, before = self._seen.window()
        if deltas:
            events += joined_deltas(deltas, message_id or None)
        return events

    def _plain(self, wire: StreamEvent, line: bytes) -> list[Event] | None:
        """The event of a decoded line that is not a delta; None where it has to be read member by member."""
        if wire.parent_tool_use_id is not None:
            return None
        try:
            event = plain_event(wire)
        except (ValueError, RecursionError):
            return None
        return self._unless_known([event], wire.uuid or "", line)

    def end_run(self) -> list[Event]:
        half, self._half = self._half, None
        self._seen = SeenLines()
        left = self.halves.end_run()
        return [*left, unrecognized("non-JSON output", line=half)] if half is not None else left

    def _line(self, line: bytes) -> list[Event]:
        if self._half is not None:
            return self._rejoin(self._half, line)
        if not line or line.isspace():
            return []
        try:
            sound, masked = make_sound(line)
            self.halves.masked |= masked
            fields = read.read_object(sound)  # read_fields, which would look for damage once more
        except msgspec.ValidationError:
            return [unrecognized("not a JSON object", line=line)]
        except RecursionError:
            return [unrecognized("nesting too deep", line=line)]
        except ValueError:
            return self._damaged(line)
        return self._read_line(fields, line)

    def _damaged(self, line: bytes) -> list[Event]:
        cut = take_apart(line)
        if cut is None:
            return [unrecognized("non-JSON output", line=line)]
        foreign = [event for other in cut.foreign for event in self._line(other)]
        if not cut.whole:
            self._half, self._patience = cut.rest, _PATIENCE
            return foreign
        rest = self._line(cut.rest)
        return rest + foreign if cut.follows else foreign + rest

    def _rejoin(self, half: bytes, line: bytes) -> list[Event]:
        """Join a line with a waiting half if they make a whole; otherwise the line is read alone."""
        self._half = None
        joined = half + line
        fields = _fields_or_none(joined)
        if fields is not None:
            return self._read_line(fields, joined)
        if _fields_or_none(line) is None and (cut := take_apart(joined)) is not None and cut.foreign:
            return self._damaged(joined)
        own = self._line(line)
        if self._patience <= 1 or self._half is not None:
            return [unrecognized("non-JSON output", line=half), *own]
        self._half, self._patience = half, self._patience - 1
        return own

    def _read_line(self, fields: read.Fields, line: bytes) -> list[Event]:
        kind = read.text(fields, "type")
        events = stream_events(fields) if kind == "stream_event" else line_events(kind, fields)
        return self._unless_known(events, read.text(fields, "uuid"), line)

    def _unless_known(self, events: list[Event], uuid: str, line: bytes) -> list[Event]:
        """A line's events, or none where it is a redelivery."""
        if uuid and self._seen.is_known(uuid, line):
            return []
        for event in events:
            if isinstance(event, MessageStarted) or (isinstance(event, WholeMessage) and event.parent is None):
                self._seen.enter(event.message_id, uuid, line)
        return events

    def save(self) -> bytes:
        return msgspec.msgpack.encode(_Saved(self._seen.save(), self._half, self._patience))

    def load(self, saved: bytes) -> None:
        state = msgspec.msgpack.decode(saved, type=_Saved)
        self._seen = SeenLines.load(state.seen)
        self._half, self._patience = state.half, state.patience


def _fields_or_none(line: bytes) -> read.Fields | None:
    try:
        return read_fields(line)
    except (ValueError, TypeError, RecursionError):
        return None
