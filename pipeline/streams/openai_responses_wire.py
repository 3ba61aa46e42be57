"""Events of the Responses API as typed structs: one decode an event, by its ``type``.

Named are the events that say something of their own. Those in ``SILENT`` repeat what others say, or tell of progress
only. All others are about a tool that the provider runs itself, and are passed on as they are.
"""

from __future__ import annotations

from typing import TypeAlias, get_args

import msgspec
from msgspec import Raw, Struct

from pipeline.streams.fields import Counted, Index
from topics.items import Usage

# What a later event says again in full, and signs of life.
SILENT = frozenset(
    {
        "keepalive",
        "response.content_part.done",
        "response.custom_tool_call_input.done",
        "response.function_call_arguments.done",
        "response.output_text.done",
        "response.reasoning_part.added",
        "response.reasoning_part.done",
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_part.done",
        "response.reasoning_summary_text.done",
        "response.reasoning_text.done",
        "response.refusal.done",
    }
)

# A message has that many parts at most: beyond that the places of two would be one.
MOST_PARTS = 1024


class _Details(Counted, gc=False):
    cached_tokens: int | None = None


class Tokens(Counted, gc=False):
    """Token counts; the input's include what was read from a cache."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _Details | None = None


class Reason(Struct, gc=False):
    """Why a response is incomplete."""

    reason: str | None = None


class Response(Struct, gc=False):
    """A response; its output is items of many types."""

    id: str | None = None
    model: str | None = None
    output: list[Raw] | None = None
    usage: Tokens | None = None
    incomplete_details: Reason | None = None
    error: dict[str, Raw] | None = None


class _Event(Struct, tag_field="type", gc=False):
    sequence_number: int | None = None


class _Numbered(_Event, kw_only=True, gc=False):
    output_index: Index = 0


class Created(_Event, tag="response.created", kw_only=True, gc=False):
    """A response begins."""

    response: Response


class InProgress(_Event, tag="response.in_progress", kw_only=True, gc=False):
    """A response goes on."""

    response: Response


class Queued(_Event, tag="response.queued", kw_only=True, gc=False):
    """A response waits."""

    response: Response


class Completed(_Event, tag="response.completed", kw_only=True, gc=False):
    """The whole response."""

    response: Response


class Incomplete(_Event, tag="response.incomplete", kw_only=True, gc=False):
    """The whole response, which ended before its end."""

    response: Response


class Failed(_Event, tag="response.failed", kw_only=True, gc=False):
    """There is no response."""

    response: Response


class ItemAdded(_Numbered, tag="response.output_item.added", kw_only=True, gc=False):
    """An item begins."""

    item: Raw


class ItemDone(_Event, tag="response.output_item.done", kw_only=True, gc=False):
    """A whole item. Its place may be missing (seen in a recording)."""

    item: Raw
    output_index: Index | None = None


class _PartKind(Struct, gc=False):
    type: str = ""


class PartAdded(_Numbered, tag="response.content_part.added", kw_only=True, gc=False):
    """A part of a message begins."""

    part: _PartKind
    content_index: Index = 0


class TextDelta(_Numbered, tag="response.output_text.delta", kw_only=True, gc=False):
    """More of a text."""

    delta: str
    content_index: Index = 0


class RefusalDelta(_Numbered, tag="response.refusal.delta", kw_only=True, gc=False):
    """More of a refusal."""

    delta: str
    content_index: Index = 0


class ReasoningDelta(_Numbered, tag="response.reasoning_text.delta", kw_only=True, gc=False):
    """More of reasoning that is shown."""

    delta: str
    content_index: Index = 0


class SummaryDelta(_Numbered, tag="response.reasoning_summary_text.delta", kw_only=True, gc=False):
    """More of the summary of reasoning."""

    delta: str
    summary_index: Index = 0


class ArgumentsDelta(_Numbered, tag="response.function_call_arguments.delta", kw_only=True, gc=False):
    """More of a call's arguments."""

    delta: str


class InputDelta(_Numbered, tag="response.custom_tool_call_input.delta", kw_only=True, gc=False):
    """More of the text that a custom tool is called with."""

    delta: str


Piece: TypeAlias = (
    ItemAdded | PartAdded | TextDelta | RefusalDelta | ReasoningDelta | SummaryDelta | ArgumentsDelta | InputDelta
)
AnyEvent: TypeAlias = Created | InProgress | Queued | Completed | Incomplete | Failed | ItemDone | Piece
# Their types: one of these that cannot be decoded is malformed, and not an event that nobody knows.
NAMES = frozenset(str(event.__struct_config__.tag) for event in get_args(AnyEvent))


class Other(Struct, gc=False):
    """What is read of any other event."""

    type: str
    sequence_number: int | None = None
    output_index: Index | None = None
    content_index: Index | None = None


decode = msgspec.json.Decoder(AnyEvent).decode
decode_other = msgspec.json.Decoder(Other).decode


def usage(tokens: Tokens) -> Usage:
    """Token counts with what was read from a cache on its own."""
    cached = (tokens.input_tokens_details and tokens.input_tokens_details.cached_tokens) or 0
    return Usage(
        input_tokens=max((tokens.input_tokens or 0) - cached, 0),
        output_tokens=tokens.output_tokens or 0,
        cache_read_input_tokens=cached,
    )


def place(output_index: int, part: int = 0) -> int:
    """A block's place in its message: an item is one block, a message as many as it has parts."""
    return output_index * MOST_PARTS + (part if part < MOST_PARTS else MOST_PARTS - 1)
