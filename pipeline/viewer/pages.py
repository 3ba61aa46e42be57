"""The basis of every page: the viewer's state, its templates, the addresses of records, and its events.

An open page receives new content as server-sent events. The server never waits for a slow reader: its connection is
closed, and the page asks the user to reload.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import quote, urlencode

from aiohttp import web
from jinja2 import Environment
from markupsafe import Markup
from msgspec import Struct, field

from reknit.pipeline import __version__, pages
from reknit.pipeline.errors import InputError
from reknit.pipeline.pages import shown
from reknit.pipeline.settings import Config
from reknit.pipeline.viewer.guard import FIELD, HEADER, LOGIN, Guard
from reknit.pipeline.viewer.index import Index, search
from reknit.pipeline.viewer.index.entries import Entry
from reknit.pipeline.viewer.index.numbers import is_place, read_position
from reknit.pipeline.viewer.index.reading import Follower, Subscriber
from reknit.pipeline.viewer.index.search import SessionRow
from reknit.pipeline.viewer.index.values import Values
from reknit.pipeline.viewer.pools import BusyError, Pools, pools
from reknit.pipeline.viewer.progress import Progress

_HERE = Path(__file__).parent
# The static files by name: all of them are inside the wheel.
STATIC = {
    **{file.name: file for file in (_HERE / "static").iterdir() if file.suffix in {".js", ".css"}},
    pages.STYLE.name: pages.STYLE,
}
# A name that browsers would treat as a path segment such as "..", or as empty, follows this mark.
_MARK = "~"
# A session's page as a route. aiohttp's own placeholders take no braces, which a name may have.
SESSION = "/sessions/{name:[^/]+}"


class Viewer(Struct, frozen=True):
    """The state of one viewer.

    Attributes:
        config: the cluster, the prefix, and how they are reached.
        guard: access control.
        templates: the templates of all pages.
        index: the content of the topics.
        follower: reads new records.
        values: the values of records, in the index or in their topic.
        allow_retry: whether pages may write to the topics.
        pools: the threads for blocking work.
        progress: whether the pipeline keeps up.
    """

    config: Config
    guard: Guard
    templates: Environment
    index: Index
    follower: Follower
    values: Values
    allow_retry: bool = False
    pools: Pools = field(default_factory=pools)
    progress: Progress = field(default_factory=Progress)


VIEWER: web.AppKey[Viewer] = web.AppKey("viewer", Viewer)


def templates() -> Environment:
    made = pages.environment(_HERE / "templates")
    made.auto_reload = False
    made.filters |= {"marked": marked, "duration": duration}
    made.tests["place"] = is_place
    made.globals |= {
        "session_path": session_path,
        "with_query": with_query,
        "static": static_path,
        "version": __version__,
        "token_field": FIELD,
        "token_header": HEADER,
        "login_path": LOGIN,
    }
    return made


def page(request: web.Request, template: str, /, *, status: int = 200, **values: object) -> web.Response:
    """A page, or a part of one, of this folder's templates; every value that it names must be given."""
    viewer = request.app[VIEWER]
    text = viewer.templates.get_template(template).render(
        **values,
        path=request.path,
        token=viewer.guard.form_token(request),
        allow_retry=viewer.allow_retry,
        has_login=bool(viewer.guard.login),
        inside=viewer.guard.logged_in(request),
        cluster=viewer.config.bootstrap_servers,
        prefix=viewer.config.prefix,
        status=viewer.progress.status(),
        as_of=datetime.now(UTC),
    )
    return web.Response(text=text, status=status, content_type="text/html", headers={"Cache-Control": "no-store"})


def marked(excerpt: str) -> Markup:
    """An excerpt as HTML, in which a search has put what it found between U+0002 and U+0003."""
    pieces = [shown(excerpt.partition("\x02")[0])]
    for found in excerpt.split("\x02")[1:]:
        word, _, rest = found.partition("\x03")
        pieces += [Markup("<mark>{}</mark>").format(shown(word)), shown(rest)]
    return Markup().join(pieces)


def duration(seconds: float) -> str:
    """A time span as people say it: ``12 s``, ``4 min``, ``3 h``, ``2 d``."""
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.0f} {unit}"
    return f"{seconds:,.0f} s"


def is_part(request: web.Request) -> bool:
    """Return True if the viewer's script requests content for an open page, and not a page."""
    return "HX-Request" in request.headers


def session_path(session: str, *more: str, **query: object) -> str:
    """The address of a session's page, or of one below it; whatever characters the session's id has."""
    name = _MARK + session if session in {"", ".", ".."} or session.startswith(_MARK) else session
    path = "/".join(quote(part, safe="", errors="replace") for part in ("sessions", name, *more))
    return "/" + with_query(path, **query)


def with_query(path: str, **query: object) -> str:
    """An address with the values that are not empty."""
    given = urlencode({name: str(value) for name, value in query.items() if value not in {None, ""}}, errors="replace")
    return f"{path}?{given}" if given else path


def session_of(request: web.Request) -> str:
    """The session's id that a request's address names, as ``session_path`` wrote it."""
    name = request.match_info["name"]
    return name[1:] if name.startswith(_MARK) else name


@cache
def static_path(name: str) -> str:
    """Return the address of a static file; it changes with the content, so browsers may cache it."""
    if name not in STATIC:
        raise InputError("file_unknown", f"there is no file {name}")
    return f"/static/{name}?{hashlib.sha256(STATIC[name].read_bytes()).hexdigest()[:12]}"


async def row_of(viewer: Viewer, session: str) -> SessionRow:
    """Return the index's row of a session; raises 404 if there is none."""
    found = await viewer.pools.pages.run(search.session, viewer.index.reader, session)
    if found is None:
        raise web.HTTPNotFound
    return found


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
