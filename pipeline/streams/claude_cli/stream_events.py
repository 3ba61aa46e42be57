"""``stream_event`` lines of the Claude CLI: an event of the Messages API, and around it what the CLI knows of it.

A line whose event is plain is one typed decode. One that does not fit (an unknown type, a member of the wrong type)
fails to decode and is read member by member; where it does fit, both give the same event.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import UNSET, Struct

from pipeline.streams import fields as read
from pipeline.streams.anthropic import wire
from pipeline.streams.anthropic.wire import WORDS
from pipeline.streams.events import (
    CALLS,
    BlockDelta,
    BlockStarted,
    BlockStopped,
    Event,
    MessageDelta,
    MessageStarted,
    MessageStopped,
    unrecognized,
)
from pipeline.streams.fields import Fields, Index


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
