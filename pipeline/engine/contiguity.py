"""Records that wait: none skipped and none taken twice, in a chain of spans of the log; how many are taken at once.

A gap in offsets says nothing by itself. Transaction markers, aborted records and compaction leave gaps in a healthy
log; a rebalance or a discarded fetch leaves the same gap where records were lost. So offsets are not compared with
each other. Each fetch reports the fetch position before and after it, both read in one step of the consumer's own
thread: between the two the client walked the log without a hole, and whatever offsets are missing inside do not
exist. What is left to check is that each span begins where the last one ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from msgspec import Struct, structs

from pipeline.stages.base import Record

# Outputs of a slice that is larger make the next one shorter.
_SLICE_BYTES = 8 << 20
# Until a partition's first slice was timed, its records count as slow ones.
_SLOW_RECORD_SECONDS = 60e-6
# What a fetched record takes in memory beside its value: the object, a session's key, a few headers.
_FETCHED_OVERHEAD = 600


class Span(Struct, frozen=True):
    """A part of one partition's log, ``[start, end)``, and the records in it. It may be empty: markers only.

    ``limit`` is the first offset that a reader cannot see yet, as the broker reported it last.
    """

    start: int
    end: int
    records: Sequence[Record]
    limit: int

    def before(self, end: int) -> Span:
        """What of it lies before an offset, as if the log ended there."""
        if self.end <= end:
            return structs.replace(self, limit=min(self.limit, end))
        return Span(min(self.start, end), end, [record for record in self.records if record.offset < end], end)


class Hole(Exception):  # noqa: N818 - a signal between two parts of the engine, not an error of anyone
    """A span begins after the chain's end: what is between was fetched and thrown away. Seek to ``offset``."""

    def __init__(self, offset: int) -> None:
        super().__init__(offset)
        self.offset = offset


class Chain:
    """The end of what was accepted so far, for one partition."""

    def __init__(self, start: int) -> None:
        self.end = start

    def new_records(self, span: Span) -> Sequence[Record]:
        """Return the records of ``span`` that are new, and move the chain's end.

        A span that begins before the end is a second fetch of the same log (after a rebalance, say): only what lies
        behind the end is new.

        Raises:
            Hole: the span does not touch the chain; nothing is accepted.
        """
        if span.start > self.end:
            raise Hole(self.end)
        records = span.records
        if span.start < self.end:
            records = [record for record in records if record.offset >= self.end]
        self.end = max(self.end, span.end)
        return records

    def restart(self, start: int) -> None:
        """Begin again at ``start``: what was accepted behind it was given up and will be fetched again."""
        self.end = start


class Backlog:
    """What was fetched of one partition and waits to be processed."""

    def __init__(self) -> None:
        self._chain = Chain(0)
        self._records: deque[Record] = deque()
        self._bytes = 0
        self.limit = 0  # the first offset that no reader could see, as the broker said last

    def __len__(self) -> int:
        return len(self._records)

    @property
    def end(self) -> int:
        """The offset behind all that was accepted."""
        return self._chain.end

    def accept(self, span: Span) -> None:
        """Add what is new of a span.

        Raises:
            Hole: as ``Chain.new_records``.
        """
        records = self._chain.new_records(span)
        self.limit = span.limit
        self._records.extend(records)
        self._bytes += fetched_size(records)

    def fills(self, size: int, count: int) -> bool:
        """Whether so many bytes or records wait already."""
        return self._bytes >= size or len(self._records) >= count

    def clear(self, start: int) -> None:
        """Give up what waits; what is accepted next begins at ``start``."""
        self._records.clear()
        self._bytes = 0
        self._chain.restart(start)

    def take_batch(self, start: int, count: int, size: int) -> tuple[list[Record], int]:
        """Return the records of the next batch, at least one, from ``start`` on, and the offset behind them."""
        waiting = self._records
        while waiting and waiting[0].offset < start:  # committed by a batch that outlived a rebalance
            self._bytes -= fetched_size([waiting.popleft()])
        records: list[Record] = []
        taken = 0
        if len(waiting) <= count and self._bytes <= size:
            records, taken = list(waiting), self._bytes
            waiting.clear()
        while waiting and len(records) < count:
            next_size = fetched_size([waiting[0]])
            if records and taken + next_size > size:
                break
            taken += next_size
            records.append(waiting.popleft())
        self._bytes -= taken
        # Where nothing waits, the chain's end counts: it lies behind trailing transaction markers too.
        return records, records[-1].offset + 1 if waiting else max(self._chain.end, start)


def fetched_size(records: Sequence[Record]) -> int:
    """Return about how many bytes of memory fetched records hold."""
    values = sum([len(record.value) for record in records if record.value])
    return values + _FETCHED_OVERHEAD * len(records)


class Slices:
    """How many records the stage gets at once: few where each makes much or takes long.

    That bounds memory, and how long everything else in the worker waits. Results do not depend on it.
    """

    def __init__(self, records: int, seconds: float) -> None:
        self._most_records = records
        self._most_seconds = seconds
        # What one record makes in bytes, and takes in seconds, as seen lately.
        self._record_bytes = 1.0
        self._record_seconds = _SLOW_RECORD_SECONDS

    @property
    def length(self) -> int:
        by_bytes, by_seconds = _SLICE_BYTES / self._record_bytes, self._most_seconds / self._record_seconds
        return max(1, min(self._most_records, int(by_bytes), int(by_seconds)))

    def note_cost(self, records: int, size: int, seconds: float) -> None:
        """Take note of what a slice made in bytes and took in seconds; large outputs are forgotten slowly."""
        self._record_seconds = max(1e-6, seconds / records)
        self._record_bytes = max(1.0, self._record_bytes * 0.5, size / records)
