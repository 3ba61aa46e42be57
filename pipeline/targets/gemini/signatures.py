"""Gemini's signatures: the thoughts behind a part, sealed, which go back on that very part (GEM-04).

In the canonical form a signature stands on a thinking block of Gemini's; it belongs to the part after that. A call that
another model made has none; Gemini 3 then wants the documented placeholder on the first call of a step.
"""

from __future__ import annotations

import re
from typing import Any, Final

from msgspec import Struct

from pipeline.history.pieces import Book, Entry, Message, Piece
from pipeline.model import Issuer, RedactedThinking, Thinking, ToolUse

NAME: Final = "gemini"
PLACEHOLDER: Final = "skip_thought_signature_validator"
_VERSION: Final = re.compile(r"gemini-(?:[a-z]+-)*(\d+)")


class Signed(Struct, frozen=True):
    """A piece to write, and the signature that goes on its part; ``thought`` marks reasoning."""

    piece: Piece
    signature: str = ""
    thought: bool = False


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
        if isinstance(block, RedactedThinking) or (isinstance(block, Thinking) and not _is_from(block, model)):
            unfit[at] = "thinking_foreign"
        elif isinstance(block, Thinking) and not (block.signature or block.thinking.strip()):
            unfit[at] = "thinking_empty"
    return unfit


def signed(pieces: list[Piece], content: int, book: Book, *, placeholders: bool) -> list[Signed]:
    """The pieces with their signatures; ``content`` is the number of their turn in the output.

    Reasoning without words leaves only its signature, on the part after it; it stays a part of its own where there is
    none after it, as Gemini itself writes it.
    """
    out: list[Signed] = []
    waiting = ""
    silent: list[Piece] = []
    called = False
    for came in pieces:
        piece, block = came, came.block
        if isinstance(block, Thinking):
            waiting = block.signature or waiting
            if block.thinking.strip():
                out.append(Signed(piece, thought=True))
            else:
                silent.append(piece)
            continue
        if isinstance(block, ToolUse):
            if placeholders and not called and not waiting:
                waiting, piece = PLACEHOLDER, book.change("signature_skipped", piece)
            called = True
        for thought in silent:
            book.change("signature_joined", thought)
            book.gone.append(Entry(thought.path, "moved", f"messages.{content}.content.{len(out)}", "signature_joined"))
        out.append(Signed(piece, waiting))
        waiting, silent = "", []
    out += [Signed(piece, thought=True) for piece in silent]
    if waiting and out:
        out[-1] = Signed(out[-1].piece, waiting, out[-1].thought)
    return out


def _is_from(block: Thinking, model: str | None) -> bool:
    issuer: Any = block.issuer
    if not isinstance(issuer, Issuer) or issuer.provider != NAME:
        return False
    return not issuer.model or not model or issuer.model.startswith(model) or model.startswith(issuer.model)
