"""Batches of records, without skipped or duplicate records, and dead letters for records that fail.

A gap in offsets proves nothing by itself. Transaction markers, aborted records and compaction leave gaps in a complete
log; a rebalance or a discarded fetch leaves the same gap where records were lost. So offsets are not compared with
each other. Each fetch reports the fetch position before and after it, both read in one step of the consumer's own
thread. Between the two the client read the log without a gap, so offsets missing there do not exist. It remains to
check that each span begins where the last one ended.
"""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from reknit.pipeline.engine.runtime import log, where
from reknit.pipeline.errors import InternalError, ReknitError
from reknit.pipeline.stages.base import Output, Record, Result, Stage, StoppedError, dead_letter, error_headers
from reknit.topics import DEAD_LETTERS
from reknit.topics.headers import CAUSE, ERROR_MESSAGE, ERROR_PATH, ERROR_RULE, Headers, as_texts
from reknit.topics.trace import trace_of

if TYPE_CHECKING:
    from aiokafka.structs import ConsumerRecord

_letters = logging.getLogger("reknit.dead-letters")
# Headers with the place of the failed record and the reason.
_PLACE = tuple(f"reknit.error.{name}" for name in ("topic", "partition", "offset", "code"))
_RULE, _MESSAGE = "reknit.error.rule", "reknit.error.message"
# Most characters of a session's id and of a message; either may have any length.
_MOST_CHARACTERS = 300
# A record's own overhead in a batch, and a batch's: lengths, offsets, timestamps, the header (at most 61 bytes).
_OVERHEAD = 100

# A slice with larger outputs makes the next one shorter.
_SLICE_BYTES = 8 << 20
# Before a partition's first slice was timed, its records count as slow.
_SLOW_RECORD_SECONDS = 60e-6
# Memory of a fetched record without its contents: the objects of its key and of a few headers.
_FETCHED_OVERHEAD = 600


class Span(Struct, frozen=True):
    """A part of one partition's log, ``[start, end)``, and its records. It may contain only transaction markers.

    ``limit`` is the first offset that a reader cannot see yet, as the broker reported it last.
    """

    start: int
    end: int
    records: Sequence[Record]
    limit: int

    def before(self, end: int) -> Span:
        """Return the part before an offset, as if the log ended there."""
        if self.end <= end:
            return structs.replace(self, limit=min(self.limit, end))
        return Span(min(self.start, end), end, [record for record in self.records if record.offset < end], end)


class OffsetGap(Exception):  # noqa: N818 - a signal between two parts of the engine, not an error of anyone
    """A span begins after the chain's end: records between them were fetched and discarded. Seek to ``offset``."""

    def __init__(self, offset: int) -> None:
        super().__init__(offset)
        self.offset = offset


class Chain:
    """The end of the accepted records of one partition."""

    def __init__(self, start: int) -> None:
        self.end = start

    def new_records(self, span: Span) -> Sequence[Record]:
        """Return the records of ``span`` that are new, and move the chain's end.

        A span that begins before the end is a second fetch of the same log, for example after a rebalance. Only records
        after the end are new.

        Raises:
            OffsetGap: the span does not touch the chain; nothing is accepted.
        """
        if span.start > self.end:
            raise OffsetGap(self.end)
        records = span.records
        if span.start < self.end:
            records = [record for record in records if record.offset >= self.end]
        self.end = max(self.end, span.end)
        return records

    def restart(self, start: int) -> None:
        """Continue at ``start``: accepted records after it were given up and will be fetched again."""
        self.end = start


def records_of(fetched: Iterable[ConsumerRecord]) -> list[Record]:
    """Return records in the form of the stages."""
    return [
        Record(
            partition=each.partition,
            offset=each.offset,
            key=each.key,
            value=each.value,
            headers=each.headers,
            timestamp=each.timestamp,
        )
        for each in fetched
    ]


class Backlog:
    """Fetched records of one partition that wait to be processed."""

    def __init__(self) -> None:
        self._chain = Chain(0)
        self._records: deque[Record] = deque()
        self._bytes = 0
        self.limit = 0  # the first offset that no reader could see, as the broker reported it last

    def __len__(self) -> int:
        return len(self._records)

    @property
    def end(self) -> int:
        """The offset after the last accepted one."""
        return self._chain.end

    def accept(self, span: Span) -> None:
        """Add the new records of a span.

        Raises:
            OffsetGap: as ``Chain.new_records``.
        """
        records = self._chain.new_records(span)
        self.limit = span.limit
        self._records.extend(records)
        self._bytes += fetched_size(records)

    def is_full(self, size: int, count: int) -> bool:
        """Return whether the waiting records reach the limit of bytes or of records."""
        return self._bytes >= size or len(self._records) >= count

    def clear(self, start: int) -> None:
        """Drop waiting records; the next accepted span begins at ``start``."""
        self._records.clear()
        self._bytes = 0
        self._chain.restart(start)

    def take_batch(self, start: int, count: int, size: int) -> tuple[list[Record], int]:
        """Return the records of the next batch from ``start`` on, at least one, and the offset after them."""
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
        # If nothing waits, use the chain's end, which is after trailing transaction markers too.
        return records, records[-1].offset + 1 if waiting else max(self._chain.end, start)


def fetched_size(records: Sequence[Record]) -> int:
    """Estimate the memory of fetched records in bytes. The key or a header may be as large as a whole record."""
    contents = sum([len(record.value or b"") + len(record.key or b"") for record in records])
    headers = sum([len(value) for record in records for _, value in record.headers if value])
    return contents + headers + _FETCHED_OVERHEAD * len(records)


class Slices:
    """The number of records per call of the stage: fewer if each has large outputs or takes long.

    This limits memory, and the time for which other parts of the worker wait. Results do not depend on it.
    """

    def __init__(self, records: int, seconds: float) -> None:
        self._most_records = records
        self._most_seconds = seconds
        # Recent bytes of output and seconds of processing per record.
        self._record_bytes = 1.0
        self._record_seconds = _SLOW_RECORD_SECONDS

    @property
    def length(self) -> int:
        by_bytes, by_seconds = _SLICE_BYTES / self._record_bytes, self._most_seconds / self._record_seconds
        return max(1, min(self._most_records, int(by_bytes), int(by_seconds)))

    def note_cost(self, records: int, size: int, seconds: float) -> None:
        """Record the bytes of output and the seconds of a slice; large outputs decay slowly."""
        self._record_seconds = max(1e-6, seconds / records)
        self._record_bytes = max(1.0, self._record_bytes * 0.5, size / records)


# Records that cannot be processed, and outputs that cannot be written.


def output_size(output: Output) -> int:
    """Return an upper bound of the bytes that an output takes in a batch, before compression."""
    return row_size(output.key, output.value, output.headers)


def row_size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Return an upper bound of the bytes that a record takes in a batch, before compression."""
    size = _OVERHEAD + len(key or b"") + len(value or b"")
    for name, header in headers:
        size += len(name) * 4 + len(header or b"") + 10  # a name is counted as if each character took four bytes
    return size


def size_letter(output: Output, topic: str, partition: int, offset: int, *, message: str = "", base: int = 0) -> Output:
    """Return the dead letter that replaces an output too large for its topic.

    It has the record's key, the position of the slice it came from (its last source offset; a request names its own),
    its trace, and size and digest in place of the value. An output that is a dead letter itself keeps its own
    ``reknit.error.*`` headers, which name the exact record.
    """
    value = output.value or b""
    kept = tuple(header for header in output.headers if header[0].startswith("reknit.error."))
    if (cause := dict(output.headers).get(CAUSE)) is not None:
        offset = int(cause.rpartition(b"/")[2])
    headers = (
        *trace_of(output.headers),
        *(kept or error_headers("size", topic, partition, offset, message=message, base=base)),
        ("reknit.error.output-topic", output.topic.encode()),
        ("reknit.error.value-bytes", b"%d" % len(value)),
        ("reknit.error.value-sha256", hashlib.sha256(value).hexdigest().encode()),
    )
    # A key of this size would not fit into a header either; sessions have short keys.
    key = output.key if len(output.key or b"") <= 1 << 20 else None
    return Output(DEAD_LETTERS, key, None, headers)


# Headers of a dead letter that its topic refuses even without a value.
_LONGEST_KEY = 1024
_DETAILS = frozenset({ERROR_MESSAGE, ERROR_PATH, ERROR_RULE})


def smaller_letter(letter: Output, topic: str, partition: int, offset: int) -> Output | None:
    """Return a smaller dead letter for one that its topic refuses for its size; None if it is minimal already.

    First it drops the value and the record's own headers, then the details of the error and a long key.
    """
    if letter.value is not None:
        return size_letter(letter, topic, partition, offset)
    headers = tuple(
        (name, value) for name, value in letter.headers if name.startswith("reknit.error.") and name not in _DETAILS
    )
    key = letter.key if len(letter.key or b"") <= _LONGEST_KEY else None
    return None if (key, headers) == (letter.key, letter.headers) else Output(DEAD_LETTERS, key, None, headers)


def log_letters(outputs: Sequence[Output]) -> None:
    """Log the dead letters among committed outputs: the place of each record and the code, never its content.

    A rejected request is logged with its session, its rule and the provider's sentence, so that the log alone shows
    why a session gets no requests.
    """
    for output in outputs:
        if output.topic != DEAD_LETTERS:
            continue
        why = dict(as_texts(output.headers))
        said = [why.get(name, "?") for name in _PLACE]
        if not why.get(_RULE):
            _letters.warning("%s partition %s offset %s became a dead letter: %s", *said)
            continue
        session = (output.key or b"").decode("utf-8", "replace")[:_MOST_CHARACTERS]
        message = why.get(_MESSAGE, "")[:_MOST_CHARACTERS]
        _letters.warning(
            "session %r: %s partition %s offset %s became a dead letter: %s %s: %s", session, *said, why[_RULE], message
        )


def walk(stage: Stage, records: Sequence[Record]) -> tuple[list[Result], Exception | None]:
    """Process records one by one until the stage raises.

    Returns the results up to there, and the error, or None if all records were processed. The record that raised
    is ``records[len(results)]``; the stage must not be used again after an error.

    Raises:
        OSError: its store failed, which is not the record's fault.
    """
    results: list[Result] = []
    for record in records:
        try:
            results.append(stage.process([record]))
        except StoppedError as error:
            return results, error
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a stage raises is a bug that must not stop the partition
            log.error("the stage raised for offset %d: %s", record.offset, where(error))
            return results, error
    return results, None


def dead_letter_for(stage: Stage, record: Record, why: ReknitError | None = None) -> tuple[Result, Exception | None]:
    """Return the result for a record that made the stage raise: its dead letter and the policy's effect.

    ``why`` is another reason for which it cannot be processed.

    If the stage raises for that as well, the result has only the dead letter; the stage must then not be used again.

    Raises:
        StoppedError: the policy ends the worker there.
        OSError: as ``walk``.
    """
    why = why or InternalError("internal", "")
    try:
        return stage.refuse(record, why), None
    except (StoppedError, OSError):
        raise
    except Exception as error:  # noqa: BLE001 - as above
        log.error("the stage raised for the dead letter of offset %d: %s", record.offset, where(error))
        return letter_alone(stage.topic, record, why), error


def letter_alone(topic: str, record: Record, why: ReknitError) -> Result:
    """Return a record's dead letter, without an effect on its session."""
    tally: dict[tuple[str, ...], float] = {("reknit_dead_letters_total", topic, why.code): 1}
    return Result(outputs=[dead_letter(record, topic, why)], tally=tally)
