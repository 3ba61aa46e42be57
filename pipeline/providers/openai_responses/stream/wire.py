"""Events of the Responses API, and the items in them, as typed structs: one decode for each event, by its ``type``.

Declared are the events with content of the answer: pieces, and the same whole (``.done``), which replaces lost pieces.
Those in ``SILENT`` repeat others, or report progress only. All others are about a tool that the provider runs itself,
and are passed on unchanged.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias, get_args

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from reknit.pipeline.streams import fields as read
from reknit.pipeline.streams.fields import Counted, Fields, Index
from reknit.topics.items import Usage

# Events that repeat others, and keep-alives.
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


class _OfResponse(_Event, kw_only=True):
    response: Response


class _OfItem(_Event, kw_only=True):
    output_index: Index = 0


class _OfPart(_OfItem, kw_only=True):
    content_index: Index = 0


class _OfSummary(_OfItem, kw_only=True):
    summary_index: Index = 0


class Created(_OfResponse, tag="response.created"): ...


class InProgress(_OfResponse, tag="response.in_progress"): ...


class Queued(_OfResponse, tag="response.queued"): ...


class Completed(_OfResponse, tag="response.completed"): ...


class Incomplete(_OfResponse, tag="response.incomplete"):
    """The whole response, which ended before its end."""


class Failed(_OfResponse, tag="response.failed"):
    """There is no response."""


class ItemAdded(_OfItem, tag="response.output_item.added", kw_only=True):
    item: Raw


class ItemDone(_Event, tag="response.output_item.done", kw_only=True):
    """A whole item. Its place may be missing (seen in a recording)."""

    item: Raw
    output_index: Index | None = None


class _PartKind(Struct, gc=False):
    type: str = ""


class PartAdded(_OfPart, tag="response.content_part.added", kw_only=True):
    part: _PartKind


class TextDelta(_OfPart, tag="response.output_text.delta", kw_only=True):
    delta: str


class RefusalDelta(_OfPart, tag="response.refusal.delta", kw_only=True):
    delta: str


class ReasoningDelta(_OfPart, tag="response.reasoning_text.delta", kw_only=True):
    delta: str


class SummaryDelta(_OfSummary, tag="response.reasoning_summary_text.delta", kw_only=True):
    delta: str


class ArgumentsDelta(_OfItem, tag="response.function_call_arguments.delta", kw_only=True):
    delta: str


class InputDelta(_OfItem, tag="response.custom_tool_call_input.delta", kw_only=True):
    """More of the text that a custom tool is called with."""

    delta: str


class PartDone(_OfPart, tag="response.content_part.done", kw_only=True):
    part: Raw


class TextDone(_OfPart, tag="response.output_text.done", kw_only=True):
    text: str


class RefusalDone(_OfPart, tag="response.refusal.done", kw_only=True):
    refusal: str


class ReasoningDone(_OfPart, tag="response.reasoning_text.done", kw_only=True):
    text: str


class SummaryDone(_OfSummary, tag="response.reasoning_summary_text.done", kw_only=True):
    text: str


class ArgumentsDone(_OfItem, tag="response.function_call_arguments.done", kw_only=True):
    arguments: str


class InputDone(_OfItem, tag="response.custom_tool_call_input.done", kw_only=True):
    input: str


Piece: TypeAlias = (
    ItemAdded | PartAdded | TextDelta | RefusalDelta | ReasoningDelta | SummaryDelta | ArgumentsDelta | InputDelta
)
Whole: TypeAlias = PartDone | TextDone | RefusalDone | ReasoningDone | SummaryDone | ArgumentsDone | InputDone
Ending: TypeAlias = Completed | Incomplete | Failed
Frame: TypeAlias = Created | InProgress | Queued | Ending | ItemDone | Whole
AnyEvent: TypeAlias = Frame | Piece
# Their types: one of these that cannot be decoded is malformed, and not an unknown event.
NAMES = frozenset(str(event.__struct_config__.tag) for event in get_args(AnyEvent))

# Events with raw JSON, which was not checked yet.
HOLD_JSON = frozenset({Created, InProgress, Queued, *get_args(Ending), ItemAdded, ItemDone, PartDone})


class Other(Struct, gc=False):
    """The members of any other event that are read."""

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


# Parts of a message that are text.
TEXT_PARTS: Final = frozenset({"output_text", "refusal", "text"})
REFUSAL: Final = "refusal"


class Part(Struct, gc=False):
    """The members of a part, of a message or of reasoning, that are read."""

    type: str = ""
    text: str | None = None
    refusal: str | None = None

    @property
    def words(self) -> str | None:
        said = self.refusal if self.type == REFUSAL else self.text
        return said if self.type in TEXT_PARTS else None


class Item(Struct, gc=False):
    """The members of an item that are read; an item of the provider's own tools may have more."""

    type: str
    id: str | None = None
    status: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    input: Any = None
    encrypted_content: str | None = None
    summary: list[Raw] | None = None
    content: list[Raw] | None = None


_item = msgspec.json.Decoder(Item)
_part = msgspec.json.Decoder(Part)
READ: Final = frozenset({"message", "reasoning", "function_call", "custom_tool_call"})


def read_item(raw: Raw) -> Item:
    """Return an item. One with a member of the wrong type stays unchanged, like an unknown one."""
    try:
        return _item.decode(raw)
    except msgspec.DecodeError:
        kind = read.text(read.members({"item": raw}, "item") or {}, "type")
        return Item("unknown" if kind in READ else kind)


def read_part(raw: Raw) -> Part:
    """A part; nothing of it, where a member is not what it should be."""
    try:
        return _part.decode(raw)
    except msgspec.DecodeError:
        return Part()


# Members of a response that repeat its request, describe its creation, or are read above; the rest describes the
# answer, and no other event has it.
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
    """Return a response, member by member: an invalid one counts as absent."""
    details = read.members(members, "incomplete_details")
    return Response(
        id=read.text(members, "id") or None,
        model=read.text(members, "model") or None,
        status=read.text(members, "status") or None,
        output=read.elements(members, "output"),
        usage=read.counts(members, "usage", Tokens),
        incomplete_details=Reason(read.text(details, "reason") or None) if details else None,
        error=read.members(members, "error"),
    )


def is_answer(members: Fields) -> bool:
    """Return True if an object is a response that did not stream. Some servers leave out what it is."""
    if "type" in members or read.elements(members, "output") is None:
        return False
    return read.text(members, "object", "status", "id").startswith(("response", "resp_", "completed", "incomplete"))


def siblings_of_output(members: Fields) -> dict[str, Raw] | UnsetType:
    """Return a whole response's members about its answer outside of the output, such as citations."""
    return read.telling(members, _KNOWN) or UNSET


def members_of_response(payload: bytes) -> Fields:
    return _with_response.decode(payload).response


class _WithResponse(Struct, gc=False):
    response: Fields


_with_response = msgspec.json.Decoder(_WithResponse)


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
