"""Plain ``stream_event`` lines of the Claude CLI as typed structs: one decode a line.

A line that does not fit (an unknown type, a member of the wrong type) fails to decode, and is then read member by
member (``claude_cli_events``); where it does fit, both give the same event.
"""

from __future__ import annotations

from typing import ClassVar, TypeAlias

from msgspec import UNSET, Struct, field

from pipeline.streams.events import (
    BlockDelta,
    BlockStarted,
    BlockStopped,
    Event,
    MessageDelta,
    MessageStarted,
    MessageStopped,
)
from pipeline.streams.fields import Index


class TextDelta(Struct, tag_field="type", tag="text_delta", gc=False):
    """More of a text."""

    content: str = field(default="", name="text")
    # Only thinking was seen under another name; the rest have the field so that one expression reads all four.
    text: ClassVar[str] = ""


class ThinkingDelta(Struct, tag_field="type", tag="thinking_delta", gc=False):
    """More of a stretch of thinking."""

    content: str = field(default="", name="thinking")
    text: str = ""


class InputDelta(Struct, tag_field="type", tag="input_json_delta", gc=False):
    """More of a call's input."""

    content: str = field(default="", name="partial_json")
    text: ClassVar[str] = ""


class SignatureDelta(Struct, tag_field="type", tag="signature_delta", gc=False):
    """More of a signature."""

    content: str = field(default="", name="signature")
    text: ClassVar[str] = ""


AnyDelta: TypeAlias = TextDelta | ThinkingDelta | InputDelta | SignatureDelta
DELTA_KINDS: dict[type, str] = {
    TextDelta: "text_delta",
    ThinkingDelta: "thinking_delta",
    InputDelta: "input_json_delta",
    SignatureDelta: "signature_delta",
}


class TextStart(Struct, tag_field="type", tag="text", gc=False):
    """A text begins; nearly always it is empty."""

    kind: ClassVar[str] = "text"
    id: str = ""
    name: str = ""
    text: str = ""


class ThinkingStart(Struct, tag_field="type", tag="thinking", gc=False):
    """A stretch of thinking begins."""

    kind: ClassVar[str] = "thinking"
    id: str = ""
    name: str = ""
    text: str = field(default="", name="thinking")


class CallStart(Struct, tag_field="type", tag="tool_use", gc=False):
    """A call begins; its input follows in deltas."""

    kind: ClassVar[str] = "tool_use"
    id: str = ""
    name: str = ""
    text: str = ""


class Delta(Struct, tag_field="type", tag="content_block_delta", gc=False):
    """Nearly every line is one of these."""

    index: Index
    delta: AnyDelta


class BlockStart(Struct, tag_field="type", tag="content_block_start", gc=False):
    """A block begins."""

    index: Index
    content_block: TextStart | ThinkingStart | CallStart


class BlockStop(Struct, tag_field="type", tag="content_block_stop", gc=False):
    """A block's stream stops."""

    index: Index


class _Started(Struct, gc=False):
    id: str | None = None
    model: str | None = None


class MessageStart(Struct, tag_field="type", tag="message_start", gc=False):
    """An attempt begins."""

    message: _Started


class _Reason(Struct, gc=False):
    stop_reason: str | None = None


class MessageReason(Struct, tag_field="type", tag="message_delta", gc=False):
    """The stop reason comes."""

    delta: _Reason


class MessageStop(Struct, tag_field="type", tag="message_stop", gc=False):
    """An attempt's stream stops."""


class _Abandoned(Struct, gc=False):
    api_message_id: str | None = None
    from_block_index: Index | None = None


class StreamEvent(Struct, tag_field="type", tag="stream_event", gc=False):
    """The line around an event."""

    event: Delta | BlockStart | BlockStop | MessageStart | MessageReason | MessageStop
    uuid: str | None = None
    parent_tool_use_id: str | None = None
    api_message_id: str | None = None
    abandoned_blocks: _Abandoned | None = None


def joined_delta(kind: type, index: int, parts: list[str], message_id: str | None) -> BlockDelta:
    """Adjacent deltas of one block as one event; ``kind`` is the struct that they were decoded to."""
    return BlockDelta(index, DELTA_KINDS[kind], "".join(parts), message_id, UNSET, len(parts))


def plain_event(line: StreamEvent) -> Event:
    """The event of a line that is not a delta."""
    event, message_id = line.event, line.api_message_id or None
    if type(event) is BlockStart:
        block = event.content_block
        return BlockStarted(
            index=event.index,
            kind=block.kind,
            message_id=message_id,
            tool_id=block.id or None,
            name=block.name,
            text=block.text,
        )
    if type(event) is BlockStop:
        return BlockStopped(event.index, message_id)
    if type(event) is MessageStart:
        return MessageStarted(event.message.id or message_id, event.message.model or None)
    if type(event) is MessageReason:
        return MessageDelta(event.delta.stop_reason or None, message_id)
    abandoned = line.abandoned_blocks
    if abandoned is None:
        return MessageStopped(message_id)
    return MessageStopped(abandoned.api_message_id or message_id, abandoned.from_block_index or 0)
