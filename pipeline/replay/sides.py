"""Both sides of a comparison: their records by session, and the records that both would have without a change.

A replay covers its plan, a live pipeline the current content of its topics. Records that only one side can have are
left out; a session that cannot be compared is listed with the reason.
"""

from __future__ import annotations

import errno
import hashlib
import sqlite3
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import groupby
from operator import attrgetter, itemgetter
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TypeAlias

import cramjam
import msgspec
from msgspec import Struct, field

from reknit.pipeline.diff import LIMITED
from reknit.pipeline.diff.outputs import Published, texts
from reknit.pipeline.replay import Plan
from reknit.pipeline.stages.base import Record
from reknit.topics import AGENT_TURNS, HISTORY_FIXES, INPUTS, PROVIDER_EVENTS, PROVIDER_REQUESTS, SESSION_ITEMS
from reknit.topics import headers as names
from reknit.topics.headers import Headers

# The records of two sides, grouped by session on disk.
#
# A side's outputs are ordered by topic and partition, with the sessions mixed; the comparison needs one session at a
# time. So both sides are written into one SQLite file and read back in the order of sessions: SQLite sorts them, with a
# bounded cache and without a second copy in memory. Consecutive records of a session are one row, because a row costs
# more than a record. Large values are stored once for both sides, as most are equal, and are read again only if they
# differ.


_TABLES = """
    PRAGMA journal_mode = OFF;
    PRAGMA synchronous = OFF;
    PRAGMA cache_size = -65536;
    CREATE TABLE stretch (session BLOB, side INTEGER, records BLOB);
    CREATE TABLE large (digest BLOB PRIMARY KEY, value BLOB);
"""
# Smaller values are stored with their record; larger ones are compressed, once for both sides.
_LARGE_BYTES = 4096
# Records, and bytes of large values, that are written at once.
_RECORDS, _BYTES = 4000, 16 << 20


# A value of a session's by its key in an object store; None where it is not there.
Fetch: TypeAlias = Callable[[bytes, str], bytes | None]


class _Kept(Struct, array_like=True):
    topic: str
    partition: int
    offset: int
    headers: Headers
    digest: bytes
    value: bytes | None


class Both(NamedTuple):
    """A session's records on both sides."""

    session: bytes
    before: list[Published]
    after: list[Published]


class Spool(AbstractContextManager["Spool"]):
    """A file that is deleted when the block ends. It holds content of sessions: only its owner may read it.

    Records of sessions other than ``sessions`` are not stored; if none is named, those of all are. ``fetch`` reads
    values from each side's object store; without it such a value is missing.
    """

    def __init__(self, sessions: Collection[bytes] = (), fetch: Sequence[Fetch] = ()) -> None:
        self._wanted = sessions
        self._fetch = fetch
        self._directory = tempfile.TemporaryDirectory(prefix="reknit-diff-")
        self._database = sqlite3.connect(Path(self._directory.name) / "spool")
        self._database.executescript(_TABLES)
        self._waiting: dict[tuple[bytes, int], list[_Kept]] = {}
        self._count = 0
        self._large: list[tuple[bytes, bytes]] = []
        self._bytes = 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._database.close()
        self._directory.cleanup()

    def add_record(self, side: int, topic: str, record: Record) -> None:
        """Keep one record of a side; ``topic`` is the contract's name."""
        if self._wanted and record.key not in self._wanted:
            return
        value, digest = record.value, _digest(record)
        if value is not None and len(value) >= _LARGE_BYTES:
            self._large.append((digest, value))
            self._bytes += len(value)
            value = None
        kept = _Kept(topic, record.partition, record.offset, record.headers, digest, value)
        self._waiting.setdefault((record.key or b"", side), []).append(kept)
        self._count += 1
        if self._count >= _RECORDS or self._bytes >= _BYTES:
            self._write()

    def _write(self) -> None:
        try:
            self._write_rows()
        except sqlite3.OperationalError as error:
            raise OSError(
                errno.ENOSPC, f"what is to be compared cannot be kept: {error}", self._directory.name
            ) from None

    def _write_rows(self) -> None:
        known = self._database.execute
        new = {digest: value for digest, value in self._large if not known(_IS_KNOWN, (digest,)).fetchone()}
        packed = [(digest, bytes(cramjam.zstd.compress(value, level=1))) for digest, value in new.items()]
        self._database.executemany("INSERT INTO large VALUES (?, ?)", packed)
        stretches = ((session, side, _encode(kept)) for (session, side), kept in self._waiting.items())
        self._database.executemany("INSERT INTO stretch VALUES (?, ?, ?)", stretches)
        self._waiting, self._large, self._count, self._bytes = {}, [], 0, 0

    def sessions(self) -> Iterator[Both]:
        """Each session with its records; records without a key are those of the session without a name."""
        self._write()
        rows = self._database.execute("SELECT * FROM stretch ORDER BY session")
        for session, group in groupby(rows, key=itemgetter(0)):
            sides: tuple[list[_Kept], list[_Kept]] = [], []
            for _, side, records in group:
                sides[side].extend(_decode(records))
            yield Both(session, *(self._published(session, number, side) for number, side in enumerate(sides)))

    def _published(self, session: bytes, side: int, records: list[_Kept]) -> list[Published]:
        records.sort(key=attrgetter("topic", "partition", "offset"))
        return [
            Published(
                topic=each.topic,
                partition=each.partition,
                offset=each.offset,
                headers=each.headers,
                digest=each.digest,
                read=partial(self._large_value, session, side, each)
                if each.value is None
                else partial(_itself, each.value),
            )
            for each in records
        ]

    def _large_value(self, session: bytes, side: int, kept: _Kept) -> bytes | None:
        found: Any = self._database.execute("SELECT value FROM large WHERE digest = ?", (kept.digest,)).fetchone()
        if found is not None:
            return bytes(cramjam.zstd.decompress(found[0]))
        dataref = names.find_dataref(kept.headers)
        return None if dataref is None or not self._fetch else self._fetch[side](session, dataref)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[_Kept]).decode
_IS_KNOWN = "SELECT 1 FROM large WHERE digest = ?"


def _itself(value: bytes) -> bytes:
    return value


def _digest(record: Record) -> bytes:
    """A value's digest; of one in an object store what its header says, of none nothing."""
    if record.value is not None:
        return hashlib.sha256(record.value).hexdigest().encode()
    return (names.find_text(record.headers, names.BODY_SHA256) or "").encode()


# Which of them can be compared.


class Place(NamedTuple):
    """A record of an input."""

    topic: str
    partition: int
    offset: int


def input_of(topic: str, record: Published | Record) -> Place | None:
    """The record of an input that led to this one, where it says so; items and recorded turns do not."""
    if topic in {SESSION_ITEMS, AGENT_TURNS}:
        return None
    if topic == HISTORY_FIXES:
        try:
            fix = _FIX.decode((record.value if isinstance(record, Record) else record.read()) or b"")
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None  # the comparison reports it
        return Place(PROVIDER_EVENTS if fix.source else AGENT_TURNS, record.partition, fix.offset)
    said = dict(names.as_texts(record.headers))
    if topic == PROVIDER_REQUESTS:
        found = said.get(names.CAUSE, "").split("/")
    else:
        found = [said.get(name, "") for name in (names.ERROR_TOPIC, names.ERROR_PARTITION, names.ERROR_OFFSET)]
    if len(found) == 3 and found[1].isdecimal() and found[2].isdecimal():
        return Place(found[0], int(found[1]), int(found[2]))
    return None


class _Fix(Struct):
    offset: int = 0
    source: str = ""


_FIX = msgspec.json.Decoder(_Fix)

# A partition of an output.
Partition: TypeAlias = tuple[str, int]


class Side(Struct, kw_only=True):
    """The properties of one side that restrict the comparison.

    Attributes:
        name: the argument of the command.
        plan: its plan, if it is a replay.
        begins_late: the partitions of its outputs whose oldest records were deleted, each with the offset in each input
            up to which records may have led to one of them; all records of an input that is not named.
        went_on: the sessions that have events which only one side has read.
        at_least_once: whether its worker may publish a record again. A dry run never does.
    """

    name: str
    plan: Plan | None = None
    begins_late: dict[Partition, dict[str, int]] = field(default_factory=dict)
    went_on: set[bytes] = field(default_factory=set)
    at_least_once: bool = False


_WHY = {"expired": "its first record has expired", "limited": LIMITED}


class Coverage:
    """The part of two sides that can be compared."""

    def __init__(self, sides: tuple[Side, Side]) -> None:
        self._sides = sides
        self._plans = [side.plan for side in sides if side.plan is not None]
        self._ranged = [plan for plan in self._plans if plan.ranges is not None]
        self.at_least_once = sides[0].at_least_once, sides[1].at_least_once
        self._uncompared = {
            (each.session, each.topic): _WHY[each.why] for plan in self._plans for each in plan.uncompared
        }

    def takes(self, session: bytes) -> bool:
        """Return True if a session was asked for, by every plan."""
        return all(plan.takes(_text(session)) or self._is_forgotten(session) for plan in self._plans)

    def why_not(self, both: Both) -> Mapping[str, str]:
        """Return why the outputs of an input cannot be compared for a session, by input; usually empty."""
        session = _text(both.session)
        if self._is_forgotten(both.session):
            return dict.fromkeys(INPUTS, "forgotten")
        found = {topic: self._uncompared[session, topic] for topic in INPUTS if (session, topic) in self._uncompared}
        if any(both.session in side.went_on for side in self._sides):
            found.setdefault(PROVIDER_EVENTS, "its events went on, and only one side has read them")
        for side, own, others in zip(self._sides, both[1:], both[:0:-1], strict=True):
            if not side.begins_late:
                continue
            items, whole = self._first_items(both.session, own), self._first_items(both.session, others)
            # A run that begins with something else has lost its beginning.
            if any(
                (SESSION_ITEMS, first.partition) in side.begins_late and _said(items.get(run)) != _said(first)
                for run, first in whole.items()
            ):
                found.setdefault(PROVIDER_EVENTS, f"its items may have expired in {side.name or 'the live topics'}")
        return found

    def _first_items(self, session: bytes, records: Iterable[Published]) -> dict[str, Published]:
        """The first record of items of each run that both sides can have."""
        found: dict[str, Published] = {}
        for record in records:
            if record.topic == SESSION_ITEMS and self._covers_stream(session, record, set()):
                found.setdefault(texts(record).get(names.RUN, ""), record)
        return found

    def covered(self, both: Both, without: Iterable[str]) -> Both:
        """Return the records of a session that both sides can have, without the outputs of some inputs."""
        left_out = set(without)
        late = [side.begins_late for side in self._sides if side.begins_late]
        if not (left_out or late or self._plans):
            return both

        def covers(record: Published) -> bool:
            place = input_of(record.topic, record)
            if place is None:
                return self._covers_stream(both.session, record, left_out)
            floors = [past[record.topic, record.partition] for past in late if (record.topic, record.partition) in past]
            return (
                place.topic not in left_out
                and all(place.offset > floor.get(place.topic, place.offset) for floor in floors)
                and all(plan.covers(*place) for plan in self._plans)
            )

        return Both(both.session, list(filter(covers, both.before)), list(filter(covers, both.after)))

    def _covers_stream(self, session: bytes, record: Published, left_out: set[str]) -> bool:
        if PROVIDER_EVENTS in left_out and record.topic in {SESSION_ITEMS, AGENT_TURNS}:
            return False
        if record.topic == AGENT_TURNS or not self._ranged:
            # A recorded turn does not name its run.
            return not self._ranged
        run = texts(record).get(names.RUN)
        return all(plan.covers_run(_text(session), run) for plan in self._ranged)

    def _is_forgotten(self, session: bytes) -> bool:
        return any(plan.forgets(session) for plan in self._plans)


class _Item(Struct):
    type: str = ""
    item_id: str = ""
    seq: int = -1


_ITEM = msgspec.json.Decoder(_Item)


def _said(record: Published | None) -> _Item | None:
    """Return the identity of a record of items; its amount of content depends on how events were batched."""
    try:
        return None if record is None else _ITEM.decode(record.read() or b"")
    except msgspec.DecodeError:
        return None  # the comparison reports it


def _text(session: bytes) -> str:
    return session.decode("utf-8", "replace")


class _Written(Struct):
    type: str = ""
    origin: str = ""


_WRITTEN = msgspec.json.Decoder(_Written)


def is_of_worker(value: bytes | None) -> bool:
    """True if a record of agent.turns is one that the stream side wrote: a recorded turn, or a provider's answer."""
    try:
        written = _WRITTEN.decode(value or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return (written.type, written.origin) in {("turn.appended", "recorded"), ("provider.answered", "reknit")}
