"""What commands do on a broker: write a session's records, and read a partition as far as it goes now."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError, MessageSizeTooLargeError
from aiokafka.partitioner import DefaultPartitioner

from pipeline.config import Config
from pipeline.errors import InputError
from topics import LARGEST_INPUT, LARGEST_OUTPUT, qualified

# What may be on its way at once. Delivery stays in order: aiokafka has one batch in flight for each partition.
OUTSTANDING = 500
# How long a broker may take to answer before the command says that it is down.
ANSWER_SECONDS = 15


class Sender:
    """Sends one session's records to one topic, in order."""

    def __init__(self, producer: AIOKafkaProducer, topic: str, key: bytes) -> None:
        self._producer = producer
        self._topic = topic
        self._key = key
        self._sent: list[Awaitable[Any]] = []
        self.count = 0

    async def send(self, value: bytes | None, headers: list[tuple[str, bytes]] | None = None) -> None:
        """Hand a record over; waits where too many are on their way.

        Raises:
            InputError: the record is larger than its topic takes.
        """
        try:
            self._sent.append(await self._producer.send(self._topic, value=value, key=self._key, headers=headers or []))
        except MessageSizeTooLargeError as error:
            size = len(value or b"")
            raise InputError("record_too_large", f"a record of {size} bytes; {LARGEST_INPUT} is the most") from error
        self.count += 1
        if len(self._sent) >= OUTSTANDING:
            await self.delivered()

    async def delivered(self) -> None:
        """Wait until the broker has everything that was handed over."""
        waiting, self._sent = self._sent, []
        await asyncio.gather(*waiting)


@asynccontextmanager
async def sender(config: Config, topic: str, session: str) -> AsyncIterator[Sender]:
    """A sender for one session; everything is delivered when the block ends.

    Raises:
        InputError: no broker answers, or the topic does not exist.
    """
    producer = AIOKafkaProducer(
        bootstrap_servers=config.bootstrap_servers,
        acks="all",
        max_request_size=LARGEST_INPUT,
        request_timeout_ms=ANSWER_SECONDS * 1000,
    )
    name = qualified(topic, config.prefix)
    try:
        await asyncio.wait_for(producer.start(), ANSWER_SECONDS)
        # Not partitions_for: where a topic is missing that asks on and on, or has the broker make it.
        cluster = await producer.client.fetch_all_metadata()
        if not cluster.partitions_for_topic(name):
            raise InputError("topic_missing", f"there is no topic {name}: run `reknit topics apply` first")
        sending = Sender(producer, name, session.encode())
        yield sending
        await sending.delivered()
    except (KafkaError, TimeoutError) as error:
        reason = str(error) or "no answer"
        raise InputError(
            "broker_unreachable", f"{config.bootstrap_servers} does not take records ({reason}); is the broker up?"
        ) from error
    finally:
        await producer.stop()


# A poll that only passes transaction markers returns nothing; a short wait keeps the last one from being felt.
POLL_MS = 50


@asynccontextmanager
async def reader(config: Config) -> AsyncIterator[AIOKafkaConsumer]:
    """A consumer without a group that sees only what is committed.

    Raises:
        InputError: no broker answers.
    """
    consumer = AIOKafkaConsumer(
        bootstrap_servers=config.bootstrap_servers,
        isolation_level="read_committed" if config.delivery == "exactly-once" else "read_uncommitted",
        # With the default, assign() starts at the end and wins over seek_to_beginning().
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_partition_fetch_bytes=LARGEST_OUTPUT,
    )
    try:
        await consumer.start()
        yield consumer
    except KafkaError as error:
        raise InputError(
            "broker_unreachable", f"{config.bootstrap_servers} does not answer ({error}); is the broker up?"
        ) from error
    finally:
        await consumer.stop()


async def read_partition(consumer: AIOKafkaConsumer, topic: str, partition: int) -> AsyncIterator[ConsumerRecord]:
    """All records of a partition that are there now, oldest first."""
    place = TopicPartition(topic, partition)
    consumer.assign([place])
    end = (await consumer.end_offsets([place]))[place]
    await consumer.seek_to_beginning(place)
    while await consumer.position(place) < end:
        for record in (await consumer.getmany(place, timeout_ms=POLL_MS)).get(place, ()):
            yield record


async def partition_of(consumer: AIOKafkaConsumer, config: Config, topic: str, session: str) -> int:
    """The partition where clients with Kafka's default partitioner put a session.

    Raises:
        InputError: the topic does not exist.
    """
    name = qualified(topic, config.prefix)
    if name not in await consumer.topics():
        raise InputError("topic_missing", f"there is no topic {name}: run `reknit topics apply` first")
    # The consumer learns a topic's partitions only once it has something to do with one of them.
    first = TopicPartition(name, 0)
    consumer.assign([first])
    await consumer.end_offsets([first])
    partitions = sorted(consumer.partitions_for_topic(name) or {0})
    found = DefaultPartitioner()(session.encode(), partitions, partitions)
    assert isinstance(found, int)  # noqa: S101  aiokafka is untyped here
    return found
