"""Faust as the host of a worker, by its public interface: an app that runs the engine's services, and its worker.

The app starts no Kafka client of its own: a ``Source`` reads the inputs, and each partition has its own producer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import faust
from faust.app import BootStrategy
from mode import Service

from reknit.pipeline.engine.runtime import Runtime

# Faust and its client build debug records for each message even if none is shown; Reknit's services use their loggers.
_QUIET = ("faust", "aiokafka", "mode", __name__.rpartition(".")[0])


class _NoClients(BootStrategy):
    """Starts neither clients nor a web server; ``Health`` serves what a worker has to serve."""

    enable_kafka = False
    enable_web = False


class HostApp(faust.App):
    """A Faust app without agents and tables."""

    BootStrategy = _NoClients
    producer_only = True


def make_app(runtime: Runtime) -> HostApp:
    """Return the app of a worker. Its id contains the prefix, so pipelines on one broker have separate groups."""
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    return HostApp(
        runtime.group,
        broker=[f"kafka://{server.strip()}" for server in runtime.bootstrap.split(",")],
        store="memory://",
        datadir=str(runtime.state_dir / "faust"),
        table_standby_replicas=0,  # of the app's strategy of assignment
        web_enabled=False,
        worker_redirect_stdouts=False,
    )


class HostWorker(faust.Worker):
    """Faust's worker, with the signal handlers of ``run_worker``."""

    def __init__(self, app: HostApp, *services: Service, handle_signals: Callable[[], None]) -> None:
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
