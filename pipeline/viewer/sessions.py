"""Pages of a session: its timeline, a request in two columns, an unchanged record, and its exports."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec
from aiohttp import web
from jinja2 import Template
from msgspec import Struct

from reknit.pipeline import __version__
from reknit.pipeline.cli.sessions import as_json
from reknit.pipeline.viewer.addresses import SESSION, session_of, session_path
from reknit.pipeline.viewer.aligned import Aligned
from reknit.pipeline.viewer.cells import as_text
from reknit.pipeline.viewer.index import Reader, timeline
from reknit.pipeline.viewer.index.entries import FORGOTTEN, Entry
from reknit.pipeline.viewer.index.search import milliseconds
from reknit.pipeline.viewer.index.timeline import BEGINNING
from reknit.pipeline.viewer.index.values import Value
from reknit.pipeline.viewer.live import (
    AT_ONCE,
    MOST_VIEWINGS,
    NOWHERE,
    Message,
    Position,
    Viewing,
    by_session,
    cursor_of,
    last_seen,
    live_page,
    send_messages,
    subscribe,
)
from reknit.pipeline.viewer.pages import VIEWER, Viewer, is_part, page, row_of
from reknit.pipeline.viewer.requests import REQUESTS, Requests, case_of, find_request
from reknit.topics import SESSION_ITEMS
from reknit.topics.headers import as_texts, encode
from reknit.topics.trace import trace_id

# Which entries a view of the timeline has; the whole one has all but the items, which have a page of their own.
VIEWS: Final = {
    "": (
        *(
            "opened",
            "turn",
            "restored",
            "rewound",
            "wanted",
            "sent",
            "closed",
            "released",
            "answered",
            "large",
            "unreadable",
        ),
        *("request", "withdrawal", "fix", "rejection", "refused", "letter", "note", "exit", "turn/diagnosis"),
    ),
    "turns": ("opened", "turn", "restored", "rewound", "wanted", "sent", "closed", "released", "answered", "large"),
    "requests": ("request", "withdrawal"),
    "fixes": ("fix",),
    "refused": ("rejection", "refused", "letter", "note", "unreadable"),
}
# Entries of one part of it.
_ENTRIES: Final = 40
# The most entries that a search within a session shows.
_HITS: Final = 200
# Blocks of a request that a page shows at once.
_ROWS: Final = 60
# Records that an export holds in memory at a time, and bytes of their values.
_BATCH, _BATCH_BYTES = 200, 8 << 20


def setup(app: web.Application) -> None:
    app[REQUESTS] = Requests()
    timelines = app[TIMELINES] = Timelines(app[VIEWER].templates.get_template("parts/timeline.html"))
    subscribe(app, timelines.take_entries, timelines.stop)


# The timeline by parts, and its updates as server-sent events.


async def _timeline(request: web.Request) -> web.Response:
    viewer, name, query = request.app[VIEWER], session_of(request), request.query
    shows = _shows(query)
    row = await row_of(viewer, name)
    if query.get("part") == "figures":
        return page(request, "parts/session_figures.html", row=row)
    before, after = query.get("before", ""), query.get("after", "")
    reader, kinds = viewer.index.reader, VIEWS[shows.view]
    sought = await viewer.pools.pages.run(_sought_entry, reader, name, query)
    if sought is not None and sought.kind not in VIEWS[""]:
        raise web.HTTPFound(await viewer.pools.pages.run(_stream_place, reader, sought))
    if sought is not None:
        after = _cursor_before(sought)
    elif query.get("time", "").strip():
        after = f"{max(milliseconds(query['time'].strip(), 'time'), 0)}-0"
    words = query.get("q", "").strip()
    if words:
        hits = await viewer.pools.searches.run(timeline.found_words, reader, name, words, kinds, _HITS)
        return page(request, "session_search.html", row=row, view=shows.view, target="", words=words, entries=hits)
    part = await viewer.pools.pages.run(
        timeline.timeline, reader, name, before=before, after=after, kinds=kinds, limit=_ENTRIES
    )
    newest = part
    if part.after and not is_part(request):
        newest = await viewer.pools.pages.run(timeline.timeline, reader, name, kinds=kinds, limit=1)
    return page(
        request,
        "parts/timeline.html" if is_part(request) else "session.html",
        row=row,
        view=shows.view,
        views=[*VIEWS],
        target=shows.target,
        entries=[each for each in part.entries if shows.has(each)],
        before=part.before if not after or not is_part(request) else "",
        after=part.after if not before or not is_part(request) else "",
        sought=sought,
        turn=query.get("turn", "").strip(),
        is_newest=not part.after,
        is_first=not (part.before or after),
        beginning=BEGINNING,
        place=cursor_of(max(map(_position_of, newest.entries), default=NOWHERE)),
    )


def _sought_entry(reader: Reader, name: str, query: Mapping[str, str]) -> Entry | None:
    """Return the entry that an address names, by its place or as a turn; None if it names none of this session."""
    turn, place = _number(query.get("turn", "").strip(), 0), query.get("entry", "")
    found = timeline.turn_at(reader, name, turn) if turn else timeline.entry_at(reader, place) if place else None
    return found if found is not None and found.session == name else None


def _cursor_before(entry: Entry) -> str:
    """Return the cursor after which a part begins with this entry."""
    return f"{entry.time_ms}-{entry.number - 1}"


def _stream_place(reader: Reader, entry: Entry) -> str:
    """Return the address of a record's item on the page of its session's stream."""
    items = timeline.of_items(reader, entry.session, [entry.item_id]) if entry.item_id else [entry]
    first, last = items[0], entry
    before = f"{last.partition}/{last.offset + 1}"
    return f"{session_path(entry.session, 'stream', before=before)}#r{first.partition}-{first.offset}"


class _Shows(Struct, frozen=True):
    """The part of a session that a timeline shows."""

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
    """The open timelines: each receives the rows of new records, rendered once for all browsers.

    Entries do not arrive in the order of their times. So a browser inserts each row at its place, ignores rows that it
    has, and after a lost connection receives the newest part again.
    """

    def __init__(self, rows: Template) -> None:
        self._rows = rows
        self._viewings: defaultdict[str, dict[Viewing, _Shows]] = defaultdict(dict)

    def __len__(self) -> int:
        return sum(map(len, self._viewings.values()))

    def take_entries(self, entries: Sequence[Entry]) -> None:
        """Take new entries of the index."""
        for session, of_session in by_session(entries, self._viewings).items():
            shown = [entry for entry in of_session if entry.kind in VIEWS[""]]
            if any(entry.kind == FORGOTTEN for entry in of_session):
                self._end(session, "The session was forgotten.")
            elif len(shown) > AT_ONCE:
                self._end(session, "Much came at once: reload the page.")
            else:
                self._show(session, shown)

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
        html = self._rows.render(row={"name": entry.session}, entries=[entry], before="", after="", sought=None)
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
        """End all connections; browsers reconnect to the next viewer and continue there."""
        for session in self._viewings:
            self._end(session, "")


TIMELINES: web.AppKey[Timelines] = web.AppKey("timelines", Timelines)


async def _live(request: web.Request) -> web.StreamResponse:
    viewer, name, timelines = request.app[VIEWER], session_of(request), request.app[TIMELINES]
    shows, after = _shows(request.query), last_seen(request)
    await row_of(viewer, name)
    if len(timelines) >= MOST_VIEWINGS:
        raise web.HTTPServiceUnavailable
    with live_page(request), timelines.watching(name, shows) as viewing:
        entries = await viewer.pools.pages.run(_missed, viewer.index.reader, name, VIEWS[shows.view], after)
        missed = None if entries is None else [timelines.message(entry) for entry in entries if shows.has(entry)]
        return await send_messages(request, viewing, missed)


def _missed(reader: Reader, name: str, kinds: Sequence[str], after: Position) -> list[Entry] | None:
    """Return the entries after a position, and the part before it, because entries may be late; None if too many."""
    place = BEGINNING if after == NOWHERE else f"{after[0]}-{after[1]}"
    later = timeline.timeline(reader, name, after=place, kinds=kinds, limit=AT_ONCE + 1).entries
    if len(later) > AT_ONCE:
        return None
    return [*timeline.timeline(reader, name, before=place, kinds=kinds, limit=_ENTRIES).entries, *later]


# A request, and a record.


async def _request(request: web.Request) -> web.Response:
    viewer, name, query = request.app[VIEWER], session_of(request), request.query
    found = await find_request(request, name, request.match_info["id"])
    aligned, sought = found.aligned, -1
    end = _number(query.get("before", ""), len(aligned))
    start = max(0, end - _ROWS)
    if query.get("after"):
        start = _number(query["after"], 0)
        end = start + _ROWS
    elif query.keys() & {"at", "sent"}:
        sought = _sought(aligned, query)
        if sought >= 0:
            start, end = max(0, sought - _ROWS // 2), sought + _ROWS // 2
    end = min(end, len(aligned))
    here = session_path(name, "requests", found.headers.request_id)
    rows = await viewer.pools.work.run(aligned.rows, start, end)
    more: dict[str, Any] = {
        "here": here,
        "rows": rows,
        "start": start,
        "end": end,
        "count": len(aligned),
        "sought": sought,
    }
    if is_part(request):
        return page(request, "parts/rows.html", **more, up="after" not in query, down="after" in query)
    effects = await viewer.pools.pages.run(timeline.led_to, viewer.index.reader, found.entry.cause)
    earlier = await viewer.pools.pages.run(
        timeline.timeline,
        viewer.index.reader,
        name,
        kinds=VIEWS["requests"],
        target=found.headers.target,
        before=found.entry.cursor,
        limit=1,
    )
    return page(
        request,
        "request.html",
        **more,
        up=True,
        down=True,
        name=name,
        found=found,
        headers=found.headers,
        trace=trace_id(encode(found.headers)),
        head=await viewer.pools.work.run(aligned.head),
        marks=aligned.marks,
        targets={each.target: each.request_id for each in effects if each.kind == "request" and each.session == name},
        earlier=earlier.entries[0].request_id if earlier.entries else "",
        size=found.entry.size if found.body is None else len(found.body),
    )


def _sought(aligned: Aligned, query: Mapping[str, str]) -> int:
    """The row of the place that a query names: of a fix, of a block that came in, or of one that went out."""
    if "fix" in query:
        return aligned.number_marked(query["fix"], query.get("at", ""))
    return aligned.number_of(query["at"]) if "at" in query else aligned.number_sent(query["sent"])


def _number(text: str, otherwise: int) -> int:
    return int(text) if re.fullmatch(r"\d{1,9}", text) else otherwise


async def _body(request: web.Request) -> web.Response:
    found = await find_request(request, session_of(request), request.match_info["id"])
    if found.body is None:
        raise web.HTTPGone
    return web.Response(body=found.body, headers=_download(f"{found.headers.request_id}.txt"))


async def _case(request: web.Request) -> web.Response:
    found = await find_request(request, session_of(request), request.match_info["id"])
    case = await request.app[VIEWER].pools.work.run(case_of, found)
    return web.Response(body=case + b"\n", headers=_download(f"{found.headers.request_id}.jsonl"))


async def _record(request: web.Request) -> web.Response:
    viewer, name = request.app[VIEWER], session_of(request)
    place = "/".join(request.match_info[part] for part in ("topic", "partition", "offset"))
    entry = await viewer.pools.pages.run(timeline.entry_at, viewer.index.reader, place)
    if entry is None or entry.session != name:
        raise web.HTTPNotFound
    value = await viewer.values.read(entry)
    return page(
        request,
        "record.html",
        name=name,
        entry=entry,
        value=value,
        shown_value=None if value.value is None else as_text(value.value),
        headers=as_texts(value.headers),
        led_to=await viewer.pools.pages.run(timeline.led_to, viewer.index.reader, place),
    )


# Exports.


async def _export(request: web.Request) -> web.StreamResponse:
    """All that there is of a session; requests without their bodies, which together are the history many times over."""
    viewer, name, bodies = request.app[VIEWER], session_of(request), "bodies" in request.query
    await row_of(viewer, name)
    answer = web.StreamResponse(headers=_download(f"{name}.json"))
    await answer.prepare(request)
    begins = msgspec.json.encode({"session": name, "written_by": f"reknit {__version__}"})
    await answer.write(begins[:-1] + b', "records": [')
    separator = b"\n"
    async for entries in _all_entries(viewer, name):
        for batch in _batches(entries):
            lines = await _lines(viewer, batch, bodies=bodies)
            await answer.write(separator + b",\n".join(lines))
            separator = b",\n"
    await answer.write(b"\n]}\n")
    await answer.write_eof()
    return answer


def _batches(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Entries whose values fit into memory together."""
    batch: list[Entry] = []
    size = 0
    for entry in entries:
        if batch and size + entry.size > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(entry)
        size += entry.size
    yield batch


async def _lines(viewer: Viewer, entries: Sequence[Entry], *, bodies: bool) -> list[bytes]:
    """Records as an export has them."""
    bare = [] if bodies else [entry for entry in entries if entry.kind == "request"]
    headers = dict(zip([entry.number for entry in bare], await viewer.values.headers(bare), strict=True))
    read = iter(await viewer.values.read_many([entry for entry in entries if entry.number not in headers]))
    lines = []
    for entry in entries:
        is_bare = entry.number in headers
        value = Value(None, headers[entry.number], "left_out") if is_bare else next(read)
        shown = as_json(entry.topic, value.record(entry))
        lost = {"lost": value.lost} if value.lost else {}
        lines.append(msgspec.json.encode({"partition": entry.partition, **shown, **lost}))
    return lines


async def _all_entries(viewer: Viewer, name: str) -> AsyncIterator[list[Entry]]:
    """A session's turns, requests, fixes and letters by time, then its items in the order of their log."""
    reader, run, after = viewer.index.reader, viewer.pools.pages.run, BEGINNING
    while after:
        part = await run(timeline.timeline, reader, name, after=after, kinds=VIEWS[""], limit=_BATCH)
        after = part.after
        if found := [entry for entry in part.entries if entry.topic != SESSION_ITEMS]:
            yield found
    place = f"{SESSION_ITEMS}/0/0"
    while found := await run(timeline.items, reader, name, after=place, limit=_BATCH):
        yield found
        place = found[-1].place


def _download(name: str) -> dict[str, str]:
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", name)[-100:].lstrip(".")
    return {
        "Content-Type": "application/octet-stream",
        "Content-Disposition": f'attachment; filename="{plain}"',
        "Cache-Control": "no-store",
    }


_REQUEST = f"{SESSION}/requests/{{id}}"
routes = [
    web.get(SESSION, _timeline),
    web.get(f"{SESSION}/timeline", _live),
    web.get(f"{SESSION}/export", _export),
    web.get(f"{SESSION}/records/{{topic}}/{{partition}}/{{offset}}", _record),
    web.get(_REQUEST, _request),
    web.get(f"{_REQUEST}/body", _body),
    web.get(f"{_REQUEST}/case", _case),
]
