"""Structure repair: one history in, the same history out as every provider wants it, each change recorded."""

from pipeline.history.machine import History
from pipeline.history.pieces import LedgerEntry, Message, Piece

__all__ = ["History", "LedgerEntry", "Message", "Piece"]
