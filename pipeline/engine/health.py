"""/metrics, /livez and /readyz, on the loopback address unless configured otherwise.

Faust's own web server stays off: it binds every interface, its port collides between two workers of one host, and its
front page says OK during recovery.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

from aiohttp import web
from mode import Service
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from pipeline.engine.runtime import log

# Answers None where all is well, else what is not.
Check = Callable[[], str | None]


class Health(Service):
    """A small web server beside the worker."""

    def __init__(self, registry: CollectorRegistry, live: Check, ready: Check, host: str, port: int) -> None:
        super().__init__()
        self._registry = registry
        self._live = live
        self._ready = ready
        self._host = host
        self._wanted_port = port
        self._runner: web.AppRunner | None = None
        self.port: int | None = None  # the port that it got

    async def on_start(self) -> None:
        """Listen. Where the port is taken, by a second worker on this host say, a free one is used and named."""
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/livez", self._answer(self._live))
        app.router.add_get("/readyz", self._answer(self._ready))
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        try:
            await self._listen(self._wanted_port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            await self._listen(0)
            log.warning("port %d is taken", self._wanted_port)
        log.info("metrics and health: http://%s:%d", self._host, self.port)

    async def on_stop(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _listen(self, port: int) -> None:
        if self._runner is None:
            return
        site = web.TCPSite(self._runner, self._host, port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    def _answer(self, check: Check) -> Callable[[web.Request], Any]:
        async def answer(_request: web.Request) -> web.Response:
            wrong = check()
            return web.Response(text=(wrong or "ok") + "\n", status=503 if wrong else 200)

        return answer
