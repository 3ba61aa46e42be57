"""A worker as a member of its group: assignments, reads of the inputs, and the group's offsets.

The client runs in a loop of its own (``member_loop``). Public methods belong to the worker's loop, private ones to the
client's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import (
    CommitFailedError,
    ConsumerStoppedError,
    IllegalStateError,
    KafkaError,
    OffsetOutOfRangeError,
    RebalanceInProgressError,
)

from reknit.pipeline.engine.batches import Span, records_of
from reknit.pipeline.engine.connections import foreign_cancellations_ignored, is_cancelled, stop_reader
from reknit.pipeline.engine.lease import Lease
from reknit.pipeline.engine.runtime import Runtime, log
from reknit.pipeline.errors import error_name
from reknit.pipeline.kafka import REFUSALS, may_pass
from reknit.topics.positions import GroupPosition, read_group_position

if TYPE_CHECKING:
    from aiokafka.admin import AIOKafkaAdminClient
    from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
    from aiokafka.structs import OffsetAndMetadata

# Time limits: of the coordinator's answer about an owner, and of a leader's answer about offsets.
_ASK_SECONDS = 5.0
# Time limit of leaving the group.
_LEAVE_SECONDS = 2.0
# Pause before a request for the group's offsets is sent again.
_RETRY_SECONDS = 0.2
# A partition of no topic. `getmany` without partitions reads all of them.
_NOWHERE = TopicPartition("", 0)


class Member(ConsumerRebalanceListener):  # type: ignore[misc] # aiokafka has no types here
    """Kafka's classic protocol revokes all partitions and assigns again, so a partition may come back."""

    def __init__(
        self,
        runtime: Runtime,
        strategies: Iterable[AbstractPartitionAssignor],
        *,
        on_revoked: Callable[[], Coroutine[Any, Any, None]],
        on_assigned: Callable[[set[TopicPartition], bool], Coroutine[Any, Any, None]],
        metadata_of: Callable[[TopicPartition], str],
    ) -> None:
        """Create it; it has not joined the group.

        Args:
            runtime: the worker's shared values.
            strategies: the strategies of assignment that this worker offers, the preferred one first.
            on_revoked: called before the member joins the next generation, which waits for it.
            on_assigned: called with the partitions of a generation, and whether no other worker can have had those that
                this one had before; that holds from one assignment to the next.
            metadata_of: returns the metadata of the group's offset of a partition; called in the client's loop.
        """
        self._runtime = runtime
        self._brokers = runtime.seams.brokers
        self._strategies = list(strategies)
        self._on_revoked, self._on_assigned, self._metadata_of = on_revoked, on_assigned, metadata_of
        self._loop = runtime.seams.member_loop()
        # Set while no rebalance is under way. A commit that is sent while this member joins is answered after the join,
        # as one of the former generation. The client then drops its membership and joins again, and so do all others,
        # whose commits are refused likewise. A group was seen to rebalance every second without end.
        self.in_group = asyncio.Event()
        # These belong to the client's loop: the clients, commits under way, this member's generation (None while it
        # joins the next one), and the partitions whose positions were set in it.
        self._consumer: AIOKafkaConsumer | None = None
        self._admin: AIOKafkaAdminClient | None = None
        self._commits: list[asyncio.Task[None]] = []
        self._generation: int | None = None
        self._last_generation = -1
        self._positioned: set[TopicPartition] = set()
        self._poked = asyncio.Event()
        self._asking = asyncio.Lock()
        # Exactly-once delivery has a fence, and needs no lease.
        self._has_lease = not runtime.exactly_once
        if self._has_lease:
            runtime.lease = Lease(float("-inf"))
        self._beat: Callable[[], Awaitable[object]] | None = None

    async def start(self) -> None:
        """Connect to the brokers, and begin to join the group.

        Raises:
            KafkaError: no broker answers, or it refuses. It can be started again.
        """
        await self._loop.start()
        await self._loop.call(self._start())

    async def stop(self) -> None:
        """Leave the group, within a time limit: the client waits for each answer as long as a request may take."""
        seconds = self._runtime.tuning.at_stop(_LEAVE_SECONDS)
        with contextlib.suppress(ConsumerStoppedError):
            await self._loop.call(self._stop(seconds))
        await self._loop.stop(seconds)

    def poke(self) -> None:
        """End the poll under way: the set of wanted partitions grew."""
        self._loop.soon(self._poked.set)

    async def check_group(self) -> None:
        """Raise the error that made the client stop joining the group; after that it joins again if it can.

        The client reports such an error only in calls that the engine may not make for a while, and waits for one.
        """
        await self._loop.call(self._check_group())

    async def spans(self, wanted: set[TopicPartition], seconds: float) -> Mapping[TopicPartition, Span]:
        """Return buffered spans of the wanted partitions; wait up to ``seconds`` for records or a poke.

        Raises:
            OffsetOutOfRangeError: the log has no such positions any more, see ``places_of``.
            KafkaError: the inputs cannot be read.
        """
        return await self._loop.call(self._spans(wanted, seconds))

    async def seek(self, positions: Mapping[TopicPartition, int]) -> None:
        """Set the positions of partitions.

        Raises:
            IllegalStateError: a partition is not assigned.
        """
        await self._loop.call(self._seek(positions))

    async def bounds(self, tp: TopicPartition) -> tuple[int, int]:
        """Return a partition's first offset, and the offset after the last one that a reader may see."""
        return await self._loop.call(self._bounds(tp))

    async def is_ours(self, tp: TopicPartition, position: int) -> bool | None:
        """Ask the group's coordinator, by a commit of ``position``, if this worker owns the partition now.

        Returns None if that is unknown: no answer yet, or a rebalance is under way.
        """
        if not self.in_group.is_set():
            return None
        return await self._loop.call(self._commit_as_owner(tp, position))

    async def commit_positions(self, positions: Mapping[TopicPartition, int]) -> bool:
        """Commit the group's offsets, after any rebalance under way; return False if the group did not accept them."""
        await self.in_group.wait()
        try:
            return await self._loop.call(self._commit_positions(positions))
        except (ConsumerStoppedError, KafkaError) as error:
            log.info("the group's offsets were not committed: %s", error_name(error))
            return False

    async def committed(self, tps: Collection[TopicPartition]) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return the group's offsets of partitions that have one."""
        return await self._loop.call(self._committed(tps))

    async def committed_by_hand(self, tp: TopicPartition) -> int | None:
        """Return the group's offset of a partition if no worker committed it, by its metadata."""
        found = (await self.committed([tp])).get(tp)
        return None if found is None or read_group_position(*found) is not None else found.offset

    async def committed_by_worker(self, tp: TopicPartition) -> GroupPosition | None:
        """Return the position that a worker committed as the group's offset."""
        found = (await self.committed([tp])).get(tp)
        return None if found is None else read_group_position(*found)

    # The client's listener: the client awaits these methods, and only logs what they raise.

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:  # noqa: ARG002  the client gives it
        """Stop the commits and the poll under way before this member joins."""
        self._generation = None
        self._positioned.clear()
        self._poked.set()
        for commit in list(self._commits):
            commit.cancel()
        await self._loop.call_back(self._fails_worker(self._on_revoked()))
        if self._has_lease:
            self._runtime.lease.end()

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        """Allow reads and commits once this member has joined."""
        self._positioned.clear()
        self._generation = generation = self._brokers.generation(self._consumer)
        continues = generation == self._last_generation + 1
        self._last_generation = generation
        if self._has_lease:
            await self._begin_lease()
        await self._loop.call_back(self._fails_worker(self._on_assigned(set(assigned), continues)))

    async def _fails_worker(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise
            self._runtime.fail(error)  # the client would end its membership without a trace
        except Exception as error:  # noqa: BLE001  any error ends the worker: the client would only log it
            self._runtime.fail(error)

    async def _begin_lease(self) -> None:
        """Begin the lease of a generation with a heartbeat; each heartbeat renews it from now on."""
        self._runtime.lease = Lease(float("-inf"))
        if self._beat is None:
            return
        with (
            contextlib.suppress(KafkaError, TimeoutError),  # the client repeats it, and then reports a refusal
            foreign_cancellations_ignored("the first heartbeat was not answered"),
        ):
            async with asyncio.timeout(_ASK_SECONDS):
                await self._beat()

    def _on_heartbeat(self) -> Callable[[], None]:
        lease, until = self._runtime.lease, self._runtime.seams.clock.monotonic() + self._runtime.tuning.session_seconds
        return lambda: lease.renew(until)

    # The client.

    async def _start(self) -> None:
        consumer = self._make_consumer()
        try:
            await consumer.start()
        except BaseException:
            await stop_reader(consumer)
            raise
        self._consumer = consumer
        if self._has_lease:
            self._beat = self._brokers.watch_heartbeats(consumer, self._on_heartbeat)
        # Not before: `start` would wait for an assignment, and raise what the group refuses.
        consumer.subscribe([self._runtime.source_prefix + topic for topic in self._runtime.stages], listener=self)

    def _make_consumer(self) -> AIOKafkaConsumer:
        runtime, tuning = self._runtime, self._runtime.tuning
        return self._brokers.member(
            **runtime.connection,
            group_id=runtime.group,
            partition_assignment_strategy=self._strategies,
            enable_auto_commit=False,
            # A position outside of the log is an error. With a reset, records that retention removed would be skipped
            # without a trace.
            auto_offset_reset="none",
            isolation_level="read_committed" if runtime.exactly_once else "read_uncommitted",
            max_partition_fetch_bytes=tuning.fetch_bytes,
            fetch_max_wait_ms=int(tuning.fetch_wait_seconds * 1000),
            session_timeout_ms=int(tuning.session_seconds * 1000),
            rebalance_timeout_ms=int(tuning.rebalance_seconds * 1000),
            # The watchdog checks whether records are processed. With the client's own limit, a worker that could not
            # rejoin for that time, since no broker answered, would never rejoin.
            max_poll_interval_ms=2**31 - 1,
            heartbeat_interval_ms=int(tuning.heartbeat_seconds * 1000),
            request_timeout_ms=int(max(40.0, tuning.rebalance_seconds + 10.0) * 1000),
        )

    async def _stop(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                if self._consumer is not None:
                    await self._consumer.stop()
                await self._close_admin()
        except (TimeoutError, asyncio.CancelledError) as error:
            # aiokafka's fetcher lets the cancellation of its own tasks out of `stop` while brokers refuse connections.
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            log.info("the worker did not leave the group, its session will expire: %s", error_name(error))

    def _started(self) -> AIOKafkaConsumer:
        if self._consumer is None:
            raise ConsumerStoppedError
        return self._consumer

    async def _check_group(self) -> None:
        # It raises the error first. After that it may wait for an assignment.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.0):
                await self._started().getmany(_NOWHERE)

    async def _seek(self, positions: Mapping[TopicPartition, int]) -> None:
        if self._generation is None:
            raise IllegalStateError("this member joins its group")
        for tp, offset in positions.items():
            self._started().seek(tp, offset)
            self._positioned.add(tp)

    async def _bounds(self, tp: TopicPartition) -> tuple[int, int]:
        consumer = self._started()
        async with asyncio.timeout(_ASK_SECONDS):
            first, end = await consumer.beginning_offsets([tp]), await consumer.end_offsets([tp])
        return first[tp], end[tp]

    # Records.

    async def _spans(self, wanted: set[TopicPartition], seconds: float) -> Mapping[TopicPartition, Span]:
        if spans := await self._take(wanted, 0.0):
            return spans
        poked = asyncio.ensure_future(self._poked.wait())
        taking = asyncio.ensure_future(self._take(wanted, seconds))
        waits_for = [poked] if not self._readable(wanted) else [poked, taking]
        try:
            await asyncio.wait(waits_for, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if not taking.done():
                # A cancelled `getmany` has taken no records. If it had, the next span would show the gap.
                taking.cancel()
                await asyncio.wait([taking])
            return {} if taking.cancelled() else taking.result()
        finally:
            taking.cancel()
            poked.cancel()
            self._poked.clear()

    def _readable(self, wanted: set[TopicPartition]) -> set[TopicPartition]:
        return set() if self._generation is None else wanted & self._positioned

    async def _take(self, wanted: set[TopicPartition], seconds: float) -> Mapping[TopicPartition, Span]:
        """Return fetched records with the positions before and after them.

        Only `getmany` waits, and nothing between the end of its wait and the last position: positions are valid, so
        `position` returns at once.
        """
        consumer, generation = self._started(), self._generation
        if not (readable := sorted(self._readable(wanted))):
            return {}
        try:
            before = {tp: await consumer.position(tp) for tp in readable}
            records = await consumer.getmany(
                *readable, timeout_ms=int(seconds * 1000), max_records=self._runtime.tuning.poll_records
            )
            after = {tp: await consumer.position(tp) for tp in readable}
        except IllegalStateError:
            return {}  # it was revoked
        except OffsetOutOfRangeError as error:
            self._positioned -= places_of(error)
            raise
        if generation != self._generation:
            return {}  # positions are set again
        return {
            tp: Span(start, after[tp], records_of(records.get(tp, ())), max(self._limit(tp), after[tp]))
            for tp, start in before.items()
            if after[tp] != start
        }

    def _limit(self, tp: TopicPartition) -> int:
        """Return the end of the log for this reader: under read_committed, that is the first open transaction."""
        consumer = self._started()
        known = consumer.last_stable_offset(tp) if self._runtime.exactly_once else consumer.highwater(tp)
        return known or 0

    # Offsets of the group.

    async def _commit_as_owner(self, tp: TopicPartition, position: int) -> bool | None:
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                is_current = await self._commit_in_generation({tp: (position, self._metadata_of(tp))})
        except CommitFailedError as error:
            return None if isinstance(error.__cause__, RebalanceInProgressError) else False
        except REFUSALS:
            raise
        except (KafkaError, TimeoutError):
            return None
        return is_current or None

    async def _commit_in_generation(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> bool:
        """Commit offsets; return True if the commit was in the generation that assigned the partitions.

        The client sends its current membership. After a refusal and before it joins again, it has none, and brokers
        accept a commit without membership while the group is empty.
        """
        generation = self._generation
        if generation is None:
            return False
        consumer = self._started()
        commit = asyncio.ensure_future(consumer.commit(offsets))
        self._commits.append(commit)
        commit.add_done_callback(self._commits.remove)
        try:
            await asyncio.wait([commit])
        finally:
            commit.cancel()
        if commit.cancelled():
            return False  # this member joins
        commit.result()
        return bool(self._generation == generation == self._brokers.generation(consumer))

    async def _commit_positions(self, positions: Mapping[TopicPartition, int]) -> bool:
        assigned = self._started().assignment()
        offsets = {tp: (at, self._metadata_of(tp)) for tp, at in positions.items() if tp in assigned}
        if not offsets:
            return True  # `commit` refuses an empty map
        try:
            return await self._commit_in_generation(offsets)
        except (KafkaError, IllegalStateError) as error:
            log.info("the group's offsets were not committed: %s", error_name(error))
            return False

    async def _committed(self, tps: Collection[TopicPartition]) -> Mapping[TopicPartition, OffsetAndMetadata]:
        async with self._asking:
            while True:
                try:
                    found = await self._ask_for_offsets(tps)
                except (KafkaError, OSError) as error:
                    await self._close_admin()
                    if not may_pass(error):
                        raise
                else:
                    # The client ignores an error of the whole group, and such an answer names no partition.
                    if found.keys() >= set(tps):
                        return {tp: offset for tp, offset in found.items() if offset.offset >= 0}
                await asyncio.sleep(_RETRY_SECONDS)

    async def _ask_for_offsets(self, tps: Collection[TopicPartition]) -> Mapping[TopicPartition, OffsetAndMetadata]:
        if not tps:
            return {}
        if self._admin is None:
            admin = self._brokers.admin(**self._runtime.connection)
            try:
                await admin.start()
            except BaseException:
                await _close(admin)
                raise
            self._admin = admin
        found: Mapping[TopicPartition, OffsetAndMetadata]
        found = await self._admin.list_consumer_group_offsets(self._runtime.group, partitions=list(tps))
        return found

    async def _close_admin(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            await _close(admin)


async def _close(admin: AIOKafkaAdminClient) -> None:
    with foreign_cancellations_ignored("a client was not closed"):
        await admin.close()


def places_of(error: OffsetOutOfRangeError) -> set[TopicPartition]:
    """Return the partitions that the client's error names."""
    return set(error.args[0])
