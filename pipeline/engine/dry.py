"""Work through partitions of the inputs once, without a group and without writing to Kafka.

The actor of a partition is the one of a worker; what it opens, reads and writes is exchanged. Its records come from a
client that joins nothing, its outputs go to whoever asked for them, and its changelog is a file that nobody else reads:
after poison the state is made anew from it, as a worker does.
"""

from __future__ import annotations

import asyncio
import struct
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Protocol

import cramjam
import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from pipeline.engine.batches import Span
from pipeline.engine.partition import Partition, Phase
from pipeline.engine.runtime import NoMetrics, Runtime, Tuning
from pipeline.engine.services import Progress
from pipeline.engine.state import Restored
from pipeline.engine.upstream import LoopPolicy, patch_aiokafka
from pipeline.engine.worker import tune_collector
from pipeline.errors import ReknitError
from pipeline.kafka import explained
from pipeline.objects import Objects
from pipeline.stages.base import POSITION, Output, read_position

if TYPE_CHECKING:
    from pipeline.engine.runtime import EngineConfig, Scope, StageFactory
    from pipeline.engine.writer import Batch

# How long one look for records waits, and one for room.
_POLL_MS = 200
# How long a broker may hold a fetch that finds nothing. There is one at each partition's end, and what is asked of the
# broker next is answered behind it.
_FETCH_MS = 10
_ROOM_SECONDS = 0.05
_LENGTH = struct.Struct("<I")


class Outlet(Protocol):
    """Where the outputs of one partition go, of all inputs in their order."""

    def take(self, outputs: Sequence[Output]) -> None:
        """Take outputs; ``topic`` is the contract's name."""

    def finish(self, positions: Mapping[str, int]) -> None:
        """Everything was taken, up to these offsets of the inputs."""

    def close(self) -> None:
        """Let go, whether finished or not."""


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
    """Work through these partitions of all inputs, up to the ends of ``scope``, one after the other.

    Raises:
        BrokerError: no broker answers, or it refuses.
        ReknitError: what ended the work; partitions that were finished before stay finished.
    """
    patch_aiokafka()
    tune_collector()
    runtime = Runtime(config, stages, NoMetrics(), tuning or Tuning(), objects, scope=scope)
    with asyncio.Runner(loop_factory=LoopPolicy().new_event_loop) as runner:
        runner.run(_run(runtime, partitions, outlet, on_progress))


async def _run(
    runtime: Runtime, partitions: Sequence[int], outlet: Callable[[int], Outlet], on_progress: Progress
) -> None:
    await _DryRun(runtime, on_progress).run(partitions, outlet)  # its client wants a loop from the beginning


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
            # All at once, and then each in its turn: with each change of topics a consumer asks what the cluster has.
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
        """Work through one partition of one input, and return the offset up to which that is done."""
        with tempfile.TemporaryFile() as file:
            writer = _DryWriter(file, outlet)
            self._runtime.read_changelog = writer.read_changelog
            room = asyncio.Event()
            actor = Partition(
                self._runtime,
                topic,
                number,
                writer=lambda _stage: writer,
                on_room=room.set,
                on_opened=_nothing,
                on_position=lambda at: self._on_progress({(topic, number): at}),
                is_ours=_always,
            )
            try:
                await self._feed(actor, room)
            finally:
                await actor.close()
            if self._runtime.failure is not None:
                raise self._runtime.failure
            return actor.done_to

    async def _feed(self, actor: Partition, room: asyncio.Event) -> None:
        """Give the actor what there is, until it is done or has failed."""
        runtime, consumer = self._runtime, self._consumer
        place = self._place(actor.topic, actor.number)
        end = runtime.end_of(actor.topic, actor.number) or 0
        first = self._firsts[place]
        consumer.resume(place)
        while (actor.phase is Phase.OPENING or actor.done_to < end) and runtime.failure is None:
            if actor.phase is Phase.WORKING and not actor.aligned:  # just opened, or opened anew
                if actor.waits_for < first:
                    actor.expired(first)
                consumer.seek(place, actor.waits_for)
                actor.aligned = True
            if not actor.wants(runtime.tuning.pending_bytes, runtime.tuning.pending_records):
                room.clear()
                await _briefly(room)
                continue
            start = await consumer.position(place)
            found = await consumer.getmany(place, timeout_ms=_POLL_MS, max_records=runtime.tuning.poll_records)
            actor.offer(Span(start, await consumer.position(place), found.get(place, ()), end))
        consumer.pause(place)

    def _place(self, topic: str, number: int) -> TopicPartition:
        return TopicPartition(self._runtime.source_prefix + topic, number)


async def _briefly(event: asyncio.Event) -> None:
    try:
        await asyncio.wait_for(event.wait(), _ROOM_SECONDS)
    except TimeoutError:
        return


async def _nothing(_position: int) -> None:
    """What nobody has to be told."""


async def _always(_position: int) -> bool:
    """Nobody else has this partition."""
    return True


class _DryWriter:
    """Passes outputs on, and keeps the state in a file: batches of changelog records, compressed, oldest first."""

    def __init__(self, file: IO[bytes], outlet: Outlet) -> None:
        self._file = file
        self._outlet = outlet

    async def open(self) -> None:
        """Do nothing: nobody else writes here."""

    async def write(self, batch: Batch) -> int | None:
        try:
            self._outlet.take(batch.outputs)
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
        """Give what was written to ``apply``, as ``restore`` does."""
        start(0, 0)
        position, state_format, count = None, 1, 0
        self._file.seek(0)
        while length := self._file.read(_LENGTH.size):
            packed = self._file.read(*_LENGTH.unpack(length))
            for key, value in msgspec.msgpack.decode(bytes(cramjam.zstd.decompress(packed)), type=_ROWS):
                if key == POSITION:
                    position, state_format = read_position(value or b"0")
                else:
                    apply(key, value)
                    count += 1
        return Restored(position, state_format, count, 0.0)


_ROWS = list[tuple[bytes, bytes | None]]


class OutletError(ReknitError):
    """What a dry run makes cannot be written."""

    fault = "caller"


def _unwritable(error: OSError) -> OutletError:
    return OutletError("outlet_unwritable", f"{error.filename or 'the outputs'}: {error.strerror}")
