"""What commands with a broker share: their options, the topics of a cluster, a session's records in and out.

``reknit config`` shows those options, merged with the file and the environment.
Every call is bounded, and every failure a typed error.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeVar

import click
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, TopicAlreadyExistsError, for_code
from aiokafka.partitioner import DefaultPartitioner
from msgspec import Struct

from pipeline.cli.output import fail, write_json
from pipeline.config import Config, load_config, origins
from pipeline.errors import BrokerDownError, BrokerError, InputError, ReknitError
from pipeline.kafka import Cluster, connection, explained
from topics import LARGEST_INPUT, LARGEST_OUTPUT, qualified
from topics.plan import Difference, Found, Wanted, altered, by_topic

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--config", "config_file", type=click.Path(exists=True, dir_okay=False), help="A TOML file."),
    click.option("--bootstrap-servers", metavar="HOST:PORT,…", help="The brokers  [env: REKNIT_BOOTSTRAP_SERVERS]"),
    click.option("--prefix", help="Stands before every topic, group and transactional id  [env: REKNIT_PREFIX]"),
)


def broker_options(command: F) -> F:
    """Add ``--config``, ``--bootstrap-servers`` and ``--prefix``."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def configured(config_file: str | None, **options: Any) -> Config:  # noqa: ANN401  whatever options a command has
    """File, then environment, then options that were given; ends the command where one of them is wrong."""
    given = {name: value for name, value in options.items() if value is not None}
    try:
        return load_config(config_file, env=os.environ, overrides=given)
    except ReknitError as error:
        fail(error)


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
    except TimeoutError as error:
        raise BrokerDownError(
            "broker_timeout", f"{cluster.bootstrap_servers} has not answered within {timeout_seconds:g} s"
        ) from error
    except KafkaError as error:
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
        BrokerError: no broker answers, or it refuses.
        InputError: the topic does not exist.
    """
    producer = AIOKafkaProducer(
        **connection(config),
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
        raise await explained(config, error) from error
    finally:
        await producer.stop()


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
    )
    try:
        await consumer.start()
        yield consumer
    except KafkaError as error:
        raise await explained(config, error) from error
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


@click.group("config")
def config_group() -> None:
    """Show the configuration that a worker and the commands beside it would use."""


@config_group.command("show")
@broker_options
def show_command(config_file: str | None, **options: Any) -> None:  # noqa: ANN401  click's options
    """Print every key with its value and source, one a line; what is secret is hidden."""
    try:
        for origin in origins(config_file, overrides=options):
            write_json(origin)
    except ReknitError as error:
        fail(error)
