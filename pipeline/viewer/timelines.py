"""A session's timeline by parts, and what goes on of it as server-sent events."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec
from aiohttp import web
from jinja2 import Template
from msgspec import Struct

from pipeline.viewer.index import Reader, timeline
from pipeline.viewer.index.entries import FORGOTTEN, Entry
from pipeline.viewer.index.timeline import BEGINNING
from pipeline.viewer.pages import SESSION, VIEWER, is_part, page, row_of, session_of
from pipeline.viewer.viewing import (
    AT_ONCE,
    MOST_VIEWINGS,
    NOWHERE,
    Message,
    Position,
    Viewing,
    cursor_of,
    last_seen,
    send_messages,
    subscribe,
)

# Which entries a view of the timeline has; the whole one has all but the items, which have a page of their own.
VIEWS: Final = {
    "": (
        *("opened", "turn", "restored", "rewound", "wanted", "closed", "released", "answered", "large", "unreadable"),
        *("request", "fix", "rejection", "refused", "letter", "note", "exit", "turn/diagnosis"),
    ),
    "turns": ("opened", "turn", "restored", "rewound", "wanted", "closed", "released", "answered", "large"),
    "requests": ("request",),
    "fixes": ("fix",),
    "refused": ("rejection", "refused", "letter", "note", "unreadable"),
}
_ENTRIES: Final = 40


def setup(app: web.Application) -> None:
    timelines = app[TIMELINES] = Timelines(app[VIEWER].templates.get_template("_timeline.html"))
    subscribe(app, timelines.take_entries, timelines.stop)


async def _timeline(request: web.Request) -> web.Response:
    viewer, name, query = request.app[VIEWER], session_of(request), request.query
    shows = _shows(query)
    row = await row_of(viewer, name)
    if query.get("part") == "figures":
        return page(request, "_session_figures.html", row=row)
    before, after = query.get("before", ""), query.get("after", "")
    reader, kinds = viewer.index.reader, VIEWS[shows.view]
    part = await asyncio.to_thread(
        timeline.timeline, reader, name, before=before, after=after, kinds=kinds, limit=_ENTRIES
    )
    newest = part
    if part.after and not is_part(request):
        newest = await asyncio.to_thread(timeline.timeline, reader, name, kinds=kinds, limit=1)
    return page(
        request,
        "_timeline.html" if is_part(request) else "session.html",
        row=row,
        view=shows.view,
        views=[*VIEWS],
        target=shows.target,
        entries=[each for each in part.entries if shows.has(each)],
        before=part.before if not after or not is_part(request) else "",
        after=part.after if not before or not is_part(request) else "",
        is_newest=not part.after,
        place=cursor_of(max(map(_position_of, newest.entries), default=NOWHERE)),
    )


class _Shows(Struct, frozen=True):
    """What of a session a timeline shows."""

    view: str
    target: str

    def has(self, entry: Entry) -> bool:
        return entry.kind in VIEWS[self.view] and (not self.target or entry.target in {"", self.target})


def _shows(query: Mapping[str, str]) -> _Shows:
    if query.get("view", "") not in VIEWS:
        raise web.HTTPNotFound
    return _Shows(query.get("view", ""), query.get("target", ""))


def _position_of(entry: Entry) -> Position:
    return entry.time_ms, entry.number


class Timelines:
    """The timelines that are looked at: each gets the rows of what comes, drawn once for all who look.

    Entries come in another order than that of their times. So a browser puts each row where it belongs, knows what it
    has, and after a lost connection is told the newest part once more.
    """

    def __init__(self, rows: Template) -> None:
        self._rows = rows
        self._viewings: defaultdict[str, dict[Viewing, _Shows]] = defaultdict(dict)

    def __len__(self) -> int:
        return sum(map(len, self._viewings.values()))

    def take_entries(self, entries: Sequence[Entry]) -> None:
        """Hear of entries that are in the index by now."""
        found: defaultdict[str, list[Entry]] = defaultdict(list)
        for entry in entries if self._viewings else ():
            if entry.session in self._viewings:
                found[entry.session].append(entry)
        for session, of_session in found.items():
            told = [entry for entry in of_session if entry.kind in VIEWS[""]]
            if any(entry.kind == FORGOTTEN for entry in of_session):
                self._end(session, "The session was forgotten.")
            elif len(told) > AT_ONCE:
                self._end(session, "Much came at once: reload the page.")
            else:
                self._show(session, told)

    def _show(self, session: str, entries: Sequence[Entry]) -> None:
        for entry in entries:
            message = self.message(entry)
            for viewing, shows in self._viewings[session].items():
                if shows.has(entry):
                    viewing.offer(message)

    def _end(self, session: str, words: str) -> None:
        for viewing in self._viewings[session]:
            viewing.end(words)

    def message(self, entry: Entry) -> Message:
        html = self._rows.render(row={"name": entry.session}, entries=[entry], before="", after="")
        change = {"row": f"e{entry.number}", "at": cursor_of(_position_of(entry)), "html": html.strip()}
        return Message(_position_of(entry), msgspec.json.encode(change))

    @contextmanager
    def watching(self, session: str, shows: _Shows) -> Iterator[Viewing]:
        """Look at a session for as long as the block runs."""
        viewing = Viewing()
        self._viewings[session][viewing] = shows
        try:
            yield viewing
        finally:
            del self._viewings[session][viewing]
            if not self._viewings[session]:
                del self._viewings[session]

    def stop(self) -> None:
        """Let everybody go; browsers come back to the next viewer, and go on there."""
        for session in self._viewings:
            self._end(session, "")


TIMELINES: web.AppKey[Timelines] = web.AppKey("timelines", Timelines)


async def _live(request: web.Request) -> web.StreamResponse:
    viewer, name, timelines = request.app[VIEWER], session_of(request), request.app[TIMELINES]
    shows, after = _shows(request.query), last_seen(request)
    await row_of(viewer, name)
    if len(timelines) >= MOST_VIEWINGS:
        raise web.HTTPServiceUnavailable
    with timelines.watching(name, shows) as viewing:
        entries = await asyncio.to_thread(_missed, viewer.index.reader, name, VIEWS[shows.view], after)
        missed = None if entries is None else [timelines.message(entry) for entry in entries if shows.has(entry)]
        return await send_messages(request, viewing, missed)


def _missed(reader: Reader, name: str, kinds: Sequence[str], after: Position) -> list[Entry] | None:
    """What stands behind a position, and the part before it, for something may have come late; None if too much."""
    place = BEGINNING if after == NOWHERE else f"{after[0]}-{after[1]}"
    later = timeline.timeline(reader, name, after=place, kinds=kinds, limit=AT_ONCE + 1).entries
    if len(later) > AT_ONCE:
        return None
    return [*timeline.timeline(reader, name, before=place, kinds=kinds, limit=_ENTRIES).entries, *later]


routes = [web.get(SESSION, _timeline), web.get(f"{SESSION}/timeline", _live)]
