"""Process partitions of the inputs once, without a group and without writing to Kafka.

The actor of a partition is the worker's. Only its client, its outputs and its changelog differ: the client joins no
group, outputs go to an ``Outlet``, and the changelog is a private file, from which the state is rebuilt after poison,
as in a worker.

Two dry runs of one log write the same bytes. A worker's batches depend on the arrival of records and on their
processing time. Here batches are limited by number and size alone, and an output has the time of the newest record of
its chunk.
"""

from __future__ import annotations

import asyncio
import struct
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import IO, TYPE_CHECKING, Protocol

import cramjam
import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from msgspec import structs

from reknit.pipeline.engine.batches import Span, records_of
from reknit.pipeline.engine.client_patch import patch_aiokafka
from reknit.pipeline.engine.connections import Loop
from reknit.pipeline.engine.partition import Partition, Phase
from reknit.pipeline.engine.runtime import NoMetrics, Runtime, TopicChangedError, Tuning
from reknit.pipeline.engine.services import Progress
from reknit.pipeline.engine.state import Restored
from reknit.pipeline.engine.worker import tune_collector
from reknit.pipeline.errors import ReknitError
from reknit.pipeline.kafka import explained
from reknit.pipeline.objects import Objects
from reknit.pipeline.stages.base import POSITION, Output, Record, read_position
from reknit.topics.positions import PositionMark, read_mark

if TYPE_CHECKING:
    from reknit.pipeline.engine.commit import Batch
    from reknit.pipeline.engine.runtime import EngineConfig, Scope, StageFactory

# How long one fetch waits for records.
_POLL_MS = 200
# The actor gets the log in chunks, and the next one after it has processed the last. A chunk ends at this many records,
# or at the record with which their values reach this many bytes.
_CHUNK_RECORDS = 2_000
_CHUNK_BYTES = 4 << 20
# Slices are never shortened because the last ones took long.
_ANY_SECONDS = 1e6
# A broker may hold a fetch without records for this time. There is one at the end of each partition, and it delays the
# next request to the broker.
_FETCH_MS = 10
_LENGTH = struct.Struct("<I")


class Outlet(Protocol):
    """Takes the outputs of one partition of all inputs, in order."""

    def take(self, outputs: Sequence[Output], timestamp: int) -> None:
        """Take outputs; ``topic`` is the contract's name, ``timestamp`` their time in milliseconds."""

    def finish(self, positions: Mapping[str, int]) -> None:
        """Finish: everything was taken, up to these offsets of the inputs."""

    def close(self) -> None:
        """Release resources, also without ``finish``."""


def run_dry(
    config: EngineConfig,
    stages: Mapping[str, StageFactory],
    partitions: Sequence[int],
    outlet: Callable[[int], Outlet],
    scope: Scope,
    *,
    tuning: Tuning | None = None,
    objects: Objects | None = None,
    on_progress: Progress = lambda _done: None,
) -> None:
    """Process these partitions of all inputs up to the ends of ``scope``, one after the other.

    Raises:
        BrokerError: no broker answers, or it refuses.
        ReknitError: the work failed; partitions that were finished before stay finished.
    """
    patch_aiokafka()
    tune_collector()
    tuning = structs.replace(tuning or Tuning(), slice_seconds=_ANY_SECONDS)
    runtime = Runtime(config, stages, NoMetrics(), tuning, objects, scope=scope)
    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(_run(runtime, partitions, outlet, on_progress))


async def _run(
    runtime: Runtime, partitions: Sequence[int], outlet: Callable[[int], Outlet], on_progress: Progress
) -> None:
    await _DryRun(runtime, on_progress).run(partitions, outlet)  # its client needs a running loop


class _DryRun:
    def __init__(self, runtime: Runtime, on_progress: Progress) -> None:
        self._runtime = runtime
        self._on_progress = on_progress
        self._firsts: dict[TopicPartition, int] = {}
        self._consumer = AIOKafkaConsumer(
            **runtime.connection,
            isolation_level="read_committed" if runtime.exactly_once else "read_uncommitted",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            fetch_max_wait_ms=_FETCH_MS,
            max_partition_fetch_bytes=runtime.tuning.fetch_bytes,
        )

    async def run(self, partitions: Sequence[int], outlet: Callable[[int], Outlet]) -> None:
        try:
            await self._consumer.start()
            # Assign all once: with each change of topics a consumer requests the cluster's metadata.
            every = [self._place(topic, number) for number in partitions for topic in self._runtime.stages]
            self._consumer.assign(every)
            self._consumer.pause(*every)
            self._firsts = await self._consumer.beginning_offsets(every)
            for number in partitions:
                taking = outlet(number)
                try:
                    taking.finish({topic: await self._work(topic, number, taking) for topic in self._runtime.stages})
                except OSError as error:
                    raise _unwritable(error) from error
                finally:
                    taking.close()
        except KafkaError as error:
            raise await explained(self._runtime.cluster, error) from error
        finally:
            await self._consumer.stop()

    async def _work(self, topic: str, number: int, outlet: Outlet) -> int:
        """Process one partition of one input, and return the offset up to which it is done."""
        with tempfile.TemporaryFile() as file:
            writer = _DryWriter(file, outlet)
            self._runtime.read_changelog = writer.read_changelog
            moved = asyncio.Event()

            def note_position(at: int) -> None:
                self._on_progress({(topic, number): at})
                moved.set()

            actor = Partition(
                self._runtime,
                topic,
                number,
                writer=lambda _stage: writer,
                on_room=moved.set,
                on_opened=_nothing,
                on_position=note_position,
                is_ours=_always,
                mark_at_opening=partial(_fresh_mark, self._runtime.base_of(topic, number)),
            )
            try:
                first = self._firsts[self._place(topic, number)]
                await feed(self._runtime, self._consumer, actor, moved, first=first, on_chunk=writer.note_time)
            finally:
                await actor.close()
            if self._runtime.failure is not None:
                raise self._runtime.failure
            return actor.done_to

    def _place(self, topic: str, number: int) -> TopicPartition:
        return TopicPartition(self._runtime.source_prefix + topic, number)


async def feed(
    runtime: Runtime,
    consumer: AIOKafkaConsumer,
    actor: Partition,
    moved: asyncio.Event,
    *,
    first: int,
    on_chunk: Callable[[Sequence[Record]], None] = lambda _records: None,
) -> None:
    """Give the actor chunk after chunk until it is done or has failed.

    Args:
        runtime: the actor's.
        consumer: has the partition assigned and paused.
        actor: an actor with an end.
        moved: set after each step of the actor.
        first: the first offset that the partition has.
        on_chunk: called with the records of each chunk before the actor gets them.

    Raises:
        TopicChangedError: the topic was re-created in the meantime.
    """
    place = TopicPartition(runtime.source_prefix + actor.topic, actor.number)
    end = runtime.end_of(actor.topic, actor.number) or 0
    fetched = Fetched(consumer, place, end, runtime.tuning.poll_records)
    consumer.resume(place)
    while (actor.phase is Phase.OPENING or actor.done_to < end) and runtime.failure is None:
        runtime.on_answer()  # there is no watchdog; if no broker answers, the consumer raises
        moved.clear()
        if actor.phase is not Phase.WORKING or (actor.aligned and actor.done_to < actor.waits_for):
            await _briefly(moved)
            continue
        if not actor.aligned:  # just opened, or opened again
            if actor.waits_for < first:
                actor.expired(first)
            fetched.seek(actor.waits_for)
            actor.aligned = True
        chunk = await fetched.next_chunk()
        if chunk.records:
            on_chunk(chunk.records)
        actor.offer(chunk)
    consumer.pause(place)


class Fetched:
    """The log of one partition in chunks that depend on its records alone."""

    def __init__(self, consumer: AIOKafkaConsumer, place: TopicPartition, end: int, most: int) -> None:
        """``end`` is the offset after the last one to read, ``most`` the number of records in one fetch."""
        self._consumer = consumer
        self._place = place
        self._end = end
        self._most = most
        self._waiting: deque[Record] = deque()
        self._start = 0

    def seek(self, offset: int) -> None:
        self._consumer.seek(self._place, offset)
        self._waiting.clear()
        self._start = offset

    async def next_chunk(self) -> Span:
        """Return the next chunk; only the last one is below a chunk's limits.

        Raises:
            TopicChangedError: the log ends before the chunk, so the client has begun at its first record.
        """
        records: list[Record] = []
        size = 0
        while len(records) < _CHUNK_RECORDS and size < _CHUNK_BYTES:
            if not self._waiting:
                position = await self._position()
                if position >= self._end:
                    break
                found = await self._consumer.getmany(self._place, timeout_ms=_POLL_MS, max_records=self._most)
                self._waiting.extend(records_of(found.get(self._place, ())))
                continue
            records.append(self._waiting.popleft())
            size += len(records[-1].value or b"")
        # After the last record there may be transaction markers up to the position.
        span_end = self._waiting[0].offset if self._waiting else await self._position()
        start, self._start = self._start, span_end
        return Span(start, span_end, records, self._end)

    async def _position(self) -> int:
        position: int = await self._consumer.position(self._place)
        if position < self._start:
            raise TopicChangedError(
                "position_beyond_end",
                f"{self._place.topic} partition {self._place.partition} ends before offset {self._start}, up to which "
                "it was read: the topic was re-created",
            )
        return position


async def _briefly(event: asyncio.Event) -> None:
    """Wait for the actor's next step, for a limited time: it opens again after a failure without a step."""
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), _POLL_MS / 1000)


async def _nothing(_position: int) -> None:
    """Ignore a notification."""


async def _fresh_mark(base: int, _position: int | None, _mark: PositionMark) -> PositionMark:
    """Return the mark of a changelog in a file, which no other process knows."""
    return PositionMark(base=base)


async def _always(_position: int) -> bool:
    """Confirm ownership: no other process has this partition."""
    return True


class _DryWriter:
    """Passes outputs on, and keeps the state in a file: batches of changelog records, compressed, oldest first."""

    def __init__(self, file: IO[bytes], outlet: Outlet) -> None:
        self._file = file
        self._outlet = outlet
        self.timestamp = 0  # of the current chunk's outputs

    def note_time(self, records: Sequence[Record]) -> None:
        """Set the outputs' time from the next chunk."""
        self.timestamp = records[-1].timestamp

    async def open(self) -> None:
        """Do nothing: no other process writes here."""

    async def write(self, batch: Batch) -> int | None:
        try:
            self._outlet.take(batch.outputs, self.timestamp)
            rows = [(key, value) for key, value, _ in batch.state()]
            packed = bytes(cramjam.zstd.compress(msgspec.msgpack.encode(rows)))
            self._file.write(_LENGTH.pack(len(packed)) + packed)
        except OSError as error:
            raise _unwritable(error) from error
        return None

    async def close(self) -> None:
        """Do nothing: the file is its owner's."""

    async def read_changelog(
        self,
        _connection: object,
        _topic: str,
        _partition: int,
        apply: Callable[[bytes, bytes | None], None],
        *,
        start: Callable[[int, int], int],
        **_: object,
    ) -> Restored:
        """Pass the written records to ``apply``, as ``restore`` does."""
        start(0, 0)
        position, state_format, count, mark = None, 1, 0, PositionMark()
        self._file.seek(0)
        while length := self._file.read(_LENGTH.size):
            packed = self._file.read(*_LENGTH.unpack(length))
            for key, value in msgspec.msgpack.decode(bytes(cramjam.zstd.decompress(packed)), type=_ROWS):
                if key == POSITION:
                    position, state_format = read_position(value or b"0")
                    mark = read_mark(value or b"0", ())
                else:
                    apply(key, value)
                    count += 1
        return Restored(position, state_format, count, 0.0, mark=mark)


_ROWS = list[tuple[bytes, bytes | None]]


class OutletError(ReknitError):
    """An output of a dry run cannot be written."""

    fault = "caller"


def _unwritable(error: OSError) -> OutletError:
    return OutletError("outlet_unwritable", f"{error.filename or 'the outputs'}: {error.strerror}")
