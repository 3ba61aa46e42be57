"""The records of two sides, grouped by session on disk.

A side's outputs stand topic by topic and partition by partition, a session's records among all others; compared is one
session at a time. So both sides are written into one SQLite file and read back in the order of sessions: the sort is
SQLite's, which needs a bounded cache and no second copy in memory. Values are kept once for both sides, as most are
equal, and are read again only where they differ.
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
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TypeAlias

import cramjam
import msgspec

from pipeline.diff.outputs import Published
from pipeline.stages.base import Headers, Record
from topics import headers as names

_TABLES = """
    PRAGMA journal_mode = OFF;
    PRAGMA synchronous = OFF;
    PRAGMA cache_size = -65536;
    CREATE TABLE record (
        session BLOB, side INTEGER, topic TEXT, partition INTEGER, "offset" INTEGER, headers BLOB, digest BLOB,
        value BLOB
    );
    CREATE TABLE large (digest BLOB PRIMARY KEY, value BLOB);
"""
# Smaller values stand in their record's row; larger ones are compressed, once for both sides.
_LARGE_BYTES = 4096
# Rows, and bytes of large values, that are written at once.
_ROWS, _BYTES = 1000, 16 << 20


# A value of a session's by its key in an object store; None where it is not there.
Fetch: TypeAlias = Callable[[bytes, str], bytes | None]


class _Row(NamedTuple):
    session: bytes
    side: int
    topic: str
    partition: int
    offset: int
    headers: bytes
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
        self._rows: list[_Row] = []
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
        headers = msgspec.msgpack.encode(record.headers)
        self._rows.append(_Row(record.key or b"", side, topic, record.partition, record.offset, headers, digest, value))
        if len(self._rows) >= _ROWS or self._bytes >= _BYTES:
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
        self._database.executemany("INSERT INTO record VALUES (?, ?, ?, ?, ?, ?, ?, ?)", self._rows)
        self._rows, self._large, self._bytes = [], [], 0

    def sessions(self) -> Iterator[Both]:
        """Each session with its records; records without a key are those of the session without a name."""
        self._write()
        rows = self._database.execute('SELECT * FROM record ORDER BY session, side, topic, partition, "offset"')
        for session, group in groupby(map(_Row._make, rows), key=lambda row: row.session):
            both = Both(session, [], [])
            for row in group:
                (both.after if row.side else both.before).append(self._published(row))
            yield both

    def _published(self, row: _Row) -> Published:
        headers = _HEADERS.decode(row.headers)
        return Published(
            topic=row.topic,
            partition=row.partition,
            offset=row.offset,
            headers=headers,
            digest=row.digest,
            read=partial(self._large_value, row, headers) if row.value is None else partial(_itself, row.value),
        )

    def _large_value(self, row: _Row, headers: Headers) -> bytes | None:
        found: Any = self._database.execute("SELECT value FROM large WHERE digest = ?", (row.digest,)).fetchone()
        if found is not None:
            return bytes(cramjam.zstd.decompress(found[0]))
        dataref = names.find_dataref(headers)
        return None if dataref is None or not self._fetch else self._fetch[row.side](row.session, dataref)


_HEADERS = msgspec.msgpack.Decoder(Headers)
_IS_KNOWN = "SELECT 1 FROM large WHERE digest = ?"


def _itself(value: bytes) -> bytes:
    return value


def _digest(record: Record) -> bytes:
    """A value's digest; of one in an object store what its header says, of none nothing."""
    if record.value is not None:
        return hashlib.sha256(record.value).hexdigest().encode()
    return dict(record.headers).get(names.BODY_SHA256, b"")
