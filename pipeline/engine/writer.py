"""What both writers share: the batch to write, and sending rows through whole batches."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Protocol

from aiokafka import AIOKafkaProducer
from aiokafka.errors import MessageSizeTooLargeError
from aiokafka.producer.message_accumulator import BatchBuilder
from msgspec import Struct

from pipeline.engine.errors import EngineError
from pipeline.stages.base import Headers, Output

Row = tuple[bytes | None, bytes | None, Headers]

# A broker takes requests up to socket.request.max.bytes, 100 MiB by default: batches of this size go one by one.
_LARGE = 16 << 20


class Batch(Struct, frozen=True):
    """What one commit makes durable. Topics are contract names; ``position`` is the next source offset."""

    outputs: Sequence[Output]
    changes: dict[bytes, bytes | None]
    position: int


class Writer(Protocol):
    """Makes a partition's batches durable, one at a time."""

    async def open(self) -> None:
        """Take the partition over from whoever wrote for it before."""

    async def write(self, batch: Batch) -> None:
        """Make outputs, state and position durable; when it raises, the position has not moved."""

    async def close(self) -> None:
        """Let go of connections. An open transaction is left to the next owner, which settles it."""


async def side_by_side(*work: Coroutine[Any, Any, object]) -> None:
    """Run coroutines at once; when one raises, the others are cancelled and its error is raised, bare."""
    if len(work) == 1:
        await work[0]  # most batches write to one topic, and a task is a turn of the event loop more
        return
    try:
        async with asyncio.TaskGroup() as group:
            for coroutine in work:
                group.create_task(coroutine)
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


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

    async def send(self, topic: str, rows: Iterable[Row]) -> None:
        """Send rows to one topic and return once they are delivered.

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
        delivered.append(await self._submit(batch, name))
        try:
            for future in delivered:
                await future
        except MessageSizeTooLargeError as error:
            raise EngineError(
                "message_too_large",
                f"{name} refuses a record that the contract allows; `reknit topics apply` sets max.message.bytes",
            ) from error

    async def _submit(self, batch: BatchBuilder, name: str) -> asyncio.Future[object]:
        batch.close()
        if batch.size() < _LARGE:
            return await self._queue(batch, name)
        async with self._large:
            future = await self._queue(batch, name)
            await asyncio.wait([future])
        return future

    async def _queue(self, batch: BatchBuilder, name: str) -> asyncio.Future[object]:
        future: asyncio.Future[object] = await self._producer.send_batch(batch, name, partition=self._partition)
        return future
