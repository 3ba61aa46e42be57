"""Pages of what a session has: a request side by side, a record as it came, and its exports."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from aiohttp import web

from pipeline import __version__
from pipeline.cli.inspect import as_json
from pipeline.stages.base import Record
from pipeline.viewer.aligned import Aligned
from pipeline.viewer.cells import as_text
from pipeline.viewer.index import timeline
from pipeline.viewer.index.entries import Entry
from pipeline.viewer.index.reading import Value
from pipeline.viewer.index.timeline import BEGINNING
from pipeline.viewer.pages import SESSION, VIEWER, Viewer, is_part, page, row_of, session_of, session_path
from pipeline.viewer.requests import REQUESTS, Requests, case_of, find_request
from pipeline.viewer.timelines import VIEWS
from topics import SESSION_ITEMS
from topics.headers import as_texts

# Blocks of a request that a page shows at once.
_ROWS: Final = 60
# Records that an export holds in memory at a time, and bytes of their values.
_AT_ONCE: Final = 200
_BYTES_AT_ONCE: Final = 8 << 20


def setup(app: web.Application) -> None:
    app[REQUESTS] = Requests()


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
    rows = await asyncio.to_thread(aligned.rows, start, end)
    more: dict[str, Any] = {
        "here": here,
        "rows": rows,
        "start": start,
        "end": end,
        "count": len(aligned),
        "sought": sought,
    }
    if is_part(request):
        return page(request, "_rows.html", **more, up="after" not in query, down="after" in query)
    beside = await asyncio.to_thread(timeline.led_to, viewer.index.reader, found.entry.cause)
    earlier = await asyncio.to_thread(
        timeline.requests,
        viewer.index.reader,
        name,
        target=found.headers.target,
        before=f"{found.entry.time_ms}-{found.entry.number}",
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
        head=await asyncio.to_thread(aligned.head),
        marks=aligned.marks,
        targets={each.target: each.request_id for each in beside if each.kind == "request" and each.session == name},
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
    case = await asyncio.to_thread(case_of, found)
    return web.Response(body=case + b"\n", headers=_download(f"{found.headers.request_id}.jsonl"))


async def _record(request: web.Request) -> web.Response:
    viewer, name = request.app[VIEWER], session_of(request)
    place = "/".join(request.match_info[part] for part in ("topic", "partition", "offset"))
    entry = await asyncio.to_thread(timeline.entry_at, viewer.index.reader, place)
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
        led_to=await asyncio.to_thread(timeline.led_to, viewer.index.reader, place),
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
        if batch and size + entry.size > _BYTES_AT_ONCE:
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
        record = Record(
            partition=entry.partition,
            offset=entry.offset,
            key=None,
            value=value.value,
            headers=value.headers,
            timestamp=entry.time_ms,
        )
        lost = {"lost": value.lost} if value.lost else {}
        lines.append(msgspec.json.encode({"partition": entry.partition, **as_json(entry.topic, record), **lost}))
    return lines


async def _all_entries(viewer: Viewer, name: str) -> AsyncIterator[list[Entry]]:
    """A session's turns, requests, fixes and letters by time, then its items in the order of their log."""
    reader, after = viewer.index.reader, BEGINNING
    while after:
        part = await asyncio.to_thread(timeline.timeline, reader, name, after=after, kinds=VIEWS[""], limit=_AT_ONCE)
        after = part.after
        if found := [entry for entry in part.entries if entry.topic != SESSION_ITEMS]:
            yield found
    place = f"{SESSION_ITEMS}/0/0"
    while found := await asyncio.to_thread(timeline.items, reader, name, after=place, limit=_AT_ONCE):
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
    web.get(f"{SESSION}/export", _export),
    web.get(f"{SESSION}/records/{{topic}}/{{partition}}/{{offset}}", _record),
    web.get(_REQUEST, _request),
    web.get(f"{_REQUEST}/body", _body),
    web.get(f"{_REQUEST}/case", _case),
]
