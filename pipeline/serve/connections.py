"""The connections to all upstreams, and whether a request went over a kept one.

aiohttp reports that to a ``TraceConfig`` as well, which takes a quarter of its time for a request.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Final
from weakref import WeakSet

import aiohttp
from aiohttp.connector import Connection

# Shorter than the providers' own keep-alive, so that few connections are found dead.
_KEEPALIVE_SECONDS: Final = 15
_DNS_SECONDS: Final = 300

_over_kept: Final[ContextVar[bool]] = ContextVar("over_kept", default=False)


class _Connector(aiohttp.TCPConnector):
    """Notes for each request whether its connection has had another one before."""

    def __init__(self) -> None:
        super().__init__(limit=0, ttl_dns_cache=_DNS_SECONDS, keepalive_timeout=_KEEPALIVE_SECONDS)
        self._used: WeakSet[Any] = WeakSet()

    async def connect(self, *args: Any, **options: Any) -> Connection:  # noqa: ANN401  as aiohttp's own
        _over_kept.set(False)
        connection = await super().connect(*args, **options)
        if connection.protocol in self._used:
            _over_kept.set(True)
        else:
            self._used.add(connection.protocol)
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
