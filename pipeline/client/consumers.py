"""Consumers of the four outputs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Final, Generic, Self, TypeVar

import msgspec
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError
from msgspec import UNSET, Struct, structs

from pipeline.client import Pipeline, Place
from pipeline.errors import InputError
from pipeline.kafka import connection, explained
from pipeline.objects import Objects, open_objects
from topics import DEAD_LETTERS, HISTORY_FIXES, PROVIDER_REQUESTS, SESSION_ITEMS, qualified
from topics import headers as names
from topics.headers import DeadLetterHeaders, FixHeaders, Headers, ItemHeaders, RequestHeaders
from topics.items import AnyItem, Item
from topics.records import FixRecord

T = TypeVar("T")

_ITEMS: Final = msgspec.json.Decoder(AnyItem)
_FIXES: Final = msgspec.json.Decoder(FixRecord)


class Request(Struct, frozen=True, kw_only=True):
    """A request that its target accepts: ``body`` is to be sent as it is.

    A body that is too large for the topic is read from the object store. It is None where that cannot give it, and
    ``lost`` says why: ``no_object_store`` (none is configured), ``object_missing`` (such as that of a session which was
    forgotten), ``object_damaged``, ``object_foreign``, ``too_large``.
    """

    session: str
    body: bytes | None
    lost: str = ""
    headers: RequestHeaders
    place: Place


class ShownItem(Struct, frozen=True, kw_only=True):
    """An item. ``item`` is None for a kind that this version does not know; ``value`` is its JSON."""

    session: str
    item: Item | None
    value: bytes
    headers: ItemHeaders
    place: Place


class ToldFix(Struct, frozen=True, kw_only=True):
    """A change to a history or a stream."""

    session: str
    fix: FixRecord
    headers: FixHeaders
    place: Place


class DeadLetter(Struct, frozen=True, kw_only=True):
    """A record that could not be processed, as it came, and why."""

    session: str | None
    value: bytes | None
    headers: DeadLetterHeaders
    original: Headers
    place: Place


class Reader(Generic[T]):
    """Reads one topic, only what is committed: ``async with Requests(brokers, group="senders") as requests``.

    With a ``group`` the partitions are shared among its members, and ``commit`` says how far this one is; what was read
    and not committed comes again after a restart. Without one, everything that there is comes to every reader, which
    suits screens.

    Args:
        brokers: where the pipeline is.
        group: the consumer group, with the pipeline's prefix put before it.
        only_new: begin at the end where nothing was committed, instead of at the beginning.
    """

    _topic: str
    _read: Callable[[ConsumerRecord, Place], T]

    def __init__(self, brokers: Pipeline, *, group: str | None = None, only_new: bool = False) -> None:
        self._brokers = brokers
        self._prefix = brokers.prefix
        self._objects = open_objects(brokers)
        self._client = AIOKafkaConsumer(
            qualified(self._topic, self._prefix),
            **connection(brokers),
            group_id=None if group is None else qualified(group, self._prefix),
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="latest" if only_new else "earliest",
        )

    async def __aenter__(self) -> Self:
        try:
            await self._client.start()
        except KafkaError as error:
            await self._client.stop()
            raise await explained(self._brokers, error) from error
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        await self._client.stop()

    async def __aiter__(self) -> AsyncIterator[T]:
        async for record in self._client:
            yield await self._completed(self._read(record, Place(self._topic, record.partition, record.offset)))

    async def _completed(self, found: T) -> T:
        return found

    async def commit(self, done: Place | None = None) -> None:
        """Say that everything up to a record was dealt with; without one, everything that was read."""
        if done is None:
            await self._client.commit()
        else:
            partition = TopicPartition(qualified(done.topic, self._prefix), done.partition)
            await self._client.commit({partition: done.offset + 1})


class Requests(Reader[Request]):
    """Reads ``provider.requests``."""

    _topic = PROVIDER_REQUESTS

    @staticmethod
    def _read(record: ConsumerRecord, place: Place) -> Request:
        found = names.decode(record.headers, RequestHeaders)
        return Request(session=_session(record), body=record.value, headers=found, place=place)

    async def _completed(self, found: Request) -> Request:
        return await with_body(found, self._objects)


class Items(Reader[ShownItem]):
    """Reads ``session.items``; ``View`` makes of them what is on a screen."""

    _topic = SESSION_ITEMS

    @staticmethod
    def _read(record: ConsumerRecord, place: Place) -> ShownItem:
        try:
            item = _ITEMS.decode(record.value)
        except msgspec.ValidationError:
            item = None  # of a later minor version
        found = names.decode(record.headers, ItemHeaders)
        return ShownItem(session=_session(record), item=item, value=record.value, headers=found, place=place)


class Fixes(Reader[ToldFix]):
    """Reads ``history.fixes``."""

    _topic = HISTORY_FIXES

    @staticmethod
    def _read(record: ConsumerRecord, place: Place) -> ToldFix:
        found = names.decode(record.headers, FixHeaders)
        return ToldFix(session=_session(record), fix=_FIXES.decode(record.value), headers=found, place=place)


class DeadLetters(Reader[DeadLetter]):
    """Reads ``pipeline.dead-letters``."""

    _topic = DEAD_LETTERS

    @staticmethod
    def _read(record: ConsumerRecord, place: Place) -> DeadLetter:
        session = None if record.key is None else _session(record)
        found = names.decode(record.headers, DeadLetterHeaders)
        original = tuple((name, value) for name, value in record.headers if not name.startswith(names.ERROR_PREFIX))
        return DeadLetter(session=session, value=record.value, headers=found, original=original, place=place)


def _session(record: ConsumerRecord) -> str:
    key: bytes = record.key
    return key.decode("utf-8", "replace")


async def with_body(request: Request, objects: Objects | None) -> Request:
    """A request with its body, where that is an object."""
    dataref = request.headers.dataref
    if request.body is not None or dataref is UNSET:
        return request
    if objects is None:
        return structs.replace(request, lost="no_object_store")
    try:
        return structs.replace(request, body=await objects.get(request.session.encode(), dataref))
    except InputError as error:
        return structs.replace(request, lost=error.code)
