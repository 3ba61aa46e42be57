"""One session's entries as pages ask for them: its timeline by parts, its requests, its turns, its items."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final

from msgspec import Struct

from reknit.pipeline.viewer.index import ITEMS, Reader
from reknit.pipeline.viewer.index.entries import (
    COLUMNS,
    DELTA,
    LETTER_OF,
    LETTERS,
    OFFSETS,
    PARTITIONS,
    RESTORED,
    Entry,
    delta_entry,
    place_number,
    record_at,
)
from reknit.pipeline.viewer.index.numbers import read_cursor, read_place
from reknit.pipeline.viewer.index.search import match_of
from reknit.pipeline.viewer.index.sessions import Page
from reknit.topics import AGENT_TURNS, DEAD_LETTERS

_SELECT: Final = f"SELECT place, s.name, {', '.join(f'e.{name}' for name in COLUMNS)} FROM entries AS e"  # noqa: S608  constant
_OF_ALL: Final = f"{_SELECT} JOIN sessions AS s ON s.id = e.session"
# Not another order of the tables: a session's rows lie together only in its own index.
_OF_ONE: Final = f"{_SELECT.replace('FROM entries AS e', 'FROM sessions AS s CROSS JOIN entries AS e')}"
_OWN: Final = "ON e.session = s.id WHERE s.name = ?"


def _entries(rows: Iterable[Any]) -> list[Entry]:
    found = []
    for place, name, *values in rows:
        topic, partition, offset = record_at(place)
        given = dict(zip(COLUMNS, values, strict=True))
        found.append(Entry(topic=topic, partition=partition, offset=offset, session=name, **given))
    return found


# A note about the dead letter ``e``, whose place is written as in a note's headers.
_NOTE: Final = (
    f"SELECT 1 FROM entries AS n WHERE n.cause = '{DEAD_LETTERS}/' || ((e.place / {OFFSETS}) % {PARTITIONS}) "  # noqa: S608  constants
    f"|| '/' || (e.place % {OFFSETS}) AND n.cause <> '' AND n.kind = 'note'"
)

# After every time that a record has.
_EVER: Final = 1 << 62
# Before every entry that there is.
BEGINNING: Final = "0-0"


class Timeline(Struct, frozen=True):
    """A part of a session, oldest entry first. ``before`` and ``after`` lead to its neighbours, ``""`` at an end."""

    entries: list[Entry]
    before: str
    after: str


# Not shown in lists: pieces of an item, which are one text once it is complete.
_HIDDEN: Final = f"e.kind <> '{DELTA}'"


def timeline(
    reader: Reader,
    name: str,
    *,
    before: str = "",
    after: str = "",
    kinds: Collection[str] = (),
    target: str = "",
    limit: int = 30,
) -> Timeline:
    """Return a part of a session's entries, by time: the newest one, or a neighbour of another part.

    ``kinds`` and ``target`` restrict it.
    """
    forward = bool(after)
    condition, given = _only(kinds, target)
    order, sign = ("ASC", ">") if forward else ("DESC", "<")
    edge = read_cursor(after or before) if after or before else (_EVER, 0)
    rows = reader.rows(
        f"{_OF_ONE} {_OWN} AND (e.time_ms, e.place) {sign} (?, ?) AND {condition} "
        f"ORDER BY e.time_ms {order}, e.place {order} LIMIT ?",
        name,
        *edge,
        *given,
        limit + 1,
    )
    found = _entries(rows[:limit] if forward else rows[:limit][::-1])
    if not found:
        return Timeline([], "", "")
    first, last = found[0].cursor, found[-1].cursor
    beyond = len(rows) > limit
    if forward:
        return Timeline(found, first, last if beyond else "")
    return Timeline(found, first if beyond else "", last if before else "")


def found_words(reader: Reader, name: str, words: str, kinds: Collection[str], limit: int) -> list[Entry]:
    """Return the newest entries of a session that have all words, oldest first."""
    wanted = match_of(words)
    owner = reader.rows("SELECT id FROM sessions WHERE name = ?", name)
    if not (wanted and owner):
        return []
    condition, given = _only(kinds, "")
    rows = reader.rows(
        f"{_OF_ALL} WHERE e.place IN (SELECT place FROM words WHERE words MATCH ?) AND {condition} "  # noqa: S608  constant texts
        "ORDER BY e.time_ms DESC, e.place DESC LIMIT ?",
        f"{wanted} AND owner : s{owner[0][0]}",
        *given,
        limit,
    )
    return _entries(rows)[::-1]


def turn_at(reader: Reader, name: str, number: int) -> Entry | None:
    """Return the entry with a session's turn of this number, from 1 on; a restored history has as many as messages."""
    rows = reader.rows(
        f"SELECT place FROM (SELECT e.place, e.time_ms, sum(CASE e.kind WHEN '{RESTORED}' THEN e.turn ELSE 1 END) "  # noqa: S608  constant texts
        "OVER (ORDER BY e.time_ms, e.place) AS turns FROM sessions AS s CROSS JOIN entries AS e ON e.session = s.id "
        f"WHERE s.name = ? AND e.kind IN ('turn', '{RESTORED}')) WHERE turns >= ? ORDER BY turns LIMIT 1",
        name,
        number,
    )
    return entry_numbered(reader, rows[0][0]) if rows else None


def entry_numbered(reader: Reader, number: int) -> Entry | None:
    """The entry with this number."""
    return next(iter(_entries(reader.rows(f"{_OF_ALL} WHERE e.place = ?", number))), None)


def _only(kinds: Collection[str], target: str) -> tuple[str, list[str]]:
    condition = f"e.kind IN ({', '.join('?' * len(kinds))})" if kinds else _HIDDEN
    return (f"{condition} AND e.target = ?", [*kinds, target]) if target else (condition, [*kinds])


def request(reader: Reader, name: str, request_id: str) -> Entry | None:
    rows = reader.rows(
        f"{_OF_ALL} WHERE e.request_id = ? AND e.kind = 'request' AND s.name = ? ORDER BY e.place DESC LIMIT 1",
        request_id,
        name,
    )
    return next(iter(_entries(rows)), None)


def entry_at(reader: Reader, place: str) -> Entry | None:
    """The entry of a record, by its place as headers name it."""
    return entry_numbered(reader, place_number(*read_place(place)))


def led_to(reader: Reader, place: str) -> list[Entry]:
    """Return the results of a record: its fixes, its requests, its dead letters, and the notes about a dead letter."""
    return _entries(reader.rows(f"{_OF_ALL} WHERE e.cause = ? AND e.cause <> '' ORDER BY e.place", place))


def turns_until(reader: Reader, name: str, place: str) -> list[Entry]:
    """The session's log up to a record of it, oldest first."""
    topic, partition, offset = read_place(place)
    return _entries(
        reader.rows(
            f"{_OF_ONE} {_OWN} AND +e.place >= ? AND +e.place <= ? ORDER BY +e.place",
            name,
            place_number(AGENT_TURNS, partition, 0),
            place_number(topic, partition, offset),
        )
    )


class LetterFilter(Struct, frozen=True, kw_only=True):
    """A selection of dead letters: all that is given must hold.

    Attributes:
        kind: a key of ``LETTER_OF``.
        code: of the error, or of the rule.
        session: the whole name.
        since_ms, until_ms: the times from which and before which they were written.
        open: only those that were neither retried nor dropped.
    """

    kind: str = ""
    code: str = ""
    session: str = ""
    since_ms: int = -_EVER
    until_ms: int = _EVER
    open: bool = False


class LetterGroup(Struct, frozen=True):
    """The dead letters of one code: their number, that of their sessions, and the time of the newest."""

    code: str
    kind: str
    letters: int
    sessions: int
    latest_ms: int


class LetterSession(Struct, frozen=True):
    """The dead letters of one session: their number, that of their codes, and the time of the newest."""

    session: str
    letters: int
    codes: int
    latest_ms: int


def letters(reader: Reader, wanted: LetterFilter, after: str = "", limit: int = 50) -> Page:
    """Dead letters, the newest first."""
    edge = read_cursor(after) if after else (_EVER, 0)
    source, given = _letters_of(wanted)
    rows = reader.rows(
        f"{source} AND (e.time_ms, e.place) < (?, ?) ORDER BY e.time_ms DESC, e.place DESC LIMIT ?",
        *given,
        *edge,
        limit + 1,
    )
    found = _entries(rows[:limit])
    return Page(found, found[-1].cursor if len(rows) > limit else "")


def oldest_letters(reader: Reader, wanted: LetterFilter, limit: int) -> list[Entry]:
    """Dead letters, the oldest first."""
    source, given = _letters_of(wanted)
    return _entries(reader.rows(f"{source} ORDER BY e.time_ms, e.place LIMIT ?", *given, limit))


def letter_groups(reader: Reader, wanted: LetterFilter, most: int) -> list[LetterGroup]:
    """Return the numbers of dead letters by code, the most frequent first; at most the newest ``most`` are counted."""
    source, given = _letters_of(wanted)
    rows = reader.rows(
        "SELECT code, kind, count(*) AS letters, count(DISTINCT name), max(time_ms) "  # noqa: S608  constant texts
        f"FROM ({source} ORDER BY e.time_ms DESC, e.place DESC LIMIT ?) GROUP BY code, kind "
        "ORDER BY letters DESC, max(time_ms) DESC",
        *given,
        most,
    )
    return [LetterGroup(*row) for row in rows]


def letter_sessions(reader: Reader, wanted: LetterFilter, most: int, limit: int) -> list[LetterSession]:
    """Return the sessions with the most dead letters; at most the newest ``most`` letters are counted."""
    source, given = _letters_of(wanted)
    rows = reader.rows(
        "SELECT name, count(*) AS letters, count(DISTINCT code), max(time_ms) "  # noqa: S608  constant texts
        f"FROM ({source} ORDER BY e.time_ms DESC, e.place DESC LIMIT ?) WHERE name <> '' GROUP BY name "
        "ORDER BY letters DESC, max(time_ms) DESC LIMIT ?",
        *given,
        most,
        limit,
    )
    return [LetterSession(*row) for row in rows]


def _letters_of(wanted: LetterFilter) -> tuple[str, list[object]]:
    source = f"{_OF_ONE} {_OWN} AND" if wanted.session else f"{_OF_ALL} WHERE"
    # Their index has letters alone; it is used by a query that names all of their kinds.
    condition = f"e.kind IN {LETTERS} AND (? = '' OR e.kind = ?) AND (? = '' OR e.code = ?)"
    if wanted.open:
        condition += f" AND NOT EXISTS ({_NOTE})"
    kind, code = LETTER_OF[wanted.kind] if wanted.kind else "", wanted.code
    given = [*([wanted.session] if wanted.session else []), kind, kind, code, code, wanted.since_ms, wanted.until_ms]
    return f"{source} {condition} AND e.time_ms >= ? AND e.time_ms < ?", given


def done_about(reader: Reader, letters: Iterable[Entry]) -> dict[str, str]:
    """Return what an operator did about dead letters, ``retried`` or ``dropped``, by their places."""
    found = {}
    for letter in letters:
        for (code,) in reader.rows(
            "SELECT code FROM entries WHERE cause = ? AND cause <> '' AND kind = 'note' ORDER BY place", letter.place
        ):
            found[letter.place] = code
    return found


def runs(reader: Reader, name: str, before: str = "", limit: int = 30) -> Page:
    """The names of a session's runs (of a program, or of streams of an API), the newest first; one may be ``""``."""
    edge = read_cursor(before)[0] if before else 1 << 62
    rows = reader.rows(
        "SELECT r.run, r.last FROM sessions AS s CROSS JOIN runs AS r "
        "ON r.session = s.id WHERE s.name = ? AND r.last < ? ORDER BY r.last DESC LIMIT ?",
        name,
        edge,
        limit + 1,
    )
    return Page([run for run, _ in rows[:limit]], f"{rows[limit - 1][1]}-0" if len(rows) > limit else "")


_PIECES: Final = (
    "SELECT d.item_id, d.place, d.time_ms, d.run, 0, d.value FROM sessions AS s CROSS JOIN deltas AS d "
    "ON d.session = s.id WHERE s.name = ?"
)


def items(
    reader: Reader, name: str, run: str | None = None, *, after: str = "", before: str = "", limit: int = 500
) -> list[Entry]:
    """Return records of ``session.items`` in the order of their log, of one run or of all.

    The pieces of a completed item are one record. ``after`` and ``before`` are places; with ``before``, and without
    both, these are the last ones.
    """
    low = place_number(*read_place(after)) if after else ITEMS - 1
    high = place_number(*read_place(before)) if before else 1 << 62
    with reader.consistent():
        return _items(reader, name, run, low=low, high=high, limit=limit, forward=bool(after))


def _items(
    reader: Reader, name: str, run: str | None, *, low: int, high: int, limit: int, forward: bool
) -> list[Entry]:
    order = "ASC" if forward else "DESC"
    if run is not None:
        known = reader.rows(
            "SELECT r.first, r.last FROM sessions AS s JOIN runs AS r ON r.session = s.id "
            "WHERE s.name = ? AND r.run = ?",
            name,
            run,
        )
        if not known:
            return []
        low, high = max(low, known[0][0] - 1), min(high, known[0][1] + 1)
    of_run, given = ("AND run = ?", [run]) if run is not None else ("", [])
    rows = reader.rows(
        f"{_OF_ONE} {_OWN} AND e.place >= {ITEMS} AND e.place > ? AND e.place < ? {of_run} "
        f"ORDER BY e.place {order} LIMIT ?",
        name,
        low,
        high,
        *given,
        limit,
    )
    pieces = reader.rows(
        f"{_PIECES} AND d.place > ? AND d.place < ? {of_run} ORDER BY d.place {order} LIMIT ?",
        name,
        low,
        high,
        *given,
        limit,
    )
    return _in_order(name, rows, pieces, limit, forward=forward)


def turns_by(reader: Reader, name: str, producer: str) -> list[Entry]:
    """Return the turns that a program wrote, in the order of their log."""
    sql = f"{_OF_ONE} {_OWN} AND e.kind = 'turn' AND e.producer = ? ORDER BY e.place"
    return _entries(reader.rows(sql, name, producer))


def of_items(reader: Reader, name: str, item_ids: Collection[str]) -> list[Entry]:
    """Records of these items, in the order of their log."""
    marks = ", ".join("?" * len(item_ids))
    with reader.consistent():
        rows = reader.rows(f"{_OF_ONE} {_OWN} AND e.item_id <> '' AND e.item_id IN ({marks})", name, *item_ids)
        pieces = reader.rows(f"{_PIECES} AND d.item_id IN ({marks})", name, *item_ids)
    return _in_order(name, rows, pieces, len(rows) + len(pieces), forward=True)


def _in_order(name: str, rows: Iterable[Any], pieces: Iterable[Any], limit: int, *, forward: bool) -> list[Entry]:
    found = _entries(rows) + [delta_entry(name, item_id, tuple(row)) for item_id, *row in pieces]
    found.sort(key=lambda entry: entry.number)
    return found[:limit] if forward else found[-limit:] if limit else []
