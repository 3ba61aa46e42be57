"""Which reasoning may be sent back through Converse, and where it stands in its turn.

It goes back to the service that wrote it, first in its turn, and for Claude with its signature (BED-18) and exactly as
it was: a turn keeps all of its reasoning or none.
"""

from __future__ import annotations

from msgspec import UNSET

from pipeline.history.pieces import Book, Message, Piece
from pipeline.model import Issuer, RedactedThinking, Thinking, Unknown
from pipeline.targets.bedrock_converse.members import MARKERS
from pipeline.targets.media import decodes

NAME = "bedrock-converse"
# Families that are known to sign no reasoning.
_UNSIGNED = ("nova", "gpt-oss", "qwen", "kimi", "minimax")


def fit_reasoning(message: Message, model: str, book: Book) -> list[Piece]:
    """The message's pieces, fit reasoning first."""
    pieces = message.pieces
    reasoning = [at for at, piece in enumerate(pieces) if isinstance(piece.block, (Thinking, RedactedThinking))]
    if not reasoning:
        return pieces
    unfit = {at: code for at in reasoning if (code := _fault(pieces[at], message, model))}
    broken = {pieces[at].turn for at in unfit}
    for at in reasoning:
        if pieces[at].turn in broken:
            unfit.setdefault(at, "thinking_of_changed_turn")
    for at, code in sorted(unfit.items()):
        book.drop(code, pieces[at])
    kept = [at for at in reasoning if at not in unfit]
    if all(at in unfit or at in kept or _is_marker(piece) for at, piece in enumerate(pieces)):
        for at in kept:
            book.drop("thinking_trailing", pieces[at])
        kept = []
    rest = [at for at in range(len(pieces)) if at not in reasoning]
    first = [book.change("thinking_moved", pieces[at]) if rest and rest[0] < at else pieces[at] for at in kept]
    return [*first, *(pieces[at] for at in rest)]


def _fault(piece: Piece, message: Message, model: str) -> str:
    block = piece.block
    assert isinstance(block, (Thinking, RedactedThinking))  # noqa: S101  the caller looked
    if "deepseek" in model:
        return "thinking_dropped"
    if not isinstance(block.issuer, Issuer) or block.issuer.provider != NAME or not _same(block.issuer.model, model):
        return "thinking_foreign"
    if isinstance(block, RedactedThinking):
        if not block.data or not decodes(block.data):
            return "thinking_unsigned"
    elif not block.thinking.strip():
        return "thinking_empty"
    elif (block.signature is UNSET or not block.signature) and not any(name in model for name in _UNSIGNED):
        return "thinking_unsigned"
    return "thinking_of_changed_turn" if piece.turn in message.changed else ""


def _same(issuer: str | None, model: str) -> bool:
    return not issuer or not model or issuer.lower() in model or model in issuer.lower()


def _is_marker(piece: Piece) -> bool:
    return isinstance(piece.block, Unknown) and piece.block.kind in MARKERS
