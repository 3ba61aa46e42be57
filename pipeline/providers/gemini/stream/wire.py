"""Chunks of Gemini's ``streamGenerateContent`` as typed structs: one decode for each chunk.

The members of a part are declared completely (``forbid_unknown_fields``): another member makes the decode fail, and the
chunk is then read part by part, so that nothing of such a part is lost. Only a chunk that is damaged elsewhere is read
member by member. Some servers and clients write enums as their numbers in Google's protocol buffers.

The arguments of a call that streams arrive in pieces, each of which names a leaf by its path
(``$.operations[0].price``) and holds its value, or a part of it if it is a string that continues. They arrive in the
order in which the object is written, so its text only grows: open containers are closed down to where the next path
branches off, and opened again along it.
"""

from __future__ import annotations

import re
from typing import Generic, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import astuple

from reknit.pipeline.streams import fields as read
from reknit.pipeline.streams.fields import Fields, Index
from reknit.topics.items import Usage


class PartialArg(Struct, omit_defaults=True, gc=False):
    """A piece of one leaf. With none of the values it is null."""

    json_path: str = msgspec.field(name="jsonPath")
    string: str | None = msgspec.field(name="stringValue", default=None)
    number: Raw | UnsetType = msgspec.field(name="numberValue", default=UNSET)
    boolean: bool | None = msgspec.field(name="boolValue", default=None)
    goes_on: bool | None = msgspec.field(name="willContinue", default=None)


class FunctionCall(Struct, rename="camel", forbid_unknown_fields=True, gc=False):
    """A call, whole, or with ``will_continue`` a piece of one."""

    name: str | None = None
    id: str | None = None
    args: Raw | UnsetType = UNSET
    partial_args: list[PartialArg] | None = None
    will_continue: bool | None = None


class Part(Struct, rename="camel", forbid_unknown_fields=True, gc=False):
    """A text, a thought, or a call; a signature seals it.

    ``own`` are the members of a part of another kind, ``about`` the members next to the words or in the call.
    """

    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: FunctionCall | None = None
    own: Fields | UnsetType = msgspec.field(name="reknit.own", default=UNSET)
    about: Fields | UnsetType = msgspec.field(name="reknit.about", default=UNSET)


# How parts are read: as parts, or not yet.
P = TypeVar("P", Part, Raw)


class Content(Struct, Generic[P], gc=False):
    parts: list[P] | None = None


class Candidate(Struct, Generic[P], rename="camel", gc=False):
    content: Content[P] | None = None
    index: Index | None = None
    finish_reason: str | int | None = None
    finish_message: str | None = None
    grounding_metadata: Raw | UnsetType = UNSET
    url_context_metadata: Raw | UnsetType = UNSET
    citation_metadata: Raw | UnsetType = UNSET
    grounding_attributions: Raw | UnsetType = UNSET


class Tokens(Struct, rename="camel", gc=False):
    """Token counts so far; the prompt's include what was read from a cache."""

    prompt_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None
    tool_use_prompt_token_count: int | None = None
    cached_content_token_count: int | None = None


class Feedback(Struct, rename="camel", gc=False):
    block_reason: str | int | None = None
    block_reason_message: str | None = None


class Chunk(Struct, Generic[P], rename="camel", gc=False):
    """One event. Code Assist wraps it in ``response``; Vertex says when it was made."""

    candidates: list[Candidate[P]] | None = None
    response_id: str | None = None
    model_version: str | None = None
    usage_metadata: Tokens | None = None
    prompt_feedback: Feedback | None = None
    response: Raw | UnsetType = UNSET
    create_time: Raw | UnsetType = UNSET


_decode = msgspec.json.Decoder(Chunk[Part]).decode
_decode_around_parts = msgspec.json.Decoder(Chunk[Raw]).decode
_part = msgspec.json.Decoder(Part)
EMPTY = frozenset({b"{}", b"[]", b"null"})
_KNOWN = frozenset({"text", "thought", "thoughtSignature", "functionCall"})
_KNOWN_OF_CALLS = frozenset({"name", "id", "args", "partialArgs", "willContinue"})
# Members that hold a part's content. Next to words they are a separate part; any other member is about the words.
_CONTENT = frozenset(
    {
        "inlineData",
        "fileData",
        "functionResponse",
        "executableCode",
        "codeExecutionResult",
        "toolCall",
        "toolResponse",
    }
)
# Members of a candidate that describe its words.
_NEXT_TO_TEXT = ("groundingMetadata", "urlContextMetadata", "citationMetadata", "groundingAttributions")
# The numbers of `Candidate.FinishReason` and `PromptFeedback.BlockReason` in google.ai.generativelanguage.v1beta. A
# field that says nothing is zero. Vertex (google.cloud.aiplatform.v1) counts otherwise from 6 on.
_FINISH_REASONS = (
    *("", "STOP", "MAX_TOKENS", "SAFETY", "RECITATION", "OTHER"),
    *("LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MALFORMED_FUNCTION_CALL", "IMAGE_SAFETY"),
    "UNEXPECTED_TOOL_CALL",
)
_FINISH_REASONS_OF_VERTEX = (
    *("", "STOP", "MAX_TOKENS", "SAFETY", "RECITATION", "OTHER"),
    *("BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MALFORMED_FUNCTION_CALL", "MODEL_ARMOR", "IMAGE_SAFETY"),
    *("IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION", "IMAGE_OTHER", "UNEXPECTED_TOOL_CALL", "NO_IMAGE"),
)
_BLOCK_REASONS = ("", "SAFETY", "OTHER", "BLOCKLIST", "PROHIBITED_CONTENT", "IMAGE_SAFETY")


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
    candidates = [_with_parts(found) for found in chunk.candidates or ()]
    return Chunk(candidates, *(getattr(chunk, name) for name in chunk.__struct_fields__[1:]))


def _with_parts(found: Candidate[Raw]) -> Candidate[Part]:
    content = _read_content(found.content)
    return Candidate(content, *(getattr(found, name) for name in found.__struct_fields__[1:]))


def _read_content(content: Content[Raw] | None) -> Content[Part]:
    parts = content.parts if content is not None else None
    return Content([part for raw in parts or () for part in _read_part(raw)])


def _read_members(payload: bytes) -> Chunk[Part]:
    fields = read.read_object(payload)
    candidates = read.elements(fields, "candidates")
    if candidates is None:
        raise msgspec.ValidationError("no candidates")
    return Chunk(
        [_read_candidate(read.read_object(candidate)) for candidate in candidates],
        read.text(fields, "responseId") or None,
        read.text(fields, "modelVersion") or None,
        read.counts(fields, "usageMetadata", Tokens),
        read.typed(fields, "promptFeedback", Feedback),
        create_time=fields.get("createTime", UNSET),
    )


def _read_candidate(fields: Fields) -> Candidate[Part]:
    content = read.members(fields, "content") or {}
    return Candidate(
        _read_content(Content(read.elements(content, "parts"))),
        read.index(fields, "index"),
        read.text(fields, "finishReason") or read.integer(fields, "finishReason"),
        read.text(fields, "finishMessage") or None,
        *(fields.get(name, UNSET) for name in _NEXT_TO_TEXT),
    )


def _read_part(raw: Raw) -> list[Part]:
    """Return a part; one with other content in addition to its words or its call gives both, the rest unchanged."""
    try:
        return [_part.decode(raw)]
    except msgspec.DecodeError:
        fields = read.members({"part": raw}, "part")
    if fields is None:
        return [Part(own={"part": raw})]
    words = _read_words(fields) if "text" in fields or "functionCall" in fields else None
    if words is None:
        return [Part(own=fields)]
    others = {name: value for name, value in fields.items() if name not in _KNOWN}
    own = others if not (words.text or words.function_call) else {n: v for n, v in others.items() if n in _CONTENT}
    if own and not all(map(_is_about, own)):
        return [words, Part(own=own)]
    words.about = (others if words.about is UNSET else words.about | others) or UNSET
    return [words]


def _read_words(fields: Fields) -> Part | None:
    """Return a part's known members; None if one of them has the wrong type."""
    known = {name: value for name, value in fields.items() if name in _KNOWN}
    called = read.members(known, "functionCall") or {}
    unknown = {name: value for name, value in called.items() if name not in _KNOWN_OF_CALLS}
    if unknown:
        plain = {name: value for name, value in called.items() if name in _KNOWN_OF_CALLS}
        known["functionCall"] = Raw(msgspec.json.encode(plain))
    try:
        words = _part.decode(msgspec.json.encode(known))
    except msgspec.DecodeError:
        return None
    words.about = unknown or UNSET
    return None if words.text is None and words.function_call is None else words


def _is_about(name: str) -> bool:
    return name.endswith("Metadata") or name in {"mediaResolution", "mediaProcessing"}


def beside(candidate: Candidate[P]) -> dict[str, Raw]:
    """Return a candidate's members that describe its words, by Gemini's names."""
    named = zip(_NEXT_TO_TEXT, astuple(candidate)[-len(_NEXT_TO_TEXT) :], strict=True)
    return {name: value for name, value in named if isinstance(value, Raw) and bytes(value) not in EMPTY}


def is_annotated(candidate: Candidate[P]) -> bool:
    """Return True if a chunk describes the words by more than the empty object of most chunks."""
    grounding = candidate.grounding_metadata
    if candidate.url_context_metadata is candidate.citation_metadata is candidate.grounding_attributions is UNSET:
        return grounding is not UNSET and bytes(grounding) != b"{}"
    return True


def finish_reason(said: str | int | None, *, of_vertex: bool = False) -> str:
    """Return a finish reason by its name, ``""`` if it is absent. An unpublished number stays a number."""
    return _named(said, _FINISH_REASONS_OF_VERTEX if of_vertex else _FINISH_REASONS)


def block_reason(said: str | int | None) -> str:
    return _named(said, _BLOCK_REASONS)


def _named(said: str | int | None, names: tuple[str, ...]) -> str:
    if not isinstance(said, int):
        return said or ""
    return names[said] if 0 <= said < len(names) else str(said)


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


# Arguments that stream.

Path: TypeAlias = list[str | int]

_STEP = re.compile(r"""\.([^.\[\]]+)|\[(\d{1,9})\]|\['((?:[^'\\]|\\.)*)'\]|\["((?:[^"\\]|\\.)*)"\]""")


class Arguments(Struct):
    """The open containers: the path of the last leaf, and whether it is a string that continues.

    ``written`` are the paths of all leaves and of all closed objects and lists, as text.
    """

    path: Path = []
    quoted: bool = False
    begun: bool = False
    written: set[str] = set()

    def write_piece(self, piece: PartialArg) -> str | None:
        """The JSON text that a piece adds; None where its path leads back into what was closed, or is no path."""
        path = steps(piece.json_path)
        if path is None:
            return None
        if self.quoted and path == self.path:
            return read.escaped(piece.string or "") + self._pause(piece)
        opening = self._open_path(path)
        if opening is None:
            return None
        if piece.string is not None:
            self.quoted = True
            return f'{opening}"{read.escaped(piece.string)}{self._pause(piece)}'
        if isinstance(piece.number, Raw):
            return opening + bytes(piece.number).decode()
        return opening + ("null" if piece.boolean is None else str(piece.boolean).lower())

    def close_object(self) -> str:
        if not self.begun:
            return "{}"
        quote = '"' if self.quoted else ""
        ends = "".join("]" if isinstance(step, int) else "}" for step in reversed(self.path))
        self.path, self.quoted = [], False
        return quote + ends

    def _pause(self, piece: PartialArg) -> str:
        self.quoted = bool(piece.goes_on)
        return "" if self.quoted else '"'

    def _open_path(self, path: Path) -> str | None:
        """Close what is not on the way to a leaf, and open what is."""
        shared = next((at for at, (old, new) in enumerate(zip(self.path, path, strict=False)) if old != new), None)
        if self.begun and (shared is None or type(self.path[shared]) is not type(path[shared])):
            return None  # the same leaf again, or one inside of a leaf
        at = shared or 0
        if any(repr(path[: depth + 1]) in self.written for depth in range(at, len(path))):
            return None
        text = '"' if self.quoted else ""
        self.quoted = False
        for depth in range(len(self.path) - 1, at, -1):
            self.written.add(repr(self.path[:depth]))
            text += "]" if isinstance(self.path[depth], int) else "}"
        text += "," if self.begun else _bracket(path[0])
        for depth in range(at, len(path)):
            step = path[depth]
            text += f'"{read.escaped(step)}":' if isinstance(step, str) else ""
            text += _bracket(path[depth + 1]) if depth + 1 < len(path) else ""
        self.begun, self.path = True, path
        self.written.add(repr(path))
        return text


def steps(path: str) -> Path | None:
    """A path's steps: names of members and numbers of elements; None where it is no such path."""
    if not path.startswith("$"):
        return None
    found: Path = []
    position = 1
    while position < len(path):
        step = _STEP.match(path, position)
        if step is None:
            return None
        name, number, single, double = step.groups()
        found.append(int(number) if number else name or (single if single is not None else double) or "")
        position = step.end()
    return found if found and isinstance(found[0], str) else None


def _bracket(step: str | int) -> str:
    return "[" if isinstance(step, int) else "{"
