"""Every page of the viewer in a real browser: a hostile fleet is shown and never runs, and everybody can read it."""

import asyncio
import re
from collections import Counter
from urllib.parse import urlsplit

import pytest
import viewing
from browser import ELSEWHERE, HOSTILE, browsing, needs_browser
from hostile import records, sessions

pytestmark = needs_browser

# Pages of one kind that a walk opens, so that a fleet of any size is walked in less than a minute.
OF_A_KIND = 12
LARGEST_PAGE = 3 * 1024 * 1024
# What is no page but a file, and what asks a broker, which these tests have not.
NOT_WALKED = re.compile(r"/(export|case|body)$|^/compare/replays")
# A hostile fleet names codes that nobody knows, and records that never were.
MAY_BE_MISSING = re.compile(r"^/explain/|/records/")
NOT_FOUND = "Failed to load resource: the server responded with a status of 404 (Not Found)"
LINKS = "[...new Set([...document.links].map(link => link.href))]"
# What markup in a text would have made.
MADE = """[...document.querySelectorAll(
    'iframe, base, object, embed, meta[http-equiv=refresh], style, [onload], [onerror], [onfocus], [autofocus][x]'
)].map(made => made.outerHTML)"""


def kind(path):
    """What a page is, without the session and the place that it is about."""
    return re.sub(r"^(/sessions|/letters|/explain)/[^/]+", r"\1/…", re.sub(r"/requests/[^/]+", "/requests/…", path))


async def walk(page, start, of_a_kind=OF_A_KIND):
    """Follow the links from a page on, breadth first; yields each page's address and its status when it is open."""
    seen, queue, kinds = {start}, [start], Counter()
    while queue:
        url = queue.pop(0)
        path = urlsplit(url).path
        kinds[kind(path)] += 1
        if kinds[kind(path)] > of_a_kind or NOT_WALKED.search(path):
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
    async with viewing.served(viewing.filled(sessions(), records()), tmp_path / "index", allow_retry=True) as url:
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


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_every_kind_of_page_can_be_read_by_everybody(viewer, dark):
    found = []
    async with browsing() as browser, browser.tab(dark=dark, width=400) as page:
        async for where, _ in walk(page, viewer, of_a_kind=2):
            found += [f"{where.path}: {line}" for line in await page.violations()]
            wide = await page.ask("document.documentElement.scrollWidth - innerWidth")
            found += [f"{where.path}: {wide} pixels wider than its window"] if wide > 0 else []
    assert found == []
