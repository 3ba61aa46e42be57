"""Which reasoning may be sent back to Anthropic (ANT-18 to ANT-23).

A thinking block goes back exactly as its issuer signed it or not at all, and a turn keeps all of its reasoning or
none: ``thinking blocks in the latest assistant message cannot be modified``. What is blank or what was said by
somebody else does not count as part of the turn.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import UNSET

from pipeline.history.pieces import Message, Piece
from pipeline.model import Issuer, RedactedThinking, Thinking

# From 4.7 on models write signed thinking blocks without text, and take them back (recorded).
_VERSION: Final = re.compile(r"claude-(?:[a-z]+-)?(\d+)(?:[-.](\d{1,2}))?(?!\d)")
_EMPTY_SINCE: Final = (4, 7)


def unfit_reasoning(message: Message, model: str | None) -> dict[int, str]:
    """The pieces of a message that cannot go back, each with the code of the fix that says why."""
    pieces = message.pieces
    reasoning = [at for at, piece in enumerate(pieces) if isinstance(piece.block, (Thinking, RedactedThinking))]
    if not reasoning:
        return {}
    unfit = {at: code for at in reasoning if (code := _fault(pieces[at], message, model))}
    last = len(pieces) - 1
    while last >= 0 and (last in unfit or last in reasoning):
        unfit.setdefault(last, "thinking_trailing")
        last -= 1
    broken = {pieces[at].turn for at in unfit}
    for at in reasoning:
        if pieces[at].turn in broken:
            unfit.setdefault(at, "thinking_of_changed_turn")
    return unfit


def _fault(piece: Piece, message: Message, model: str | None) -> str:
    block = piece.block
    if not isinstance(block, (Thinking, RedactedThinking)):
        return ""
    if isinstance(block.issuer, Issuer) and not _is_from(block.issuer, model):
        return "thinking_foreign"
    if isinstance(block, RedactedThinking):
        if not block.data:
            return "thinking_unsigned"
    else:
        if block.signature is UNSET or not block.signature:
            return "thinking_unsigned"
        if not block.thinking.strip() and not _takes_empty(model):
            return "thinking_empty"
    return "thinking_of_changed_turn" if piece.turn in message.changed else ""


def _is_from(issuer: Issuer, model: str | None) -> bool:
    if issuer.provider != "anthropic":
        return False
    if issuer.model is None or model is None:
        return True
    # `claude-sonnet-4-5` is an alias of `claude-sonnet-4-5-20250929`.
    return issuer.model.startswith(model) or model.startswith(issuer.model)


def _takes_empty(model: str | None) -> bool:
    version = _VERSION.search(model or "")
    return version is not None and (int(version[1]), int(version[2] or 0)) >= _EMPTY_SINCE
