"""Blocks without what only Anthropic has: cache breakpoints, citations, callers."""

from __future__ import annotations

from typing import Final

from msgspec import UNSET, Raw, structs

from pipeline.history.pieces import Book, Piece
from pipeline.model import Text, ToolUse
from pipeline.targets.marks import without_mark

_NOTHING: Final = frozenset({b"null", b"[]"})


def bare(piece: Piece, book: Book, *, refusals: bool = False) -> Piece:
    """The piece without what the target has no field for, each with its fix.

    ``refusals`` says that the target keeps a refusal apart from what else the model says.
    """
    piece = without_mark(piece, book)
    block = piece.block
    if isinstance(block, Text) and block.refusal and not refusals:
        piece = book.change("refusal_as_text", piece, structs.replace(block, refusal=False))
        block = piece.block
    if isinstance(block, Text) and block.citations is not UNSET:
        return _less(piece, structs.replace(block, citations=UNSET), "citations_dropped", block.citations, book)
    if isinstance(block, ToolUse) and block.caller is not UNSET:
        return _less(piece, structs.replace(block, caller=UNSET), "caller_dropped", block.caller, book)
    return piece


def _less(piece: Piece, after: Text | ToolUse, code: str, lost: Raw, book: Book) -> Piece:
    if bytes(lost) in _NOTHING:
        return piece
    return book.change(code, piece, after, detail=bytes(lost).decode())


def touched(piece: Piece, code: str) -> Piece:
    """A result of which a part has changed, or is gone; if nothing graver has happened to it."""
    return structs.replace(piece, fate="rewritten", code=code) if piece.fate == "kept" else piece
