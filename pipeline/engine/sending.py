"""Sending records to topics in batches, within the limits of the topics, and starting and stopping a producer."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Sequence
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import MessageSizeTooLargeError, RecordListTooLargeError
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.structs import RecordMetadata

from reknit.pipeline.engine.batches import row_size
from reknit.pipeline.engine.commit import Batch, Row
from reknit.pipeline.engine.limits import RefusedSizeError, TopicLimits
from reknit.pipeline.engine.runtime import NotAuthorizedError
from reknit.pipeline.kafka import REFUSALS, Compression, refusal
from reknit.pipeline.stages.base import Output

# A broker accepts requests up to socket.request.max.bytes, 100 MiB by default: batches of this size are sent one by
# one.
_LARGE = 16 << 20
MAX_MESSAGE_BYTES = "max.message.bytes"
# Kafka's numbers of the codecs.
_CODECS: dict[Compression, int] = {"none": 0, "gzip": 1, "lz4": 3, "zstd": 4}


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
        compression: Compression = "none",
        *,
        output_batch_bytes: int | None = None,
    ) -> None:
        """``output_batch_bytes`` limits batches of outputs, where the producer's limit is a larger one."""
        self._producer = producer
        self._output_batch_bytes = output_batch_bytes
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
        most = self._output_batch_bytes
        await side_by_side(*(self.send(topic, _rows(outputs, topic), most) for topic in topics))

    async def send(self, topic: str, rows: Sequence[Row], most: int | None = None) -> int:
        """Send rows to one topic, at least one, and return the offset after them once they are delivered.

        They are one batch if the topic and the producer accept it, and ``most`` bytes are not exceeded.

        Raises:
            RefusedSizeError: the topic refuses a batch for its size; smaller batches of its records may be accepted.
        """
        self._check_rows(topic, rows)
        name = self._prefix + topic
        most = min(filter(None, (most, self._limits.batch_bytes(topic))), default=None)
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


def packed_size(row: Row, compression: Compression) -> int:
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
