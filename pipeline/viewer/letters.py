"""Dead letters: the list, one with its reason and what it holds, and its retry where the viewer may write."""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web

from pipeline.cli.dead_letters import Left, Wanted, act_on_letters
from pipeline.errors import InputError
from pipeline.viewer.cells import as_text
from pipeline.viewer.index import timeline
from pipeline.viewer.index.entries import Entry
from pipeline.viewer.pages import VIEWER, page
from topics import DEAD_LETTERS
from topics.headers import ERROR_PREFIX, as_texts

_LETTERS: Final = 50
_PLACE: Final = r"/letters/{partition:\d{1,9}}/{offset:\d{1,18}}"


async def _list(request: web.Request) -> web.Response:
    reader, query = request.app[VIEWER].index.reader, request.query
    code, session, after = (query.get(name, "").strip() for name in ("code", "session", "after"))
    found = await asyncio.to_thread(timeline.letters, reader, code, session, after, _LETTERS)
    done = await asyncio.to_thread(timeline.done_about, reader, found.rows)
    return page(request, "letters.html", found=found, done=done, code=code, session=session, after=after)


async def _find(request: web.Request) -> tuple[Entry, str]:
    """A letter, and what was done about it."""
    reader = request.app[VIEWER].index.reader
    place = f"{DEAD_LETTERS}/{request.match_info['partition']}/{request.match_info['offset']}"
    entry = await asyncio.to_thread(timeline.entry_at, reader, place)
    if entry is None or entry.kind == "note":
        raise web.HTTPNotFound
    done = await asyncio.to_thread(timeline.done_about, reader, [entry])
    return entry, done.get(place, "")


async def _one(request: web.Request) -> web.Response:
    return await _shown(request)


async def _shown(request: web.Request, *, retried: bool = False, left: Left | None = None) -> web.Response:
    viewer = request.app[VIEWER]
    entry, done = await _find(request)
    value = await viewer.values.read(entry)
    headers = as_texts(value.headers)
    return page(
        request,
        "letter.html",
        entry=entry,
        done=done,
        retried=retried,
        left=left,
        why={name.removeprefix(ERROR_PREFIX): text for name, text in headers if name.startswith(ERROR_PREFIX)},
        headers=[(name, text) for name, text in headers if not name.startswith(ERROR_PREFIX)],
        value=value,
        shown_value=None if value.value is None else as_text(value.value),
    )


async def _retry(request: web.Request) -> web.Response:
    viewer = request.app[VIEWER]
    if not viewer.allow_retry:
        raise InputError("read_only", "this viewer only reads; start it with --allow-retry")
    await _find(request)
    place = f"{request.match_info['partition']}/{request.match_info['offset']}"
    ((_, left),) = await act_on_letters(viewer.config, Wanted(places=frozenset([place])), "retried")
    # The note comes back through the topic, a moment later.
    return await _shown(request, retried=left is None, left=left)


routes = [web.get("/letters", _list), web.get(_PLACE, _one), web.post(f"{_PLACE}/retry", _retry)]
