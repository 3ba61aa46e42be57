"""Two requests of a session side by side, the same turn for two targets, and what a replay made otherwise."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection
from typing import Final

from aiohttp import web
from msgspec import Struct

from pipeline.diff import Compared, Summary
from pipeline.errors import InputError
from pipeline.replay.reading import compared_sessions, fetching, read_folders, read_topics
from pipeline.replay.replays import every_plan, prefix_of
from pipeline.replay.sides import Coverage, Spool
from pipeline.settings import Config
from pipeline.viewer.bodies import Side, compared
from pipeline.viewer.index import timeline
from pipeline.viewer.index.entries import Entry
from pipeline.viewer.index.store import Reader
from pipeline.viewer.pages import VIEWER, page
from pipeline.viewer.requests import Request, find_request

# Requests among which a page lets one choose, and those of a turn's other targets.
_CHOICES: Final = 60
# Differences of a session, and sessions of a replay, that a page shows.
_CHANGES_SHOWN, _SESSIONS_SHOWN = 200, 200
# So long a page may read the topics of a replay; `reknit diff` has all the time that it takes.
SECONDS: Final = 60.0


async def _compare(request: web.Request) -> web.Response:
    given = {name: request.query.get(name, "").strip() for name in ("session", "a", "b", "replay")}
    if given["replay"]:
        return await _replay(request, given["replay"], given["session"])
    if not given["session"]:
        return page(request, "compare.html")
    return await _requests(request, given["session"], given["a"], given["b"])


# Two requests.


class Pair(Struct, frozen=True):
    """The requests to compare, and those that could be chosen in their place, the newest first."""

    one: str
    other: str
    choices: list[Entry]


def _pair(reader: Reader, name: str, one: str, other: str) -> Pair:
    """What is asked for; of a session alone its last request beside the one before it for the same target."""
    choices = timeline.requests(reader, name, limit=_CHOICES).entries[::-1]
    last = timeline.request(reader, name, other) if other else next(iter(choices), None)
    if last is not None and not one:
        earlier = timeline.requests(reader, name, last.target, f"{last.time_ms}-{last.number}", 1).entries
        one = earlier[0].request_id if earlier else ""
    return Pair(one, other or (last.request_id if last is not None else ""), choices)


async def _requests(request: web.Request, name: str, one: str, other: str) -> web.Response:
    reader = request.app[VIEWER].index.reader
    pair = await asyncio.to_thread(_pair, reader, name, one, other)
    if not pair.one or not pair.other:
        return page(request, "compare_none.html", session=name, choices=pair.choices)
    sides = [await find_request(request, name, request_id) for request_id in (pair.one, pair.other)]
    same_turn = await asyncio.to_thread(_of_same_turn, reader, sides)
    lost = [side for side in sides if side.body is None]
    found = None if lost else await asyncio.to_thread(compared, *map(_side, sides))
    return page(
        request,
        "compare_requests.html",
        session=name,
        pair=pair,
        sides=sides,
        same_turn=same_turn,
        lost=lost,
        found=found,
    )


def _side(found: Request) -> Side:
    return Side(found.headers.target, found.body or b"", found.aligned)


def _of_same_turn(reader: Reader, sides: Collection[Request]) -> list[list[Entry]]:
    """For each side the requests for other targets that the same record made due."""
    return [
        [each for each in timeline.led_to(reader, side.entry.cause) if each.kind == "request" and each != side.entry]
        for side in sides
    ]


# A replay.

_reading = threading.Lock()


async def _replay(request: web.Request, prefix: str, session: str) -> web.Response:
    """What the topics under another prefix have otherwise than the live ones: of a session, or of all."""
    viewer = request.app[VIEWER]
    partitions = await asyncio.to_thread(_partitions_of, viewer.index.reader, session) if session else None
    summary, found = await asyncio.to_thread(compare_replay, viewer.config, prefix, session, partitions)
    return page(
        request,
        "compare_replay.html",
        live=viewer.config.prefix,
        replay=prefix,
        session=session,
        summary=summary,
        found=found,
        shown=_CHANGES_SHOWN,
        sessions_shown=_SESSIONS_SHOWN,
    )


def _partitions_of(reader: Reader, session: str) -> set[int] | None:
    """The partitions of a session's records; all where nothing is known of it."""
    return {entry.partition for entry in timeline.timeline(reader, session, limit=100).entries} or None


def compare_replay(
    config: Config, prefix: str, session: str, partitions: Collection[int] | None
) -> tuple[Summary, list[Compared]]:
    """The summary, and the sessions that differ; as `reknit diff` has them.

    Raises:
        InputError: ``prefix_wrong``, ``busy``, ``too_long``, or there are no outputs.
    """
    # A folder is a place on this machine, which is nobody's business who only has the page.
    if "/" in prefix or not prefix.startswith(config.prefix) or prefix == config.prefix:
        raise InputError("prefix_wrong", f"a replay of this pipeline has a prefix that begins with {config.prefix!r}")
    if not _reading.acquire(blocking=False):
        raise InputError("busy", "another replay is being compared; try again in a moment")
    try:
        names = config.prefix, prefix
        summary = Summary()
        found: list[Compared] = []
        wanted = frozenset({session.encode("utf-8", "surrogateescape")} if session else ())
        with Spool(wanted, [fetching(config, name) for name in names]) as spool:
            reading = read_topics(config, spool, read_folders(spool, names), lambda _done, _all: None, partitions)
            sides = asyncio.run(asyncio.wait_for(reading, SECONDS))
            for each in compared_sessions(spool, Coverage(sides), summary):
                summary.add_session(each)
                if each.changes and len(found) < _SESSIONS_SHOWN:
                    found.append(each)
    except TimeoutError:
        words = f"reading both took more than {SECONDS:g} seconds; `reknit diff` takes all the time that it needs"
        raise InputError("too_long", words) from None
    finally:
        _reading.release()
    return summary, found


async def _replays(request: web.Request) -> web.Response:
    """The replays that the cluster has, for the page that lets one choose."""
    config = request.app[VIEWER].config
    plans = await every_plan(config)
    found = [(prefix_of(config.prefix, name), plan) for name, plan in plans.items()]
    return page(request, "compare_replays.html", replays=found, session=request.query.get("session", ""))


routes = [web.get("/compare", _compare), web.get("/compare/replays", _replays)]
