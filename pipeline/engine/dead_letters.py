"""Records that cannot be processed, and outputs that cannot be written: found, and made dead letters of."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence

from pipeline.engine.runtime import log, where
from pipeline.errors import InternalError
from pipeline.stages.base import Output, Record, Result, Stage, StoppedError, dead_letter, error_headers
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
