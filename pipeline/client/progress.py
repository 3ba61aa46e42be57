"""Progress of a consumer group in a partition whose requests end in any order.

A group commits one offset per partition: the first request that is not done. Requests after it may be done, and a crash
would send them again. The metadata text that Kafka stores with a committed offset names the open requests after it.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

# The brokers' default limit is 4,096 bytes (offset.metadata.max.bytes).
MOST_TEXT = 4_000


class _Text(Struct, array_like=True):
    """Offsets relative to the committed one: requests before ``until`` are done, except those in ``open``."""

    until: int
    open: list[int]


class Progress:
    """The requests of one partition.

    Args:
        offset: the committed offset; None if the group has none.
        text: its metadata text.
    """

    def __init__(self, offset: int | None = None, text: str = "") -> None:
        self._start(offset, text)

    def _start(self, offset: int | None = None, text: str = "") -> None:
        self._open: dict[int, None] = {}  # read and not done, in the order of the log
        self._done: set[int] = set()  # done, after an open one
        self._next = -1 if offset is None else offset  # the offset after the last one read
        # Done by an earlier owner of the partition: offsets before `_until`, except those in `_left`.
        self._until, self._left = _read_text(self._next, text)
        self._committed = self.mark()

    def begin(self, offset: int) -> bool:
        """Note a record that was read; return whether it is open and was not read before."""
        if self._committed is not None and offset < self._committed[0]:
            # The topic was deleted and created again.
            self._start()
        if offset < self._next:
            return False
        self._next = offset + 1
        if offset < self._until and offset not in self._left:
            self._done.add(offset)
            return False
        self._open[offset] = None
        return True

    def finish(self, offset: int) -> None:
        """Note that a record is done. Records of a deleted topic are ignored."""
        if offset in self._open:
            del self._open[offset]
            self._done.add(offset)

    @property
    def is_changed(self) -> bool:
        """True if ``mark`` differs from the last commit."""
        return self.mark() != self._committed

    def note_committed(self, mark: tuple[int, str] | None) -> None:
        self._committed = mark

    def mark(self) -> tuple[int, str] | None:
        """The offset and text to commit; None before any record was read."""
        if self._next < 0:
            return None
        first = next(iter(self._open), self._next)
        self._done = {offset for offset in self._done if offset > first}
        until = max((offset + 1 for offset in self._done), default=first)
        unread = [offset for offset in self._left if offset >= self._next]
        if self._until > self._next:
            until = self._until
        left = [offset - first for offset in (*self._open, *sorted(unread)) if offset < until]
        return first, _text(until - first, left)


def _text(until: int, left: list[int]) -> str:
    """Encode the text. A text over the limit is shortened; requests that it omits are sent again after a crash."""
    if until <= 0:
        return ""
    while len(text := msgspec.json.encode(_Text(until, left)).decode()) > MOST_TEXT:
        half = len(left) // 2
        until, left = left[half], left[:half]
    return text


def _read_text(offset: int, text: str) -> tuple[int, frozenset[int]]:
    if not text:
        return 0, frozenset()
    try:
        found = msgspec.json.decode(text, type=_Text)
    except msgspec.DecodeError:
        return 0, frozenset()  # written by another program
    return offset + found.until, frozenset(offset + each for each in found.open)
