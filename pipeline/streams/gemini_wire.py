"""Chunks of Gemini's ``streamGenerateContent`` as typed structs: one decode a chunk.

What a part may hold is named whole (``forbid_unknown_fields``): one with another member makes the decode fail, and the
chunk is then read part by part, so that such a part can be passed on as it came. Only a chunk that is damaged elsewhere
is read member by member.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from pipeline.streams import fields as read
from pipeline.streams.fields import Fields, Index
from pipeline.streams.gemini_arguments import PartialArg
from topics.items import Usage


class FunctionCall(Struct, rename="camel", forbid_unknown_fields=True, gc=False):
    """A call, whole, or with ``will_continue`` a piece of one."""

    name: str | None = None
    id: str | None = None
    args: Raw | UnsetType = UNSET
    partial_args: list[PartialArg] | None = None
    will_continue: bool | None = None


class Part(Struct, rename="camel", forbid_unknown_fields=True, gc=False):
    """A text, a thought, or a call; a signature seals it. ``own`` are the members of a part that is something else."""

    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: FunctionCall | None = None
    own: Fields | UnsetType = msgspec.field(name="reknit.own", default=UNSET)


# How parts are read: as parts, or not yet.
P = TypeVar("P", Part, Raw)


class Content(Struct, Generic[P], gc=False):
    """What a candidate says."""

    parts: list[P] | None = None


class Candidate(Struct, Generic[P], rename="camel", gc=False):
    """One of the answers."""

    content: Content[P] | None = None
    index: Index | None = 0
    finish_reason: str | None = None
    finish_message: str | None = None


class Tokens(Struct, rename="camel", gc=False):
    """Token counts so far; the prompt's include what was read from a cache."""

    prompt_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None
    tool_use_prompt_token_count: int | None = None
    cached_content_token_count: int | None = None


class Feedback(Struct, rename="camel", gc=False):
    """What became of the prompt."""

    block_reason: str | None = None
    block_reason_message: str | None = None


class Chunk(Struct, Generic[P], rename="camel", gc=False):
    """One event. Code Assist wraps it in ``response``."""

    candidates: list[Candidate[P]] | None = None
    response_id: str | None = None
    model_version: str | None = None
    usage_metadata: Tokens | None = None
    prompt_feedback: Feedback | None = None
    response: Raw | UnsetType = UNSET


_decode = msgspec.json.Decoder(Chunk[Part]).decode
_decode_around_parts = msgspec.json.Decoder(Chunk[Raw]).decode
_part = msgspec.json.Decoder(Part)
_KNOWN = frozenset({"text", "thought", "thoughtSignature", "functionCall"})


def read_chunk(payload: bytes) -> Chunk[Part]:
    """A chunk, typed where it is plain, else part by part.

    Raises:
        msgspec.DecodeError: it is not JSON, or no chunk.
    """
    try:
        chunk = _decode(payload)
    except msgspec.ValidationError:
        chunk = _read_odd(payload)
    if chunk.candidates is not None or chunk.usage_metadata is not None or chunk.prompt_feedback is not None:
        return chunk
    if chunk.response is UNSET:
        raise msgspec.ValidationError("no chunk")
    return read_chunk(bytes(chunk.response))


def _read_odd(payload: bytes) -> Chunk[Part]:
    try:
        chunk = _decode_around_parts(payload)
    except msgspec.ValidationError:
        return _read_members(payload)
    candidates = [
        Candidate(_read_content(found.content), found.index, found.finish_reason, found.finish_message)
        for found in chunk.candidates or ()
    ]
    return Chunk(candidates, chunk.response_id, chunk.model_version, chunk.usage_metadata, chunk.prompt_feedback)


def _read_content(content: Content[Raw] | None) -> Content[Part]:
    parts = content.parts if content is not None else None
    return Content([part for raw in parts or () for part in _read_part(raw)])


def _read_members(payload: bytes) -> Chunk[Part]:
    fields = msgspec.json.decode(payload, type=dict[str, Raw])
    candidates = read.elements(fields, "candidates")
    if candidates is None:
        raise msgspec.ValidationError("no candidates")
    return Chunk(
        [_read_candidate(msgspec.json.decode(candidate, type=dict[str, Raw])) for candidate in candidates],
        read.text(fields, "responseId") or None,
        read.text(fields, "modelVersion") or None,
        _tokens(fields),
        _feedback(fields),
    )


def _read_candidate(fields: Fields) -> Candidate[Part]:
    content = read.members(fields, "content") or {}
    return Candidate(
        _read_content(Content(read.elements(content, "parts"))),
        read.index(fields, "index") or 0,
        read.text(fields, "finishReason") or None,
        read.text(fields, "finishMessage") or None,
    )


def _read_part(raw: Raw) -> list[Part]:
    """A part; one that has more than its words or its call is both: those, and the rest as it came."""
    try:
        return [_part.decode(raw)]
    except msgspec.DecodeError:
        fields = read.members({"part": raw}, "part")
    if fields is None:
        return [Part(own={"part": raw})]
    if "text" not in fields and "functionCall" not in fields:
        return [Part(own=fields)]
    known = {name: value for name, value in fields.items() if name in _KNOWN}
    others = {name: value for name, value in fields.items() if name not in _KNOWN and not _is_about(name)}
    try:
        words = _part.decode(msgspec.json.encode(known))
    except msgspec.DecodeError:
        return [Part(own=fields)]
    if words.text is None and words.function_call is None:
        return [Part(own=fields)]
    return [words, Part(own=others)] if others else [words]


def _is_about(name: str) -> bool:
    """Whether a member only says something about its part."""
    return name.endswith("Metadata") or name in {"mediaResolution", "mediaProcessing"}


def _tokens(fields: Fields) -> Tokens | None:
    try:
        return msgspec.json.decode(fields["usageMetadata"], type=Tokens)
    except (KeyError, msgspec.DecodeError):
        return None


def _feedback(fields: Fields) -> Feedback | None:
    try:
        return msgspec.json.decode(fields["promptFeedback"], type=Feedback)
    except (KeyError, msgspec.DecodeError):
        return None


def usage(tokens: Tokens) -> Usage:
    """Token counts with what was read from a cache on its own; thoughts are output."""
    read.bound(tokens)
    cached = tokens.cached_content_token_count or 0
    prompt = (tokens.prompt_token_count or 0) + (tokens.tool_use_prompt_token_count or 0)
    return Usage(
        input_tokens=max(prompt - cached, 0),
        output_tokens=(tokens.candidates_token_count or 0) + (tokens.thoughts_token_count or 0),
        cache_read_input_tokens=cached,
    )
