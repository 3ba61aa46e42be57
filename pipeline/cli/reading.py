"""Reading a partition from its start to where it ended when the reading began."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.partitioner import DefaultPartitioner

from pipeline.config import Config
from pipeline.errors import InputError
from topics import LARGEST_OUTPUT, qualified

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
