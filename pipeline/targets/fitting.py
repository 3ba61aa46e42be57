"""One message's blocks, fitted to what a provider takes.

What comes out is still canonical, but holds nothing that the target has no place for; the target then only has to
write it. Names, media and results are mended. Cache breakpoints, citations and callers are Anthropic's own, and go
where a provider has none.
"""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import Any, ClassVar, Final

import msgspec
from msgspec import UNSET, Raw, Struct, StructMeta, structs

from pipeline.fixes import Fix
from pipeline.history.pieces import Book, Message, Piece, code_for_unknown, part_of_result
from pipeline.model import Document, Image, Own, RedactedThinking, Text, Thinking, ToolResult, ToolUse, Unknown
from pipeline.targets.marks import without_mark
from pipeline.text.flatten import with_each

_BLOCK: Final = attrgetter("block")
_NOTHING: Final = frozenset({b"null", b"[]"})
# What a provider's own members need not say to another: where it keeps them, and what is said otherwise.
_SILENT: Final = frozenset({"id", "status", "role", "content", "logprobs", "index"})
_ALL_FIT: Final[Mapping[int, str]] = MappingProxyType({})


class _AbstractStruct(StructMeta, ABCMeta):
    """Structs whose classes may have abstract methods."""


class Fitting(Struct, metaclass=_AbstractStruct, kw_only=True, eq=False):
    """The work on one message: pieces go in by ``add_piece``; what is to be written stands in ``out`` at the end.

    ``dropped`` are the input messages that have lost a block, ``media`` what of results has to stand behind them. A
    subclass says what its provider takes: each of its methods gives the piece to go on with, or None where nothing of
    it goes on.
    """

    marks: ClassVar[bool] = True
    """Whether the provider takes cache breakpoints somewhere, so that one which is left behind is a fix."""

    left_behind: ClassVar[tuple[Text, ...]] = ()
    """What stands in a result for a medium that had to move. Where something does, a stub stays in the result too."""

    book: Book
    out: list[Piece] = []
    dropped: set[int] = set()
    media: list[Piece] = []

    @property
    def media_at_once(self) -> bool:
        """Whether media out of a result stand behind it, and not behind all results."""
        return False

    @abstractmethod
    def name(self, name: str) -> str:
        """A tool's name as the provider takes it."""

    @abstractmethod
    def image(self, piece: Piece, image: Image) -> Piece | None:
        """An image that the provider takes, or what stands for it."""

    @abstractmethod
    def document(self, piece: Piece, document: Document) -> Piece | None:
        """A document that the provider takes, or what stands for it."""

    @abstractmethod
    def unknown(self, piece: Piece, unknown: Unknown, inside: ToolResult | None) -> Piece | None:
        """A block of another type as the provider takes it, at its place ``inside`` a result or a message."""

    @abstractmethod
    def moves(self, part: Image | Document | Unknown, result: ToolResult) -> str:
        """The fix that moves a part of a result behind the results; ``""`` where it may stay."""

    def bared(self, piece: Piece) -> Piece:
        """A block, of a result too, without what stands beside it and the provider has no field for."""
        return bare(piece, self.book, marks=self.marks, empty=True)

    def text(self, piece: Piece, text: Text) -> Piece:  # noqa: ARG002  most take any text
        return piece

    def reasoning(self, piece: Piece, reasoning: Thinking | RedactedThinking) -> Piece | None:  # noqa: ARG002  decided before
        return piece

    def call(self, piece: Piece, use: ToolUse) -> Piece:
        name = self.name(use.name)
        if name == use.name:
            return piece
        return self.book.change("tool_name_rewritten", piece, structs.replace(use, name=name))

    def fit_message(self, pieces: Sequence[Piece], unfit: Mapping[int, str] = _ALL_FIT) -> list[Piece]:
        """All pieces of a message, fitted; those at the places in ``unfit`` go, by the fix of that code."""
        for at, piece in enumerate(pieces):
            if unfit and at in unfit and self.book.makes(unfit[at]):
                self.book.drop(unfit[at], piece)
                self.dropped.add(piece.turn)
            else:
                self.add_piece(piece)
        self.finish_message()
        return self.out

    def add_piece(self, piece: Piece) -> None:
        fitted = self.fit_piece(piece)
        if fitted is not None:
            self.out.append(fitted)
        if self.media and self.media_at_once:
            self.out += self.media
            self.media = []

    def fit_piece(self, piece: Piece) -> Piece | None:
        if not is_bare(piece):
            piece = self.bared(piece)
        match piece.block:
            case Text() as text:
                return self.text(piece, text)
            case ToolUse() as use:
                return self.call(piece, use)
            case ToolResult() as result:
                return self.result(piece, result)
            case Thinking() | RedactedThinking() as reasoning:
                return self.reasoning(piece, reasoning)
        fitted = self._shown(piece, None)
        if fitted is None:
            self.book.drop_unknown(piece)
            # A breakpoint that goes takes nothing from its message: reasoning in it may stay.
            if code_for_unknown(piece.block) != "cache_point_dropped":
                self.dropped.add(piece.turn)
        return fitted

    def finish_message(self) -> None:
        """Put the media of results behind the results."""
        if self.media:
            at = 1 + max(place for place, piece in enumerate(self.out) if isinstance(piece.block, ToolResult))
            self.out[at:at] = self.media

    def _shown(self, piece: Piece, inside: ToolResult | None) -> Piece | None:
        match piece.block:
            case Image() as image:
                return self.image(piece, image)
            case Document() as document:
                return self.document(piece, document)
            case Unknown() as unknown:
                return self.unknown(piece, unknown, inside)
            case _:
                return piece

    def result(self, piece: Piece, result: ToolResult) -> Piece:
        """A result with the parts that may stay in it; ``media`` gets those that have to move."""
        if not isinstance(result.content, list):
            return piece
        content: list[Any] = []
        for at, part in enumerate(result.content):
            inner = self.bared(part_of_result(piece, part, at))
            code = "" if isinstance(inner.block, Text) else self.moves(part, result)  # type: ignore[arg-type]  # no text
            code = code if self.book.makes(code) else ""
            shown = self._shown(inner, None if code else result)
            if shown is None:
                kind = part.kind if isinstance(part, Unknown) else ""
                piece = self._touched(piece, code_for_unknown(part, self.book.target), f"content.{at}: {kind}")
            elif code and not (self.left_behind and isinstance(shown.block, Text)):
                # Wherever it goes, the fix that its own change made names it as a part of the result.
                self.media.append(structs.replace(shown, fate="moved", code=code))
                piece = self._touched(piece, code, f"content.{at}")
                content += self.left_behind
            else:
                content.append(shown.block)
                if shown.fate != "kept":
                    piece = touched(piece, shown.code)
        if content == result.content:
            return piece
        return structs.replace(piece, block=structs.replace(result, content=content))

    def _touched(self, piece: Piece, code: str, detail: str) -> Piece:
        """Record that a part of a result is gone from it; the result itself stays."""
        self.book.change(code, piece, detail=detail)
        return touched(piece, code)


def is_bare(piece: Piece) -> bool:
    """Whether a piece has nothing that a provider may lack a field for, as most have not; the parts of a result too."""
    block: Any = piece.block  # looked at by its class, for speed
    kind = type(block)
    if kind is Unknown or not (piece.own is block.own is block.cache_control is UNSET):
        return False
    if kind is Text:
        return block.citations is UNSET and not block.refusal
    if kind is ToolResult:
        return type(block.content) is not list
    return kind is not ToolUse or block.caller is UNSET


def bare(
    piece: Piece,
    book: Book,
    *,
    refusals: bool = False,
    marks: bool = False,
    empty: bool = False,
    owners: Collection[str] = (),
) -> Piece:
    """The piece without what only Anthropic or another provider has a field for, each with its fix.

    Args:
        piece: a block of a message, or one inside a result.
        book: where the fixes go.
        refusals: the target keeps a refusal apart from what else the model says.
        marks: a cache breakpoint that is left behind is a fix.
        empty: so are citations and callers that say nothing (``null``, ``[]``); else the writer passes over them.
        owners: the providers whose own the target writes again.
    """
    block = piece.block
    if isinstance(block, Unknown) or not (piece.own is block.own is block.cache_control is UNSET):
        piece = without_mark(without_own(piece, book, owners), book if marks else None)
        block = piece.block
    if isinstance(block, Text) and block.refusal and not refusals:
        piece = book.change("refusal_as_text", piece, structs.replace(block, refusal=False))
        block = piece.block
    if isinstance(block, Text) and block.citations is not UNSET:
        lost, code = block.citations, "citations_dropped"
        without: Text | ToolUse = structs.replace(block, citations=UNSET)
    elif isinstance(block, ToolUse) and block.caller is not UNSET:
        lost, code = block.caller, "caller_dropped"
        without = structs.replace(block, caller=UNSET)
    else:
        return piece
    if bytes(lost) in _NOTHING and not empty:
        return piece
    return book.change(code, piece, without, detail=bytes(lost).decode())


def without_own(piece: Piece, book: Book, owners: Collection[str] = ()) -> Piece:
    """The piece without what another provider has beside it and its message."""
    own, block = piece.own, piece.block
    if own is not UNSET and own.provider not in owners:
        piece = structs.replace(_lost_members(piece, own, piece.message, book), own=UNSET)
    if isinstance(block, Unknown) or block.own is UNSET or block.own.provider in owners:
        return piece
    own, without = block.own, structs.replace(block, own=UNSET)
    if isinstance(block, (Thinking, RedactedThinking)):
        return structs.replace(piece, block=without)
    if own.kind:
        return book.change("tool_as_function", piece, without, detail=own.kind)
    return structs.replace(_lost_members(piece, own, piece.path, book), block=without)


def without_own_inside(piece: Piece, book: Book) -> Piece:
    """The piece, and the parts of a result, without what another provider has beside them."""
    return with_each(without_own(piece, book), lambda part: without_own(part, book))


def _lost_members(piece: Piece, own: Own, path: str, book: Book) -> Piece:
    for name in own.members:
        if name == "name" and isinstance(piece.block, ToolResult):
            continue  # a tool's name is its call's
        if name == "annotations":
            piece = book.change("citations_dropped", piece, detail=bytes(own.members[name]).decode())
        elif name not in _SILENT:
            book.note_fix("field_dropped", f"{path}.{name}", name)
    return piece


def system_rows(rows: Sequence[Piece], target: str, fixes: list[Fix], owners: Collection[str] = ()) -> list[Piece]:
    """The texts of leading system messages without what only another provider has beside them."""
    book = Book(target)
    bare_rows = [without_own(piece, book, owners) for piece in rows]
    fixes += book.fixes
    return bare_rows


class _Cited(Struct, frozen=True):
    text: str = ""


class _CitedContent(Struct, frozen=True):
    content: list[_Cited]
    citations: Raw = Raw(b"[]")


class _CitedBlock(Struct, frozen=True, rename="camel"):
    citations_content: _CitedContent


def in_common_words(message: Message, book: Book) -> Message:
    """The message with the words of Converse's cited blocks as text, for a target that has none of them."""
    if Unknown not in map(type, map(_BLOCK, message.pieces)):
        return message
    pieces = [_uncited(piece, book) for piece in message.pieces]
    return message if pieces == message.pieces else structs.replace(message, pieces=pieces)


def _uncited(piece: Piece, book: Book) -> Piece:
    block = piece.block
    if not isinstance(block, Unknown) or block.kind != "citationsContent":
        return piece
    try:
        cited = msgspec.json.decode(block.raw, type=_CitedBlock).citations_content
    except msgspec.DecodeError:
        return piece
    text = "".join(part.text for part in cited.content)
    if not text.strip():
        return piece
    return book.change("citations_dropped", piece, Text(text=text), bytes(cited.citations).decode())


def touched(piece: Piece, code: str) -> Piece:
    """A result of which a part has changed, or is gone; if nothing graver has happened to it."""
    return structs.replace(piece, fate="rewritten", code=code) if piece.fate == "kept" else piece
