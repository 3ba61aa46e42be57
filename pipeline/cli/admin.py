"""What commands ask of a cluster's administration: its topics and their settings, groups and where they stand.

Every call is bounded, and every failure a typed error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, UnknownTopicOrPartitionError, for_code
from aiokafka.protocol.admin import DeleteGroupsRequest
from msgspec import Struct

from pipeline.errors import BrokerError, InputError
from pipeline.kafka import Cluster, connection, explained
from topics.cluster import Difference, Found, Wanted, altered, by_topic

# Kafka's codes for a group with members and for one that is not there; the client knows neither.
_NON_EMPTY_GROUP, _NO_SUCH_GROUP = 68, 69
# A setting's origin in a broker's answer: made on the topic itself (KIP-226).
_ON_THE_TOPIC = 1
# A change is made by the controller and read from a broker, which hears of it a moment later.
_LOOK_AGAIN_SECONDS = 0.1
_HEARD_OF_SECONDS = 5.0


class Admin:
    """The administration of one cluster; made by ``connected``."""

    def __init__(self, client: AIOKafkaAdminClient) -> None:
        self._client = client

    async def cluster_id(self) -> str:
        """The id of the cluster, or ``""`` where it has none."""
        return str((await self._client.describe_cluster()).get("cluster_id") or "")

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

    async def delete(self, topics: Collection[str]) -> None:
        """Delete topics; one that is gone by now is none that failed."""
        for name, code, *_ in (await self._client.delete_topics(list(topics))).topic_error_codes:
            if code != UnknownTopicOrPartitionError.errno:
                _refused(f"delete {name}", code, None)

    async def next_offsets(self, group: str) -> dict[TopicPartition, int]:
        """Where a group goes on, in each partition of which it has committed an offset."""
        found = await self._client.list_consumer_group_offsets(group)
        return {place: each.offset for place, each in found.items() if each.offset >= 0}

    async def is_at_work(self, group: str) -> bool:
        """Whether a group has members."""
        (answer,) = await self._client.describe_consumer_groups([group])
        ((code, _, state, *_),) = answer.groups
        if code != _NO_SUCH_GROUP:
            _refused(f"describe group {group}", code, None)
        return state not in {"", "Dead", "Empty"}

    async def delete_group(self, group: str) -> None:
        """Delete a group, if there is one.

        Raises:
            InputError: ``group_at_work``, where it has members.
        """
        request, node = DeleteGroupsRequest([group]), await self._client.find_coordinator(group)
        answer = await self._client._send_request(request, node)  # noqa: SLF001  it has no call for this request
        ((_, code),) = answer.results
        if code == _NON_EMPTY_GROUP:
            raise InputError("group_at_work", f"processes of group {group} are still at work; end them first")
        if code != _NO_SUCH_GROUP:
            _refused(f"delete group {group}", code, None)


@asynccontextmanager
async def connected(cluster: Cluster, timeout_seconds: float = 30.0) -> AsyncIterator[Admin]:
    """The administration of a cluster.

    Raises:
        BrokerError: the cluster cannot be reached, refuses a request, or has not answered within the time, which covers
            all that is done inside.
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


class Outcome(Struct, frozen=True):
    """What became of a topic, and what is still not as declared.

    ``drift`` was refused, ``missing`` was left out because another topic was refused.
    """

    topic: str
    status: Literal["unchanged", "created", "altered", "drift", "missing"]
    differences: list[Difference]


async def compare(admin: Admin, wanted: Sequence[Wanted]) -> list[Outcome]:
    """How the cluster's topics are, without touching them."""
    return [_as_found(name, found) for name, found in (await _differences(admin, wanted)).items()]


async def apply(admin: Admin, wanted: Sequence[Wanted], *, fix: bool = False) -> list[Outcome]:
    """Create the topics that are missing and, with ``fix``, alter the settings that can be altered.

    Where something must be refused nothing is touched: topics of two partition counts would be worse than none.
    """
    before = await _differences(admin, wanted)
    if any(_is_refused(difference, fix=fix) for found in before.values() for difference in found):
        return [_as_found(name, found) for name, found in before.items()]
    await admin.create(topic for topic in wanted if _has("missing", before[topic.name]))
    drifted = [topic for topic in wanted if _has("setting", before[topic.name])]
    there = await admin.describe({topic.name for topic in drifted})
    for topic in drifted:
        await admin.alter(topic.name, altered(topic, there[topic.name]))
    after = await _heard_of(admin, wanted)
    return [_as_made(name, before[name], found) for name, found in after.items()]


async def _differences(admin: Admin, wanted: Sequence[Wanted]) -> dict[str, list[Difference]]:
    return by_topic(wanted, await admin.describe({topic.name for topic in wanted}))


async def _heard_of(admin: Admin, wanted: Sequence[Wanted]) -> dict[str, list[Difference]]:
    """The differences once the broker knows of the changes, or those that it keeps."""
    clock = asyncio.get_running_loop().time
    end = clock() + _HEARD_OF_SECONDS
    after = await _differences(admin, wanted)
    while clock() < end and any(_as_found(name, found).status != "unchanged" for name, found in after.items()):
        await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        after = await _differences(admin, wanted)
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
