"""Find the record for which a stage raises."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.engine.runtime import log, where
from pipeline.stages.base import Record, Result, Stage


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
