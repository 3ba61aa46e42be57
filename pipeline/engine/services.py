"""Services next to a worker's Faust app: they serve its health, and end it when it is done or stuck.

There are three ways to hang, each with a watch: the event loop does not turn (a thread watches it), records wait in the
log and none is processed (a task compares positions with the log's ends, over a connection of its own), a stop does not
end (the thread again). The partition itself handles a missed deadline inside a batch. The first two watches count only
the time in which the process could run (``run_clock``): slow is not stuck.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from aiohttp import web
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import ConsumerStoppedError, KafkaError
from mode import Service
from msgspec import Struct
from prometheus_client import CollectorRegistry

from reknit.pipeline.engine.connections import is_cancelled, stop_reader
from reknit.pipeline.engine.partition import Partition, Phase
from reknit.pipeline.engine.pauses import pause
from reknit.pipeline.engine.run_clock import RunClock, processor_time_of
from reknit.pipeline.engine.runtime import DEFAULT_METRICS_PORT, TICK_SECONDS, EngineError, Runtime, StartupError, log
from reknit.pipeline.errors import error_name
from reknit.pipeline.web import Check, runner_of, status_app
from reknit.pipeline.web import listen as listen_on

if TYPE_CHECKING:
    from reknit.pipeline.engine.source import Source

# EX_TEMPFAIL: a supervisor should start the worker again.
EXIT_FAILED = 75

# Intervals: of the deadman's checks, and of the event loop's ticks.
_GLANCE_SECONDS = 0.25
# Interval of requests for the logs' ends, and time limit of an answer.
_LOOK_SECONDS = 3.0
# Interval of requests while no broker answers.
_LOOK_AGAIN_SECONDS = 1.0
# Interval of requests for the group's progress, for a worker with ends.
_ASK_SECONDS = 0.5

# A partition in these phases is processed; a paused one resumes after the rebalance.
_WORKING = frozenset({Phase.WORKING, Phase.PAUSED})

# Returns None if healthy, else the problem.

# Called with the group's next offset of each partition of the inputs (contract names) that has one.
Progress: TypeAlias = Callable[[dict[tuple[str, int], int]], None]


class Deadman(threading.Thread):
    """A thread that ends the process if the event loop cannot; the loop's thread creates it.

    A loop whose thread uses the processor is not blocked, however small its share is. In that case only the processor
    time that it used counts.
    """

    def __init__(self, loop_stuck_seconds: float) -> None:
        super().__init__(name="deadman", daemon=True)
        self._limit = loop_stuck_seconds
        self.status = EXIT_FAILED  # exit status of a process that does not stop in time
        self._clock = RunClock(_GLANCE_SECONDS, processor_time_of(threading.get_ident()), busy_share=0.01)
        self._ticked_at = self._now
        self._deadline: float | None = None
        self._done = threading.Event()

    def tick(self) -> None:
        """Note that the event loop turned."""
        self._ticked_at = self._now

    @property
    def age(self) -> float:
        """Seconds since the loop turned last, without the time in which it could not run."""
        return self._now - self._ticked_at

    @property
    def _now(self) -> float:
        return time.monotonic() - self._clock.lost

    def must_end_within(self, seconds: float) -> None:
        """End the process with a failure if it still runs after ``seconds``. The first call counts."""
        if self._deadline is None:
            self._deadline = time.monotonic() + seconds

    def disarm(self) -> None:
        """Stop watching: the worker has ended by itself."""
        self._done.set()

    def run(self) -> None:
        """Check four times a second."""
        while not self._done.wait(_GLANCE_SECONDS):
            self._clock.tick()
            if self._deadline is not None and time.monotonic() > self._deadline:
                _exit("the worker did not stop in time", self.status)
            if self.age > self._limit:
                _exit(f"the event loop has not turned for {self._limit:.0f} s")


def _exit(reason: str, status: int = EXIT_FAILED) -> None:
    sys.stderr.write(f"reknit: {reason}; ending the process, nothing was committed\n")
    sys.stderr.flush()
    os._exit(status)


class _Stay(Struct):
    """A partition that does not move: its offset, its steps so far, and since when, by both clocks."""

    at: int
    steps: int
    since: float
    run_since: float
    is_logged: bool = False


class Watchdog(Service):
    """Ticks for the deadman, ends the worker after a failure, and checks that partitions move.

    It also checks if any broker answers: while none does, the worker is not ready and waits.
    """

    def __init__(
        self,
        runtime: Runtime,
        deadman: Deadman,
        actors: Callable[[], Mapping[TopicPartition, Partition]],
        stop: Callable[[], None],
    ) -> None:
        super().__init__()
        self._runtime = runtime
        self._deadman = deadman
        self._actors = actors
        self._stop_worker = stop
        self._silent = False  # True if the silence of the brokers was logged
        self._stays: dict[tuple[str, int], _Stay] = {}

    @Service.task
    async def _tick(self) -> None:
        while not self.should_stop:
            self._deadman.tick()
            self._runtime.run_clock.tick()
            await asyncio.sleep(TICK_SECONDS)

    @Service.task
    async def _pass_failure_on(self) -> None:
        await self._runtime.failed.wait()
        self._stop_worker()

    @Service.task
    async def _watch_progress(self) -> None:
        reader: AIOKafkaConsumer | None = None
        try:
            while await pause(self, _LOOK_AGAIN_SECONDS if self._silent else _LOOK_SECONDS):
                actors = dict(self._actors())
                try:
                    async with asyncio.timeout(_LOOK_SECONDS):
                        if reader is None:
                            reader = self._reader()
                            await reader.start()
                        ends = await self._ends(reader, list(actors))
                except (KafkaError, OSError, TimeoutError, asyncio.CancelledError) as error:
                    if isinstance(error, asyncio.CancelledError) and is_cancelled():
                        raise
                    if reader is not None:
                        await stop_reader(reader)
                    reader = None
                    self._on_silence(actors.values(), error)
                    continue
                self._on_answer()
                self._note_working(actors.values())
                for tp, actor in actors.items():
                    end = self._runtime.end_of(actor.topic, actor.number)
                    self._look_at(actor, ends[tp] if end is None else min(end, ends[tp]))
        finally:
            if reader is not None:
                await stop_reader(reader)

    def _reader(self) -> AIOKafkaConsumer:
        # For a reader the log ends at the first open transaction.
        isolation = "read_committed" if self._runtime.exactly_once else "read_uncommitted"
        return AIOKafkaConsumer(
            **self._runtime.connection,
            isolation_level=isolation,
            enable_auto_commit=False,
            request_timeout_ms=int(_LOOK_SECONDS * 1000),
        )

    async def _ends(self, reader: AIOKafkaConsumer, tps: list[TopicPartition]) -> Mapping[TopicPartition, int]:
        if not tps:
            # A worker without partitions also checks whether a broker answers.
            await reader.topics()
            return {}
        ends: Mapping[TopicPartition, int] = await reader.end_offsets(tps)
        return ends

    def _on_silence(self, actors: Iterable[Partition], error: BaseException) -> None:
        """Log a longer silence; lags are unknown then, and no partition counts as stuck."""
        if not self._silent and not self._runtime.answers:
            self._silent = True
            log.warning(
                "no broker at %s has answered for %.0f s; waiting for one: %s",
                self._runtime.bootstrap,
                self._runtime.silent_seconds,
                error_name(error),
            )
        for actor in actors:
            self._runtime.metrics.on_lag(actor.topic, actor.number, None)
        self._stays.clear()

    def _on_answer(self) -> None:
        if self._silent:
            log.warning("a broker answers again, after %.0f s", self._runtime.silent_seconds)
        self._silent = False
        self._runtime.on_answer()

    def _note_working(self, actors: Collection[Partition]) -> None:
        for topic in self._runtime.stages:
            working = {actor.number for actor in actors if actor.topic == topic and actor.phase in _WORKING}
            self._runtime.metrics.on_working(topic, working, self._runtime.partitions)

    def _look_at(self, actor: Partition, end: int) -> None:
        """End the worker if a partition does not move although the process could run.

        A partition moves if it commits or processes records. Time that the process lost does not count.
        """
        self._runtime.run_clock.tick()  # after a suspension this task may run first
        key, at, now = (actor.topic, actor.number), actor.done_to, time.monotonic()
        run_now, steps = now - self._runtime.run_clock.lost, self._runtime.steps[key]
        # The lag is unknown until the changelog was read. A partition that is opened again has a known lag.
        if actor.phase is not Phase.OPENING or at:
            self._runtime.metrics.on_lag(actor.topic, actor.number, max(0, end - at))
        stay, patience = self._stays.get(key), self._runtime.tuning.stall_seconds
        is_moving = stay is None or (stay.at, stay.steps) != (at, steps)
        if stay is None or is_moving or at >= end or actor.phase is not Phase.WORKING:
            self._stays[key] = _Stay(at, steps, now, run_now)
            return
        place = f"{actor.topic} partition {actor.number} stays at offset {at} of {end}"
        if run_now - stay.run_since > patience:
            self._runtime.fail(EngineError("stalled", f"{place} for {patience:.0f} s"))
        elif now - stay.since > patience and not stay.is_logged:
            stay.is_logged = True
            lost = (now - stay.since) - (run_now - stay.run_since)
            log.warning("%s; for %.0f of %.0f s this process could not run: waiting", place, lost, now - stay.since)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; if the default port is taken, for example by a second worker, on a free port.

    Raises:
        StartupError: ``port_taken`` or ``port_refused``.
    """
    try:
        return listen_on(host, port)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        if taken and port == DEFAULT_METRICS_PORT:
            log.warning("port %d is taken: %s", port, error_name(error))
            return listen_on(host, 0)
        raise StartupError(
            "port_taken" if taken else "port_refused",
            f"cannot listen on {host} port {port}: {os.strerror(error.errno or 0)}. "
            "Set another --metrics-port; 0 takes a free one.",
        ) from error


class Health(Service):
    """Serves /metrics, /livez and /readyz, by default on the loopback address.

    Faust's own web server is off: it binds every interface, its port collides between two workers of one host, and its
    front page says OK during recovery.
    """

    def __init__(self, registry: CollectorRegistry, live: Check, ready: Check, listening: socket.socket) -> None:
        super().__init__()
        self._registry = registry
        self._live = live
        self._ready = ready
        self._socket = listening
        self._runner: web.AppRunner | None = None
        self.port: int = listening.getsockname()[1]

    async def on_start(self) -> None:
        self._runner = runner_of(status_app(self._live, self._ready, self._registry), stop_seconds=1.0)
        await self._runner.setup()
        await web.SockSite(self._runner, self._socket).start()
        log.info("metrics and health: http://%s:%d", self._socket.getsockname()[0], self.port)

    async def on_stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()


class Finish(Service):
    """Commits positions up to the ends, and stops the worker once the group has reached all ends.

    The ends are fixed before the start. The group's offsets show the progress of all its workers. A worker whose
    partitions are done stays until the others are done, since it takes over partitions of a worker that dies.
    """

    def __init__(
        self,
        runtime: Runtime,
        source: Source,
        stop: Callable[[], None],
        on_progress: Progress | None,
    ) -> None:
        super().__init__()
        self._source = source
        self._stop_worker = stop
        self._on_progress = on_progress
        self._ends = {
            TopicPartition(runtime.source_prefix + topic, number): end
            for topic, ends in (runtime.scope.ends or {}).items()
            for number, end in enumerate(ends)
        }
        self._contract_name = runtime.contract_name

    @Service.task
    async def _watch_offsets(self) -> None:
        while await pause(self, _ASK_SECONDS):
            if not self._source.settled:
                continue
            try:
                done = await self._source.how_far(self._ends)
            except (KafkaError, ConsumerStoppedError):
                continue  # the watchdog logs a longer silence
            if self._on_progress is not None:
                self._on_progress({(self._contract_name(tp.topic), tp.partition): at for tp, at in done.items()})
            if all(done.get(tp, 0) >= end for tp, end in self._ends.items()):
                self._stop_worker()
                return
