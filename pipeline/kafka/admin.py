"""Administration of a cluster: topics, their settings, and consumer groups. Failures are typed errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    GroupCoordinatorNotAvailableError,
    KafkaError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
    for_code,
)
from aiokafka.protocol.admin import DeleteGroupsRequest

from reknit.pipeline.errors import BrokerError, InputError
from reknit.pipeline.kafka import Cluster, connection, explained
from reknit.pipeline.settings import Config
from reknit.topics import topics_of
from reknit.topics.cluster import Found, Wanted, wanted

# Kafka's codes for a group with members and for a missing group; the client defines neither.
_NON_EMPTY_GROUP, _NO_SUCH_GROUP = 68, 69
# Pause before a coordinator is asked again.
_RETRY_SECONDS = 0.2
# The id of the embedded broker's cluster.
EMBEDDED_CLUSTER: Final = "reknit-embedded"
# Time limit of a command's administration, without what it waits for.
TIMEOUT_SECONDS: Final = 30.0
# Origin of a setting in a broker's answer: the topic itself (KIP-226).
_ON_THE_TOPIC = 1


def declared_topics(config: Config) -> tuple[Wanted, ...]:
    """Return the topics of a pipeline as they should be on the cluster."""
    return wanted(
        prefix=config.prefix,
        partitions=config.partitions,
        replication_factor=config.replication_factor,
        topics=topics_of(config.prefix, config.source_prefix),
    )


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
        code, state = await _settled(partial(self._describe_group, group))
        if code != _NO_SUCH_GROUP:
            _refused(f"describe group {group}", code, None)
        return state not in {"", "Dead", "Empty"}

    async def is_idle_within(self, group: str, seconds: float) -> bool:
        """Return whether a group has no members, now or within this time.

        A process that was killed, or ended before it had joined, is a member until its session times out.
        """
        deadline = asyncio.get_running_loop().time() + seconds
        while await self.is_at_work(group):
            if asyncio.get_running_loop().time() > deadline:
                return False
            await asyncio.sleep(_RETRY_SECONDS)
        return True

    async def delete_group(self, group: str, session_seconds: float) -> None:
        """Delete a group, if it exists.

        Raises:
            InputError: ``group_at_work``, if it has members after the time of a session.
        """
        await self.is_idle_within(group, session_seconds)
        code, _ = await _settled(partial(self._delete_group, group))
        if code == _NON_EMPTY_GROUP:
            raise InputError("group_at_work", f"processes of group {group} are still at work; end them first")
        if code != _NO_SUCH_GROUP:
            _refused(f"delete group {group}", code, None)

    async def _describe_group(self, group: str) -> tuple[int, str]:
        try:
            (answer,) = await self._client.describe_consumer_groups([group])
        except GroupCoordinatorNotAvailableError:
            return 0, ""  # as in `committed`
        ((code, _, state, *_),) = answer.groups
        return code, state

    async def _delete_group(self, group: str) -> tuple[int, str]:
        try:
            node = await self._client.find_coordinator(group)
        except GroupCoordinatorNotAvailableError as error:
            return error.errno, ""
        request = DeleteGroupsRequest([group])
        answer = await self._client._send_request(request, node)  # noqa: SLF001  the client has no call for this request
        ((_, code),) = answer.results
        return code, ""


async def _settled(ask: Callable[[], Awaitable[tuple[int, str]]]) -> tuple[int, str]:
    """Return the answer of a group's coordinator; ask again while it moves to another broker or loads its groups."""
    while True:
        code, state = await ask()
        if not getattr(for_code(code), "retriable", False):
            return code, state
        await asyncio.sleep(_RETRY_SECONDS)


@asynccontextmanager
async def connected(cluster: Cluster, timeout_seconds: float = TIMEOUT_SECONDS) -> AsyncIterator[Admin]:
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
