"""The log of one partition: records, transactions that are open in it, and what a reader may see."""

from __future__ import annotations

from bisect import bisect_left

MARKER = (None, None, ())


class Piece:
    """The part of a transaction in one partition."""

    __slots__ = ("first", "pid", "status")

    def __init__(self, pid, first):
        self.pid, self.status, self.first = pid, "open", first


class Entry:
    __slots__ = ("headers", "key", "marker", "offset", "piece", "time", "timestamp", "value")

    def __init__(self, offset, row, piece, time, *, marker):
        self.offset, (self.key, self.value, self.headers) = offset, row
        self.piece, self.marker, self.time, self.timestamp = piece, marker, time, int(time * 1000)

    @property
    def aborted(self):
        return self.piece is not None and self.piece.status == "aborted"


class Log:
    def __init__(self):
        self.entries, self._offsets = [], []
        self.start = self.end = 0
        self.open = {}  # pieces of open transactions, by producer id
        self.epochs = {}  # the last epoch of each producer id
        self.sequences = {}  # sequence and offset of the last batch, by producer id and epoch
        self.waiting = []  # called at the next change

    @property
    def lso(self):
        """The last stable offset: the first one of an open transaction."""
        return min((piece.first for piece in self.open.values()), default=self.end)

    def append(self, row, piece, time, *, marker=False):
        """Append a row of key, value and headers."""
        self.entries.append(Entry(self.end, row, piece, time, marker=marker))
        self._offsets.append(self.end)
        self.end += 1

    def read(self, position, *, committed, most=10**9):
        """Return records, the position after them, and the first offset that a reader cannot see."""
        limit, records = self.lso if committed else self.end, []
        for entry in self.entries[bisect_left(self._offsets, position) :]:
            if entry.offset >= limit:
                break
            if len(records) >= most:
                return records, entry.offset, limit
            if not (entry.marker or (committed and entry.aborted)):
                records.append(entry)
        return records, max(position, limit), limit

    def records(self, *, committed):
        return self.read(self.start, committed=committed)[0]

    def compact(self, before=10**9):
        """Keep the newest committed record of each key before an offset, and everything after it.

        The offset is at most the last stable one. A broker compacts whole segments, and never the newest one.
        """
        before, newest = min(before, self.lso), {}
        for entry in self.entries:
            if entry.offset < before and not entry.marker and not entry.aborted:
                newest[entry.key] = entry.offset
        kept = set(newest.values())
        self._keep([entry for entry in self.entries if entry.offset >= before or entry.offset in kept])

    def expire(self, before):
        """Remove records before an offset, as retention does."""
        self.start = max(self.start, min(before, self.lso))
        self._keep([entry for entry in self.entries if entry.offset >= self.start])

    def _keep(self, entries):
        self.entries, self._offsets = entries, [entry.offset for entry in entries]

    def changed(self):
        waiting, self.waiting = self.waiting, []
        for notify in waiting:
            notify()
