"""The HTTP server of ``reknit screens``: its routes, what goes wrong, and its start and end."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler

from reknit.pipeline.client import Turns
from reknit.pipeline.errors import ReknitError, error_name
from reknit.pipeline.objects import open_objects
from reknit.pipeline.screen_server.feeds import Feeds
from reknit.pipeline.screen_server.formats import PRODUCER
from reknit.pipeline.screen_server.gate import Gate
from reknit.pipeline.screen_server.handlers import ANSWER_SECONDS, ROUTES, SCREENS, Screens
from reknit.pipeline.screen_server.records import Records
from reknit.pipeline.screen_server.words import Words
from reknit.pipeline.settings import Config
from reknit.pipeline.viewer.guard import BINDING, HEALTH
from reknit.pipeline.viewer.index.reading import Follower, open_index
from reknit.pipeline.viewer.index.values import Values
from reknit.pipeline.web import serving
from reknit.topics import AGENT_TURNS, SESSION_ITEMS

log = logging.getLogger("reknit.screens")

# The largest body of a request: clients of AG-UI send all messages that they show.
LARGEST_BODY: Final = 16 * 1024 * 1024
# Items, and turns for the users' words and for sessions that are forgotten.
SERVED: Final = (AGENT_TURNS, SESSION_ITEMS)


def application(screens: Screens, follower: Follower) -> web.Application:
    """Return the application of a server; ``follower`` passes new entries to it."""

    @web.middleware
    async def admitted(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path == HEALTH:
            return await handler(request)
        screens.gate.admit(request)
        return screens.gate.preflight(request) if request.method == "OPTIONS" else await handler(request)

    async def bind(request: web.Request, answer: web.StreamResponse) -> None:
        shared = {} if request.path == HEALTH else screens.gate.shared_with(request)
        for name, value in {"Cache-Control": "no-store", **BINDING, **shared}.items():
            answer.headers.setdefault(name, value)
        answer.headers.popall("Server", None)

    app = web.Application(middlewares=[_explained, admitted], client_max_size=LARGEST_BODY)
    app[SCREENS] = screens
    app.on_response_prepare.append(bind)
    app.add_routes([web.get(HEALTH, _health), *ROUTES])

    async def on_start(_app: web.Application) -> None:
        follower.subscribers.add(screens.feeds.take_entries)

    async def on_end(_app: web.Application) -> None:
        follower.subscribers.discard(screens.feeds.take_entries)
        screens.feeds.stop()

    app.on_startup.append(on_start)
    app.on_shutdown.append(on_end)
    return app


async def run_screens(
    config: Config,
    gate: Gate,
    *,
    index_file: Path,
    host: str = "127.0.0.1",
    port: int = 0,
    rebuild: bool = False,
    with_details: bool = False,
    takes_input: bool = False,
    answer_timeout: float = ANSWER_SECONDS,
    on_start: Callable[[str], None] = lambda _url: None,
) -> None:
    """Follow the topics and serve sessions until it is cancelled.

    Args:
        config: the cluster and the prefix.
        gate: the checks of requests.
        index_file: the path of the index, which no other process may use.
        host: the address to listen on.
        port: the port; 0 takes a free one.
        rebuild: delete the index first.
        with_details: serve records about the program and its machine.
        takes_input: whether users' words become turns.
        answer_timeout: how long an answer to these may take to begin, in seconds.
        on_start: called with the URL once the server answers.

    Raises:
        ReknitError: it cannot start, or a topic cannot be read any more.
    """
    index = await open_index(config, index_file, rebuild=rebuild)
    follower = Follower(config, index, topics=SERVED)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(asyncio.to_thread, index.close)
        values = await stack.enter_async_context(Values(config, index.reader, open_objects(config)))
        turns = await stack.enter_async_context(Turns(config, producer=PRODUCER)) if takes_input else None
        records = Records(index.reader, values)
        feeds = Feeds(records.all, with_details=with_details)
        app = application(
            Screens(gate, feeds, records, None if turns is None else Words(turns), answer_timeout), follower
        )
        on_start(await stack.enter_async_context(serving(app, host, port)))
        await follower.run()


@web.middleware
async def _explained(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer an error as text: its message for typed errors, otherwise only that there was one."""
    try:
        return await handler(request)
    except ReknitError as error:
        return web.Response(text=f"{error.message}\n", status=400 if error.fault == "caller" else 503)
    except (web.HTTPException, asyncio.CancelledError, ConnectionError):
        raise
    except Exception as error:  # noqa: BLE001  one request that fails is not the end of the server
        # The message of an error may be content, which must not be logged.
        place = traceback.extract_tb(error.__traceback__)[-1]
        log.error("a request failed: %s at %s:%s", error_name(error), place.filename, place.lineno)  # noqa: TRY400  so
        return web.Response(text="This is a fault of the server, and its log says where.\n", status=500)


async def _health(_request: web.Request) -> web.Response:
    return web.Response(text="ok\n")
