"""Fetches a record's value when a page shows it.

Small values are stored in the index; others are read from their topic or the object store. The consumer has no group:
no offsets move, and a worker is not affected.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, Self

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError, OffsetOutOfRangeError
from msgspec import Struct

from reknit.pipeline.errors import InputError
from reknit.pipeline.kafka.reading import groupless_consumer
from reknit.pipeline.objects import Objects
from reknit.pipeline.settings import Config
from reknit.pipeline.stages.base import Record
from reknit.pipeline.viewer.index import Reader
from reknit.pipeline.viewer.index.entries import Entry, unpack
from reknit.pipeline.viewer.pools import Run
from reknit.topics import name_of
from reknit.topics.headers import Headers, find_dataref

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
            # Records in the index are committed; a reader of all records does not wait for open transactions.
            consumer = groupless_consumer(
                self._config, "read_uncommitted", auto_offset_reset="none", max_partition_fetch_bytes=_FETCH_BYTES
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
