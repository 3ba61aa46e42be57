"""Reads the topics: follows them for the index, and fetches a record's value when a page shows it.

Every partition is read from the index's position, and new records are written batch by batch. Records that the topics
have deleted are removed from the index as well. Small values are stored in the index; others are read from their topic.
Both consumers have no group: no offsets move, and a worker is not affected.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError, OffsetOutOfRangeError
from msgspec import Struct

from reknit.pipeline.errors import BrokerDownError, InputError
from reknit.pipeline.kafka import connection
from reknit.pipeline.kafka.admin import connected
from reknit.pipeline.kafka.partitions import every_place
from reknit.pipeline.kafka.reading import POLL_MS, reader
from reknit.pipeline.kafka.sending import ANSWER_SECONDS
from reknit.pipeline.objects import Objects
from reknit.pipeline.settings import Config
from reknit.pipeline.stages.base import Record
from reknit.pipeline.viewer.index import Index, IndexFileError, Reader
from reknit.pipeline.viewer.index.batch import DAY, HOUR, MINUTE, TEN_MINUTES
from reknit.pipeline.viewer.index.entries import FOLLOWED, Entry, unpack
from reknit.pipeline.viewer.index.records import entry_of
from reknit.pipeline.viewer.pools import Run
from reknit.topics import DAY_MS, name_of
from reknit.topics.headers import Headers, find_dataref

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

    Attributes:
        subscribers: called on the event loop with the entries of each batch once they are written, values included.
    """

    def __init__(self, config: Config, index: Index, look_seconds: float = 30.0) -> None:
        self._look_seconds = look_seconds
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

        if found or after != self._index.positions:
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
        places = {place: topic for topic in FOLLOWED for place in there.get(self._name_of(topic), ())}
        self._missing = tuple(name for name in map(self._name_of, FOLLOWED) if not there.get(name))
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
    """Return the end of a partition by the records that it serves, of which those before this position are wanted.

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


# How long a page waits for a record of a topic.
_PATIENCE_SECONDS = 5.0
# One record is wanted; a broker sends its batch whole, however large that is.
_FETCH_BYTES = 64 * 1024


class Value(Struct, frozen=True):
    """A record's value and headers. ``lost`` says why there is no value although the record had one.

    ``expired`` (the topic no longer holds it), ``unreachable`` (no broker, or no object store, answers),
    ``no_object_store`` (none is configured), or the code of the object store's error, such as ``object_missing``.
    """

    value: bytes | None
    headers: Headers = ()
    lost: str = ""

    def record(self, entry: Entry, key: bytes | None = None) -> Record:
        """The record of an entry that has this value, as stages take it."""
        return Record(
            partition=entry.partition,
            offset=entry.offset,
            key=key,
            value=self.value,
            headers=self.headers,
            timestamp=entry.time_ms,
        )


class Values:
    """Reads values; its one consumer is made when the first is wanted from a topic.

    Args:
        config: the cluster and the prefix.
        reader: the index.
        objects: the object store, where there is one.
        run: calls what reads the index, in a thread.
    """

    def __init__(self, config: Config, reader: Reader, objects: Objects | None, run: Run = asyncio.to_thread) -> None:
        self._run = run
        self._config = config
        self._reader = reader
        self._objects = objects
        self._consumer: AIOKafkaConsumer | None = None
        self._one_at_a_time = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._consumer is not None:
            await self._consumer.stop()

    async def headers(self, entries: Sequence[Entry]) -> list[Headers]:
        """Return the headers of entries, which are in the index whatever their values."""
        kept = await self._run(self._kept, [entry.number for entry in entries])
        return [kept[entry.number].headers if entry.number in kept else () for entry in entries]

    async def read(self, entry: Entry) -> Value:
        return (await self.read_many([entry]))[0]

    async def read_many(self, entries: Sequence[Entry]) -> list[Value]:
        """Return the values of entries, in their order; those in the index with one query."""
        asked = [entry.number for entry in entries if entry.value is None]
        kept = await self._run(self._kept, asked) if asked else {}
        return [await self._one(entry, kept.get(entry.number)) for entry in entries]

    def _kept(self, places: list[int]) -> dict[int, Value]:
        rows = self._reader.rows(
            "SELECT place, headers, packed, value FROM entries WHERE place IN (SELECT value FROM json_each(?))",
            msgspec.json.encode(places).decode(),
        )
        return {
            place: Value(unpack(packed, value), _decode_headers(headers) if headers else ())
            for place, headers, packed, value in rows
        }

    async def _one(self, entry: Entry, kept: Value | None) -> Value:
        if entry.value is not None:
            return Value(entry.value, entry.headers)
        headers = kept.headers if kept is not None else entry.headers
        if kept is not None and kept.value is not None:
            return kept
        if entry.size:
            return await self._of_topic(entry, headers)
        dataref = find_dataref(headers)
        if dataref is None:
            return Value(None, headers)
        if self._objects is None:
            return Value(None, headers, "no_object_store")
        try:
            return Value(await self._objects.get(entry.session.encode(), dataref), headers)
        except InputError as error:
            return Value(None, headers, error.code)
        except ConnectionError:
            return Value(None, headers, "unreachable")

    async def _of_topic(self, entry: Entry, headers: Headers) -> Value:
        name = name_of(entry.topic, self._config.prefix, self._config.source_prefix)
        place = TopicPartition(name, entry.partition)
        try:
            async with self._one_at_a_time, asyncio.timeout(_PATIENCE_SECONDS):
                record = await self._record(place, entry.offset)
        except OffsetOutOfRangeError:
            return Value(None, headers, "expired")
        except (KafkaError, TimeoutError):
            return Value(None, headers, "unreachable")
        if record is None:
            return Value(None, headers, "expired")
        return Value(record.value, tuple(record.headers))

    async def _record(self, place: TopicPartition, offset: int) -> Any:  # noqa: ANN401  aiokafka has no types here
        consumer = self._consumer
        if consumer is None:
            consumer = AIOKafkaConsumer(
                **connection(self._config),
                # Records in the index are committed; a reader of all records does not wait for open transactions.
                isolation_level="read_uncommitted",
                auto_offset_reset="none",
                enable_auto_commit=False,
                max_partition_fetch_bytes=_FETCH_BYTES,
            )
            try:
                await consumer.start()
            except BaseException:
                with contextlib.suppress(KafkaError):
                    await consumer.stop()
                raise
            self._consumer = consumer
        consumer.assign([place])
        consumer.seek(place, offset)
        record = await consumer.getone(place)
        return record if record.offset == offset else None


_decode_headers = msgspec.msgpack.Decoder(Headers).decode
