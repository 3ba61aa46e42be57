"""The partitions of topics: which exist, and which one a session's records go to."""

from __future__ import annotations

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.partitioner import DefaultPartitioner

from reknit.pipeline.errors import InputError
from reknit.pipeline.kafka import Cluster
from reknit.topics import qualified


async def partitions_of(consumer: AIOKafkaConsumer, cluster: Cluster, topic: str) -> list[int]:
    """Return the numbers of a topic's partitions.

    Raises:
        InputError: the topic does not exist.
    """
    name = qualified(topic, cluster.prefix)
    there = await every_place(consumer)
    if name not in there:
        raise topic_missing(name)
    return [place.partition for place in there[name]]


async def every_place(consumer: AIOKafkaConsumer) -> dict[str, list[TopicPartition]]:
    """Return the partitions of every topic, by the topic's name on the broker."""
    cluster = await consumer._client.fetch_all_metadata()  # noqa: SLF001  `topics` sends the same request and returns only names
    return {
        name: [TopicPartition(name, number) for number in sorted(cluster.partitions_for_topic(name))]
        for name in cluster.topics()
    }


def usual_partition(session: str, partitions: list[int]) -> int:
    """Return the partition that Kafka's default partitioner selects for a session."""
    found = DefaultPartitioner()(session.encode(), partitions, partitions)
    assert isinstance(found, int)  # noqa: S101  aiokafka is untyped here
    return found


def topic_missing(name: str) -> InputError:
    """Return the error for a topic that the cluster does not have."""
    return InputError("topic_missing", f"there is no topic {name}: run `reknit topics apply` first")
