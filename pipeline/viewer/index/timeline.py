"""One session's entries as pages ask for them: its timeline by parts, its requests, its turns, its items."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final

from msgspec import Struct

from pipeline.errors import InputError
from pipeline.viewer.index import ITEMS, Reader
from pipeline.viewer.index.entries import COLUMNS, DELTA, LETTERS, Entry, delta_entry, place_number, record_at
from pipeline.viewer.index.search import Page, read_cursor
from topics import AGENT_TURNS

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


# Before every entry that there is.
BEGINNING: Final = "0-0"


class Timeline(Struct, frozen=True):
    """A part of a session, oldest entry first. ``before`` and ``after`` lead to its neighbours, ``""`` at an end."""

    entries: list[Entry]
    before: str
    after: str


# What no list shows: pieces of an item, which are one text once it is complete.
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
    """A part of what there is of a session, by time: the newest one, or a neighbour of another part.

    With ``kinds`` only these, with a ``target`` only what is of it.
    """
    forward = bool(after)
    condition, given = _only(kinds, target)
    order, sign = ("ASC", ">") if forward else ("DESC", "<")
    edge = read_cursor(after or before) if after or before else (1 << 62, 0)
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


def _number(place: str) -> int:
    topic, _, rest = place.partition("/")
    partition, _, offset = rest.partition("/")
    try:
        return place_number(topic, int(partition), int(offset))
    except (KeyError, ValueError) as error:
        raise InputError("bad_place", f"{place[:80]!r} is no place of a record: topic/partition/offset") from error


def entry_at(reader: Reader, place: str) -> Entry | None:
    """The entry of a record, by its place as headers name it."""
    return next(iter(_entries(reader.rows(f"{_OF_ALL} WHERE e.place = ?", _number(place)))), None)


def led_to(reader: Reader, place: str) -> list[Entry]:
    """What a record led to: its fixes, its requests, its letters, and the notes about a letter."""
    return _entries(reader.rows(f"{_OF_ALL} WHERE e.cause = ? AND e.cause <> '' ORDER BY e.place", place))


def turns_until(reader: Reader, name: str, place: str) -> list[Entry]:
    """The session's log up to a record of it, oldest first."""
    last = _number(place)
    partition = int(place.split("/")[1])
    return _entries(
        reader.rows(
            f"{_OF_ONE} {_OWN} AND +e.place >= ? AND +e.place <= ? ORDER BY +e.place",
            name,
            place_number(AGENT_TURNS, partition, 0),
            last,
        )
    )


def letters(reader: Reader, code: str = "", session: str = "", after: str = "", limit: int = 50) -> Page:
    """Dead letters, the newest first."""
    edge = read_cursor(after) if after else (1 << 62, 0)
    source = f"{_OF_ONE} {_OWN} AND" if session else f"{_OF_ALL} WHERE"
    rows = reader.rows(
        f"{source} e.kind IN {LETTERS} AND (e.time_ms, e.place) < (?, ?) AND (? = '' OR e.code = ?) "
        "ORDER BY e.time_ms DESC, e.place DESC LIMIT ?",
        *([session] if session else []),
        *edge,
        code,
        code,
        limit + 1,
    )
    found = _entries(rows[:limit])
    return Page(found, found[-1].cursor if len(rows) > limit else "")


def done_about(reader: Reader, letters: Iterable[Entry]) -> dict[str, str]:
    """What was done about dead letters, ``retried`` or ``dropped``, by their places; of others nothing is said."""
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
    """Records of ``session.items`` in the order of their log, of one run or of all.

    What an item said piece by piece is one record once it is completed. ``after`` and ``before`` are places; with
    ``before``, and without both, these are the last ones.
    """
    low = _number(after) if after else ITEMS - 1
    high = _number(before) if before else 1 << 62
    order = "ASC" if after else "DESC"
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
    return _in_order(name, rows, pieces, limit, forward=bool(after))


def of_items(reader: Reader, name: str, item_ids: Collection[str]) -> list[Entry]:
    """Records of these items, in the order of their log."""
    marks = ", ".join("?" * len(item_ids))
    rows = reader.rows(f"{_OF_ONE} {_OWN} AND e.item_id <> '' AND e.item_id IN ({marks})", name, *item_ids)
    pieces = reader.rows(f"{_PIECES} AND d.item_id IN ({marks})", name, *item_ids)
    return _in_order(name, rows, pieces, len(rows) + len(pieces), forward=True)


def _in_order(name: str, rows: Iterable[Any], pieces: Iterable[Any], limit: int, *, forward: bool) -> list[Entry]:
    found = _entries(rows) + [delta_entry(name, item_id, tuple(row)) for item_id, *row in pieces]
    found.sort(key=lambda entry: entry.number)
    return found[:limit] if forward else found[-limit:] if limit else []
