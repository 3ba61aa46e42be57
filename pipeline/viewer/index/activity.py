"""The number of events of a time span, in steps, and the current state of all sessions."""

from __future__ import annotations

from itertools import pairwise

from msgspec import Struct

from reknit.pipeline.viewer.index import Reader
from reknit.pipeline.viewer.index.batch import UNITS


class Count(Struct, frozen=True):
    """The number of events in the step that begins at a time, in milliseconds since the epoch."""

    since_ms: int
    kind: str
    code: str
    target: str
    severity: str
    count: int


class Overview(Struct, frozen=True, kw_only=True):
    """The events of a span, in steps, and the current state.

    ``counts`` are of ``turn``, ``request``, ``fix``, ``rejection``, ``refused``, ``letter``, ``session`` (those that
    began), ``events`` (records, by their source), ``turn/diagnosis``, and of items by their codes: ``promoted``,
    ``retracted``, ``incomplete``, ``doubtful``, ``unseen``.
    """

    since_ms: int
    until_ms: int
    step_ms: int
    counts: list[Count]
    sessions: int
    parked: int
    latest_ms: int

    @property
    def steps(self) -> range:
        """The begin of each step. Counts cover whole steps, so they start at the first step's begin."""
        return range(self.since_ms // self.step_ms * self.step_ms, self.until_ms, self.step_ms)


def overview(reader: Reader, since_ms: int, until_ms: int) -> Overview:
    # The shortest steps that are not too many, and are kept from so early on.
    firsts = dict(reader.rows("SELECT unit, min(since_ms) FROM counters GROUP BY unit"))
    step = UNITS[-1]
    for unit, larger in pairwise(UNITS):
        is_kept = firsts.get(unit, 0) <= since_ms or firsts[unit] < firsts[larger] + larger
        if is_kept and until_ms - since_ms <= unit * _MOST_STEPS:
            step = unit
            break
    rows = reader.rows(
        "SELECT since_ms, kind, code, target, severity, count FROM counters WHERE unit = ? AND since_ms > ? "
        "AND since_ms < ? ORDER BY since_ms",
        step,
        since_ms - step,
        until_ms,
    )
    begun = reader.rows(
        "SELECT first_ms / ?1 * ?1, 'session', '', '', '', count(*) FROM sessions "
        "WHERE first_ms >= ?2 AND first_ms <= ?3 GROUP BY 1",
        step,
        since_ms // step * step,
        until_ms,
    )
    return Overview(
        since_ms=since_ms,
        until_ms=until_ms,
        step_ms=step,
        counts=[Count(*row) for row in (*rows, *begun)],
        sessions=reader.rows("SELECT count(*) - EXISTS (SELECT 1 FROM sessions WHERE name = '') FROM sessions")[0][0],
        parked=reader.rows("SELECT count(*) FROM facets WHERE kind = 'is' AND value = 'parked'")[0][0],
        latest_ms=reader.rows("SELECT coalesce(max(last_ms), 0) FROM sessions")[0][0],
    )


# Of an overview, at most.
_MOST_STEPS = 100
