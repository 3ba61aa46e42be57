"""How a process of Reknit serves HTTP: every connection is bounded in time, and no log holds a byte of a request."""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

from aiohttp import ClientConnectionResetError, web
from aiohttp.http import HttpProcessingError
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from reknit.pipeline.errors import InputError, error_name

Check: TypeAlias = Callable[[], str | None]

# A client has this long to send the line and the headers of a request, and may idle this long between two requests.
IDLE_SECONDS: Final = 15.0
# A client may leave what it was sent unread for this long.
UNREAD_SECONDS: Final = 30
# At the end of a server for people, how long requests in flight may take to finish.
STOP_SECONDS: Final = 2.0


class _WithoutContent(logging.Filter):
    """Reduces what aiohttp logs about a request to the name of the error: its text and traceback quote the request.

    Bytes that are no request, and a client that leaves, are no errors of this process.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError | ClientConnectionResetError):
            record.levelno, record.levelname = logging.INFO, "INFO"
        record.msg, record.args = "a request was not answered: %s", (error_name(error) if error else "no error",)
        record.exc_info = record.exc_text = None
        return True


_log = logging.getLogger("reknit.http")
_log.addFilter(_WithoutContent())


def runner_of(
    app: web.Application,
    *,
    stop_seconds: float,
    can_cancel: bool = False,
    keepalive_timeout: float = IDLE_SECONDS,
    **options: Any,  # noqa: ANN401  aiohttp's
) -> web.AppRunner:
    """Make the runner that serves an application.

    Args:
        app: the application.
        stop_seconds: at its end, how long requests in flight may take to finish.
        can_cancel: whether the handler of a request is cancelled when its client disconnects.
        keepalive_timeout: seconds that a connection may idle between two requests.
        options: others of aiohttp's protocol.
    """
    return web.AppRunner(
        app,
        access_log=None,
        logger=_log,
        # aiohttp (3.14.4 and later) counts from the start of a connection, so half a request does not extend it.
        keepalive_timeout=keepalive_timeout,
        shutdown_timeout=stop_seconds,
        handler_cancellation=can_cancel,
        **options,
    )


def status_app(live: Check, ready: Check, registry: CollectorRegistry) -> web.Application:
    """Return the application of ``/livez``, ``/readyz`` and ``/metrics``.

    Args:
        live: returns the reason why the process must be restarted, or nothing.
        ready: returns the reason why it takes no work, or nothing.
        registry: the metrics.
    """

    def answer(check: Check) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(_request: web.Request) -> web.Response:
            wrong = check()
            return web.Response(text=(wrong or "ok") + "\n", status=503 if wrong else 200)

        return handle

    async def show_metrics(_request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/metrics", show_metrics)
    app.router.add_get("/livez", answer(live))
    app.router.add_get("/readyz", answer(ready))
    return app


def refuse_other_sites(
    request: web.Request,
    *,
    host: str,
    scheme: str,
    names: Collection[str],
    remedy: str = "",
    origins: Collection[str] = (),
) -> None:
    """Refuse a request that another site's page makes a browser send.

    Args:
        request: the request.
        host: as the client sent it, with or without a port.
        scheme: that the client used.
        names: the host names of this server. A page whose name was rebound to this address has another one.
        remedy: a sentence for a person whose name for this server is unknown.
        origins: the other sites whose pages may ask.

    Raises:
        web.HTTPMisdirectedRequest: the request is for another name.
        web.HTTPForbidden: another site's page sent it.
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        name = ""
    if name not in names:
        raise web.HTTPMisdirectedRequest(text=f"This server is not known by that name. {remedy}".rstrip() + "\n")
    origin = request.headers.get("Origin")
    if origin is not None and origin in origins:
        return
    is_foreign = origin is not None and origin != f"{scheme}://{host}"
    site = request.headers.get("Sec-Fetch-Site", "none")
    # A link on another page may lead here; a picture, a frame or a script of it may not.
    follows = request.method == "GET" and request.headers.get("Sec-Fetch-Dest") == "document"
    if is_foreign or (site not in {"none", "same-origin"} and not follows):
        raise web.HTTPForbidden(text="Another site's page asked for this.\n")


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Its connections are reset once a client has left data unread for too long.

    Raises:
        OSError: the address cannot be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family)
    # Connections inherit it. Where the system lacks it (macOS), such a client keeps its connection.
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_SECONDS * 1000)
    return listening


@asynccontextmanager
async def serving(app: web.Application, host: str, port: int) -> AsyncIterator[str]:
    """Serve an application for as long as the block runs; the value is its URL.

    Raises:
        InputError: ``port_taken`` or ``port_refused``.
    """
    listening = _listening(host, port)
    runner = runner_of(app, stop_seconds=STOP_SECONDS, can_cancel=True)
    try:
        await runner.setup()
        await web.SockSite(runner, listening).start()
        # No browser should be sent to "every address".
        shown = "localhost" if host in {"0.0.0.0", "::"} else f"[{host}]" if ":" in host else host  # noqa: S104  it is shown
        yield f"http://{shown}:{listening.getsockname()[1]}/"
    finally:
        await runner.cleanup()
        listening.close()


def _listening(host: str, port: int) -> socket.socket:
    try:
        return listen(host, port)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        message = f"cannot listen on {host} port {port}: {error.strerror or error}; --port 0 takes a free one"
        raise InputError("port_taken" if taken else "port_refused", message) from error
