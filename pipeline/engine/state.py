"""State of a partition: its stage, the store of its sessions' records, and the changelog that restores both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from msgspec import Struct, structs

from reknit.pipeline.engine.batches import fetched_size
from reknit.pipeline.engine.connections import stop_reader
from reknit.pipeline.engine.runtime import EngineError, NotAuthorizedError, PartitionLostError, log, where
from reknit.pipeline.engine.seams import LIVE, Clock, Seams
from reknit.pipeline.engine.stores import Belonging, DiskRecords, PackedRecords, StoreError, discard
from reknit.pipeline.kafka import REFUSALS, refusal
from reknit.pipeline.stages.base import POSITION, STATE_FORMATS, Live, read_position
from reknit.topics.positions import UNMARKED, PositionMark, read_mark

if TYPE_CHECKING:
    from reknit.pipeline.engine.runtime import Runtime
    from reknit.pipeline.stages.base import Stage

# Share of a partition's memory for sessions that uncompressed records may take.
_LOOSE = 1 / 8
# A poll that only passes a transaction marker returns nothing, so it must not wait long.
_POLL_MS = 50
# Memory of one read of a changelog: a compressed fetch, and records of about this many bytes. Compression makes
# histories 20 times smaller, so four whole fetches of 8 MiB were 700 MB of records, and as much again while they were
# written to disk. A record larger than a fetch is fetched alone (KIP-74).
_FETCH_BYTES = 1 << 20
_HELD_BYTES = 4 << 20


class PartitionState:
    """A partition's stage and store. ``topic`` is the source's, a contract name."""

    def __init__(self, runtime: Runtime, topic: str, number: int) -> None:
        self._runtime = runtime
        runtime.open_partitions += 1
        self._place = (topic, number)
        self.stage: Stage = runtime.stages[topic](number)
        self._changelog = runtime.prefix + self.stage.state_topic
        self._directory = runtime.state_dir / "sessions" / f"{self._changelog}-{number}"
        # Once off, it stays off until the partition is opened again: a store on disk that missed commits is wrong.
        self._on_disk = runtime.state.store == "disk" and runtime.exactly_once
        self._was_damaged = False
        self._disk: DiskRecords | None = None
        self._store: PackedRecords | DiskRecords = PackedRecords(0)
        self.format = runtime.state.format
        self.read_to = 0  # the changelog's end at the last read
        self.stored_mark = UNMARKED  # of the position that was read
        self.mark = UNMARKED  # of the positions that are written, once the stored one was compared

    async def read(self) -> int | None:
        """Rebuild the stage from the changelog; return the next source offset, None if nothing was committed.

        Raises:
            EngineError: as ``restore``.
        """
        runtime, (topic, number) = self._runtime, self._place
        self.stage = runtime.stages[topic](number)
        async with runtime.restores:
            restored = await (runtime.read_changelog or partial(restore, seams=runtime.seams))(
                runtime.connection,
                self._changelog,
                number,
                self.stage.restore,
                committed_only=runtime.exactly_once,
                patience=runtime.tuning.start_seconds,
                start=self._choose_store,
                on_progress=self._write_progress,
            )
        self.read_to = restored.end
        runtime.metrics.on_restored(topic, number, restored.records, restored.seconds)
        counts = (topic, number, restored.records, restored.seconds)
        log.info("%s partition %d: %d records of state restored in %.1f s", *counts)
        known = self._disk and self._disk.progress
        position, found = (known.position, known.state_format) if known else (restored.position, restored.state_format)
        self.stored_mark = known.mark if known else restored.mark
        self.format = max(found, runtime.state.format)
        self.stage.use_format(self.format)
        # Deleted records of forgotten sessions may still be in the store's files.
        live = self.stage.committed({}, runtime.room)
        if live.erase and self._disk is not None:
            self._disk.erase_deleted()
        self._set_levels(live)
        return position

    def _choose_store(self, first: int, end: int) -> int:
        """Open the store; return the offset, between ``first`` and ``end``, from which to read the changelog."""
        if self._disk is not None:
            self.stage.keep_in(self._disk)
        elif self._on_disk:
            self._disk = self._opened(first, end)
        self._store = self._disk or PackedRecords(int(self._runtime.room * _LOOSE))
        if self._disk is None:
            self.stage.keep_in(self._store)
        progress = self._disk and self._disk.progress
        return progress.offset if progress else first

    def _opened(self, first: int, end: int) -> DiskRecords | None:
        """Open the store on disk for the stage.

        An unusable store is deleted; one that another process has is not touched.
        """
        belonging = Belonging(
            self._runtime.topic_ids.get(self._changelog, ""), self._runtime.group, self._changelog, self._place[1]
        )
        for _ in range(2):  # the second attempt creates a new one
            try:
                disk = (self._runtime.seams.disk or DiskRecords)(self._directory, belonging, range(first, end + 1))
                try:
                    self.stage.keep_in(disk)
                except StoreError:
                    disk.close()
                    raise
            except StoreError as error:
                self._give_up(error)
                if error.reason == "locked":
                    break
            else:
                return disk
        return None

    def _give_up(self, error: StoreError) -> None:
        topic, number = self._place
        log.warning("%s partition %d: the store on disk is not used (%s): %s", topic, number, error.reason, error)
        self._runtime.metrics.on_store_discarded(topic, error.reason)
        if error.reason == "locked":
            self._on_disk = False
        else:
            discard(self._directory)

    def _write_progress(
        self, offset: int, position: int | None, state_format: int, mark: PositionMark = UNMARKED
    ) -> None:
        if self._disk is not None:
            before = self._disk.progress
            if position is None and before is not None:
                position, state_format, mark = before.position, before.state_format, before.mark
            self._disk.write(offset, position, state_format, mark)

    def committed(self, changes: Mapping[bytes, bytes | None], position: int, end_offset: int | None) -> None:
        """Store committed changes, and evict sessions that exceed the memory.

        ``position`` is the next source offset, and ``end_offset`` the changelog's offset after the commit.

        Raises:
            StoreError: the store on disk failed or is damaged; see ``fail``.
        """
        live = self.stage.committed(changes, self._runtime.room)
        if self._disk is not None and end_offset is not None:
            self._disk.write(end_offset, position, self.format, self.mark, erase=live.erase)
            if live.erase:
                self._disk.erase_deleted()
        if live.evicted:
            self._runtime.metrics.on_evicted(self._place[0], live.evicted)
        self._set_levels(live)

    def fail(self, error: Exception) -> None:
        """Note a failure of the partition. If the store failed, the next ``read`` creates another one.

        A damaged store on disk is rebuilt once from the changelog. After another failure the records stay in memory.
        """
        if isinstance(error, StoreError) and self._disk is not None:
            self._close_disk()
            self._give_up(error)
            self._on_disk = error.reason == "damaged" and not self._was_damaged
            self._was_damaged = True

    def close(self) -> None:
        """Release the sessions now: references to a closed partition may live until garbage is collected."""
        self._close_disk()
        self.stage, self._store = self._runtime.stages[self._place[0]](self._place[1]), PackedRecords(0)
        self._runtime.open_partitions -= 1
        self._runtime.metrics.on_levels(*self._place, {})

    def _close_disk(self) -> None:
        disk, self._disk = self._disk, None
        if disk is not None:
            with suppress(StoreError):
                disk.close()

    def _set_levels(self, live: Live) -> None:
        held = {
            "reknit_sessions_live": live.sessions,
            "reknit_sessions_live_bytes": live.memory_bytes,
            "reknit_sessions_stored": self._store.sessions,
            "reknit_sessions_stored_bytes": self._store.size,
        }
        self._runtime.metrics.on_levels(*self._place, self.stage.levels() | held)


class Restored(Struct, frozen=True):
    """The result of a restore: the next source offset (None if nothing was committed), the format and the size.

    ``end`` is the changelog's offset after the last read.
    """

    position: int | None
    state_format: int
    records: int
    seconds: float
    end: int = 0
    mark: PositionMark = UNMARKED


async def restore(
    connection: Mapping[str, Any],
    topic: str,
    partition: int,
    apply: Callable[[bytes, bytes | None], None],
    *,
    committed_only: bool,
    patience: float = 30.0,
    start: Callable[[int, int], int] = min,
    on_progress: Callable[[int, int | None, int, PositionMark], None] | None = None,
    seams: Seams = LIVE,
) -> Restored:
    """Pass every record of a changelog to ``apply``, oldest first; a value of None deletes the key.

    The end of the read is a position, not the last record: a log may end in transaction markers, and positions pass
    them. The next source offset is in the changelog too, written in the same transaction or record batch as the state,
    so both agree. The read therefore never ends within a batch. Without transactions the end that the broker gave may
    be within one (the embedded broker), or before a request of a former owner that was on its way.

    ``start`` returns where to begin, between the log's first offset and its end. ``on_progress`` is called after the
    records before an offset, with that offset, the next source offset, the format and the position's mark, if they
    were read already.

    Raises:
        EngineError: ``state_unreadable`` (``apply`` raised: another program wrote the state), ``state_newer``
            (it has a format that came later).
        PartitionLostError: ``stuck`` (no progress for ``patience`` seconds).
        NotAuthorizedError: the changelog must not be read.
    """
    changelog = TopicPartition(topic, partition)
    clock = seams.clock
    reader = seams.brokers.reader(
        **connection,
        isolation_level="read_committed" if committed_only else "read_uncommitted",
        # With "latest", the default, a consumer without a group seeks to the end as soon as it is assigned, and
        # seek_to_beginning() does not undo that: recovery would read nothing.
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_partition_fetch_bytes=_FETCH_BYTES,
    )
    started = clock.monotonic()
    try:
        try:
            async with asyncio.timeout(patience):
                await reader.start()
                reader.assign([changelog])
                end = (await reader.end_offsets([changelog]))[changelog]
                first = (await reader.beginning_offsets([changelog]))[changelog]
        except TimeoutError:
            raise PartitionLostError("stuck", f"no answer about {_named(changelog)} for {patience:.0f} s") from None
        reader.seek(changelog, start(first, end))
        found = await _read_to(reader, changelog, end, apply, on_progress, patience=patience, clock=clock)
    except REFUSALS as error:
        raise NotAuthorizedError("not_authorized", refusal(type(error)(topic), "Read")) from error
    finally:
        await stop_reader(reader)
    return structs.replace(found, seconds=clock.monotonic() - started)


def _named(place: TopicPartition) -> str:
    return f"{place.topic} partition {place.partition}"


async def _read_to(
    reader: AIOKafkaConsumer,
    changelog: TopicPartition,
    end: int,
    apply: Callable[[bytes, bytes | None], None],
    on_progress: Callable[[int, int | None, int, PositionMark], None] | None,
    *,
    patience: float,
    clock: Clock,
) -> Restored:
    source_position: int | None = None
    state_format, mark = 1, UNMARKED
    count, reached, moved_at = 0, -1, clock.monotonic()
    record_bytes = float(_HELD_BYTES)  # recent size of a record; it adapts to smaller ones in steps
    is_whole = True  # the record of the position ends a batch
    while (at := await asyncio.wait_for(reader.position(changelog), patience)) < end or not is_whole:
        if at > reached:
            reached, moved_at = at, clock.monotonic()
        elif clock.monotonic() - moved_at > patience:
            raise PartitionLostError(
                "stuck", f"no progress in {_named(changelog)} at offset {at} of {end} for {patience:.0f} s"
            )
        most = max(1, int(_HELD_BYTES / record_bytes))
        records = (await reader.getmany(changelog, timeout_ms=_POLL_MS, max_records=most)).get(changelog, ())
        if at >= end and not records:
            break  # a client has the whole batch in memory, so this state has no position: another program wrote it
        count += len(records)
        if records:
            record_bytes = max(fetched_size(records) / len(records), record_bytes / 2)
            is_whole = records[-1].key == POSITION
        try:
            for record in records:
                if record.key == POSITION:
                    source_position, state_format = read_position(record.value)
                    mark = read_mark(record.value, record.headers)
                else:
                    apply(record.key, record.value)
        except Exception as error:
            raise EngineError(
                "state_unreadable",
                f"{_named(changelog)} holds state that cannot be read, near offset {at} ({where(error)}). "
                "Was it written by a newer version, or by something else?",
            ) from error
        if on_progress is not None:
            on_progress(await reader.position(changelog), source_position, state_format, mark)
        await asyncio.sleep(0)  # let other partitions work
    if state_format not in STATE_FORMATS:
        raise EngineError(
            "state_newer",
            f"{_named(changelog)} holds state of format {state_format}, which a newer version of Reknit wrote; this "
            f"one reads up to {STATE_FORMATS[-1]}. Run the newer version.",
        )
    return Restored(source_position, state_format, count, 0.0, end, mark)
