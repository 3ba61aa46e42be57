"""Writers that make a batch durable: exactly once, or at least once on brokers without transactions.

Both write the next source offset to the state's changelog, together with its state, and the owner of a partition reads
both. The group's own offsets follow a moment later, for other tools (``offsets``).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import InvalidProducerEpoch, KafkaError, ProducerFenced

from reknit.pipeline.engine.commit import Batch, Writer
from reknit.pipeline.engine.connections import close_client, is_cancelled
from reknit.pipeline.engine.epochs import RETRY_PAUSE_MS, Epochs, IsOurs
from reknit.pipeline.engine.large_values import ObjectWriter
from reknit.pipeline.engine.lease import Lease
from reknit.pipeline.engine.limits import RefusedSizeError
from reknit.pipeline.engine.runtime import NotAuthorizedError, PartitionLostError
from reknit.pipeline.engine.seams import Brokers
from reknit.pipeline.engine.sending import Sender, side_by_side
from reknit.pipeline.kafka import REFUSALS, refusal
from reknit.pipeline.stages.base import Stage

if TYPE_CHECKING:
    from reknit.pipeline.engine.runtime import Runtime


# Time limit of the last deliveries of a producer that is given up.
_STOP_SECONDS = 2.0


def _make_producer(runtime: Runtime, **own: Any) -> AIOKafkaProducer:  # noqa: ANN401  the client's options
    tuning = runtime.tuning
    return runtime.seams.brokers.producer(
        **runtime.connection,
        compression_type=None if tuning.compression == "none" else tuning.compression,
        request_timeout_ms=int(tuning.batch_seconds * 1000),
        retry_backoff_ms=RETRY_PAUSE_MS,
        **{"max_batch_size": tuning.send_batch_bytes} | own,
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
        self._brokers = runtime.seams.brokers
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
            first = self._brokers.first_error(self._producer)
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
        await _stop_producer(self._brokers, self._producer, self._stop_seconds)
        self._producer = self._new_producer()
        self._sender = self._new_sender(self._producer)
        await self._producer.start()

    async def close(self) -> None:
        """Stop the producer."""
        await _stop_producer(self._brokers, self._producer, self._stop_seconds)


class AtLeastOnceWriter:
    """Writes one source partition's batches in an order that loses nothing in a crash.

    It writes outputs first, then state and position. A crash between the two repeats the outputs of one batch. Their
    ids are derived from source positions, so a reader sees the same ids again. State and position are one record batch,
    which a broker appends whole or not at all. So the state is never ahead of the position and never applied twice.
    Only state that exceeds the changelog's ``max.message.bytes`` is divided; a crash may then leave a part of it.

    Without a transaction there is no fence for a former owner. A worker that was suspended or cut off for longer than
    its session may continue with a batch, and its state records would follow those of the new owner. So it sends only
    while its lease of the group lasts (``lease``). A request on its way at the end of the lease remains unprotected.
    """

    def __init__(self, runtime: Runtime, state_topic: str, partition: int) -> None:
        """``state_topic`` is a contract name; ``partition`` is the number in every topic."""
        self._brokers, self._clock = runtime.seams.brokers, runtime.seams.clock
        self._state_topic = state_topic
        self._look_seconds = runtime.tuning.heartbeat_seconds  # a lease may end early
        self._stop_seconds = runtime.tuning.at_stop(_STOP_SECONDS)
        self._producer = _make_producer(runtime, acks="all", max_batch_size=sys.maxsize)
        self._sender = Sender(
            self._producer,
            runtime.prefix,
            partition,
            runtime.limits,
            runtime.tuning.compression,
            output_batch_bytes=runtime.tuning.send_batch_bytes,
        )

    async def open(self) -> None:
        """Connect. No former owner is fenced."""
        await self._producer.start()

    async def write(self, batch: Batch) -> int | None:
        """Write a batch: the outputs are delivered before the state is sent.

        Raises:
            PartitionLostError: ``stuck``, if the lease of the group ended.
            RefusedSizeError: as ``Sender.send``. Records that other topics accepted will be repeated.
        """
        await self._send_within(batch.lease, self._sender.send_outputs(batch.outputs))
        await self._send_within(batch.lease, self._sender.send(self._state_topic, batch.state()))
        return None

    async def _send_within(self, lease: Lease, sending: Coroutine[Any, Any, object]) -> None:
        """Send while the lease lasts. Heartbeats may renew it meanwhile."""
        task = asyncio.ensure_future(sending)
        try:
            while (left := lease.until - self._clock.monotonic()) > 0:
                if task.done():
                    await task
                    return
                await asyncio.wait([task], timeout=min(left, self._look_seconds))
        finally:
            task.cancel()
        # A delivery that continues, also while the producer stops, would follow those of the new owner.
        await self._brokers.abandon(self._producer)
        raise PartitionLostError("stuck", "no heartbeat was answered for a session; the partition may have a new owner")

    async def close(self) -> None:
        """Stop the producer."""
        await _stop_producer(self._brokers, self._producer, self._stop_seconds)


def writer_for(runtime: Runtime, topic: str, partition: int, is_ours: IsOurs, stage: Stage) -> Writer:
    """Return the writer of a source partition for the worker's configuration."""
    writer: Writer
    if runtime.exactly_once:
        writer = ExactlyOnceWriter(runtime, topic, stage.state_topic, partition, is_ours)
    else:
        writer = AtLeastOnceWriter(runtime, stage.state_topic, partition)
    return writer if runtime.objects is None else ObjectWriter(writer, runtime.objects)


async def _stop_producer(brokers: Brokers, producer: AIOKafkaProducer, seconds: float) -> None:
    """Stop a producer within a time limit: without a broker the client would wait for deliveries without end."""
    try:
        async with asyncio.timeout(seconds):
            await producer.stop()
    except asyncio.CancelledError:
        if is_cancelled():
            raise
    except (TimeoutError, KafkaError):
        pass
    else:
        return
    await brokers.abandon(producer)
    await close_client(producer.client, seconds / 4)
