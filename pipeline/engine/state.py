"""What a partition keeps: its stage, the store of its sessions' records, and the changelog from which both are made."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from msgspec import Struct

from pipeline.engine.runtime import EngineError, NotAuthorizedError, PartitionLostError, log, where
from pipeline.engine.stores import Belonging, DiskRecords, PackedRecords, StoreError, discard
from pipeline.kafka import REFUSALS, refusal
from pipeline.stages.base import POSITION, STATE_FORMATS, Live, read_position

if TYPE_CHECKING:
    from pipeline.engine.runtime import Runtime
    from pipeline.stages.base import Stage

# Of a partition's memory for sessions, the part that records may take which are not compressed yet.
_LOOSE = 1 / 8
# A poll that only passes a marker returns nothing, so it must not wait long.
_POLL_MS = 50
_FETCH_BYTES = 8 << 20


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


class Restored(Struct, frozen=True):
    """What a changelog held: the next source offset (None where nothing was ever committed), its format and size."""

    position: int | None
    state_format: int
    records: int
    seconds: float


async def restore(
    connection: Mapping[str, Any],
    topic: str,
    partition: int,
    apply: Callable[[bytes, bytes | None], None],
    *,
    committed_only: bool,
    patience: float = 30.0,
    start: Callable[[int, int], int] = min,
    on_progress: Callable[[int, int | None, int], None] | None = None,
) -> Restored:
    """Give every record of a changelog to ``apply``, oldest first; None as a value deletes the key.

    It is read to its end, which is a position, not the last record: a log may end in transaction markers, and positions
    pass them. The next source offset stands in it beside the state, written in the same transaction, so the two cannot
    disagree.

    ``start`` is asked where to begin, between the log's first offset and its end; ``on_progress`` is told, once the
    records before an offset were given, of it, of the next source offset and of the format, as far as they were read.

    Raises:
        EngineError: ``state_unreadable`` (``apply`` raised: the state was written by something else), ``state_newer``
            (it has a format that came later).
        PartitionLostError: ``stuck`` (no progress for ``patience`` seconds).
        NotAuthorizedError: the changelog must not be read.
    """
    changelog = TopicPartition(topic, partition)
    reader = AIOKafkaConsumer(
        **connection,
        isolation_level="read_committed" if committed_only else "read_uncommitted",
        # With "latest", the default, a consumer without a group goes to the end as soon as it is assigned, and
        # seek_to_beginning() does not bring it back: recovery would read nothing.
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_partition_fetch_bytes=_FETCH_BYTES,
    )
    started = time.monotonic()
    try:
        await reader.start()
        reader.assign([changelog])
        end = (await reader.end_offsets([changelog]))[changelog]
        reader.seek(changelog, start((await reader.beginning_offsets([changelog]))[changelog], end))
        position, state_format, count = await _read_to(reader, changelog, end, apply, on_progress, patience=patience)
    except REFUSALS as error:
        raise NotAuthorizedError("not_authorized", refusal(type(error)(topic), "Read")) from error
    finally:
        await reader.stop()
    return Restored(position, state_format, count, time.monotonic() - started)


async def _read_to(
    reader: AIOKafkaConsumer,
    changelog: TopicPartition,
    end: int,
    apply: Callable[[bytes, bytes | None], None],
    on_progress: Callable[[int, int | None, int], None] | None,
    *,
    patience: float,
) -> tuple[int | None, int, int]:
    source_position: int | None = None
    state_format = 1
    count, reached, moved_at = 0, -1, time.monotonic()
    while (at := await asyncio.wait_for(reader.position(changelog), patience)) < end:
        if at > reached:
            reached, moved_at = at, time.monotonic()
        elif time.monotonic() - moved_at > patience:
            raise PartitionLostError(
                "stuck", f"no progress in {changelog} at offset {at} of {end} for {patience:.0f} s"
            )
        records = (await reader.getmany(changelog, timeout_ms=_POLL_MS)).get(changelog, ())
        count += len(records)
        try:
            for record in records:
                if record.key == POSITION:
                    source_position, state_format = read_position(record.value)
                else:
                    apply(record.key, record.value)
        except Exception as error:
            raise EngineError(
                "state_unreadable",
                f"{changelog} holds state that cannot be read, near offset {at} ({where(error)}). "
                "Was it written by a newer version, or by something else?",
            ) from error
        if on_progress is not None:
            on_progress(await reader.position(changelog), source_position, state_format)
        await asyncio.sleep(0)  # other partitions work meanwhile
    if state_format not in STATE_FORMATS:
        raise EngineError(
            "state_newer",
            f"{changelog} holds state of format {state_format}, which a newer version of Reknit wrote; this one reads "
            f"up to {STATE_FORMATS[-1]}. Run the newer version.",
        )
    return source_position, state_format, count
