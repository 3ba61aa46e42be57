"""Kafka access of the commands: the wait for a broker, writing and reading records, and administration.

Every call has a time limit, and every failure is a typed error.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import (
    GroupCoordinatorNotAvailableError,
    KafkaError,
    MessageSizeTooLargeError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
    for_code,
)
from aiokafka.partitioner import DefaultPartitioner
from aiokafka.protocol.admin import DeleteGroupsRequest

from reknit.pipeline.cli import fail
from reknit.pipeline.errors import BrokerDownError, BrokerError, InputError, ReknitError
from reknit.pipeline.kafka import Cluster, connection, explained
from reknit.pipeline.settings import Config
from reknit.topics import LARGEST_INPUT, LARGEST_OUTPUT, qualified
from reknit.topics.cluster import Found, Wanted

T = TypeVar("T")

# Interval of attempts while no broker answers.
_LOOK_SECONDS = 0.5


def run_with_broker(config: Config, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run work that needs a broker once one answers; on failure, report the error and exit."""

    async def run() -> T:
        if config.wait_seconds:
            await _until_one_answers(config)
        return await work()

    try:
        return asyncio.run(run())
    except ReknitError as error:
        fail(error)


async def unless_stopped(work: Coroutine[Any, Any, None]) -> bool:
    """Run work until it is done, or until Ctrl-C or SIGTERM; return whether it is done."""
    task = asyncio.ensure_future(work)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        return False
    return True


async def _until_one_answers(config: Config) -> None:
    clock = asyncio.get_running_loop().time
    end = clock() + config.wait_seconds
    while True:
        client = AIOKafkaClient(**connection(config))
        try:
            await client.bootstrap()
        except KafkaError as error:
            why = await explained(config, error)
            if clock() >= end or not isinstance(why, BrokerDownError):
                raise why from error
            await asyncio.sleep(_LOOK_SECONDS)
        else:
            return
        finally:
            await client.close()


# Records in flight. Delivery stays in order: aiokafka has one batch in flight for each partition.
OUTSTANDING = 500
# After this time without an answer the broker counts as down.
ANSWER_SECONDS = 15


class Sender:
    """Sends records to one topic, in order for each session; a record without a key goes to the default session."""

    def __init__(self, producer: AIOKafkaProducer, topic: str, key: bytes) -> None:
        self._producer = producer
        self._topic = topic
        self._key = key
        self._sent: list[Awaitable[Any]] = []
        self.count = 0

    async def send(
        self, value: bytes | None, headers: list[tuple[str, bytes]] | None = None, key: bytes | None = None
    ) -> None:
        """Send a record; wait while too many are in flight.

        Raises:
            InputError: the record is larger than the topic allows.
        """
        try:
            sent = await self._producer.send(self._topic, value=value, key=key or self._key, headers=headers or [])
            self._sent.append(sent)
        except MessageSizeTooLargeError as error:
            size = len(value or b"")
            raise InputError("record_too_large", f"a record of {size} bytes; {LARGEST_INPUT} is the most") from error
        self.count += 1
        if len(self._sent) >= OUTSTANDING:
            await self.delivered()

    async def delivered(self) -> None:
        waiting, self._sent = self._sent, []
        await asyncio.gather(*waiting)


@asynccontextmanager
async def producing(config: Config) -> AsyncIterator[AIOKafkaProducer]:
    """Yield a producer that waits for all replicas.

    Raises:
        BrokerError: no broker answers, or it refuses.
    """
    producer = AIOKafkaProducer(
        **connection(config), acks="all", max_request_size=LARGEST_INPUT, request_timeout_ms=ANSWER_SECONDS * 1000
    )
    try:
        await asyncio.wait_for(producer.start(), ANSWER_SECONDS)
        yield producer
    except (KafkaError, TimeoutError) as error:
        raise await explained(config, error) from error
    finally:
        await producer.stop()


@asynccontextmanager
async def sender(config: Config, topic: str, session: str) -> AsyncIterator[Sender]:
    """Yield a sender for one session; every record is delivered when the block ends.

    Raises:
        BrokerError: no broker answers, or it refuses.
        InputError: the topic does not exist.
    """
    name = qualified(topic, config.prefix)
    async with producing(config) as producer:
        # Not partitions_for: for a missing topic it asks without end, or makes the broker create the topic.
        cluster = await producer.client.fetch_all_metadata()
        if not cluster.partitions_for_topic(name):
            raise _topic_missing(name)
        sending = Sender(producer, name, session.encode())
        yield sending
        await sending.delivered()


# A poll that only passes transaction markers returns nothing, so the last poll costs this wait.
POLL_MS = 50


@asynccontextmanager
async def reader(config: Config) -> AsyncIterator[AIOKafkaConsumer]:
    """Yield a consumer without a group that reads committed records only.

    Raises:
        BrokerError: no broker answers, or it refuses.
    """
    consumer = AIOKafkaConsumer(
        **connection(config),
        isolation_level="read_committed" if config.delivery == "exactly-once" else "read_uncommitted",
        # With the default, assign() starts at the end and overrides seek_to_beginning().
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_partition_fetch_bytes=LARGEST_OUTPUT,
        fetch_max_wait_ms=POLL_MS,
    )
    try:
        await consumer.start()
        yield consumer
    except KafkaError as error:
        raise await explained(config, error) from error
    finally:
        await consumer.stop()


async def read_partitions(
    consumer: AIOKafkaConsumer,
    places: Collection[TopicPartition],
    since_ms: int | None = None,
    on_progress: Callable[[int, int], None] = lambda _done, _all: None,
    *,
    stretches: Mapping[TopicPartition, tuple[int, int]] | None = None,
) -> AsyncIterator[ConsumerRecord]:
    """Yield all records that the partitions have now, each partition's oldest first.

    Args:
        consumer: a consumer without a group.
        places: the partitions.
        since_ms: skip records that are older, in milliseconds since the epoch.
        on_progress: called with the number of offsets that were read, and of all.
        stretches: for a partition, the first offset to read and the first that is not read.
    """
    if not places:
        return
    consumer.assign(list(places))
    ends = await consumer.end_offsets(places)
    await consumer.seek_to_beginning(*places)
    if since_ms is not None:
        for place, found in (await consumer.offsets_for_times(dict.fromkeys(places, since_ms))).items():
            consumer.seek(place, ends[place] if found is None else found.offset)
    bounds = stretches or {}
    for place, (first, behind) in bounds.items():
        ends[place] = min(ends[place], behind)
        consumer.seek(place, max(first, await consumer.position(place)))
    at = {place: await consumer.position(place) for place in places}
    every = sum(max(0, ends[place] - at[place]) for place in places)
    while missing := {place: ends[place] - at[place] for place in places if at[place] < ends[place]}:
        on_progress(every - sum(missing.values()), every)
        for place, records in (await consumer.getmany(*missing, timeout_ms=POLL_MS)).items():
            for record in records:
                # Yield the rest of the last batch too: the embedded broker reports ends inside of it.
                if place not in bounds or record.offset < bounds[place][1]:
                    yield record
        at = {place: await consumer.position(place) for place in places}


async def partitions_of(consumer: AIOKafkaConsumer, config: Config, topic: str) -> list[int]:
    """Return the numbers of a topic's partitions.

    Raises:
        InputError: the topic does not exist.
    """
    name = qualified(topic, config.prefix)
    there = await every_place(consumer)
    if name not in there:
        raise _topic_missing(name)
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


def _topic_missing(name: str) -> InputError:
    return InputError("topic_missing", f"there is no topic {name}: run `reknit topics apply` first")


# Administration of a cluster.

# Kafka's codes for a group with members and for a missing group; the client defines neither.
_NON_EMPTY_GROUP, _NO_SUCH_GROUP = 68, 69
# Origin of a setting in a broker's answer: the topic itself (KIP-226).
_ON_THE_TOPIC = 1


class Admin:
    """Administration of one cluster; created by ``connected``."""

    def __init__(self, client: AIOKafkaAdminClient) -> None:
        self._client = client

    async def cluster_id(self) -> str:
        """Return the id of the cluster, or ``""`` if it has none."""
        return str((await self._client.describe_cluster()).get("cluster_id") or "")

    async def describe(self, names: Collection[str]) -> dict[str, Found]:
        """Return the named topics that exist, with their settings."""
        # A request that names a topic creates it on brokers that create topics automatically.
        every = await self._client.describe_topics()
        layouts = {topic["topic"]: topic["partitions"] for topic in every if topic["topic"] in names}
        if not layouts:
            return {}
        # All settings: the embedded broker drops the connection if a request names some.
        resources = [ConfigResource(ConfigResourceType.TOPIC, name, None) for name in layouts]
        answers = await self._client.describe_configs(resources)
        found = {}
        for code, message, _, name, entries in (resource for answer in answers for resource in answer.resources):
            _refused(f"describe {name}", code, message)
            found[name] = _found(name, layouts[name], entries)
        return found

    async def create(self, topics: Iterable[Wanted]) -> None:
        """Create topics; one that exists already is not changed."""
        new = [
            NewTopic(topic.name, topic.partitions, topic.replication_factor, topic_configs=topic.settings)
            for topic in topics
        ]
        if not new:
            return
        answer = await self._client.create_topics(new)
        for name, code, message in answer.topic_errors:
            if code != TopicAlreadyExistsError.errno:
                _refused(f"create {name}", code, message)

    async def alter(self, name: str, settings: dict[str, str]) -> None:
        """Set a topic's settings; settings that are not named return to the broker's defaults."""
        for answer in await self._client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, settings)]):
            for code, message, *_ in answer.resources:
                _refused(f"alter {name}", code, message)

    async def delete(self, topics: Collection[str]) -> None:
        """Delete topics; a topic that is missing already is no error."""
        for name, code, *_ in (await self._client.delete_topics(list(topics))).topic_error_codes:
            if code != UnknownTopicOrPartitionError.errno:
                _refused(f"delete {name}", code, None)

    async def next_offsets(
        self, group: str, places: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, int]:
        """Return a group's next offset in each partition where it has committed one.

        ``places`` limits the answer. The embedded broker only answers for partitions that are named.
        """
        return {place: offset for place, (offset, _) in (await self.committed(group, places)).items()}

    async def committed(
        self, group: str, places: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, tuple[int, str]]:
        """Return what ``next_offsets`` does, with the metadata of each commit."""
        named = None if places is None else list(places)
        try:
            found = await self._client.list_consumer_group_offsets(group, partitions=named)
        except GroupCoordinatorNotAvailableError:
            return {}  # the topic of offsets does not exist yet: no group of this cluster has committed any
        return {place: (each.offset, each.metadata) for place, each in found.items() if each.offset >= 0}

    async def is_at_work(self, group: str) -> bool:
        """Return whether a group has members."""
        try:
            (answer,) = await self._client.describe_consumer_groups([group])
        except GroupCoordinatorNotAvailableError:
            return False  # as above
        ((code, _, state, *_),) = answer.groups
        if code != _NO_SUCH_GROUP:
            _refused(f"describe group {group}", code, None)
        return state not in {"", "Dead", "Empty"}

    async def delete_group(self, group: str) -> None:
        """Delete a group, if it exists.

        Raises:
            InputError: ``group_at_work``, if it has members.
        """
        request, node = DeleteGroupsRequest([group]), await self._client.find_coordinator(group)
        answer = await self._client._send_request(request, node)  # noqa: SLF001  the client has no call for this request
        ((_, code),) = answer.results
        if code == _NON_EMPTY_GROUP:
            raise InputError("group_at_work", f"processes of group {group} are still at work; end them first")
        if code != _NO_SUCH_GROUP:
            _refused(f"delete group {group}", code, None)


@asynccontextmanager
async def connected(cluster: Cluster, timeout_seconds: float = 30.0) -> AsyncIterator[Admin]:
    """Yield the administration of a cluster.

    Raises:
        BrokerError: the cluster cannot be reached, refuses a request, or did not answer in time. The time limit covers
            the whole block.
    """
    client = AIOKafkaAdminClient(**connection(cluster), request_timeout_ms=int(timeout_seconds * 1000))
    try:
        async with asyncio.timeout(timeout_seconds):
            await client.start()
            yield Admin(client)
    except (KafkaError, TimeoutError) as error:
        raise await explained(cluster, error) from error
    finally:
        await client.close()


def _found(name: str, partitions: list[dict[str, Any]], entries: list[tuple[Any, ...]]) -> Found:
    settings: dict[str, str] = {}
    overrides: dict[str, str] = {}
    for setting, value, _, source, *_ in entries:
        # A secret setting has no value in the answer.
        if value is None:
            continue
        settings[setting] = value
        if source == _ON_THE_TOPIC:
            overrides[setting] = value
    copies = min((len(partition["replicas"]) for partition in partitions), default=0)
    return Found(name, len(partitions), copies, settings, overrides)


def _refused(what: str, code: int, message: str | None) -> None:
    if code:
        kind: type[KafkaError] = for_code(code)
        raise BrokerError(
            "broker_refused", f"{what}: {message or kind.description or kind.message} ({kind.__name__}[{code}])"
        )
