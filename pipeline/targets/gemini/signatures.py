"""Gemini's signatures: the thoughts behind a part, sealed, which go back on that very part (GEM-04).

In the canonical form a signature stands on a thinking block of Gemini's; it belongs to the part after that. A call that
another model made has none; Gemini 3 then wants the documented placeholder on the first call of a step.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from pipeline.history.pieces import Book, Entry, Message, Piece
from pipeline.history.readers.gemini import SIGNATURE, UNSIGNED
from pipeline.model import RedactedThinking, Thinking, ToolUse
from pipeline.targets.base import is_issued_by

NAME: Final = "gemini"
PLACEHOLDER: Final = UNSIGNED.provider
_VERSION: Final = re.compile(r"gemini-(?:[a-z]+-)*(\d+)")


class Signed(Struct, frozen=True):
    """A piece to write, and the signature that goes on its part."""

    piece: Piece
    signature: str = ""


def wants_signatures(model: str | None) -> bool:
    """Whether a model refuses calls without a signature: Gemini 3 and later, and the names that follow the newest."""
    name = (model or "").lower()
    version = _VERSION.search(name)
    if version is None:
        return "gemini" in name and name.endswith("latest")
    return int(version[1]) >= 3


def unfit_reasoning(message: Message, model: str | None) -> dict[int, str]:
    """The reasoning in a message that is not Gemini's, each with the code of the fix that says why."""
    unfit: dict[int, str] = {}
    for at, piece in enumerate(message.pieces):
        block = piece.block
        if isinstance(block, RedactedThinking) or (
            isinstance(block, Thinking) and not is_issued_by(block, {NAME}, model)
        ):
            unfit[at] = "thinking_foreign"
        elif isinstance(block, Thinking) and not (block.signature or block.thinking.strip()):
            unfit[at] = "thinking_empty"
    return unfit


def signed(pieces: list[Piece], content: int, book: Book, *, placeholders: bool) -> list[Signed]:
    """The pieces with their signatures; ``content`` is the number of their turn in the output.

    Reasoning without words leaves only its signature, on the part after it; it stays a part of its own where there is
    none after it, as Gemini itself writes it, and where another signature comes before that part.
    """
    out: list[Signed] = []
    waiting: _Waiting | None = None
    called = False
    for came in pieces:
        piece, block = came, came.block
        stands_here = waiting is not None and waiting.piece.path == f"{piece.path}.{SIGNATURE}"
        if isinstance(block, Thinking) and not stands_here:
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
            book.gone.append(_joined(waiting.piece, f"contents.{content}.parts.{len(out)}", book, kept=stands_here))
        out.append(Signed(piece, signature))
        waiting = None
    if waiting is not None:
        _stay(waiting, out)
    return out


class _Waiting(Struct, frozen=True):
    """A signature on its way to the next part: the reasoning that it came on, and that one's place among the parts."""

    signature: str
    piece: Piece
    at: int
    silent: bool


def _stay(waiting: _Waiting, out: list[Signed]) -> None:
    """Leave a signature with the reasoning that it came on."""
    part = Signed(waiting.piece, waiting.signature)
    if waiting.silent:
        out.insert(waiting.at, part)
    else:
        out[waiting.at] = part


def _joined(thought: Piece, place: str, book: Book, *, kept: bool) -> Entry:
    """What became of a signature without words: it is where it came from, or was put on the part that follows."""
    if kept:
        return Entry(thought.path, "kept", place)
    book.change("signature_joined", thought)
    return Entry(thought.path, "moved", place, "signature_joined")
