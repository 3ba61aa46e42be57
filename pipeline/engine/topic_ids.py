"""Topic ids: they show if a topic is still the one that a partition's position and state belong to.

Offsets of a re-created topic begin at 0 again. A worker that continues at the position of the former topic skips
records of the new one. A changelog that was re-created under a running worker has only the state of the last batches.
So the ids are compared at three times, and a worker that finds another id ends (exit code 2):

- when a partition is opened, with those in its position record;
- before a commit, with those at the start, unless they were seen a moment ago;
- every few seconds, also without records.

Brokers before Kafka 2.8, and some others, provide no topic ids. With them only a missing topic is noticed.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError, UnknownTopicOrPartitionError
from mode import Service
from msgspec import Struct, structs

from reknit.pipeline.engine.client_requests import TopicsRequest
from reknit.pipeline.engine.connections import close_client, is_passing
from reknit.pipeline.engine.pauses import pause
from reknit.pipeline.engine.runtime import TopicChangedError, log
from reknit.topics.positions import GroupPosition, PositionMark

if TYPE_CHECKING:
    from reknit.pipeline.engine.runtime import Runtime

# Deleting a topic, creating it and writing more records than the former one had takes longer than this.
_FRESH_SECONDS = 0.25
_WATCH_SECONDS = 3.0
_ANSWER_SECONDS = 3.0
_RETRY_SECONDS = 0.2


class Look(Struct, frozen=True):
    """One answer of a broker. ``began`` is in seconds of the monotonic clock; names are those on the broker."""

    began: float = float("-inf")
    ids: Mapping[str, str] = {}
    missing: frozenset[str] = frozenset()


def as_kafka_shows(topic_id: bytes) -> str:
    """Return a topic id as Kafka's tools show it, or "" if the broker has none."""
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode() if any(topic_id) else ""


async def ask(client: AIOKafkaClient, names: list[str], clock: Callable[[], float] = time.monotonic) -> Look:
    """Request the ids of topics by name; this creates no topic."""
    began = clock()
    answer = await client.send(client.get_random_node(), TopicsRequest(names))
    entries = answer.to_object()["topics"]
    missing = UnknownTopicOrPartitionError.errno
    return Look(
        began,
        {each["topic"]: as_kafka_shows(each.get("topic_id", b"")) for each in entries if each["error_code"] != missing},
        frozenset(each["topic"] for each in entries if each["error_code"] == missing),
    )


class TopicIds:
    """The ids of a worker's inputs and changelogs."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._seams = runtime.seams
        self.names = {
            topic: (runtime.source_prefix + topic, runtime.prefix + make(0).state_topic)
            for topic, make in runtime.stages.items()
        }
        every = sorted({name for pair in self.names.values() for name in pair})
        self._every = every
        self._known = {name: runtime.topic_ids[name] for name in every if name in runtime.topic_ids}
        self._known = {name: shown for name, found in self._known.items() if (shown := _shown(found))}
        self._client: AIOKafkaClient | None = None
        self._lock = asyncio.Lock()
        self._last = Look()

    async def look(self) -> Look:
        """Return an answer to a request that is sent after this call; callers that wait at the same time share one.

        It waits until a broker answers.

        Raises:
            KafkaError: the brokers refuse the client.
        """
        asked = self._seams.clock.monotonic()
        async with self._lock:
            if self._last.began < asked:
                self._last = await self._ask()
        return self._last

    async def _ask(self) -> Look:
        while True:
            try:
                async with asyncio.timeout(_ANSWER_SECONDS):
                    if self._client is None:
                        self._client = self._seams.brokers.client(**self._runtime.connection)
                        await self._client.bootstrap()
                    return await ask(self._client, self._every, self._seams.clock.monotonic)
            except (KafkaError, OSError, asyncio.CancelledError) as error:
                # Perhaps only this broker is down; a new client asks another one.
                await self.close()
                if not is_passing(error):
                    raise
                await asyncio.sleep(_RETRY_SECONDS)
            except BaseException:
                await self.close()
                raise

    async def close(self) -> None:
        """Close the connection."""
        client, self._client = self._client, None
        if client is not None:
            await close_client(client, _ANSWER_SECONDS)

    async def confirm(self, since: float) -> None:
        """Make sure that records fetched at ``since``, by the monotonic clock, came from the topics of the start.

        Raises:
            TopicChangedError: a topic was re-created.
            KafkaError: as ``look``.
        """
        if self._known and self._last.began < since - _FRESH_SECONDS:
            self.check(await self.look())

    def check(self, look: Look) -> None:
        """Compare the ids with those at the worker's start.

        Raises:
            TopicChangedError: a topic was re-created since.
        """
        changed = {name for name, known in self._known.items() if look.ids.get(name, "") not in {"", known}}
        for source, changelog in self.names.values():
            if {source, changelog} <= changed:
                raise TopicChangedError(
                    "topics_recreated",
                    f"{source} and {changelog} were re-created while the worker ran; a worker that starts now begins "
                    "at the first record of the new input",
                )
            if source in changed:
                raise self._input_recreated(source, self._known[source], look.ids[source], "while the worker ran")
            if changelog in changed:
                raise self._state_recreated(
                    changelog, self._known[changelog], look.ids[changelog], "while the worker ran"
                )

    async def mark_at_opening(
        self,
        topic: str,
        number: int,
        position: int | None,
        mark: PositionMark,
        ask_group: Callable[[], Awaitable[GroupPosition | None]],
    ) -> PositionMark:
        """Return the mark for the position records that the partition writes from now on.

        Args:
            topic: the input, by its contract name.
            number: the number of the partition.
            position: the next offset, and ``mark``, as the changelog has them; None if it has no position record.
            mark: see ``position``.
            ask_group: returns the position that a worker committed as the group's offset.

        Raises:
            TopicChangedError: the position or the state belong to other topics.
            KafkaError: as ``look``.
        """
        source, changelog = self.names[topic]
        if mark.until is not None:
            raise TopicChangedError(
                "state_rebuilding",
                f"the rebuild of {changelog} has not finished partition {number}; "
                f"{self._runtime.command('topics rebuild')} finishes it",
            )
        look = await self.look()
        self.check(look)
        if position is None:
            group = await ask_group()
            if group is not None and group.has_state and group.offset:
                raise TopicChangedError(
                    "state_lost",
                    f"{changelog} partition {number} holds no position, but the group has processed {source} up to "
                    f"offset {group.offset}: its state was lost. Stop all workers; "
                    f"{self._runtime.command('topics rebuild')} makes the state again from the inputs",
                )
            mark = PositionMark(base=self._runtime.base_of(topic, number))
        source_id, state_id = look.ids.get(source, ""), look.ids.get(changelog, "")
        is_other_source = bool(mark.input_id and source_id) and mark.input_id != source_id
        is_other_state = bool(mark.state_id and state_id) and mark.state_id != state_id
        if is_other_source and is_other_state:
            raise TopicChangedError(
                "topics_recreated",
                f"{source} and {changelog} were re-created since partition {number} was processed up to offset "
                f"{position}: its position and its state belong to other topics. Start a pipeline under another "
                "--prefix, or delete the changelog and let `reknit topics apply` create it",
            )
        if is_other_source:
            since = f"since partition {number} was processed up to offset {position}"
            raise self._input_recreated(source, mark.input_id, source_id, since)
        if is_other_state:
            since = f"since partition {number} was processed up to offset {position}"
            raise self._state_recreated(changelog, mark.state_id, state_id, since)
        return structs.replace(mark, input_id=source_id or mark.input_id, state_id=state_id or mark.state_id)

    def _input_recreated(self, name: str, before: str, now: str, since: str) -> TopicChangedError:
        then = self._runtime.how_to_continue(self._runtime.contract_name(name))
        return TopicChangedError("input_recreated", f"{name} was re-created {since} (id {before}, now {now}); {then}")

    def _state_recreated(self, name: str, before: str, now: str, since: str) -> TopicChangedError:
        return TopicChangedError(
            "state_recreated",
            f"{name} was re-created {since} (id {before}, now {now}), so it lacks state; stop all workers, and "
            f"{self._runtime.command('topics rebuild')} makes the state again from the inputs",
        )


def _shown(topic_id: str) -> str:
    """Return the id of ``Runtime.topic_ids``, which follows the cluster's, as Kafka's tools show it."""
    return as_kafka_shows(bytes.fromhex(topic_id.rpartition(" ")[2]))


class TopicWatch(Service):
    """Compares the ids every few seconds; while a topic is missing, the worker is not ready."""

    def __init__(self, runtime: Runtime, topics: TopicIds) -> None:
        super().__init__()
        self._runtime = runtime
        self._topics = topics
        self._missing: frozenset[str] = frozenset()

    @Service.task
    async def _watch(self) -> None:
        while await pause(self, _WATCH_SECONDS):
            with suppress(KafkaError):  # readers and writers of the topics report it
                self.note(await self._topics.look())

    def note(self, look: Look) -> None:
        """Handle an answer. A broker that just started may not know every topic, so a topic must be missing twice."""
        try:
            self._topics.check(look)
        except TopicChangedError as error:
            self._runtime.fail(error)
            return
        missing, self._missing = look.missing & self._missing, look.missing
        before = self._runtime.missing_topics
        self._runtime.missing_topics = sorted(missing)
        if missing and not before:
            log.error("not ready: missing topics: %s", ", ".join(sorted(missing)))

    async def on_stop(self) -> None:
        await self._topics.close()
