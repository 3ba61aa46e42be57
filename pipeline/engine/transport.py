"""Faust's transport with its per-record path replaced: spans of the log go to the actors of their partitions.

Faust keeps what it does well: subscription from the declared agents, assignment, heartbeats, rebalances, the consumer
thread, the worker's life. Replaced are, each through a method that Faust lets subclasses replace:

- ``Transport.Consumer`` (``App._new_transport`` makes the transport);
- ``Consumer._new_consumer_thread``, for a thread that builds the client with our settings
  (``_create_worker_consumer``) and fetches whole spans (``_fetch_records``);
- ``Consumer._drain_messages``, the loop between the thread and the streams;
- ``Consumer.on_partitions_revoked``, ``on_partitions_assigned`` and ``on_stop``, around Faust's own;
- ``Consumer.verify_all_partitions_active``: it reports partitions whose streams see no events, and ours never do.

Faust's commit loop commits what streams acknowledged; no stream sees these records, so it commits nothing.
`selfcheck` holds what each of these looked like in the pinned releases.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import aiokafka
from aiokafka.errors import ConsumerStoppedError
from faust.transport.drivers import aiokafka as driver
from faust.types import TP

from pipeline.engine.contiguity import Hole, Span
from pipeline.engine.ordered import OrderedWriter
from pipeline.engine.partition import Partition, State
from pipeline.engine.runtime import Runtime, log
from pipeline.engine.transaction import TransactionWriter
from pipeline.engine.writer import Writer

if TYPE_CHECKING:
    from pipeline.stages.base import Stage

# How long one poll waits for records. A poke ends it early, so this is only how often the loop looks around.
_POLL_SECONDS = 1.0


class SpanThread(driver.AIOKafkaConsumerThread):
    """The thread that owns the Kafka client; it fetches spans."""

    def poke(self) -> None:
        """End the poll under way; called from the main thread when the set of wanted partitions grew."""
        self.thread_loop.call_soon_threadsafe(self._poked.set)

    def __post_init__(self) -> None:
        """Set up as Faust does, and the event for ``poke``."""
        super().__post_init__()
        self._poked = asyncio.Event()

    def _create_worker_consumer(self, transport: driver.Transport) -> aiokafka.AIOKafkaConsumer:
        """Make the client: read_committed where it matters, Faust's co-partitioning and sticky assignor always."""
        runtime: Runtime = self.app.runtime
        tuning = runtime.tuning
        self._assignor = self.app.assignor
        return aiokafka.AIOKafkaConsumer(
            bootstrap_servers=runtime.bootstrap,
            client_id=self.app.conf.broker_client_id,
            group_id=runtime.group,
            partition_assignment_strategy=[self._assignor],
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed" if runtime.exactly_once else "read_uncommitted",
            max_partition_fetch_bytes=tuning.fetch_bytes,
            fetch_max_wait_ms=int(tuning.fetch_wait_seconds * 1000),
            max_poll_records=tuning.poll_records,
            session_timeout_ms=int(tuning.session_seconds * 1000),
            rebalance_timeout_ms=int(tuning.rebalance_seconds * 1000),
            heartbeat_interval_ms=int(tuning.heartbeat_seconds * 1000),
            request_timeout_ms=int(self.app.conf.broker_request_timeout * 1000),
        )

    async def _fetch_records(
        self,
        consumer: aiokafka.AIOKafkaConsumer,
        active_partitions: set[TP],
        timeout: float | None = None,
        max_records: int | None = None,
    ) -> dict[TP, Span]:
        """Return what is there of the wanted partitions; wait for it, or for a poke, until the timeout."""
        fetcher = consumer._fetcher
        if consumer._closed or fetcher._closed:
            raise ConsumerStoppedError
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (timeout or 0.0)
        # Inside this context the coordinator knows that somebody polls, even while every partition is full.
        with fetcher._subscriptions.fetch_context():
            while self.consumer.flow_active:
                spans = await _drain(fetcher, active_partitions, max_records)
                left = deadline - loop.time()
                if spans or self._poked.is_set() or left <= 0:
                    self._poked.clear()
                    return spans
                poked = asyncio.ensure_future(self._poked.wait())
                await asyncio.wait(
                    [fetcher._create_fetch_waiter(), poked], timeout=left, return_when=asyncio.FIRST_COMPLETED
                )
                poked.cancel()
        return {}


async def _drain(fetcher: Any, wanted: set[TP], max_records: int | None) -> dict[TP, Span]:
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
    records = await fetcher.fetched_records(set(before), timeout=0, max_records=max_records)
    spans = {}
    for tp, start in before.items():
        state = states[tp]
        if state.position != start:
            limit = max(state.lso or 0, state.position) if _committed_only(fetcher) else state.highwater or 0
            spans[tp] = Span(start, state.position, records.get(tp, ()), limit)
    return spans


def _committed_only(fetcher: Any) -> bool:
    return bool(fetcher._isolation_level)


class SpanConsumer(driver.Consumer):
    """Gives fetched spans to the actors of their partitions, and keeps actors and assignment in step."""

    _thread: SpanThread

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.actors: dict[TP, Partition] = {}
        self.runtime: Runtime = self.app.runtime
        self._generation = -1
        self.joined = False

    def _new_consumer_thread(self) -> SpanThread:
        return SpanThread(self, loop=self.loop, beacon=self.beacon)

    @property
    def settled(self) -> bool:
        """Whether the worker is in the group, no rebalance is under way, and every actor is open."""
        return (
            self.joined
            and self.flow_active
            and all(actor.state is State.WORKING for actor in self.actors.values())
        )

    # Rebalances. Kafka's classic protocol revokes everything and assigns anew, so what is revoked may come back.

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        """Park every actor: which partitions stay here is only known once they are assigned again."""
        self.joined = False
        patience = self.runtime.tuning.rebalance_seconds * 0.7
        await asyncio.gather(*(actor.park(patience) for actor in self.actors.values()))
        await super().on_partitions_revoked(revoked)

    async def on_partitions_assigned(self, assigned: set[TP], generation_id: int = 0) -> None:
        """Let go of what moved away, go on with what stayed, open what is new.

        An actor may only go on if nobody else can have had its partition in between. That holds from one generation
        to the next; when this worker missed one, everything is opened anew.
        """
        continuous = generation_id == self._generation + 1
        self._generation = generation_id
        stays = {tp for tp, actor in self.actors.items() if continuous and tp in assigned and actor.state is State.PARKED}
        await self._close(set(self.actors) - stays)
        for tp in assigned:
            topic = self.runtime.contract_name(tp.topic)
            if tp in stays:
                self.actors[tp].resume()
            elif topic in self.runtime.stages:
                self.actors[tp] = Partition(self.runtime, topic, tp.partition, self._writer_for(tp), self._thread.poke)
        self.runtime.metrics.on_partitions(len(self.actors))
        await super().on_partitions_assigned(assigned, generation_id)
        self.joined = True

    async def on_stop(self) -> None:
        """Finish the batches in flight and stop the producers, so that no transaction stays open."""
        await super().on_stop()
        await self._close(set(self.actors))

    async def _close(self, tps: set[TP]) -> None:
        await asyncio.gather(*(self.actors.pop(tp).close() for tp in tps))

    def _writer_for(self, tp: TP) -> Any:
        runtime = self.runtime
        topic = runtime.contract_name(tp.topic)

        async def commit_offset(offset: int) -> None:
            await self._thread.commit({tp: offset})

        def make(stage: Stage) -> Writer:
            if runtime.exactly_once:
                return TransactionWriter(
                    runtime.bootstrap, runtime.prefix, runtime.group, topic, stage.state_topic, tp.partition, runtime.tuning
                )
            return OrderedWriter(
                runtime.bootstrap, runtime.prefix, stage.state_topic, tp.partition, commit_offset, runtime.tuning
            )

        return make

    # The loop between the thread and the actors.

    async def _drain_messages(self, fetcher: Any) -> None:
        """Fetch what the actors have room for and hand it over, until Faust stops this or the fetcher."""
        try:
            while not (self._stopped.is_set() or fetcher._stopped.is_set()):
                if not self.flow_active:
                    await self.wait(self.can_resume_flow)
                    continue
                await self._align()
                self._deliver_to(await self._thread.getmany(self._wanted(), _POLL_SECONDS))
        except ConsumerStoppedError:
            if not self.app.should_stop:
                raise
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self.runtime.fail(error)
            raise

    def _wanted(self) -> set[TP]:
        """Return the partitions with room; all partitions share the worker's memory evenly."""
        count = max(1, len(self.actors))
        share_bytes = self.runtime.tuning.pending_bytes // count
        share_records = max(1, self.runtime.tuning.pending_records // count)
        return {tp for tp, actor in self.actors.items() if actor.wants(share_bytes, share_records)}

    def _deliver_to(self, spans: Mapping[TP, Span]) -> None:
        for tp, span in spans.items():
            actor = self.actors.get(tp)
            if actor is None:
                continue  # moved away meanwhile
            try:
                actor.offer(span)
            except Hole as hole:
                log.info("%s: records before offset %d were given up, fetching from %d", tp, span.start, hole.offset)
                actor.aligned = False

    async def _align(self) -> None:
        """Seek to where each actor goes on: after opening, after a rebalance, and behind a hole."""
        for tp, actor in list(self.actors.items()):
            if actor.state is not State.WORKING or actor.aligned or tp not in self.assignment():
                continue
            # seek() from this thread was seen to have no effect on records already fetched; seek_wait() has one.
            first = (await self.earliest_offsets(tp))[tp]
            if actor.waits_for < first:
                actor.expired(first)
            await self.seek_wait({tp: actor.waits_for})
            actor.aligned = True

    async def verify_all_partitions_active(self) -> None:
        """Do nothing: the watchdog looks at positions, which mean something here."""


class SpanTransport(driver.Transport):
    """Faust's aiokafka transport with our consumer."""

    Consumer = SpanConsumer
