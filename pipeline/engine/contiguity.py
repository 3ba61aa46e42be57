"""No source record is skipped and none is taken twice: a chain of spans of the log.

A gap in offsets says nothing by itself. Transaction markers, aborted records and compaction leave gaps in a healthy
log; a rebalance or a discarded fetch leaves the same gap where records were lost. So offsets are not compared with
each other. Each fetch reports the fetch position before and after it, both read in one step of the consumer's own
thread: between the two the client walked the log without a hole, and whatever offsets are missing inside do not
exist. What is left to check is that each span begins where the last one ended.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from pipeline.stages.base import Record


class Span(Struct, frozen=True):
    """A part of one partition's log, ``[start, end)``, and the records in it. It may be empty: markers only.

    ``limit`` is the first offset that a reader cannot see yet, as the broker reported it last.
    """

    start: int
    end: int
    records: Sequence[Record]
    limit: int


class Hole(Exception):  # noqa: N818 - a signal between two parts of the engine, not an error of anyone
    """A span begins after the chain's end: what is between was fetched and thrown away. Seek to ``offset``."""

    def __init__(self, offset: int) -> None:
        super().__init__(offset)
        self.offset = offset


class Chain:
    """The end of what was accepted so far, for one partition."""

    def __init__(self, start: int) -> None:
        self.end = start

    def take(self, span: Span) -> Sequence[Record]:
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
