"""The index: one SQLite file with the content of the topics that pages and searches need.

One process writes it, batch by batch: entries, their sums, and the read position of each partition are in one
transaction, so after a ``kill -9`` the next process continues after the last whole batch. Threads read concurrently.

Records are stored under their place as one number: so a repeated one is the same row, and records that a topic has
deleted are a range of rows. The words are in an FTS5 table with a text of its own: without one, SQLite before 3.43
(``contentless_delete``) can delete only by the old words, and an external one would store them as well. Its rows are
numbered in the order of writing, so the newest matches are read first and reading stops once a page is full.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, Final, Self, TypeVar

from reknit.pipeline.errors import InputError, ReknitError
from reknit.pipeline.viewer.index.batch import Batch
from reknit.pipeline.viewer.index.entries import ADDING, FORGOTTEN, LETTERS, Entry, place_number, recount
from reknit.topics import DAY_MS, MARKER_DAYS, SESSION_ITEMS

_VERSION = 2
ITEMS: Final = place_number(SESSION_ITEMS, 0, 0)

_TABLES = """
    CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE positions (
        topic TEXT, partition INTEGER, next INTEGER NOT NULL, first INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY (topic, partition)
    ) WITHOUT ROWID;
    CREATE TABLE sessions (
        id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, first_ms INTEGER NOT NULL, last_ms INTEGER NOT NULL,
        turns INTEGER NOT NULL DEFAULT 0, requests INTEGER NOT NULL DEFAULT 0, fixes INTEGER NOT NULL DEFAULT 0,
        lossy INTEGER NOT NULL DEFAULT 0, letters INTEGER NOT NULL DEFAULT 0, rejections INTEGER NOT NULL DEFAULT 0,
        added INTEGER NOT NULL DEFAULT 0
    );
    CREATE INDEX sessions_latest ON sessions (last_ms, id);
    CREATE INDEX sessions_first ON sessions (first_ms);
    CREATE TABLE entries (
        place INTEGER PRIMARY KEY, session INTEGER NOT NULL, number INTEGER, time_ms INTEGER NOT NULL,
        kind TEXT NOT NULL, role TEXT, turn INTEGER, target TEXT, code TEXT, severity TEXT, producer TEXT,
        request_id TEXT, run TEXT, item_id TEXT, origin TEXT, cause TEXT, summary TEXT, size INTEGER NOT NULL,
        headers BLOB, packed INTEGER, value BLOB
    );
    CREATE INDEX entries_timeline ON entries (session, time_ms, kind);
    CREATE INDEX entries_item ON entries (session, item_id) WHERE item_id <> '';
    CREATE INDEX entries_request ON entries (request_id) WHERE kind = 'request';
    CREATE INDEX entries_cause ON entries (cause) WHERE cause <> '';
    CREATE TABLE deltas (
        session INTEGER, item_id TEXT, place INTEGER, time_ms INTEGER NOT NULL, run TEXT, value BLOB NOT NULL,
        PRIMARY KEY (session, item_id, place)
    ) WITHOUT ROWID;
    CREATE TABLE runs (
        session INTEGER, run TEXT, first INTEGER NOT NULL, last INTEGER NOT NULL, first_ms INTEGER NOT NULL,
        last_ms INTEGER NOT NULL, records INTEGER NOT NULL, PRIMARY KEY (session, run)
    ) WITHOUT ROWID;
    CREATE TABLE facets (kind TEXT, value TEXT, session INTEGER, PRIMARY KEY (kind, value, session)) WITHOUT ROWID;
    CREATE INDEX facets_of ON facets (session);
    CREATE TABLE counters (
        unit INTEGER, since_ms INTEGER, kind TEXT, code TEXT, target TEXT, severity TEXT, count INTEGER NOT NULL,
        PRIMARY KEY (unit, since_ms, kind, code, target, severity)
    ) WITHOUT ROWID;
    CREATE TABLE forgotten (digest BLOB PRIMARY KEY, time_ms INTEGER NOT NULL) WITHOUT ROWID;
    CREATE VIRTUAL TABLE words USING fts5 (
        place UNINDEXED, owner, text, tokenize = "unicode61 remove_diacritics 2"
    );
    INSERT INTO words (words, rank) VALUES ('hashsize', 33554432);
"""
_MORE = f"""
    CREATE INDEX entries_letter ON entries (time_ms) WHERE kind IN {LETTERS};
    CREATE INDEX entries_items ON entries (session) WHERE place >= {ITEMS};
"""
# The sums over all sessions with a name, in one row. Triggers update it, so a list reads it without a scan.
_SUMMED = ("turns", "requests", "fixes", "lossy", "added", "letters", "rejections")
_SUM = ", ".join(f"coalesce(sum({name}), 0)" for name in _SUMMED)
_SUMS = f"""
    CREATE TABLE sums (sessions INTEGER NOT NULL, {", ".join(f"{name} INTEGER NOT NULL" for name in _SUMMED)});
    INSERT INTO sums SELECT count(*), {_SUM} FROM sessions WHERE name <> '';
    CREATE TRIGGER sums_insert AFTER INSERT ON sessions WHEN NEW.name <> '' BEGIN
        UPDATE sums SET sessions = sessions + 1, {", ".join(f"{name} = {name} + NEW.{name}" for name in _SUMMED)};
    END;
    CREATE TRIGGER sums_update AFTER UPDATE ON sessions WHEN NEW.name <> '' BEGIN
        UPDATE sums SET {", ".join(f"{name} = {name} + NEW.{name} - OLD.{name}" for name in _SUMMED)};
    END;
    CREATE TRIGGER sums_delete AFTER DELETE ON sessions WHEN OLD.name <> '' BEGIN
        UPDATE sums SET sessions = sessions - 1, {", ".join(f"{name} = {name} - OLD.{name}" for name in _SUMMED)};
    END;
    PRAGMA user_version = {_VERSION};
"""  # noqa: S608  constant texts
# Version 1 had neither the sums nor the fixes that added content.
_IS_ADDING = f"code IN ({', '.join(repr(code) for code in sorted(ADDING))})"
_FROM_1 = f"""
    ALTER TABLE sessions ADD COLUMN added INTEGER NOT NULL DEFAULT 0;
    UPDATE sessions SET added = (
        SELECT count(*) FROM entries AS e
        WHERE e.session = sessions.id AND kind = 'fix' AND severity = 'lossy' AND {_IS_ADDING}
    ) WHERE lossy > 0;
    INSERT OR IGNORE INTO facets SELECT 'severity', iif({_IS_ADDING}, 'added', 'lost'), session FROM entries
    WHERE kind = 'fix' AND severity = 'lossy' AND session IN (SELECT id FROM sessions WHERE lossy > 0);
"""  # noqa: S608  constant texts
# Tables that an index of an earlier build lacks. ``newest`` has the time of a topic's newest record, ``losses`` the
# offsets of inputs that retention removed before they were processed.
_ADDED = """
    CREATE TABLE IF NOT EXISTS newest (topic TEXT PRIMARY KEY, time_ms INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS losses (
        topic TEXT, partition INTEGER, first INTEGER, next INTEGER NOT NULL, seen_ms INTEGER NOT NULL,
        PRIMARY KEY (topic, partition, first)
    ) WITHOUT ROWID;
"""
# A forgotten session's file pages are overwritten. Losing the machine's power may cost the last batches, which are read
# again, as their positions go with them.
_SETTINGS = """
    PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA secure_delete = ON; PRAGMA temp_store = MEMORY;
    PRAGMA cache_size = -131072; PRAGMA wal_autocheckpoint = 8192; PRAGMA journal_size_limit = 67108864;
"""
# Pages that are overwritten in one step after a session was forgotten; a merge without work changes one row.
_PAGES, _IDLE_MERGE = 500, 2
_READING = "PRAGMA query_only = ON; PRAGMA temp_store = MEMORY; PRAGMA mmap_size = 1073741824;"


class IndexFileError(ReknitError):
    """The index cannot be used: ``index_in_use``, ``index_foreign``, ``index_version``, ``index_damaged``."""

    fault = "caller"


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError) and "malformed" not in str(error):
            words = f"{path} cannot be used: {error}"
        else:
            words = f"{path} is damaged, or no index ({error}). Start once with --rebuild to fill it from the topics."
        raise IndexFileError("index_damaged", words) from error


# How long a computed value is used while the index does not change, and the maximum number of values.
_REMEMBERED_SECONDS, _MOST_REMEMBERED = 60.0, 100
T = TypeVar("T")


class StoppedError(Exception):
    """A read was stopped from another thread."""


class Stop:
    """Ends what one call reads, from another thread: the statement that runs, and every later one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_set = False
        self._running: sqlite3.Connection | None = None

    def set(self) -> None:
        with self._lock:
            self._is_set = True
            if self._running is not None:
                self._running.interrupt()

    @contextmanager
    def ends(self, connection: sqlite3.Connection) -> Iterator[None]:
        """Let ``set`` interrupt this connection for as long as the block runs.

        Raises:
            StoppedError: it was set.
        """
        with self._lock:
            if self._is_set:
                raise StoppedError
            # Rows of one statement are read between the others of a call.
            outer, self._running = self._running, connection
        try:
            yield
        except sqlite3.OperationalError as error:
            if self._is_set:
                raise StoppedError from error
            raise
        finally:
            # Under the lock, so that no later call on this connection is interrupted.
            with self._lock:
                self._running = outer


# The stop of the current call; the pool that runs the call sets it.
STOP: Final[ContextVar[Stop | None]] = ContextVar("STOP", default=None)


class Reader:
    """Reads the index from any thread, each with a connection of its own.

    Raises:
        StoppedError: the current call's ``Stop`` was set.
        InputError: ``bad_value``, where SQLite cannot take a value, such as an integer beyond 64 bits.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._own = threading.local()
        self._revision = 0
        self._remembered: dict[Hashable, tuple[int, float, Any]] = {}

    def changed(self) -> None:
        """Note that the index has changed, so what is remembered is computed again."""
        self._revision += 1

    def remembered(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return a value that depends on the index alone; it is computed again after a change of the index.

        A search with a relative time has another result later, so no value is older than a minute.
        """
        revision, now = self._revision, time.monotonic()
        known = self._remembered.get(key)
        if known is not None and known[0] == revision and now - known[1] < _REMEMBERED_SECONDS:
            found: T = known[2]
            return found
        found = compute()
        if len(self._remembered) >= _MOST_REMEMBERED:
            self._remembered.clear()
        self._remembered[key] = revision, now, found
        return found

    def rows(self, sql: str, *given: object) -> list[Any]:
        with self._reading() as connection:
            return connection.execute(sql, given).fetchall()

    def each(self, sql: str, *given: object) -> Iterator[Any]:
        """Yield the rows one by one; a caller that stops early has read no more."""
        with self._reading() as connection:
            # Not `yield from`, which closes the cursor: by then the connection may be closed.
            for row in connection.execute(sql, given):  # noqa: UP028  so
                yield row

    @contextmanager
    def consistent(self) -> Iterator[None]:
        """Let all reads of this thread in the block see the index in one state. Blocks can be nested.

        The index makes one record of an item's pieces when the item ends. Two reads with such a write between them
        could miss both the pieces and that record.
        """
        with self._reading() as connection:
            if connection.in_transaction:
                yield
                return
            connection.execute("BEGIN")
            try:
                yield
            finally:
                with suppress(sqlite3.Error):
                    connection.execute("COMMIT")

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        stop = STOP.get()
        with _readable(self._path):
            connection = self._connection()
            try:
                with nullcontext() if stop is None else stop.ends(connection):
                    yield connection
            except StoppedError:
                # A statement that is still open would pass the interrupt on to those of the thread's next call.
                self._own.connection = None
                connection.close()
                raise
            except (OverflowError, UnicodeEncodeError) as error:
                raise InputError("bad_value", "a number or a text that no record can have") from error

    def _connection(self) -> sqlite3.Connection:
        found: sqlite3.Connection | None = getattr(self._own, "connection", None)
        if found is None:
            found = self._own.connection = sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=ro", uri=True)
            found.executescript(_READING)
        return found


class Index:
    """The writer's side; all other code uses ``reader``. Calls may come from any thread; one runs at a time."""

    def __init__(self, path: Path, connection: sqlite3.Connection, lock: IO[bytes]) -> None:
        self.path = path
        self.reader = Reader(path)
        self._connection = connection
        self._lock_file = lock
        self._busy = threading.Lock()
        rows = connection.execute("SELECT topic, partition, next FROM positions")
        self._next = {(topic, partition): after for topic, partition, after in rows}
        self._newest = dict(connection.execute("SELECT topic, time_ms FROM newest"))
        (self._number,) = connection.execute("SELECT coalesce(max(rowid), 0) FROM words").fetchone()
        self._forgotten = dict(connection.execute("SELECT digest, time_ms FROM forgotten"))
        # Forgotten data may still be in files: "" for no, otherwise the state of overwriting it.
        self._erase = dict(connection.execute("SELECT name, value FROM about")).get("erase", "")

    @classmethod
    def open(cls, path: Path, *, cluster: str, prefix: str, rebuild: bool = False) -> Self:
        """Open the index of a pipeline, or create it.

        Args:
            path: the file; only its owner may read it.
            cluster: the id of the Kafka cluster.
            prefix: the pipeline's.
            rebuild: delete the existing index; it is filled from the topics again.

        Raises:
            IndexFileError: another process writes it, it belongs to another pipeline or version, or it is damaged.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = _locked(path)
        try:
            if rebuild:
                for end in ("", "-wal", "-shm"):
                    Path(f"{path}{end}").unlink(missing_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            path.chmod(0o600)
            with _readable(path):
                connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
                connection.executescript(_SETTINGS)
                _bind(connection, path, {"cluster": cluster, "prefix": prefix})
                return cls(path, connection, lock)
        except BaseException:
            lock.close()
            raise

    def close(self) -> None:
        with self._busy:
            self._connection.close()
            self._lock_file.close()

    @property
    def positions(self) -> dict[tuple[str, int], int]:
        """The offset to read next, by topic and partition."""
        return dict(self._next)

    @property
    def newest(self) -> dict[str, int]:
        """The time of the newest record that was read, by topic, in milliseconds since 1970."""
        return dict(self._newest)

    def write(self, entries: Iterable[Entry], positions: Mapping[tuple[str, int], int]) -> list[Entry]:
        """Write entries, and that everything before these positions was read, or nothing of it.

        Entries of a partition come in its order. Those that were written before are passed over, and so are those of
        sessions that were forgotten.

        Returns:
            The entries that are new, of sessions that were forgotten only that they were.
        """
        with self._busy, self._transaction() as connection:
            ahead = dict(self._next)
            fresh = []
            for entry in entries:
                where = entry.topic, entry.partition
                if entry.offset >= ahead.get(where, 0):
                    ahead[where] = entry.offset + 1
                    fresh.append(entry)
            for where, after in positions.items():
                ahead[where] = max(after, ahead.get(where, 0))
            number = self._number
            ends = [at for at, entry in enumerate(fresh) if entry.kind == FORGOTTEN]
            # Earlier entries are written first, as if in a batch of their own, so they count with their later state.
            for begin, end in pairwise([0, *ends, len(fresh)]):
                part = fresh[begin:end]
                if part and part[0].kind == FORGOTTEN:
                    self._forget(connection, part[0].session, part[0].time_ms)
                erased = [entry for entry in part if self._is_forgotten(entry)] if self._forgotten else []
                batch = Batch(connection, number)
                batch.write([entry for entry in part if not self._is_forgotten(entry)] if erased else part, erased)
                number = batch.number
            newest = dict(self._newest)
            for entry in fresh:
                newest[entry.topic] = max(entry.time_ms, newest.get(entry.topic, entry.time_ms))
            later = [(topic, ms) for topic, ms in newest.items() if self._newest.get(topic) != ms]
            connection.executemany("INSERT OR REPLACE INTO newest VALUES (?, ?)", later)
            changed = [(*where, after) for where, after in ahead.items() if self._next.get(where) != after]
            connection.executemany(
                "INSERT INTO positions (topic, partition, next) VALUES (?, ?, ?) "
                "ON CONFLICT DO UPDATE SET next = excluded.next",
                changed,
            )
        self._next, self._number, self._newest = ahead, number, newest
        if not self._forgotten:
            return fresh
        return [entry for entry in fresh if entry.kind == FORGOTTEN or not self._is_forgotten(entry)]

    def _is_forgotten(self, entry: Entry) -> bool:
        since = self._forgotten.get(_digest(entry.session))
        # While workers remember this, they take no more records of the session; after that it may begin again.
        return since is not None and entry.time_ms <= since + MARKER_DAYS * DAY_MS

    def _forget(self, connection: sqlite3.Connection, session: str, time_ms: int) -> None:
        """Remove all that there is of a session, and what may still be read of it from before or soon after."""
        digest = _digest(session)
        self._forgotten[digest] = time_ms
        connection.execute("INSERT OR REPLACE INTO forgotten VALUES (?, ?)", (digest, time_ms))
        found = connection.execute("SELECT id FROM sessions WHERE name = ?", (session,)).fetchone()
        if found is not None:
            numbers = "SELECT number FROM entries WHERE session = ? AND number IS NOT NULL"
            connection.execute(f"DELETE FROM words WHERE rowid IN ({numbers})", found)  # noqa: S608  constant text
            for table in ("entries", "deltas", "runs", "facets"):
                connection.execute(f"DELETE FROM {table} WHERE session = ?", found)  # noqa: S608  constant text
            connection.execute("DELETE FROM sessions WHERE id = ?", found)
            self._erase = self._to_erase(connection, "all")

    @staticmethod
    def _to_erase(connection: sqlite3.Connection, what: str) -> str:
        connection.execute("INSERT OR REPLACE INTO about VALUES ('erase', ?)", (what,))
        return what

    def erase(self) -> bool:
        """Overwrite some forgotten data; return True if some is left.

        A deleted text's words are in the files of FTS5 until they are merged, which takes time proportional to the
        index, and a deleted row is in the write-ahead log until that is emptied, which needs a moment without readers.
        """
        if not self._erase:
            return False
        with self._busy, _readable(self.path):
            before = self._connection.total_changes
            # Negative, and first: everything becomes one segment, as with `optimize`, but in steps of this many pages.
            pages = -_PAGES if self._erase == "all" else _PAGES
            self._connection.execute("INSERT INTO words (words, rank) VALUES ('merge', ?)", (pages,))
            merged = self._connection.total_changes - before < _IDLE_MERGE
            self._erase = self._to_erase(self._connection, "rest")
            if merged:
                busy, *_ = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                self._erase = "rest" if busy else self._to_erase(self._connection, "")
        return bool(self._erase)

    def drop_before(self, topic: str, partition: int, offset: int, most: int = 5000) -> bool:
        """Remove records that a partition no longer has, in steps; return True if some are left."""
        first, end_place = place_number(topic, partition, 0), place_number(topic, partition, offset)
        within = (first, end_place)
        with self._busy, self._transaction() as connection:
            erased = connection.execute(
                "SELECT place, number, session FROM entries WHERE place >= ? AND place < ? LIMIT ?", (*within, most)
            ).fetchall()
            connection.executemany(
                "DELETE FROM words WHERE rowid = ?", [(number,) for _, number, _ in erased if number]
            )
            connection.executemany("DELETE FROM entries WHERE place = ?", [(place,) for place, _, _ in erased])
            touched = {session for _, _, session in erased}
            for table, last in (("deltas", "place"), ("runs", "last")):
                touched |= {
                    session
                    for (session,) in connection.execute(
                        f"DELETE FROM {table} WHERE {last} >= ? AND {last} < ? RETURNING session",  # noqa: S608  constant
                        within,
                    ).fetchall()
                }
            recount(connection, touched)
            connection.execute(
                "INSERT INTO positions VALUES (?, ?, ?, ?) "
                "ON CONFLICT DO UPDATE SET first = excluded.first, next = max(next, excluded.next)",
                (topic, partition, offset, offset),
            )
        self._next[topic, partition] = max(offset, self._next.get((topic, partition), 0))
        return len(erased) == most

    def note_loss(self, topic: str, partition: int, first: int, following: int, now_ms: int) -> None:
        """Keep that an input's offsets from ``first`` to before ``following`` were never processed.

        Retention may remove more while the worker's position is still ``first``, so the same loss may grow.
        """
        with self._busy, self._transaction() as connection:
            connection.execute(
                "INSERT INTO losses VALUES (?, ?, ?, ?, ?) "
                "ON CONFLICT DO UPDATE SET next = max(next, excluded.next), seen_ms = excluded.seen_ms",
                (topic, partition, first, following, now_ms),
            )

    def losses(self, since_ms: int) -> list[tuple[str, int, int, int, int]]:
        """Return the losses that ``note_loss`` kept since a time, the newest first."""
        sql = "SELECT topic, partition, first, next, seen_ms FROM losses WHERE seen_ms >= ? ORDER BY seen_ms DESC"
        return self.reader.rows(sql, since_ms)

    def drop_counters(self, unit: int, before_ms: int) -> None:
        """Remove the counters of a unit (its milliseconds) that end before a time."""
        with self._busy, self._transaction() as connection:
            connection.execute("DELETE FROM counters WHERE unit = ? AND since_ms < ?", (unit, before_ms - unit))

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with _readable(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")
            self.reader.changed()


def _digest(session: str) -> bytes:
    return sha256(session.encode()).digest()


def _locked(path: Path) -> IO[bytes]:
    """Return the open lock file next to an index; the kernel releases it when the process ends in any way."""
    lock = os.fdopen(os.open(f"{path}.lock", os.O_CREAT | os.O_RDWR, 0o600), "rb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise IndexFileError("index_in_use", f"{path} is written by another viewer; give this one its own") from error
    return lock


def _bind(connection: sqlite3.Connection, path: Path, about: Mapping[str, str]) -> None:
    """Make the tables of a new file; refuse one that was filled from elsewhere."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == 0 and not connection.execute("SELECT 1 FROM sqlite_master").fetchone():
        connection.executescript(f"BEGIN; {_TABLES} {_ADDED} {_MORE} {_SUMS} COMMIT;")
        connection.executemany("INSERT INTO about VALUES (?, ?)", about.items())
        return
    if version not in {1, _VERSION}:
        raise IndexFileError(
            "index_version", f"{path} has format {version}, this build {_VERSION}. Start once with --rebuild."
        )
    found = dict(connection.execute("SELECT name, value FROM about"))
    for name, value in about.items():
        if found.get(name) != value:
            raise IndexFileError(
                "index_foreign",
                f"{path} was filled from the {name} {found.get(name)!r}, not {value!r}. Name another file, or start "
                "once with --rebuild.",
            )
    connection.executescript(_ADDED)
    if version == 1:
        connection.executescript(f"BEGIN; {_FROM_1} {_SUMS} COMMIT;")
