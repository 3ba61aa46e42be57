"""Events of the Responses API as typed structs: one decode an event, by its ``type``.

Named are the events that say something of the answer itself: pieces, and the same whole (``.done``), which makes up for
pieces that were lost. Those in ``SILENT`` repeat what others say, or tell of progress only. All others are about a tool
that the provider runs itself, and are passed on as they are.
"""

from __future__ import annotations

from typing import Any, TypeAlias, get_args

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from pipeline.streams import fields as read
from pipeline.streams.fields import Counted, Fields, Index
from topics.items import Usage

# What another event says just as well, and signs of life.
SILENT = frozenset(
    {
        "keepalive",
        "response.reasoning_part.added",
        "response.reasoning_part.done",
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_part.done",
    }
)
# Events that say a member of their item whole, which had come in pieces.
WHOLE_MEMBERS = {
    "response.code_interpreter_call_code.done": "code",
    "response.mcp_call_arguments.done": "arguments",
}

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
    reason: str | None = None


class Response(Struct, gc=False):
    """A response; its output is items of many types."""

    id: str | None = None
    model: str | None = None
    status: str | None = None
    output: list[Raw] | None = None
    usage: Tokens | None = None
    incomplete_details: Reason | None = None
    error: dict[str, Raw] | None = None


class _Event(Struct, tag_field="type", gc=False):
    sequence_number: int | None = None
    # Padding that hides an event's length.
    obfuscation: str | None = None


class _Numbered(_Event, kw_only=True, gc=False):
    output_index: Index = 0


class Created(_Event, tag="response.created", kw_only=True, gc=False):
    response: Response


class InProgress(_Event, tag="response.in_progress", kw_only=True, gc=False):
    response: Response


class Queued(_Event, tag="response.queued", kw_only=True, gc=False):
    response: Response


class Completed(_Event, tag="response.completed", kw_only=True, gc=False):
    response: Response


class Incomplete(_Event, tag="response.incomplete", kw_only=True, gc=False):
    """The whole response, which ended before its end."""

    response: Response


class Failed(_Event, tag="response.failed", kw_only=True, gc=False):
    """There is no response."""

    response: Response


class ItemAdded(_Numbered, tag="response.output_item.added", kw_only=True, gc=False):
    item: Raw


class ItemDone(_Event, tag="response.output_item.done", kw_only=True, gc=False):
    """A whole item. Its place may be missing (seen in a recording)."""

    item: Raw
    output_index: Index | None = None


class _PartKind(Struct, gc=False):
    type: str = ""


class PartAdded(_Numbered, tag="response.content_part.added", kw_only=True, gc=False):
    part: _PartKind
    content_index: Index = 0


class TextDelta(_Numbered, tag="response.output_text.delta", kw_only=True, gc=False):
    delta: str
    content_index: Index = 0


class RefusalDelta(_Numbered, tag="response.refusal.delta", kw_only=True, gc=False):
    delta: str
    content_index: Index = 0


class ReasoningDelta(_Numbered, tag="response.reasoning_text.delta", kw_only=True, gc=False):
    delta: str
    content_index: Index = 0


class SummaryDelta(_Numbered, tag="response.reasoning_summary_text.delta", kw_only=True, gc=False):
    delta: str
    summary_index: Index = 0


class ArgumentsDelta(_Numbered, tag="response.function_call_arguments.delta", kw_only=True, gc=False):
    delta: str


class InputDelta(_Numbered, tag="response.custom_tool_call_input.delta", kw_only=True, gc=False):
    """More of the text that a custom tool is called with."""

    delta: str


class PartDone(_Numbered, tag="response.content_part.done", kw_only=True, gc=False):
    part: Raw
    content_index: Index = 0


class TextDone(_Numbered, tag="response.output_text.done", kw_only=True, gc=False):
    text: str
    content_index: Index = 0


class RefusalDone(_Numbered, tag="response.refusal.done", kw_only=True, gc=False):
    refusal: str
    content_index: Index = 0


class ReasoningDone(_Numbered, tag="response.reasoning_text.done", kw_only=True, gc=False):
    text: str
    content_index: Index = 0


class SummaryDone(_Numbered, tag="response.reasoning_summary_text.done", kw_only=True, gc=False):
    text: str
    summary_index: Index = 0


class ArgumentsDone(_Numbered, tag="response.function_call_arguments.done", kw_only=True, gc=False):
    arguments: str


class InputDone(_Numbered, tag="response.custom_tool_call_input.done", kw_only=True, gc=False):
    input: str


Piece: TypeAlias = (
    ItemAdded | PartAdded | TextDelta | RefusalDelta | ReasoningDelta | SummaryDelta | ArgumentsDelta | InputDelta
)
Whole: TypeAlias = PartDone | TextDone | RefusalDone | ReasoningDone | SummaryDone | ArgumentsDone | InputDone
Ending: TypeAlias = Completed | Incomplete | Failed
Frame: TypeAlias = Created | InProgress | Queued | Ending | ItemDone | Whole
AnyEvent: TypeAlias = Frame | Piece
# Their types: one of these that cannot be decoded is malformed, and not an event that nobody knows.
NAMES = frozenset(str(event.__struct_config__.tag) for event in get_args(AnyEvent))

# Events of which something is taken as the JSON that it is, which nobody has looked into yet.
HOLD_JSON = frozenset({Created, InProgress, Queued, *get_args(Ending), ItemAdded, ItemDone, PartDone})


class Other(Struct, gc=False):
    """What is read of any other event."""

    type: str
    sequence_number: int | None = None
    output_index: Index | None = None
    content_index: Index | None = None
    item_id: Any = None
    obfuscation: str | None = None
    annotation: Raw | UnsetType = UNSET
    code: Raw | UnsetType = UNSET
    arguments: Raw | UnsetType = UNSET


decode = msgspec.json.Decoder(AnyEvent).decode
decode_other = msgspec.json.Decoder(Other).decode


# What a response repeats of its request, what it says of its own making, and what is read above; the rest is said
# about the answer, and nobody else says it.
_KNOWN = frozenset(
    {
        "background", "billing", "completed_at", "conversation", "created_at", "error", "frequency_penalty", "id",
        "include", "incomplete_details", "input", "instructions", "max_output_tokens", "max_tool_calls", "metadata",
        "model", "object", "output", "output_text", "parallel_tool_calls", "presence_penalty", "previous_response_id",
        "prompt", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "reasoning",
        "safety_identifier", "service_tier", "status", "store", "system_fingerprint", "temperature", "text",
        "tool_choice", "tools", "top_logprobs", "top_p", "truncation", "usage", "user",
    }
)  # fmt: skip


def response_of(members: Fields) -> Response:
    """A response, member by member: what is not as it should be counts as absent."""
    details = read.members(members, "incomplete_details")
    return Response(
        id=read.text(members, "id") or None,
        model=read.text(members, "model") or None,
        status=read.text(members, "status") or None,
        output=read.elements(members, "output"),
        usage=_tokens(members),
        incomplete_details=Reason(read.text(details, "reason") or None) if details else None,
        error=read.members(members, "error"),
    )


def is_answer(members: Fields) -> bool:
    """Whether an object is a response that did not stream. Some servers leave out what it is."""
    if "type" in members or read.elements(members, "output") is None:
        return False
    return read.text(members, "object", "status", "id").startswith(("response", "resp_", "completed", "incomplete"))


def said_beside(members: Fields) -> dict[str, Raw] | UnsetType:
    """What a whole response says about its answer beside the output, such as citations of the whole."""
    beside = {name: raw for name, raw in members.items() if name not in _KNOWN and bytes(raw) not in _EMPTY}
    return read.others(beside, ())


def members_of_response(payload: bytes) -> Fields:
    return _with_response.decode(payload).response


class _WithResponse(Struct, gc=False):
    response: Fields


_with_response = msgspec.json.Decoder(_WithResponse)
_EMPTY = (b"[]", b"{}", b'""', b"null")


def _tokens(members: Fields) -> Tokens | None:
    try:
        return msgspec.json.decode(members["usage"], type=Tokens | None)
    except (KeyError, msgspec.DecodeError):
        return None


def usage(tokens: Tokens) -> Usage:
    """Token counts with what was read from a cache on its own."""
    details = tokens.input_tokens_details
    cached = 0 if details is None else details.cached_tokens or 0
    return Usage(
        input_tokens=max((tokens.input_tokens or 0) - cached, 0),
        output_tokens=tokens.output_tokens or 0,
        cache_read_input_tokens=cached,
    )


def place(output_index: int, part: int = 0) -> int:
    """A block's place in its message: an item is one block, a message as many as it has parts."""
    return output_index * MOST_PARTS + (part if part < MOST_PARTS else MOST_PARTS - 1)
