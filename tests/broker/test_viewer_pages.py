"""Every page of the viewer in a real browser: a hostile fleet is shown and never runs, and the pages are accessible."""

import asyncio
import re
from collections import Counter
from urllib.parse import urlsplit

import pytest
import viewer_lab
from browser import ELSEWHERE, HOSTILE, browsing, needs_browser
from build import call, result, said, text, user
from hostile import records, sessions
from published_records import OPENED, answers, appended

from reknit.topics import AGENT_TURNS, PROVIDER_EVENTS

pytestmark = needs_browser

# Pages of one kind that a walk opens, so that a fleet of any size is walked in less than a minute.
OF_A_KIND = 12
LARGEST_PAGE = 3 * 1024 * 1024
# Addresses of files instead of pages, and those that need a broker, which these tests do not have.
NOT_WALKED = re.compile(r"/(export|case|body)$|^/compare/replays")
# A hostile fleet names unknown codes, and records that never existed.
MAY_BE_MISSING = re.compile(r"^/explain/|/records/")
NOT_FOUND = "Failed to load resource: the server responded with a status of 404 (Not Found)"
LINKS = "[...new Set([...document.links].map(link => link.href))]"
# Elements that markup in a text would have created.
MADE = """[...document.querySelectorAll(
    'iframe, base, object, embed, meta[http-equiv=refresh], style, [onload], [onerror], [onfocus], [autofocus][x]'
)].map(made => made.outerHTML)"""


def kind(path):
    """Return the kind of a page, without its session and place."""
    return re.sub(r"^(/sessions|/letters|/explain)/[^/]+", r"\1/…", re.sub(r"/requests/[^/]+", "/requests/…", path))


async def walk(page, start, of_a_kind=OF_A_KIND, skipped=NOT_WALKED):
    """Follow the links from a page on, breadth first; yields each page's address and its status when it is open."""
    seen, queue, kinds = {start}, [start], Counter()
    while queue:
        url = queue.pop(0)
        path = urlsplit(url).path
        kinds[kind(path)] += 1
        if kinds[kind(path)] > of_a_kind or skipped.search(path):
            continue
        yield urlsplit(url), await page.go(url)
        for address in await page.ask(LINKS):
            link = address.partition("#")[0]
            if link.startswith(start) and link not in seen:
                seen.add(link)
                queue.append(link)


@pytest.fixture
async def viewer(tmp_path):
    """The URL of a viewer on the demo's fleet, poisoned, and on each kind of record, poisoned too."""
    async with viewer_lab.served(viewer_lab.filled(sessions(), records()), tmp_path / "index", allow_retry=True) as url:
        yield url


async def test_a_hostile_fleet_is_shown_and_never_runs(viewer):
    shown, wrong, kinds = "", [], Counter()
    async with browsing() as browser, browser.tab() as page:
        async for where, status in walk(page, viewer):
            kinds[kind(where.path)] += 1
            shown += await page.ask("document.documentElement.textContent")
            size = await page.ask("document.documentElement.outerHTML.length")
            made = await page.ask(MADE)
            found = status == 200 or (status == 404 and MAY_BE_MISSING.search(where.path))
            if not found or size > LARGEST_PAGE or made:
                wrong.append((where.geturl(), status, size, made))
            await asyncio.sleep(0.05)
        await asyncio.sleep(1)
        did = page.did()
    said = [message for message in did.messages if message != NOT_FOUND]
    assert (wrong, did.requests, did.dialogs, said) == ([], [], [], [])
    assert [text for text in (*HOSTILE, ELSEWHERE) if text not in shown] == []
    assert [mark for mark in ("U+202E", "U+2066", "U+200B", "U+001B", "U+0000") if mark not in shown] == []
    assert set(kinds) >= {
        "/", "/sessions", "/sessions/…", "/sessions/…/requests/…", "/sessions/…/stream",
        "/letters", "/letters/…/0", "/compare", "/playground", "/explain", "/explain/…",
    }  # fmt: skip


# Ten megabytes that would run, and as much in lines and in blocks.
ENORMOUS = "".join((*HOSTILE, ELSEWHERE)) * (10_000_000 // sum(map(len, (*HOSTILE, ELSEWHERE))))
LINES = ENORMOUS.replace("><", ">\n<")
BLOCKS = [text(f"{HOSTILE[0]} {number}") for number in range(30_000)]


def _turns(*given):
    return [(AGENT_TURNS, turn, ()) for turn in (OPENED, *given)]


def enormous():
    """Sessions as in `sessions`, with very long values in every field of other parties."""
    restored = {"type": "history.restored", "messages": [user(LINES.replace("<", " <")), said("ok"), user("go on")]}
    torn = b'{"type": "turn.appended", "message": {"content": "' + ENORMOUS[:9_000_000].encode()
    return [
        ("a turn", _turns(*appended(user(ENORMOUS), said("ok")))),
        ("a call", _turns(*appended(user("hi"), said(call(command=ENORMOUS)), user(result(content="ok"))))),
        ("a result", _turns(*appended(user("hi"), said(call()), user(result(content=ENORMOUS))))),
        ("an answer", _turns(*appended(user("hi"), said(ENORMOUS), user("go on")))),
        ("lines", _turns(*appended(user(LINES)), restored)),
        ("blocks", _turns(*appended(user(*BLOCKS), said("ok"), user("go on")))),
        ("a letter", [(AGENT_TURNS, torn, ())]),
        ("many deltas", _streamed(ENORMOUS[:3_000_000], 10_000)),
        ("one delta", _streamed(ENORMOUS, len(ENORMOUS))),
    ]


def _streamed(words, piece):
    return [(PROVIDER_EVENTS, record.value, record.headers) for record in answers(words, piece=piece)]


async def test_ten_megabytes_of_hostile_text_are_shown_in_pages_of_a_size_and_never_run(tmp_path):
    shown, wrong = {}, []
    skipped = re.compile(rf"{NOT_WALKED.pattern}|^/(explain|playground)")
    fleet = viewer_lab.filled(enormous())
    async with (
        viewer_lab.served(fleet, tmp_path / "index", allow_retry=True) as viewer,
        browsing() as browser,
        browser.tab() as page,
    ):
        async for where, status in walk(page, viewer, of_a_kind=16, skipped=skipped):
            size = await page.ask("document.documentElement.outerHTML.length")
            made = await page.ask(MADE)
            of = re.sub(r"/[0-9]+$", "", kind(where.path))
            shown.setdefault(of, set()).add(HOSTILE[0] in await page.ask("document.body.textContent"))
            if status != 200 or size > LARGEST_PAGE or made:
                wrong.append((where.geturl(), status, size, made))
        await asyncio.sleep(1)
        did = page.did()
    assert (wrong, did.requests, did.dialogs, did.messages) == ([], [], [], [])
    assert {name for name, found in shown.items() if True in found} >= {
        "/sessions/…", "/sessions/…/requests/…", "/sessions/…/stream", "/letters/…", "/compare",
        "/sessions/…/records/agent.turns.v1/0", "/sessions/…/records/provider.requests.v1/0",
    }  # fmt: skip


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_every_kind_of_page_is_accessible(viewer, dark):
    found = []
    async with browsing() as browser, browser.tab(dark=dark, width=400) as page:
        async for where, _ in walk(page, viewer, of_a_kind=2):
            found += [f"{where.path}: {line}" for line in await page.violations()]
            wide = await page.ask("document.documentElement.scrollWidth - innerWidth")
            found += [f"{where.path}: {wide} pixels wider than its window"] if wide > 0 else []
    assert found == []
