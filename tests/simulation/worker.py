"""One simulated worker: the engine's own code over the simulated seams."""

from __future__ import annotations

import asyncio
import contextlib

from aiokafka.errors import KafkaError
from msgspec import structs
from simulation.clients import SimBrokers
from simulation.loop import SimClock
from simulation.member import SameLoop
from simulation.network import SESSION_SECONDS
from simulation.plans import PARTITIONS

from reknit.pipeline.engine.runtime import NoMetrics, Runtime, Tuning
from reknit.pipeline.engine.seams import Seams
from reknit.pipeline.engine.source import Source
from reknit.pipeline.engine.topic_ids import TopicIds, TopicWatch
from reknit.pipeline.settings import Config

PREFIX = "p."
_WATCH_SECONDS = 3.0


class Counters(NoMetrics):
    """Counts what faults led to."""

    def __init__(self, happened):
        super().__init__()
        self._happened = happened

    def on_new_epoch(self, topic, partition):
        self._happened["new epoch"] += 1


class SimWorker:
    """``live`` runs in a process of its own and returns the engine's failure."""

    def __init__(self, world, state_format):
        self._world, plan = world, world.plan.settings
        config = Config(prefix=PREFIX, delivery="exactly-once" if plan.exactly_once else "at-least-once")
        config = structs.replace(config, state=structs.replace(config.state, format=state_format, store=plan.store))
        self._config = config

    def _runtime(self, machine):
        world = self._world
        seams = Seams(
            clock=SimClock(world.loop, world.tape.stream("costs")),
            brokers=SimBrokers(world.cluster, world.network),
            disk=machine.open,
            member_loop=SameLoop,
        )
        tuning = tuning_of(world.plan.settings)
        runtime = Runtime(self._config, world.job.stages, Counters(world.happened), tuning, seams=seams)
        runtime.partitions = PARTITIONS
        if world.plan.settings.job == "recreated":
            names = [PREFIX + topic for pair in world.job.states.items() for topic in pair]
            runtime.topic_ids = {name: f"cluster {world.cluster.topic_id(name).hex()}" for name in names}
            runtime.topics = TopicIds(runtime)
        return runtime

    async def live(self, machine):
        runtime = self._runtime(machine)
        await Source(runtime, []).start()
        if runtime.topics is not None:
            await TopicWatch(runtime, runtime.topics).start()
        watching = asyncio.ensure_future(self._watch(runtime))
        await runtime.failed.wait()
        watching.cancel()
        return runtime.failure

    async def _watch(self, runtime):
        """Note that brokers answer, as the engine's watchdog does."""
        connection = {}
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            with contextlib.suppress(KafkaError):
                place, work = self._world.cluster.group.places[0], self._world.cluster.bounds
                await self._world.network.call(connection, "Fetch", work, place, runtime.exactly_once)
                runtime.on_answer()


def tuning_of(plan):
    return Tuning(
        session_seconds=SESSION_SECONDS,
        heartbeat_seconds=0.5,
        rebalance_seconds=6.0,
        fetch_wait_seconds=0.2,
        batch_seconds=8.0,
        transaction_seconds=6.0,
        start_seconds=10.0,
        batch_records=plan.batch_records,
        slice_records=plan.slice_records,
        batch_bytes=plan.batch_bytes,
        pending_records=plan.pending_records,
        poll_records=plan.poll_records,
        commit_interval_ms=plan.commit_interval_ms,
        send_batch_bytes=plan.send_batch_bytes,
        release_records=plan.release_records,
    )
