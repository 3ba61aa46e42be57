"""A browser that looks at a page which goes on: what waits for it, and how it is sent (server-sent events).

Nobody is waited for: who does not read what is sent is cut off, and told to load the page again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from aiohttp import web
from msgspec import Struct

from pipeline.errors import InputError
from pipeline.viewer.index.reading import Subscriber
from pipeline.viewer.pages import VIEWER

# Records of one session that are sent one by one; where more come at once, loading the page again is quicker.
AT_ONCE: Final = 1000
# Browsers that may look at streams at once, and as many at timelines; each holds a connection and what waits for it.
MOST_VIEWINGS: Final = 200
# Messages that wait for one browser at most, and their bytes.
_WAITING, _WAITING_BYTES = 1000, 2 * 1024 * 1024
# How long a connection stands without a sign of life, and how long one may take to read what it was sent.
_PING_SECONDS, _SLOW_SECONDS = 15.0, 20.0

# What a message is named by: of a stream its record's partition and offset, of a timeline its entry's time and number.
Position: TypeAlias = tuple[int, int]
# Before the first record of a session.
NOWHERE: Final = (-1, -1)


class Message(Struct, frozen=True):
    """What one record changes of a page, None where nothing; ``run`` is the record's."""

    position: Position
    change: bytes | None
    run: str = ""


class Viewing:
    """One browser that looks at a session.

    Attributes:
        begins: the position behind which its messages begin.
        ended: why nothing more comes, in words for whoever looks, or "" where the browser may come back and go on;
            None as long as more may come.
    """

    def __init__(self, begins: Position = NOWHERE) -> None:
        self.begins = begins
        self.ended: str | None = None
        self._waiting: list[Message] = []
        self._bytes = 0
        self._news = asyncio.Event()

    def offer(self, message: Message) -> None:
        if self.ended is not None:
            return
        self._waiting.append(message)
        self._bytes += len(message.change or b"")
        if len(self._waiting) > _WAITING or self._bytes > _WAITING_BYTES:
            self.end("This browser does not keep up: reload the page.")
        self._news.set()

    def end(self, words: str) -> None:
        self.ended = words if self.ended is None else self.ended
        self._waiting.clear()
        self._news.set()

    async def messages(self, seconds: float) -> list[Message]:
        """What has come since; none after so many seconds without any, and at the end."""
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return []
        self._news.clear()
        found, self._waiting, self._bytes = self._waiting, [], 0
        return found


def subscribe(app: web.Application, take_entries: Subscriber, stop: Callable[[], None]) -> None:
    """Let pages hear of new entries from an application's start to its end, where they are told to ``stop``."""
    subscribers = app[VIEWER].follower.subscribers

    async def on_start(_app: web.Application) -> None:
        subscribers.add(take_entries)

    async def on_end(_app: web.Application) -> None:
        subscribers.discard(take_entries)
        stop()

    app.on_startup.append(on_start)
    app.on_shutdown.append(on_end)


def cursor_of(position: Position) -> str:
    return f"{position[0]}/{position[1]}"


def position_in(cursor: str) -> Position:
    """A position that a browser names.

    Raises:
        InputError: ``place_unknown``.
    """
    first, _, second = cursor.partition("/")
    try:
        return int(first), int(second)
    except ValueError as error:
        raise InputError("place_unknown", "a place is two numbers, as 0/17") from error


def last_seen(request: web.Request) -> Position:
    """Behind which position a browser goes on: the last that it has, or the one that its page ends with."""
    return position_in(request.headers.get("Last-Event-ID") or request.query.get("after") or cursor_of(NOWHERE))


def event_of(message: Message) -> bytes:
    return b"id: %s\ndata: %s\n\n" % (cursor_of(message.position).encode(), message.change or b"null")


async def send_messages(
    request: web.Request,
    viewing: Viewing,
    missed: Iterable[Message] | None,
    event: Callable[[Message], bytes] = event_of,
) -> web.StreamResponse:
    """Send what a browser has missed, None where that is too much, and then what comes, until one of both goes."""
    # Whatever stands between may neither keep what is sent nor change it.
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"})
    with contextlib.suppress(ConnectionError, TimeoutError):
        await answer.prepare(request)
        await _send(answer, b"retry: 2000\n\n")
        if missed is None:
            viewing.end("Much has come since: reload the page.")
        messages = missed or ()
        while True:
            await _send(answer, b"".join(map(event, messages)) or b": still here\n\n")
            if viewing.ended is not None:
                if viewing.ended:
                    await _send(answer, f"event: reload\ndata: {viewing.ended}\n\n".encode())
                return answer
            messages = await viewing.messages(_PING_SECONDS)
    # It did not read what it was sent; what still waits in the connection is nobody's.
    if request.transport is not None:
        request.transport.abort()
    return answer


async def _send(answer: web.StreamResponse, data: bytes) -> None:
    async with asyncio.timeout(_SLOW_SECONDS):
        await answer.write(data)
