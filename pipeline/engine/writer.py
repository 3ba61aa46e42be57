"""Making a batch durable: exactly once, or at least once on brokers without transactions.

Both writers put the next source offset into the state's changelog, beside the state that it belongs to, and the owner
of a partition reads both together. The group's own offsets follow a moment later, for everybody else (``offsets``).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import aiokafka.producer.sender
from aiokafka import AIOKafkaProducer
from aiokafka.errors import InvalidProducerEpoch, KafkaError, MessageSizeTooLargeError, ProducerFenced
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.structs import RecordMetadata
from faust.types import TP
from msgspec import Struct, structs

from pipeline.engine.runtime import EngineError, NotAuthorizedError, PartitionLostError, log
from pipeline.kafka import REFUSALS, refusal
from pipeline.objects import Objects
from pipeline.stages.base import POSITION, STATE_FORMATS, Headers, Output, Stage, position_value
from topics import PROVIDER_REQUESTS
from topics import headers as names

if TYPE_CHECKING:
    from pipeline.engine.runtime import Runtime

Row = tuple[bytes | None, bytes | None, Headers]

# The first request of a transaction that follows another closely meets CONCURRENT_TRANSACTIONS: the broker is still
# writing markers. aiokafka then sleeps 20 ms; a broker in the same network needs a tenth of that. The general
# retry_backoff_ms stays as it is: lowering it too was measured to double the number of requests.
aiokafka.producer.sender.BACKOFF_OVERRIDE = 0.002

# A broker takes requests up to socket.request.max.bytes, 100 MiB by default: batches of this size go one by one.
_LARGE = 16 << 20
# What comes within so long after a commit goes into the next one together.
_PAUSE_SECONDS = 0.1
# How long an end waits for the last commit: a client that has stopped answers no more.
_LAST_COMMIT_SECONDS = 1.0
# How long the last deliveries of a producer that is given up may take.
_STOP_SECONDS = 2.0


class Batch(Struct, frozen=True):
    """What one commit makes durable: ``position`` is the next source offset. Topics are contract names."""

    outputs: Sequence[Output]
    changes: dict[bytes, bytes | None]
    position: int
    state_format: int = STATE_FORMATS[0]

    def state(self) -> list[Row]:
        """The records of the changelog."""
        changes: list[Row] = [(key, value, ()) for key, value in self.changes.items()]
        return [*changes, (POSITION, position_value(self.position, self.state_format), ())]


class Writer(Protocol):
    """Makes a partition's batches durable, one at a time."""

    async def open(self) -> None:
        """Take the partition over from whoever wrote for it before."""

    async def write(self, batch: Batch) -> int | None:
        """Make outputs, state and position durable; when it raises, the position has not moved.

        Returns the changelog's offset behind the state; None where others may have written before it.
        """

    async def close(self) -> None:
        """Let go of connections. An open transaction is left to the next owner, which settles it."""


async def side_by_side(*work: Coroutine[Any, Any, Any]) -> list[Any]:
    """Run coroutines at once, for what each returns; when one raises, the others are cancelled, and it raises bare."""
    if len(work) == 1:
        return [await work[0]]  # most batches write to one topic, and a task is a turn of the event loop more
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in work]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


class Sender:
    """Sends rows to topics of one partition number, batch by batch: one future a batch, not one a record."""

    def __init__(self, producer: AIOKafkaProducer, prefix: str, partition: int) -> None:
        self._producer = producer
        self._prefix = prefix
        self._partition = partition
        self._large = asyncio.Lock()

    async def send_outputs(self, outputs: Sequence[Output]) -> None:
        """Send outputs, in order within each topic, and return once all are delivered."""
        topics = dict.fromkeys([output.topic for output in outputs])
        await side_by_side(
            *(self.send(topic, [(o.key, o.value, o.headers) for o in outputs if o.topic == topic]) for topic in topics)
        )

    async def send(self, topic: str, rows: Iterable[Row]) -> int:
        """Send rows to one topic, at least one, and return the offset behind them once they are delivered.

        Raises:
            EngineError: ``message_too_large``, where the topic does not take what the contract promises.
        """
        name = self._prefix + topic
        delivered = []
        batch = self._producer.create_batch()
        for key, value, headers in rows:
            if batch.append(key=key, value=value, timestamp=None, headers=list(headers)) is None:
                delivered.append(await self._submit(batch, name))
                batch = self._producer.create_batch()
                batch.append(key=key, value=value, timestamp=None, headers=list(headers))
        last = batch.record_count()
        delivered.append(await self._submit(batch, name))
        try:
            for future in delivered:
                sent = await future
        except MessageSizeTooLargeError as error:
            raise EngineError(
                "message_too_large",
                f"{name} refuses a record that the contract allows; `reknit topics apply` sets max.message.bytes",
            ) from error
        except REFUSALS as error:
            raise NotAuthorizedError("not_authorized", refusal(type(error)(name), "Write")) from error
        behind: int = sent.offset + last
        return behind

    async def _submit(self, batch: BatchBuilder, name: str) -> asyncio.Future[RecordMetadata]:
        batch.close()
        if batch.size() < _LARGE:
            return await self._queue(batch, name)
        async with self._large:
            future = await self._queue(batch, name)
            await asyncio.wait([future])
        return future

    async def _queue(self, batch: BatchBuilder, name: str) -> asyncio.Future[RecordMetadata]:
        future: asyncio.Future[RecordMetadata] = await self._producer.send_batch(batch, name, partition=self._partition)
        # Once one delivery has failed, nobody waits for the others; their errors are no news then.
        future.add_done_callback(lambda sent: sent.cancelled() or sent.exception())
        return future


def _make_producer(runtime: Runtime, **own: Any) -> AIOKafkaProducer:  # noqa: ANN401  the client's options
    tuning = runtime.tuning
    return AIOKafkaProducer(
        **runtime.connection,
        compression_type=tuning.compression,
        max_batch_size=tuning.send_batch_bytes,
        request_timeout_ms=int(tuning.batch_seconds * 1000),
        **own,
    )


class ExactlyOnceWriter:
    """Writes one source partition's batches, each in a Kafka transaction of outputs, state and position.

    The transactional id is the source partition's and never changes, so starting a producer does two things at once: it
    fences whoever wrote for the partition before, a worker that was only stalled included, and it settles what that one
    left open. Only behind it may state and position be read. The group's own offset would say the position once more,
    for two more requests and a third partition in every transaction.
    """

    def __init__(self, runtime: Runtime, topic: str, state_topic: str, partition: int) -> None:
        """Topics are contract names; ``partition`` is the number in all of them."""
        self._state_topic = state_topic
        self._source = f"{runtime.source_prefix}{topic} partition {partition}"
        self._producer = _make_producer(
            runtime,
            transactional_id=f"{runtime.group}-{topic}-{partition}",
            transaction_timeout_ms=int(runtime.tuning.transaction_seconds * 1000),
        )
        self._sender = Sender(self._producer, runtime.prefix, partition)

    async def open(self) -> None:
        """Start the producer, which fences the partition's former owner and settles its open transaction."""
        await self._producer.start()

    async def write(self, batch: Batch) -> int | None:
        """Write a batch and commit it.

        Raises:
            PartitionLostError: ``fenced``, when its transactional id was taken over, or its transaction timed out.
        """
        try:
            return await self._write(batch)
        except (ProducerFenced, InvalidProducerEpoch) as error:
            raise PartitionLostError("fenced", f"another worker owns {self._source}") from error
        except KafkaError as error:
            # Where the broker refuses one topic, what is sent to another fails in words that hide it.
            waiter = self._producer._txn_manager._transaction_waiter  # noqa: SLF001  it holds the first error
            first = waiter.exception() if waiter is not None and waiter.done() and not waiter.cancelled() else None
            if isinstance(first, REFUSALS):
                raise NotAuthorizedError("not_authorized", refusal(first, "Write")) from error
            raise

    async def _write(self, batch: Batch) -> int:
        producer = self._producer
        await producer.begin_transaction()
        state = self._sender.send(self._state_topic, batch.state())
        sent = await side_by_side(self._sender.send_outputs(batch.outputs), state)
        await producer.commit_transaction()
        behind: int = sent[-1]
        return behind

    async def close(self) -> None:
        """Stop the producer."""
        await _stop_producer(self._producer)


class AtLeastOnceWriter:
    """Writes one source partition's batches in an order in which a crash loses nothing.

    First outputs, then state and position. A crash between the two repeats the outputs of one batch; their ids are
    derived from source positions, so a reader sees the same ids again. State and position are in one topic partition
    and are read back together, so the state is never ahead of the outputs and never applied twice.

    What fences a former owner in a transaction is missing here. A worker that was stopped for longer than its session
    may still have a batch in hand when it wakes, and its state records would come behind the new owner's. So before
    each step the writer looks at the clock, and gives up once the batch is older than the session: the partition may
    belong to somebody else by now. What is left is the time between that look and the broker's append.
    """

    def __init__(self, runtime: Runtime, state_topic: str, partition: int) -> None:
        """``state_topic`` is a contract name; ``partition`` is the number in every topic."""
        self._state_topic = state_topic
        self._session_seconds = runtime.tuning.session_seconds
        self._producer = _make_producer(runtime, acks="all")
        self._sender = Sender(self._producer, runtime.prefix, partition)

    async def open(self) -> None:
        """Connect. Nobody is fenced."""
        await self._producer.start()

    async def write(self, batch: Batch) -> int | None:
        """Write a batch: the outputs are delivered before the state is sent.

        Raises:
            PartitionLostError: ``stuck``, when the batch grew older than the group's session.
        """
        deadline = time.monotonic() + self._session_seconds
        await self._sender.send_outputs(batch.outputs)
        _still_ours(deadline)
        await self._sender.send(self._state_topic, batch.state())
        _still_ours(deadline)
        return None

    async def close(self) -> None:
        """Stop the producer."""
        await _stop_producer(self._producer)


class ObjectWriter:
    """Writes large bodies as objects, then the batch with their keys; a forgotten session's objects go before it."""

    def __init__(self, writer: Writer, objects: Objects) -> None:
        self._writer = writer
        self._objects = objects
        self.open = writer.open
        self.close = writer.close

    async def write(self, batch: Batch) -> int | None:
        """Write a batch; nothing of it names an object that is not there."""
        outputs = [await self._named(output) for output in batch.outputs]
        for output in outputs:
            if output.key and any(name == names.FORGOTTEN for name, _ in output.headers):
                await self._objects.forget(output.key)
        return await self._writer.write(structs.replace(batch, outputs=outputs))

    async def _named(self, output: Output) -> Output:
        value, key = output.value, output.key
        if output.topic != PROVIDER_REQUESTS or not key or len(value or b"") < self._objects.threshold_bytes:
            return output
        dataref = await self._objects.put(key, value or b"")
        return structs.replace(output, value=None, headers=(*output.headers, (names.DATAREF, dataref.encode())))


def writer_for(runtime: Runtime, topic: str, partition: int, stage: Stage) -> Writer:
    """The writer of a source partition, by the worker's configuration."""
    writer: Writer
    if runtime.exactly_once:
        writer = ExactlyOnceWriter(runtime, topic, stage.state_topic, partition)
    else:
        writer = AtLeastOnceWriter(runtime, stage.state_topic, partition)
    return writer if runtime.objects is None else ObjectWriter(writer, runtime.objects)


def _still_ours(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise PartitionLostError("stuck", "a batch took longer than the session; its partition may have a new owner")


async def _stop_producer(producer: AIOKafkaProducer) -> None:
    """Stop a producer; within a bound, since without a broker the client's own way waits for deliveries for ever."""
    with contextlib.suppress(TimeoutError, KafkaError):
        async with asyncio.timeout(_STOP_SECONDS):
            await producer.stop()
            return
    task = producer._sender.sender_task  # noqa: SLF001  the client has no other way to give up
    while task is not None and not task.done():  # it waits for its own tasks one by one; each is cancelled in its turn
        task.cancel()
        await asyncio.wait([task], timeout=0.1)
    await producer.client.close()


class OffsetCommits:
    """Commits what it is told to, in the background; ``commit`` does it for several partitions at once.

    The position that counts stands in a partition's changelog, beside the state that it belongs to. So no batch waits
    for these commits, and one that is refused is left to the next. All partitions share them, a few a second.
    """

    def __init__(
        self,
        commit: Callable[[Mapping[TP, int]], Awaitable[object]],
        committed_by_hand: Callable[[TP], Awaitable[int | None]],
    ) -> None:
        self._commit = commit
        self._committed_by_hand = committed_by_hand
        self._waiting: dict[TP, int] = {}
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def soon(self, partition: TP, offset: int) -> None:
        """Commit this next offset within a moment."""
        self._waiting[partition] = offset
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    async def name_moved(self, partition: TP, position: int) -> None:
        """Say so where the group's offset was moved by hand; the position that counts is the state's."""
        moved = await self._committed_by_hand(partition)
        if moved is not None and moved != position:
            log.warning(
                "%s partition %d: the group's offset was moved by hand to %d, which changes nothing: the worker goes "
                "on at %d, where its state stands. To process records again, start a pipeline of its own, with another "
                "--prefix.",
                *(partition.topic, partition.partition, moved, position),
            )

    async def finish(self) -> None:
        """Commit what waits now, and wait for it a moment at most."""
        if self._task is None:
            return
        self._hurry.set()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._task), _LAST_COMMIT_SECONDS)
        self._hurry.clear()

    async def _run(self) -> None:
        while self._waiting:
            offsets, self._waiting = self._waiting, {}
            await self._commit(offsets)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), _PAUSE_SECONDS)
