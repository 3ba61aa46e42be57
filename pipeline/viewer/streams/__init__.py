"""The page of a session's stream, by parts, and its updates as server-sent events, for all browsers.

A session with open pages is reduced once, for any number of them. Each record makes one message, whose id is its
position: a browser that lost its connection names the last one that it has, and receives the later ones, each once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

import msgspec
from aiohttp import web
from jinja2 import Environment
from msgspec import Struct, structs

from reknit.pipeline.pages import shown
from reknit.pipeline.viewer.addresses import SESSION, session_of, session_path
from reknit.pipeline.viewer.index import Reader, timeline
from reknit.pipeline.viewer.index.entries import FORGOTTEN, Entry
from reknit.pipeline.viewer.index.numbers import read_position
from reknit.pipeline.viewer.live import (
    AT_ONCE,
    MOST_VIEWINGS,
    NOWHERE,
    Message,
    Position,
    Viewing,
    by_session,
    cursor_of,
    event_of,
    last_seen,
    live_page,
    send_messages,
    subscribe,
)
from reknit.pipeline.viewer.pages import VIEWER, Viewer, page, row_of
from reknit.pipeline.viewer.streams.screen import TEXT, Change, Screen, StreamRow
from reknit.topics import SESSION_ITEMS

# Records of one part of a stream; and code points of all texts of a part, beyond which each is cut shorter.
_PART = 150
_PAGE_TEXT, _SHORTEST = 1_000_000, 400
_RUNS = 12
# Rows of a page that is open; a browser that got more would only become slow.
_ROWS = 5000


class _Part(Struct, frozen=True):
    """Records of a stream; ``before`` names the part before this one, if there is one."""

    entries: list[Entry]
    before: str


class _Records:
    """The items of sessions, read from the index and from where it names their values."""

    def __init__(self, viewer: Viewer) -> None:
        self._reader, self._values, self._run = viewer.index.reader, viewer.values, viewer.pools.pages.run

    async def load(self, session: str, until: Position | None) -> list[Entry]:
        """The last part of a session's stream; ``until`` a position, that one included."""
        if until == NOWHERE:
            return []
        before = None if until is None else (until[0], until[1] + 1)
        found = await self.part(session, None, before)
        return [entry for entry in found.entries if until is None or position_of(entry) <= until]

    async def between(self, session: str, after: Position, until: Position, limit: int) -> list[Entry]:
        found = await self._run(timeline.items, self._reader, session, after=_place(after), limit=limit)
        return await self._with_values([entry for entry in found if position_of(entry) <= until])

    async def part(self, session: str, run: str | None, before: Position | None) -> _Part:
        """Return consecutive records, and all others of their items, so that every item is complete."""
        found = await self._run(_part, self._reader, session, run, before)
        return _Part(await self._with_values(found.entries), found.before)

    async def _with_values(self, entries: Sequence[Entry]) -> list[Entry]:
        wanting = [entry for entry in entries if entry.value is None]
        values = iter(await self._values.read_many(wanting) if wanting else ())
        found = []
        for entry in entries:
            if entry.value is not None:
                found.append(entry)
                continue
            value = next(values)
            why = f"This record can no longer be read: {value.lost}." if value.lost else entry.summary
            found.append(structs.replace(entry, value=value.value, summary=why))
        return found


def _part(reader: Reader, session: str, run: str | None, before: Position | None) -> _Part:
    with reader.consistent():
        return _part_of_state(reader, session, run, before)


def _part_of_state(reader: Reader, session: str, run: str | None, before: Position | None) -> _Part:
    found = timeline.items(reader, session, run=run, before=_place(before), limit=_PART + 1)
    beyond, found = found[:-_PART], found[-_PART:]
    earlier = cursor_of(position_of(found[0])) if beyond else ""
    touched = {entry.item_id for entry in found if entry.item_id}
    # Of the last part nothing comes later; items that began in an earlier one are fetched from there.
    if before is None:
        touched -= {entry.item_id for entry in found if entry.kind == "item/started"}
    if touched:
        by_position = {position_of(entry): entry for entry in timeline.of_items(reader, session, sorted(touched))}
        by_position |= {position_of(entry): entry for entry in found}
        found = [by_position[position] for position in sorted(by_position)]
    return _Part(found, earlier)


class Drawing:
    """Changes as the page takes them."""

    def __init__(self, templates: Environment) -> None:
        self._article = templates.get_template("parts/stream_rows.html").module.article  # type: ignore[attr-defined]  # a macro

    def change(self, change: Change) -> bytes:
        row = change.row
        if change.added:
            html = str(shown(change.added, len(change.added)))
            to = change.at + len(change.added)
            return msgspec.json.encode({"row": row.anchor, "at": change.at, "to": to, "html": html})
        inside = None if row.inside is None else row.inside.anchor
        html = str(self._article(row, TEXT))
        return msgspec.json.encode({"row": row.anchor, "new": change.new, "inside": inside, "html": html})


def _place(position: Position | None) -> str:
    """A position as the index names it."""
    return "" if position in {None, NOWHERE} else f"{SESSION_ITEMS}/{cursor_of(position)}"


async def _stream(request: web.Request) -> web.Response:
    viewer, name = request.app[VIEWER], session_of(request)
    run = request.query.get("run")
    before = read_position(request.query["before"]) if "before" in request.query else None
    await row_of(viewer, name)
    part = await _Records(viewer).part(name, run, before)
    older = request.query.get("runs", "")
    runs = await viewer.pools.pages.run(timeline.runs, viewer.index.reader, name, older, _RUNS)
    screen = Screen()
    for entry in part.entries:
        screen.apply(entry)
    rows = screen.rows
    place = cursor_of(max(map(position_of, part.entries), default=NOWHERE))
    query = {} if run is None else {"run": run}
    return page(
        request,
        "stream.html",
        name=name,
        run=run,
        runs=runs.rows,
        more_runs=runs.after,
        rows=rows,
        inner=by_parent(rows),
        limit=_limit(rows),
        place=place,
        earlier=session_path(name, "stream", **query, before=part.before) if part.before else "",
        live="" if before is not None else session_path(name, "live", **query),
        here=session_path(name, "stream", **query),
    )


def by_parent(rows: Iterable[StreamRow]) -> dict[str, list[StreamRow]]:
    found: dict[str, list[StreamRow]] = {}
    for row in rows:
        if row.inside is not None:
            found.setdefault(row.inside.anchor, []).append(row)
    return found


def _limit(rows: Sequence[StreamRow]) -> int:
    """Code points of each text that are shown, so that the page stays one that a browser can show."""
    whole = sum(min(len(row.text), TEXT) for row in rows)
    return TEXT if whole <= _PAGE_TEXT else max(_SHORTEST, _PAGE_TEXT // len(rows))


class _Watched:
    """A session with open pages. ``early`` are the records that arrived while earlier ones were being read."""

    def __init__(self) -> None:
        self.screen: Screen | None = None
        self.position = NOWHERE
        self.early: list[Entry] = []
        self.viewings: set[Viewing] = set()
        self.looked_at = 0
        self.loading: asyncio.Task[None] | None = None

    def end(self, words: str) -> None:
        for viewing in self.viewings:
            viewing.end(words)


class Live:
    """The sessions with open pages.

    Args:
        load: returns the records of a session's page, up to a position or, with None, the last.
        between: returns the records of a session between two positions, the second one included, up to a limit.
        draw: renders a change of the screen for the page.
    """

    def __init__(
        self,
        load: Callable[[str, Position | None], Awaitable[Sequence[Entry]]],
        between: Callable[[str, Position, Position, int], Awaitable[Sequence[Entry]]],
        draw: Callable[[Change], bytes],
    ) -> None:
        self._load, self._between, self._draw = load, between, draw
        self._watched: dict[str, _Watched] = {}

    @property
    def viewings(self) -> int:
        return sum(watched.looked_at for watched in self._watched.values())

    def take_entries(self, entries: Sequence[Entry]) -> None:
        """Take new entries of the index."""
        for session, of_session in by_session(entries, self._watched).items():
            watched = self._watched[session]
            items = [entry for entry in of_session if entry.topic == SESSION_ITEMS]
            if any(entry.kind == FORGOTTEN for entry in of_session):
                self._drop(session, "The session was forgotten.")
            elif watched.screen is None:
                watched.early += items
            elif len(items) > AT_ONCE:
                self._drop(session, "Much came at once: reload the page.")
            elif items and len(watched.screen) > _ROWS:
                self._drop(session, "This page has become long: reload it.")
            else:
                self._show(watched, watched.screen, items)

    def _show(self, watched: _Watched, screen: Screen, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if position_of(entry) > watched.position:
                watched.position = position_of(entry)
                message = self._message(screen, entry)
                for viewing in watched.viewings:
                    viewing.offer(message)

    def _message(self, screen: Screen, entry: Entry) -> Message:
        change = screen.apply(entry)
        return Message(position_of(entry), None if change is None else self._draw(change), entry.run)

    def _drop(self, session: str, words: str) -> None:
        self._watched.pop(session).end(words)

    def stop(self) -> None:
        """End all connections; browsers reconnect to the next viewer and continue there."""
        for session in list(self._watched):
            self._drop(session, "")

    @asynccontextmanager
    async def watching(self, session: str) -> AsyncIterator[Viewing]:
        """Look at a session for as long as the block runs."""
        watched = self._watched.setdefault(session, _Watched())
        if watched.loading is None:
            watched.loading = asyncio.create_task(self._begin(session, watched))
        watched.looked_at += 1
        viewing = None
        try:
            # Others wait for the same; who goes away does not end it for them.
            await asyncio.shield(watched.loading)
            viewing = Viewing(watched.position)
            watched.viewings.add(viewing)
            if self._watched.get(session) is not watched:
                viewing.end("The page is out of date: reload it.")
            yield viewing
        finally:
            watched.looked_at -= 1
            if viewing is not None:
                watched.viewings.discard(viewing)
            if not watched.looked_at:
                watched.loading.cancel()
                if self._watched.get(session) is watched:
                    del self._watched[session]

    async def _begin(self, session: str, watched: _Watched) -> None:
        loaded = await self._load(session, None)
        watched.screen = Screen()
        for entry in (*loaded, *watched.early):
            if position_of(entry) > watched.position:
                watched.position = position_of(entry)
                watched.screen.apply(entry)
        watched.early.clear()

    async def missed(self, session: str, after: Position, until: Position) -> list[Message] | None:
        """The messages between two positions, the second one included; None where they are too many."""
        if after >= until:
            return []
        entries = await self._between(session, after, until, AT_ONCE + 1)
        if len(entries) > AT_ONCE:
            return None
        screen = Screen()
        for entry in await self._load(session, after):
            screen.apply(entry)
        return [self._message(screen, entry) for entry in entries]


def position_of(entry: Entry) -> Position:
    return entry.partition, entry.offset


LIVE: web.AppKey[Live] = web.AppKey("live", Live)


def setup(app: web.Application) -> None:
    """Give an application what its open pages share, from its start to its end."""
    viewer = app[VIEWER]
    live = app[LIVE] = Live(_Records(viewer).load, _Records(viewer).between, Drawing(viewer.templates).change)
    subscribe(app, live.take_entries, live.stop)


async def _live(request: web.Request) -> web.StreamResponse:
    live, name, run, after = request.app[LIVE], session_of(request), request.query.get("run"), last_seen(request)
    if live.viewings >= MOST_VIEWINGS:
        raise web.HTTPServiceUnavailable

    def event(message: Message) -> bytes:
        if message.position <= after:
            return b""
        return event_of(message if run is None or message.run == run else structs.replace(message, change=None))

    with live_page(request):
        return await _send_live(request, live, name, after, event)


async def _send_live(
    request: web.Request, live: Live, name: str, after: Position, event: Callable[[Message], bytes]
) -> web.StreamResponse:
    async with live.watching(name) as viewing:
        return await send_messages(request, viewing, await live.missed(name, after, viewing.begins), event)


routes = [web.get(f"{SESSION}/stream", _stream), web.get(f"{SESSION}/live", _live)]
