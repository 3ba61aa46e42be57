"""Tool results: text goes with the call, media go to the user's message behind all results.

``Image URLs are only allowed for messages with role 'user'`` (OAI-10). These APIs have no field for a failed call
either, so the text of an error begins with ``[Tool error]``; what Reknit itself writes for a result that is missing
says so by itself.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct, structs

from pipeline.history.pieces import Book, Piece
from pipeline.history.placeholders import INTERRUPTED
from pipeline.model import Document, Image, Text, ToolResult, Unknown
from pipeline.targets._openai.bare import bare, touched
from pipeline.targets._openai.media import Parts, Shown, show_document, show_image

ERROR: Final = "[Tool error]"
# What stands in a result for a medium that had to move.
MOVED: Final = "[Shown in the next user message]"


class SentResult(Struct, frozen=True):
    """A result as it is sent: its piece, its texts, and the media that go to the user's message."""

    piece: Piece
    texts: list[str]
    media: list[Shown]


def show_result(piece: Piece, result: ToolResult, parts: Parts, book: Book) -> SentResult:
    """Split a result into text and media."""
    texts: list[str] = []
    media: list[Shown] = []
    content = result.content
    if isinstance(content, str):
        texts.append(content)
    elif isinstance(content, list):
        for at, part in enumerate(content):
            inner = bare(Piece(part, piece.turn, _inner_path(piece, at), came_as=piece.tool_id), book)
            if isinstance(part, Text):
                texts.append(part.text)
            elif isinstance(part, Unknown):
                book.change("unknown_dropped", piece, detail=f"content.{at}: {part.kind}")
                piece = touched(piece, "unknown_dropped")
            else:
                shown = _medium(inner, part, parts, book)
                if shown.is_text:
                    piece = touched(piece, shown.piece.code)
                    texts.append(_text_of(shown))
                else:
                    book.change("result_media_moved", piece, detail=f"content.{at}")
                    piece = touched(piece, "result_media_moved")
                    media.append(structs.replace(shown, piece=_moved(shown.piece)))
                    texts.append(MOVED)
    if result.is_error and content != INTERRUPTED:
        texts = [f"{ERROR} {texts[0]}".rstrip(), *texts[1:]] if texts else [ERROR]
    return SentResult(piece, texts, media)


def content_of(texts: list[str], parts: Parts) -> str | list[Any]:
    """One text is a string, several are parts; a result that is empty is an empty string."""
    if len(texts) > 1:
        return [parts.text(text) for text in texts]
    return texts[0] if texts else ""


def _medium(inner: Piece, part: Image | Document, parts: Parts, book: Book) -> Shown:
    if isinstance(part, Image):
        return show_image(inner, part, parts, book)
    return show_document(inner, part, parts, book)


def _text_of(shown: Shown) -> str:
    block = shown.piece.block
    assert isinstance(block, Text)  # noqa: S101  that is what is_text says
    return block.text


def _inner_path(piece: Piece, at: int) -> str:
    """Where a result's part stands in the input; the content of a tool's row is the result's own."""
    return f"{piece.path}.{at}" if piece.whole else f"{piece.path}.content.{at}"


def _moved(piece: Piece) -> Piece:
    return structs.replace(piece, fate="moved", code="result_media_moved")
