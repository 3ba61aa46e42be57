"""What runs beside a worker's Faust app: its health is served, and it ends where it is done or only looks alive.

Three ways to hang, three watches: the event loop does not turn (a thread looks at it), records wait in the log and
none is taken (a task compares positions with the log's ends, over a connection of its own), a stop does not come to
an end (the thread again). A missed deadline inside a batch is the partition's own matter.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from aiohttp import web
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.protocol.metadata import MetadataRequest
from faust.types import TP
from mode import Service
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from pipeline.engine.partition import Partition, Phase
from pipeline.engine.runtime import DEFAULT_METRICS_PORT, EngineError, Runtime, StartupError, log

if TYPE_CHECKING:
    from pipeline.engine.transport import SpanConsumer

# EX_TEMPFAIL: start me again.
EXIT_FAILED = 75

# How often the logs' ends are asked for, and how long an answer may take.
_LOOK_SECONDS = 3.0
# How often it is asked how far the group is, where the worker is to end.
_ASK_SECONDS = 0.5

# Answers None where all is well, else what is not.
Check: TypeAlias = Callable[[], str | None]

# Called with the group's next offset of each partition of the inputs (contract names), where it has one.
Progress: TypeAlias = Callable[[dict[tuple[str, int], int]], None]


class Deadman(threading.Thread):
    """A thread that ends the process when the event loop cannot do it any more."""

    def __init__(self, loop_stuck_seconds: float) -> None:
        super().__init__(name="deadman", daemon=True)
        self._limit = loop_stuck_seconds
        self.status = EXIT_FAILED  # of a process that does not stop in time
        self._ticked_at = time.monotonic()
        self._deadline: float | None = None
        self._done = threading.Event()

    def tick(self) -> None:
        """Say that the event loop turns."""
        self._ticked_at = time.monotonic()

    @property
    def age(self) -> float:
        """Seconds since the loop turned last."""
        return time.monotonic() - self._ticked_at

    def must_end_within(self, seconds: float) -> None:
        """End the process, with a failure, if it is still here then. The first call counts."""
        if self._deadline is None:
            self._deadline = time.monotonic() + seconds

    def disarm(self) -> None:
        """Stop watching: the worker has ended by itself."""
        self._done.set()

    def run(self) -> None:
        """Look four times a second."""
        while not self._done.wait(0.25):
            if self._deadline is not None and time.monotonic() > self._deadline:
                _exit("the worker did not stop in time", self.status)
            if self.age > self._limit:
                _exit(f"the event loop has not turned for {self._limit:.0f} s")


def _exit(reason: str, status: int = EXIT_FAILED) -> None:
    sys.stderr.write(f"reknit: {reason}; ending the process, nothing was committed\n")
    sys.stderr.flush()
    os._exit(status)


class Watchdog(Service):
    """Ticks for the deadman, passes a failure on, and sees that the log's ends are reached.

    It also sees whether any broker answers: while none does, the worker is not ready, and waits.
    """

    def __init__(
        self,
        runtime: Runtime,
        deadman: Deadman,
        actors: Callable[[], Mapping[Any, Partition]],
        stop: Callable[[], None],
    ) -> None:
        super().__init__()
        self._runtime = runtime
        self._deadman = deadman
        self._actors = actors
        self._stop_worker = stop
        self._silent = False  # whether it was said that no broker answers
        self._seen: dict[tuple[str, int], tuple[int, float]] = {}  # where a partition stood, and since when

    @Service.task
    async def _tick(self) -> None:
        while not self.should_stop:
            self._deadman.tick()
            await asyncio.sleep(1.0)

    @Service.task
    async def _pass_failure_on(self) -> None:
        await self._runtime.failed.wait()
        self._stop_worker()

    @Service.task
    async def _watch_progress(self) -> None:
        reader: AIOKafkaConsumer | None = None
        try:
            while not self.should_stop:
                await self.sleep(_LOOK_SECONDS)
                actors = {TopicPartition(tp.topic, tp.partition): actor for tp, actor in self._actors().items()}
                try:
                    async with asyncio.timeout(_LOOK_SECONDS):
                        if reader is None:
                            reader = self._reader()
                            await reader.start()
                        ends = await self._ends(reader, list(actors))
                except (KafkaError, OSError, TimeoutError):
                    if reader is not None:
                        await reader.stop()
                    reader = None
                    self._on_silence(actors.values())
                    continue
                self._on_answer()
                for tp, actor in actors.items():
                    end = self._runtime.end_of(actor.topic, actor.number)
                    self._look_at(actor, ends[tp] if end is None else min(end, ends[tp]))
        finally:
            if reader is not None:
                await reader.stop()

    def _reader(self) -> AIOKafkaConsumer:
        # With open transactions the log ends, for a reader, at the first of them.
        isolation = "read_committed" if self._runtime.exactly_once else "read_uncommitted"
        return AIOKafkaConsumer(
            **self._runtime.connection,
            isolation_level=isolation,
            enable_auto_commit=False,
            request_timeout_ms=int(_LOOK_SECONDS * 1000),
        )

    async def _ends(self, reader: AIOKafkaConsumer, tps: list[TopicPartition]) -> Mapping[TopicPartition, int]:
        if not tps:
            # A worker without partitions asks all the same whether somebody answers.
            client = reader._client  # noqa: SLF001  a consumer has no call that asks nothing
            await client.send(client.get_random_node(), MetadataRequest([]))
            return {}
        ends: Mapping[TopicPartition, int] = await reader.end_offsets(tps)
        return ends

    def _on_silence(self, actors: Iterable[Partition]) -> None:
        """Say so, once it has lasted; no lag is known then, and no partition is to blame for standing still."""
        if not self._silent and not self._runtime.answers:
            self._silent = True
            log.warning(
                "no broker at %s has answered for %.0f s; waiting for one",
                self._runtime.bootstrap,
                self._runtime.silent_seconds,
            )
        for actor in actors:
            self._runtime.metrics.on_lag(actor.topic, actor.number, None)
        self._seen.clear()

    def _on_answer(self) -> None:
        if self._silent:
            log.warning("a broker answers again, after %.0f s", self._runtime.silent_seconds)
        self._silent = False
        self._runtime.on_answer()

    def _look_at(self, actor: Partition, end: int) -> None:
        key, at, now = (actor.topic, actor.number), actor.done_to, time.monotonic()
        if actor.phase is not Phase.OPENING:  # before its changelog is read, nobody knows
            self._runtime.metrics.on_lag(actor.topic, actor.number, max(0, end - at))
        if at >= end or actor.phase is not Phase.WORKING or self._seen.get(key, (-1, 0.0))[0] != at:
            self._seen[key] = (at, now)
        elif now - self._seen[key][1] > self._runtime.tuning.stall_seconds:
            self._runtime.fail(
                EngineError(
                    "stalled",
                    f"{actor.topic} partition {actor.number} stays at offset {at} of {end} for "
                    f"{self._runtime.tuning.stall_seconds:.0f} s",
                )
            )


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; where the default port is taken, by a second worker say, one on a free port.

    Raises:
        StartupError: ``port_taken`` or ``port_refused``.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        if taken and port == DEFAULT_METRICS_PORT:
            log.warning("port %d is taken", port)
            return socket.create_server((host, 0), family=family)
        raise StartupError(
            "port_taken" if taken else "port_refused",
            f"cannot listen on {host} port {port}: {os.strerror(error.errno or 0)}. "
            "Set another --metrics-port; 0 takes a free one.",
        ) from error


class Health(Service):
    """/metrics, /livez and /readyz, on the loopback address unless configured otherwise.

    Faust's own web server stays off: it binds every interface, its port collides between two workers of one host, and
    its front page says OK during recovery.
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
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/livez", self._answer(self._live))
        app.router.add_get("/readyz", self._answer(self._ready))
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.SockSite(self._runner, self._socket).start()
        log.info("metrics and health: http://%s:%d", self._socket.getsockname()[0], self.port)

    async def on_stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    def _answer(self, check: Check) -> Callable[[web.Request], Any]:
        async def answer(_request: web.Request) -> web.Response:
            wrong = check()
            return web.Response(text=(wrong or "ok") + "\n", status=503 if wrong else 200)

        return answer


class Finish(Service):
    """Commits what is done up to the ends, and stops the worker once the group has reached all of them.

    Which offsets are the ends was settled before it began, and the group's own offsets say how far all of its workers
    are. One whose partitions are done stays until the others' are too, since it takes over where one of them dies.
    """

    def __init__(
        self,
        runtime: Runtime,
        consumer: Callable[[], SpanConsumer],
        stop: Callable[[], None],
        on_progress: Progress | None,
    ) -> None:
        super().__init__()
        self._consumer = consumer
        self._stop_worker = stop
        self._on_progress = on_progress
        self._ends = {
            TP(runtime.source_prefix + topic, number): end
            for topic, ends in (runtime.scope.ends or {}).items()
            for number, end in enumerate(ends)
        }
        self._contract_name = runtime.contract_name

    @Service.task
    async def _watch_offsets(self) -> None:
        while not self.should_stop:
            await self.sleep(_ASK_SECONDS)
            consumer = self._consumer()
            if not consumer.settled:
                continue
            try:
                done = await consumer.how_far(self._ends)
            except KafkaError:
                continue  # the watchdog says it where it lasts
            if self._on_progress is not None:
                self._on_progress({(self._contract_name(tp.topic), tp.partition): at for tp, at in done.items()})
            if all(done.get(tp, 0) >= end for tp, end in self._ends.items()):
                self._stop_worker()
                return
