"""The changes of a batch of entries in the index's tables: rows, words, and the sums of sessions and minutes."""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Final

import msgspec
from msgspec import UNSET, Struct, structs

from reknit.pipeline.viewer.index.entries import (
    COLUMNS,
    COMPLETED,
    DELTA,
    EVENTS,
    LETTERS,
    NUMBERS,
    PARKED,
    PARKED_FACET,
    RETRACTED,
    TOLD_OF_ITEMS,
    UNPARKED,
    WORDS,
    Entry,
    Sum,
    delta_entry,
    line,
    pack,
)
from reknit.topics import SESSION_ITEMS
from reknit.topics.items import ItemDelta

# Milliseconds that a counter covers: about a hundred of one kind cover a day, a week or a quarter.
MINUTE, TEN_MINUTES, HOUR, DAY = UNITS = (60_000, 600_000, 3_600_000, 86_400_000)

_COUNTED: Final = frozenset({"fix", "request", "turn", "turn/diagnosis", *LETTERS})
# The codes of an item until a later record completes or withdraws it.
_UNTIL_ENDED: Final = ("doubtful", "incomplete")


class _Delta(Struct):
    """Of a record of ``session.items``, what says whether its deltas are still needed."""

    text: str | None = None


_decode_delta_json = msgspec.json.Decoder(_Delta).decode
_decode_delta = msgspec.json.Decoder(ItemDelta).decode
_encode = msgspec.json.encode
_columns = attrgetter(*COLUMNS)
_encode_headers = msgspec.msgpack.encode


class _Run(Struct):
    """A batch's additions to one run of a session."""

    first: int
    last: int
    first_ms: int
    last_ms: int
    records: int = 0


class Batch:
    """Writes one batch, inside of the caller's transaction. ``number`` is that of the newest row of words."""

    def __init__(self, connection: sqlite3.Connection, number: int) -> None:
        self.number = number
        self._connection = connection
        self._ids: dict[str, int | None] = {}
        self._sums: dict[int, Sum] = {}
        self._runs: dict[tuple[int, str], _Run] = {}
        self._counters: Counter[tuple[int, int, str, str, str, str]] = Counter()
        # The new rows, by place: the entry and its words. An ended item's deltas become one of them.
        self._rows: dict[int, tuple[int, Entry, str]] = {}
        self._deltas: defaultdict[tuple[int, str], list[Entry]] = defaultdict(list)
        self._folded: dict[tuple[int, str], int] = {}
        # By item, where in this batch it counts until it ends differently; and the codes of which sessions have one
        # less.
        self._provisional: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
        self._uncounted: set[tuple[str, int]] = set()
        (self._last_id,) = connection.execute("SELECT coalesce(max(id), 0) FROM sessions").fetchone()
        # Of a session that is new in this batch nothing was written before.
        self._known_id = self._last_id

    def write(self, entries: Iterable[Entry], forgotten: Iterable[Entry] = ()) -> None:
        """Write entries; those of sessions that were forgotten are counted, and that is all."""
        for entry in entries:
            session = self._session(entry) if entry.kind else None
            if session is not None:
                self._count(entry)
                self._take(session, entry)
        for entry in forgotten:
            self._count(entry)
        self._write_entries()
        self._write_sums()

    def _session(self, entry: Entry) -> int | None:
        name = entry.session
        found = self._ids.get(name)
        if found is None:
            row = self._connection.execute("SELECT id FROM sessions WHERE name = ?", (name,)).fetchone()
            if row is not None:
                (found,) = row
            elif entry.kind == UNPARKED:
                return None
            else:
                found = self._last_id = self._last_id + 1
            self._ids[name] = found
            self._sums[found] = Sum(name, entry.time_ms)
        return found

    def _count(self, entry: Entry) -> None:
        kind = entry.kind
        if kind in _COUNTED:
            what = kind, entry.code, entry.target, entry.severity
        elif kind == EVENTS:
            what = kind, "", entry.target, ""
        elif entry.code in TOLD_OF_ITEMS:
            what = kind, entry.code, "", ""
        else:
            return
        for unit in UNITS:
            self._counters[unit, entry.time_ms // unit * unit, *what] += 1

    def _take(self, session: int, entry: Entry) -> None:
        kind, total = entry.kind, self._sums[session]
        if kind in {PARKED, UNPARKED}:
            total.parked = kind == PARKED
            return
        total.first_ms, total.last_ms = min(total.first_ms, entry.time_ms), max(total.last_ms, entry.time_ms)
        if entry.topic == SESSION_ITEMS:
            self._take_item(session, entry)
            return
        if kind == EVENTS:
            return
        self._rows[entry.number] = session, entry, entry.words
        total.include(entry)

    def _take_item(self, session: int, entry: Entry) -> None:
        kind, place = entry.kind, entry.number
        run = self._runs.get((session, entry.run))
        if run is None:
            run = self._runs[session, entry.run] = _Run(place, place, entry.time_ms, entry.time_ms)
        run.first, run.last = min(run.first, place), max(run.last, place)
        run.first_ms, run.last_ms = min(run.first_ms, entry.time_ms), max(run.last_ms, entry.time_ms)
        run.records += 1
        item = session, entry.item_id
        if kind == DELTA:
            self._deltas[item].append(entry)
            return
        words = entry.words
        if kind in {COMPLETED, RETRACTED} and entry.item_id:
            self._uncount(item)
        if entry.item_id and entry.code in _UNTIL_ENDED:
            self._provisional[item].append(place)
        # A withdrawn item stays readable: a page shows it as withdrawn.
        if kind in {COMPLETED, RETRACTED}:
            text = self._fold(item, entry)
            if text:
                words, entry = text, structs.replace(entry, summary=line(text))
        self._rows[place] = session, entry, words[:WORDS]
        self._sums[session].include(entry)

    def _uncount(self, item: tuple[int, str]) -> None:
        """Only an item's last end counts: one that is whole or withdrawn now is neither incomplete nor doubtful."""
        found: list[tuple[int, str, str]] = []
        for place in self._provisional.pop(item, ()):
            session, entry, words = self._rows[place]
            self._rows[place] = session, structs.replace(entry, code=""), words
            found.append((entry.time_ms, entry.kind, entry.code))
        if item[0] <= self._known_id:
            rows = self._connection.execute(
                "SELECT place, time_ms, kind, code FROM entries "
                "WHERE session = ? AND item_id = ? AND item_id <> '' AND code IN (?, ?)",
                (*item, *_UNTIL_ENDED),
            ).fetchall()
            self._connection.executemany("UPDATE entries SET code = '' WHERE place = ?", [row[:1] for row in rows])
            found += [row[1:] for row in rows]
        for time_ms, kind, code in found:
            self._uncounted.add((code, item[0]))
            for unit in UNITS:
                self._counters[unit, time_ms // unit * unit, kind, code, "", ""] -= 1

    def _fold(self, item: tuple[int, str], last: Entry) -> str:
        """Make one of an ended item's deltas, unless its last record has the text; what they add up to."""
        if _decode_delta_json(last.value or b"{}").text is not None:
            self._drop_deltas(item)
            return ""
        deltas = [*self._written(item), *self._deltas.pop(item, ())]
        if not deltas:
            return ""
        decoded = [_decode_delta(each.value or b"") for each in deltas]
        # As in the reducer: text before the end of the known text is a repetition.
        begin = end = decoded[0].at
        pieces = []
        for delta in decoded:
            known = end - delta.at
            if 0 <= known < len(delta.content):
                pieces.append(delta.content[known:])
                end += len(delta.content) - known
        text = "".join(pieces)
        whole = structs.replace(decoded[0], content=text, at=begin, raw=UNSET)
        self._drop_deltas(item)
        first = deltas[0]
        row = first.number, first.time_ms, first.run, 0, _encode(whole)
        self._folded[item] = first.number
        self._rows[first.number] = item[0], delta_entry(first.session, item[1], row), ""
        return text

    def _written(self, item: tuple[int, str]) -> Iterator[Entry]:
        """The deltas of an item from before those that wait, oldest first."""
        if item in self._folded:
            yield self._rows[self._folded[item]][1]
        elif item[0] <= self._known_id:
            rows = self._connection.execute(
                "SELECT place, time_ms, run, 0, value FROM deltas WHERE session = ?1 AND item_id = ?2 UNION ALL "
                "SELECT place, time_ms, run, packed, value FROM entries "
                "WHERE session = ?1 AND item_id = ?2 AND item_id <> '' AND kind = 'item/delta' ORDER BY place",
                item,
            ).fetchall()
            name = self._sums[item[0]].name
            yield from (delta_entry(name, item[1], row) for row in rows)

    def _drop_deltas(self, item: tuple[int, str]) -> None:
        self._deltas.pop(item, None)
        if item in self._folded:
            del self._rows[self._folded.pop(item)]
        if item[0] <= self._known_id:
            self._connection.execute("DELETE FROM deltas WHERE session = ? AND item_id = ?", item)
            self._connection.execute(
                "DELETE FROM entries WHERE session = ? AND item_id = ? AND item_id <> '' AND kind = 'item/delta'", item
            )

    def _write_entries(self) -> None:
        numbers = {}
        texts = []
        # Numbered by time, for the newest matches of a search are shown first.
        worded = [row for row in self._rows.items() if row[1][2]]
        for place, (session, _, words) in sorted(worded, key=lambda row: (row[1][1].time_ms, row[0])):
            self.number += 1
            numbers[place] = self.number
            texts.append((self.number, place, f"s{session}", words))
        self._connection.executemany("INSERT INTO words (rowid, place, owner, text) VALUES (?, ?, ?, ?)", texts)
        self._connection.executemany(
            f"INSERT INTO entries VALUES ({', '.join('?' * (6 + len(COLUMNS)))})",  # noqa: S608  as many marks as columns
            [
                (
                    place,
                    session,
                    numbers.get(place),
                    *_columns(entry),
                    _encode_headers(entry.headers) if entry.headers else None,
                    *pack(entry.value, always=entry.kind == DELTA),
                )
                for place, (session, entry, _) in self._rows.items()
            ],
        )
        self._connection.executemany(
            "INSERT INTO deltas VALUES (?, ?, ?, ?, ?, ?)",
            [
                (*item, entry.number, entry.time_ms, entry.run, entry.value)
                for item, entries in self._deltas.items()
                for entry in entries
            ],
        )

    def _write_sums(self) -> None:
        added = ", ".join(f"{name} = {name} + excluded.{name}" for name in NUMBERS)
        self._connection.executemany(
            f"INSERT INTO sessions VALUES ({', '.join('?' * (4 + len(NUMBERS)))}) ON CONFLICT (id) DO UPDATE SET "  # noqa: S608  constant text
            f"first_ms = min(first_ms, excluded.first_ms), last_ms = max(last_ms, excluded.last_ms), {added}",
            [(id_, each.name, each.first_ms, each.last_ms, *each.numbers) for id_, each in self._sums.items()],
        )
        self._connection.executemany(
            "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
            "first = min(first, excluded.first), "
            "last = max(last, excluded.last), first_ms = min(first_ms, excluded.first_ms), "
            "last_ms = max(last_ms, excluded.last_ms), records = records + excluded.records",
            [(*key, run.first, run.last, run.first_ms, run.last_ms, run.records) for key, run in self._runs.items()],
        )
        found = [(*facet, id_) for id_, each in self._sums.items() for facet in each.facets]
        found += [(*PARKED_FACET, id_) for id_, each in self._sums.items() if each.parked]
        self._connection.executemany("INSERT OR IGNORE INTO facets VALUES (?, ?, ?)", found)
        self._connection.executemany(
            "DELETE FROM facets WHERE kind = ? AND value = ? AND session = ?",
            [(*PARKED_FACET, id_) for id_, each in self._sums.items() if each.parked is False],
        )
        self._connection.executemany(
            "DELETE FROM facets WHERE kind = 'code' AND value = ?1 AND session = ?2 "
            "AND NOT EXISTS (SELECT 1 FROM entries WHERE session = ?2 AND code = ?1)",
            self._uncounted,
        )
        self._write_counters()

    def _write_counters(self) -> None:
        self._connection.executemany(
            "INSERT INTO counters VALUES (?, ?, ?, ?, ?, ?, ?) "
            "ON CONFLICT DO UPDATE SET count = count + excluded.count",
            [(*key, count) for key, count in self._counters.items() if count > 0],
        )
        # Of a time whose counters were dropped there is nothing left to take away from.
        key_is = "WHERE (unit, since_ms, kind, code, target, severity) = (?, ?, ?, ?, ?, ?)"
        fewer = [(count, *key) for key, count in self._counters.items() if count < 0]
        self._connection.executemany(f"UPDATE counters SET count = count + ? {key_is}", fewer)  # noqa: S608  constant
        self._connection.executemany(f"DELETE FROM counters {key_is} AND count <= 0", [key for _, *key in fewer])  # noqa: S608  constant
