"""Fixes of what a stream said, for ``history.fixes.v1``: records and metrics like those of a history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from pipeline._version import __version__
from pipeline.fixes import Fix
from pipeline.stages.base import Output, Record, Result
from topics import HISTORY_FIXES
from topics.records import FixRecord


def tell_fixes(
    fixes: Sequence[Fix], record: Record, turns: int, result: Result, tally: Counter[tuple[str, ...]]
) -> None:
    """Publish what a record of events led to. A fix's target is the source; ``turns`` are those finished so far."""
    for number, fix in enumerate(fixes):
        told = FixRecord(
            code=fix.code,
            path=fix.path,
            lossless=fix.lossless,
            turn=turns,
            offset=record.offset,
            number=number,
            version=__version__,
            detail=fix.detail,
            before=fix.before,
            after=fix.after,
            source=fix.target,
            id=fix.id,
        )
        result.outputs.append(Output(HISTORY_FIXES, record.key, msgspec.json.encode(told)))
        tally["reknit_fixes_total", fix.code, fix.target] += 1
        if not fix.lossless:
            tally["reknit_fixes_lossy_total", fix.code, fix.target] += 1
