"""At least once, for brokers without transactions: outputs, then state with the position in it.

A crash between two of these steps repeats the outputs of one batch; their ids are derived from source positions, so a
reader sees the same ids again. State and position are in one topic partition and are read back together, so the state
is never ahead of the outputs and never applied twice.

What fences a former owner in a transaction is missing here. A worker that was stopped for longer than its session may
still have a batch in hand when it wakes, and its state records would come behind the new owner's. Before each step
the writer therefore looks at the clock, and gives up once the batch is older than the session: the partition may
belong to somebody else by now. What is left is the time between that look and the broker's append.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from aiokafka import AIOKafkaProducer

from pipeline.engine.errors import EngineError
from pipeline.engine.recovery import POSITION
from pipeline.engine.writer import Batch, Sender

if TYPE_CHECKING:
    from pipeline.engine.runtime import Runtime


class OrderedWriter:
    """Writes one source partition's batches in an order in which a crash loses nothing."""

    def __init__(self, runtime: Runtime, state_topic: str, partition: int) -> None:
        """``state_topic`` is a contract name; ``partition`` is the number in every topic."""
        tuning = runtime.tuning
        self._state_topic = state_topic
        self._session_seconds = tuning.session_seconds
        self._producer = AIOKafkaProducer(
            bootstrap_servers=runtime.bootstrap,
            acks="all",
            compression_type=tuning.compression,
            max_batch_size=tuning.send_batch_bytes,
            request_timeout_ms=int(tuning.batch_seconds * 1000),
        )
        self._sender = Sender(self._producer, runtime.prefix, partition)

    async def open(self) -> None:
        """Connect. Nobody is fenced."""
        await self._producer.start()

    async def write(self, batch: Batch) -> None:
        """Write a batch: the outputs are delivered before the state is sent.

        Raises:
            EngineError: ``stuck``, when the batch grew older than the group's session.
        """
        deadline = time.monotonic() + self._session_seconds
        await self._sender.send_outputs(batch.outputs)
        _still_ours(deadline)
        state = [(key, value, ()) for key, value in batch.changes.items()]
        state.append((POSITION, b"%d" % batch.position, ()))
        await self._sender.send(self._state_topic, state)
        _still_ours(deadline)

    async def close(self) -> None:
        """Stop the producer."""
        await self._producer.stop()


def _still_ours(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise EngineError("stuck", "a batch took longer than the session; its partition may have a new owner")
