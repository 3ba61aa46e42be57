"""A walk through all main pages of the viewer at three widths; it also takes the pictures of the docs.

`make pictures` writes the docs' pictures to `REKNIT_PICTURES`, and each page of the walk, whole, to `REKNIT_WALK`.
"""

import os
import re
import struct
from itertools import pairwise
from pathlib import Path

import pytest
from browser import Opened, browsing, needs_browser
from viewer_lab import BEGAN_MS, demo_inputs, filled, served

from reknit.pipeline.demo.recordings import fleet
from reknit.pipeline.viewer import overview
from reknit.pipeline.viewer.progress import Look, Progress, Seen
from reknit.topics import AGENT_TURNS, PROVIDER_EVENTS

pytestmark = needs_browser

ROOT = Path(__file__).parents[2]
LATER_MS = BEGAN_MS + 15 * 60_000
WIDTHS = (390, 820, 1200)
# Each main page, and a word that it has.
PAGES = {
    "/": "Fixes over time",
    "/sessions": "two-targets",
    "/sessions?q=licence": "licence",
    "/sessions?severity=added&sort=turns": "lost-result",
    "/sessions/lost-result": "result_synthesised",
    "/sessions/lost-result?q=tests": "1 record with these words",
    "/sessions/poison": "not_json",
    "/sessions/two-targets": "claude-cli",
    "/sessions/killed/stream": "Diagnosis",
    "/sessions/replaced-thinking/stream": "retracted",
    "/letters": "Retry 2 dead letters",
    "/letters/0/0": "Retry",
    "/letters/0/1": "A retry cannot help",
    "/compare": "Two requests of a session",
    "/compare?session=two-targets": "Fixes of only one of them",
    "/playground": "History",
    "/playground?example=result_synthesised": "Request for anthropic",
    "/explain": "Fixes that lose something",
    "/explain/result_synthesised": "Before",
    "/progress": "Inputs by partition",
    "/sessions/lost-result/requests/": "settled prefix",
}
# The pictures of the docs: a file, its page, the size of the window, and True for the dark scheme.
PICTURES = (
    ("overview", "/", (1200, 900), False),
    ("request", "/sessions/lost-result/requests/", (1200, 900), False),
    ("stream", "/sessions/replaced-thinking/stream", (1200, 900), True),
    ("playground", "/playground", (1200, 900), False),
    ("letters", "/letters", (820, 700), False),
    ("narrow", "/sessions", (390, 800), False),
)
BROKEN = '{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "ls", "input": {}}]}'
HISTORY = f'[{{"role": "user", "content": "What is here?"}},\n {BROKEN},\n {{"role": "user", "content": "Well?"}}]'

# Elements whose content is wider than they are, except those that scroll a text that has no other layout.
CLIPPED = """[...document.querySelectorAll("main *, header *")].filter((each) => {
  const style = getComputedStyle(each);
  const cuts = style.overflowX !== "visible" && each.clientWidth > 1 && each.offsetParent;
  return cuts && each.scrollWidth > each.clientWidth + 1 && !each.matches("pre, textarea, input, select");
}).map((each) => `${each.tagName}.${each.className}: ${each.innerText.slice(0, 60)}`)"""
# Numbers of tables and figures that are not, or not wholly, in the window's width.
HIDDEN = """[...document.querySelectorAll("td.number, .figures strong, td time")].filter((each) => {
  if (each.closest("details:not([open])") || !each.textContent.trim()) return false;
  const box = each.getBoundingClientRect();
  return !box.width || box.left < 0 || box.right > document.documentElement.clientWidth + 1;
}).map((each) => `${each.closest("tr, li").innerText.slice(0, 60)}: ${each.textContent}`)"""
WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


def keeping_up():
    """A progress that reports a pipeline without records that wait."""
    progress = Progress(lambda: 1000.0, lambda: float(LATER_MS))
    progress.begin()
    done = Seen(first=0, end=100, position=100)
    inputs = {(topic, partition): done for topic in (AGENT_TURNS, PROVIDER_EVENTS) for partition in (0, 1)}
    progress.note(Look(partitions=inputs, is_at_work=True, newest={AGENT_TURNS: LATER_MS - 1000}))
    return progress


@pytest.fixture
async def viewer(tmp_path, monkeypatch):
    """Yield the URL of a viewer of the demo's fleet, with its titles."""
    monkeypatch.setattr(overview, "now_ms", lambda: LATER_MS)
    more = {"titles": {one.session: one.title for one in fleet()}, "progress": keeping_up(), "allow_retry": True}
    async with served(filled(demo_inputs()), tmp_path / "index", **more) as url:
        yield url.rstrip("/")


async def go(page, viewer, path):
    """Open a page; an address that ends with a slash is that of the session's first repaired request."""
    if path.endswith("/requests/"):
        await page.go(viewer + path.removesuffix("/requests/"))
        repaired = "document.querySelector(\"a[href*='/requests/'][href*='at=']\").getAttribute('href')"
        path = await page.ask(repaired)
    assert await page.go(viewer + path) == 200
    # A chart is drawn after the page has loaded, and a live page connects.
    await page.until("!document.querySelector('table[data-chart]') || document.querySelector('.plot canvas') !== null")


def folder_of(variable):
    """Return the folder that an environment variable names, made if it is missing; None without one."""
    if variable not in os.environ:
        return None
    folder = ROOT / os.environ[variable]
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def size_of(png):
    assert png.startswith(b"\x89PNG")
    return struct.unpack(">II", png[16:24])


@pytest.mark.parametrize("width", WIDTHS)
async def test_every_page_fits_the_width_with_all_its_numbers(viewer, width):
    folder, wrong = folder_of("REKNIT_WALK"), {}
    async with browsing() as browser, browser.tab(width=width) as page:
        for path, words in PAGES.items():
            await go(page, viewer, path)
            assert words in await page.text(), path
            found = [await page.ask(WIDER), await page.ask(CLIPPED), await page.ask(HIDDEN)]
            if found != [0, [], []]:
                wrong[path] = found
            if folder is not None:
                name = re.sub(r"\W+", "-", path).strip("-") or "overview"
                (folder / f"{name}-{width}.png").write_bytes(await page.screenshot(whole=True))
        assert page.did() == Opened()
    assert wrong == {}


@pytest.mark.parametrize("width", WIDTHS)
async def test_a_list_is_a_table_where_it_fits_and_cards_where_it_does_not(viewer, width):
    async with browsing() as browser, browser.tab(width=width) as page:
        await go(page, viewer, "/sessions")
        shown = await page.ask("getComputedStyle(document.querySelector('table.cards')).display")
        titles = await page.ask("[...document.querySelectorAll('span.title')].map((each) => each.innerText)")
    assert shown == ("table" if width > 1184 else "block")
    assert {one.title for one in fleet()} >= set(titles) > {"The agent was killed in mid-call"}


async def test_the_subject_of_a_row_is_opened_by_the_keys(viewer):
    leads = {}
    async with browsing() as browser, browser.tab() as page:
        for path in ("/sessions/lost-result", "/sessions/poison", "/letters", "/explain?q=result", "/sessions"):
            await go(page, viewer, path)
            rows = await page.ask("document.querySelectorAll('[data-row]').length")
            focused = []
            for _ in range(min(rows, 12)):
                await page.press("j")
                focused.append(await page.ask("new URL(document.activeElement.href).pathname"))
            leads[path] = focused
            async with page.navigation():
                await page.press("Enter")
            assert await page.ask("location.pathname") == focused[-1]
    kinds = [re.sub(r"[0-9a-f]{32}|\d+", "N", path) for path in leads["/sessions/lost-result"]]
    assert "/sessions/lost-result/requests/N" in kinds
    assert kinds[0] == "/sessions/lost-result/records/agent.turns.vN/N/N"
    assert leads["/letters"] == ["/letters/0/1", "/letters/0/0"]
    assert "/letters/0/1" in leads["/sessions/poison"]
    assert len(set(leads["/sessions"])) == 12
    assert all(one != other for one, other in pairwise(leads["/explain?q=result"]))


async def test_a_found_record_is_highlighted_in_its_session(viewer):
    async with browsing() as browser, browser.tab() as page:
        for path, link in (("/sessions?q=licence", "a.first"), ("/sessions/lost-result?q=tests", "td.when a")):
            await go(page, viewer, path)
            words = await page.ask(f"document.querySelector('{link}').closest('tr').innerText")
            await page.follow(link)
            sought = await page.ask("document.querySelector('tr.sought').innerText")
            assert await page.ask("document.querySelector('tr:target') === document.querySelector('tr.sought')")
            assert sought.split("\t")[-1].strip()[:12] in words
        await go(page, viewer, "/sessions?q=outage")
        await page.follow("a.first")
        assert "outage" in await page.ask("document.querySelector(':target').innerText")


async def test_the_pictures_of_the_docs_can_be_taken(viewer):
    folder = folder_of("REKNIT_PICTURES")
    docs = (ROOT / "docs" / "viewer.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\(pictures/(\w+)\.png\)", docs)) == sorted(name for name, *_ in PICTURES)
    async with browsing() as browser:
        for name, path, (width, height), dark in PICTURES:
            async with browser.tab(dark=dark, width=width, height=height) as page:
                await go(page, viewer, path)
                if path == "/playground":
                    await page.type("textarea", HISTORY)
                    await page.until("document.querySelector('#outcome').innerText.includes('result_synthesised')")
                if path == "/letters":
                    await page.click("details.retry-all summary")
                if path.endswith("/stream"):
                    await page.until("document.getElementById('live-state').textContent === 'Live'")
                picture = await page.screenshot()
                assert size_of(picture) == (width, height)
                if folder is not None:
                    (folder / f"{name}.png").write_bytes(picture)
