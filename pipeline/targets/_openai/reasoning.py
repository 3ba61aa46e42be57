"""Whose reasoning a block is; reasoning goes back to its issuer only."""

from __future__ import annotations

from pipeline.history.pieces import Piece
from pipeline.model import Issuer, Unknown


def is_from(piece: Piece, providers: frozenset[str], model: str | None) -> bool:
    """Whether one of the ``providers`` wrote a block, and, as far as is known, this model.

    Without an issuer the shape tells, and a canonical block's shape is Anthropic's.
    """
    if isinstance(piece.block, Unknown):
        return False
    issuer = piece.block.issuer
    if not isinstance(issuer, Issuer) or issuer.provider not in providers:
        return False
    if issuer.model is None or model is None:
        return True
    return issuer.model.startswith(model) or model.startswith(issuer.model)
