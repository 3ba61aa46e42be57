"""Requests that the gateway answers by itself: ``GET /`` for a person, ``/mend`` for programs, and a guardrail.

A page in a browser on this machine could reach all of them, so ``Host`` and ``Origin`` are checked. A gateway with a
key asks for the key instead of the host name: such a page does not know the key.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec
from aiohttp import web

from reknit.pipeline import pages
from reknit.pipeline.errors import ReknitError
from reknit.pipeline.serve.guardrail import PATH as GUARDRAIL_PATH
from reknit.pipeline.serve.guardrail import guard
from reknit.pipeline.serve.headers import KEY
from reknit.pipeline.serve.mend import mend, schemas
from reknit.pipeline.serve.recent import RecentExchanges
from reknit.pipeline.serve.repair import MOST_BYTES, Repairs
from reknit.pipeline.urls import LOOPBACK
from reknit.pipeline.web import refuse_other_sites


class LocalPaths:
    """The gateway's own paths.

    Args:
        recent: the exchanges that the page shows.
        repairs: runs large repairs in another process.
        key: that clients must send in ``x-reknit-key``; "" for none.
        host: the listening address. The page is served on a loopback address only.
    """

    def __init__(self, recent: RecentExchanges, repairs: Repairs, *, key: str, host: str) -> None:
        self._recent = recent
        self._repairs = repairs
        self._key = key
        self._is_loopback = host in LOOPBACK
        self._names = LOOPBACK | {host.lower()}

    def add_to(self, app: web.Application) -> None:
        if self._is_loopback:
            app.router.add_get("/", self._checked(self._show))
        app.router.add_get("/mend", self._checked(self._schemas))
        app.router.add_post("/mend", self._checked(partial(self._repaired, mend)))
        app.router.add_post(GUARDRAIL_PATH, self._checked(partial(self._repaired, guard)))

    def _checked(
        self, handle: Callable[[web.Request], Awaitable[web.Response]]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(request: web.Request) -> web.Response:
            if self._key and not has_key(request, self._key):
                raise web.HTTPUnauthorized(text=f"The header {KEY} has no valid key.\n")
            names = {*self._names, request.url.host or ""} if self._key else self._names
            refuse_other_sites(request, host=request.host, scheme=request.scheme, names=names)
            return await handle(request)

        return answer

    async def _show(self, _request: web.Request) -> web.Response:
        page = pages.render("exchanges.html", exchanges=self._recent.newest_first())
        return web.Response(text=page, content_type="text/html", headers={"Cache-Control": "no-store"})

    async def _schemas(self, _request: web.Request) -> web.Response:
        return web.json_response(body=msgspec.json.encode(schemas()))

    async def _repaired(self, work: Callable[[bytes], tuple[bool, bytes]], request: web.Request) -> web.Response:
        body = bytearray()
        async for piece in request.content.iter_any():
            body += piece
            if len(body) > MOST_BYTES:
                raise web.HTTPRequestEntityTooLarge(max_size=MOST_BYTES, actual_size=len(body))
        try:
            is_usable, result = await self._repairs.run(work, bytes(body))
        except ReknitError as error:  # of the helper process; those of the request are in the result
            raise web.HTTPServiceUnavailable(text=f"{error.message}\n", headers={"Retry-After": "1"}) from error
        return web.json_response(body=result, status=200 if is_usable else 400)


def has_key(request: web.Request, key: str) -> bool:
    """Return True if a request has the gateway's key."""
    return hmac.compare_digest(request.headers.get(KEY, "").encode(), key.encode())
