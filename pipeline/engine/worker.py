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

from pipeline import __version__
from pipeline.engine import preflight
from pipeline.engine.runtime import NoMetrics, Runtime, StartupError, Tuning, log, where
from pipeline.engine.services import EXIT_FAILED, Deadman, Finish, Health, Progress, Watchdog, listen
from pipeline.engine.transport import SpanConsumer, SpanTransport
from pipeline.engine.upstream import LoopPolicy, patch_aiokafka, verify_upstream
from pipeline.objects import Objects
from topics import DEAD_LETTERS

if TYPE_CHECKING:
    from pipeline.engine.runtime import EngineConfig, Metrics, Scope, StageFactory

EXIT_CLEAN = 0
# Only a person can change why it does not run.
EXIT_UNUSABLE = 2

# Garbage collection. A batch allocates tens of thousands of small objects that no cycle holds, and the defaults look
# through the young ones 40 times a batch: a quarter of a worker's time. Those that are there at the start never go.
_GC_THRESHOLDS = (50_000, 20, 50)


def tune_collector() -> None:
    """Call it once everything is imported."""
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


# Faust and its client build debug records for each message even where nobody sees them; our services log as theirs.
_QUIET = ("faust", "aiokafka", "mode", __name__.rpartition(".")[0])

# A worker that was fenced or got stuck may have a client that answers nobody any more: its partitions wait for its end.
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
) -> int:
    """Run a worker in this process until a signal or a failure ends it; must be called in the main thread.

    Args:
        config: where the broker is and how to deliver.
        stages: for each source topic (contract name) what makes a stage for one of its partitions.
        metrics: what to report to; its registry is served at /metrics.
        outputs: topics that the stages write to, so that a missing one is noticed before anything is read.
        objects: where values lie that are too large for a topic.
        tuning: bounds; the defaults fit a broker near by.
        scope: whose inputs are read, what is published, and where the worker ends; by default it is live work.
        on_progress: told, where the worker ends somewhere, how far the whole group is.

    Returns:
        0 after SIGTERM or SIGINT, however early it comes, and once all ends of the scope are reached; 75 when the
        worker was fenced, got stuck or failed: start it again; 2 when a right is missing. Whatever was in flight then
        is not committed and will be processed again.

    Raises:
        BrokerError: no broker answers, or it does not let this worker in.
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
        runtime = Runtime(config, stages, metrics or NoMetrics(), tuning or Tuning(), objects, scope=scope)
        _make_directory(runtime)
        listening = listen(runtime.tuning.metrics_host, runtime.metrics_port)
        changelogs = {runtime.prefix + stages[topic](0).state_topic for topic in stages}
        destinations = {runtime.destination(topic) for topic in (*outputs, DEAD_LETTERS)} - {None}
        written = changelogs | {f"{runtime.prefix}{topic}" for topic in destinations}
        check = preflight.check(runtime, changelogs | {runtime.source_prefix + topic for topic in stages}, written)
        if not loop.run_until_complete(_unless_stopped(loop, check)):
            loop.close()
            return EXIT_CLEAN
    except BaseException:
        loop.close()
        raise
    tune_collector()
    runtime.on_answer()
    log.info("reknit %s: delivery %s, group %s at %s", __version__, config.delivery, runtime.group, runtime.bootstrap)
    return EngineWorker(make_app(runtime), runtime, loop, listening, on_progress).run()


async def _unless_stopped(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> bool:
    """Do ``work``; return False when a signal ended it: a worker must stop in order however early it is told to."""
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
    """End at once: the client's thread may still work, and taking the interpreter down under it was seen to crash."""
    logging.shutdown()
    sys.stderr.flush()
    os._exit(status)


class ReknitApp(faust.App):
    """A Faust app whose transport works in batches."""

    runtime: Runtime

    def _new_transport(self) -> TransportT:
        return SpanTransport(self.conf.broker_consumer, self)


def make_app(runtime: Runtime) -> ReknitApp:
    """Return the app for a worker. Its id carries the prefix, so pipelines on one broker do not meet."""
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
    """Drop Faust's warning that it may not create topics: it is meant to not create them."""
    return not record.getMessage().startswith("Topic creation disabled")


class EngineWorker(faust.Worker):
    """Faust's worker with health, watchdog, and an end within a bound."""

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
        services = [self.health, watchdog]
        if runtime.scope.ends is not None:
            services.append(Finish(runtime, lambda: self._consumer, self._end_clean, on_progress))
        # Logging is the caller's; Faust's own setup would replace it and draw a spinner.
        super().__init__(app, *services, loop=loop, quiet=True, override_logging=False, redirect_stdouts=False)
        self.spinner = None

    def run(self) -> int:
        """Run to the end and return 0; after a failure end the process."""
        self._deadman.start()
        self.install_signal_handlers()  # at once: mode does it a little later, and a signal may come between
        status: object = None
        try:
            self.execute_from_commandline()
        except SystemExit as end:
            status = end.code
        except BaseException as error:  # noqa: BLE001  whatever it is, the status says that the worker failed
            # A service that is stopped while its client is gone may crash on the way; the first failure is what counts.
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
        """Stop after a failure: leave the group if that is quick; what is open is the next owner's to settle."""
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
        return None if self._consumer.settled else "rebalancing or reading state"
