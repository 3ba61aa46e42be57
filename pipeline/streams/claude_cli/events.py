"""``stream_event`` lines of the Claude CLI, except the plain deltas, which ``claude_cli`` reads itself."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import UNSET

from pipeline.streams import fields as read
from pipeline.streams.events import (
    BlockDelta,
    BlockStarted,
    BlockStopped,
    Event,
    MessageDelta,
    MessageStarted,
    MessageStopped,
    unrecognized,
)
from pipeline.streams.fields import Fields

# Block types that have a place of their own in items; a call of a provider's own tool is one like any other.
TEXTS = frozenset({"text", "thinking", "redacted_thinking"})
CALLS = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})

_DELTA_TEXT: dict[str, tuple[str, ...]] = {
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
        raw=UNSET if kind in TEXTS or kind in CALLS else read.own(event["content_block"]),
    )


def _block_delta(event: Fields, _line: Fields, message_id: str | None) -> Event | None:
    index, delta = read.index(event, "index"), read.members(event, "delta")
    if index is None or delta is None:
        return None
    kind = read.text(delta, "type")
    keys = _DELTA_TEXT.get(kind)
    if keys is None:
        return BlockDelta(index, kind or "unknown", "", message_id, read.own(event["delta"]))
    return BlockDelta(index, kind, read.text(delta, *keys), message_id)


def _block_stop(event: Fields, _line: Fields, message_id: str | None) -> Event | None:
    index = read.index(event, "index")
    return None if index is None else BlockStopped(index, message_id)


_READERS: dict[str, Callable[[Fields, Fields, str | None], Event | None]] = {
    "message_start": _message_start,
    "message_delta": _message_delta,
    "message_stop": _message_stop,
    "content_block_start": _block_start,
    "content_block_delta": _block_delta,
    "content_block_stop": _block_stop,
}
