"""Server-sent events of an open page: the queue of a browser, sending, and the number of open pages.

The server never waits for a slow reader: its connection is closed, and the page asks the user to reload.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias

from aiohttp import web
from msgspec import Struct

from reknit.pipeline.viewer.index.entries import Entry
from reknit.pipeline.viewer.index.numbers import read_position
from reknit.pipeline.viewer.index.reading import Subscriber
from reknit.pipeline.viewer.pages import VIEWER
from reknit.pipeline.viewer.pools import BusyError

# Records of one session that are sent one by one; where more come at once, loading the page again is quicker.
AT_ONCE: Final = 1000
# Browsers that may look at streams at once, and as many at timelines; each holds a connection and what waits for it.
MOST_VIEWINGS: Final = 200
# Of both kinds together, those of one peer. A browser opens six connections to one server.
MOST_OF_A_PEER: Final = 20
LIVE_PAGES: web.AppKey[Counter[str]] = web.AppKey("live_pages", Counter)
# Messages that wait for one browser at most, and their bytes.
_WAITING, _WAITING_BYTES = 1000, 2 * 1024 * 1024
# The interval of keep-alives, and the time limit for a client to read what it was sent.
_PING_SECONDS, _SLOW_SECONDS = 15.0, 20.0

# The id of a message: for a stream its record's partition and offset, for a timeline its entry's time and number.
Position: TypeAlias = tuple[int, int]
# Before the first record of a session.
NOWHERE: Final = (-1, -1)


class Message(Struct, frozen=True):
    """The change of a page by one record, None if there is none; ``run`` is the record's."""

    position: Position
    change: bytes | None
    run: str = ""


class Viewing:
    """One browser that shows a session.

    Attributes:
        begins: the position after which its messages begin.
        ended: why nothing follows, in words for the user, or "" if the browser may reconnect and continue; None while
            more may follow.
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
        """Return the new messages; none after N seconds without any, and at the end."""
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return []
        self._news.clear()
        found, self._waiting, self._bytes = self._waiting, [], 0
        return found


def by_session(entries: Iterable[Entry], sessions: Collection[str]) -> dict[str, list[Entry]]:
    """The entries of these sessions, by session."""
    found: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in entries if sessions else ():
        if entry.session in sessions:
            found[entry.session].append(entry)
    return found


def subscribe(app: web.Application, take_entries: Subscriber, stop: Callable[[], None]) -> None:
    """Pass new entries to pages from an application's start to its end, when ``stop`` is called."""
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


def last_seen(request: web.Request) -> Position:
    """Return the position after which a browser continues: the last that it has, or that of the end of its page."""
    return read_position(request.headers.get("Last-Event-ID") or request.query.get("after") or cursor_of(NOWHERE))


@contextmanager
def live_page(request: web.Request) -> Iterator[None]:
    """Count a live page while the block runs.

    Raises:
        BusyError: this peer has as many as one may have.
    """
    counts, peer = request.app[LIVE_PAGES], request.app[VIEWER].guard.peer(request)
    # A proxy may name users; then each user is a peer.
    name = f"{peer.address} {peer.user}"
    if counts[name] >= MOST_OF_A_PEER:
        raise BusyError("busy", f"{MOST_OF_A_PEER} live pages of yours are open. Close one of them.")
    counts[name] += 1
    try:
        yield
    finally:
        counts[name] -= 1
        if not counts[name]:
            del counts[name]


def event_of(message: Message) -> bytes:
    return b"id: %s\ndata: %s\n\n" % (cursor_of(message.position).encode(), message.change or b"null")


async def send_messages(
    request: web.Request,
    viewing: Viewing,
    missed: Iterable[Message] | None,
    event: Callable[[Message], bytes] = event_of,
) -> web.StreamResponse:
    """Send what a browser has missed, None where that is too much, and then what comes, until one of both goes."""
    # No proxy may buffer or change the events.
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
    # The client did not read what it was sent; unsent data are discarded.
    if request.transport is not None:
        request.transport.abort()
    return answer


async def _send(answer: web.StreamResponse, data: bytes) -> None:
    async with asyncio.timeout(_SLOW_SECONDS):
        await answer.write(data)
