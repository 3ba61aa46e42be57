"""What commands with a broker share: their options, the topics of a cluster, a session's records in and out.

Every call is bounded, and every failure a typed error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, TopicAlreadyExistsError, for_code
from aiokafka.partitioner import DefaultPartitioner
from msgspec import Struct

from pipeline.cli.output import fail
from pipeline.errors import BrokerDownError, BrokerError, InputError, ReknitError
from pipeline.kafka import Cluster, connection, explained
from pipeline.settings import Config
from topics import LARGEST_INPUT, LARGEST_OUTPUT, qualified
from topics.plan import Difference, Found, Wanted, altered, by_topic

T = TypeVar("T")

# Between two looks for a broker that does not answer yet.
_LOOK_SECONDS = 0.5


def run_with_broker(config: Config, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Do what needs a broker, once one answers; end the command with a sentence where that fails."""

    async def run() -> T:
        if config.wait_seconds:
            await _until_one_answers(config)
        return await work()

    try:
        return asyncio.run(run())
    except ReknitError as error:
        fail(error)


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


# A setting's origin in a broker's answer: made on the topic itself (KIP-226).
_ON_THE_TOPIC = 1
# A change is made by the controller and read from a broker, which hears of it a moment later.
_LOOK_AGAIN_SECONDS = 0.1
_HEARD_OF_SECONDS = 5.0


class Topics:
    """The topics of one cluster; made by ``connected``."""

    def __init__(self, client: AIOKafkaAdminClient) -> None:
        self._client = client

    async def describe(self, names: Collection[str]) -> dict[str, Found]:
        """Those of the named topics that exist, with their settings."""
        # Asking for a topic by name would create it on brokers that create topics when asked for one.
        every = await self._client.describe_topics()
        layouts = {topic["topic"]: topic["partitions"] for topic in every if topic["topic"] in names}
        if not layouts:
            return {}
        # All settings: the embedded broker drops the connection when asked for some by name.
        resources = [ConfigResource(ConfigResourceType.TOPIC, name, None) for name in layouts]
        answers = await self._client.describe_configs(resources)
        found = {}
        for code, message, _, name, entries in (resource for answer in answers for resource in answer.resources):
            _refused(f"describe {name}", code, message)
            found[name] = _found(name, layouts[name], entries)
        return found

    async def create(self, topics: Iterable[Wanted]) -> None:
        """Create topics; one that exists by now is left as it is."""
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
        """Give a topic these settings; those of its own that are not named go back to the broker's default."""
        for answer in await self._client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, settings)]):
            for code, message, *_ in answer.resources:
                _refused(f"alter {name}", code, message)


@asynccontextmanager
async def connected(cluster: Cluster, timeout_seconds: float = 30.0) -> AsyncIterator[Topics]:
    """The topics of a cluster.

    Raises:
        BrokerError: the cluster cannot be reached, refuses a request, or has not answered within the time, which covers
            all that is done inside.
    """
    client = AIOKafkaAdminClient(**connection(cluster), request_timeout_ms=int(timeout_seconds * 1000))
    try:
        async with asyncio.timeout(timeout_seconds):
            await client.start()
            yield Topics(client)
    except (KafkaError, TimeoutError) as error:
        raise await explained(cluster, error) from error
    finally:
        await client.close()


class Outcome(Struct, frozen=True):
    """What became of a topic, and what is still not as declared.

    ``drift`` was refused, ``missing`` was left out because another topic was refused.
    """

    topic: str
    status: Literal["unchanged", "created", "altered", "drift", "missing"]
    differences: list[Difference]


async def compare(topics: Topics, wanted: Sequence[Wanted]) -> list[Outcome]:
    """How the cluster's topics are, without touching them."""
    return [_as_found(name, found) for name, found in (await _differences(topics, wanted)).items()]


async def apply(topics: Topics, wanted: Sequence[Wanted], *, fix: bool = False) -> list[Outcome]:
    """Create the topics that are missing and, with ``fix``, alter the settings that can be altered.

    Where something must be refused nothing is touched: topics of two partition counts would be worse than none.
    """
    before = await _differences(topics, wanted)
    if any(_is_refused(difference, fix=fix) for found in before.values() for difference in found):
        return [_as_found(name, found) for name, found in before.items()]
    await topics.create(topic for topic in wanted if _has("missing", before[topic.name]))
    drifted = [topic for topic in wanted if _has("setting", before[topic.name])]
    there = await topics.describe({topic.name for topic in drifted})
    for topic in drifted:
        await topics.alter(topic.name, altered(topic, there[topic.name]))
    after = await _heard_of(topics, wanted)
    return [_as_made(name, before[name], found) for name, found in after.items()]


async def _differences(topics: Topics, wanted: Sequence[Wanted]) -> dict[str, list[Difference]]:
    return by_topic(wanted, await topics.describe({topic.name for topic in wanted}))


async def _heard_of(topics: Topics, wanted: Sequence[Wanted]) -> dict[str, list[Difference]]:
    """The differences once the broker knows of the changes, or those that it keeps."""
    clock = asyncio.get_running_loop().time
    end = clock() + _HEARD_OF_SECONDS
    after = await _differences(topics, wanted)
    while clock() < end and any(_as_found(name, found).status != "unchanged" for name, found in after.items()):
        await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        after = await _differences(topics, wanted)
    return after


def _has(kind: str, found: Sequence[Difference]) -> bool:
    return any(difference.kind == kind for difference in found)


def _is_refused(difference: Difference, *, fix: bool) -> bool:
    return difference.kind == "fixed" or (difference.kind == "setting" and not fix)


def _as_found(name: str, found: list[Difference]) -> Outcome:
    if _has("missing", found):
        return Outcome(name, "missing", found)
    return Outcome(name, "drift" if _has("fixed", found) or _has("setting", found) else "unchanged", found)


def _as_made(name: str, before: list[Difference], after: list[Difference]) -> Outcome:
    now = _as_found(name, after)
    if now.status != "unchanged":
        return now
    if _has("missing", before):
        return Outcome(name, "created", after)
    return Outcome(name, "altered" if _has("setting", before) else "unchanged", after)


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
        raise BrokerError("broker_refused", f"{what}: {message or kind.description or kind.message}")


# What may be on its way at once. Delivery stays in order: aiokafka has one batch in flight for each partition.
OUTSTANDING = 500
# How long a broker may take to answer before the command says that it is down.
ANSWER_SECONDS = 15


class Sender:
    """Sends records to one topic, each session's in order; to one session where a record names no other."""

    def __init__(self, producer: AIOKafkaProducer, topic: str, key: bytes) -> None:
        self._producer = producer
        self._topic = topic
        self._key = key
        self._sent: list[Awaitable[Any]] = []
        self.count = 0

    async def send(
        self, value: bytes | None, headers: list[tuple[str, bytes]] | None = None, key: bytes | None = None
    ) -> None:
        """Hand a record over; waits where too many are on their way.

        Raises:
            InputError: the record is larger than its topic takes.
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
    """A producer that waits for all copies.

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
    """A sender for one session; everything is delivered when the block ends.

    Raises:
        BrokerError: no broker answers, or it refuses.
        InputError: the topic does not exist.
    """
    name = qualified(topic, config.prefix)
    async with producing(config) as producer:
        # Not partitions_for: where a topic is missing that asks on and on, or has the broker make it.
        cluster = await producer.client.fetch_all_metadata()
        if not cluster.partitions_for_topic(name):
            raise _topic_missing(name)
        sending = Sender(producer, name, session.encode())
        yield sending
        await sending.delivered()


# A poll that only passes transaction markers returns nothing; a short wait keeps the last one from being felt.
POLL_MS = 50


@asynccontextmanager
async def reader(config: Config) -> AsyncIterator[AIOKafkaConsumer]:
    """A consumer without a group that sees only what is committed.

    Raises:
        BrokerError: no broker answers, or it refuses.
    """
    consumer = AIOKafkaConsumer(
        **connection(config),
        isolation_level="read_committed" if config.delivery == "exactly-once" else "read_uncommitted",
        # With the default, assign() starts at the end and wins over seek_to_beginning().
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
    """All records of partitions that are there now, each partition's oldest first.

    ``since_ms`` leaves out what was written earlier, ``stretches`` what is not from one offset to before another;
    ``on_progress`` hears of how many offsets are behind, of how many.
    """
    if not places:
        return
    consumer.assign(list(places))
    ends = await consumer.end_offsets(places)
    await consumer.seek_to_beginning(*places)
    if since_ms is not None:
        for place, found in (await consumer.offsets_for_times(dict.fromkeys(places, since_ms))).items():
            consumer.seek(place, ends[place] if found is None else found.offset)
    for place, (first, behind) in (stretches or {}).items():
        ends[place] = min(ends[place], behind)
        consumer.seek(place, max(first, await consumer.position(place)))
    at = {place: await consumer.position(place) for place in places}
    every = sum(max(0, ends[place] - at[place]) for place in places)
    while missing := {place: ends[place] - at[place] for place in places if at[place] < ends[place]}:
        on_progress(every - sum(missing.values()), every)
        for place, records in (await consumer.getmany(*missing, timeout_ms=POLL_MS)).items():
            for record in records:
                if record.offset < ends[place]:
                    yield record
        at = {place: await consumer.position(place) for place in places}


async def partitions_of(consumer: AIOKafkaConsumer, config: Config, topic: str) -> list[int]:
    """The numbers of a topic's partitions.

    Raises:
        InputError: the topic does not exist.
    """
    name = qualified(topic, config.prefix)
    if name not in await consumer.topics():
        raise _topic_missing(name)
    return [place.partition for place in await places_of(consumer, name)]


async def places_of(consumer: AIOKafkaConsumer, name: str) -> list[TopicPartition]:
    """The partitions of a topic that exists, under its name on the broker."""
    # The consumer learns a topic's partitions only once it has something to do with one of them.
    first = TopicPartition(name, 0)
    consumer.assign([first])
    await consumer.end_offsets([first])
    return [TopicPartition(name, number) for number in sorted(consumer.partitions_for_topic(name) or {0})]


def usual_partition(session: str, partitions: list[int]) -> int:
    """Where clients with Kafka's default partitioner put a session."""
    found = DefaultPartitioner()(session.encode(), partitions, partitions)
    assert isinstance(found, int)  # noqa: S101  aiokafka is untyped here
    return found


def _topic_missing(name: str) -> InputError:
    return InputError("topic_missing", f"there is no topic {name}: run `reknit topics apply` first")
