"""The records of two sides, grouped by session on disk.

A side's outputs stand topic by topic and partition by partition, a session's records among all others; compared is one
session at a time. So both sides are written into one SQLite file and read back in the order of sessions: the sort is
SQLite's, which needs a bounded cache and no second copy in memory. What comes of a session together is one row: a row
costs more than a record. Large values are kept once for both sides, as most are equal, and are read again only where
they differ.
"""

from __future__ import annotations

import errno
import hashlib
import sqlite3
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import groupby
from operator import attrgetter, itemgetter
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TypeAlias

import cramjam
import msgspec
from msgspec import Struct

from pipeline.diff.outputs import Published
from pipeline.stages.base import Headers, Record
from topics import headers as names

_TABLES = """
    PRAGMA journal_mode = OFF;
    PRAGMA synchronous = OFF;
    PRAGMA cache_size = -65536;
    CREATE TABLE stretch (session BLOB, side INTEGER, records BLOB);
    CREATE TABLE large (digest BLOB PRIMARY KEY, value BLOB);
"""
# Smaller values stand beside their record; larger ones are compressed, once for both sides.
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
    """A file that is gone when the block ends. What it holds is content of sessions: only its owner may read it.

    Records of other sessions than ``sessions`` are not kept; where none is named, those of all are. ``fetch`` reads
    what stands in each side's object store; without it such a value is not there.
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
    return dict(record.headers).get(names.BODY_SHA256, b"")
