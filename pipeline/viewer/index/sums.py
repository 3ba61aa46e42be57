"""What the records of a session add up to: its row's numbers, and the facets that searches find it by."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from typing import Final

from pipeline.viewer.index.entries import LETTERS, Entry

# What is counted beside fixes, letters and requests: items that are not as their stream delivered them.
TOLD_OF_ITEMS: Final = frozenset({"promoted", "retracted", "incomplete", "doubtful", "unseen"})
# Kinds whose codes and targets sessions are found by.
_FOUND_BY: Final = frozenset({"fix", "request", "turn/diagnosis", "answered", "answer", "unreadable", *LETTERS})

# What a session's row counts, and what a record of a kind adds to it.
NUMBERS: Final = ("turns", "requests", "fixes", "lossy", "letters", "rejections")
_ADDS: Final[dict[tuple[str, str], tuple[int, ...]]] = {
    ("turn", ""): (1, 0, 0, 0, 0, 0),
    ("request", ""): (0, 1, 0, 0, 0, 0),
    ("fix", "lossy"): (0, 0, 1, 1, 0, 0),
    ("fix", "lossless"): (0, 0, 1, 0, 0, 0),
    ("fix", "observed"): (0, 0, 0, 0, 0, 0),
    ("letter", ""): (0, 0, 0, 0, 1, 0),
    ("refused", ""): (0, 0, 0, 0, 1, 0),
    ("rejection", ""): (0, 0, 0, 0, 0, 1),
}
_NOTHING: Final = (0, 0, 0, 0, 0, 0)
# A restored history is so many turns as it has messages.
_RESTORED: Final = "restored"
PARKED_FACET: Final = ("is", "parked")


def facets_of(kind: str, code: str, target: str, severity: str, producer: str) -> Iterator[tuple[str, str]]:
    """What sessions are found by, of one entry."""
    if producer:
        yield "producer", producer
    if kind not in _FOUND_BY:
        if code in TOLD_OF_ITEMS:
            yield "code", code
        return
    if code:
        yield "code", code
    if target:
        yield "target", target
    if severity:
        yield "severity", severity
    if kind in LETTERS:
        yield "is", "rejected" if kind == "rejection" else "letter"


class Sum:
    """What a batch adds to one session."""

    __slots__ = ("facets", "first_ms", "last_ms", "name", "numbers", "parked")

    def __init__(self, name: str, time_ms: int) -> None:
        self.name = name
        self.first_ms = self.last_ms = time_ms
        self.numbers = [0] * len(NUMBERS)
        self.facets: set[tuple[str, str]] = set()
        self.parked: bool | None = None

    def include(self, entry: Entry) -> None:
        kind = entry.kind
        if (kind, entry.severity) in _ADDS:
            for at, added in enumerate(_ADDS[kind, entry.severity]):
                self.numbers[at] += added
        elif kind == _RESTORED:
            self.numbers[0] += entry.turn
        self.facets.update(facets_of(kind, entry.code, entry.target, entry.severity, entry.producer))


def recount(connection: sqlite3.Connection, sessions: Iterable[int]) -> None:
    """Say of sessions anew what their records add up to, once some are gone; one without any is gone as well."""
    for session in sessions:
        rows = connection.execute(
            "SELECT kind, code, target, severity, producer, count(*), sum(turn), min(time_ms) FROM entries "
            "WHERE session = ? GROUP BY kind, code, target, severity, producer",
            (session,),
        ).fetchall()
        (left,) = connection.execute(
            "SELECT EXISTS (SELECT 1 FROM runs WHERE session = ?1) OR "
            "EXISTS (SELECT 1 FROM facets WHERE session = ?1 AND kind = 'is' AND value = 'parked')",
            (session,),
        ).fetchone()
        if not rows and not left:
            connection.execute("DELETE FROM facets WHERE session = ?", (session,))
            connection.execute("DELETE FROM sessions WHERE id = ?", (session,))
            continue
        total, facets = [0] * len(NUMBERS), set[tuple[str, str]]()
        for kind, code, target, severity, producer, count, turns, _ in rows:
            for at, added in enumerate(_ADDS.get((kind, severity), _NOTHING)):
                total[at] += added * count
            total[0] += turns if kind == _RESTORED else 0
            facets.update(facets_of(kind, code, target, severity, producer))
        connection.execute(
            "DELETE FROM facets WHERE session = ? AND NOT (kind = 'is' AND value = 'parked')", (session,)
        )
        connection.executemany("INSERT INTO facets VALUES (?, ?, ?)", [(*facet, session) for facet in facets])
        named = ", ".join(f"{name} = ?" for name in NUMBERS)
        first_ms = min((row[-1] for row in rows), default=None)
        connection.execute(
            f"UPDATE sessions SET first_ms = coalesce(?, first_ms), {named} WHERE id = ?",  # noqa: S608  constant text
            (first_ms, *total, session),
        )
