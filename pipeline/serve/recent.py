"""The last exchanges, for a person who looks. They have no content of a request or an answer."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

_MOST: Final = 200


class Exchange(Struct, kw_only=True):
    """One exchange.

    Attributes:
        at_ms: its begin, in milliseconds since 1970.
        request_id: as in ``x-reknit-request-id``; "" if the gateway answered by itself.
        upstream: the name of its upstream, or "".
        target: of a request to a model, or "".
        status: of the answer; 0 before it.
        repair: the outcome of repair, or "".
        fixes: the number of fixes by code.
        healed: the healings, by name, in order.
        end: of a streamed answer: ``whole``, ``cut`` or ``left``; else "".
        seconds: its duration; None while it is in progress.
    """

    at_ms: int
    request_id: str = ""
    upstream: str = ""
    target: str = ""
    status: int = 0
    repair: str = ""
    fixes: Mapping[str, int] = {}
    healed: tuple[str, ...] = ()
    end: str = ""
    seconds: float | None = None


class RecentExchanges:
    """The last 200 exchanges, in memory."""

    def __init__(self) -> None:
        self._exchanges: deque[Exchange] = deque(maxlen=_MOST)

    def begin(self, at_ms: int) -> Exchange:
        """Return a new exchange. Its members are set as they become known."""
        exchange = Exchange(at_ms=at_ms)
        self._exchanges.appendleft(exchange)
        return exchange

    def newest_first(self) -> list[Exchange]:
        return list(self._exchanges)
