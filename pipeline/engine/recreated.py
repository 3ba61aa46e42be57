"""The steps after a topic was re-created: an input is accepted, the state of a changelog is rebuilt.

Both run while no worker does, take each partition over as a worker would, and write position records only
(``accept``), or positions and state (``rebuild``). They publish nothing.

``accept`` writes a position in the new topic, with the new id. The state stays, and the base grows by the position in
the former topic, so that ids made from offsets do not recur.

``rebuild`` processes an input again, from the first record it has to the position up to which it was processed before.
That position is in the changelog if workers still wrote to the re-created topic. If not, it is the group's offset,
which workers commit a moment after their transactions. If they were killed in that moment, the outputs prove how much
further they were (``Published``), and the same proves how far the release of a parked session was. Until a partition is
complete, its position record says that it is not, and no worker continues from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from msgspec import Struct, structs

from reknit.pipeline.engine import preflight
from reknit.pipeline.engine.client_patch import patch_aiokafka
from reknit.pipeline.engine.commit import Batch, Writer
from reknit.pipeline.engine.dry import Fetched, feed
from reknit.pipeline.engine.partition import Partition
from reknit.pipeline.engine.runtime import NoMetrics, Runtime, Scope, TopicChangedError, Tuning
from reknit.pipeline.engine.state import Restored, restore
from reknit.pipeline.engine.stores import PackedRecords
from reknit.pipeline.engine.topic_ids import TopicIds
from reknit.pipeline.engine.writer import writer_for
from reknit.pipeline.errors import InputError
from reknit.pipeline.kafka import explained
from reknit.pipeline.stages.base import Output, Record
from reknit.topics.positions import TAIL_RECORDS, GroupPosition, PositionMark

if TYPE_CHECKING:
    from reknit.pipeline.engine.runtime import EngineConfig, StageFactory
    from reknit.pipeline.objects import Objects
    from reknit.pipeline.stages.base import Stage

# Max deletions of one transaction.
_DELETED_AT_ONCE = 10_000
# Bytes of state in memory that are not compressed.
_LOOSE_BYTES = 32 << 20

Start = Literal["earliest", "end"]


class Outcome(Struct, frozen=True, kw_only=True):
    """The result for one partition.

    ``before`` is the position that it had, and ``position`` the one that it has now; None: no position. ``first`` is
    the input's first offset at a rebuild: sessions that began before it are not whole.
    """

    topic: str
    partition: int
    status: Literal["unchanged", "accepted", "rebuilt"]
    before: int | None
    position: int | None
    base: int = 0
    first: int | None = None


# Returns True if the topics have these outputs of one record; None if the record has no outputs.
WasPublished: TypeAlias = Callable[[Sequence[Output]], bool | None]


class Published(Protocol):
    """Finds outputs that workers published."""

    async def __call__(self, topic: str, partition: int, offset: int) -> WasPublished:
        """Return a check of the outputs of an input partition's records from ``offset`` on."""


class _Found(Struct, frozen=True):
    """The state of a partition before the repair."""

    topic: str
    number: int
    stored: Restored
    mark: PositionMark
    first: int
    end: int


class _Repair:
    """A pipeline while no worker runs."""

    def __init__(self, runtime: Runtime, topics: TopicIds, consumer: AIOKafkaConsumer) -> None:
        self.runtime = runtime
        self.topics = topics
        self.consumer = consumer

    def place(self, topic: str, number: int) -> TopicPartition:
        return TopicPartition(self.topics.names[topic][0], number)

    async def find(self, topic: str, number: int) -> _Found:
        """Read a partition's position, from the end of the changelog if possible."""
        place = self.place(topic, number)
        first = (await self.consumer.beginning_offsets([place]))[place]
        end = (await self.consumer.end_offsets([place]))[place]
        stored = await self.read(topic, number, _ignore, start=lambda begin, stop: max(begin, stop - TAIL_RECORDS))
        if stored.position is None:
            stored = await self.read(topic, number, _ignore)
        return _Found(topic, number, stored, stored.mark, first, end)

    async def read(
        self,
        topic: str,
        number: int,
        apply: Callable[[bytes, bytes | None], None],
        start: Callable[[int, int], int] = min,
    ) -> Restored:
        """Pass a changelog's records to ``apply``."""
        return await restore(
            self.runtime.connection,
            self.topics.names[topic][1],
            number,
            apply,
            committed_only=self.runtime.exactly_once,
            patience=self.runtime.tuning.start_seconds,
            start=start,
        )

    @asynccontextmanager
    async def owned(self, topic: str, number: int) -> AsyncIterator[Writer]:
        """Take a partition over, which fences a worker that writes for it."""
        writer = writer_for(self.runtime, topic, number, _always, self.runtime.stages[topic](number))
        try:
            await writer.open()
            yield writer
        finally:
            await writer.close()

    def batch(self, position: int, stored: Restored, mark: PositionMark, *deleted: bytes) -> Batch:
        return self.write_of(dict.fromkeys(deleted), position, stored, mark)

    def write_of(
        self, changes: dict[bytes, bytes | None], position: int, stored: Restored, mark: PositionMark
    ) -> Batch:
        """Return a batch without outputs."""
        return Batch([], changes, position, max(stored.state_format, self.runtime.state.format), mark=mark)


@asynccontextmanager
async def _repairing(config: EngineConfig, stages: Mapping[str, StageFactory], scope: Scope) -> AsyncIterator[_Repair]:
    patch_aiokafka()
    runtime = Runtime(config, stages, NoMetrics(), Tuning(), scope=scope)
    changelogs = {runtime.prefix + make(0).state_topic for make in stages.values()}
    await preflight.check(runtime, changelogs | {runtime.source_prefix + topic for topic in stages}, changelogs)
    topics = TopicIds(runtime)
    consumer = AIOKafkaConsumer(
        **runtime.connection,
        isolation_level="read_committed" if runtime.exactly_once else "read_uncommitted",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_partition_fetch_bytes=runtime.tuning.fetch_bytes,
    )
    try:
        await consumer.start()
        yield _Repair(runtime, topics, consumer)
    except KafkaError as error:
        raise await explained(runtime.cluster, error) from error
    finally:
        await consumer.stop()
        await topics.close()


async def accept(
    config: EngineConfig,
    stages: Mapping[str, StageFactory],
    topic: str,
    start: Start,
    group: Mapping[tuple[str, int], GroupPosition],
    *,
    scope: Scope,
    unverified: bool = False,
) -> list[Outcome]:
    """Continue with an input that was re-created. All partitions are checked before the first one is written.

    Args:
        config: the workers' configuration.
        stages: as for a worker.
        topic: the input's contract name.
        start: where to continue: at the first record of the new topic, or after its last.
        group: the positions that workers committed as the group's offsets.
        scope: the workers' scope.
        unverified: accept also partitions whose position has no id to compare.

    Raises:
        TopicChangedError: the state is incomplete, or belongs to another changelog.
        InputError: ``id_unknown``, if nothing shows that the topic was re-created.
        BrokerError: no broker answers, or it refuses.
    """
    outcomes = []
    async with _repairing(config, stages, scope) as repair:
        numbers = range(repair.runtime.partitions)
        found = [await repair.find(topic, number) for number in numbers]
        marks = [await _accepted_mark(repair, each, group, unverified=unverified) for each in found]
        for each, mark in zip(found, marks, strict=True):
            before = each.stored.position
            if mark is None or before is None:
                outcomes.append(_unchanged(each))
                continue
            position = each.first if start == "earliest" else each.end
            async with repair.owned(topic, each.number) as writer:
                await writer.write(repair.batch(position, each.stored, mark))
            outcomes.append(
                Outcome(
                    topic=topic,
                    partition=each.number,
                    status="accepted",
                    before=before,
                    position=position,
                    base=mark.base,
                )
            )
    return outcomes


async def _accepted_mark(
    repair: _Repair, found: _Found, group: Mapping[tuple[str, int], GroupPosition], *, unverified: bool
) -> PositionMark | None:
    """Return the mark of the position in the new topic; None if the partition must not change."""
    stored, position = found.mark, found.stored.position

    async def ask_group() -> GroupPosition | None:
        return group.get((found.topic, found.number))

    try:
        now = await repair.topics.mark_at_opening(found.topic, found.number, position, stored, ask_group)
    except TopicChangedError as error:
        if error.code != "input_recreated":
            raise
        ids = (await repair.topics.look()).ids
        now = structs.replace(stored, input_id=ids[repair.place(found.topic, found.number).topic])
    else:
        if position is None or stored.input_id:
            return None
        if position <= found.end and not unverified:
            if now.input_id:
                return None  # the next worker stores the id
            raise InputError(
                "id_unknown",
                f"partition {found.number} was processed up to offset {position} and ends at {found.end}, and these "
                "brokers have no topic ids: nothing shows that the topic was re-created. If it was, say --unverified",
            )
    return structs.replace(now, base=stored.base + (position or 0))


async def rebuild(
    config: EngineConfig,
    stages: Mapping[str, StageFactory],
    group: Mapping[tuple[str, int], GroupPosition],
    published: Published,
    *,
    scope: Scope,
    objects: Objects | None,
    force: bool = False,
    on_begin: Callable[[str, int, int, int], None] = lambda *_: None,
) -> list[Outcome]:
    """Rebuild lost state from the inputs. Partitions with complete state do not change.

    Args:
        config: the workers' configuration.
        stages: one for each input whose state is rebuilt, as for a worker.
        group: the positions that workers committed as the group's offsets.
        published: finds how far outputs prove that a partition was processed.
        scope: the workers' scope.
        objects: the store of large values.
        force: rebuild complete state too.
        on_begin: called for each partition with the input, its number, the first offset and the end of the read.

    Raises:
        TopicChangedError: an input was re-created too.
        EngineError: the processing of a record failed in a way that ends a worker.
        BrokerError: no broker answers, or it refuses.
    """
    scope = structs.replace(scope, publishes=frozenset(), ends={topic: [] for topic in stages})
    outcomes = []
    async with _repairing(config, stages, scope) as repair:
        repair.runtime.objects = objects
        for topic in stages:
            for number in range(repair.runtime.partitions):
                work = _Rebuild(repair, topic, number, published, on_begin)
                outcomes.append(await work.run(group.get((topic, number)), force=force))
    return outcomes


class _Rebuild:
    """The rebuild of one partition."""

    def __init__(
        self,
        repair: _Repair,
        topic: str,
        number: int,
        published: Published,
        on_begin: Callable[[str, int, int, int], None],
    ) -> None:
        self._repair = repair
        self._runtime = repair.runtime
        self._place = (topic, number)
        self._published = published
        self._on_begin = on_begin
        self._mark = PositionMark()
        self._released_at: int | None = None  # the offset of an unfinished release

    async def run(self, group: GroupPosition | None, *, force: bool) -> Outcome:
        async with self._repair.owned(*self._place) as writer:
            found = await self._repair.find(*self._place)
            target = await self._target(found, group, force=force)
            if target is None:
                return _unchanged(found)
            position = found.stored.position or 0
            if found.mark.until is None or position <= found.first:
                # Delete the remains of former state first: the rebuild need not write the same keys.
                position = min(found.first, target)
                listed = await self._keys()
                for at in range(0, max(1, len(listed)), _DELETED_AT_ONCE):
                    some = listed[at : at + _DELETED_AT_ONCE]
                    await writer.write(self._repair.batch(position, found.stored, self._mark, *some))
        self._on_begin(*self._place, position, target)
        if (released_at := self._released_at) is None:
            await self._work_to(target, found.first)
        else:
            # Earlier releases were finished. Only the outputs of this one show its progress.
            if position < released_at:
                await self._work_to(released_at, found.first)
            await self._work_to(target, found.first, holds_due=True)
        async with self._repair.owned(*self._place) as writer:
            target = await self._catch_up(writer, target, found.end)
            stored = (await self._repair.find(*self._place)).stored
            await writer.write(self._repair.batch(target, stored, structs.replace(self._mark, until=None)))
        topic, number = self._place
        return Outcome(
            topic=topic,
            partition=number,
            status="rebuilt",
            before=found.stored.position,
            position=target,
            base=self._mark.base,
            first=found.first,
        )

    async def _keys(self) -> list[bytes]:
        """Return the keys in the changelog."""
        keys: set[bytes] = set()

        def note_key(key: bytes, value: bytes | None) -> None:
            (keys.discard if value is None else keys.add)(key)

        await self._repair.read(*self._place, note_key)
        return sorted(keys)

    async def _target(self, found: _Found, group: GroupPosition | None, *, force: bool) -> int | None:
        """Return the position up to which the input was processed; None if the state is complete."""
        topics, mark, position = self._repair.topics, found.mark, found.stored.position
        changed = ""

        async def ask_group() -> GroupPosition | None:
            return group

        if mark.until is None:
            try:
                await topics.mark_at_opening(*self._place, position, mark, ask_group)
            except TopicChangedError as error:
                changed = error.code
                if changed not in {"state_lost", "state_recreated"}:
                    raise
            if not changed and (position is None or not force):
                return None
        base, target = mark.base, position if mark.until is None else mark.until
        if position is None and group is not None:
            base, target = group.base, group.offset
        if group is not None and group.released_at is not None and target is not None:
            self._released_at = min(target, max(found.first, group.released_at - base))
        ids = (await topics.look()).ids
        source, changelog = topics.names[self._place[0]]
        self._mark = PositionMark(
            base=base, until=target, input_id=ids.get(source, ""), state_id=ids.get(changelog, "")
        )
        return target

    async def _catch_up(self, writer: Writer, position: int, end: int) -> int:
        """Continue with records whose outputs prove that they were processed; return the position after the last.

        A record's outputs become visible together. So if they are missing, neither this record nor a later one was
        processed. Records without outputs count only if a later one was processed.
        """
        topic, number = self._place
        due_from = self._released_at
        if position >= end and due_from is None:
            return position
        was_published = await self._published(topic, number, position if due_from is None else due_from)
        if due_from is not None:
            stage, stored = await self._restored_stage()
            changes, _ = await _proven(stage, _due_records(self._runtime, stage), was_published)
            await writer.write(self._repair.write_of(changes, position, stored, self._mark))
        stage, stored = await self._restored_stage()
        changes, last = await _proven(stage, self._records(stage, position, end), was_published)
        if last is not None:
            position = last.offset + 1
            self._mark = structs.replace(self._mark, until=position)
            await writer.write(self._repair.write_of(changes, position, stored, self._mark))
        return position

    async def _restored_stage(self) -> tuple[Stage, Restored]:
        topic, number = self._place
        stage = self._runtime.stages[topic](number)
        stage.keep_in(PackedRecords(_LOOSE_BYTES))
        stored = await self._repair.read(topic, number, stage.restore)
        stage.use_format(max(stored.state_format, self._runtime.state.format))
        return stage, stored

    async def _records(self, stage: Stage, start: int, end: int) -> AsyncIterator[Record]:
        place, runtime = self._repair.place(*self._place), self._runtime
        consumer = self._repair.consumer
        consumer.assign([place])
        fetched = Fetched(consumer, place, end, runtime.tuning.poll_records)
        fetched.seek(start)
        while (chunk := await fetched.next_chunk()).records:
            at = 0
            while at < len(chunk.records):
                part = await runtime.complete(chunk.records[at:], stage)
                at += len(part)
                for record in part:
                    yield structs.replace(record, base=self._mark.base)

    async def _work_to(self, end: int, first: int, *, holds_due: bool = False) -> None:
        """Process the input up to an offset, without its outputs."""
        topic, number = self._place
        runtime, consumer = self._runtime, self._repair.consumer
        runtime.scope = structs.replace(runtime.scope, ends={topic: [end] * runtime.partitions}, holds_due=holds_due)
        place = self._repair.place(topic, number)
        consumer.assign([place])
        consumer.pause(place)
        moved = asyncio.Event()
        actor = Partition(
            runtime,
            topic,
            number,
            writer=partial(writer_for, runtime, topic, number, _always),
            on_room=moved.set,
            on_opened=_nothing,
            on_position=lambda _position: moved.set(),
            is_ours=_always,
            mark_at_opening=self._keep_mark,
        )
        try:
            await feed(runtime, consumer, actor, moved, first=first)
        finally:
            await actor.close()
        if runtime.failure is not None:
            raise runtime.failure

    async def _keep_mark(self, _position: int | None, _stored: PositionMark) -> PositionMark:
        return self._mark


def _unchanged(found: _Found) -> Outcome:
    position = found.stored.position
    return Outcome(
        topic=found.topic,
        partition=found.number,
        status="unchanged",
        before=position,
        position=position,
        base=found.mark.base,
    )


async def _due_records(runtime: Runtime, stage: Stage) -> AsyncIterator[Record]:
    while (record := stage.due_record()) is not None:
        (record,) = await runtime.complete([record], stage)
        yield record


async def _proven(
    stage: Stage, records: AsyncIterator[Record], was_published: WasPublished
) -> tuple[dict[bytes, bytes | None], Record | None]:
    """Process records as long as their outputs were published; return the changes up to the last of them, and it.

    The stage may be further then.
    """
    proven: dict[bytes, bytes | None] = {}
    pending: dict[bytes, bytes | None] = {}
    last = None
    async for record in records:
        try:
            made = stage.process([record])
        except Exception:  # noqa: BLE001  a stage's bug: the worker that reads the record handles it
            break
        is_proven = was_published(made.outputs)
        if is_proven is False:
            break
        pending |= made.changes
        if is_proven:
            proven |= pending
            pending, last = {}, record
    return proven, last


async def _nothing(_position: int) -> None:
    """Skip the comparison with the group's offset."""


def _ignore(_key: bytes, _value: bytes | None) -> None:
    """Skip a record: only the position is needed."""


async def _always(_position: int) -> bool:
    """Confirm ownership: no worker runs, and one that starts fences this process."""
    return True
