"""Stores for the records of sessions that are not at work: in memory, compressed, or on disk.

With those on disk a restart reads only what came since. A directory holds one partition's records and how far its
changelog was read, both written in one step, and only once a commit has made them durable on the brokers: it may be
behind the changelog, never ahead of it. Whatever makes it doubtful has it thrown away, since the changelog can always
be read anew.
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

from pipeline.engine.runtime import StartupError
from pipeline.stages.base import NO_SESSION
from topics import DELETIONS_KEPT_MS

if TYPE_CHECKING:
    from rocksdict import CompactOptions, Rdict, WriteBatch

# Beside a session's bytes: two entries of a dictionary and two objects, as measured.
_SESSION_BYTES = 350

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(dict[bytes, bytes]).decode


class PackedRecords:
    """A store in memory.

    What was put last is kept as it came, up to ``loose_bytes``; what lies there longest is then compressed, a session
    at once, since a session's records repeat each other. A record that comes later stands beside its compressed session
    until it is compressed with it.
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
        """Its bytes of memory, roughly."""
        return self._loose_bytes + self._packed_bytes + _SESSION_BYTES * len(self._packed)

    def put(self, session: bytes, key: bytes, value: bytes | None) -> None:
        if session == NO_SESSION:
            return  # the stage remembers it
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
        """Compress what lies there longest, until half of the room is free."""
        while self._loose and self._loose_bytes > self._most_loose // 2:
            session = next(iter(self._loose))
            records = self.read(session)
            for key, value in self._loose.pop(session).items():
                self._loose_bytes -= len(value or key)
            self._packed_bytes -= len(self._packed.pop(session, b""))
            if records:
                packed = self._packed[session] = bytes(cramjam.zstd.compress(_pack(records)))
                self._packed_bytes += len(packed)


# A deletion that is not read within `delete.retention.ms` may be gone, and what it deleted would stay for ever.
_OLDEST_SECONDS = DELETIONS_KEPT_MS / 1000 / 2
# Each partition has a store of its own, so each has little: what it writes next, and what it read last.
_WRITE_BUFFER_BYTES = 4 << 20
_CACHE_BYTES = 4 << 20

# Longer than any session's id, whose length every other key begins with.
_PROGRESS = b"\xff\xff\xff\xffprogress"
# There while what was deleted has still to be erased from the files.
_TO_ERASE = b"\xff\xff\xff\xfferase"


class StoreError(OSError):
    """A store on disk cannot be used, or not any more; ``reason`` is a metric's label.

    ``locked`` (another process has it), ``damaged``, ``foreign`` (of another cluster, topic or pipeline), ``old``,
    ``outside`` (the changelog does not reach to where it was read), ``failed`` (it cannot be read or written).
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Belonging(Struct, frozen=True, array_like=True):
    """Whose records they are; of another changelog they are of no use. ``layout`` is that of the store itself."""

    topic_id: str
    group: str
    changelog: str
    partition: int
    layout: int = 1


class Progress(Struct, frozen=True, array_like=True):
    """How far a store is: the offset from which the changelog is to be read, and what it said there.

    ``written`` is in seconds since the epoch. ``position`` is the next source offset, None where nothing was committed.
    """

    belonging: Belonging
    offset: int
    position: int | None
    state_format: int
    written: float


class DiskRecords:
    """A store in a directory. Records that were put are written with ``write``, and read only behind it."""

    sessions = 0  # in memory; how many there are is not counted

    def __init__(
        self, directory: Path, belonging: Belonging, offsets: range, clock: Callable[[], float] = time.time
    ) -> None:
        """Open it, or make it where there is none. ``offsets`` are those that the changelog can be read from.

        Raises:
            StoreError: it cannot be used.
            StartupError: ``disk_missing`` (rocksdict is not installed).
        """
        self._directory = directory
        self._belonging = belonging
        self._clock = clock
        with _failing("damaged"):
            self._db = _open(directory)
        try:
            with _failing("damaged"):
                self.progress = self._read_progress(offsets)
                if self._db.get(_TO_ERASE) is not None:
                    self.erase_deleted()
        except StoreError:
            self._db.close()
            raise
        self._batch: WriteBatch | None = None

    def _read_progress(self, offsets: range) -> Progress | None:
        saved = self._db.get(_PROGRESS)
        if saved is None:
            return None
        progress = msgspec.msgpack.decode(saved, type=Progress)
        if progress.belonging != self._belonging:
            raise StoreError("foreign", "it is of another cluster, topic or pipeline")
        if self._clock() - progress.written > _OLDEST_SECONDS:
            raise StoreError("old", "what was deleted since it was written may not be told any more")
        if progress.offset not in offsets:
            raise StoreError("outside", "the changelog does not reach to where it was read")
        return progress

    @property
    def size(self) -> int:
        """Its bytes on disk, roughly."""
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
        """All records of a session.

        Raises:
            StoreError: ``damaged``.
        """
        prefix = _prefix(session)
        records = {}
        with _failing("damaged"):
            found = self._db.iter()
            found.seek(prefix)
            while found.valid() and (name := found.key()).startswith(prefix):
                records[name[len(prefix) :]] = found.value()
                found.next()
            found.status()  # an iterator ends where a block cannot be read
        return records

    def write(self, offset: int, position: int | None, state_format: int, *, erase: bool = False) -> None:
        """Write what was put, and that the changelog was read up to ``offset``; with ``erase``, note what is due then.

        Raises:
            StoreError: ``failed``.
        """
        batch, self._batch = self._batch or _new_batch(), None
        self.progress = Progress(self._belonging, offset, position, state_format, self._clock())
        batch.put(_PROGRESS, msgspec.msgpack.encode(self.progress))
        if erase:
            batch.put(_TO_ERASE, b"")
        with _failing("failed"):
            self._db.write(batch)

    def erase_deleted(self) -> None:
        """Leave nothing in the files of what was deleted; they are written anew, which takes as long as they are large.

        RocksDB keeps it in its log and its tables until they are next compacted, and names of what tables held in its
        manifest until it is next opened.

        Raises:
            StoreError: ``failed``.
        """
        with _failing("failed"):
            self._db.flush()
            self._db.compact_range(None, None, _all_tables())
            self._db.delete(_TO_ERASE)
            self._db.close()
            self._db = _open(self._directory)

    def close(self) -> None:
        with _failing("failed"):
            self._db.close()


def discard(directory: Path) -> None:
    """Throw a store away, whatever state it is in."""
    shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _failing(reason: str) -> Iterator[None]:
    """Turn what the library raises, which has no types of its own, into an error with this reason."""
    try:
        yield
    except (StoreError, StartupError):
        raise
    except Exception as error:
        locked = "lock" in str(error).lower()
        # Its words name files and offsets in them, no content.
        raise StoreError("locked" if locked else reason, str(error)) from error


def _prefix(session: bytes) -> bytes:
    return len(session).to_bytes(4, "big") + session


# Names of what RocksDB tells about itself.
_SIZES = ("rocksdb.total-sst-files-size", "rocksdb.cur-size-all-mem-tables")


def _open(directory: Path) -> Rdict:
    try:
        # An extra: who keeps no sessions on disk need not have it.
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
