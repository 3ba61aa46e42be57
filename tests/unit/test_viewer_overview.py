"""The pages that lead to sessions: the sums of the overview, and the link of every number to what it counts."""

import html
import re
from collections import Counter
from contextlib import asynccontextmanager

import pytest
from browser import Opened, browsing, needs_browser
from build import called, said, user
from multidict import MultiDict
from published_records import OPENED, appended
from viewer_lab import BEGAN_MS, Still, Topics, filled, pages_of

from reknit.pipeline.viewer import overview
from reknit.pipeline.viewer.index.activity import Count, Overview
from reknit.pipeline.viewer.index.entries import TOLD_OF_ITEMS
from reknit.pipeline.viewer.index.reading import Behind
from reknit.pipeline.viewer.index.search import Search
from reknit.pipeline.viewer.overview import STREAMED, chips, meaning, stamp, summed
from reknit.topics import AGENT_TURNS, SESSION_ITEMS

HOUR = 3_600_000
SINCE = 1_000 * HOUR
STAMP = "since=1970-02-11T16%3A00%3A00Z&until=1970-02-11T18%3A00%3A00Z"


def counted(*counts, parked=0):
    """An overview of two hours with these counts of the first and second one."""
    return Overview(
        since_ms=SINCE,
        until_ms=SINCE + 2 * HOUR,
        step_ms=HOUR,
        counts=[Count(SINCE + hour * HOUR, *rest) for hour, *rest in counts],
        sessions=1,
        parked=parked,
        latest_ms=SINCE,
    )


COUNTED = counted(
    (0, "session", "", "", "", 2),
    (0, "turn", "", "", "", 5),
    (1, "turn", "", "", "", 7),
    (0, "request", "", "anthropic", "", 4),
    (0, "fix", "result_moved", "", "lossless", 3),
    (1, "fix", "result_moved", "anthropic", "lossless", 1),
    (1, "fix", "result_synthesised", "", "lossy", 2),
    (1, "fix", "result_synthesised", "", "observed", 1),
    (0, "fix", "thinking_misplaced", "", "lossy", 1),
    (0, "rejection", "ANT-01", "anthropic", "", 1),
    (0, "letter", "bad_json", "", "", 2),
    (0, "item/started", "promoted", "", "", 4),
    (1, "item/completed", "incomplete", "", "", 1),
    (1, "turn/diagnosis", "cut", "", "", 1),
    parked=3,
)


def test_counts_are_added_up():
    found = summed(COUNTED)
    assert {figure.name: figure.count for figure in found.figures} == {
        "sessions began": 2,
        "turns": 12,
        "requests published": 4,
        "lossless fixes": 4,
        "fixes that lost content": 1,
        "fixes that added content": 2,
        "observed fixes": 1,
        "dead letters": 3,
        "records not processed": 2,
        "requests rejected": 1,
        "requests refused by providers": 0,
        "sessions parked now": 3,
    }
    assert {figure.name: figure.count for figure in found.streamed if figure.count} == {"promoted": 4, "incomplete": 1}
    assert [(row.code, row.target, row.severity, row.count) for row in found.fixes] == [
        ("result_moved", "", "lossless", 3),
        ("result_synthesised", "", "lossy", 2),
        ("result_moved", "anthropic", "lossless", 1),
        ("result_synthesised", "", "observed", 1),
        ("thinking_misplaced", "", "lossy", 1),
    ]
    assert [(row.code, row.count) for row in found.diagnoses] == [("cut", 1)]


def test_every_number_has_its_own_address():
    found = summed(COUNTED)
    leads = {figure.name: figure.href for figure in (*found.figures, *found.streamed)}
    assert leads["turns"] == f"/sessions?{STAMP}"
    assert leads["fixes that lost content"] == f"/sessions?severity=lost&{STAMP}"
    assert leads["fixes that added content"] == f"/sessions?severity=added&{STAMP}"
    assert leads["dead letters"] == f"/letters?{STAMP}&handled=1"
    assert leads["requests rejected"] == f"/letters?kind=rejected&{STAMP}&handled=1"
    assert leads["sessions parked now"] == "/sessions?parked=1"
    assert leads["promoted"] == f"/sessions?code=promoted&{STAMP}"
    assert found.fixes[0].href == f"/sessions?code=result_moved&severity=lossless&{STAMP}"
    assert found.rejections[0].href == f"/sessions?code=ANT-01&target=anthropic&{STAMP}"


@pytest.mark.parametrize(
    ("by", "names", "cells"),
    [
        ("code", ["result_moved", "result_synthesised", "thinking_misplaced"], [[3, 0, 1], [1, 3, 0]]),
        ("target", ["", "anthropic"], [[4, 0], [3, 1]]),
        ("severity", ["lossless", "added", "lost", "observed"], [[3, 0, 1, 0], [1, 2, 0, 1]]),
    ],
)
def test_fixes_can_be_grouped(by, names, cells):
    series = summed(COUNTED, by).series
    assert series.names == names
    assert series.steps == [SINCE // 1000, (SINCE + HOUR) // 1000]
    assert [[count for count, _ in row] for row in series.rows] == cells


def test_rare_codes_are_one_series():
    many = [(0, "fix", f"code{number:02}", "", "lossless", 20 - number) for number in range(9)]
    series = summed(counted(*many)).series
    assert series.names == [*(f"code{number:02}" for number in range(7)), "others"]
    assert [count for count, _ in series.rows[0]] == [20, 19, 18, 17, 16, 15, 14, 13 + 12]
    assert [count for count, _ in series.rows[1]] == [0] * 8


@pytest.mark.parametrize(
    ("code", "begins"),
    [("result_moved", "a tool result was moved"), ("promoted", "shown although"), ("ANT-01", ""), ("unheard", "")],
)
def test_a_code_has_a_meaning(code, begins):
    assert meaning(code).lower().startswith(begins)
    assert bool(meaning(code)) == (code != "unheard")


def test_each_condition_of_a_search_can_be_removed():
    query = MultiDict(
        [("q", "a b"), ("code", "x"), ("code", "y"), ("severity", "lossy"), ("since", "7d"), ("parked", "1")]
    )
    assert chips(Search.from_query(query)) == [
        ("words", "a b", "/sessions?code=x&code=y&severity=lossy&since=7d&parked=1"),
        ("loss", "lossy", "/sessions?q=a+b&code=x&code=y&since=7d&parked=1"),
        ("since", "7d", "/sessions?q=a+b&code=x&code=y&severity=lossy&parked=1"),
        ("parked", "", "/sessions?q=a+b&code=x&code=y&severity=lossy&since=7d"),
        ("code", "x", "/sessions?q=a+b&code=y&severity=lossy&since=7d&parked=1"),
        ("code", "y", "/sessions?q=a+b&code=x&severity=lossy&since=7d&parked=1"),
    ]
    assert chips(Search()) == []


@asynccontextmanager
async def overview_pages(tmp_path, monkeypatch, after_ms=HOUR):
    """Yield a function that requests pages of three sessions, some time later: valid as is, repaired, unreadable."""
    topics = filled()
    topics.put_turns("healthy/one", OPENED, *appended(user("hello"), said("well")))
    topics.put_turns("mended <b>", OPENED, *appended(user("list them"), called("a"), user("go on")))
    topics.put(AGENT_TURNS, "broken", b"no json")
    monkeypatch.setattr(overview, "now_ms", lambda: BEGAN_MS + after_ms)
    async with pages_of(topics, tmp_path) as ask:
        yield ask


def links(text):
    """Return the numbers of a page with their links, those of the counters first."""
    counters = re.findall(r'<a href="([^"]*)"[^>]*><strong>([\d,]+)</strong><span>([^<]*)</span>', text)
    cells = re.findall(r'<td class="number"><a href="([^"]*)">([\d,]+)</a>', text)
    return [(html.unescape(href), int(count.replace(",", ""))) for href, count, *_ in (*counters, *cells)]


def sessions_of(text):
    return [html.unescape(name) for name in re.findall(r'<a class="session foreign" href="[^"]*">(.*?)</a>', text)]


async def test_every_number_links_to_sessions_and_zero_to_none(tmp_path, monkeypatch):
    async with overview_pages(tmp_path, monkeypatch) as ask:
        status, text = await ask("/?span=24h")
        assert status == 200
        found = Counter()
        for href, count in links(text):
            found[href] += count if href.startswith("/sessions") else 0
        found = {href: count for href, count in found.items() if href.startswith("/sessions")}
        assert len(found) > 10
        shown = {href: sessions_of((await ask(href))[1]) for href in found}
    assert {href for href, count in found.items() if bool(count) != bool(shown[href])} == set()
    [adding] = [names for href, names in shown.items() if "severity=added" in href and "code" not in href]
    assert adding == ["mended <b>"]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("", ["broken", "mended <b>", "healthy/one"]),
        ("q=hello", ["healthy/one"]),
        ("q=nothing+of+this", []),
        ("session=mended", ["mended <b>"]),
        ("severity=lossy", ["mended <b>"]),
        ("code=result_synthesised", ["mended <b>"]),
        ("target=anthropic&severity=lossy", ["mended <b>"]),
        ("target=gemini", []),
        ("parked=1", []),
    ],
)
async def test_a_search_is_an_address(tmp_path, monkeypatch, query, names):
    async with overview_pages(tmp_path, monkeypatch) as ask:
        status, text = await ask(f"/sessions?{query}")
    assert (status, sessions_of(text)) == (200, names)
    assert ("No session fits." in text) == (not names)


async def test_a_list_continues_where_it_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(overview, "ROWS", 2)
    async with overview_pages(tmp_path, monkeypatch) as ask:
        _, first = await ask("/sessions")
        [href] = re.findall(r'rel="next" href="([^"]*)"', first)
        _, second = await ask(html.unescape(href))
    assert sessions_of(first) + sessions_of(second) == ["broken", "mended <b>", "healthy/one"]
    assert 'rel="next"' not in second


async def test_a_recent_start_is_shown_by_minutes(tmp_path, monkeypatch):
    async with overview_pages(tmp_path, monkeypatch, after_ms=600_000) as ask:
        _, text = await ask("/")
    assert re.findall(r'href="([^"]*)" aria-current="true">1h<', text) == ["/?span=1h"]
    assert text.count('<th scope="row"') == 61


async def test_earlier_times_can_be_shown(tmp_path, monkeypatch):
    async with overview_pages(tmp_path, monkeypatch, after_ms=400 * 24 * HOUR) as ask:
        _, now = await ask("/")
        [older] = re.findall(r'The newest record is older: <a href="([^"]*)">', now)
        _, text = await ask(html.unescape(older))
    assert "No fixes in this time." in now
    assert sum(count for href, count in links(text) if "severity=added" in href and "code" not in href) == 1
    assert "No fixes in this time." not in text
    [week] = re.findall(r'href="(/\?span=7d[^"]*)"', text)
    assert older.partition("until=")[2] == week.partition("until=")[2]


async def test_a_session_of_streams_shows_their_outcome(tmp_path):
    started = {"type": "item/started", "item_id": "i", "item_type": "text", "origin": "promoted"}
    retracted = {"type": "item/retracted", "item_id": "i", "reason": "replaced"}
    topics = filled()
    for record in (started, retracted):
        topics.put(SESSION_ITEMS, "streamed", record)
    topics.put_turns("plain", *appended(user("hello")))
    async with pages_of(topics, tmp_path) as ask:
        rows = (await ask("/sessions"))[1].partition("<tbody>")[2].split("<tr data-row>")[1:]
    assert {sessions_of(row)[0]: re.findall(r'<span class="tag ">(\w+)', row) for row in rows} == {
        "streamed": ["promoted", "retracted"],
        "plain": [],
    }


def test_every_counted_item_outcome_has_a_label():
    assert set(STREAMED) == TOLD_OF_ITEMS


@pytest.mark.parametrize(("ms", "text"), [(0, "1970-01-01T00:00:00Z"), (10**18, "9999-12-31T23:59:59Z")])
def test_a_time_outside_of_the_calendar_is_still_an_address(ms, text):
    assert stamp(ms) == text


@pytest.mark.parametrize(
    ("behind", "says"),
    [
        (Behind(records=0, by_topic={}), "up to date with the topics"),
        (Behind(records=1200, by_topic={}), "1,200 records behind the topics"),
        (Behind(records=5, by_topic={}, error="no <broker> answers"), "not following no <broker> answers"),
        (
            Behind(records=0, by_topic={}, missing=("p.a", "p.b")),
            "up to date with the topics missing p.a, p.b: not there, or not to be seen with these rights",
        ),
        (
            Behind(records=0, by_topic={}, missing=tuple("abcdefg")),
            "missing a, b, c, d, e, f, g: not there, or not to be seen with these rights",
        ),
    ],
)
async def test_the_lag_of_the_index_is_shown(tmp_path, behind, says):
    follower = Still()
    follower.behind = lambda: behind
    async with pages_of(filled(), tmp_path, follower=follower) as ask:
        line = (await ask("/?part=figures"))[1].partition('<p class="quiet follows">')[2].partition("·")[0]
    assert " ".join(html.unescape(re.sub(r"<[^>]*>", "", line)).split()) == says


async def test_self_refreshing_parts_can_be_requested_alone(tmp_path, monkeypatch):
    async with overview_pages(tmp_path, monkeypatch) as ask:
        _, figures = await ask("/?part=figures", part=True)
        _, charts = await ask("/?part=charts", part=True)
    assert (figures.count("<html"), figures.count('id="figures"')) == (0, 1)
    assert (charts.count("<html"), charts.count('id="charts"')) == (0, 1)


@pytest.mark.parametrize(
    ("path", "status"), [("/?span=9y", 404), ("/?by=session", 404), ("/sessions?since=soon", 400), ("/sessions/", 404)]
)
async def test_an_invalid_address_is_reported(tmp_path, monkeypatch, path, status):
    async with overview_pages(tmp_path, monkeypatch) as ask:
        assert (await ask(path))[0] == status


# A bar is at its row's position among the rows, and begins at the bottom of the chart.
CLICK_ON_THE_BAR = """(() => {
    const rows = [...document.querySelectorAll("table[data-chart] tbody tr")];
    const place = document.querySelector("#fixes-chart .u-over");
    const { x, y, width, height } = place.getBoundingClientRect();
    const at = (rows.findIndex((row) => row.querySelector("a")) + 0.5) / rows.length;
    const where = { clientX: x + width * at, clientY: y + height * 0.98, movementX: 1, bubbles: true };
    for (const kind of ["mousemove", "mousedown", "mouseup", "click"]) place.dispatchEvent(new MouseEvent(kind, where));
})()"""


@needs_browser
@pytest.mark.parametrize("dark", [False, True])
async def test_the_chart_is_drawn_and_links_to_sessions(tmp_path, monkeypatch, dark):
    async with overview_pages(tmp_path, monkeypatch) as ask, browsing() as browser, browser.tab(dark=dark) as page:
        await page.go(ask.url)
        await page.until("!!document.querySelector('#fixes-chart canvas')")
        drawn = await page.until(
            "(() => { const c = document.querySelector('#fixes-chart canvas');"
            " const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
            " return new Set(d).size > 10; })()"
        )
        series = await page.ask("[...document.querySelectorAll('.u-series th')].map((e) => e.textContent).slice(1)")
        assert page.did() == Opened()
        await page.ask(CLICK_ON_THE_BAR)
        await page.until("location.pathname === '/sessions' && document.readyState === 'complete'")
        searched = await page.ask("new URLSearchParams(location.search).get('code')")
        names = await page.ask("[...document.querySelectorAll('a.session')].map((link) => link.textContent)")
    assert drawn
    assert series == ["result_synthesised"]
    assert (searched, names) == ("result_synthesised", ["mended <b>"])


async def test_an_empty_viewer_shows_the_commands_that_fill_it_and_asks_again(tmp_path):
    async with pages_of(Topics(), tmp_path) as ask:
        _, page = await ask("/sessions")
        _, searched = await ask("/sessions?q=words")
    assert "reknit ingest turns --session mine" in page
    assert 'hx-get="/sessions" hx-trigger="every 5s"' in page
    assert "No session fits." in searched
    assert "hx-trigger" not in searched[searched.index('id="list"') :]
