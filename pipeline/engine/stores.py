"""Stores for the records of sessions that are not in use: in memory, compressed, or on disk.

With a store on disk a restart reads only newer records. A directory has one partition's records and the position in its
changelog. Both are written in one step, and only after a commit on the brokers, so the store may be older than the
changelog and never newer. Any suspect store is deleted, since the changelog can be read again.

RocksDB writes no log here. Its tables are written in order, and a table has the records and the position up to one
write. So a truncated store has fewer records, and never a later part without an earlier one. With RocksDB's log it
could: a truncated ``MANIFEST`` names fewer tables, and the log still has records after the missing tables. RocksDB
opened such a store without an error. After a kill, the changelog is read again from the last table on.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import cramjam
import msgspec
from msgspec import Struct

from reknit.pipeline.engine.runtime import StartupError
from reknit.pipeline.stages.base import NO_SESSION
from reknit.topics import DELETIONS_KEPT_MS
from reknit.topics.positions import UNMARKED, PositionMark

if TYPE_CHECKING:
    from rocksdict import CompactOptions, Rdict, WriteBatch, WriteOptions

# Measured overhead of a session: two entries of a dictionary and two objects.
_SESSION_BYTES = 350

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(dict[bytes, bytes]).decode


class PackedRecords:
    """A store in memory.

    Recent records are kept uncompressed, up to ``loose_bytes``. Then the oldest sessions are compressed, each as a
    whole, since a session's records repeat each other. A later record is kept next to its compressed session until it
    is compressed with it.
    """

    def __init__(self, loose_bytes: int) -> None:
        self._most_loose = loose_bytes
        self._packed: dict[bytes, bytes] = {}
        self._loose: dict[bytes, dict[bytes, bytes | None]] = {}
        self._loose_bytes = self._packed_bytes = 0

    @property
    def sessions(self) -> int:
        return len(self._packed) + len(self._loose.keys() - self._packed.keys())

    @property
    def size(self) -> int:
        """Approximate bytes of memory."""
        return self._loose_bytes + self._packed_bytes + _SESSION_BYTES * len(self._packed)

    def put(self, session: bytes, key: bytes, value: bytes | None) -> None:
        if session == NO_SESSION:
            return  # the stage has it in memory
        loose = self._loose.get(session)
        if loose is None:
            loose = self._loose[session] = {}
        if key in loose:
            self._loose_bytes -= len(loose[key] or key)
        loose[key] = value
        self._loose_bytes += len(value or key)
        if self._loose_bytes > self._most_loose:
            self._pack_oldest()

    def read(self, session: bytes) -> dict[bytes, bytes]:
        packed = self._packed.get(session)
        records: dict[bytes, bytes | None] = {} if packed is None else {**_unpack(cramjam.zstd.decompress(packed))}
        records |= self._loose.get(session, {})
        return {key: value for key, value in records.items() if value is not None}

    def _pack_oldest(self) -> None:
        """Compress the oldest records, until half of the room is free."""
        while self._loose and self._loose_bytes > self._most_loose // 2:
            session = next(iter(self._loose))
            records = self.read(session)
            for key, value in self._loose.pop(session).items():
                self._loose_bytes -= len(value or key)
            self._packed_bytes -= len(self._packed.pop(session, b""))
            if records:
                packed = self._packed[session] = bytes(cramjam.zstd.compress(_pack(records)))
                self._packed_bytes += len(packed)


# Kafka removes a tombstone after `delete.retention.ms`; a store that did not read it would keep the record for ever.
_OLDEST_SECONDS = DELETIONS_KEPT_MS / 1000 / 2
# Each partition has its own store, so buffers and caches are small.
_WRITE_BUFFER_BYTES = 4 << 20
_CACHE_BYTES = 4 << 20

# Longer than any session's id; every other key begins with the length of an id.
_PROGRESS = b"\xff\xff\xff\xffprogress"
# Exists while deleted records must still be erased from the files.
_TO_ERASE = b"\xff\xff\xff\xfferase"


class StoreError(OSError):
    """A store on disk is unusable; ``reason`` is a metric's label.

    ``locked`` (another process has it), ``damaged`` (its contents differ from what was written), ``foreign`` (of
    another cluster, topic or pipeline), ``old``, ``outside`` (its position is outside of the changelog), ``failed`` (it
    cannot be read or written).
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Belonging(Struct, frozen=True, array_like=True):
    """The changelog of the records; those of another changelog are useless. ``layout`` is the store's own format."""

    topic_id: str
    group: str
    changelog: str
    partition: int
    layout: int = 1


class Progress(Struct, frozen=True, array_like=True):
    """The progress of a store: the changelog offset to read from, and the values read before it.

    ``written`` is in seconds since the epoch. ``position`` is the next source offset, None if nothing was committed,
    and ``mark`` the mark of the position record.
    """

    belonging: Belonging
    offset: int
    position: int | None
    state_format: int
    written: float
    mark: PositionMark = UNMARKED


class DiskRecords:
    """A store in a directory. ``put`` records become readable with ``write``."""

    sessions = 0  # in memory; those on disk are not counted

    def __init__(
        self, directory: Path, belonging: Belonging, offsets: range, clock: Callable[[], float] = time.time
    ) -> None:
        """Open or create the store. ``offsets`` are the readable offsets of the changelog.

        Raises:
            StoreError: the store is unusable.
            StartupError: ``disk_missing`` (rocksdict is not installed).
        """
        self._directory = directory
        self._belonging = belonging
        self._clock = clock
        with _failing():
            self._db = _open(directory)
        self._batch: WriteBatch | None = None
        self._unlogged = _without_log()
        try:
            with _failing():
                self.progress = self._read_progress(offsets)
                if self._db.get(_TO_ERASE) is not None:
                    self.erase_deleted()
        except StoreError:
            self._db.close()
            raise

    def _read_progress(self, offsets: range) -> Progress | None:
        saved = self._db.get(_PROGRESS)
        if saved is None:
            return None
        try:
            progress = msgspec.msgpack.decode(saved, type=Progress)
        except msgspec.MsgspecError as error:
            raise StoreError("damaged", "how far it is cannot be read") from error
        if progress.belonging != self._belonging:
            raise StoreError("foreign", "it is of another cluster, topic or pipeline")
        if self._clock() - progress.written > _OLDEST_SECONDS:
            raise StoreError("old", "what was deleted since it was written may not be told any more")
        if progress.offset not in offsets:
            raise StoreError("outside", "the changelog does not reach to where it was read")
        return progress

    @property
    def size(self) -> int:
        """Approximate bytes on disk."""
        return sum(self._db.property_int_value(name) or 0 for name in _SIZES)

    def put(self, session: bytes, key: bytes, value: bytes | None) -> None:
        if self._batch is None:
            self._batch = _new_batch()
        name = _prefix(session) + key
        if value is None:
            self._batch.delete(name)
        else:
            self._batch.put(name, value)

    def read(self, session: bytes) -> dict[bytes, bytes]:
        """Return all records of a session.

        Raises:
            StoreError: ``damaged`` or ``failed``.
        """
        prefix = _prefix(session)
        records = {}
        with _failing():
            found = self._db.iter()
            try:
                found.seek(prefix)
                while found.valid() and (name := found.key()).startswith(prefix):
                    records[name[len(prefix) :]] = found.value()
                    found.next()
                found.status()  # an iterator ends at an unreadable block
            finally:
                del found  # an error refers to this frame, and a store with an iterator stays open and locked
        return records

    def write(
        self,
        offset: int,
        position: int | None,
        state_format: int,
        mark: PositionMark = UNMARKED,
        *,
        erase: bool = False,
    ) -> None:
        """Write the put records and the changelog offset; with ``erase``, note that deleted records must be erased.

        Raises:
            StoreError: ``failed``, or ``damaged``, found while tables were merged.
        """
        batch, self._batch = self._batch or _new_batch(), None
        self.progress = Progress(self._belonging, offset, position, state_format, self._clock(), mark)
        batch.put(_PROGRESS, msgspec.msgpack.encode(self.progress))
        if erase:
            batch.put(_TO_ERASE, b"")
        with _failing():
            self._db.write(batch, self._unlogged)

    def erase_deleted(self) -> None:
        """Erase deleted records from the files by rewriting them; the time depends on their size.

        RocksDB keeps deleted records in its log and its tables until the next compaction, and their keys in its
        manifest until it is opened again.

        Raises:
            StoreError: ``damaged`` or ``failed``; ``locked``, if another process opens it in between.
        """
        with _failing():
            self._db.flush()
            self._db.compact_range(None, None, _all_tables())
            self._db.delete(_TO_ERASE, self._unlogged)
            self._db.close()
            self._db = _open(self._directory)

    def close(self) -> None:
        with _failing():
            self._db.close()


def discard(directory: Path) -> None:
    """Delete a store in any condition."""
    shutil.rmtree(directory, ignore_errors=True)


# The start of RocksDB's status if this or another process has the lock of the directory. Paths and other errors may
# contain such words too ("block checksum mismatch"), but not at the start.
_LOCKED = ("IO error: While lock file: ", "IO error: lock hold by current process")
# A missing file is damage. Other refusals of the operating system are not; all other errors concern contents.
_MISSING, _REFUSED = "IO error: No such file or directory", "IO error: "


@contextmanager
def _failing() -> Iterator[None]:
    """Turn an error of the library, which has no error types, into one with a reason."""
    try:
        yield
    except (StoreError, StartupError):
        raise
    except Exception as error:
        said = str(error)  # it names files and offsets, no content
        raise StoreError(_reason(said), said) from error


def _reason(status: str) -> str:
    if status.startswith(_LOCKED):
        return "locked"
    return "failed" if status.startswith(_REFUSED) and not status.startswith(_MISSING) else "damaged"


def _prefix(session: bytes) -> bytes:
    return len(session).to_bytes(4, "big") + session


# Names of RocksDB's properties.
_SIZES = ("rocksdb.total-sst-files-size", "rocksdb.cur-size-all-mem-tables")


def _open(directory: Path) -> Rdict:
    try:
        # An optional dependency: only stores on disk need it.
        from rocksdict import BlockBasedOptions, Cache, DBCompressionType, Options, Rdict  # noqa: PLC0415  see above
    except ImportError as error:
        raise StartupError(
            "disk_missing", "sessions cannot be kept on disk without rocksdict: pip install 'reknit[disk]'"
        ) from error
    directory.mkdir(parents=True, exist_ok=True)
    options = Options(raw_mode=True)
    options.set_compression_type(DBCompressionType.zstd())
    options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
    options.set_keep_log_file_num(1)
    blocks = BlockBasedOptions()
    blocks.set_block_cache(Cache(_CACHE_BYTES))
    options.set_block_based_table_factory(blocks)
    return Rdict(str(directory), options=options)


def _all_tables() -> CompactOptions:
    from rocksdict import BottommostLevelCompaction, CompactOptions  # noqa: PLC0415  as above

    options = CompactOptions()
    options.set_bottommost_level_compaction(BottommostLevelCompaction.force())
    return options


def _new_batch() -> WriteBatch:
    from rocksdict import WriteBatch  # noqa: PLC0415  as above

    return WriteBatch(raw_mode=True)


def _without_log() -> WriteOptions:
    from rocksdict import WriteOptions  # noqa: PLC0415  as above

    options = WriteOptions()
    options.disable_wal = True  # type: ignore[method-assign, assignment]  # a property, unlike its stub
    return options
