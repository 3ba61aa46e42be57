"""The viewer as a web server: its pages in one application, what goes wrong as a page, and its start and end."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from reknit.pipeline.errors import BrokerError, ReknitError, error_name
from reknit.pipeline.objects import open_objects
from reknit.pipeline.settings import Config
from reknit.pipeline.viewer import compare, letters, overview, playground, progress_page, sessions, streams
from reknit.pipeline.viewer.addresses import STATIC
from reknit.pipeline.viewer.guard import BINDING, HEALTH, LOGIN, Guard, form_of, local
from reknit.pipeline.viewer.index.reading import Follower, open_index
from reknit.pipeline.viewer.index.values import Values
from reknit.pipeline.viewer.live import LIVE_PAGES
from reknit.pipeline.viewer.pages import VIEWER, Viewer, page, templates
from reknit.pipeline.viewer.pools import BusyError, pools
from reknit.pipeline.viewer.watch import Watch
from reknit.pipeline.web import serving

log = logging.getLogger("reknit.viewer")

# The largest body that any page takes; pages that take one say how much of it they read.
LARGEST_BODY = 16 * 1024 * 1024
# The modules of pages, each with the routes to its own.
_PAGES: tuple[Any, ...] = (overview, letters, sessions, streams, compare, playground, progress_page)
_TYPES = {".js": "text/javascript", ".css": "text/css"}
_BOUND = {"Cache-Control": "no-store", **BINDING}


def application(
    viewer: Viewer, routes: Iterable[web.RouteDef] = (), *, pages: Iterable[Any] = _PAGES
) -> web.Application:
    """Return the viewer's application; ``routes`` are added before those of the modules of its pages."""

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        return await viewer.guard(request, handler)

    app = web.Application(middlewares=[_explained, guarded], client_max_size=LARGEST_BODY)
    app[VIEWER] = viewer
    app[LIVE_PAGES] = Counter()
    app.on_cleanup.append(_close_pools)
    app.on_response_prepare.append(_bind)
    app.add_routes([*routes, *_ROUTES])
    for module in pages:
        app.add_routes(module.routes)
        # A module stores its own state in the application.
        getattr(module, "setup", lambda _app: None)(app)
    return app


async def run_viewer(
    config: Config,
    guard: Guard,
    *,
    index_file: Path,
    host: str = "127.0.0.1",
    port: int = 0,
    rebuild: bool = False,
    allow_retry: bool = False,
    titles: Mapping[str, str] = MappingProxyType({}),
    on_start: Callable[[str], None] = lambda _url: None,
) -> None:
    """Follow the topics and serve pages until it is cancelled.

    Args:
        config: the cluster and the prefix.
        guard: access control.
        index_file: the path of the index.
        host: the address to listen on.
        port: the port; 0 takes a free one.
        rebuild: delete the index first.
        allow_retry: whether pages may write to the topics.
        titles: titles of sessions, by their ids.
        on_start: called with the URL once the server answers.

    Raises:
        ReknitError: it cannot start, or a topic cannot be read any more.
    """
    index = await open_index(config, index_file, rebuild=rebuild)
    try:
        follower = Follower(config, index)
        threads = pools()
        async with Values(config, index.reader, open_objects(config), threads.pages.run) as values:
            viewer = Viewer(
                config=config,
                guard=guard,
                templates=templates(),
                index=index,
                follower=follower,
                values=values,
                allow_retry=allow_retry,
                titles=titles,
                pools=threads,
            )
            async with serving(application(viewer), host, port) as url:
                on_start(url)
                watching = asyncio.create_task(Watch(config, index, viewer.progress).run())
                try:
                    await follower.run()
                finally:
                    watching.cancel()
                    await asyncio.wait([watching])
    finally:
        await asyncio.to_thread(index.close)


async def _close_pools(app: web.Application) -> None:
    app[VIEWER].pools.close()


async def _bind(_request: web.Request, answer: web.StreamResponse) -> None:
    for name, value in _BOUND.items():
        answer.headers.setdefault(name, value)
    answer.headers.popall("Server", None)


@web.middleware
async def _explained(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer an error as a page: its message for typed errors, otherwise only that there was one."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.status < 400 or error.text != f"{error.status}: {error.reason}":
            raise  # an error with its own page
        return _wrong(request, error.status, "")
    except (BrokerError, BusyError) as error:
        return _wrong(request, 503, error.message, error.code)
    except ReknitError as error:
        return _wrong(request, 400, error.message, error.code)
    except (asyncio.CancelledError, ConnectionError):
        raise
    except Exception as error:  # noqa: BLE001  one page that fails is not the end of the viewer
        # The message of an error may be content, which must not be logged.
        place = traceback.extract_tb(error.__traceback__)[-1]
        log.error("a page failed: %s at %s:%s", error_name(error), place.filename, place.lineno)  # noqa: TRY400  so
        return _wrong(request, 500, "This is a fault of the viewer, and its log says where.", "internal")


def _wrong(request: web.Request, status: int, message: str, code: str = "") -> web.Response:
    return page(
        request, "error.html", status=status, title=HTTPStatus(status).phrase, message=message, code=code, number=status
    )


async def _health(_request: web.Request) -> web.Response:
    return web.Response(text="ok\n")


async def _static(request: web.Request) -> web.StreamResponse:
    file = STATIC.get(request.match_info["file"])
    if file is None:
        raise web.HTTPNotFound
    # Its address changes with its bytes.
    kept = "public, max-age=31536000, immutable" if request.query_string else "no-cache"
    return web.Response(body=file.read_bytes(), content_type=_TYPES[file.suffix], headers={"Cache-Control": kept})


async def _login_page(request: web.Request) -> web.Response:
    return page(request, "login.html", next=local(request.query.get("next", "/")), refused=False)


async def _log_in(request: web.Request) -> web.Response:
    guard = request.app[VIEWER].guard
    form = await form_of(request)
    further = local(str(form.get("next", "/")))
    if not guard.is_login(str(form.get("login", ""))):
        return page(request, "login.html", status=403, next=further, refused=True)
    return guard.let_in(web.Response(status=303, headers={"Location": further}), guard.peer(request))


async def _log_out(request: web.Request) -> web.Response:
    answer = web.Response(status=303, headers={"Location": LOGIN})
    answer.del_cookie(request.app[VIEWER].guard.cookie)
    return answer


_ROUTES = [
    web.get(HEALTH, _health),
    web.get("/static/{file}", _static),
    web.get(LOGIN, _login_page),
    web.post(LOGIN, _log_in),
    web.post("/logout", _log_out),
]
