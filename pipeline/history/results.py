"""Tool results that found no call, or one too many."""

from __future__ import annotations

from msgspec import UNSET

from pipeline.history.pieces import Book, Piece
from pipeline.model import Document, Image, Text, ToolResult, Unknown

ORPHAN_MARK = "[Tool result without its call]"


def orphan_pieces(piece: Piece, result: ToolResult, code: str, book: Book) -> list[Piece]:
    """A result as user text, followed by the media it held."""
    if isinstance(result.content, list):
        texts = [part.text for part in result.content if isinstance(part, Text)]
        media = [(at, part) for at, part in enumerate(result.content) if not isinstance(part, Text)]
    else:
        texts = [] if result.content is UNSET else [result.content]
        media = []
    text = "\n".join([ORPHAN_MARK, *(text for text in texts if text)])
    flat = book.change(code, piece, Text(text=text))
    return [flat, *(_medium(piece, at, part, code) for at, part in media)]


def _medium(piece: Piece, at: int, part: Image | Document | Unknown | Text, code: str) -> Piece:
    path = f"{piece.path}.content.{at}"
    return Piece(part, piece.turn, path, fate="flattened", code=code, came_as=piece.tool_id)


def same_content(one: Piece, other: Piece) -> bool:
    """Whether two results say the same, whatever the ids they came under."""
    left, right = one.block, other.block
    return (
        isinstance(left, ToolResult)
        and isinstance(right, ToolResult)
        and left.is_error == right.is_error
        and left.content == right.content
    )
