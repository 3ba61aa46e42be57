"""/metrics, /livez and /readyz, on the loopback address unless configured otherwise.

Faust's own web server stays off: it binds every interface, its port collides between two workers of one host, and its
front page says OK during recovery.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from typing import Any

from aiohttp import web
from mode import Service
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from pipeline.engine.interface import DEFAULT_METRICS_PORT, StartupError
from pipeline.engine.runtime import log

# Answers None where all is well, else what is not.
Check = Callable[[], str | None]


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
    """A small web server beside the worker."""

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
