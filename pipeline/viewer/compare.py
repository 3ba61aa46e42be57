"""Compares two requests of a session, the same turn for two targets, and a replay with the live pipeline.

Equal parts of two bodies are folded. Bodies in one form are aligned as JSON. If two providers have different forms, or
a body is one text, the blocks are aligned by the input block that they were made from.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any, Final, NamedTuple

from aiohttp import web
from msgspec import Struct, structs

from reknit.pipeline.diff import Compared, Summary
from reknit.pipeline.diff.values import ABSENT, Json, aligned, apart, read_json, unified
from reknit.pipeline.errors import InputError
from reknit.pipeline.replay.reading import Sides, compared_runs
from reknit.pipeline.replay.replays import every_plan, prefix_of
from reknit.pipeline.settings import Config
from reknit.pipeline.targets import Setting
from reknit.pipeline.viewer.aligned import LISTS, Aligned
from reknit.pipeline.viewer.cells import Cell, Document, Mark, Row
from reknit.pipeline.viewer.index import Reader, timeline
from reknit.pipeline.viewer.index.entries import Entry
from reknit.pipeline.viewer.pages import VIEWER, page
from reknit.pipeline.viewer.requests import Request, find_request

# Requests among which a page lets one choose, and those of a turn's other targets.
_CHOICES: Final = 60
_REQUESTS: Final = ("request",)
# Differences of a session, and sessions of a replay, that a page shows.
_CHANGES_SHOWN, _SESSIONS_SHOWN = 200, 200
# A page may read the topics of a replay for N seconds; `reknit diff` has no limit.
SECONDS: Final = 60.0
# Equal rows around different ones; the number of rows below which nothing is folded; rows of one page.
_AROUND, _FEW, _MOST_ROWS = 1, 100, 400
# A text that differs is shown as a diff from this many characters on; shorter ones are easier to read in columns.
_LONG = 240


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
    """Return the two requests of a query; for a session alone, the last two for one target."""
    choices = timeline.timeline(reader, name, kinds=_REQUESTS, limit=_CHOICES).entries[::-1]
    last = timeline.request(reader, name, other) if other else next(iter(choices), None)
    if last is not None and not one:
        before, target = last.cursor, last.target
        earlier = timeline.timeline(reader, name, before=before, kinds=_REQUESTS, target=target, limit=1).entries
        one = earlier[0].request_id if earlier else ""
    return Pair(one, other or (last.request_id if last is not None else ""), choices)


async def _requests(request: web.Request, name: str, one: str, other: str) -> web.Response:
    viewer = request.app[VIEWER]
    reader, pools = viewer.index.reader, viewer.pools
    pair = await pools.pages.run(_pair, reader, name, one, other)
    if not pair.one or not pair.other:
        return page(request, "compare_none.html", session=name, choices=pair.choices)
    sides = [await find_request(request, name, request_id) for request_id in (pair.one, pair.other)]
    same_turn = await pools.pages.run(_of_same_turn, reader, sides)
    lost = [side for side in sides if side.body is None]
    bodies = [Side(each.headers.target, each.body or b"", each.aligned) for each in sides]
    found = None if lost else await pools.work.run(compared, *bodies)
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


def _of_same_turn(reader: Reader, sides: Collection[Request]) -> list[list[Entry]]:
    """For each side the requests for other targets that the same record made due."""
    return [
        [each for each in timeline.led_to(reader, side.entry.cause) if each.kind == "request" and each != side.entry]
        for side in sides
    ]


# Two bodies.


class Side(Struct, frozen=True):
    """A published body, and what it was made from."""

    target: str
    body: bytes
    aligned: Aligned


class Part(Struct, frozen=True):
    """Rows of a comparison, after a number of equal ones."""

    same: int
    rows: list[Row]


class Comparison(Struct, frozen=True, kw_only=True):
    """The differences.

    Attributes:
        head: the heads; None if they are equal.
        parts: the blocks; ``same_after`` and ``more`` are the numbers of following rows that are equal, or too many.
        fixes: those that only one of the sides has, the first side's first.
        by_origin: whether blocks were aligned by their origin.
    """

    head: Row | None
    parts: list[Part]
    same_after: int
    more: int
    fixes: tuple[list[Mark], list[Mark]]
    by_origin: bool


def compared(one: Side, other: Side) -> Comparison:
    by_origin = (one.target != other.target or one.aligned.is_text) and one.aligned.exact and other.aligned.exact
    around = _AROUND
    if by_origin:
        found = _Stretch(0, [*_by_origin(one, other)], 0)
        # Two forms of few blocks are looked at whole.
        around = _FEW if len(found.rows) <= _FEW else _AROUND
    else:
        found = _by_content(one, other)
    parts, same_after, more = _folded(found, around)
    if not by_origin:
        parts = [structs.replace(part, rows=[_marked(row, one, other) for row in part.rows]) for part in parts]
    marks = one.aligned.marks, other.aligned.marks
    return Comparison(
        head=_head(one, other),
        parts=parts,
        same_after=same_after,
        more=more,
        fixes=(_beyond(marks[0], marks[1]), _beyond(marks[1], marks[0])),
        by_origin=by_origin,
    )


class _Stretch(NamedTuple):
    """Rows, and the number of equal blocks before and after them."""

    before: int
    rows: list[Row]
    behind: int


def _by_content(one: Side, other: Side) -> _Stretch:
    """Return rows in the order of both: equal blocks are paired first, then equal kinds, then the rest.

    Most of two long bodies is the same messages before or after, of which only the number is needed.
    """
    sides = one, other
    flats = [Aligned.by_position((), side.body, side.target, Setting(), ()) for side in sides]
    documents = [Document(side.body) for side in sides]
    items = [next(filter(None, map(document.items, LISTS)), []) for document in documents]
    head, *ends = apart(*items)
    stretches = [
        (max(0, flat.row_of_message(head) - _AROUND), flat.row_of_message(end) + _AROUND)
        for flat, end in zip(flats, ends, strict=True)
    ]
    blocks = [
        _blocks(flat.rows(*stretch), document)
        for flat, stretch, document in zip(flats, stretches, documents, strict=True)
    ]
    rows = []
    for at, to in aligned(*([element for _, element in each] for each in blocks)):
        left = None if at is None else blocks[0][at]
        right = None if to is None else blocks[1][to]
        rows.append(_row(left and left[0], right and right[0], left and left[1]["raw"], right and right[1]["raw"]))
    return _Stretch(stretches[0][0], rows, max(0, len(flats[0]) - stretches[0][1]))


def _blocks(rows: Sequence[Row], document: Document) -> list[tuple[Cell, dict[str, Json]]]:
    """The cells of a body's rows, each with what says which block it is and what it holds."""
    found = []
    for row in rows:
        cell = row.right
        if cell is not None:
            raw = document.find(cell.path)[0].decode("utf-8", "replace") if cell.path else cell.text
            outline = {"type": cell.kind, "role": cell.role, "name": cell.name, "id": cell.tool_id}
            found.append((cell, {**outline, "raw": raw}))
    return found


def _row(left: Cell | None, right: Cell | None, before: str | None, after: str | None) -> Row:
    if left is None or right is None:
        return Row(left=left, right=right, how="appeared" if left is None else "vanished")
    if before == after:
        return Row(left=left, right=right)
    lines: Sequence[str] = ()
    if left.text == right.text:
        # Content that a cell does not show, such as a cache breakpoint.
        lines = unified(_json(before), _json(after))
    elif max(len(left.text), len(right.text)) > _LONG or "\n" in left.text + right.text:
        lines = unified(left.text, right.text)
    return Row(left=left, right=right, how="changed", lines=lines)


def _json(raw: str | None) -> Json:
    try:
        return ABSENT if raw is None else read_json(raw.encode())
    except (ValueError, RecursionError):
        return raw


def _marked(row: Row, one: Side, other: Side) -> Row:
    """Return a row that differs, with the fixes of its blocks."""
    if row.how == "same":
        return row
    cells = [
        cell and structs.replace(cell, fixes=_marks_at(side.aligned, cell.path))
        for cell, side in ((row.left, one), (row.right, other))
    ]
    return structs.replace(row, left=cells[0], right=cells[1])


def _marks_at(made: Aligned, path: str) -> list[Mark]:
    number = made.number_of(path) if path and made.exact else -1
    return [mark for row in made.rows(number, number + 1) for mark in row.marks] if number >= 0 else []


def _by_origin(one: Side, other: Side) -> Iterator[Row]:
    before, after = _origins(one.aligned), _origins(other.aligned)
    names = [origin for origin, _ in before], [origin for origin, _ in after]
    for tag, at, at_end, to, to_end in SequenceMatcher(None, *names, autojunk=False).get_opcodes():
        if tag == "equal":
            for (_, left), (_, right) in zip(before[at:at_end], after[to:to_end], strict=True):
                row = _row(left, right, left.text, right.text)
                # Two forms may lay out a text differently, so a diff of lines would not be readable.
                yield row if one.target == other.target else structs.replace(row, lines=())
            continue
        yield from (Row(left=left, right=None, how="vanished") for _, left in before[at:at_end])
        yield from (Row(left=None, right=right, how="appeared") for _, right in after[to:to_end])


def _origins(made: Aligned) -> list[tuple[str, Cell]]:
    """The cells of a body in its order, each with the path of the block it was made of; of an added one, of its fix."""
    found = []
    for row in made.rows(0, len(made)):
        if row.right is not None:
            added = f"+ {row.marks[0].code} {row.marks[0].tool_id}" if row.marks else "+"
            origin = row.left.path if row.left is not None else row.right.to or added
            found.append((origin, structs.replace(row.right, fixes=row.marks, note="", to="")))
    return found


def _head(one: Side, other: Side) -> Row | None:
    left, right = one.aligned.head().right, other.aligned.head().right
    if left is None or right is None:
        return None if left is right else Row(left=left, right=right, how="changed", number=-1)
    if left.text == right.text:
        return None
    lines = unified(left.text, right.text) if one.target == other.target else ()
    return Row(left=left, right=right, how="changed", lines=lines, number=-1)


def _folded(stretch: _Stretch, around: int) -> tuple[list[Part], int, int]:
    """Rows in parts around what differs, how many the same ones at the end are, and how many rows are left out."""
    rows = stretch.rows
    keep = [around == _FEW] * len(rows)
    for at, row in enumerate(rows):
        if row.how != "same":
            for near in range(max(0, at - around), min(len(rows), at + around + 1)):
                keep[near] = True
    parts: list[Part] = []
    same, shown = stretch.before, 0
    for at, row in enumerate(rows):
        if not keep[at]:
            same += 1
        elif shown == _MOST_ROWS:
            return parts, 0, sum(row.how != "same" for row in rows[at:])
        else:
            shown += 1
            numbered = structs.replace(row, number=at)
            if same or not parts:
                parts.append(Part(same, [_begun(numbered)]))
                same = 0
            else:
                parts[-1].rows.append(numbered)
    return parts, same + stretch.behind, 0


def _begun(row: Row) -> Row:
    """The first row of a part, which says whose its blocks are."""
    left = row.left and structs.replace(row.left, begins=True)
    right = row.right and structs.replace(row.right, begins=True)
    return structs.replace(row, left=left, right=right)


def _beyond(marks: Sequence[Mark], others: Sequence[Mark]) -> list[Mark]:
    """Return the fixes that the other side does not have; those of additions are compared without their place."""
    known = {(mark.code, mark.path, mark.tool_id) for mark in others}
    return [mark for mark in marks if (mark.code, mark.path, mark.tool_id) not in known]


# A replay.

_reading = threading.Lock()


async def _replay(request: web.Request, prefix: str, session: str) -> web.Response:
    """Return the differences between the topics under another prefix and the live ones: of a session, or of all."""
    viewer = request.app[VIEWER]
    run = viewer.pools.pages.run
    partitions = await run(_partitions_of, viewer.index.reader, session) if session else None
    summary, found = await viewer.pools.replays.run(compare_replay, viewer.config, prefix, session, partitions)
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
    # A folder is a path on the server, which users of the page must not read.
    if "/" in prefix or not prefix.startswith(config.prefix) or prefix == config.prefix:
        raise InputError("prefix_wrong", f"a replay of this pipeline has a prefix that begins with {config.prefix!r}")
    if not _reading.acquire(blocking=False):
        raise InputError("busy", "another replay is being compared; try again in a moment")
    try:
        summary = Summary()
        found: list[Compared] = []
        wanted = frozenset({session.encode("utf-8", "surrogateescape")} if session else ())
        names = config.prefix, prefix
        for each in compared_runs(config, names, wanted, summary, read=_within_time, partitions=partitions):
            summary.add_session(each)
            if each.changes and len(found) < _SESSIONS_SHOWN:
                found.append(each)
    except TimeoutError:
        words = f"reading both took more than {SECONDS:g} seconds; `reknit diff` takes all the time that it needs"
        raise InputError("too_long", words) from None
    finally:
        _reading.release()
    return summary, found


def _within_time(reading: Callable[[], Coroutine[Any, Any, Sides]]) -> Sides:
    return asyncio.run(asyncio.wait_for(reading(), SECONDS))


async def _replays(request: web.Request) -> web.Response:
    """The replays that the cluster has, for the page that lets one choose."""
    config = request.app[VIEWER].config
    plans = await every_plan(config)
    found = [(prefix_of(config.prefix, name), plan) for name, plan in plans.items()]
    return page(request, "compare_replays.html", replays=found, session=request.query.get("session", ""))


routes = [web.get("/compare", _compare), web.get("/compare/replays", _replays)]
