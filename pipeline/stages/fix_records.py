"""Fixes as records of ``history.fixes.v1``, each counted: those of a history and those of what a stream said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from pipeline._version import __version__
from pipeline.fixes import Fix
from pipeline.stages.base import Output, Record, Result
from topics import HISTORY_FIXES
from topics.records import FixRecord


class Teller(Struct):
    """Tells the fixes that one source record led to, in their order."""

    record: Record
    result: Result
    tally: Counter[tuple[str, ...]]
    numbered: int = 0

    def tell(self, fix: Fix, turn: int, *, request_id: str = "", source: str = "") -> None:
        """Publish a fix and count it. ``turn`` is how many the session has; see ``FixRecord`` for the rest."""
        told = FixRecord(
            code=fix.code,
            path=fix.path,
            lossless=fix.lossless,
            turn=turn,
            offset=self.record.offset,
            number=self.numbered,
            version=__version__,
            target="" if source else fix.target,
            detail=fix.detail,
            before=fix.before,
            after=fix.after,
            request_id=request_id,
            source=source,
            id=fix.id,
        )
        self.numbered += 1
        self.result.outputs.append(Output(HISTORY_FIXES, self.record.key, msgspec.json.encode(told)))
        self.tally["reknit_fixes_total", fix.code, fix.target] += 1
        if not fix.lossless:
            self.tally["reknit_fixes_lossy_total", fix.code, fix.target] += 1


def tell_of_stream(
    fixes: Sequence[Fix], record: Record, turns: int, result: Result, tally: Counter[tuple[str, ...]]
) -> None:
    """Publish what a record of events led to; a fix's target is the source, ``turns`` are those finished so far."""
    teller = Teller(record, result, tally)
    for fix in fixes:
        teller.tell(fix, turns, source=fix.target)
