"""The pages of dead letters: the list, one with its reason and its content, and retries where the viewer may write.

A retry answers with a redirect, so a reload of the page does not repeat it. The result is kept in memory under a random
id, which the address of the redirect has.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
from aiohttp import web
from msgspec import Struct

from reknit.pipeline.cli.dead_letters import Left, Wanted, act_on_letters, obstacle
from reknit.pipeline.errors import InputError
from reknit.pipeline.letters import LETTER_KINDS
from reknit.pipeline.viewer.addresses import with_query
from reknit.pipeline.viewer.cells import as_text
from reknit.pipeline.viewer.guard import form_of
from reknit.pipeline.viewer.index import Reader, timeline
from reknit.pipeline.viewer.index.entries import Entry
from reknit.pipeline.viewer.index.search import milliseconds
from reknit.pipeline.viewer.index.sessions import Page
from reknit.pipeline.viewer.index.timeline import LetterFilter
from reknit.pipeline.viewer.index.values import Value
from reknit.pipeline.viewer.pages import VIEWER, Viewer, page
from reknit.topics import DEAD_LETTERS
from reknit.topics import headers as names
from reknit.topics.headers import ERROR_PREFIX, DeadLetterHeaders, Headers, as_texts

letters_at = partial(with_query, "/letters")

_LETTERS_SHOWN: Final = 50
# Letters are counted up to this number, and sessions with letters are listed up to this number.
_LETTERS_COUNTED, _SESSIONS_SHOWN = 10_000, 12
# Letters that one action retries. Each takes two writes that wait for the broker.
MOST_RETRIED: Final = 200
# Results that are kept for the pages that show them, and places that a result names for each reason.
_RESULTS, _PLACES_NAMED = 100, 20
_LETTER: Final = r"/letters/{partition:\d{1,9}}/{offset:\d{1,18}}"
_FIELDS: Final = ("kind", "code", "session", "since", "until", "handled")


class Skipped(Struct, frozen=True):
    """Letters that were not retried for one reason; ``places`` are the first of them."""

    why: str
    count: int
    places: Sequence[str]
    record: str = ""


class Result(Struct, frozen=True, kw_only=True):
    """The result of a retry. ``left_over`` is the number of letters of the selection beyond the limit."""

    retried: int
    skipped: Sequence[Skipped] = ()
    left_over: int = 0

    @property
    def letters(self) -> int:
        return self.retried + sum(each.count for each in self.skipped)


RESULTS: web.AppKey[dict[str, Result]] = web.AppKey("results", dict)


def setup(app: web.Application) -> None:
    app[RESULTS] = {}


class _Found(Struct, frozen=True):
    """What the list shows of a selection."""

    page: Page
    groups: Sequence[timeline.LetterGroup]
    sessions: Sequence[timeline.LetterSession]
    done: Mapping[str, str]
    to_retry: Sequence[Entry]


async def _letters(request: web.Request) -> web.Response:
    viewer = request.app[VIEWER]
    asked = {name: request.query.get(name, "").strip() for name in _FIELDS}
    after = request.query.get("after", "").strip()
    wanted = _filter_of(asked)
    pool = viewer.pools.searches if any(asked.values()) else viewer.pools.pages
    found = await pool.run(_read_letters, viewer.index.reader, wanted, after)
    obstacles = await _obstacles(viewer, found.to_retry) if viewer.allow_retry else []
    count = sum(group.letters for group in found.groups)
    return page(
        request,
        "letters.html",
        found=found.page,
        groups=found.groups,
        sessions=found.sessions,
        count=count,
        most=_LETTERS_COUNTED,
        done=found.done,
        asked=asked,
        at=partial(letters_at, **asked),
        kinds=LETTER_KINDS,
        after=after,
        result=request.app[RESULTS].get(request.query.get("result", "")),
        to_retry=len(found.to_retry),
        hopeless=_by_reason([(entry, left) for entry, left in zip(found.to_retry, obstacles, strict=False) if left]),
        most_retried=MOST_RETRIED,
        since_ms=wanted.since_ms,
        # Letters that arrive after this page was made are not part of what it retries.
        until_ms=min(wanted.until_ms, found.page.rows[0].time_ms + 1) if found.page.rows else wanted.until_ms,
    )


def _filter_of(asked: Mapping[str, str]) -> LetterFilter:
    """Return the selection that a query or a form names.

    Raises:
        InputError: a time cannot be parsed.
        web.HTTPNotFound: there is no such kind.
    """
    if asked["kind"] not in {"", *LETTER_KINDS}:
        raise web.HTTPNotFound
    times = {f"{name}_ms": milliseconds(asked[name], name) for name in ("since", "until") if asked[name]}
    is_open = asked["handled"] != "1"
    return LetterFilter(kind=asked["kind"], code=asked["code"], session=asked["session"], open=is_open, **times)


def _read_letters(reader: Reader, wanted: LetterFilter, after: str) -> _Found:
    """Return a part of the list, the letters of all parts by code and session, and those that a retry would take."""
    found = timeline.letters(reader, wanted, after, _LETTERS_SHOWN)
    return _Found(
        found,
        timeline.letter_groups(reader, wanted, _LETTERS_COUNTED),
        timeline.letter_sessions(reader, wanted, _LETTERS_COUNTED, _SESSIONS_SHOWN),
        timeline.done_about(reader, found.rows),
        timeline.oldest_letters(reader, msgspec.structs.replace(wanted, open=True), MOST_RETRIED),
    )


async def _obstacles(viewer: Viewer, letters: Sequence[Entry]) -> list[Left | None]:
    """Return why no retry of each letter can succeed, by its headers and its code; None if one may."""
    headers = await viewer.values.headers(letters)
    # Values are not read here. Those that are no JSON object have a code that says so.
    return [_obstacle(entry, own, _presumed(entry)) for entry, own in zip(letters, headers, strict=True)]


def _presumed(entry: Entry) -> bytes | None:
    if not entry.size:
        return None
    return b"" if entry.code == "not_json" else b"{}"


def _obstacle(entry: Entry, headers: Headers, value: bytes | None) -> Left | None:
    try:
        why = names.decode(headers, DeadLetterHeaders)
    except msgspec.ValidationError:
        return Left("it is not a worker's letter")
    return obstacle(why, entry.session.encode() if entry.session else None, value)


def _by_reason(left: Sequence[tuple[Entry, Left]]) -> list[Skipped]:
    """Return letters that are not retried by their reasons, the most frequent first."""
    found: defaultdict[Left, list[str]] = defaultdict(list)
    for entry, why in left:
        found[why].append(f"{entry.partition}/{entry.offset}")
    skipped = [Skipped(why.why, len(places), places[:_PLACES_NAMED], why.record) for why, places in found.items()]
    return sorted(skipped, key=lambda each: -each.count)


async def _find_letter(request: web.Request) -> tuple[Entry, str]:
    """A letter, and what was done about it."""
    viewer = request.app[VIEWER]
    reader, run = viewer.index.reader, viewer.pools.pages.run
    place = f"{DEAD_LETTERS}/{request.match_info['partition']}/{request.match_info['offset']}"
    entry = await run(timeline.entry_at, reader, place)
    if entry is None or entry.kind == "note":
        raise web.HTTPNotFound
    done = await run(timeline.done_about, reader, [entry])
    return entry, done.get(place, "")


async def _letter(request: web.Request) -> web.Response:
    viewer = request.app[VIEWER]
    entry, done = await _find_letter(request)
    value = await viewer.values.read(entry)
    headers = as_texts(value.headers)
    return page(
        request,
        "letter.html",
        entry=entry,
        done=done,
        result=request.app[RESULTS].get(request.query.get("result", "")),
        obstacle=_obstacle_of(entry, value),
        why={name.removeprefix(ERROR_PREFIX): text for name, text in headers if name.startswith(ERROR_PREFIX)},
        headers=[(name, text) for name, text in headers if not name.startswith(ERROR_PREFIX)],
        value=value,
        shown_value=None if value.value is None else as_text(value.value),
    )


def _obstacle_of(entry: Entry, value: Value) -> Left | None:
    if value.lost:
        return Left("its topic does not have it any more")
    return _obstacle(entry, value.headers, value.value)


async def _retry(request: web.Request) -> web.Response:
    """Retry one letter."""
    _check_writing(request)
    entry, _ = await _find_letter(request)
    result = await _retried(request, [entry])
    return _seen_at(request, result, partial(with_query, f"/letters/{entry.partition}/{entry.offset}"))


async def _retry_all(request: web.Request) -> web.Response:
    """Retry the letters that a filter shows, the oldest first."""
    _check_writing(request)
    form = await form_of(request)
    asked = {name: str(form.get(name, "")).strip() for name in _FIELDS}
    if form.get("confirmed") != "1":
        raise InputError("not_confirmed", "check the box next to the button to retry all these dead letters")
    wanted = _filter_of(asked | {"since": "", "until": "", "handled": ""})
    wanted = msgspec.structs.replace(wanted, **{name: _number(form, name) for name in ("since_ms", "until_ms")})
    viewer = request.app[VIEWER]
    found = await viewer.pools.searches.run(timeline.oldest_letters, viewer.index.reader, wanted, _LETTERS_COUNTED)
    result = await _retried(request, found[:MOST_RETRIED], len(found[MOST_RETRIED:]))
    return _seen_at(request, result, partial(letters_at, **asked))


def _number(form: Mapping[str, Any], name: str) -> int:
    text = str(form.get(name, ""))
    if not text.removeprefix("-").isdecimal() or len(text) > 20:
        raise InputError("bad_form", f"{name} is a number of milliseconds", path=name)
    return int(text)


def _check_writing(request: web.Request) -> None:
    if not request.app[VIEWER].allow_retry:
        raise InputError("read_only", "this viewer only reads; start it with --allow-retry")


async def _retried(request: web.Request, letters: Sequence[Entry], left_over: int = 0) -> Result:
    if not letters:
        return Result(retried=0)
    places = {f"{entry.partition}/{entry.offset}": entry for entry in letters}
    wanted = Wanted(places=frozenset(places), may_be_gone=True)
    # A retry that has begun is finished, also if the browser disconnects.
    outcomes = await asyncio.shield(act_on_letters(request.app[VIEWER].config, wanted, "retried"))
    left = [(places.pop(letter.place), why) for letter, why in outcomes]
    left += [(entry, Left("its topic does not have it any more")) for entry in places.values()]
    skipped = _by_reason([(entry, why) for entry, why in left if why is not None])
    return Result(retried=sum(why is None for _, why in left), skipped=skipped, left_over=left_over)


def _seen_at(request: web.Request, result: Result, at: Any) -> web.Response:  # noqa: ANN401  a function that makes addresses
    """Answer with a redirect to the page that shows a result."""
    results = request.app[RESULTS]
    while len(results) >= _RESULTS:
        results.pop(next(iter(results)))
    name = secrets.token_urlsafe(16)
    results[name] = result
    # The notes come back through the topic, a moment later.
    return web.Response(status=303, headers={"Location": at(result=name), "Cache-Control": "no-store"})


routes = [
    web.get("/letters", _letters),
    web.post("/letters/retry", _retry_all),
    web.get(_LETTER, _letter),
    web.post(f"{_LETTER}/retry", _retry),
]
