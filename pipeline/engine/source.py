"""Passes what the group's client reads to the actors of the partitions, and keeps actors and assignment consistent."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from typing import TYPE_CHECKING

from aiokafka import TopicPartition
from aiokafka.errors import ConsumerStoppedError, IllegalStateError, KafkaError, OffsetOutOfRangeError
from mode import Service

from reknit.pipeline.engine.batches import OffsetGap, Span
from reknit.pipeline.engine.member import Member, places_of
from reknit.pipeline.engine.offsets import OffsetCommits
from reknit.pipeline.engine.partition import Partition, Phase
from reknit.pipeline.engine.runtime import Runtime, TopicChangedError, log
from reknit.pipeline.engine.writer import writer_for
from reknit.pipeline.errors import error_name
from reknit.pipeline.kafka import may_pass
from reknit.topics.positions import PositionMark, group_metadata

if TYPE_CHECKING:
    from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor

# Wait of one poll for records. A poke ends it early, so it is only the interval of the loop's checks.
_POLL_SECONDS = 1.0
# A log must end before the position for this time until that counts.
_BEYOND_SECONDS = 10.0
# Interval of checks for a membership error, which the client only reports in a call.
_CHECK_SECONDS = 1.0
# Time limit of the last commit of the group's offsets, at a stop.
_LAST_COMMIT_SECONDS = 1.0


class Source(Service):
    """The worker's membership of the group, and its actors."""

    def __init__(self, runtime: Runtime, strategies: Iterable[AbstractPartitionAssignor]) -> None:
        """``strategies``: as in ``Member``."""
        super().__init__()
        self.actors: dict[TopicPartition, Partition] = {}
        self._runtime = runtime
        self._member = Member(
            runtime,
            strategies,
            on_revoked=self._on_revoked,
            on_assigned=self._on_assigned,
            metadata_of=self._metadata_of,
        )
        self._assignments = 0
        self._ready_logged = False
        self._out_of_range: set[TopicPartition] = set()  # their positions are not in their logs
        self._beyond_since: dict[TopicPartition, float] = {}
        last_seconds = runtime.tuning.at_stop(_LAST_COMMIT_SECONDS)
        self._offsets = OffsetCommits(self._member.commit_positions, self._member.committed_by_hand, last_seconds)

    @property
    def settled(self) -> bool:
        """True if the worker is in the group, no rebalance is under way, and every actor is open."""
        return self._member.in_group.is_set() and all(actor.phase is Phase.WORKING for actor in self.actors.values())

    async def how_far(self, tps: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the group's offsets of partitions. Commits this worker's first, past transaction markers."""
        await self._member.commit_positions({tp: actor.done_to for tp, actor in self.actors.items()})
        return {tp: found.offset for tp, found in (await self._member.committed(tps)).items()}

    def _metadata_of(self, tp: TopicPartition) -> str:
        actor = self.actors.get(tp)
        return group_metadata(0, 1) if actor is None else actor.group_metadata

    async def on_stop(self) -> None:
        """Finish the batches in flight, commit the group's offsets, and leave the group."""
        await self._close_partitions(set(self.actors))
        await self._offsets.finish()
        await self._member.stop()

    # Rebalances.

    async def _on_revoked(self) -> None:
        """Pause every actor: the next assignment shows which partitions stay here."""
        if self._member.in_group.is_set():
            log.info("rebalancing; %d partitions finish their batches", len(self.actors))
        self._member.in_group.clear()
        self._ready_logged = False
        patience = self._runtime.tuning.hold_seconds
        await asyncio.gather(*(actor.pause(patience) for actor in self.actors.values()))

    async def _on_assigned(self, assigned: set[TopicPartition], continues: bool) -> None:  # noqa: FBT001  of ``Member``
        """Close partitions that moved away, resume those that stayed, open new ones.

        An actor may only resume if no other worker can have had its partition in between. If this worker missed an
        assignment, all partitions are opened again.
        """
        if self.should_stop:
            return  # the last rebalance of a leaving worker: no partition is opened
        self._assignments += 1
        # A paused actor whose batch fails closes itself, also while others are being closed.
        while closing := {
            tp
            for tp, actor in self.actors.items()
            if not (continues and tp in assigned and actor.phase is Phase.PAUSED)
        }:
            await self._close_partitions(closing)
            for tp in closing:
                self._offsets.forget(tp)
        for tp in sorted(assigned):
            if tp in self.actors:
                self.actors[tp].resume()
            elif self._runtime.contract_name(tp.topic) in self._runtime.stages:
                self.actors[tp] = self._open(tp)
        self._count_partitions()
        self._member.in_group.set()
        self._member.poke()  # the loop below may log that it is ready

    def _open(self, tp: TopicPartition) -> Partition:
        topic, is_ours = self._runtime.contract_name(tp.topic), partial(self._member.is_ours, tp)
        return Partition(
            self._runtime,
            topic,
            tp.partition,
            writer=partial(writer_for, self._runtime, topic, tp.partition, is_ours),
            on_room=self._member.poke,
            on_opened=partial(self._offsets.name_moved, tp),
            on_position=partial(self._offsets.soon, tp),
            is_ours=is_ours,
            mark_at_opening=partial(self._mark_at_opening, tp),
        )

    async def _mark_at_opening(self, tp: TopicPartition, position: int | None, mark: PositionMark) -> PositionMark:
        topics, topic = self._runtime.topics, self._runtime.contract_name(tp.topic)
        if topics is None:
            return mark
        ask_group = partial(self._member.committed_by_worker, tp)
        return await topics.mark_at_opening(topic, tp.partition, position, mark, ask_group)

    async def _close_partitions(self, tps: AbstractSet[TopicPartition]) -> None:
        closing = [self.actors.pop(tp) for tp in sorted(tps)]
        await asyncio.gather(*(actor.close() for actor in closing))
        for actor in closing:
            self._runtime.metrics.on_lag(actor.topic, actor.number, None)
            self._runtime.metrics.on_position(actor.topic, actor.number, None)

    def _count_partitions(self) -> None:
        owned = {
            topic: sorted(a.number for a in self.actors.values() if a.topic == topic) for topic in self._runtime.stages
        }
        for topic, numbers in owned.items():
            self._runtime.metrics.on_partitions(topic, len(numbers), self._runtime.partitions)
        log.info("assigned: %s", "; ".join(f"{topic} {numbers}" for topic, numbers in owned.items()))

    @Service.task
    async def _watch_group(self) -> None:
        while not self.should_stop:
            await asyncio.sleep(_CHECK_SECONDS)
            try:
                await self._member.check_group()
            except ConsumerStoppedError:
                continue  # it has not started, or this worker stops
            except Exception as error:  # noqa: BLE001  any other error ends the worker
                if not (isinstance(error, KafkaError) and may_pass(error)):
                    self._runtime.fail(error)
                    return
                log.warning("the group could not be joined: %s", error_name(error))

    # The loop between the client and the actors.

    @Service.task
    async def _pass_records(self) -> None:
        """Fetch records that the actors have room for and pass them on, until the worker stops."""
        try:
            await self._start_member()
            while not self.should_stop:
                if self.settled and not self._ready_logged:
                    self._ready_logged = True
                    log.info("ready, with %d partitions", len(self.actors))
                await self._pass_some()
        except ConsumerStoppedError as error:
            if not self.should_stop:
                self._runtime.fail(error)
        except Exception as error:  # noqa: BLE001  any error ends the worker
            self._runtime.fail(error)

    async def _start_member(self) -> None:
        """Start the client, as soon as a broker answers; a worker can be stopped in order meanwhile."""
        while True:
            try:
                await self._member.start()
            except (KafkaError, OSError) as error:
                if not may_pass(error):
                    raise
                log.warning("the group could not be joined: %s", error_name(error))
                await asyncio.sleep(_POLL_SECONDS)
            else:
                return

    async def _pass_some(self) -> None:
        try:
            await self._align()
            self._hand_over(await self._member.spans(self._wanted(), _POLL_SECONDS))
        except OffsetOutOfRangeError as error:
            for tp in places_of(error) & self.actors.keys():
                self._out_of_range.add(tp)
                self.actors[tp].aligned = False
        except (KafkaError, OSError, TimeoutError) as error:
            if not may_pass(error):
                raise
            log.warning("the inputs could not be read: %s", error_name(error))
            await asyncio.sleep(_POLL_SECONDS)

    def _wanted(self) -> set[TopicPartition]:
        """Return the partitions with room; all partitions share the worker's memory evenly."""
        count = max(1, len(self.actors))
        share_bytes = self._runtime.tuning.pending_bytes // count
        share_records = max(1, self._runtime.tuning.pending_records // count)
        return {tp for tp, actor in self.actors.items() if actor.wants(share_bytes, share_records)}

    def _hand_over(self, spans: Mapping[TopicPartition, Span]) -> None:
        for tp, span in spans.items():
            actor = self.actors.get(tp)
            if actor is None:
                continue  # the partition moved away in the meantime
            try:
                actor.offer(span)
            except OffsetGap as hole:
                log.info("%s: fetched from %d, going back to %d", tp, span.start, hole.offset)
                actor.aligned = False

    async def _align(self) -> None:
        """Seek to the offset from which each actor continues: after opening, a rebalance, or an offset gap."""
        assignments, positions, failed = self._assignments, {}, None
        for tp in [tp for tp, actor in self.actors.items() if actor.phase is Phase.WORKING and not actor.aligned]:
            try:
                bounds = await self._member.bounds(tp) if tp in self._out_of_range else None
            except (KafkaError, TimeoutError) as error:
                failed = error  # the other partitions are read meanwhile
                continue
            if (at := self._position_within(tp, bounds)) is not None:
                positions[tp] = at
        try:
            await self._member.seek(positions)
        except IllegalStateError:
            return  # a rebalance just revoked them; they will be aligned after that
        for tp, at in positions.items():
            actor = self.actors.get(tp)
            if actor is not None and actor.waits_for == at and assignments == self._assignments:
                actor.aligned = actor.phase is Phase.WORKING
                self._out_of_range.discard(tp)
        if failed is not None:
            raise failed

    def _position_within(self, tp: TopicPartition, bounds: tuple[int, int] | None) -> int | None:
        """Return the offset from which an actor continues; None if it cannot now. ``bounds`` are of its log, if needed.

        A position is in its log, unless the client found that it is not.
        """
        actor = self.actors.get(tp)
        if actor is None or actor.phase is not Phase.WORKING:
            return None
        if bounds is not None:
            first, end = bounds
            if self._is_beyond(tp, actor.waits_for, end):
                return None
            if actor.waits_for < first:
                actor.expired(first)
        return actor.waits_for

    def _is_beyond(self, tp: TopicPartition, position: int, end: int) -> bool:
        """Return True if a partition ends before its stored position; if that lasts, end the worker.

        Just after a broker's failure a log may seem shorter than it is.
        """
        if position <= end:
            self._beyond_since.pop(tp, None)
            return False
        now = self._runtime.seams.clock.monotonic()
        if now - self._beyond_since.setdefault(tp, now) > _BEYOND_SECONDS:
            topic = self._runtime.contract_name(tp.topic)
            self._runtime.fail(
                TopicChangedError(
                    "position_beyond_end",
                    f"{tp.topic} partition {tp.partition} ends at offset {end}, but it was processed up to {position}; "
                    f"if the topic was re-created, {self._runtime.how_to_continue(topic)}",
                )
            )
        return True
