"""Writers that make a batch durable: exactly once, or at least once on brokers without transactions.

Both write the next source offset to the state's changelog, together with its state, and the owner of a partition reads
both. The group's own offsets follow a moment later, for other tools (``offsets``).
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import aiokafka.producer.sender
from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    InvalidProducerEpoch,
    KafkaError,
    MessageSizeTooLargeError,
    ProducerFenced,
    RecordListTooLargeError,
)
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.structs import RecordMetadata
from msgspec import Struct, structs

from reknit.pipeline.engine.batches import row_size
from reknit.pipeline.engine.connections import close_client
from reknit.pipeline.engine.epochs import RETRY_PAUSE_MS, Epochs, IsOurs
from reknit.pipeline.engine.limits import RefusedSizeError, TopicLimits
from reknit.pipeline.engine.runtime import NotAuthorizedError, PartitionLostError
from reknit.pipeline.kafka import REFUSALS, refusal
from reknit.pipeline.objects import Objects
from reknit.pipeline.stages.base import STATE_FORMATS, Output, Stage
from reknit.topics import PROVIDER_REQUESTS
from reknit.topics import headers as names
from reknit.topics.headers import Headers
from reknit.topics.positions import UNMARKED, PositionMark, position_row

if TYPE_CHECKING:
    from reknit.pipeline.engine.runtime import Runtime

Row = tuple[bytes | None, bytes | None, Headers]

# If a transaction follows another closely, its first request gets CONCURRENT_TRANSACTIONS: the broker is still writing
# markers. aiokafka then sleeps 20 ms; a broker in the same network needs a tenth of that. The general retry_backoff_ms
# keeps its default: a lower one was measured to double the number of requests.
aiokafka.producer.sender.BACKOFF_OVERRIDE = 0.002

# A broker accepts requests up to socket.request.max.bytes, 100 MiB by default: batches of this size are sent one by
# one.
_LARGE = 16 << 20
MAX_MESSAGE_BYTES = "max.message.bytes"
# Kafka's numbers of the codecs.
_CODECS = {None: 0, "lz4": 3, "zstd": 4}
# Time limit of the last deliveries of a producer that is given up.
_STOP_SECONDS = 2.0


class Batch(Struct, frozen=True):
    """The contents of one commit. ``position`` is the next source offset; topics are contract names.

    ``has_due``: records kept in state are still due after it. ``start`` is the group's offset before it, None if that
    is unknown.
    """

    outputs: Sequence[Output]
    changes: dict[bytes, bytes | None]
    position: int
    state_format: int = STATE_FORMATS[0]
    has_due: bool = False
    mark: PositionMark = UNMARKED
    start: int | None = None

    @property
    def group_offset(self) -> int:
        """The offset for the group."""
        return group_offset(self.position, has_due=self.has_due)

    def state(self) -> list[Row]:
        """The records of the changelog."""
        changes: list[Row] = [(key, value, ()) for key, value in self.changes.items()]
        return [*changes, position_row(self.position, self.state_format, self.mark)]


def group_offset(position: int, *, has_due: bool) -> int:
    """Return the offset to commit for the group: one less than the position while earlier records are due.

    So the lag is not 0, and a replay that ends at the position does not end yet.
    """
    return max(0, position - 1) if has_due else position


class Writer(Protocol):
    """Writes a partition's batches durably, one at a time."""

    async def open(self) -> None:
        """Take the partition over from its former owner."""

    async def write(self, batch: Batch) -> int | None:
        """Make outputs, state and position durable; if it raises, the position has not moved.

        Returns the changelog's offset after the state; None if other writers may have written before it.
        """

    async def close(self) -> None:
        """Close connections. The next owner settles an open transaction."""


async def side_by_side(*work: Coroutine[Any, Any, Any]) -> list[Any]:
    """Run coroutines concurrently and return their results; if one raises, cancel the others and raise its error."""
    if len(work) == 1:
        return [await work[0]]  # most batches write to one topic, and a task costs one more turn of the event loop
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in work]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


class Sender:
    """Sends rows to topics of one partition number in batches, with one future per batch, not per record."""

    def __init__(
        self,
        producer: AIOKafkaProducer,
        prefix: str,
        partition: int,
        limits: TopicLimits | None = None,
        compression: str | None = None,
    ) -> None:
        self._producer = producer
        self._prefix = prefix
        self._partition = partition
        self._limits = limits or TopicLimits()
        self._compression = compression
        self._large = asyncio.Lock()

    def check_sizes(self, batch: Batch, state_topic: str) -> None:
        """Find records that are known to be too large for their topics.

        Raises:
            RefusedSizeError: there are some; nothing was sent.
        """
        for topic in {state_topic, *(output.topic for output in batch.outputs)}:
            if self._limits.refused_record(topic) is not None:
                self._check_rows(topic, batch.state() if topic == state_topic else _rows(batch.outputs, topic))

    def _check_rows(self, topic: str, rows: Sequence[Row]) -> None:
        refused = self._limits.refused_record(topic)
        if refused is not None and (found := self._too_large(rows, refused)):
            raise RefusedSizeError(topic, MAX_MESSAGE_BYTES, found)

    def _too_large(self, rows: Sequence[Row], refused: int) -> list[int]:
        return [
            at
            for at, row in enumerate(rows)
            if row_size(*row) >= refused and packed_size(row, self._compression) >= refused
        ]

    async def send_outputs(self, outputs: Sequence[Output]) -> None:
        """Send outputs, in order within each topic, and return once all are delivered."""
        topics = dict.fromkeys([output.topic for output in outputs])
        await side_by_side(*(self.send(topic, _rows(outputs, topic)) for topic in topics))

    async def send(self, topic: str, rows: Sequence[Row]) -> int:
        """Send rows to one topic, at least one, and return the offset after them once they are delivered.

        Raises:
            RefusedSizeError: the topic refuses a batch for its size; smaller batches of its records may be accepted.
        """
        self._check_rows(topic, rows)
        name = self._prefix + topic
        most = self._limits.batch_bytes(topic)
        delivered: list[tuple[BatchBuilder, asyncio.Future[RecordMetadata]]] = []
        batch = self._producer.create_batch()
        for row in rows:
            is_full = most is not None and batch.record_count() and batch.size() + row_size(*row) > most
            if is_full or not _appended(batch, row):
                delivered.append((batch, await self._submit(batch, name)))
                batch = self._producer.create_batch()
                _appended(batch, row)
        last = batch.record_count()
        delivered.append((batch, await self._submit(batch, name)))
        try:
            for batch, future in delivered:  # noqa: B007  the one that is refused
                sent = await future
        except (MessageSizeTooLargeError, RecordListTooLargeError) as error:
            size, count = batch.size(), batch.record_count()
            self._limits.note_refused(topic, size, count)
            setting = MAX_MESSAGE_BYTES if isinstance(error, MessageSizeTooLargeError) else "segment.bytes"
            raise RefusedSizeError(topic, setting, self._too_large(rows, size) if count == 1 else []) from error
        except REFUSALS as error:
            raise NotAuthorizedError("not_authorized", refusal(type(error)(name), "Write")) from error
        end_offset: int = sent.offset + last
        return end_offset

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
        # After one failed delivery the others are not awaited, and their errors are ignored.
        future.add_done_callback(lambda sent: sent.cancelled() or sent.exception())
        return future


def _rows(outputs: Sequence[Output], topic: str) -> list[Row]:
    return [(output.key, output.value, output.headers) for output in outputs if output.topic == topic]


def _appended(batch: BatchBuilder, row: Row) -> bool:
    key, value, headers = row
    return batch.append(key=key, value=value, timestamp=None, headers=list(headers)) is not None


def packed_size(row: Row, compression: str | None) -> int:
    """Return the bytes of a batch with this record alone, as a broker compares them with its limit."""
    key, value, headers = row
    builder = DefaultRecordBatchBuilder(
        2,
        _CODECS[compression],
        is_transactional=1,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=0,
        batch_size=sys.maxsize,
    )
    builder.append(0, None, key, value, list(headers))
    return len(builder.build())


def _make_producer(runtime: Runtime, **own: Any) -> AIOKafkaProducer:  # noqa: ANN401  the client's options
    tuning = runtime.tuning
    return AIOKafkaProducer(
        **runtime.connection,
        compression_type=tuning.compression,
        max_batch_size=tuning.send_batch_bytes,
        request_timeout_ms=int(tuning.batch_seconds * 1000),
        retry_backoff_ms=RETRY_PAUSE_MS,
        **own,
    )


class ExactlyOnceWriter:
    """Writes one source partition's batches, each in a Kafka transaction of outputs, state and position.

    The transactional id is that of the source partition and never changes, so the start of a producer has two effects:
    it fences the former owner, also one that only stalled, and it settles that owner's open transaction. State and
    position may only be read after it. Committing the group's own offset in the transaction would repeat the position,
    for two more requests and a third partition in every transaction.
    """

    def __init__(self, runtime: Runtime, topic: str, state_topic: str, partition: int, is_ours: IsOurs) -> None:
        """Topics are contract names; ``partition`` is the number in all of them; for ``is_ours`` see ``Epochs``."""
        self._state_topic = state_topic
        self._source = f"{runtime.source_prefix}{topic} partition {partition}"
        self._new_producer = partial(
            _make_producer,
            runtime,
            transactional_id=f"{runtime.group}-{topic}-{partition}",
            transaction_timeout_ms=int(runtime.tuning.transaction_seconds * 1000),
        )
        self._new_sender = partial(
            Sender,
            prefix=runtime.prefix,
            partition=partition,
            limits=runtime.limits,
            compression=runtime.tuning.compression,
        )
        self._stop_seconds = runtime.tuning.at_stop(_STOP_SECONDS)
        self._producer = self._new_producer()
        self._sender = self._new_sender(self._producer)
        self._epochs = Epochs(runtime, topic, partition, is_ours)

    async def open(self) -> None:
        """Start the producer, which fences the partition's former owner and settles its open transaction."""
        await self._producer.start()

    async def write(self, batch: Batch) -> int | None:
        """Write a batch and commit it.

        Raises:
            PartitionLostError: ``fenced``, if its transactional id was taken over or its transaction timed out;
                ``stuck``, as ``Epochs.renew``.
            RefusedSizeError: as ``Sender.send``. The next batch gives the transaction up.
        """
        self._sender.check_sizes(batch, self._state_topic)
        try:
            return await self._write(batch)
        except RefusedSizeError:
            self._epochs.is_spent = True
            raise
        except (ProducerFenced, InvalidProducerEpoch) as error:
            raise PartitionLostError(
                "fenced", f"another worker took {self._source} over, or its transaction timed out"
            ) from error
        except KafkaError as error:
            # If the broker refuses one topic, the error of a send to another topic hides the reason.
            waiter = self._producer._txn_manager._transaction_waiter  # noqa: SLF001  it has the first error
            first = waiter.exception() if waiter is not None and waiter.done() and not waiter.cancelled() else None
            if isinstance(first, REFUSALS):
                raise NotAuthorizedError("not_authorized", refusal(first, "Write")) from error
            raise

    async def _write(self, batch: Batch) -> int:
        if batch.start is not None:
            self._epochs.position = batch.start
        if self._epochs.is_spent:
            await self._epochs.renew(self._restart)
        producer = self._producer
        await producer.begin_transaction()
        state = self._sender.send(self._state_topic, batch.state())
        sent = await side_by_side(self._sender.send_outputs(batch.outputs), state)
        await self._epochs.commit(producer, batch.group_offset)
        end_offset: int = sent[-1]
        return end_offset

    async def _restart(self) -> None:
        await _stop_producer(self._producer, self._stop_seconds)
        self._producer = self._new_producer()
        self._sender = self._new_sender(self._producer)
        await self._producer.start()

    async def close(self) -> None:
        """Stop the producer."""
        await _stop_producer(self._producer, self._stop_seconds)


class AtLeastOnceWriter:
    """Writes one source partition's batches in an order that loses nothing in a crash.

    It writes outputs first, then state and position. A crash between the two repeats the outputs of one batch. Their
    ids are derived from source positions, so a reader sees the same ids again. State and position are in one topic
    partition and are read together, so the state is never ahead of the outputs and never applied twice.

    Without a transaction there is no fence for a former owner. A worker that was suspended for longer than its session
    may continue with a batch in flight, and its state records would follow those of the new owner. So before each step
    the writer checks the clock, and gives up once the batch is older than the session, since the partition may have
    another owner by then. The time between that check and the broker's append remains unprotected.
    """

    def __init__(self, runtime: Runtime, state_topic: str, partition: int) -> None:
        """``state_topic`` is a contract name; ``partition`` is the number in every topic."""
        self._state_topic = state_topic
        self._session_seconds = runtime.tuning.session_seconds
        self._stop_seconds = runtime.tuning.at_stop(_STOP_SECONDS)
        self._producer = _make_producer(runtime, acks="all")
        self._sender = Sender(self._producer, runtime.prefix, partition, runtime.limits, runtime.tuning.compression)

    async def open(self) -> None:
        """Connect. No former owner is fenced."""
        await self._producer.start()

    async def write(self, batch: Batch) -> int | None:
        """Write a batch: the outputs are delivered before the state is sent.

        Raises:
            PartitionLostError: ``stuck``, if the batch is older than the group's session.
            RefusedSizeError: as ``Sender.send``. Records that other topics accepted will be repeated.
        """
        deadline = time.monotonic() + self._session_seconds
        await self._sender.send_outputs(batch.outputs)
        _still_ours(deadline)
        await self._sender.send(self._state_topic, batch.state())
        _still_ours(deadline)
        return None

    async def close(self) -> None:
        """Stop the producer."""
        await _stop_producer(self._producer, self._stop_seconds)


class ObjectWriter:
    """Writes large bodies as objects, then the batch with their keys; first it deletes forgotten sessions' objects."""

    def __init__(self, writer: Writer, objects: Objects) -> None:
        self._writer = writer
        self._objects = objects
        self.open = writer.open
        self.close = writer.close

    async def write(self, batch: Batch) -> int | None:
        """Write a batch; every object that it names exists."""
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


def writer_for(runtime: Runtime, topic: str, partition: int, is_ours: IsOurs, stage: Stage) -> Writer:
    """Return the writer of a source partition for the worker's configuration."""
    writer: Writer
    if runtime.exactly_once:
        writer = ExactlyOnceWriter(runtime, topic, stage.state_topic, partition, is_ours)
    else:
        writer = AtLeastOnceWriter(runtime, stage.state_topic, partition)
    return writer if runtime.objects is None else ObjectWriter(writer, runtime.objects)


def _still_ours(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise PartitionLostError("stuck", "a batch took longer than the session; its partition may have a new owner")


async def _stop_producer(producer: AIOKafkaProducer, seconds: float) -> None:
    """Stop a producer within a time limit: without a broker the client would wait for deliveries without end."""
    with contextlib.suppress(TimeoutError, KafkaError):
        async with asyncio.timeout(seconds):
            await producer.stop()
            return
    task = producer._sender.sender_task  # noqa: SLF001  the client has no other way to stop
    while task is not None and not task.done():  # it waits for its tasks one by one; each is cancelled in turn
        task.cancel()
        await asyncio.wait([task], timeout=0.1)
    await close_client(producer.client, seconds / 4)
