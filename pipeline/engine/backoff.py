"""Pauses between attempts that fail one after another."""

from __future__ import annotations


class Backoff:
    """Each pause is twice the one before, up to a limit; seconds."""

    def __init__(self, first: float, most: float) -> None:
        self._first, self._most = first, most
        self._next = first

    def pause(self) -> float:
        """Return the next pause."""
        pause, self._next = self._next, min(self._next * 2, self._most)
        return pause

    def reset(self) -> None:
        """Begin with the first pause again, after a success."""
        self._next = self._first
