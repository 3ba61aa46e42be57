"""``reknit demo --screens``: a page with two unmodified UI clients on one session, whose stream and server break off.

The page is built from ``examples/screens``. The wheel does not have it, because its bundle is 1.3 MB, most of it
packages of the clients. So the page needs a checkout and Node.js.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

from aiohttp import web

from reknit.pipeline.demo.actors import ScreensServer
from reknit.pipeline.demo.recordings import Input, Recording, inputs
from reknit.pipeline.errors import InputError
from reknit.pipeline.kafka.sending import Sender, open_producer
from reknit.pipeline.settings import Config
from reknit.pipeline.web import serving
from reknit.topics import qualified

# Two calls; the connection to the provider breaks in the second one, which is then withdrawn.
RECORDING: Final = "second-call-cut"
# Slow enough to be followed.
_RECORD_SECONDS: Final = 0.3
# The server restarts in the middle of the first call.
_RESTART_SECONDS: Final = 5.0
_EXAMPLES: Final = Path(__file__).resolve().parents[2] / "examples" / "screens"


def check_pages() -> None:
    """Check that the page is built.

    Raises:
        InputError: ``pages_missing``.
    """
    if not (_EXAMPLES / "dist" / "both.js").exists():
        raise InputError("pages_missing", "--screens needs a checkout with Node.js 20: run `make demo ARGS=--screens`")


class TwoClients:
    """Plays a recording in a new session whenever the page is opened.

    Args:
        config: of the demo.
        recording: the session.
        server: restarted in mid-stream.
    """

    def __init__(self, config: Config, recording: Recording, server: ScreensServer) -> None:
        self._config, self._server = config, server
        self._records = [record for record in inputs(recording) if isinstance(record, Input)]
        self._count = 0
        self._session = ""
        self._opened = asyncio.Event()

    def application(self) -> web.Application:
        """Return the application that serves the page."""
        app = web.Application()
        app.add_routes([web.get("/", self._open), web.static("/", _EXAMPLES)])
        return app

    async def _open(self, _request: web.Request) -> web.Response:
        """Redirect to the page of a new session, or of the one that is being played."""
        if not self._session:
            self._count += 1
            # On a broker that has seen a demo before, a session is new as well.
            self._session = f"two-clients-{self._server.port}-{self._count}"
            self._opened.set()
        view = urlencode({"server": self._server.url, "session": self._session})
        return web.Response(status=302, headers={"Location": f"/both.html#{view}"})

    async def run(self) -> None:
        """Play until it is cancelled.

        Raises:
            ChildError: the server does not start again.
        """
        producer = await open_producer(self._config)
        try:
            sender = Sender(self._config, producer)
            while True:
                await self._opened.wait()
                self._opened.clear()
                await asyncio.gather(self._play(sender), self._interrupt())
                self._session = ""
        finally:
            await producer.stop()

    async def _play(self, sender: Sender) -> None:
        for record in self._records:
            topic = qualified(record.topic, self._config.prefix)
            await sender.send(topic, record.value, self._session.encode(), record.headers)
            await sender.flush()
            await asyncio.sleep(_RECORD_SECONDS)

    async def _interrupt(self) -> None:
        await asyncio.sleep(_RESTART_SECONDS)
        await self._server.restart()


@asynccontextmanager
async def two_clients(
    config: Config, recording: Recording, server: ScreensServer
) -> AsyncIterator[tuple[str, TwoClients]]:
    """Serve the page while the block runs; the values are its URL and what plays."""
    clients = TwoClients(config, recording, server)
    async with serving(clients.application(), "127.0.0.1", 0) as url:
        await server.start(url.rstrip("/"))
        yield url, clients
