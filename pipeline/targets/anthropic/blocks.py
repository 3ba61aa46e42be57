"""One message's blocks as the Messages API takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, structs

from pipeline.history.pieces import Piece
from pipeline.model import Document, Image, RedactedThinking, Text, Thinking, ToolResult, ToolUse, Turn, Unknown
from pipeline.targets.fitting import Fitting, without_own
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


class AnthropicFitting(Fitting, kw_only=True, eq=False):
    """``images`` is how many the messages before hold, ``large`` whether one of them is (ANT-30b); both go on here.

    ``tool_name`` writes a tool's name; ``other_type`` says that the model takes an image of another type than declared.
    """

    tool_name: Callable[[str], str]
    images: int
    large: bool
    other_type: bool

    def add_piece(self, piece: Piece) -> None:
        if isinstance(piece.block, Unknown) and piece.block.kind == POINT:
            self._set_mark(piece, piece.block)
        else:
            super().add_piece(piece)

    def _set_mark(self, point: Piece, block: Unknown) -> None:
        """Put a breakpoint that is a block by itself on the block before it, which is where it stands."""
        mark, before = mark_of(block.raw), self.out[-1] if self.out else None
        if mark is None or before is None or isinstance(before.block, (Thinking, RedactedThinking, Unknown)):
            self.book.drop("cache_point_dropped", point)
            return
        self.out[-1] = structs.replace(before, block=structs.replace(before.block, cache_control=mark))
        self.book.drop("cache_point_joined", point)

    def bared(self, piece: Piece) -> Piece:
        """The piece without what another provider has beside it, or a cache breakpoint that the API would refuse."""
        piece = without_own(piece, self.book)
        block = piece.block
        if isinstance(block, Unknown) or block.cache_control is UNSET or is_mark(block.cache_control):
            return piece
        return self.book.change("cache_mark_dropped", piece, structs.replace(block, cache_control=UNSET))

    def name(self, name: str) -> str:
        return self.tool_name(name)

    def text(self, piece: Piece, text: Text) -> Piece:
        """A text without what another provider says beside it."""
        if text.refusal:
            text = structs.replace(text, refusal=False)
            piece = self.book.change("refusal_as_text", piece, text)
        if text.citations is not UNSET and not _are_citations(text.citations):
            lost = bytes(text.citations).decode()
            return self.book.change("citations_dropped", piece, structs.replace(text, citations=UNSET), detail=lost)
        return piece

    def reasoning(self, piece: Piece, reasoning: Thinking | RedactedThinking) -> Piece:
        """Reasoning takes no cache breakpoint (ANT-29)."""
        if reasoning.cache_control is UNSET:
            return piece
        return self.book.change("cache_control_dropped", piece, structs.replace(reasoning, cache_control=UNSET))

    def result(self, piece: Piece, result: ToolResult) -> Piece:
        """A result; one of which nothing may stay says nothing, which is not the same as an empty list."""
        fitted = super().result(piece, result)
        emptied = isinstance(fitted.block, ToolResult) and fitted.block.content == [] != result.content
        return structs.replace(fitted, block=structs.replace(result, content=UNSET)) if emptied else fitted

    def unknown(self, piece: Piece, unknown: Unknown, inside: ToolResult | None) -> Piece | None:
        """What is not of a result was chosen before (``untaken``)."""
        return piece if inside is None or unknown.kind in _taken_in(inside) else None

    def moves(self, part: Image | Document | Unknown, result: ToolResult) -> str:
        """An error result is text only (ANT-16); what no result may hold goes, wherever it is."""
        stays = not result.is_error or (isinstance(part, Unknown) and part.kind not in _taken_in(result))
        return "" if stays else "error_media_moved"

    def document(self, piece: Piece, document: Document) -> Piece:  # noqa: ARG002  the piece holds it
        return with_source(piece, self.book)

    def image(self, piece: Piece, image: Image) -> Piece:
        facts = inspect(image.source)
        if facts is None:
            return with_source(piece, self.book)
        fault = _fault(facts, self.images, large=self.large)
        if fault:
            return stubbed_image(piece, self.book, fault, mark=image.cache_control)
        self.images += 1
        self.large = self.large or facts.longest_side > _MANY_IMAGES_SIDE
        if self.other_type and facts.declared in MEDIA_TYPES:
            return piece
        return with_own_type(piece, image, facts, self.book)


def _taken_in(result: ToolResult) -> frozenset[str]:
    """The types beyond the model's own that may come with a result: in it, or beside one that is an error."""
    return _TAKEN_IN_ERRORS if result.is_error else _TAKEN_IN_RESULTS


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
