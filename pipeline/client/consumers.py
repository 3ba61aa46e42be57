"""Consumers of the four outputs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final, Generic, Self, TypeVar

import msgspec
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError
from msgspec import UNSET, Struct, structs

from reknit.pipeline.client import Pipeline, Place
from reknit.pipeline.errors import InputError
from reknit.pipeline.kafka import connection, explained, may_pass
from reknit.pipeline.objects import Objects, open_objects
from reknit.topics import DEAD_LETTERS, HISTORY_FIXES, PROVIDER_REQUESTS, SESSION_ITEMS, qualified
from reknit.topics import headers as names
from reknit.topics.headers import DeadLetterHeaders, FixHeaders, Headers, ItemHeaders, RequestHeaders
from reknit.topics.items import AnyItem, Item
from reknit.topics.records import FixRecord
from reknit.topics.trace import CARRIED, carried, trace_headers

T = TypeVar("T")
V = TypeVar("V")

_ITEMS: Final = msgspec.json.Decoder(AnyItem)
_FIXES: Final = msgspec.json.Decoder(FixRecord)


class _Read(Struct, frozen=True, kw_only=True):
    """A record that was read: all of its headers, and where it is."""

    raw_headers: Headers = ()
    place: Place

    @property
    def trace(self) -> dict[str, str]:
        """The trace that the record belongs to, as a carrier for OpenTelemetry's ``propagate.extract`` and for HTTP."""
        return carried(self.raw_headers)


class Request(_Read, frozen=True, kw_only=True):
    """A request that its target accepts: send ``body`` unchanged.

    A body that is too large for the topic is read from the object store. It is None if it cannot be read, and ``lost``
    says why: ``no_object_store`` (none is configured), ``object_missing`` (for example after the session was
    forgotten), ``object_damaged``, ``object_foreign``, ``too_large``, ``no_value`` (the record names no object). A
    withdrawal has no body and is not ``lost``.
    """

    session: str
    body: bytes | None
    lost: str = ""
    headers: RequestHeaders

    def in_trace(self, trace: Mapping[str, str]) -> Self:
        """Return the request in another trace, or under another span of its trace."""
        if trace == self.trace:
            return self
        others = tuple((name, value) for name, value in self.raw_headers if name not in CARRIED)
        return structs.replace(self, raw_headers=(*others, *trace_headers(trace)))

    @property
    def is_sent(self) -> bool:
        """True if a gateway has sent the request: do not send it."""
        return any(name == names.SENT for name, _ in self.raw_headers) or self.headers.reason == "sent"

    @property
    def is_withdrawal(self) -> bool:
        """True if there is nothing to send: the log has answered the request in ``headers.supersedes``."""
        return self.headers.reason == "answered"


class ShownItem(_Read, frozen=True, kw_only=True):
    """An item. ``item`` is None for a type that this version does not know; ``value`` is its JSON."""

    session: str
    item: Item | None
    value: bytes
    headers: ItemHeaders


class ToldFix(_Read, frozen=True, kw_only=True):
    """A change to a history or a stream. ``fix`` is None for a type that this version does not know."""

    session: str
    fix: FixRecord | None
    headers: FixHeaders


class DeadLetter(_Read, frozen=True, kw_only=True):
    """A record that could not be processed, unchanged, and the reason. ``original`` are the record's own headers."""

    session: str | None
    value: bytes | None
    headers: DeadLetterHeaders
    original: Headers


class Mark(Struct, frozen=True):
    """A group's commit in one partition: an offset and its metadata text."""

    offset: int
    text: str = ""


class Assignment(Struct, frozen=True):
    """The partitions of a reader after a rebalance of its group.

    Attributes:
        marks: the commit in each assigned partition; None without one.
        lost: partitions that the reader had before and that another reader may have had since, even if they are
            assigned again.
    """

    marks: dict[int, Mark | None]
    lost: frozenset[int]


class Batch(Struct, Generic[T], frozen=True):
    """Records in partition order. With ``assignment`` they are the first ones after a rebalance."""

    records: list[T]
    assignment: Assignment | None = None


class _Member(ConsumerRebalanceListener):  # type: ignore[misc] # aiokafka has no types here
    """Tracks a reader's partitions through rebalances."""

    def __init__(self) -> None:
        self.assigned: frozenset[TopicPartition] = frozenset()
        self.lost: set[TopicPartition] = set()
        self.is_changed = False
        self.on_revoked: Callable[[], Awaitable[None]] | None = None

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        """See aiokafka. A rebalance revokes all partitions; the next assignment shows which of them are lost."""
        del revoked
        if self.on_revoked is not None:
            await self.on_revoked()

    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        """See aiokafka."""
        self.lost |= self.assigned - assigned
        self.assigned = frozenset(assigned)
        self.is_changed = True


# Wait for the first record of a batch, and for later ones that exist according to the brokers.
_POLL_MS: Final = 200
_NEXT_MS: Final = 50
# A batch ends at this size.
_BATCH_BYTES: Final = 32 * 1024 * 1024
# The marker after the last record of a transaction has an offset, but no reader gets it.
_MARKER: Final = 1
_RETRY_SECONDS: Final = 0.5


class Reader(Generic[T]):
    """Reads the committed records of one topic: ``async with Requests(brokers, group="senders") as requests``.

    Any client can write to a topic, so a record may hold anything, and no content makes a reader raise. A field of
    ``headers`` is ``UNSET`` if the record has no such header. It is None if the header's value is null, not UTF-8,
    longer than 16 KiB or not of the declared type, and if a header is missing that every record of Reknit has.
    ``raw_headers`` are all headers unchanged.

    With a ``group`` the partitions are shared among its members, and ``commit`` stores this one's position; uncommitted
    records are read again after a restart. Without one, every reader receives all records, which suits screens.

    Args:
        brokers: where the pipeline is.
        group: the consumer group, without the pipeline's prefix.
        only_new: begin at the end if nothing was committed, instead of at the beginning.
    """

    _topic: str
    _read: Callable[[ConsumerRecord, Place], T]

    def __init__(self, brokers: Pipeline, *, group: str | None = None, only_new: bool = False) -> None:
        self._brokers = brokers
        self._prefix = brokers.prefix
        self._objects = open_objects(brokers)
        self._name = qualified(self._topic, self._prefix)
        self._group = None if group is None else qualified(group, self._prefix)
        self._member = _Member()
        self._ends: dict[TopicPartition, int] = {}  # by partition, the offset after the last record read
        self._client = AIOKafkaConsumer(
            **connection(brokers),
            group_id=self._group,
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="latest" if only_new else "earliest",
        )
        self._client.subscribe([self._name], listener=self._member)

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
            yield await self._completed(self._read(record, self._place(record)))

    def _place(self, record: ConsumerRecord) -> Place:
        return Place(self._topic, record.partition, record.offset)

    async def _completed(self, found: T) -> T:
        return found

    async def commit(self, done: Place | None = None) -> None:
        """Say that everything up to a record was dealt with; without one, everything that was read."""
        if done is None:
            await self._client.commit()
        else:
            partition = TopicPartition(qualified(done.topic, self._prefix), done.partition)
            await self._client.commit({partition: done.offset + 1})

    # For a member of a group that works on many records concurrently.

    async def batches(
        self, *, has_room: Callable[[], bool], on_revoked: Callable[[], Awaitable[None]]
    ) -> AsyncIterator[Batch[T]]:
        """Yield all records that exist in one batch, so that a later record can change how an earlier one is handled.

        Values in the object store are not read; use ``completed``.

        Args:
            has_room: called before each read. While it returns False nothing is read, but the reader stays in its
                group.
            on_revoked: awaited at the start of a rebalance. After it returns, other readers may get this reader's
                partitions. The next batch with an ``assignment`` ends that.

        Raises:
            BrokerError: the cluster refuses.
        """
        self._member.on_revoked = on_revoked
        try:
            while True:
                records = await self._everything_there(has_room)
                changed = await self._assignment() if self._member.is_changed else None
                if records or changed is not None:
                    yield Batch([self._read(record, self._place(record)) for record in records], changed)
        except KafkaError as error:
            raise await explained(self._brokers, error) from error

    async def completed(self, found: T) -> T:
        """Return a record with its value, read from the object store if it is there.

        Raises:
            ConnectionError: the store does not answer.
        """
        return await self._completed(found)

    async def commit_marks(self, marks: Mapping[int, Mark]) -> bool:
        """Commit; return False during a rebalance, when nothing can be committed before the next ``assignment``.

        Raises:
            BrokerError: the cluster refuses.
        """
        offsets = {TopicPartition(self._name, number): (mark.offset, mark.text) for number, mark in marks.items()}
        try:
            await self._client.commit(offsets)
        except (CommitFailedError, IllegalStateError):
            return False
        except KafkaError as error:
            raise await explained(self._brokers, error) from error
        return True

    async def _everything_there(self, has_room: Callable[[], bool]) -> list[ConsumerRecord]:
        """Read up to the end of the topic, within the size of a batch."""
        found: list[ConsumerRecord] = []
        size = 0
        while True:
            # Poll paused partitions too: aiokafka lets a member that does not poll leave the group.
            (self._client.resume if has_room() else self._client.pause)(*self._client.assignment())
            got = await self._client.getmany(timeout_ms=_NEXT_MS if found else _POLL_MS)
            records = [record for part in got.values() for record in part]
            if self._member.is_changed:
                return records  # earlier ones are read again by the owners of their partitions
            found += records
            self._ends |= {partition: part[-1].offset + 1 for partition, part in got.items()}
            size += sum(len(record.value or b"") for record in records)
            if not records or size >= _BATCH_BYTES or not any(map(self._has_backlog, got)):
                return found

    def _has_backlog(self, partition: TopicPartition) -> bool:
        """Return True if the partition has records after the last one read."""
        state = self._client.last_stable_offset(partition)
        end = self._client.highwater(partition) if state is None or state < 0 else state
        return end is not None and end > self._ends[partition] + _MARKER

    async def _assignment(self) -> Assignment:
        member = self._member
        lost, member.lost, member.is_changed = member.lost, set(), False
        marks = await self._marks(member.assigned)
        return Assignment(marks, frozenset(partition.partition for partition in lost))

    async def _marks(self, partitions: frozenset[TopicPartition]) -> dict[int, Mark | None]:
        """Read the group's commits. The consumer of aiokafka returns offsets without their texts."""
        assert self._group is not None  # noqa: S101  a reader without a group has no assignment
        found: dict[int, Mark | None] = {partition.partition: None for partition in partitions}
        while partitions:
            admin = AIOKafkaAdminClient(**connection(self._brokers))
            try:
                await admin.start()
                every = await admin.list_consumer_group_offsets(self._group, partitions=sorted(partitions))
                known = {place.partition: Mark(each.offset, each.metadata or "") for place, each in every.items()}
                return found | {number: mark for number, mark in known.items() if mark.offset >= 0}
            except KafkaError as error:
                if not may_pass(error):
                    raise
                await asyncio.sleep(_RETRY_SECONDS)
            finally:
                await admin.close()
        return found


class Requests(Reader[Request]):
    """Reads ``provider.requests``."""

    _topic = PROVIDER_REQUESTS

    @staticmethod
    def _read(record: ConsumerRecord, place: Place) -> Request:
        found = names.read(record.headers, RequestHeaders)
        raw = tuple(record.headers)
        return Request(session=_session(record), body=record.value, headers=found, raw_headers=raw, place=place)

    async def _completed(self, found: Request) -> Request:
        return await with_body(found, self._objects)


class Items(Reader[ShownItem]):
    """Reads ``session.items``; ``View`` makes of them what is on a screen."""

    _topic = SESSION_ITEMS

    @staticmethod
    def _read(record: ConsumerRecord, place: Place) -> ShownItem:
        value = record.value or b""
        return ShownItem(
            session=_session(record),
            item=_known(_ITEMS, value),  # None of a later minor version
            value=value,
            headers=names.read(record.headers, ItemHeaders),
            raw_headers=tuple(record.headers),
            place=place,
        )


class Fixes(Reader[ToldFix]):
    """Reads ``history.fixes``."""

    _topic = HISTORY_FIXES

    @staticmethod
    def _read(record: ConsumerRecord, place: Place) -> ToldFix:
        return ToldFix(
            session=_session(record),
            fix=_known(_FIXES, record.value or b""),
            headers=names.read(record.headers, FixHeaders),
            raw_headers=tuple(record.headers),
            place=place,
        )


class DeadLetters(Reader[DeadLetter]):
    """Reads ``pipeline.dead-letters``."""

    _topic = DEAD_LETTERS

    @staticmethod
    def _read(record: ConsumerRecord, place: Place) -> DeadLetter:
        return DeadLetter(
            session=None if record.key is None else _session(record),
            value=record.value,
            headers=names.read(record.headers, DeadLetterHeaders),
            original=tuple(header for header in record.headers if not header[0].startswith(names.ERROR_PREFIX)),
            raw_headers=tuple(record.headers),
            place=place,
        )


def _session(record: ConsumerRecord) -> str:
    key: bytes = record.key or b""
    return key.decode("utf-8", "replace")


def _known(decoder: msgspec.json.Decoder[V], value: bytes) -> V | None:
    try:
        return decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


async def with_body(request: Request, objects: Objects | None) -> Request:
    """A request with its body, where that is an object."""
    dataref = request.headers.dataref
    if request.body is not None or request.is_withdrawal:
        return request
    if dataref is UNSET or dataref is None:
        return structs.replace(request, lost="no_value")
    if objects is None:
        return structs.replace(request, lost="no_object_store")
    try:
        return structs.replace(request, body=await objects.get(request.session.encode(), dataref))
    except InputError as error:
        return structs.replace(request, lost=error.code)
