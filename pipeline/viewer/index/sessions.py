"""Queries of sessions: those that match a search, and one session by its name.

Every answer is a part with a cursor to the next one, and reads no more than that part: rows in the order of an index,
and for words the newest matches first. Every search ends after N rows and returns where to continue.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, Final

import msgspec
from msgspec import Struct, structs

from reknit.pipeline.viewer.index import Reader
from reknit.pipeline.viewer.index.entries import COMPLETED, TOLD_OF_ITEMS, record_at
from reknit.pipeline.viewer.index.numbers import read_cursor
from reknit.pipeline.viewer.index.search import SORTS, Search, match_of, milliseconds


class SessionRow(Struct, frozen=True, kw_only=True):
    """A session in a list.

    Attributes:
        lossy: the fixes that lost or added content; ``added`` are those that added some.
        letters: all dead letters, rejected requests (``rejections``) included.
        marks: the codes of its items that differ from their stream (``TOLD_OF_ITEMS``).
        model: the model that the session named at its beginning.
        first_words: the beginning of the first user turn, or of the first text of a session without turns.
        excerpt: the text around the found words, each between U+0002 and U+0003.
        hit: the number of the entry that has these words.
    """

    name: str
    first_ms: int
    last_ms: int
    turns: int
    requests: int
    fixes: int
    lossy: int
    letters: int
    rejections: int
    added: int
    parked: bool = False
    targets: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    model: str = ""
    first_words: str = ""
    excerpt: str = ""
    hit: int = 0

    @property
    def lost(self) -> int:
        """The fixes that lost content."""
        return self.lossy - self.added

    @property
    def hit_place(self) -> str:
        """The place of the entry that has the found words, as headers name it."""
        topic, partition, offset = record_at(self.hit)
        return f"{topic}/{partition}/{offset}"

    @property
    def seconds(self) -> float:
        """The time between its first and its last record."""
        return (self.last_ms - self.first_ms) / 1000


class Totals(Struct, frozen=True, kw_only=True):
    """The sums over sessions. ``bounded`` says that there are more sessions than were counted."""

    sessions: int
    turns: int
    requests: int
    fixes: int
    lossy: int
    added: int
    letters: int
    bounded: bool

    @property
    def lost(self) -> int:
        """The fixes that lost content."""
        return self.lossy - self.added


class Page(Struct, frozen=True):
    """A part of a list. ``after`` is where the next one begins, ``""`` at the end; a part may be empty before it."""

    rows: list[Any]
    after: str


_COLUMNS: Final = "id, name, first_ms, last_ms, turns, requests, fixes, lossy, letters, rejections, added"
# Sessions up to which all that have a facet are looked at and sorted; beyond, all there are, newest first.
_FEW = 2000
# Of these the newest match of words is looked up one by one, where all matches would be too many.
_FEW_WITH_WORDS = 400
# The entries of a session, by time, that are looked at for its model and its first words.
_FIRST: Final = 20
# The maximum number of rows that one part of an answer reads, and the number of matches in one step.
_MOST, _CHUNK = 20_000, 500


def sessions(reader: Reader, search: Search, after: str = "", limit: int = 50) -> Page:
    """The sessions that fit, those that had a record last first; with words, those with the newest match first.

    A walk from part to part meets each session once. One that has a new record meanwhile is on top of a new walk.
    """
    if search.words:
        return _with_words(reader, search, after, limit)
    begin = read_cursor(after) if after else (1 << 62, 0)
    if search.sort:
        return _sorted(reader, search, begin, limit)
    where, given = _conditions(search)
    few = _few(reader, search, _FEW)
    if few:
        source, own = few
        sql = (
            f"SELECT {_COLUMNS} FROM {source} WHERE {where} AND (last_ms, id) < (?, ?) ORDER BY +last_ms DESC, id DESC"  # noqa: S608  constant texts
        )
        found = reader.rows(f"{sql} LIMIT ?", *own, *given, *begin, limit + 1)
    else:
        newest = "SELECT * FROM sessions WHERE (last_ms, id) < (?, ?) ORDER BY last_ms DESC, id DESC"
        sql = f"SELECT {_COLUMNS} FROM ({newest} LIMIT ?) AS s WHERE {where} LIMIT ?"  # noqa: S608  constant texts
        found = reader.rows(sql, *begin, _MOST, *given, limit + 1)
        if len(found) <= limit:
            last = reader.rows(f"{newest} LIMIT 1 OFFSET ?", *begin, _MOST - 1)
            return Page(_session_rows(reader, found), f"{last[0][3]}-{last[0][0]}" if last else "")
    more = f"{found[limit - 1][3]}-{found[limit - 1][0]}" if len(found) > limit else ""
    return Page(_session_rows(reader, found[:limit]), more)


def _sorted(reader: Reader, search: Search, begin: tuple[int, int], limit: int) -> Page:
    """The sessions that fit, by the largest number. All are looked at, so this is for a pool of searches."""
    where, given = _conditions(search)
    number = SORTS[search.sort]
    sql = (
        f"SELECT {_COLUMNS}, {number} FROM sessions AS s WHERE {where} AND ({number}, id) < (?, ?) "  # noqa: S608  constant texts
        f"ORDER BY {number} DESC, id DESC LIMIT ?"
    )
    found = reader.rows(sql, *given, *begin, limit + 1)
    more = f"{found[limit - 1][-1]}-{found[limit - 1][0]}" if len(found) > limit else ""
    return Page(_session_rows(reader, [row[:-1] for row in found[:limit]]), more)


def totals(reader: Reader, search: Search) -> Totals:
    """Return the sums over the sessions that fit, words aside; of a search over the newest 20,000, if these are more.

    The index has the sums over all sessions. Those of a search are computed again after a change of the index.
    """
    search = structs.replace(search, words="", sort="")
    if search == Search():
        (found,) = reader.rows(f"SELECT sessions, {', '.join(_SUMMED)}, letters + rejections FROM sums")  # noqa: S608  constant text
        return _totals(found)
    return reader.remembered(search, lambda: _totals_of(reader, search))


_SUMMED: Final = ("turns", "requests", "fixes", "lossy", "added")


def _totals_of(reader: Reader, search: Search) -> Totals:
    where, given = _conditions(search)
    source = f"SELECT * FROM sessions AS s WHERE {where} ORDER BY last_ms DESC, id DESC LIMIT ?"  # noqa: S608  constant texts
    sums = ", ".join(f"sum({name})" for name in _SUMMED)
    sql = f"SELECT count(*), {sums}, sum(letters + rejections) FROM ({source})"  # noqa: S608  constant texts
    (found,) = reader.rows(sql, *given, _MOST + 1)
    totals = _totals(found)
    is_bounded = totals.sessions > _MOST
    return structs.replace(totals, sessions=min(totals.sessions, _MOST), bounded=is_bounded)


def _totals(found: Sequence[int | None]) -> Totals:
    names = ("sessions", *_SUMMED, "letters")
    counted = {name: count or 0 for name, count in zip(names, found, strict=True)}
    return Totals(**counted, bounded=False)


def _few(reader: Reader, search: Search, most: int) -> tuple[str, list[Any]] | None:
    """Tables that give the sessions of the rarest facet, or with the beginning of a name, where these are few."""
    sources: list[tuple[str, list[Any]]] = [
        ("facets AS f CROSS JOIN sessions AS s ON s.id = f.session AND f.kind = ? AND f.value = ?", [*facet])
        for facet in search.facets()
    ]
    if search.session:
        named = "(SELECT * FROM sessions INDEXED BY sqlite_autoindex_sessions_1 WHERE name >= ? AND name < ?) AS s"
        sources.append((named, [*_begins(search.session)]))
    counted = []
    for source, given in sources:
        sql = f"SELECT count(*) FROM (SELECT 1 FROM {source} LIMIT ?)"  # noqa: S608  constant texts
        counted.append((reader.rows(sql, *given, most)[0][0], source, given))
    count, source, given = min(counted, default=(most, "", []))
    return (source, given) if count < most else None


def _begins(prefix: str) -> tuple[str, str]:
    return prefix, prefix + "\U0010ffff"


def _conditions(search: Search) -> tuple[str, list[Any]]:
    conditions, given = ["name <> ''"], list[Any]()
    if search.session:
        conditions.append("name >= ? AND name < ?")
        given += _begins(search.session)
    for facet in search.facets():
        conditions.append("EXISTS (SELECT 1 FROM facets WHERE kind = ? AND value = ? AND session = s.id)")
        given += facet
    for name, condition in (("since", "last_ms >= ?"), ("until", "first_ms <= ?")):
        if text := getattr(search, name):
            conditions.append(condition)
            given.append(milliseconds(text, name))
    return " AND ".join(conditions), given


def _session_rows(reader: Reader, rows: Sequence[Any]) -> list[SessionRow]:
    facets = reader.rows(
        # Not by their kind, which has as many rows as sessions.
        "SELECT session, kind, value FROM facets INDEXED BY facets_of "
        "WHERE session IN (SELECT value FROM json_each(?)) AND (kind = 'target' OR (kind = 'is' AND value = 'parked') "
        "OR (kind = 'code' AND value IN (SELECT value FROM json_each(?)))) ORDER BY value",
        _json([row[0] for row in rows]),
        _json(sorted(TOLD_OF_ITEMS)),
    )
    by_session: dict[int, list[tuple[str, str]]] = {}
    for id_, kind, value in facets:
        by_session.setdefault(id_, []).append((kind, value))
    beginnings = _beginnings(reader, [row[0] for row in rows])
    found = []
    for id_, *values in rows:
        own = by_session.get(id_, [])
        targets = tuple(value for kind, value in own if kind == "target")
        marks = tuple(value for kind, value in own if kind == "code")
        known = dict(zip(SessionRow.__struct_fields__, values, strict=False))
        # As everywhere, a rejection is a dead letter too; the index keeps the two apart.
        known["letters"] += known["rejections"]
        model, words = beginnings.get(id_, ("", ""))
        known |= {"model": model, "first_words": words}
        found.append(SessionRow(**known, parked=("is", "parked") in own, targets=targets, marks=marks))
    return found


def _beginnings(reader: Reader, ids: Sequence[int]) -> dict[int, tuple[str, str]]:
    """Return the model and the first words of sessions."""
    rows = reader.rows(
        # For each session its own index is read up to the limit.
        "SELECT e.session, e.kind, e.role, e.summary FROM json_each(?) AS wanted CROSS JOIN entries AS e ON e.place IN "
        "(SELECT place FROM entries WHERE session = wanted.value ORDER BY time_ms, place LIMIT ?) "
        "ORDER BY e.session, e.time_ms, e.place",
        _json(ids),
        _FIRST,
    )
    return {id_: _beginning([row[1:] for row in own]) for id_, own in groupby(rows, key=itemgetter(0))}


def _beginning(rows: Sequence[tuple[str, str, str]]) -> tuple[str, str]:
    """Return the model and the first words in the first entries of a session: kinds, roles and summaries."""
    model = next((summary for kind, _, summary in rows if kind == "opened"), "")
    asked = [summary for kind, role, summary in rows if kind == "turn" and role == "user" and summary]
    said = [summary for kind, _, summary in rows if kind in {"turn", "restored", COMPLETED} and summary]
    return model, next(iter(asked or said), "")


def _json(values: Sequence[int] | Sequence[str]) -> str:
    return msgspec.json.encode(values).decode()


def session(reader: Reader, name: str) -> SessionRow | None:
    found = reader.rows(f"SELECT {_COLUMNS} FROM sessions WHERE name = ?", name)  # noqa: S608  constant text
    return next(iter(_session_rows(reader, found)), None)


def _with_words(reader: Reader, search: Search, after: str, limit: int) -> Page:
    wanted = match_of(search.words)
    if not wanted:
        return Page([], "")
    # A walk sees the state at its beginning: a session is at the place of its newest match of that time.
    top, below = read_cursor(after) if after else (_newest(reader), 1 << 62)
    where, given = _conditions(search)
    sql = f"SELECT {_COLUMNS} FROM sessions AS s WHERE id IN (SELECT value FROM json_each(?)) AND {where}"  # noqa: S608  constant texts
    matches = islice(_matches(reader, search, wanted, (top, below)), _MOST)
    found: list[tuple[int, Any]] = []
    seen, read = set[int](), 0
    while chunk := list(islice(matches, _CHUNK)):
        read += len(chunk)
        newest: dict[int, int] = {}
        for number, owner in chunk:
            newest.setdefault(int(owner[1:]), number)
        fitting = {row[0]: row for row in reader.rows(sql, _json([id_ for id_ in newest if id_ not in seen]), *given)}
        seen |= newest.keys()
        for id_, number in newest.items():
            again = f"{wanted} AND owner : s{id_}"
            if id_ in fitting and not (after and _matches_within(reader, again, below - 1, top)):
                found.append((number, fitting[id_]))
                if len(found) == limit:
                    return Page(_with_excerpts(reader, wanted, found), f"{top}-{number}")
        last = chunk[-1][0]
    return Page(_with_excerpts(reader, wanted, found), f"{top}-{last}" if read == _MOST else "")


def _with_excerpts(reader: Reader, wanted: str, found: Sequence[tuple[int, Any]]) -> list[SessionRow]:
    if not found:
        return []
    numbers = [number for number, _ in found]
    # One walk through the matches that were read already, and not one for each row.
    found_at = {
        number: {"hit": place, "excerpt": excerpt}
        for number, place, excerpt in reader.rows(
            "SELECT rowid, place, snippet(words, 2, char(2), char(3), '…', 24) FROM words WHERE words MATCH ? "
            "AND rowid >= ? AND rowid <= ? AND +rowid IN (SELECT value FROM json_each(?))",
            wanted,
            min(numbers),
            max(numbers),
            _json(numbers),
        )
    }
    rows = _session_rows(reader, [row for _, row in found])
    return [structs.replace(row, **found_at[number]) for number, row in zip(numbers, rows, strict=True)]


def _newest(reader: Reader) -> int:
    rows = reader.rows("SELECT rowid FROM words ORDER BY rowid DESC LIMIT 1")
    return int(rows[0][0]) if rows else 0


def _matches_within(reader: Reader, wanted: str, after: int, until: int) -> list[Any]:
    """Return the newest match after one number and up to another, or None."""
    return reader.rows(
        "SELECT rowid, owner FROM words WHERE words MATCH ? AND rowid > ? AND rowid <= ? ORDER BY rowid DESC LIMIT 1",
        wanted,
        after,
        until,
    )


def _matches(reader: Reader, search: Search, wanted: str, within: tuple[int, int]) -> Iterator[tuple[int, str]]:
    """Matches from the newest on, as number and owner; of few sessions only the newest of each."""
    top, below = within
    few = _few(reader, search, _FEW_WITH_WORDS)
    if few is None:
        sql = "SELECT rowid, owner FROM words WHERE words MATCH ? AND rowid <= ? AND rowid < ? ORDER BY rowid DESC"
        return reader.each(sql, wanted, top, below)
    source, own = few
    owners = [f"s{id_}" for (id_,) in reader.rows(f"SELECT s.id FROM {source}", *own)]  # noqa: S608  constant text
    newest = [row for owner in owners for row in _matches_within(reader, f"{wanted} AND owner : {owner}", 0, top)]
    return iter(sorted((row for row in newest if row[0] < below), reverse=True))
