"""What batches are made of: records none of which is skipped or taken twice, and dead letters for those that fail.

A gap in offsets says nothing by itself. Transaction markers, aborted records and compaction leave gaps in a healthy
log; a rebalance or a discarded fetch leaves the same gap where records were lost. So offsets are not compared with
each other. Each fetch reports the fetch position before and after it, both read in one step of the consumer's own
thread: between the two the client walked the log without a hole, and whatever offsets are missing inside do not
exist. What is left to check is that each span begins where the last one ended.
"""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from collections.abc import Sequence

from msgspec import Struct, structs

from pipeline.engine.runtime import log, where
from pipeline.errors import InternalError
from pipeline.stages.base import Output, Record, Result, Stage, StoppedError, dead_letter, error_headers
from topics import DEAD_LETTERS

_letters = logging.getLogger("reknit.dead-letters")
# The headers that say where the record stood, and why it could not be processed.
_PLACE = tuple(f"reknit.error.{name}" for name in ("topic", "partition", "offset", "code"))
# A record's own overhead in a batch, and a batch's: lengths, offsets, timestamps, the header (at most 61 bytes).
_OVERHEAD = 100

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


# Records that cannot be processed, and outputs that cannot be written.


def output_size(output: Output) -> int:
    """Return an upper bound of the bytes that an output takes in a batch, before compression."""
    size = _OVERHEAD + len(output.key or b"") + len(output.value or b"")
    for name, value in output.headers:
        size += len(name) * 4 + len(value or b"") + 10  # a name is counted as if each character took four bytes
    return size


def size_letter(output: Output, topic: str, partition: int, offset: int) -> Output:
    """Return the dead letter that stands for an output which no topic takes.

    It has the record's key, the position of the slice it came from (its last source offset), and size and digest in
    place of the value. An output that is a dead letter itself keeps its own ``reknit.error.*`` headers, which name
    the exact record.
    """
    value = output.value or b""
    kept = tuple(header for header in output.headers if header[0].startswith("reknit.error."))
    headers = (
        *(kept or error_headers("size", topic, partition, offset)),
        ("reknit.error.output-topic", output.topic.encode()),
        ("reknit.error.value-bytes", b"%d" % len(value)),
        ("reknit.error.value-sha256", hashlib.sha256(value).hexdigest().encode()),
    )
    # A key that large has no business in a header or a digest column either; sessions have short keys.
    key = output.key if len(output.key or b"") <= 1 << 20 else None
    return Output(DEAD_LETTERS, key, None, headers)


def log_letters(outputs: Sequence[Output]) -> None:
    """Name the dead letters among committed outputs: where each record stood, and the code; never its content."""
    for output in outputs:
        if output.topic == DEAD_LETTERS:
            why = {name: (value or b"").decode() for name, value in output.headers if name in _PLACE}
            _letters.warning(
                "%s partition %s offset %s became a dead letter: %s", *(why.get(name, "?") for name in _PLACE)
            )


def walk(stage: Stage, records: Sequence[Record]) -> tuple[list[Result], Exception | None]:
    """Process records one by one until the stage raises.

    Returns what each record gave up to there, and the error, or None when all went through. The record that raised
    is ``records[len(results)]``; the stage must not be used again after an error.
    """
    results: list[Result] = []
    for record in records:
        try:
            results.append(stage.process([record]))
        except StoppedError as error:
            return results, error
        except Exception as error:  # noqa: BLE001 - whatever a stage raises is a bug that must not stop the partition
            log.error("the stage raised for offset %d: %s", record.offset, where(error))
            return results, error
    return results, None


def buried(stage: Stage, record: Record) -> tuple[Result, Exception | None]:
    """What stands for a record that the stage raised for: its dead letter, and what the policy makes of the session.

    Where the stage raises for that as well, the letter stands alone; the stage must then not be used again.

    Raises:
        StoppedError: by policy the worker ends there.
    """
    why = InternalError("internal", "")
    try:
        return stage.refuse(record, why), None
    except StoppedError:
        raise
    except Exception as error:  # noqa: BLE001 - as above
        log.error("the stage raised for the dead letter of offset %d: %s", record.offset, where(error))
        tally: dict[tuple[str, ...], float] = {("reknit_dead_letters_total", stage.topic, "internal"): 1}
        return Result(outputs=[dead_letter(record, stage.topic, why)], tally=tally), error
