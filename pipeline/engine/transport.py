"""Faust's transport with its per-record path replaced: spans of the log go to the actors of their partitions.

Faust keeps what it does well: subscription from the declared agents, assignment, heartbeats, rebalances, the consumer
thread, the worker's life. Replaced are, each through a method that Faust lets subclasses replace:

- ``Transport.Consumer`` (``App._new_transport`` makes the transport);
- ``Consumer._new_consumer_thread``, for a thread that builds the client with our settings
  (``_create_worker_consumer``) and fetches whole spans;
- ``Consumer._drain_messages``, the loop between the thread and the streams;
- ``Consumer.on_partitions_revoked``, ``on_partitions_assigned`` and ``on_stop``, around Faust's own;
- ``Producer._settings_auth``, for our way to the cluster;
- ``Consumer.verify_all_partitions_active``: it reports partitions whose streams see no events, and ours never do.

Faust's commit loop commits nothing, as no stream acknowledges anything. The group's offsets are committed here, for who
asks how far it is (``OffsetCommits``). `upstream` holds what all these looked like in the pinned releases.
"""

# ruff: noqa: SLF001 - this module is where the engine meets the private parts of Faust and aiokafka
from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

import aiokafka
from aiokafka.errors import (
    CommitFailedError,
    ConsumerStoppedError,
    IllegalStateError,
    KafkaError,
    RebalanceInProgressError,
)
from faust.transport.drivers import aiokafka as driver
from faust.types import TP

from pipeline.engine.batches import Hole, Span
from pipeline.engine.partition import Partition, Phase
from pipeline.engine.runtime import Runtime, beyond_end, log
from pipeline.engine.writer import OffsetCommits, writer_for
from pipeline.kafka import REFUSALS, may_pass

if TYPE_CHECKING:
    from aiokafka.consumer.fetcher import Fetcher
    from aiokafka.structs import OffsetAndMetadata
    from faust.types import AppT, ServiceT

# How long one poll waits for records. A poke ends it early, so this is only how often the loop looks around.
_POLL_SECONDS = 1.0
# How long a log must seem to end before what was read of it, until that is believed.
_BEYOND_SECONDS = 10.0
# Stands beside the offsets that workers commit; what people and their tools commit has no such mark.
_COMMITTED_BY_A_WORKER = "reknit"
# How long the group's coordinator may take to say whose a partition is.
_ASK_SECONDS = 5.0


class _HasRuntime(Protocol):
    runtime: Runtime  # of our app, which stands above this module


def _runtime_of(app: AppT) -> Runtime:
    return cast("_HasRuntime", app).runtime


class SpanThread(driver.AIOKafkaConsumerThread):
    """The thread that owns the Kafka client; it fetches spans."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._poked = asyncio.Event()
        # Whether no rebalance is under way. A commit that is sent while this member joins is answered behind that, as
        # one of the generation before: the client forgets its membership and joins anew, and so do all others, whose
        # commits meet the same. A group was seen to rebalance every second, for good.
        self.in_group = asyncio.Event()

    def poke(self) -> None:
        """End the poll under way; called from the main thread when the set of wanted partitions grew."""
        self.thread_loop.call_soon_threadsafe(self._poked.set)

    async def spans(self, wanted: set[TP], seconds: float) -> Mapping[TP, Span]:
        """Return what is there of the wanted partitions; wait for it, or for a poke, for so many seconds."""
        return await self.call_thread(self._fetch_spans, wanted, seconds)  # type: ignore[no-any-return] # mode has no types here

    async def commit_positions(self, positions: Mapping[TP, int]) -> None:
        """Commit the group's offsets, after a rebalance that is under way. What is refused is left to the next."""
        await self.in_group.wait()
        try:
            await self.call_thread(self._commit_positions, positions)
        except RuntimeError as error:  # the thread has ended, and its loop is closed
            log.info("the group's offsets were not committed: %s", error)

    async def bounds(self, tp: TP) -> tuple[int, int]:
        """Return the first offset that a partition has, and the one behind its last that a reader may see."""
        return await self.call_thread(self._bounds, tp)  # type: ignore[no-any-return] # mode has no types here

    async def _bounds(self, tp: TP) -> tuple[int, int]:
        consumer, place = self._ensure_consumer(), aiokafka.TopicPartition(*tp)
        first, end = await consumer.beginning_offsets([place]), await consumer.end_offsets([place])
        return first[place], end[place]

    async def is_ours(self, tp: TP, position: int) -> bool | None:
        """Ask the group's coordinator, by a commit of ``position``, whether the partition is ours in this generation.

        Returns None where that is not known: no answer yet, or a rebalance is under way.
        """
        if not self.in_group.is_set():
            return None
        return await self.call_thread(self._commit_as_owner, tp, position)  # type: ignore[no-any-return] # as above

    async def _commit_as_owner(self, tp: TP, position: int) -> bool | None:
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                await self._ensure_consumer().commit({aiokafka.TopicPartition(*tp): (position, _COMMITTED_BY_A_WORKER)})
        except CommitFailedError as error:
            return None if isinstance(error.__cause__, RebalanceInProgressError) else False
        except REFUSALS:
            raise
        except (KafkaError, TimeoutError):
            return None
        return True

    async def committed_by_hand(self, tp: TP) -> int | None:
        """Return the group's offset of a partition where no worker committed it, as the metadata beside it tells."""
        found = (await self.committed([tp])).get(tp)
        return None if found is None or found.metadata == _COMMITTED_BY_A_WORKER else found.offset

    async def committed(self, tps: Collection[TP]) -> Mapping[TP, OffsetAndMetadata]:
        """Return the group's offsets of partitions, as far as there are any."""
        fetch = self._ensure_consumer()._coordinator.fetch_committed_offsets
        return await self.call_thread(fetch, [aiokafka.TopicPartition(*tp) for tp in tps])  # type: ignore[no-any-return] # as above

    async def _commit_positions(self, positions: Mapping[TP, int]) -> None:
        consumer = self._ensure_consumer()
        assigned = consumer.assignment()
        offsets = {aiokafka.TopicPartition(*tp): (at, _COMMITTED_BY_A_WORKER) for tp, at in positions.items()}
        try:
            await consumer.commit({place: offset for place, offset in offsets.items() if place in assigned})
        except (KafkaError, IllegalStateError) as error:
            log.info("the group's offsets were not committed: %s", type(error).__name__)

    def _create_worker_consumer(self, transport: driver.Transport) -> aiokafka.AIOKafkaConsumer:  # noqa: ARG002  Faust gives it
        """Make the client: read_committed where it matters, Faust's co-partitioning and sticky assignor always."""
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
            # The watchdog looks whether records are taken. With the client's own bound, a worker that could not rejoin
            # for that long, since no broker answered, would never do it again.
            max_poll_interval_ms=2**31 - 1,
            heartbeat_interval_ms=int(tuning.heartbeat_seconds * 1000),
            request_timeout_ms=int(self.app.conf.broker_request_timeout * 1000),
        )

    async def _fetch_spans(self, wanted: set[TP], seconds: float) -> Mapping[TP, Span]:
        consumer = self._ensure_consumer()
        fetcher = consumer._fetcher
        limit = _runtime_of(self.app).tuning.poll_records
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        # Inside this context the coordinator knows that somebody polls, even while every partition is full.
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
                    fetched.result()  # raises what the group coordinator refused, authorisation say
        return {}


async def _drain(fetcher: Fetcher, wanted: set[TP], limit: int) -> Mapping[TP, Span]:
    """Take what was fetched, with the fetch positions before and after it.

    Nothing here waits, so no other task of this thread runs between the two looks at a position: outside of a
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
            # Under read_committed a reader sees nothing behind the first open transaction.
            end_of_log = state.lso if fetcher._isolation_level else state.highwater
            spans[tp] = Span(start, state.position, records.get(tp, ()), max(end_of_log or 0, state.position))
    return spans


class SpanConsumer(driver.Consumer):
    """Gives fetched spans to the actors of their partitions, and keeps actors and assignment in step."""

    _thread: SpanThread

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - whatever Faust gives
        super().__init__(*args, **kwargs)
        self.actors: dict[TP, Partition] = {}
        self._runtime = _runtime_of(self.app)
        self._generation = -1
        self._told_ready = False
        self._beyond_since: dict[TP, float] = {}
        self._offsets = OffsetCommits(self._thread.commit_positions, self._thread.committed_by_hand)

    def _new_consumer_thread(self) -> SpanThread:
        return SpanThread(self, loop=self.loop, beacon=self.beacon)

    @property
    def settled(self) -> bool:
        """Whether the worker is in the group, no rebalance is under way, and every actor is open."""
        is_in = self._thread.in_group.is_set() and self.flow_active
        return is_in and all(actor.phase is Phase.WORKING for actor in self.actors.values())

    async def how_far(self, tps: Collection[TP]) -> Mapping[TP, int]:
        """Return the group's offsets of partitions; those of this worker are committed first, markers included."""
        await self._thread.commit_positions({tp: actor.done_to for tp, actor in self.actors.items()})
        return {tp: found.offset for tp, found in (await self._thread.committed(tps)).items()}

    # Rebalances. Kafka's classic protocol revokes everything and assigns anew, so what is revoked may come back.

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        """Hold every actor: which partitions stay here is only known once they are assigned again."""
        if self._thread.in_group.is_set():
            log.info("rebalancing; %d partitions finish their batches", len(self.actors))
        self._thread.in_group.clear()
        self._told_ready = False
        patience = self._runtime.tuning.rebalance_seconds * 0.7
        await asyncio.gather(*(actor.hold(patience) for actor in self.actors.values()))
        await super().on_partitions_revoked(revoked)

    async def on_partitions_assigned(self, assigned: set[TP], generation_id: int = 0) -> None:
        """Let go of what moved away, go on with what stayed, open what is new.

        An actor may only go on if nobody else can have had its partition in between. That holds from one generation
        to the next; when this worker missed one, everything is opened anew.
        """
        if self.should_stop:
            return  # the last rebalance of a worker that leaves: nothing is opened any more
        continuous = generation_id == self._generation + 1
        self._generation = generation_id
        stays = {tp for tp, actor in self.actors.items() if tp in assigned and actor.phase is Phase.HELD and continuous}
        await self._close_partitions(self.actors.keys() - stays)
        for tp in assigned:
            topic = self._runtime.contract_name(tp.topic)
            if tp in stays:
                self.actors[tp].resume()
            elif topic in self._runtime.stages:
                self.actors[tp] = Partition(
                    self._runtime,
                    topic,
                    tp.partition,
                    writer=partial(writer_for, self._runtime, topic, tp.partition),
                    on_room=self._thread.poke,
                    on_opened=partial(self._offsets.name_moved, tp),
                    on_position=partial(self._offsets.soon, tp),
                    is_ours=partial(self._thread.is_ours, tp),
                )
        self._count_partitions()
        await super().on_partitions_assigned(assigned, generation_id)
        self._thread.in_group.set()

    async def on_stop(self) -> None:
        await super().on_stop()
        await self._close_partitions(set(self.actors))
        await self._offsets.finish()

    async def _close_partitions(self, tps: set[TP]) -> None:
        closing = [self.actors.pop(tp) for tp in tps]
        await asyncio.gather(*(actor.close() for actor in closing))
        for actor in closing:
            self._runtime.metrics.on_lag(actor.topic, actor.number, None)

    def _count_partitions(self) -> None:
        owned = {
            topic: sorted(a.number for a in self.actors.values() if a.topic == topic) for topic in self._runtime.stages
        }
        for topic, numbers in owned.items():
            self._runtime.metrics.on_partitions(topic, len(numbers), self._runtime.partitions)
        log.info("assigned: %s", "; ".join(f"{topic} {numbers}" for topic, numbers in owned.items()))

    # The loop between the thread and the actors.

    async def _drain_messages(self, fetcher: ServiceT) -> None:
        """Fetch what the actors have room for and hand it over, until Faust stops this or the fetcher."""
        try:
            while not (self.should_stop or fetcher.should_stop):
                if not self.flow_active:
                    await self.can_resume_flow.wait()
                    continue
                if self.settled and not self._told_ready:
                    self._told_ready = True
                    log.info("ready, with %d partitions", len(self.actors))
                try:
                    await self._align()
                    self._hand_over(await self._thread.spans(self._wanted(), _POLL_SECONDS))
                except (KafkaError, OSError, TimeoutError) as error:
                    if not may_pass(error):
                        raise
                    log.warning("the inputs could not be read: %s", type(error).__name__)
                    await asyncio.sleep(_POLL_SECONDS)
        except asyncio.CancelledError:
            # Faust cancels its fetcher to stop it; one that says so during a rebalance would count as crashed.
            return
        except ConsumerStoppedError:
            if not self.app.should_stop:
                raise
        except Exception as error:
            self._runtime.fail(error)
            raise

    def _wanted(self) -> set[TP]:
        """Return the partitions with room; all partitions share the worker's memory evenly."""
        count = max(1, len(self.actors))
        share_bytes = self._runtime.tuning.pending_bytes // count
        share_records = max(1, self._runtime.tuning.pending_records // count)
        return {tp for tp, actor in self.actors.items() if actor.wants(share_bytes, share_records)}

    def _hand_over(self, spans: Mapping[TP, Span]) -> None:
        for tp, span in spans.items():
            actor = self.actors.get(tp)
            if actor is None:
                continue  # it moved away meanwhile
            try:
                actor.offer(span)
            except Hole as hole:
                log.info("%s: fetched from %d, going back to %d", tp, span.start, hole.offset)
                actor.aligned = False

    async def _align(self) -> None:
        """Seek to where each actor goes on: after opening, after a rebalance, and behind a hole."""
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
                continue  # a rebalance took it away this moment; it will be aligned after that
            actor.aligned = True

    def _is_beyond(self, tp: TP, position: int, end: int) -> bool:
        """Whether a partition ends before the position that is stored for it; where that lasts, end the worker.

        Just after a broker's failure a log may seem shorter than it is.
        """
        if position <= end:
            self._beyond_since.pop(tp, None)
            return False
        if time.monotonic() - self._beyond_since.setdefault(tp, time.monotonic()) > _BEYOND_SECONDS:
            stage = self._runtime.stages[self._runtime.contract_name(tp.topic)](tp.partition)
            self._runtime.fail(beyond_end(*tp, position, end, self._runtime.prefix + stage.state_topic))
        return True

    async def verify_all_partitions_active(self) -> None:
        """Do nothing: the watchdog looks at positions, which mean something here."""


class IdleProducer(driver.Producer):
    """Faust starts one whether somebody sends by it or not; it too has to be let in by the brokers."""

    def _settings_auth(self) -> Mapping[str, Any]:
        return _runtime_of(self.app).connection


class SpanTransport(driver.Transport):
    Consumer = SpanConsumer
    Producer = IdleProducer
