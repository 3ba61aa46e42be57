"""Chunks of a chat completion as typed structs: one decode for each chunk.

The members of a delta are declared completely (``forbid_unknown_fields``): an unknown member makes the decode fail, and
the chunk is then read member by member, so that the unknown one can be passed on.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from reknit.pipeline.streams import fields as read
from reknit.pipeline.streams.fields import Counted, Fields, Index
from reknit.topics.items import Usage


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
    """A piece of reasoning in OpenRouter's form, next to or in place of the plain text."""

    text: str | None = None
    summary: str | None = None
    signature: str | None = None
    data: str | None = None


class Delta(Struct, forbid_unknown_fields=True, gc=False):
    """More of a choice, or all of it (``message``). The second half is known and says nothing of the message."""

    role: str | None = None
    content: str | list[Raw] | None = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: Function | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_text: str | None = None
    reasoning_details: list[Detail] | None = None
    annotations: list[Raw] | None = None
    audio: dict[str, Raw] | None = None

    channel: Raw | UnsetType = UNSET
    token_id: Raw | UnsetType = UNSET
    provider_metadata: Raw | UnsetType = UNSET
    name: Raw | UnsetType = UNSET


class Choice(Struct, gc=False):
    """One of the answers.

    ``others`` are unknown members of its delta, or those of an unexpected type. ``text`` is more of a completion's
    text, which some servers repeat next to a delta; ``message`` is the whole answer, or the answer so far next to a
    delta.
    """

    delta: Delta | None = None
    index: Index | None = 0
    finish_reason: str | None = None
    others: dict[str, Raw] = {}
    text: str | None = None
    message: Raw | UnsetType = UNSET


class _Details(Counted, gc=False):
    cached_tokens: int | None = None


class Tokens(Counted, gc=False):
    """Token counts; the prompt's include what was read from a cache."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class Groq(Struct, gc=False):
    """Groq's members next to an answer: in its older streams only they have the token counts."""

    usage: Tokens | None = None


class Chunk(Struct, gc=False):
    """One event. An Azure stream begins with one that has neither choices nor an id."""

    choices: list[Choice] | None
    id: str | None = None
    usage: Tokens | None = None
    error: dict[str, Raw] | str | None = None
    model: str | None = None
    x_groq: Groq | None = None
    citations: Raw | UnsetType = UNSET
    search_results: Raw | UnsetType = UNSET
    annotations: Raw | UnsetType = UNSET
    moderation: Raw | UnsetType = UNSET
    images: Raw | UnsetType = UNSET
    related_questions: Raw | UnsetType = UNSET


class _Text(Struct, tag_field="type", tag="text", gc=False):
    text: str = ""


class _Words(Struct, gc=False):
    text: str = ""
    signature: str | None = None


class _Thinking(Struct, tag_field="type", tag="thinking", gc=False):
    thinking: list[_Words] | str = ""
    signature: str | None = None


class _Refusal(Struct, tag_field="type", tag="refusal", gc=False):
    refusal: str = ""


class _Reasoning(Struct, tag_field="type", tag="reasoning", gc=False):
    """Databricks' thinking."""

    summary: list[_Words] = []
    text: str = ""


class Part(Struct, gc=False):
    """A part of content that is a list: its words, and its other members."""

    kind: str
    words: str
    signature: str = ""
    beside: Fields = {}


# Members of a chunk that are about its text.
SIBLINGS_OF_TEXT: Final = ("citations", "search_results", "annotations", "moderation", "images", "related_questions")
# Members of a part that add nothing to its words.
_SILENT_IN_PARTS: Final = frozenset({"type", "text", "thinking", "refusal", "summary", "signature", "closed", "index"})

_NO_DELTA: Final = Delta()
_decode = msgspec.json.Decoder(Chunk).decode
_message = msgspec.json.Decoder(Delta)
_part: msgspec.json.Decoder[_Text | _Thinking | _Refusal | _Reasoning] = msgspec.json.Decoder(
    _Text | _Thinking | _Refusal | _Reasoning
)
_MEMBERS: dict[str, msgspec.json.Decoder[object]] = {
    field.name: msgspec.json.Decoder(field.type) for field in msgspec.structs.fields(Delta) if field.default is None
}
_SILENT = frozenset(Delta.__struct_fields__) - frozenset(_MEMBERS)


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
    fields = read.read_object(payload)
    choices = read.elements(fields, "choices")
    if choices is None:
        raise msgspec.ValidationError("no choices")
    error = read.members(fields, "error")
    chunk = Chunk(
        [_read_choice(read.read_object(choice)) for choice in choices],
        read.text(fields, "id"),
        read.counts(fields, "usage", Tokens),
        read.text(fields, "error") or None if error is None else error,
        read.text(fields, "model"),
        Groq(read.counts(read.members(fields, "x_groq") or {}, "usage", Tokens)),
    )
    for name in SIBLINGS_OF_TEXT:
        setattr(chunk, name, fields.get(name, UNSET))
    return chunk


def _read_choice(fields: Fields) -> Choice:
    delta, others = _read_members(read.members(fields, "delta") or {})
    return Choice(
        None if read.raw(fields, "delta") is UNSET else delta,
        read.index(fields, "index") or 0,
        read.text(fields, "finish_reason") or None,
        others,
        read.text(fields, "text") or None,
        read.raw(fields, "message"),
    )


def read_message(raw: Raw) -> tuple[Delta, Fields]:
    """Return a whole message, and its unknown members.

    Raises:
        msgspec.DecodeError: it is not an object.
    """
    try:
        return _message.decode(raw), {}
    except msgspec.ValidationError:
        return _read_members(read.read_object(raw))


def _read_members(fields: Fields) -> tuple[Delta, Fields]:
    known: dict[str, Any] = {}
    others: Fields = {}
    for name, value in fields.items():
        decoder = _MEMBERS.get(name)
        try:
            known[name] = decoder.decode(value) if decoder is not None else None
        except msgspec.DecodeError:
            decoder = None
        if decoder is None:
            known.pop(name, None)
            if name not in _SILENT and bytes(value) not in read.NOTHING:
                others[name] = read.own(value)
    return Delta(**known), others


def usage(tokens: Tokens) -> Usage:
    """Token counts with what was read from a cache on its own."""
    cached = (tokens.prompt_tokens_details and tokens.prompt_tokens_details.cached_tokens) or 0
    return Usage(
        input_tokens=max((tokens.prompt_tokens or 0) - cached, 0),
        output_tokens=max(tokens.completion_tokens or 0, 0),
        cache_read_input_tokens=max(cached, 0),
    )


def part(raw: Raw) -> Part | None:
    """A part of content that is a list (Mistral's, Databricks'); None where it is another kind of part."""
    try:
        found = _part.decode(raw)
    except msgspec.DecodeError:
        return None
    beside = read.telling(read.read_object(raw), _SILENT_IN_PARTS)
    match found:
        case _Text():
            return Part("text", found.text, beside=beside)
        case _Refusal():
            return Part("refusal", found.refusal, beside=beside)
        case _Thinking(thinking=pieces):
            words = pieces if isinstance(pieces, str) else "".join(piece.text for piece in pieces)
            return Part("thinking", words, found.signature or "", beside)
        case _Reasoning():
            words = found.text or "".join(piece.text for piece in found.summary)
            return Part("thinking", words, "".join(piece.signature or "" for piece in found.summary), beside)


def reasoning(delta: Delta) -> str:
    """The words of reasoning, which some servers write under two or three names at once."""
    words = delta.reasoning_content or delta.reasoning or delta.reasoning_text
    if words or not delta.reasoning_details:
        return words or ""
    return "".join(detail.text or detail.summary or "" for detail in delta.reasoning_details)


def transcript(audio: Fields) -> tuple[str, Fields]:
    """Return the transcript of a piece of audio, and its other members."""
    words = read.text(audio, "transcript")
    others = {
        name: value
        for name, value in audio.items()
        if bytes(value) not in read.NOTHING and not (name == "transcript" and words)
    }
    return words, others


def siblings_of_text(chunk: Chunk) -> list[tuple[str, Raw]]:
    """Return a chunk's members about its text, outside of its choices."""
    found = [(name, value) for name in SIBLINGS_OF_TEXT if (value := getattr(chunk, name)) is not UNSET]
    return [(name, value) for name, value in found if bytes(value) not in read.NOTHING] if found else found


def holds_json(chunk: Chunk) -> bool:
    """Return True if a chunk has raw JSON, which was not checked yet."""
    if chunk.error or siblings_of_text(chunk):
        return True
    return any(
        choice.others
        or choice.message is not UNSET
        or (choice.delta is not None and choice.delta != _NO_DELTA and _delta_holds_json(choice.delta))
        for choice in chunk.choices or ()
    )


def _delta_holds_json(delta: Delta) -> bool:
    if type(delta.content) is list or delta.annotations or delta.audio:
        return True
    functions = [call.function for call in delta.tool_calls or ()] + [delta.function_call]
    if any(function is not None and type(function.arguments) is dict for function in functions):
        return True
    return not (delta.channel is delta.token_id is delta.provider_metadata is delta.name is UNSET)


def plain_words(chunk: Chunk, choice: Choice) -> str:
    """The words of a chunk that has nothing but words of the first answer, or ``""``."""
    delta = choice.delta
    if delta is None or choice.finish_reason is not None or choice.index or choice.others:
        return ""
    words = delta.content
    # One comparison looks at all other members.
    if type(words) is not str or chunk != Chunk(chunk.choices, chunk.id, None, None, chunk.model, chunk.x_groq):
        return ""
    # Some servers write members of the delta that have nothing in them.
    return words if delta == Delta(None, words) or not (delta.role or _says_more(delta)) else ""


def members_of(choice: Choice) -> Fields:
    known: Fields = msgspec.json.decode(msgspec.json.encode(choice.delta or _NO_DELTA), type=Fields)
    return {name: value for name, value in known.items() if bytes(value) != b"null"} | choice.others


def says_something(choice: Choice) -> bool:
    return choice.delta is not None and bool(choice.delta.content or _says_more(choice.delta))


def _says_more(delta: Delta) -> bool:
    return bool(
        delta.refusal
        or delta.tool_calls
        or delta.function_call
        or delta.reasoning_content
        or delta.reasoning
        or delta.reasoning_text
        or delta.reasoning_details
        or delta.annotations
        or delta.audio
    )


def is_whole(choice: Choice) -> bool:
    """Return True if a choice is a whole answer: a message, or a completion's text that has ended."""
    ends = choice.finish_reason is not None
    if choice.message is not UNSET:
        return choice.delta is None or (ends and not says_something(choice))
    return ends and bool(choice.text) and choice.delta == Delta(content=choice.text)
