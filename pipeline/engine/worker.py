"""Run a worker: checks, the Faust app and its services, signals, and the process's exit status."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Collection, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import faust
import mode.loop
from faust.types import StreamT, TransportT

from reknit.pipeline import __version__
from reknit.pipeline.engine import preflight
from reknit.pipeline.engine.client_patch import patch_aiokafka
from reknit.pipeline.engine.connections import LoopPolicy
from reknit.pipeline.engine.runtime import NoMetrics, Observer, Runtime, StartupError, Tuning, log, where
from reknit.pipeline.engine.services import EXIT_FAILED, Deadman, Finish, Health, Progress, Watchdog, listen
from reknit.pipeline.engine.topic_ids import TopicIds, TopicWatch
from reknit.pipeline.engine.transport import SpanConsumer, SpanTransport
from reknit.pipeline.engine.upstream import verify_upstream
from reknit.pipeline.objects import Objects
from reknit.topics import DEAD_LETTERS

if TYPE_CHECKING:
    from reknit.pipeline.engine.runtime import EngineConfig, Metrics, Scope, StageFactory

EXIT_CLEAN = 0
# An operator has to act.
EXIT_UNUSABLE = 2

# Garbage collection. A batch allocates tens of thousands of small objects without cycles, and the defaults scan the
# young ones 40 times per batch: a quarter of a worker's time. Start-up objects are permanent; freeze them.
_GC_THRESHOLDS = (50_000, 20, 50)


def tune_collector() -> None:
    """Tune the garbage collector; call it once all modules are imported."""
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


# Faust and its client build debug records for each message even if none is shown; Reknit's services use their loggers.
_QUIET = ("faust", "aiokafka", "mode", __name__.rpartition(".")[0])

# After a fence or a stall the client may not answer any more, and the partitions wait for the end of this worker.
FAILED_STOP_SECONDS = 3.0


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
    mode.loop.use("uvloop")
    asyncio.set_event_loop_policy(LoopPolicy())
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        runtime = Runtime(
            config, stages, metrics or NoMetrics(), tuning or Tuning(), objects, scope=scope, observer=observer
        )
        _make_directory(runtime)
        listening = listen(runtime.tuning.metrics_host, runtime.metrics_port)
        if not loop.run_until_complete(_unless_stopped(loop, _check_topics(runtime, outputs))):
            loop.close()
            return EXIT_CLEAN
    except BaseException:
        loop.close()
        raise
    tune_collector()
    runtime.on_answer()
    log.info("reknit %s: delivery %s, group %s at %s", __version__, config.delivery, runtime.group, runtime.bootstrap)
    return EngineWorker(make_app(runtime), runtime, loop, listening, on_progress).run()


async def _check_topics(runtime: Runtime, outputs: Collection[str]) -> None:
    """Check the topics that a worker reads and writes, before anything is read."""
    changelogs = {runtime.prefix + stage(0).state_topic for stage in runtime.stages.values()}
    destinations = {runtime.destination(topic) for topic in (*outputs, DEAD_LETTERS)} - {None}
    written = changelogs | {f"{runtime.prefix}{topic}" for topic in destinations}
    read = changelogs | {runtime.source_prefix + topic for topic in runtime.stages}
    await preflight.check(runtime, read, written)


async def _unless_stopped(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> bool:
    """Run ``work``; return False if a signal ended it: a worker must stop in order at any time."""
    task = loop.create_task(work)
    stopped = asyncio.Event()

    def stop() -> None:
        stopped.set()
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        await task
    except asyncio.CancelledError:
        if not stopped.is_set():
            raise
    return not stopped.is_set()


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


class ReknitApp(faust.App):
    """A Faust app whose transport works in batches."""

    runtime: Runtime

    def _new_transport(self) -> TransportT:
        return SpanTransport(self.conf.broker_consumer, self)


def make_app(runtime: Runtime) -> ReknitApp:
    """Return the app of a worker. Its id contains the prefix, so pipelines on one broker have separate groups."""
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("faust.transport.drivers.aiokafka").addFilter(_no_topic_creation)
    tuning = runtime.tuning
    app = ReknitApp(
        runtime.group,
        broker=[f"kafka://{server.strip()}" for server in runtime.bootstrap.split(",")],
        store="memory://",
        datadir=str(runtime.state_dir / "faust"),
        topic_partitions=runtime.partitions,
        topic_allow_declare=False,  # `reknit topics apply` makes topics
        topic_disable_leader=True,
        table_standby_replicas=0,
        stream_wait_empty=False,  # streams see nothing
        stream_recovery_delay=0,
        broker_session_timeout=tuning.session_seconds,
        broker_heartbeat_interval=tuning.heartbeat_seconds,
        broker_rebalance_timeout=tuning.rebalance_seconds,
        broker_request_timeout=max(40.0, tuning.rebalance_seconds + 10.0),
        consumer_auto_offset_reset="earliest",
        web_enabled=False,  # `Health` serves what is worth serving
        worker_redirect_stdouts=False,
    )
    app.runtime = runtime
    for topic in runtime.stages:
        _subscribe(app, runtime.source_prefix + topic)
    return app


def _subscribe(app: ReknitApp, topic: str) -> None:
    source = app.topic(topic, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw")

    async def never_called(stream: StreamT[Any]) -> None:
        async for _ in stream:
            raise AssertionError(f"a record of {topic} took Faust's own path")

    app.agent(source, name=f"subscribe-{topic}")(never_called)


def _no_topic_creation(record: logging.LogRecord) -> bool:
    """Drop Faust's warning that it may not create topics: this is intended."""
    return not record.getMessage().startswith("Topic creation disabled")


class EngineWorker(faust.Worker):
    """Faust's worker with health, watchdog, and a time limit for its stop."""

    def __init__(
        self,
        app: ReknitApp,
        runtime: Runtime,
        loop: asyncio.AbstractEventLoop,
        listening: socket.socket,
        on_progress: Progress | None,
    ) -> None:
        self._runtime = runtime
        self._deadman = Deadman(runtime.tuning.loop_stuck_seconds)
        self.health = Health(runtime.metrics.registry, self._not_live, self._not_ready, listening)
        watchdog = Watchdog(runtime, self._deadman, lambda: self._consumer.actors, self._end_worker)
        runtime.topics = topics = TopicIds(runtime)
        services = [self.health, watchdog, TopicWatch(runtime, topics)]
        if runtime.scope.ends is not None:
            services.append(Finish(runtime, lambda: self._consumer, self._end_clean, on_progress))
        # Logging is the caller's; Faust's own setup would replace it and draw a spinner.
        super().__init__(app, *services, loop=loop, quiet=True, override_logging=False, redirect_stdouts=False)
        self.spinner = None

    def run(self) -> int:
        """Run to the end and return 0; after a failure end the process."""
        self._deadman.start()
        self.install_signal_handlers()  # now: mode does it later, and a signal may arrive before that
        status: object = None
        try:
            self.execute_from_commandline()
        except SystemExit as end:
            status = end.code
        except BaseException as error:  # noqa: BLE001  any error: the status reports that the worker failed
            # A service that stops without its client may crash; the first failure counts.
            status = EXIT_FAILED
            if self._runtime.failure is None:
                log.error("the worker crashed: %s", where(error))
        finally:
            self._deadman.disarm()
        if self._runtime.failure is None and not status:
            log.info("stopped")
            return EXIT_CLEAN
        _end_process(self._failed_status)

    @property
    def _failed_status(self) -> int:
        failure = self._runtime.failure
        return EXIT_UNUSABLE if failure is not None and failure.fault == "caller" else EXIT_FAILED

    def _schedule_shutdown(self, signal: signal.Signals) -> None:
        if self._runtime.failure is None:
            log.info("stopping: %s", signal.name)
        self._deadman.must_end_within(self._runtime.tuning.stop_seconds)
        super()._schedule_shutdown(signal)

    def _end_clean(self) -> None:
        log.info("all ends are reached")
        self._deadman.must_end_within(self._runtime.tuning.stop_seconds)
        super()._schedule_shutdown(signal.SIGTERM)

    def _end_worker(self) -> None:
        """Stop after a failure: leave the group if that is quick; the next owner settles open transactions."""
        self._deadman.status = self._failed_status
        self._deadman.must_end_within(FAILED_STOP_SECONDS)
        self._schedule_shutdown(signal.SIGTERM)

    @property
    def _consumer(self) -> SpanConsumer:
        consumer: Any = self.app.consumer
        return consumer  # type: ignore[no-any-return] # our transport makes no other

    def _not_live(self) -> str | None:
        if self._runtime.failure is not None:
            return f"failed: {self._runtime.failure.code}"
        if self._deadman.age > self._runtime.tuning.loop_stuck_seconds / 2:
            return "the event loop is stuck"
        return None

    def _not_ready(self) -> str | None:
        if self._not_live():
            return self._not_live()
        if self.should_stop:
            return "stopping"
        if not self._runtime.answers:
            return f"no broker has answered for {self._runtime.silent_seconds:.0f} s"
        if self._runtime.missing_topics:
            return f"missing topics: {', '.join(self._runtime.missing_topics)}"
        return None if self._consumer.settled else "rebalancing or reading state"
