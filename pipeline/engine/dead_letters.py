"""Records that cannot be processed, and outputs that cannot be written: found, and made dead letters of."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence

from pipeline.engine.runtime import log, where
from pipeline.stages.base import Output, Record, Result, Stage, error_headers
from topics import DEAD_LETTERS

_letters = logging.getLogger("reknit.dead-letters")
# The headers that say where the record stood, and why it could not be processed.
_PLACE = tuple(f"reknit.error.{name}" for name in ("topic", "partition", "offset", "code"))
# A record's own overhead in a batch, and a batch's: lengths, offsets, timestamps, the header (at most 61 bytes).
_OVERHEAD = 100


def output_size(output: Output) -> int:
    """Return an upper bound of the bytes that an output takes in a batch, before compression."""
    size = _OVERHEAD + len(output.key or b"") + len(output.value or b"")
    for name, value in output.headers:
        size += len(name) * 4 + len(value or b"") + 10  # a name is counted as if each character took four bytes
    return size


def poison_letter(topic: str, record: Record) -> Output:
    """Return the dead letter of a record that a stage raised for: key, value and headers as they came."""
    headers = (*record.headers, *error_headers("internal", topic, record.partition, record.offset))
    return Output(DEAD_LETTERS, record.key, record.value, headers)


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
        except Exception as error:  # noqa: BLE001 - whatever a stage raises is a bug that must not stop the partition
            log.error("the stage raised for offset %d: %s", record.offset, where(error))
            return results, error
    return results, None
