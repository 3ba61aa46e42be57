"""Chunks of a chat completion as typed structs: one decode a chunk.

What a delta may hold is named whole (``forbid_unknown_fields``): a member that nobody knows makes the decode fail, and
the chunk is then read member by member, so that the unknown one can be passed on.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from pipeline.streams import fields as read
from pipeline.streams.fields import Counted, Fields, Index
from topics.items import Usage


class Function(Struct, gc=False):
    """More of a function call. Some servers send arguments as the object itself."""

    name: str | None = None
    arguments: str | dict[str, Raw] | None = None


class Custom(Struct, gc=False):
    """More of a call of a custom tool, whose input is free text."""

    name: str | None = None
    input: str | None = None


class ToolCall(Struct, gc=False):
    """More of a call, known by its place, its id, or both."""

    index: Index | None = None
    id: str | None = None
    function: Function | None = None
    custom: Custom | None = None


class Detail(Struct, gc=False):
    """A piece of reasoning as OpenRouter and its kin write it, beside or instead of the plain text."""

    text: str | None = None
    summary: str | None = None
    signature: str | None = None
    data: str | None = None


class Delta(Struct, forbid_unknown_fields=True, gc=False):
    """More of a choice. The second half is known and says nothing of the message."""

    role: str | None = None
    content: str | list[Raw] | None = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: Function | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_text: str | None = None
    reasoning_details: list[Detail] | None = None

    channel: Raw | UnsetType = UNSET
    token_id: Raw | UnsetType = UNSET
    provider_metadata: Raw | UnsetType = UNSET
    name: Raw | UnsetType = UNSET


class Choice(Struct, gc=False):
    """One of the answers. ``others`` are members of its delta that nobody knows, or of a type that nobody expects."""

    delta: Delta | None = None
    index: Index | None = 0
    finish_reason: str | None = None
    others: dict[str, Raw] = {}


class _Details(Counted, gc=False):
    cached_tokens: int | None = None


class Tokens(Counted, gc=False):
    """Token counts; the prompt's include what was read from a cache."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class Chunk(Struct, gc=False):
    """One event. An Azure stream begins with one that has neither choices nor an id."""

    choices: list[Choice] | None
    id: str | None = None
    usage: Tokens | None = None
    error: dict[str, Raw] | str | None = None
    model: str | None = None


class _Text(Struct, tag_field="type", tag="text", gc=False):
    text: str = ""


class _Thinking(Struct, tag_field="type", tag="thinking", gc=False):
    thinking: list[_Text] | str = ""


Part: TypeAlias = _Text | _Thinking

_decode = msgspec.json.Decoder(Chunk).decode
_part: msgspec.json.Decoder[Part] = msgspec.json.Decoder(Part)
_MEMBERS: dict[str, msgspec.json.Decoder[object]] = {
    field.name: msgspec.json.Decoder(field.type) for field in msgspec.structs.fields(Delta) if field.default is None
}
_SILENT = frozenset(Delta.__struct_fields__) - frozenset(_MEMBERS)
_NOTHING = frozenset({b"null", b"[]", b"{}", b'""'})


def read_chunk(payload: bytes) -> Chunk:
    """A chunk, typed where it is plain, else member by member.

    Raises:
        msgspec.DecodeError: it is not JSON, or no chunk.
    """
    try:
        return _decode(payload)
    except msgspec.ValidationError:
        return _read_odd(payload)


def _read_odd(payload: bytes) -> Chunk:
    fields = msgspec.json.decode(payload, type=dict[str, Raw])
    choices = read.elements(fields, "choices")
    if choices is None:
        raise msgspec.ValidationError("no choices")
    error = read.members(fields, "error")
    return Chunk(
        [_read_choice(msgspec.json.decode(choice, type=dict[str, Raw])) for choice in choices],
        read.text(fields, "id"),
        _tokens(fields),
        read.text(fields, "error") or None if error is None else error,
        read.text(fields, "model"),
    )


def _tokens(fields: Fields) -> Tokens | None:
    try:
        return msgspec.json.decode(fields["usage"], type=Tokens)
    except (KeyError, msgspec.DecodeError):
        return None


def _read_choice(fields: Fields) -> Choice:
    known: dict[str, Any] = {}
    others: dict[str, Raw] = {}
    for name, value in (read.members(fields, "delta") or {}).items():
        decoder = _MEMBERS.get(name)
        try:
            known[name] = decoder.decode(value) if decoder is not None else None
        except msgspec.DecodeError:
            decoder = None
        if decoder is None:
            known.pop(name, None)
            if name not in _SILENT and bytes(value) not in _NOTHING:
                others[name] = read.own(value)
    return Choice(Delta(**known), read.index(fields, "index") or 0, read.text(fields, "finish_reason") or None, others)


def usage(tokens: Tokens) -> Usage:
    """Token counts with what was read from a cache on its own."""
    cached = (tokens.prompt_tokens_details and tokens.prompt_tokens_details.cached_tokens) or 0
    return Usage(
        input_tokens=max((tokens.prompt_tokens or 0) - cached, 0),
        output_tokens=tokens.completion_tokens or 0,
        cache_read_input_tokens=cached,
    )


def part(raw: Raw) -> tuple[str, str] | None:
    """A part of content that is a list (Mistral's): its kind and its words; None where it is another kind of part."""
    try:
        found = _part.decode(raw)
    except msgspec.DecodeError:
        return None
    if isinstance(found, _Text):
        return "text", found.text
    words = found.thinking
    return "thinking", words if isinstance(words, str) else "".join(text.text for text in words)


def reasoning(delta: Delta) -> str:
    """The words of reasoning, which some servers write under two or three names at once."""
    words = delta.reasoning_content or delta.reasoning or delta.reasoning_text
    if words or not delta.reasoning_details:
        return words or ""
    return "".join(detail.text or detail.summary or "" for detail in delta.reasoning_details)
