"""Results as user text, and the comparison of two results by their content."""

from __future__ import annotations

from msgspec import UNSET

from reknit.pipeline.history.pieces import FixLog, TrackedBlock
from reknit.pipeline.model import Document, Image, Text, ToolResult, Unknown

ORPHAN_MARK = "[Tool result without its call]"


def orphan_pieces(piece: TrackedBlock, result: ToolResult, code: str, book: FixLog) -> list[TrackedBlock]:
    """A result as user text, followed by the media it held."""
    return as_words(piece, result, ORPHAN_MARK, code, book)


def as_words(piece: TrackedBlock, result: ToolResult, mark: str, code: str, book: FixLog) -> list[TrackedBlock]:
    """A result as user text below a line that says so, followed by the media it held."""
    if isinstance(result.content, list):
        texts = [part.text for part in result.content if isinstance(part, Text)]
        media = [(at, part) for at, part in enumerate(result.content) if not isinstance(part, Text)]
    else:
        texts = [] if result.content is UNSET else [result.content]
        media = []
    text = "\n".join([mark, *(text for text in texts if text)])
    flat = book.change(code, piece, Text(text=text))
    return [flat, *(_medium(piece, at, part, code) for at, part in media)]


def _medium(piece: TrackedBlock, at: int, part: Image | Document | Unknown | Text, code: str) -> TrackedBlock:
    path = f"{piece.path}.content.{at}"
    return TrackedBlock(part, piece.turn, path, fate="flattened", code=code, came_as=piece.tool_id)


def same_content(one: TrackedBlock, other: TrackedBlock) -> bool:
    """Return True if two results say the same, whatever the ids they came under."""
    left, right = one.block, other.block
    return (
        isinstance(left, ToolResult)
        and isinstance(right, ToolResult)
        and left.is_error == right.is_error
        and left.content == right.content
    )
