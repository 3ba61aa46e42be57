"""One connection of a client: the frames that wait for it, and sending them.

The server never waits for a slow client, and keeps a bounded number of frames for it. A client that does not keep up is
disconnected without an end of the answer; it connects again and gets the current state.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Final

from aiohttp import web
from aiohttp.http import HttpVersion11
from msgspec import Struct

from reknit.pipeline.screen_server.formats import Piece

# Frames that wait for one client at most, and their bytes.
MOST_WAITING: Final = 2000
MOST_BYTES: Final = 4 * 1024 * 1024
# Comments keep proxies from closing a quiet connection: the shortest time of common ones is a minute.
BEAT_SECONDS: Final = 15.0
# A client has this long to read what it was sent.
SLOW_SECONDS: Final = 20.0

STREAM_HEADERS: Final = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-cache, no-transform",
    # No proxy may buffer the events.
    "X-Accel-Buffering": "no",
}


class Plan(Struct, frozen=True, kw_only=True):
    """The part of a session that one answer has.

    Attributes:
        from_begin: skip frames until an answer begins.
        to_end: end with the end of an answer; otherwise the answer has no end.
        last: the frame after the end.
        begin_seconds: how long an answer may take to begin.
        too_late: the frames of an answer that does not begin in time.
        headers: further headers.
    """

    from_begin: bool = False
    to_end: bool = False
    last: bytes = b""
    begin_seconds: float | None = None
    too_late: bytes = b""
    headers: dict[str, str] = {}


class Connection:
    """The frames that wait for one client.

    Attributes:
        is_over: the answer is complete: nothing follows the frames that wait.
        is_broken: the client gets no more, and must resume.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._waiting: list[bytes] = []
        self._bytes = 0
        self._news = asyncio.Event()
        self.has_begun = not plan.from_begin
        self.is_over = False
        self.is_broken = False

    def offer(self, found: Iterable[Piece]) -> None:
        """Add frames, as far as the plan has them."""
        for piece in found:
            if self.is_over or self.is_broken:
                return
            self.has_begun = self.has_begun or piece.begins
            if not self.has_begun:
                continue
            self._waiting.append(piece.data)
            self._bytes += len(piece.data)
            self.is_over = piece.ends and self._plan.to_end
        if len(self._waiting) > MOST_WAITING or self._bytes > MOST_BYTES:
            self.break_off()
        self._news.set()

    def break_off(self) -> None:
        """Drop what waits, and disconnect the client."""
        self.is_broken = True
        self._waiting, self._bytes = [], 0
        self._news.set()

    async def frames(self, seconds: float) -> bytes:
        """Return the new frames; none after this time without any, and at the end."""
        if not self._waiting and not self.is_over and not self.is_broken:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._news.wait()
        self._news.clear()
        found, self._waiting, self._bytes = b"".join(self._waiting), [], 0
        return found


def refuse_old_versions(request: web.Request) -> None:
    """Refuse HTTP/1.0, in which a broken answer looks complete to a client.

    Raises:
        web.HTTPVersionNotSupported: it is HTTP/1.0.
    """
    if request.version < HttpVersion11:
        raise web.HTTPVersionNotSupported(text="Streams need HTTP/1.1.\n")


async def send(
    request: web.Request, connection: Connection, plan: Plan, first: bytes, until: float | None
) -> web.StreamResponse:
    """Send the current state, and then what follows, until the answer is over or the connection breaks.

    Args:
        request: the request.
        connection: receives what follows.
        plan: the part of the session that the answer has.
        first: the frames of the current state.
        until: the time of the loop at which the connection ends.
    """
    answer = web.StreamResponse(headers={**STREAM_HEADERS, **plan.headers})
    with contextlib.suppress(ConnectionError, TimeoutError):
        await answer.prepare(request)
        # The comment makes the server send the headers at once.
        await _write(answer, b": open\n\n" + first)
        if await _send_all(answer, connection, plan, until):
            await _write(answer, plan.last)
            return answer
    # Without the last chunk of the body, clients see that the answer is not complete.
    if request.transport is not None:
        request.transport.abort()
    return answer


async def _send_all(answer: web.StreamResponse, connection: Connection, plan: Plan, until: float | None) -> bool:
    """Send frames; return True once the answer is complete, False if it breaks off."""
    clock = asyncio.get_running_loop().time
    late = None if plan.begin_seconds is None else clock() + plan.begin_seconds
    while not connection.is_broken and (until is None or clock() < until):
        waits = [BEAT_SECONDS]
        waits += [] if until is None else [until - clock()]
        waits += [] if late is None or connection.has_begun else [late - clock()]
        found = await connection.frames(max(0.0, min(waits)))
        if found:
            await _write(answer, found)
        if connection.is_broken:
            return False
        if connection.is_over:
            return True
        if late is not None and not connection.has_begun and clock() >= late:
            await _write(answer, plan.too_late)
            return True
        if not found:
            await _write(answer, b": hb\n\n")
    return False


async def _write(answer: web.StreamResponse, data: bytes) -> None:
    async with asyncio.timeout(SLOW_SECONDS):
        await answer.write(data)
