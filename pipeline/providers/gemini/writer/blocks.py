"""One message's blocks as Gemini's parts: first adapted, then written.

A signature seals the thoughts that led to a part, and is sent back on that part (GEM-04). In the canonical form it is
on a thinking block of Gemini's, and belongs to the part after that. A call of another model has none; Gemini 3 then
requires the documented placeholder on the first call of a step.

Gemini's own parts without a canonical form are sent back only if they are well-formed.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, structs

from reknit.pipeline.history.call_ids import made_id
from reknit.pipeline.history.pieces import FixLog, LedgerEntry, Message, TrackedBlock
from reknit.pipeline.model import (
    Document,
    Image,
    Issuer,
    Own,
    RedactedThinking,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Unknown,
)
from reknit.pipeline.policy import Endpoint
from reknit.pipeline.providers.gemini.reader import NOTES, OF_CALLS, OF_RESPONSES, SIGNATURE, UNSIGNED
from reknit.pipeline.targets import is_issued_by, legal_name
from reknit.pipeline.targets.fitting import BlockAdapter, bare
from reknit.pipeline.targets.limits import GEMINI as GEMINI_LIMITS
from reknit.pipeline.targets.media import decodes, fit_document, fit_image, inline
from reknit.pipeline.targets.signatures import has_foreign_signature

NAME: Final = "gemini"
PLACEHOLDER: Final = UNSIGNED.provider
_VERSION: Final = re.compile(r"gemini-(?:[a-z]+-)*(\d+)")
# Gemini's names start with a letter or an underscore (GEM-10); of its alphabet, what every provider takes is enough.
_LEGAL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}").fullmatch
_LONGEST: Final = 64


class Signed(Struct, frozen=True):
    """A piece to write, and its part's signature."""

    piece: TrackedBlock
    signature: str = ""


def wants_signatures(model: str | None) -> bool:
    """True if a model refuses calls without a signature: Gemini 3 and later, and the names that follow the newest."""
    name = (model or "").lower()
    version = _VERSION.search(name)
    if version is None:
        return "gemini" in name and name.endswith("latest")
    return int(version[1]) >= 3


def unfit_reasoning(message: Message, model: str | None, endpoint: Endpoint) -> dict[int, str]:
    """The reasoning in a message that is not Gemini's, each with the code of the fix that says why."""
    unfit: dict[int, str] = {}
    for at, piece in enumerate(message.pieces):
        block = piece.block
        if isinstance(block, Thinking | RedactedThinking):
            code = reasoning_fault(block, model, endpoint)
            if code:
                unfit[at] = code
    return unfit


def reasoning_fault(block: Thinking | RedactedThinking, model: str | None, endpoint: Endpoint) -> str:
    """Return the code of the fix that drops reasoning; ``""`` if it is Gemini's."""
    if isinstance(block, RedactedThinking) or not is_issued_by(block, {NAME}, model):
        return "thinking_foreign"
    if has_foreign_signature(block, endpoint):
        return "reasoning_foreign"
    return "" if block.signature or block.thinking.strip() else "thinking_empty"


def signed(pieces: list[TrackedBlock], content: int, book: FixLog, *, placeholders: bool) -> list[Signed]:
    """Return the pieces with their signatures; ``content`` is the number of their turn in the output.

    Reasoning without words leaves only its signature, on the part after it. It stays a separate part if no part
    follows, as Gemini itself writes it, and if another signature precedes that part.
    """
    out: list[Signed] = []
    waiting: _Waiting | None = None
    called = False
    for came in pieces:
        piece, block = came, came.block
        is_own = waiting is not None and waiting.piece.path == f"{piece.path}.{SIGNATURE}"
        if isinstance(block, Thinking) and not is_own:
            if block.signature and waiting is not None:
                _stay(waiting, out)
                waiting = None
            if block.signature:
                waiting = _Waiting(block.signature, piece, len(out), silent=not block.thinking.strip())
            if block.thinking.strip():
                out.append(Signed(piece))
            continue
        signature = "" if waiting is None else waiting.signature
        if isinstance(block, ToolUse):
            if not signature and block.issuer == UNSIGNED:
                signature = PLACEHOLDER
            elif placeholders and not called and not signature and book.makes("signature_skipped"):
                signature, piece = PLACEHOLDER, book.change("signature_skipped", piece)
            called = True
        if waiting is not None and waiting.silent:
            book.dropped.append(_joined(waiting.piece, f"contents.{content}.parts.{len(out)}", book, kept=is_own))
        out.append(Signed(piece, signature))
        waiting = None
    if waiting is not None:
        _stay(waiting, out)
    return out


class _Waiting(Struct, frozen=True):
    """A signature on its way to the next part: the reasoning that it came on, and that one's place among the parts."""

    signature: str
    piece: TrackedBlock
    at: int
    silent: bool


def _stay(waiting: _Waiting, out: list[Signed]) -> None:
    """Leave a signature with the reasoning that it came on."""
    part = Signed(waiting.piece, waiting.signature)
    if waiting.silent:
        out.insert(waiting.at, part)
    else:
        out[waiting.at] = part


def _joined(thought: TrackedBlock, place: str, book: FixLog, *, kept: bool) -> LedgerEntry:
    """Record the outcome of a signature without words: it is unchanged, or was moved to the part that follows."""
    if kept:
        return LedgerEntry(thought.path, "kept", place)
    book.change("signature_joined", thought)
    return LedgerEntry(thought.path, "moved", place, "signature_joined")


_Words = Annotated[str, Meta(pattern=r"\S")]


class _Exact(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Takes no key that it does not name."""


class _Data(_Exact, frozen=True):
    mime_type: _Words
    data: _Words
    display_name: str = ""


class _File(_Exact, frozen=True):
    file_uri: _Words
    mime_type: str = ""
    display_name: str = ""


class _Code(_Exact, frozen=True):
    language: _Words
    code: str
    id: str = ""


class _Outcome(_Exact, frozen=True):
    outcome: _Words
    output: str = ""
    id: str = ""


class _ServerCall(_Exact, frozen=True):
    tool_type: _Words
    id: str = ""
    args: dict[str, Any] = {}
    response: dict[str, Any] = {}


_MEMBERS: Final[Mapping[str, type[Struct]]] = MappingProxyType(
    {
        "inlineData": _Data,
        "fileData": _File,
        "executableCode": _Code,
        "codeExecutionResult": _Outcome,
        "toolCall": _ServerCall,
        "toolResponse": _ServerCall,
    }
)
# Members that go with a part's content, or make a part by themselves.
_SIBLINGS: Final[Mapping[str, type]] = MappingProxyType(
    {"thoughtSignature": str, "thought": bool, **dict.fromkeys(NOTES, dict[str, Any]), "mediaProcessing": str}
)
_IN_RESULTS: Final = frozenset({"inlineData", "fileData"})


def own_part(block: Unknown) -> bool:
    """Return True if a block is a well-formed part of Gemini's, as the API wrote it or would."""
    shape = _MEMBERS.get(block.kind)
    try:
        keys = part_of(block)
        if (block.kind and shape is None) or not keys:
            return False
        member = msgspec.json.decode(keys.pop(block.kind, b""), type=shape) if shape else None
        for key, value in keys.items():
            msgspec.json.decode(value, type=_SIBLINGS[key])
    except (msgspec.DecodeError, KeyError):
        return False
    return not isinstance(member, _Data) or decodes(member.data)


def part_of(block: Unknown) -> dict[str, Raw]:
    """Return the part of a block, without the type that a block of the log has."""
    part = msgspec.json.decode(block.raw, type=dict[str, Raw])
    part.pop("type", None)
    return part


# The types that the API's documentation names (GEM-12); it takes no GIF.
_IMAGES: Final = frozenset({"image/png", "image/jpeg", "image/webp", "image/heic", "image/heif"})
_DOCUMENTS: Final = re.compile(r"text/[a-z0-9.+-]+|application/(pdf|json|xml|rtf)").fullmatch
# Values of an empty note; citations are raw JSON.
_NOTHING_SAID: Final = (None, Raw(b"null"))


def function_name(name: str) -> str:
    """A function's name as the API takes it; two names never give one."""
    if _LEGAL(name):
        return name
    # A digest is what keeps the new names apart; every one of them has it.
    return f"_{legal_name(f' {name}', _LONGEST - 1)}".replace("__", "_", 1)


_OWN: Final = frozenset({NAME})


class GeminiBlockAdapter(BlockAdapter, kw_only=True, eq=False):
    marks = False

    media_in_results: bool

    def bared(self, piece: TrackedBlock) -> TrackedBlock:
        return bare(piece, self.book, empty=True, owners=_OWN)

    def name(self, name: str) -> str:
        """A function's name (GEM-10)."""
        return function_name(name)

    def image(self, piece: TrackedBlock, image: Image) -> TrackedBlock:
        return fit_image(piece, image, self.book, taken=_IMAGES, limits=GEMINI_LIMITS)

    def document(self, piece: TrackedBlock, document: Document) -> TrackedBlock:
        """PDF and text; a part has no place for what is said about it."""
        piece = fit_document(piece, document, self.book, taken=lambda kind: _DOCUMENTS(kind) is not None)
        if not isinstance(piece.block, Document):
            return piece
        notes = {name: getattr(document, name) for name in ("title", "context", "citations")}
        lost = [name for name, note in notes.items() if note is not UNSET and note not in _NOTHING_SAID]
        if not lost:
            return piece
        bare = structs.replace(piece.block, title=UNSET, context=UNSET, citations=UNSET)
        return self.book.change("document_notes_dropped", piece, bare, ", ".join(lost))

    def unknown(self, piece: TrackedBlock, unknown: Unknown, inside: ToolResult | None) -> TrackedBlock | None:
        """Gemini's own parts that the canonical form has no block for."""
        if inside is not None and not (self.media_in_results and unknown.kind in _IN_RESULTS):
            return None
        return piece if own_part(unknown) else None

    def reasoning(self, piece: TrackedBlock, reasoning: Thinking | RedactedThinking) -> TrackedBlock | None:
        """There is no part for what only another provider can read."""
        if isinstance(reasoning, Thinking):
            return piece
        self.book.drop("thinking_foreign", piece)
        return None

    def moves(self, part: Image | Document | Unknown, result: ToolResult) -> str:  # noqa: ARG002  in every result
        """A response is an object of JSON. Media are in it for the models that read them there, otherwise after it."""
        return "" if isinstance(part, Unknown) or self.media_in_results else "result_media_moved"


def in_order(pieces: list[TrackedBlock], calls: Mapping[str, str], book: FixLog) -> list[TrackedBlock]:
    """Results in the order of their calls, by which Gemini matches them; then the rest."""
    results = [piece for piece in pieces if isinstance(piece.block, ToolResult)]
    if len(results) > 1:
        place = {call: at for at, call in enumerate(calls)}
        ordered = sorted(results, key=lambda piece: place.get(piece.block.tool_use_id, len(place)))  # type: ignore[union-attr]  # results
        results = [
            book.change("result_moved", piece) if piece is not came and piece.fate != "synthesised" else piece
            for piece, came in zip(ordered, results, strict=True)
        ]
    return [*results, *(piece for piece in pieces if not isinstance(piece.block, ToolResult))]


def shows_id(piece: TrackedBlock, name: str, *, always: bool) -> bool:
    """Return True if a call of the function ``name``, or its response, is written with its id."""
    return piece.tool_id != made_id(name) and (always or piece.path.startswith("contents."))


def written(part: Signed, calls: Mapping[str, str], unnamed: Container[str], *, always: bool) -> dict[str, Any]:
    """Return a part.

    Args:
        part: the part to write.
        calls: the names of the called functions, by the calls' ids.
        unnamed: the ids of calls that were written without their id.
        always: ids of any shape are written, except for generated ones.
    """
    shown = _shown(part, calls, unnamed, always=always)
    block = part.piece.block
    if not (isinstance(block, Unknown) or block.own is UNSET):
        shown |= _members(block.own, NOTES)
    return shown | {"thoughtSignature": part.signature} if part.signature else shown


def _members(own: Own | UnsetType, names: Container[str]) -> dict[str, Raw]:
    """Gemini's own members of a block, those of these names."""
    return {} if own is UNSET else {name: value for name, value in own.members.items() if name in names}


def _shown(part: Signed, calls: Mapping[str, str], unnamed: Container[str], *, always: bool) -> dict[str, Any]:
    match part.piece.block:
        case Text(text=text):
            return {"text": text}
        case Thinking(thinking=text):
            return {"text": text, "thought": True} if text.strip() else {"text": ""}
        case ToolUse() as call:
            named = {} if call.id in unnamed else {"id": call.id}
            return {"functionCall": {**named, "name": call.name, "args": call.input, **_members(call.own, OF_CALLS)}}
        case ToolResult() as result:
            # One that answers no call has no function's name, which the API refuses.
            name = calls.get(result.tool_use_id, "")
            known = result.tool_use_id in calls
            is_named = result.tool_use_id not in unnamed and shows_id(part.piece, name, always=always or known)
            named = {"id": result.tool_use_id} if is_named else {}
            content = result.content if isinstance(result.content, list) else ()
            media = [_medium(each) for each in content if not isinstance(each, Text)]
            said = {"response": _response(result)} if len(media) < len(content) or not media else {}
            shown = {"parts": media} if media else {}
            return {"functionResponse": {**named, "name": name, **said, **shown, **_members(result.own, OF_RESPONSES)}}
        case Image() | Document() | Unknown() as medium:
            return _medium(medium)
        case other:
            raise TypeError(f"not a fitted block: {type(other).__name__}")


def _medium(medium: Image | Document | Unknown) -> dict[str, Any]:
    if isinstance(medium, Unknown):
        return dict(part_of(medium))
    data: Any = inline(medium.source)
    return {"inlineData": {"mimeType": data.media_type, "data": data.data}}


def _response(result: ToolResult) -> dict[str, Any]:
    """A result's text under a key of its own; an object that came from Gemini's shape goes back as it is."""
    words = words_of(result)
    if isinstance(result.issuer, Issuer) and result.issuer.provider == NAME and not result.is_error:
        try:
            return dict(msgspec.json.decode(words, type=dict[str, Raw]))
        except msgspec.DecodeError:
            pass  # its text was changed since
    return {"error" if result.is_error else "result": words}


def words_of(result: ToolResult) -> str:
    """Return the text of a result, each of its texts on lines of its own."""
    if isinstance(result.content, list):
        return "\n".join(part.text for part in result.content if isinstance(part, Text))
    return result.content or ""
