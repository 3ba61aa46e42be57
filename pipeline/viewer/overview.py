"""The pages that lead to sessions: recent numbers, and the search.

Every number of the overview links to the sessions that it counts.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final

from aiohttp import web
from msgspec import Struct, structs

from reknit.pipeline.fixes import FIXES
from reknit.pipeline.healing.table import HEALED_CODES, healed_summary
from reknit.pipeline.letters import LETTER_KINDS
from reknit.pipeline.registry import TARGETS
from reknit.pipeline.rules.sets import RULES
from reknit.pipeline.viewer.addresses import with_query
from reknit.pipeline.viewer.index import Reader
from reknit.pipeline.viewer.index.activity import Count, Overview, overview
from reknit.pipeline.viewer.index.entries import FOLLOWED, LETTER_OF, loss_or
from reknit.pipeline.viewer.index.search import Search, milliseconds
from reknit.pipeline.viewer.index.sessions import sessions, totals
from reknit.pipeline.viewer.letters import letters_at
from reknit.pipeline.viewer.pages import VIEWER, page
from reknit.pipeline.viewer.progress_page import followed

_HOUR_MS = 3_600_000
_LAST_MS = 253_402_300_799_000  # the end of the year 9999
# The spans that can be looked at, by name.
SPANS: Final = {"1h": _HOUR_MS, "24h": 24 * _HOUR_MS, "7d": 7 * 24 * _HOUR_MS, "30d": 30 * 24 * _HOUR_MS}
_USUAL = "24h"
# The chart of fixes has colours for this many; the rest is one series.
_SERIES = 7
_REST = "others"
ROWS = 50

# The names of fixes by what they lost, and of the search for their sessions.
_FIXED = {
    "lost": "fixes that lost content",
    "added": "fixes that added content",
    "lossless": "lossless fixes",
    "observed": "observed fixes",
}
# The meanings of codes of items and whole answers, in the order of the page.
STREAMED: Final = {
    "promoted": "shown although no stream delivered it",
    "retracted": "taken back, because the attempt that had it does not count",
    "incomplete": "cut before its end",
    "doubtful": "it is unknown whether it counts, or is complete",
    "unseen": "results whose text was on no screen",
}

sessions_at = partial(with_query, "/sessions")
# The codes that a search can find and that are known before they occur.
_CODES: Final = (*sorted(FIXES), *STREAMED, *sorted(HEALED_CODES), *sorted(RULES))


class Figure(Struct, frozen=True):
    """A number with a name, and where it leads."""

    name: str
    count: int
    href: str
    bad: bool = False


class Row(Struct, frozen=True):
    """A line of a table: a code with what it means, whom it is about, and how often."""

    code: str
    target: str
    count: int
    href: str
    severity: str = ""
    means: str = ""


class Series(Struct, frozen=True):
    """A chart's numbers: the begin of each step in seconds, and of each name its cells, a count and where it leads."""

    name: str
    steps: Sequence[int]
    names: Sequence[str]
    rows: Sequence[Sequence[tuple[int, str]]]


class Summary(Struct, frozen=True):
    """All that the overview says, of one span."""

    figures: Sequence[Figure]
    streamed: Sequence[Figure]
    fixes: Sequence[Row]
    rejections: Sequence[Row]
    refused: Sequence[Row]
    letters: Sequence[Row]
    diagnoses: Sequence[Row]
    series: Series


def summed(found: Overview, by: str = "code") -> Summary:
    """Return the index's counts for the overview; ``by`` is the key of the chart's series: code, target, severity."""
    within = {"since": stamp(found.since_ms), "until": stamp(found.until_ms)}
    every: Counter[str] = Counter()
    counts_by_kind: defaultdict[str, Counter[tuple[str, str, str]]] = defaultdict(Counter)
    for count in found.counts:
        every[count.kind] += count.count
        counts_by_kind[count.kind][count.code, count.target, count.severity] += count.count
    fixed = Counter[str]()
    for (code, _, severity), times in counts_by_kind["fix"].items():
        fixed[loss_or(severity, code)] += times
    items = Counter[str]()
    for kind, counts in counts_by_kind.items():
        if kind.startswith(("item/", "turn/")):
            for (code, _, _), times in counts.items():
                items[code] += times
    counted = {"since": stamp(found.steps.start), "until": stamp(found.steps.start + len(found.steps) * found.step_ms)}
    letters = {kind: every[LETTER_OF[kind]] for kind in LETTER_KINDS}
    figures = [
        Figure("sessions began", every["session"], sessions_at(**within)),
        Figure("turns", every["turn"], sessions_at(**within)),
        Figure("requests published", every["request"], sessions_at(**within)),
        *(Figure(words, fixed[loss], sessions_at(severity=loss, **within)) for loss, words in _FIXED.items()),
        Figure("dead letters", sum(letters.values()), letters_at(**counted, handled=1), bad=True),
        *(
            Figure(LETTER_KINDS[kind], count, letters_at(kind=kind, **counted, handled=1), bad=True)
            for kind, count in letters.items()
        ),
        Figure("sessions parked now", found.parked, sessions_at(parked=1), bad=True),
    ]
    return Summary(
        figures=figures,
        streamed=[Figure(code, items[code], sessions_at(code=code, **within)) for code in STREAMED],
        fixes=_rows(counts_by_kind["fix"], within),
        rejections=_rows(counts_by_kind["rejection"], within),
        refused=_rows(counts_by_kind["refused"], within),
        letters=_rows(counts_by_kind["letter"], within),
        diagnoses=_rows(counts_by_kind["turn/diagnosis"], within),
        series=_series([count for count in found.counts if count.kind == "fix"], found, by),
    )


def _rows(counts: Mapping[tuple[str, str, str], int], within: Mapping[str, str]) -> list[Row]:
    """A table's lines, the most frequent first."""
    return [
        Row(
            code=code,
            target=target,
            count=count,
            href=sessions_at(code=code, target=target, severity=severity, **within),
            severity=severity,
            means=meaning(code),
        )
        for (code, target, severity), count in sorted(counts.items(), key=lambda row: (-row[1], row[0]))
    ]


def _series(counts: Iterable[Count], found: Overview, by: str) -> Series:
    """Return the counts by step and by key; rare keys become one series."""
    every: Counter[str] = Counter()
    cells: Counter[tuple[int, str]] = Counter()
    for count in counts:
        name = loss_or(count.severity, count.code) if by == "severity" else getattr(count, by)
        every[name] += count.count
        cells[count.since_ms, name] += count.count
    names = [name for name, _ in sorted(every.items(), key=lambda one: (-one[1], one[0]))]
    steps = found.steps
    shown, rest = names[:_SERIES], names[_SERIES:]
    rows = []
    for step in steps:
        within = {"since": stamp(step), "until": stamp(step + found.step_ms)}
        row = [(cells[step, name], sessions_at(**{by: name}, **within)) for name in shown]
        if rest:
            # A search for several codes at once would find sessions that have all of them.
            row.append((sum(cells[step, name] for name in rest), sessions_at(**within)))
        rows.append(row)
    return Series(by, [step // 1000 for step in steps], [*shown, *([_REST] if rest else [])], rows)


def meaning(code: str) -> str:
    """Return the meaning of a code in a line; "" for an unknown code."""
    if code in FIXES:
        return FIXES[code].summary
    return RULES[code].message if code in RULES else STREAMED.get(code, "") or healed_summary(code)


def stamp(ms: int) -> str:
    """A time as addresses have it; a record may claim one that no calendar has."""
    return datetime.fromtimestamp(min(max(ms, 0), _LAST_MS) / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def now_ms() -> int:
    return int(time.time() * 1000)


async def _overview(request: web.Request) -> web.Response:
    viewer = request.app[VIEWER]
    span, by, end = (request.query.get(name, "") for name in ("span", "by", "until"))
    if (span and span not in SPANS) or by not in {"", "code", "target", "severity"}:
        raise web.HTTPNotFound
    until = milliseconds(end, "until") if end else now_ms()
    span, found, summary = await viewer.pools.pages.run(_summed, viewer.index.reader, span, by or "code", until)
    part = request.query.get("part", "")
    template = {"figures": "parts/figures.html", "charts": "parts/charts.html"}.get(part, "overview.html")
    return page(
        request,
        template,
        summary=summary,
        found=found,
        span=span,
        spans=SPANS,
        by=by or "code",
        at=partial(with_query, "/", span=span, by=by, until=end),
        ended=end,
        last=stamp(found.latest_ms + _HOUR_MS),
        behind=followed(viewer),
        followed=len(FOLLOWED),
        streamed=STREAMED,
    )


def _summed(reader: Reader, span: str, by: str, until: int) -> tuple[str, Overview, Summary]:
    """Return the events of a span, or of the default one, with its name."""
    found = overview(reader, until - SPANS[span or _USUAL], until)
    if not span and found.counts and found.counts[0].since_ms >= until - SPANS["1h"] - found.step_ms:
        # All that there is began just now: longer steps would show it as one bar.
        return _summed(reader, "1h", by, until)
    return span or _USUAL, found, summed(found, by)


async def _sessions(request: web.Request) -> web.Response:
    viewer = request.app[VIEWER]
    search = Search.from_query(request.query)
    after = request.query.get("after", "")
    # Without a condition the newest rows are read, and that is all.
    pool = viewer.pools.pages if search == Search() else viewer.pools.searches
    found = await pool.run(sessions, viewer.index.reader, search, after, ROWS)
    sums = None if search.words or after else await pool.run(totals, viewer.index.reader, search)
    return page(
        request,
        "sessions.html",
        search=search,
        query=search.query(),
        at=partial(_sorted_at, search),
        found=found,
        totals=sums,
        chips=chips(search),
        after=after,
        targets=sorted(TARGETS),
        codes=_CODES,
    )


def _sorted_at(search: Search, sort: str | None = None) -> str:
    """Return the address of a search, with another order if one is given."""
    query = structs.replace(search, sort=search.sort if sort is None else sort).query()
    return f"/sessions?{query}" if query else "/sessions"


# The names of a search's conditions, by field; codes follow.
_CHIPS: Final = {
    "words": "words",
    "session": "begins with",
    "target": "target",
    "severity": "loss",
    "producer": "producer",
    "since": "since",
    "until": "until",
    "parked": "parked",
    "rejected": "rejected",
}


def chips(search: Search) -> list[tuple[str, str, str]]:
    """Each condition of a search: its name, its value, and the address of the search without it."""
    found = []
    for field, name in _CHIPS.items():
        value = getattr(search, field)
        if value:
            without = structs.replace(search, **{field: False if value is True else ""})
            found.append((name, "" if value is True else value, f"/sessions?{without.query()}"))
    for code in search.codes:
        without = structs.replace(search, codes=tuple(one for one in search.codes if one != code))
        found.append(("code", code, f"/sessions?{without.query()}"))
    return found


routes = [
    web.get("/", _overview),
    web.get("/sessions", _sessions),
]
