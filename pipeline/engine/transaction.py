"""Exactly once: outputs, state and the next source offset in one Kafka transaction for each batch.

The offset stands in the state's changelog, beside the state that it belongs to, and the owner of a partition reads both
together. The group's own offset would say the same once more, for two more requests and a third partition in every
transaction; it follows a moment later (``offsets``).

The transactional id is the source partition's and never changes, so starting a producer does two things at once: it
fences whoever wrote for the partition before, a worker that was only stalled included, and it settles what that one
left open. Only behind it may state and position be read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import aiokafka.producer.sender
from aiokafka import AIOKafkaProducer
from aiokafka.errors import InvalidProducerEpoch, ProducerFenced

from pipeline.engine.errors import EngineError
from pipeline.engine.recovery import POSITION
from pipeline.engine.writer import Batch, Sender, side_by_side

if TYPE_CHECKING:
    from pipeline.engine.runtime import Runtime

# The first request of a transaction that follows another closely meets CONCURRENT_TRANSACTIONS: the broker is still
# writing markers. aiokafka then sleeps 20 ms; a broker in the same network needs a tenth of that. The general
# retry_backoff_ms stays as it is: lowering it too was measured to double the number of requests.
aiokafka.producer.sender.BACKOFF_OVERRIDE = 0.002


class TransactionWriter:
    """Writes one source partition's batches, each in a transaction of its own."""

    def __init__(self, runtime: Runtime, topic: str, state_topic: str, partition: int) -> None:
        """Topics are contract names; ``partition`` is the number in all of them."""
        tuning = runtime.tuning
        self._state_topic = state_topic
        self._source = f"{runtime.prefix}{topic} partition {partition}"
        self._producer = AIOKafkaProducer(
            bootstrap_servers=runtime.bootstrap,
            transactional_id=f"{runtime.group}-{topic}-{partition}",
            transaction_timeout_ms=int(tuning.transaction_seconds * 1000),
            compression_type=tuning.compression,
            max_batch_size=tuning.send_batch_bytes,
            request_timeout_ms=int(tuning.batch_seconds * 1000),
        )
        self._sender = Sender(self._producer, runtime.prefix, partition)

    async def open(self) -> None:
        """Start the producer, which fences the partition's former owner and settles its open transaction."""
        await self._producer.start()

    async def write(self, batch: Batch) -> None:
        """Write a batch and commit it.

        Raises:
            EngineError: ``fenced``, when another worker has taken the partition over.
        """
        try:
            await self._write(batch)
        except (ProducerFenced, InvalidProducerEpoch) as error:
            raise EngineError("fenced", f"another worker owns {self._source}") from error

    async def _write(self, batch: Batch) -> None:
        producer = self._producer
        state = [(key, value, ()) for key, value in batch.changes.items()]
        state.append((POSITION, b"%d" % batch.position, ()))
        await producer.begin_transaction()
        await side_by_side(self._sender.send_outputs(batch.outputs), self._sender.send(self._state_topic, state))
        await producer.commit_transaction()

    async def close(self) -> None:
        """Stop the producer."""
        await self._producer.stop()
