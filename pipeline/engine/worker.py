"""Run a worker: checks, the Faust app and its services, and the process's exit status."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import sys
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, NoReturn

from mode import Service

from reknit.pipeline import __version__
from reknit.pipeline.engine import preflight
from reknit.pipeline.engine.assignor import strategies
from reknit.pipeline.engine.client_patch import patch_aiokafka
from reknit.pipeline.engine.connections import Loop
from reknit.pipeline.engine.ends import EXIT_CLEAN, Ends
from reknit.pipeline.engine.host import HostWorker, make_app
from reknit.pipeline.engine.runtime import NoMetrics, Observer, Runtime, StartupError, Tuning, log, where
from reknit.pipeline.engine.services import EXIT_FAILED, Deadman, Finish, Health, Progress, Watchdog, listen
from reknit.pipeline.engine.source import Source
from reknit.pipeline.engine.topic_ids import TopicIds, TopicWatch
from reknit.pipeline.engine.upstream import verify_upstream
from reknit.pipeline.objects import Objects
from reknit.topics import DEAD_LETTERS

if TYPE_CHECKING:
    from reknit.pipeline.engine.runtime import EngineConfig, Metrics, Scope, StageFactory

# Garbage collection. A batch allocates tens of thousands of small objects without cycles, and the defaults scan the
# young ones 40 times per batch: a quarter of a worker's time. Start-up objects are permanent; freeze them.
_GC_THRESHOLDS = (50_000, 20, 50)


def tune_collector() -> None:
    """Tune the garbage collector; call it once all modules are imported."""
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


def run_worker(
    config: EngineConfig,
    stages: Mapping[str, StageFactory],
    metrics: Metrics | None = None,
    *,
    outputs: Collection[str] = (),
    tuning: Tuning | None = None,
    objects: Objects | None = None,
    scope: Scope | None = None,
    on_progress: Progress | None = None,
    observer: Observer | None = None,
) -> int:
    """Run a worker in this process until a signal or a failure ends it; must be called in the main thread.

    Args:
        config: brokers, delivery and state.
        stages: for each source topic (contract name) the function that creates a partition's stage.
        metrics: receives measurements; its registry is served at /metrics.
        outputs: topics that the stages write to, so that a missing one is noticed before anything is read.
        objects: the store of values that are too large for a topic.
        tuning: limits; the defaults suit a broker in the same network.
        scope: inputs, outputs and ends; the default is live work.
        on_progress: called with the progress of the whole group, if the scope has ends.
        observer: receives what was written.

    Returns:
        0 after SIGTERM or SIGINT, at any time, and once all ends of the scope are reached; 75 if the worker was fenced,
        got stuck or failed, so that it must be started again; 2 if a right is missing. Records in flight are not
        committed then and will be processed again.

    Raises:
        BrokerError: no broker answers, or it refuses this worker's credentials.
        NotAuthorizedError: the worker lacks rights.
        StartupError: the broker, its topics or the configuration do not allow a start.
        UpstreamChangedError: the installed Faust, aiokafka or mode are not the pinned ones.
    """
    verify_upstream()
    patch_aiokafka()
    runtime = Runtime(
        config, stages, metrics or NoMetrics(), tuning or Tuning(), objects, scope=scope, observer=observer
    )
    _make_directory(runtime)
    listening = listen(runtime.tuning.metrics_host, runtime.metrics_port)
    deadman = Deadman(runtime.tuning.loop_stuck_seconds)
    try:
        with asyncio.Runner(loop_factory=Loop) as runner:
            has_started = runner.run(_EngineWorker(runtime, deadman, listening, on_progress).run(outputs))
    finally:
        deadman.disarm()
    if has_started:
        log.info("stopped")
    return EXIT_CLEAN


async def _check_topics(runtime: Runtime, outputs: Collection[str]) -> None:
    """Check the topics that a worker reads and writes, before anything is read."""
    changelogs = {runtime.prefix + stage(0).state_topic for stage in runtime.stages.values()}
    destinations = {runtime.destination(topic) for topic in (*outputs, DEAD_LETTERS)} - {None}
    written = changelogs | {f"{runtime.prefix}{topic}" for topic in destinations}
    read = changelogs | {runtime.source_prefix + topic for topic in runtime.stages}
    await preflight.check(runtime, read, written)


def _make_directory(runtime: Runtime) -> None:
    try:
        runtime.state_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StartupError(
            "state_dir_unusable", f"cannot make {runtime.state_dir}: {error.strerror}. Set --state-dir."
        ) from error


def _end_process(status: int) -> NoReturn:
    """End immediately: the client's thread may still run, and an interpreter shutdown was seen to crash then."""
    logging.shutdown()
    sys.stderr.flush()
    os._exit(status)


class _EngineWorker:
    """The services of a worker in their host, and the worker's end."""

    def __init__(
        self, runtime: Runtime, deadman: Deadman, listening: socket.socket, on_progress: Progress | None
    ) -> None:
        self._runtime = runtime
        self._deadman = deadman
        self._ends = Ends(runtime, deadman)
        self._listening = listening
        self._on_progress = on_progress

    async def run(self, outputs: Collection[str]) -> bool:
        """Run to the end; return False if it came before the start. After a failure end the process."""
        runtime = self._runtime
        self._ends.install()
        if not await self._ends.unless_begun(_check_topics(runtime, outputs)):
            return False
        tune_collector()
        runtime.on_answer()
        log.info(
            "reknit %s: delivery %s, group %s at %s",
            *(__version__, runtime.delivery, runtime.group, runtime.bootstrap),
        )
        self._ends.on_started()
        self._deadman.start()
        app = make_app(runtime)
        offered = strategies(app.assignor)
        self._source = Source(runtime, offered if runtime.tuning.has_former_members else offered[:1])
        app.service(self._source)  # type: ignore[arg-type] # it takes objects too; its type is that of the decorator
        await self._host(HostWorker(app, *self._services(), handle_signals=self._ends.install))
        return True

    async def _host(self, worker: HostWorker) -> None:
        crash: BaseException | None
        try:
            if await self._ends.unless_begun(worker.start()):
                await self._ends.unless_begun(worker.wait_until_stopped())
            await worker.stop()
            crash = worker.crash_reason
        except BaseException as error:  # noqa: BLE001  any error: the status reports that the worker failed
            crash = error
        # A service that stops without its client may crash; the first failure counts.
        if crash is not None and self._runtime.failure is None:
            log.error("the worker crashed: %s", where(crash))
        if crash is not None or self._runtime.failure is not None:
            _end_process(self._ends.status or EXIT_FAILED)

    def _services(self) -> list[Service]:
        runtime = self._runtime
        runtime.topics = topics = TopicIds(runtime)
        services = [
            Health(runtime.metrics.registry, self._not_live, self._not_ready, self._listening),
            Watchdog(runtime, self._deadman, lambda: self._source.actors, self._ends.on_failure),
            TopicWatch(runtime, topics),
        ]
        if runtime.scope.ends is not None:
            services.append(Finish(runtime, self._source, self._ends.on_done, self._on_progress))
        return services

    def _not_live(self) -> str | None:
        if self._runtime.failure is not None:
            return f"failed: {self._runtime.failure.code}"
        if self._deadman.age > self._runtime.tuning.loop_stuck_seconds / 2:
            return "the event loop is stuck"
        return None

    def _not_ready(self) -> str | None:
        if self._not_live():
            return self._not_live()
        if self._ends.begun:
            return "stopping"
        if not self._runtime.answers:
            return f"no broker has answered for {self._runtime.silent_seconds:.0f} s"
        if self._runtime.missing_topics:
            return f"missing topics: {', '.join(self._runtime.missing_topics)}"
        return None if self._source.settled else "rebalancing or reading state"
