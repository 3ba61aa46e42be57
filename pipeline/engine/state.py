"""What a partition keeps: its stage, the store of its sessions' records, and the changelog from which both are made.

The store is on disk (``disk``), or in memory, compressed.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import cramjam
import msgspec

from pipeline.engine.disk import Belonging, DiskRecords, StoreError, discard
from pipeline.engine.restore import restore
from pipeline.engine.runtime import log
from pipeline.stages.base import NO_SESSION, Live

if TYPE_CHECKING:
    from pipeline.engine.runtime import Runtime
    from pipeline.stages.base import Stage

# Beside a session's bytes: two entries of a dictionary and two objects, as measured.
_SESSION_BYTES = 350
# Of a partition's memory for sessions, the part that records may take which are not compressed yet.
_LOOSE = 1 / 8

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(dict[bytes, bytes]).decode


class PackedRecords:
    """A store in memory, for the records of sessions that are not at work.

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


class PartitionState:
    """A partition's stage and store. ``topic`` is the source's, a contract name."""

    def __init__(self, runtime: Runtime, topic: str, number: int) -> None:
        self._runtime = runtime
        runtime.open_partitions += 1
        self._place = (topic, number)
        self.stage: Stage = runtime.stages[topic](number)
        self._changelog = runtime.prefix + self.stage.state_topic
        self._directory = runtime.state_dir / "sessions" / f"{self._changelog}-{number}"
        # Until the partition comes again: on disk nobody could tell which commits came between.
        self._on_disk = runtime.state.store == "disk" and runtime.exactly_once
        self._disk: DiskRecords | None = None
        self._store: PackedRecords | DiskRecords = PackedRecords(0)
        self.format = runtime.state.format

    async def read(self) -> int | None:
        """Make the stage anew as the changelog has it; the next source offset, None where nothing was committed.

        Raises:
            EngineError: as ``restore``.
        """
        runtime, (topic, number) = self._runtime, self._place
        self.stage = runtime.stages[topic](number)
        async with runtime.restores:
            restored = await (runtime.read_changelog or restore)(
                runtime.connection,
                self._changelog,
                number,
                self.stage.restore,
                committed_only=runtime.exactly_once,
                patience=runtime.tuning.start_seconds,
                start=self._choose_store,
                on_progress=self._write_progress,
            )
        runtime.metrics.on_restored(topic, number, restored.records, restored.seconds)
        told = (topic, number, restored.records, restored.seconds)
        log.info("%s partition %d: %d records of state restored in %.1f s", *told)
        known = self._disk and self._disk.progress
        position, found = (known.position, known.state_format) if known else (restored.position, restored.state_format)
        self.format = max(found, runtime.state.format)
        self.stage.use_format(self.format)
        # What was forgotten meanwhile, or just before the end, was deleted but may still stand in the store's files.
        live = self.stage.committed({}, runtime.room)
        if live.erase and self._disk is not None:
            self._disk.erase_deleted()
        self._tell(live)
        return position

    def _choose_store(self, first: int, end: int) -> int:
        """Open the store; from which of the changelog's offsets, ``first`` to ``end``, it is to be read."""
        if self._on_disk and self._disk is None:
            self._disk = self._opened(first, end)
        self._store = self._disk or PackedRecords(int(self._runtime.room * _LOOSE))
        self.stage.keep_in(self._store)
        progress = self._disk and self._disk.progress
        return progress.offset if progress else first

    def _opened(self, first: int, end: int) -> DiskRecords | None:
        """The store on disk; one that cannot be used is thrown away, and one that is not ours to use left alone."""
        belonging = Belonging(
            self._runtime.topic_ids.get(self._changelog, ""), self._runtime.group, self._changelog, self._place[1]
        )
        for _ in range(2):  # the second time there is none
            try:
                return DiskRecords(self._directory, belonging, range(first, end + 1))
            except StoreError as error:
                self._give_up(error)
                if error.reason == "locked":
                    break
        return None

    def _give_up(self, error: StoreError) -> None:
        topic, number = self._place
        log.warning("%s partition %d: the store on disk is not used (%s): %s", topic, number, error.reason, error)
        self._runtime.metrics.on_store_discarded(topic, error.reason)
        if error.reason == "locked":
            self._on_disk = False
        else:
            discard(self._directory)

    def _write_progress(self, offset: int, position: int | None, state_format: int) -> None:
        if self._disk is not None:
            before = self._disk.progress
            if position is None and before is not None:
                position, state_format = before.position, before.state_format
            self._disk.write(offset, position, state_format)

    def committed(self, changes: Mapping[bytes, bytes | None], position: int, behind: int | None) -> None:
        """Keep what a commit has made durable, and let go of the sessions that there is no room for.

        ``position`` is the next source offset, and ``behind`` the changelog's offset behind what was committed.

        Raises:
            StoreError: the store on disk failed; it is read anew from the changelog, into memory.
        """
        live = self.stage.committed(changes, self._runtime.room)
        if self._disk is not None and behind is not None:
            self._disk.write(behind, position, self.format, erase=live.erase)
            if live.erase:
                self._disk.erase_deleted()
        if live.evicted:
            self._runtime.metrics.on_evicted(self._place[0], live.evicted)
        self._tell(live)

    def fail(self, error: Exception) -> None:
        """After a failure of the partition: where it was the store's, go on without it."""
        if isinstance(error, StoreError) and self._disk is not None:
            self._close_disk()
            self._give_up(error)
            self._on_disk = False

    def close(self) -> None:
        """Let go of the sessions at once: what refers to a closed partition may live until garbage is collected."""
        self._close_disk()
        self.stage, self._store = self._runtime.stages[self._place[0]](self._place[1]), PackedRecords(0)
        self._runtime.open_partitions -= 1
        self._runtime.metrics.on_levels(*self._place, {})

    def _close_disk(self) -> None:
        disk, self._disk = self._disk, None
        if disk is not None:
            with suppress(StoreError):
                disk.close()

    def _tell(self, live: Live) -> None:
        held = {
            "reknit_sessions_live": live.sessions,
            "reknit_sessions_live_bytes": live.memory_bytes,
            "reknit_sessions_stored": self._store.sessions,
            "reknit_sessions_stored_bytes": self._store.size,
        }
        self._runtime.metrics.on_levels(*self._place, self.stage.levels() | held)
