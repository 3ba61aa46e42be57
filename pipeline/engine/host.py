"""Faust as the host of a worker: the app with its settings, and Faust's worker on the event loop that runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import faust
from faust.types import StreamT, TransportT
from mode import Service

from reknit.pipeline.engine.runtime import Runtime
from reknit.pipeline.engine.transport import SpanTransport

# Faust and its client build debug records for each message even if none is shown; Reknit's services use their loggers.
_QUIET = ("faust", "aiokafka", "mode", __name__.rpartition(".")[0])


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


class HostWorker(faust.Worker):
    """Faust's worker, with the signal handlers of ``run_worker``."""

    def __init__(self, app: ReknitApp, *services: Service, handle_signals: Callable[[], None]) -> None:
        self._handle_signals = handle_signals
        # Logging is the caller's; Faust's own setup would replace it and draw a spinner. `start` returns: no daemon.
        super().__init__(
            app,
            *services,
            loop=asyncio.get_running_loop(),
            quiet=True,
            override_logging=False,
            redirect_stdouts=False,
            daemon=False,
        )
        self.spinner = None

    def install_signal_handlers(self) -> None:
        """Install mode's handlers, for its debugging signals, and then those that end the worker."""
        super().install_signal_handlers()
        self._handle_signals()
