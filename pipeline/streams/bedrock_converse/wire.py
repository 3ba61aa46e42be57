"""Events of Bedrock's ConverseStream as typed structs: one decode an event.

An event is an object with one member, whose name says what it is. Names are the service's own.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from pipeline.streams.fields import Counted, Index
from topics.items import Usage


class Reasoning(Struct, gc=False):
    """A piece of reasoning: words, their signature, or base64 that only the service can read."""

    text: str | None = None
    signature: str | None = None
    redacted: str | None = msgspec.field(default=None, name="redactedContent")


class _Input(Struct, gc=False):
    input: str = ""


class Piece(Struct, rename="camel", gc=False):
    """What a delta adds to its block; one of these, or something that is read member by member."""

    text: str | None = None
    reasoning_content: Reasoning | None = None
    tool_use: _Input | None = None


class Delta(Struct, gc=False):
    """More of a block."""

    delta: Piece
    index: Index = msgspec.field(default=0, name="contentBlockIndex")


class Start(Struct, gc=False):
    """A block begins; texts and reasoning have no start."""

    start: dict[str, Raw]
    index: Index = msgspec.field(default=0, name="contentBlockIndex")


class BlockStop(Struct, gc=False):
    """A block's stream stops."""

    index: Index = msgspec.field(default=0, name="contentBlockIndex")


class MessageStart(Struct, gc=False):
    """A message begins."""

    role: str = ""


class MessageStop(Struct, rename="camel", gc=False):
    """The stop reason. Token counts follow, as a rule."""

    stop_reason: str
    additional_model_response_fields: Raw | UnsetType = UNSET


class Counts(Counted, rename="camel", gc=False):
    """Token counts of the whole message."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_write_input_tokens: int | None = None

    def usage(self) -> Usage:
        """The counts as items tell them."""
        return Usage(
            input_tokens=self.input_tokens or 0,
            output_tokens=self.output_tokens or 0,
            cache_creation_input_tokens=self.cache_write_input_tokens or 0,
            cache_read_input_tokens=self.cache_read_input_tokens or 0,
        )


class Metadata(Struct, gc=False):
    """What is told about the whole message; ``trace`` is what a guardrail did."""

    usage: Counts | None = None
    trace: Raw | UnsetType = UNSET


class StreamEvent(Struct, rename="camel", gc=False):
    """One event: one of these is there. ``output`` is that of an answer that was not streamed."""

    content_block_delta: Delta | None = None
    content_block_start: Start | None = None
    content_block_stop: BlockStop | None = None
    message_start: MessageStart | None = None
    message_stop: MessageStop | None = None
    metadata: Metadata | None = None
    output: Raw | UnsetType = UNSET


class ToolStart(Struct, gc=False):
    """A call begins; ``type`` says so where the service runs the tool itself."""

    id: str = msgspec.field(default="", name="toolUseId")
    name: str = ""
    type: str = ""


decode = msgspec.json.Decoder(StreamEvent).decode
decode_tool = msgspec.json.Decoder(ToolStart).decode
