"""Reading what the pipeline publishes, and knowing when it has nothing left to do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

from pipeline.config import Config
from topics import (
    AGENT_TURNS,
    DEAD_LETTERS,
    HISTORY_FIXES,
    PROVIDER_EVENTS,
    PROVIDER_REQUESTS,
    SESSION_ITEMS,
    qualified,
)

SOURCES = (AGENT_TURNS, PROVIDER_EVENTS)
WATCHED = (*SOURCES, PROVIDER_REQUESTS, SESSION_ITEMS, HISTORY_FIXES, DEAD_LETTERS)

# Called with the topic's contract name and the record.
OnRecord = Callable[[str, ConsumerRecord], None]

_POLL_MS = 50


class Watch:
    """Reads the six topics from where they end now. ``before`` is how many offsets the session log has by then."""

    def __init__(self, config: Config, consumer: AIOKafkaConsumer) -> None:
        self._consumer = consumer
        self._names = {qualified(topic, config.prefix): topic for topic in WATCHED}
        self._places = [TopicPartition(name, number) for name in self._names for number in range(config.partitions)]
        # Behind the last record that was read: transaction markers take offsets, but nobody processes them.
        self._read_to: dict[TopicPartition, int] = {}
        self.before = 0

    async def start(self) -> None:
        """Note where the topics end, and read from there."""
        self._consumer.assign(self._places)
        ends = await self._consumer.end_offsets(self._places)
        for place, end in ends.items():
            self._consumer.seek(place, end)
        self._read_to = {place: 0 for place in ends if self._names[place.topic] in SOURCES}
        self.before = sum(end for place, end in ends.items() if self._names[place.topic] == AGENT_TURNS)

    async def read(self, on_record: OnRecord, fed: asyncio.Event) -> None:
        """Read until everything has been processed that was in the sources once ``fed`` was set, outputs included."""
        while True:
            found = await self._consumer.getmany(timeout_ms=_POLL_MS)
            for place, records in found.items():
                for record in records:
                    on_record(self._names[place.topic], record)
                if place in self._read_to:
                    self._read_to[place] = records[-1].offset + 1
            if not found and fed.is_set() and await self._is_drained():
                return

    async def _is_drained(self) -> bool:
        """Whether nothing is left to do.

        The order makes it sound: what was committed is asked first. Where the sources end no later than that, nothing
        was on its way between the two, not even what one side of the pipeline writes for the other.
        """
        committed = {place: await self._consumer.committed(place) or 0 for place in self._read_to}
        for place, end in (await self._consumer.end_offsets(self._places)).items():
            if await self._consumer.position(place) < end:
                return False
        return all(committed[place] >= read_to for place, read_to in self._read_to.items())


@asynccontextmanager
async def watching(config: Config) -> AsyncIterator[Watch]:
    """A watch on the pipeline of this configuration; it sees what is committed and nothing else."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=config.bootstrap_servers,
        isolation_level="read_committed" if config.delivery == "exactly-once" else "read_uncommitted",
        # The worker's own, to be told what it has committed; assigned by hand, the consumer does not join it.
        group_id=f"{config.prefix}reknit",
        enable_auto_commit=False,
        fetch_max_wait_ms=_POLL_MS,
    )
    try:
        await consumer.start()
        watch = Watch(config, consumer)
        await watch.start()
        yield watch
    finally:
        await consumer.stop()
