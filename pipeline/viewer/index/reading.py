"""Follows the topics for the index.

Every partition is read from the index's position, and new records are written batch by batch. Records that the topics
have deleted are removed from the index as well. The consumer has no group: no offsets move, and a worker is not
affected.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from msgspec import Struct

from reknit.pipeline.errors import BrokerDownError
from reknit.pipeline.kafka.admin import connected
from reknit.pipeline.kafka.partitions import every_place
from reknit.pipeline.kafka.reading import POLL_MS, reader
from reknit.pipeline.kafka.sending import ANSWER_SECONDS
from reknit.pipeline.settings import Config
from reknit.pipeline.viewer.index import Index, IndexFileError
from reknit.pipeline.viewer.index.batch import DAY, HOUR, MINUTE, TEN_MINUTES
from reknit.pipeline.viewer.index.entries import FOLLOWED, Entry
from reknit.pipeline.viewer.index.records import entry_of
from reknit.topics import DAY_MS, name_of

_log = logging.getLogger(__name__)

Subscriber = Callable[[Sequence[Entry]], None]

# Records of one transaction: many, for each costs a write to the disk, and few enough for a page to wait for its end.
_RECORDS = 8000
# Before the next try, where no broker answers.
_PAUSE_SECONDS = 2.0
# How long counters are kept; those of days as long as a topic of fixes by default.
_KEPT = {MINUTE: DAY_MS, TEN_MINUTES: 7 * DAY_MS, HOUR: 30 * DAY_MS, DAY: 90 * DAY_MS}


class Behind(Struct, frozen=True, kw_only=True):
    """The lag of the index: records, in total and by topic. ``error`` says why it has stopped.

    ``missing`` are topics that do not exist, or that this client must not see.
    """

    records: int
    by_topic: dict[str, int]
    error: str = ""
    missing: tuple[str, ...] = ()


async def open_index(config: Config, path: Path, *, rebuild: bool = False) -> Index:
    """The index of a pipeline at this path.

    Raises:
        BrokerError: no broker answers, or it refuses.
        IndexFileError: the file is another's, of another version, in use, or damaged.
    """
    source = "" if config.source_prefix in {None, config.prefix} else f"{config.source_prefix}>"
    async with connected(config) as admin:
        cluster = await admin.cluster_id()
    return await asyncio.to_thread(
        Index.open, path, cluster=cluster, prefix=f"{source}{config.prefix}", rebuild=rebuild
    )


class Follower:
    """Fills an index; ``run`` ends only by cancellation, or with a permanent error.

    Args:
        config: the cluster and the prefix.
        index: receives the entries.
        look_seconds: the interval of checks of the topics' beginnings and of their existence.
        topics: the topics to follow, of those that an index can have.

    Attributes:
        subscribers: called on the event loop with the entries of each batch once they are written, values included.
    """

    def __init__(
        self, config: Config, index: Index, look_seconds: float = 30.0, topics: Sequence[str] = FOLLOWED
    ) -> None:
        self._look_seconds = look_seconds
        self._topics = tuple(topics)
        self.subscribers: set[Subscriber] = set()
        self._config = config
        self._index = index
        self._error = ""
        self._by_topic: dict[str, int] = {}
        self._begins: dict[TopicPartition, int] = {}
        # Until a partition was read from, where it ended at the last look.
        self._ends: dict[TopicPartition, int] = {}
        self._missing: tuple[str, ...] = ()
        # Set while everything that was there at the last look is written.
        self.caught_up = asyncio.Event()

    def behind(self) -> Behind:
        return Behind(
            records=sum(self._by_topic.values()),
            by_topic=dict(self._by_topic),
            error=self._error,
            missing=self._missing,
        )

    async def run(self) -> None:
        """Follow the topics, through outages of the brokers.

        Raises:
            BrokerError: a broker refuses.
            IndexFileError: the index cannot be written, or the topics are not those that it was filled from.
        """
        while True:
            try:
                async with reader(self._config) as consumer:
                    await self._follow(consumer)
            except BrokerDownError as error:
                self._error = str(error)
                self.caught_up.clear()
                _log.warning("the viewer waits for a broker: %s", error)
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _follow(self, consumer: AIOKafkaConsumer) -> None:
        clock = asyncio.get_running_loop().time
        places: dict[TopicPartition, str] = {}
        look_at = clock()
        writing: asyncio.Task[None] | None = None
        try:
            while True:
                if clock() >= look_at or not places:
                    await _ended(writing)
                    writing = None
                    places = await self._look(consumer, places)
                    look_at = clock() + self._look_seconds
                if not places:
                    await asyncio.sleep(_PAUSE_SECONDS)
                    continue
                found = await consumer.getmany(*places, timeout_ms=POLL_MS, max_records=_RECORDS)
                # Positions and not the last offsets: after these there may be records without content, such as the end
                # of a transaction. They are read before the next poll, which moves them.
                after = {(topic, place.partition): await consumer.position(place) for place, topic in places.items()}
                self._error = ""
                self._note_lag(consumer, places, after)
                # One batch is fetched while the one before it is written.
                await _ended(writing)
                writing = asyncio.create_task(self._write([(places[at], each) for at, each in found.items()], after))
                if not found:
                    await _ended(writing)
                    writing = None
                    if not sum(self._by_topic.values()):
                        self.caught_up.set()
                    await asyncio.to_thread(self._index.erase)
        finally:
            if writing is not None:
                await asyncio.wait([writing])

    async def _write(self, found: Sequence[tuple[str, Sequence[Any]]], after: Mapping[tuple[str, int], int]) -> None:
        def write() -> list[Entry]:
            entries = [entry_of(topic, record) for topic, records in found for record in records]
            return self._index.write(entries, after)

        # The index can have positions of further topics.
        if found or not after.items() <= self._index.positions.items():
            new = await asyncio.to_thread(write)
            for subscriber in tuple(self.subscribers):
                subscriber(new)

    def _note_lag(
        self,
        consumer: AIOKafkaConsumer,
        places: Mapping[TopicPartition, str],
        after: Mapping[tuple[str, int], int],
    ) -> None:
        by_topic = dict.fromkeys(places.values(), 0)
        for place, topic in places.items():
            by_topic[topic] += max(0, (consumer.highwater(place) or self._ends[place]) - after[topic, place.partition])
        self._by_topic = by_topic

    async def _look(self, consumer: AIOKafkaConsumer, known: dict[TopicPartition, str]) -> dict[TopicPartition, str]:
        """Which partitions there are, where they begin now, and what of the index is thereby gone."""
        there = await every_place(consumer)
        places = {place: topic for topic in self._topics for place in there.get(self._name_of(topic), ())}
        self._missing = tuple(name for name in map(self._name_of, self._topics) if not there.get(name))
        if not places:
            return {}
        positions = self._index.positions
        if places != known:
            consumer.assign(list(places))
            # If a partition begins after that, the consumer continues at its beginning.
            for place, topic in places.items():
                consumer.seek(place, positions.get((topic, place.partition), 0))
        begins, ends = await consumer.beginning_offsets(places), await consumer.end_offsets(places)
        self._ends = ends
        for place, topic in places.items():
            position = positions.get((topic, place.partition), 0)
            if position > ends[place] and position > await _served_end(consumer, place, position):
                raise IndexFileError(
                    "index_foreign",
                    f"{place.topic} ends before what {self._index.path} holds of it: it is not the topic that the "
                    "index was filled from. Start once with --rebuild.",
                )
            if begins[place] > self._begins.get(place, 0):
                while await asyncio.to_thread(self._index.drop_before, topic, place.partition, begins[place]):
                    pass
                self._begins[place] = begins[place]
        for unit, kept in _KEPT.items():
            await asyncio.to_thread(self._index.drop_counters, unit, int(time.time() * 1000) - kept)
        await asyncio.to_thread(self._index.erase)
        return places

    def _name_of(self, topic: str) -> str:
        return name_of(topic, self._config.prefix, self._config.source_prefix)


async def _served_end(consumer: AIOKafkaConsumer, place: TopicPartition, position: int) -> int:
    """Return the end of a partition by the records that it serves; the wanted records are before this position.

    The embedded broker reports ends that are some records too early: after the first record of the last batch.
    """
    if consumer.highwater(place) is None:
        consumer.seek(place, position - 1)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                while consumer.highwater(place) is None:
                    await consumer.getmany(place, timeout_ms=POLL_MS)
        consumer.seek(place, position)
    return consumer.highwater(place) or 0


async def _ended(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        await task
