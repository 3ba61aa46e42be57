"""The cluster's topics over aiokafka: read, create, alter. Every call is bounded, every failure a typed error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Literal

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code
from msgspec import Struct

from pipeline.errors import Fault, ReknitError
from topics.plan import Difference, Found, Wanted, altered, by_topic

# A setting's origin in a broker's answer: made on the topic itself (KIP-226).
_ON_THE_TOPIC = 1
# A change is made by the controller and read from a broker, which hears of it a moment later.
_LOOK_AGAIN_SECONDS = 0.1
_HEARD_OF_SECONDS = 5.0


class BrokerError(ReknitError):
    """The cluster cannot be reached, or refuses what it was asked; the caller named the cluster and the request."""

    fault: ClassVar[Fault] = "caller"


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
async def connected(bootstrap_servers: str, timeout_seconds: float = 30.0) -> AsyncIterator[Topics]:
    """The topics of the cluster at ``bootstrap_servers`` (``host:port,…``).

    Raises:
        BrokerError: the cluster cannot be reached, refuses a request, or has not answered within the time, which covers
            all that is done inside.
    """
    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers, request_timeout_ms=int(timeout_seconds * 1000))
    try:
        async with asyncio.timeout(timeout_seconds):
            await client.start()
            yield Topics(client)
    except TimeoutError as error:
        raise BrokerError(
            "broker_timeout", f"{bootstrap_servers} has not answered within {timeout_seconds:g} s"
        ) from error
    except KafkaError as error:
        raise BrokerError("broker_unreachable", f"{bootstrap_servers}: {_words(error)}") from error
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


def _words(error: KafkaError) -> str:
    return str(error).removeprefix(f"{type(error).__name__}: ")
