"""The connections to all upstreams, and whether a request went over a kept one.

aiohttp reports that to a ``TraceConfig`` as well, which takes a quarter of its time for a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any, Final
from weakref import WeakSet

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection

# Shorter than the providers' own keep-alive, so that few connections are found dead.
_KEEPALIVE_SECONDS: Final = 15
_DNS_SECONDS: Final = 300

_over_kept: Final[ContextVar[bool]] = ContextVar("over_kept", default=False)


# The methods of aiohttp that the timer below overrides. Where another version does not have them, its own timer stays.
_HAS_TIMER: Final = all(hasattr(ResponseHandler, name) for name in ("_reschedule_timeout", "_on_read_timeout"))


class _Protocol(ResponseHandler):
    """A connection whose timer for silence starts again when it ends, not with each piece of an answer.

    aiohttp cancels the timer and starts another one for each piece, which took 13 % of the time of an event.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._heard_at = 0.0

    def _reschedule_timeout(self) -> None:
        self._heard_at = self._loop.time()
        if getattr(self, "_read_timeout_handle", None) is None:
            super()._reschedule_timeout()

    def _on_read_timeout(self) -> None:
        left = self._heard_at + (self.read_timeout or 0.0) - self._loop.time()
        if left > 0:
            self._read_timeout_handle = self._loop.call_later(left, self._on_read_timeout)
        else:
            super()._on_read_timeout()


class _Connector(aiohttp.TCPConnector):
    """Notes for each request whether its connection has had another one before."""

    def __init__(self) -> None:
        super().__init__(limit=0, ttl_dns_cache=_DNS_SECONDS, keepalive_timeout=_KEEPALIVE_SECONDS)
        self._used: WeakSet[Any] = WeakSet()
        if _HAS_TIMER:
            make: Callable[..., ResponseHandler] = _Protocol
            self._factory = partial(make, loop=self._loop)

    async def connect(self, *args: Any, **options: Any) -> Connection:  # noqa: ANN401  as aiohttp's own
        _over_kept.set(False)
        connection = await super().connect(*args, **options)
        protocol = connection.protocol
        is_kept = protocol in self._used
        _over_kept.set(is_kept)
        if not is_kept:
            self._used.add(protocol)
        return connection


def went_over_kept_connection() -> bool:
    """Return True if the last request of this task went over a connection that had been kept."""
    return _over_kept.get()


def new_client() -> aiohttp.ClientSession:
    """Return the connections to all upstreams. They trust no proxy of the environment and keep no cookie."""
    return aiohttp.ClientSession(
        connector=_Connector(),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("user-agent", "accept", "accept-encoding", "content-type"),
    )
