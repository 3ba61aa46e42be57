"""Faust's transport with a new record path: spans of the log go to the actors of their partitions.

Faust still does the subscription from the declared agents, assignment, heartbeats, rebalances, the consumer thread, and
the worker's start and stop. These parts are replaced, each through a method that subclasses may override:

- ``Transport.Consumer`` (``App._new_transport`` makes the transport);
- ``Consumer._new_consumer_thread``, for a thread that creates the client with Reknit's settings
  (``_create_worker_consumer``), fetches whole spans, and runs calls concurrently (``call_thread``);
- ``Consumer._drain_messages``, the loop between the thread and the streams;
- ``Consumer.on_partitions_revoked``, ``on_partitions_assigned`` and ``on_stop``, around Faust's own;
- ``Producer._settings_auth``, for Reknit's connection settings;
- the client's ``GroupCoordinator._do_heartbeat``, on the object, for the lease (at-least-once delivery only);
- ``Consumer.verify_all_partitions_active``: it reports partitions whose streams see no events, and these streams never
  do.

Faust's commit loop commits nothing, as no stream acknowledges anything. The group's offsets are committed here, for
other tools (``OffsetCommits``). ``upstream`` has the digests of these parts in the pinned releases.
"""

# ruff: noqa: SLF001 - this module uses private parts of Faust and aiokafka
from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

import aiokafka
from aiokafka import TopicPartition
from aiokafka.errors import (
    CommitFailedError,
    ConsumerStoppedError,
    IllegalStateError,
    KafkaError,
    RebalanceInProgressError,
)
from faust.transport.drivers import aiokafka as driver
from mode import Service

from reknit.pipeline.engine.batches import OffsetGap, Span
from reknit.pipeline.engine.connections import Loop, close_client, is_cancelled, is_passing
from reknit.pipeline.engine.lease import Lease
from reknit.pipeline.engine.offsets import OffsetCommits
from reknit.pipeline.engine.partition import Partition, Phase
from reknit.pipeline.engine.pauses import pause
from reknit.pipeline.engine.runtime import Runtime, TopicChangedError, log
from reknit.pipeline.engine.writer import writer_for
from reknit.pipeline.errors import error_name
from reknit.pipeline.kafka import REFUSALS
from reknit.topics.positions import GroupPosition, PositionMark, group_metadata, read_group_position

if TYPE_CHECKING:
    from aiokafka.consumer.fetcher import Fetcher
    from aiokafka.structs import OffsetAndMetadata
    from faust.types import AppT, ServiceT

# Wait of one poll for records. A poke ends it early, so it is only the interval of the loop's checks.
_POLL_SECONDS = 1.0
# A log must end before the position for this time until that counts.
_BEYOND_SECONDS = 10.0
# Time limits: of the coordinator's answer about an owner, and of a leader's answer about offsets.
_ASK_SECONDS = 5.0
# Interval of checks for a membership error, which the client only reports in a call.
_CHECK_SECONDS = 1.0
# Time limits at a stop: of the last commit of the group's offsets, and of leaving the group.
_LAST_COMMIT_SECONDS = 1.0
_LEAVE_SECONDS = 2.0


class _HasRuntime(Protocol):
    runtime: Runtime  # of the app, which imports this module


def _runtime_of(app: AppT) -> Runtime:
    return cast("_HasRuntime", app).runtime


class SpanThread(driver.AIOKafkaConsumerThread):
    """The thread that owns the Kafka client; it fetches spans."""

    consumer: SpanConsumer

    def __post_init__(self) -> None:
        super().__post_init__()
        self._poked = asyncio.Event()
        # Set while no rebalance is under way. A commit that is sent while this member joins is answered after the join,
        # as one of the former generation. The client then drops its membership and joins again, and so do all others,
        # whose commits are refused likewise. A group was seen to rebalance every second without end.
        self.in_group = asyncio.Event()
        # Both belong to the thread's loop: commits under way, and this member's generation, None while it joins the
        # next one.
        self._commits: set[asyncio.Task[None]] = set()
        self._generation: int | None = None
        # Exactly-once delivery has a fence, and needs no lease.
        self._has_lease = not _runtime_of(self.app).exactly_once
        if self._has_lease:
            _runtime_of(self.app).lease = Lease(float("-inf"))

    async def call_thread(self, fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  as mode's
        """Call a function in the thread, and await its result if it is awaitable. Cancelling this cancels that.

        mode's own queue runs two calls at a time. While no broker answers, those two wait, all other calls wait for
        them, and a stop runs the whole queue first.
        """

        async def call() -> Any:  # noqa: ANN401  as above
            result = fun(*args, **kwargs)
            return await result if inspect.isawaitable(result) else result

        called = call()
        try:
            future = asyncio.run_coroutine_threadsafe(called, self.thread_loop)
        except RuntimeError as error:  # the thread has ended, and its loop is closed
            called.close()
            raise ConsumerStoppedError from error
        return await asyncio.wrap_future(future)

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        """Stop the commits under way before this member joins; the thread calls it."""
        self._generation = None
        for commit in self._commits:
            commit.cancel()
        await super().on_partitions_revoked(revoked)
        if self._has_lease:
            _runtime_of(self.app).lease.end()

    async def on_partitions_assigned(self, assigned: set[TopicPartition], generation_id: int = 0) -> None:
        """Allow commits once this member has joined; the thread calls it."""
        self._generation = generation_id
        if self._has_lease:
            await self._begin_lease()
        await super().on_partitions_assigned(assigned, generation_id)

    async def _begin_lease(self) -> None:
        """Begin the lease of a generation with a heartbeat, and renew it with each heartbeat from now on."""
        runtime, coordinator = _runtime_of(self.app), self._ensure_consumer()._coordinator
        lease = runtime.lease = Lease(float("-inf"))
        send = type(coordinator)._do_heartbeat

        async def heartbeat() -> bool:
            sent = runtime.seams.clock.monotonic()
            is_member: bool = await send(coordinator)
            if is_member:
                lease.renew(sent + runtime.tuning.session_seconds)
            return is_member

        coordinator._do_heartbeat = heartbeat
        with contextlib.suppress(KafkaError, TimeoutError):  # the client repeats it, and then reports a refusal
            async with asyncio.timeout(_ASK_SECONDS):
                await heartbeat()

    async def on_thread_stop(self) -> None:
        """Leave the group, within a time limit: the client waits for each answer as long as a request may take."""
        seconds = _runtime_of(self.app).tuning.at_stop(_LEAVE_SECONDS)
        try:
            async with asyncio.timeout(seconds):
                await super().on_thread_stop()
        except (TimeoutError, asyncio.CancelledError) as error:
            # aiokafka's fetcher lets the cancellation of its own tasks out of `stop` while brokers refuse connections.
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            log.info("the worker did not leave the group, its session will expire: %s", error_name(error))
            await close_client(self._ensure_consumer()._client, seconds / 4)

    async def check_group(self) -> None:
        """Raise the error that made the client stop joining the group; after that it joins again if it can.

        The client reports such an error only in calls that the engine does not make, and waits for one.
        """
        self._ensure_consumer()._coordinator.check_errors()

    def poke(self) -> None:
        """End the poll under way; called from the main thread when the set of wanted partitions grew."""
        self.thread_loop.call_soon_threadsafe(self._poked.set)

    async def spans(self, wanted: set[TopicPartition], seconds: float) -> Mapping[TopicPartition, Span]:
        """Return buffered spans of the wanted partitions; wait up to ``seconds`` for records or a poke."""
        return await self.call_thread(self._fetch_spans, wanted, seconds)  # type: ignore[no-any-return] # mode has no types here

    async def commit_positions(self, positions: Mapping[TopicPartition, int]) -> bool:
        """Commit the group's offsets, after any rebalance under way; return False if the group did not accept them."""
        await self.in_group.wait()
        try:
            return await self.call_thread(self._commit_positions, positions)  # type: ignore[no-any-return] # as above
        except ConsumerStoppedError as error:
            log.info("the group's offsets were not committed: %s", error_name(error))
            return False

    async def bounds(self, tp: TopicPartition) -> tuple[int, int]:
        """Return a partition's first offset, and the offset after the last one that a reader may see."""
        return await self.call_thread(self._bounds, tp)  # type: ignore[no-any-return] # mode has no types here

    async def _bounds(self, tp: TopicPartition) -> tuple[int, int]:
        consumer = self._ensure_consumer()
        async with asyncio.timeout(_ASK_SECONDS):
            first, end = await consumer.beginning_offsets([tp]), await consumer.end_offsets([tp])
        return first[tp], end[tp]

    async def is_ours(self, tp: TopicPartition, position: int) -> bool | None:
        """Ask the group's coordinator, by a commit of ``position``, if this worker owns the partition now.

        Returns None if that is unknown: no answer yet, or a rebalance is under way.
        """
        if not self.in_group.is_set():
            return None
        return await self.call_thread(self._commit_as_owner, tp, position)  # type: ignore[no-any-return] # as above

    async def _commit_as_owner(self, tp: TopicPartition, position: int) -> bool | None:
        offset = (position, self.consumer.metadata_of(tp))
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                is_current = await self._commit_in_generation({tp: offset})
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
        consumer = self._ensure_consumer()
        commit = asyncio.ensure_future(consumer.commit(offsets))
        self._commits.add(commit)
        commit.add_done_callback(self._commits.discard)
        try:
            await asyncio.wait([commit])
        finally:
            commit.cancel()
        if commit.cancelled():
            return False  # this member joins
        commit.result()
        return bool(self._generation == generation == consumer._coordinator.generation)

    async def committed_by_hand(self, tp: TopicPartition) -> int | None:
        """Return the group's offset of a partition if no worker committed it, by its metadata."""
        found = (await self.committed([tp])).get(tp)
        return None if found is None or read_group_position(*found) is not None else found.offset

    async def committed_by_worker(self, tp: TopicPartition) -> GroupPosition | None:
        """Return the position that a worker committed as the group's offset."""
        found = (await self.committed([tp])).get(tp)
        return None if found is None else read_group_position(*found)

    async def committed(self, tps: Collection[TopicPartition]) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return the group's offsets of partitions that have one."""
        fetch = self._ensure_consumer()._coordinator.fetch_committed_offsets
        return await self.call_thread(fetch, list(tps))  # type: ignore[no-any-return] # as above

    async def _commit_positions(self, positions: Mapping[TopicPartition, int]) -> bool:
        consumer = self._ensure_consumer()
        found = {tp: (at, self.consumer.metadata_of(tp)) for tp, at in positions.items()}
        if not (offsets := {tp: offset for tp, offset in found.items() if tp in consumer.assignment()}):
            return True  # `commit` refuses an empty map
        try:
            return await self._commit_in_generation(offsets)
        except (KafkaError, IllegalStateError) as error:
            log.info("the group's offsets were not committed: %s", error_name(error))
            return False

    def _create_worker_consumer(self, transport: driver.Transport) -> aiokafka.AIOKafkaConsumer:  # noqa: ARG002  Faust gives it
        """Create the client, with Faust's co-partitioning and sticky assignor; read_committed for exactly-once."""
        runtime = _runtime_of(self.app)
        tuning = runtime.tuning
        self._assignor = self.app.assignor
        return aiokafka.AIOKafkaConsumer(
            **runtime.connection,
            group_id=runtime.group,
            partition_assignment_strategy=[self._assignor],
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed" if runtime.exactly_once else "read_uncommitted",
            max_partition_fetch_bytes=tuning.fetch_bytes,
            fetch_max_wait_ms=int(tuning.fetch_wait_seconds * 1000),
            session_timeout_ms=int(tuning.session_seconds * 1000),
            rebalance_timeout_ms=int(tuning.rebalance_seconds * 1000),
            # The watchdog checks whether records are processed. With the client's own limit, a worker that could not
            # rejoin for that time, since no broker answered, would never rejoin.
            max_poll_interval_ms=2**31 - 1,
            heartbeat_interval_ms=int(tuning.heartbeat_seconds * 1000),
            request_timeout_ms=int(self.app.conf.broker_request_timeout * 1000),
        )

    async def _fetch_spans(self, wanted: set[TopicPartition], seconds: float) -> Mapping[TopicPartition, Span]:
        consumer = self._ensure_consumer()
        fetcher = consumer._fetcher
        limit = _runtime_of(self.app).tuning.poll_records
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        # Inside this context the coordinator counts this as a poll, even while every partition is full.
        with fetcher._subscriptions.fetch_context():
            while self.consumer.flow_active:
                if consumer._closed or fetcher._closed:
                    raise ConsumerStoppedError
                spans = await _drain(fetcher, wanted, limit)
                left = deadline - loop.time()
                if spans or self._poked.is_set() or left <= 0:
                    self._poked.clear()
                    return spans
                poked = asyncio.ensure_future(self._poked.wait())
                fetched = fetcher._create_fetch_waiter()
                await asyncio.wait([fetched, poked], timeout=left, return_when=asyncio.FIRST_COMPLETED)
                poked.cancel()
                if not fetched.cancel():
                    fetched.result()  # raises a refusal of the group coordinator, for example of authorization
        return {}


async def _drain(fetcher: Fetcher, wanted: set[TopicPartition], limit: int) -> Mapping[TopicPartition, Span]:
    """Return fetched records with the fetch positions before and after them.

    This code does not wait, so no other task of the thread runs between the two reads of a position: outside of a
    reassignment, ``fetched_records`` with a timeout of 0 only takes records from memory.
    """
    subscriptions = fetcher._subscriptions
    subscription = subscriptions.subscription
    if subscription is None or subscription.assignment is None or subscriptions.reassignment_in_progress:
        return {}
    assignment = subscription.assignment
    states = {tp: assignment.state_value(tp) for tp in wanted if tp in assignment.tps}
    before = {tp: state.position for tp, state in states.items() if state.has_valid_position}
    if not before:
        return {}  # to `fetched_records` an empty set means every partition
    records = await fetcher.fetched_records(set(before), timeout=0, max_records=limit)
    spans = {}
    for tp, start in before.items():
        state = states[tp]
        if state.position != start:
            # Under read_committed a reader sees nothing after the first open transaction.
            end_of_log = state.lso if fetcher._isolation_level else state.highwater
            spans[tp] = Span(start, state.position, records.get(tp, ()), max(end_of_log or 0, state.position))
    return spans


class SpanConsumer(driver.Consumer):
    """Passes fetched spans to the actors of their partitions, and keeps actors and assignment consistent."""

    _thread: SpanThread

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - whatever Faust gives
        super().__init__(*args, **kwargs)
        self.actors: dict[TopicPartition, Partition] = {}
        self._runtime = _runtime_of(self.app)
        self._generation = -1
        self._ready_logged = False
        self._beyond_since: dict[TopicPartition, float] = {}
        last_seconds = self._runtime.tuning.at_stop(_LAST_COMMIT_SECONDS)
        self._offsets = OffsetCommits(self._thread.commit_positions, self._thread.committed_by_hand, last_seconds)

    def _new_consumer_thread(self) -> SpanThread:
        return SpanThread(self, loop=self.loop, thread_loop=Loop(), beacon=self.beacon)

    @property
    def settled(self) -> bool:
        """True if the worker is in the group, no rebalance is under way, and every actor is open."""
        is_in = self._thread.in_group.is_set() and self.flow_active
        return is_in and all(actor.phase is Phase.WORKING for actor in self.actors.values())

    def metadata_of(self, tp: TopicPartition) -> str:
        """Return the metadata of the group's offset of a partition; called in the thread too."""
        actor = self.actors.get(tp)
        return group_metadata(0, 1) if actor is None else actor.group_metadata

    async def _mark_at_opening(self, tp: TopicPartition, position: int | None, mark: PositionMark) -> PositionMark:
        topics, topic = self._runtime.topics, self._runtime.contract_name(tp.topic)
        if topics is None:
            return mark
        ask_group = partial(self._thread.committed_by_worker, tp)
        return await topics.mark_at_opening(topic, tp.partition, position, mark, ask_group)

    async def how_far(self, tps: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the group's offsets of partitions. Commits this worker's first, past transaction markers."""
        await self._thread.commit_positions({tp: actor.done_to for tp, actor in self.actors.items()})
        return {tp: found.offset for tp, found in (await self._thread.committed(tps)).items()}

    # Rebalances. Kafka's classic protocol revokes all partitions and assigns again, so a partition may come back.

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        """Pause every actor: the next assignment shows which partitions stay here."""
        if self._thread.in_group.is_set():
            log.info("rebalancing; %d partitions finish their batches", len(self.actors))
        self._thread.in_group.clear()
        self._ready_logged = False
        patience = self._runtime.tuning.hold_seconds
        await asyncio.gather(*(actor.pause(patience) for actor in self.actors.values()))
        await super().on_partitions_revoked(revoked)

    async def on_partitions_assigned(self, assigned: set[TopicPartition], generation_id: int = 0) -> None:
        """Close partitions that moved away, resume those that stayed, open new ones.

        An actor may only resume if no other worker can have had its partition in between. That holds from one
        generation to the next; if this worker missed one, all partitions are opened again.
        """
        if self.should_stop:
            return  # the last rebalance of a leaving worker: no partition is opened
        assigned = {TopicPartition(*tp) for tp in assigned}  # from Faust's type, which the client does not take
        continuous = generation_id == self._generation + 1
        self._generation = generation_id
        # A paused actor whose batch fails closes itself, also while others are being closed.
        while closing := {
            tp
            for tp, actor in self.actors.items()
            if not (continuous and tp in assigned and actor.phase is Phase.PAUSED)
        }:
            await self._close_partitions(closing)
            for tp in closing:
                self._offsets.forget(tp)
        for tp in sorted(assigned):
            topic = self._runtime.contract_name(tp.topic)
            if tp in self.actors:
                self.actors[tp].resume()
            elif topic in self._runtime.stages:
                self.actors[tp] = Partition(
                    self._runtime,
                    topic,
                    tp.partition,
                    writer=partial(writer_for, self._runtime, topic, tp.partition, partial(self._thread.is_ours, tp)),
                    on_room=self._thread.poke,
                    on_opened=partial(self._offsets.name_moved, tp),
                    on_position=partial(self._offsets.soon, tp),
                    is_ours=partial(self._thread.is_ours, tp),
                    mark_at_opening=partial(self._mark_at_opening, tp),
                )
        self._count_partitions()
        await super().on_partitions_assigned(assigned, generation_id)
        self._thread.in_group.set()

    @Service.task
    async def _watch_group(self) -> None:
        while await pause(self, _CHECK_SECONDS):
            try:
                await self._thread.call_thread(self._thread.check_group)
            except ConsumerStoppedError:
                return
            except (KafkaError, asyncio.CancelledError) as error:
                if is_passing(error):
                    log.warning("the group could not be joined: %s", error_name(error))
                    continue
                if isinstance(error, asyncio.CancelledError):
                    raise
                self._runtime.fail(error)
                return

    async def on_stop(self) -> None:
        await super().on_stop()
        await self._close_partitions(set(self.actors))
        await self._offsets.finish()

    async def _close_partitions(self, tps: set[TopicPartition]) -> None:
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

    # The loop between the thread and the actors.

    async def _drain_messages(self, fetcher: ServiceT) -> None:
        """Fetch records that the actors have room for and pass them on, until Faust stops this or the fetcher."""
        try:
            while not (self.should_stop or fetcher.should_stop):
                if not self.flow_active:
                    await self.can_resume_flow.wait()
                    continue
                if self.settled and not self._ready_logged:
                    self._ready_logged = True
                    log.info("ready, with %d partitions", len(self.actors))
                try:
                    await self._align()
                    self._hand_over(await self._thread.spans(self._wanted(), _POLL_SECONDS))
                except (KafkaError, OSError, TimeoutError, asyncio.CancelledError) as error:
                    if not is_passing(error):
                        raise
                    log.warning("the inputs could not be read: %s", error_name(error))
                    await asyncio.sleep(_POLL_SECONDS)
        except asyncio.CancelledError:
            # Faust cancels its fetcher to stop it; a cancellation raised during a rebalance would count as a crash.
            return
        except ConsumerStoppedError:
            if not self.app.should_stop:
                raise
        except Exception as error:
            self._runtime.fail(error)
            raise

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
            if span.start < actor.waits_for:
                # After a rebalance this is a second fetch of the same log. Otherwise the client found its position
                # beyond the log's end and reset to the beginning, as in a re-created topic.
                actor.aligned = False
            try:
                actor.offer(span)
            except OffsetGap as hole:
                log.info("%s: fetched from %d, going back to %d", tp, span.start, hole.offset)
                actor.aligned = False

    async def _align(self) -> None:
        """Seek to the offset from which each actor continues: after opening, a rebalance, or an offset gap."""
        for tp, actor in list(self.actors.items()):
            if actor.aligned or actor.phase is not Phase.WORKING or tp not in self.assignment():
                continue
            try:
                first, end = await self._thread.bounds(tp)
                if self._is_beyond(tp, actor.waits_for, end):
                    continue
                if actor.waits_for < first:
                    actor.expired(first)
                # seek() from this thread was seen to have no effect on records already fetched; seek_wait() has one.
                await self.seek_wait({tp: actor.waits_for})
            except IllegalStateError:
                continue  # a rebalance just revoked it; it will be aligned after that
            actor.aligned = True

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

    async def verify_all_partitions_active(self) -> None:
        """Do nothing: the watchdog checks positions, which are valid here."""


class IdleProducer(driver.Producer):
    """Faust's producer, which it always starts; it needs the connection settings too."""

    def _settings_auth(self) -> Mapping[str, Any]:
        return _runtime_of(self.app).connection


class SpanTransport(driver.Transport):
    Consumer = SpanConsumer
    Producer = IdleProducer
