"""The index's fields of a record, its place, and the sums of a session's records."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import cramjam
from msgspec import Struct

from reknit.pipeline.changes import loss_of
from reknit.pipeline.fixes import FIXES
from reknit.topics import (
    AGENT_TURNS,
    DEAD_LETTERS,
    HISTORY_FIXES,
    PROVIDER_EVENTS,
    PROVIDER_REQUESTS,
    SESSION_ITEMS,
    TURNS_STATE,
)
from reknit.topics.headers import Headers

# Code points of a record that a list shows.
SUMMARY = 300
# Code points of a record that a search covers. An index of everything would be as large as the topics.
WORDS = 8000

DELTA, COMPLETED, RETRACTED = "item/delta", "item/completed", "item/retracted"
EVENTS, FORGOTTEN = "events", "forgotten"
PARKED, UNPARKED = "parked", "unparked"
LETTERS: Final = ("letter", "rejection", "refused")
# The kind of an entry, by the kind of the dead letter.
LETTER_OF: Final[Mapping[str, str]] = {"failed": "letter", "rejected": "rejection", "refused": "refused"}


class Entry(Struct, frozen=True, kw_only=True):
    """One record in lists and searches. Fields that do not apply are empty.

    Attributes:
        topic: the contract's name.
        session: the record's key; of a dead letter without one ``""``.
        kind: of ``agent.turns`` ``opened``, ``turn``, ``restored``, ``rewound``, ``wanted``, ``closed``, ``released``,
            ``forgotten``, ``answered``, or ``large`` for a record in the object store; ``request``, ``withdrawal``;
            ``fix``; ``rejection``, ``refused``, ``letter`` or ``note``; the type of a record of ``session.items``; of
            ``provider.events`` ``events``, ``answer``, ``exit`` or what the history side ``told``; ``unreadable``.
        role: the role of a turn; of an item its type.
        turn: the turn that a request or a fix has seen; of a restored history its number of messages; otherwise -1.
        code: of a fix and a dead letter its own, of a rule's refusal the rule; of items ``promoted``, ``retracted``,
            ``incomplete`` and ``doubtful`` (until they are whole or withdrawn), ``unseen``; of an answer's end ``cut``;
            the cause of a diagnosis.
        severity: of a fix: ``lossy``, ``lossless``, ``observed``.
        cause: the record that led to this one, as ``topic/partition/offset``.
        size: bytes of the value.
        value: None if there is none, or if it was not read with the entry (see ``Values``).
    """

    topic: str
    partition: int
    offset: int
    time_ms: int
    session: str
    kind: str
    role: str = ""
    turn: int = -1
    target: str = ""
    code: str = ""
    severity: str = ""
    producer: str = ""
    request_id: str = ""
    run: str = ""
    item_id: str = ""
    origin: str = ""
    cause: str = ""
    summary: str = ""
    words: str = ""
    size: int = 0
    headers: Headers = ()
    value: bytes | None = None

    @property
    def place(self) -> str:
        """The record, as headers name it."""
        return f"{self.topic}/{self.partition}/{self.offset}"

    @property
    def number(self) -> int:
        return place_number(self.topic, self.partition, self.offset)

    @property
    def cursor(self) -> str:
        """The position after which a list by time continues."""
        return f"{self.time_ms}-{self.number}"


# The fields of an entry that have columns of their own, unchanged.
COLUMNS: Final = (
    *("time_ms", "kind", "role", "turn", "target", "code", "severity", "producer", "request_id", "run", "item_id"),
    *("origin", "cause", "summary", "size"),
)


def line(text: str) -> str:
    """The beginning of a text as one line."""
    return " ".join(text[: SUMMARY * 2].split())[:SUMMARY]


# The results of one record follow it within the same millisecond, in this order.
FOLLOWED: Final = (
    AGENT_TURNS,
    PROVIDER_EVENTS,
    HISTORY_FIXES,
    PROVIDER_REQUESTS,
    DEAD_LETTERS,
    TURNS_STATE,
    SESSION_ITEMS,
)

# A record's place as one number: the topic's rank, then partition and offset.
_OFFSET_BITS, _PARTITION_BITS = 43, 16
OFFSETS, PARTITIONS = 1 << _OFFSET_BITS, 1 << _PARTITION_BITS
RANKS: Final = {topic: rank for rank, topic in enumerate(FOLLOWED, 1)}


def place_number(topic: str, partition: int, offset: int) -> int:
    return (RANKS[topic] << _PARTITION_BITS | partition) << _OFFSET_BITS | offset


def record_at(number: int) -> tuple[str, int, int]:
    """Topic, partition and offset of a place."""
    partition = number >> _OFFSET_BITS & (1 << _PARTITION_BITS) - 1
    return FOLLOWED[(number >> _OFFSET_BITS + _PARTITION_BITS) - 1], partition, number & (1 << _OFFSET_BITS) - 1


# A value up to the first size is stored in the index unchanged; up to the next it is compressed; and up to the third it
# is stored if its compressed form has at most the first size. Others are read from their topic.
_PLAIN, _KEPT, _TRIED = 1024, 16 * 1024, 256 * 1024


class Packed(NamedTuple):
    packed: int
    value: bytes | None


def pack(value: bytes | None, *, always: bool = False) -> Packed:
    """Return the stored form of a value; None if it is left to its topic."""
    if value is None or (len(value) <= _PLAIN):
        return Packed(0, value)
    if len(value) > _TRIED and not always:
        return Packed(0, None)
    found = bytes(cramjam.zstd.compress(value, level=1))
    return Packed(1, found if always or len(found) <= _KEPT else None)


def unpack(packed: int, value: bytes | None) -> bytes | None:
    return bytes(cramjam.zstd.decompress(value)) if packed and value is not None else value


def delta_entry(session: str, item_id: str, row: tuple[int, int, str, int, bytes | None]) -> Entry:
    """A record of an item's text, which has a row of its own only as long as the item is not completed.

    ``row`` has its place, time, run and value, which is packed or not.
    """
    place, time_ms, run, packed, kept = row
    topic, partition, offset = record_at(place)
    value = unpack(packed, kept) or b""
    return Entry(
        topic=topic,
        partition=partition,
        offset=offset,
        time_ms=time_ms,
        session=session,
        kind=DELTA,
        run=run,
        item_id=item_id,
        size=len(value),
        value=value,
    )


# Counted codes besides fixes, dead letters and requests: items that differ from their stream.
TOLD_OF_ITEMS: Final = frozenset({"promoted", "retracted", "incomplete", "doubtful", "unseen"})
# Kinds whose codes and targets sessions are found by.
_FOUND_BY: Final = frozenset({"fix", "request", "turn/diagnosis", "answered", "answer", "unreadable", *LETTERS})

# The counters of a session's row, and the increments by a record of a kind.
NUMBERS: Final = ("turns", "requests", "fixes", "lossy", "letters", "rejections", "added")
_ADDS: Final[dict[tuple[str, str], tuple[int, ...]]] = {
    ("turn", ""): (1, 0, 0, 0, 0, 0, 0),
    ("request", ""): (0, 1, 0, 0, 0, 0, 0),
    ("fix", "lost"): (0, 0, 1, 1, 0, 0, 0),
    ("fix", "added"): (0, 0, 1, 1, 0, 0, 1),
    ("fix", "lossless"): (0, 0, 1, 0, 0, 0, 0),
    ("fix", "observed"): (0, 0, 0, 0, 0, 0, 0),
    ("letter", ""): (0, 0, 0, 0, 1, 0, 0),
    ("refused", ""): (0, 0, 0, 0, 1, 0, 0),
    ("rejection", ""): (0, 0, 0, 0, 0, 1, 0),
}
_NOTHING: Final = (0,) * len(NUMBERS)
# The fixes whose loss is an addition.
ADDING: Final = frozenset(code for code, fix in FIXES.items() if fix.fate == "synthesised")
# A restored history counts as many turns as it has messages.
RESTORED: Final = "restored"
PARKED_FACET: Final = ("is", "parked")


def loss_or(severity: str, code: str) -> str:
    """Return ``lost`` or ``added`` for a lossy fix, by its code; any other severity unchanged."""
    return loss_of(code, lossless=False, observed=False) if severity == "lossy" else severity


def facets_of(kind: str, code: str, target: str, severity: str, producer: str) -> Iterator[tuple[str, str]]:
    """Return the facets of one entry by which sessions are found."""
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
    if severity == "lossy":
        yield "severity", loss_or(severity, code)
    if kind in LETTERS:
        yield "is", "rejected" if kind == "rejection" else "letter"


class Sum:
    """A batch's additions to one session."""

    __slots__ = ("facets", "first_ms", "last_ms", "name", "numbers", "parked")

    def __init__(self, name: str, time_ms: int) -> None:
        self.name = name
        self.first_ms = self.last_ms = time_ms
        self.numbers = [0] * len(NUMBERS)
        self.facets: set[tuple[str, str]] = set()
        self.parked: bool | None = None

    def include(self, entry: Entry) -> None:
        kind = entry.kind
        counted = kind, loss_or(entry.severity, entry.code)
        if counted in _ADDS:
            for at, added in enumerate(_ADDS[counted]):
                self.numbers[at] += added
        elif kind == RESTORED:
            self.numbers[0] += entry.turn
        self.facets.update(facets_of(kind, entry.code, entry.target, entry.severity, entry.producer))


def recount(connection: sqlite3.Connection, sessions: Iterable[int]) -> None:
    """Recompute the sums of sessions after records were removed; a session without any is removed as well."""
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
            for at, added in enumerate(_ADDS.get((kind, loss_or(severity, code)), _NOTHING)):
                total[at] += added * count
            total[0] += turns if kind == RESTORED else 0
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
