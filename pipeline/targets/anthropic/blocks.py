"""One message's blocks as the Messages API takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, structs

from pipeline.history.pieces import Book, Piece, code_for_unknown
from pipeline.model import Document, Image, RedactedThinking, Text, Thinking, ToolResult, ToolUse, Turn, Unknown
from pipeline.targets.fitting import without_own
from pipeline.targets.marks import POINT, is_mark, mark_of
from pipeline.targets.media import (
    MEDIA_TYPES,
    Facts,
    inspect,
    source_fault,
    stubbed_image,
    with_own_type,
    with_source,
)

# Block types beyond the model's own that the API takes inside a tool's result.
_TAKEN_IN_RESULTS: Final = frozenset({"search_result", "tool_reference"})

# Those of them that may stand beside an error result, which holds text only.
_TAKEN_IN_ERRORS: Final = frozenset({"search_result"})

_MOST_IMAGE_BYTES: Final = 5_242_880  # of base64 text (ANT-30)
_MANY_IMAGES: Final = 20  # beyond this many, no side of any image may be longer than (ANT-30b)
_MANY_IMAGES_SIDE: Final = 2000  # pixels


class _Citation(Struct, gc=False):
    type: str = ""


_citations = msgspec.json.Decoder(list[_Citation] | None)


def _are_citations(citations: Raw) -> bool:
    """Whether these are citations of this API's; Perplexity's, for one, are addresses."""
    try:
        found = _citations.decode(citations)
    except msgspec.DecodeError:
        return False
    return all(one.type.endswith("_location") for one in found or ())


def _with_mark_taken(piece: Piece, book: Book) -> Piece:
    """The piece without a cache breakpoint that the API would refuse."""
    block = piece.block
    if isinstance(block, Unknown) or block.cache_control is UNSET or is_mark(block.cache_control):
        return piece
    return book.change("cache_mark_dropped", piece, structs.replace(block, cache_control=UNSET))


class Projection:
    """The work on one message: pieces go in by ``add``, and what is sent stands in ``out`` after ``finish``."""

    def __init__(
        self, name: Callable[[str], str], book: Book, images: int, *, large: bool, other_type: bool = False
    ) -> None:
        self.out: list[Piece] = []
        self.images = images
        self.large = large
        self._name = name
        self._other_type = other_type
        self._book = book
        self._media: list[Piece] = []

    def add_piece(self, piece: Piece) -> None:
        """Take the next piece of the message."""
        if isinstance(piece.block, Unknown) and piece.block.kind == POINT:
            self._set_mark(piece, piece.block)
            return
        piece = _with_mark_taken(without_own(piece, self._book), self._book)
        block = piece.block
        match block:
            case ToolUse():
                name = self._name(block.name)
                if name != block.name:
                    piece = self._book.change("tool_name_rewritten", piece, structs.replace(block, name=name))
            case ToolResult():
                piece = self._result(piece, block)
            case Image() | Document():
                piece = self._shown(piece)
            case Thinking() | RedactedThinking():
                piece = self._unmarked_reasoning(piece, block)
            case Text():
                piece = self._said(piece, block)
        self.out.append(piece)

    def _set_mark(self, point: Piece, block: Unknown) -> None:
        """Put a breakpoint that is a block by itself on the block before it, which is where it stands."""
        mark, before = mark_of(block.raw), self.out[-1] if self.out else None
        if mark is None or before is None or isinstance(before.block, (Thinking, RedactedThinking, Unknown)):
            self._book.drop("cache_point_dropped", point)
            return
        self.out[-1] = structs.replace(before, block=structs.replace(before.block, cache_control=mark))
        self._book.drop("cache_point_joined", point)

    def finish_message(self) -> None:
        """Put media of error results behind the results."""
        if self._media:
            at = sum(isinstance(piece.block, ToolResult) for piece in self.out)
            self.out[at:at] = self._media

    def _said(self, piece: Piece, block: Text) -> Piece:
        """A text without what another provider says beside it."""
        if block.refusal:
            block = structs.replace(block, refusal=False)
            piece = self._book.change("refusal_as_text", piece, block)
        if block.citations is not UNSET and not _are_citations(block.citations):
            lost = bytes(block.citations).decode()
            return self._book.change("citations_dropped", piece, structs.replace(block, citations=UNSET), detail=lost)
        return piece

    def _unmarked_reasoning(self, piece: Piece, block: Thinking | RedactedThinking) -> Piece:
        """Reasoning takes no cache breakpoint (ANT-29)."""
        if block.cache_control is UNSET:
            return piece
        return self._book.change("cache_control_dropped", piece, structs.replace(block, cache_control=UNSET))

    def _result(self, piece: Piece, result: ToolResult) -> Piece:
        if not isinstance(result.content, list):
            return piece
        content: list[Any] = []
        for at, part in enumerate(result.content):
            inner = Piece(part, piece.turn, f"{piece.path}.content.{at}", came_as=piece.tool_id)
            inner = _with_mark_taken(without_own(inner, self._book), self._book)
            if isinstance(part, Unknown) and part.kind not in (
                _TAKEN_IN_ERRORS if result.is_error else _TAKEN_IN_RESULTS
            ):
                piece = self._book.change(code_for_unknown(part), piece, detail=f"content.{at}: {part.kind}")
                piece = structs.replace(piece, fate="rewritten")
            elif result.is_error and not isinstance(part, Text):
                # An error result is text only (ANT-16).
                self._media.append(self._shown(structs.replace(inner, fate="moved", code="error_media_moved")))
                piece = self._book.change("error_media_moved", piece, detail=f"content.{at}")
                piece = structs.replace(piece, fate="rewritten")
            else:
                content.append(self._shown(inner).block)
        if content == result.content:
            return piece
        return structs.replace(piece, block=structs.replace(result, content=content or UNSET))

    def _shown(self, piece: Piece) -> Piece:
        block = piece.block
        return self._image(piece, block) if isinstance(block, Image) else with_source(piece, self._book)

    def _image(self, piece: Piece, image: Image) -> Piece:
        facts = inspect(image.source)
        if facts is None:
            return with_source(piece, self._book)
        fault = _fault(facts, self.images, large=self.large)
        if fault:
            return stubbed_image(piece, self._book, fault, mark=image.cache_control)
        self.images += 1
        self.large = self.large or facts.longest_side > _MANY_IMAGES_SIDE
        if self._other_type and facts.declared in MEDIA_TYPES:
            return piece
        return with_own_type(piece, image, facts, self._book)


def _fault(facts: Facts, images: int, *, large: bool) -> str:
    """Why the API would refuse an image behind so many others, one of them ``large``; ``""`` where it takes it."""
    fault = facts.fault(MEDIA_TYPES.__contains__, _MOST_IMAGE_BYTES)
    if not fault and images >= _MANY_IMAGES and (large or facts.longest_side > _MANY_IMAGES_SIDE):
        return f"a side over {_MANY_IMAGES_SIDE} pixels in a request of more than {_MANY_IMAGES} images"
    return fault


def as_it_is(turn: Turn, images: int, *, large: bool) -> tuple[int, bool] | None:
    """The count of images behind a healthy turn, and whether one is large, if the turn is written just as it is.

    None where it is not, or where that takes more than a look.
    """
    if turn.own is not UNSET:
        return None
    for block in turn.blocks:
        if not stays(block):
            return None
        inner = block.content if type(block) is ToolResult and type(block.content) is list else ()
        for part in inner or (block,):
            if type(part) is Image and (facts := inspect(part.source)) is not None:
                if facts.media_type != facts.declared or _fault(facts, images, large=large):
                    return None
                images, large = images + 1, large or facts.longest_side > _MANY_IMAGES_SIDE
            elif isinstance(part, (Image, Document)) and source_fault(part):
                return None
    # Reasoning cannot end a turn.
    return None if isinstance(block, (Thinking, RedactedThinking)) else (images, large)


def stays(block: Any) -> bool:  # noqa: ANN401  a block that the model knows; looked at by its class, for speed
    """Whether a block, media apart, has nothing in or beside it that the API does not take."""
    if not (block.cache_control is block.issuer is block.own is UNSET):
        return False
    kind = type(block)
    if kind is Text:
        plain = not block.refusal and not block.structured
        return plain and (block.citations is UNSET or _are_citations(block.citations))
    if kind is ToolUse:
        return block.caller is UNSET
    if kind is Thinking:
        return block.signature is not UNSET and bool(block.signature) and bool(block.thinking.strip())
    if kind is ToolResult and type(block.content) is list:
        return all(stays(part) and not (block.is_error and type(part) is not Text) for part in block.content)
    return kind is not RedactedThinking or bool(block.data)
