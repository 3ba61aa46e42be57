"""The viewer's pages in a browser: keyboard navigation, and all pages with scripts off."""

import aiohttp
import pytest
from browser import Opened, browsing, needs_browser
from build import said, user
from published_records import OPENED, appended
from viewer_lab import BEGAN_MS, demo_inputs, filled, served

from reknit.pipeline.viewer import overview

pytestmark = needs_browser

MARKED = "[...document.querySelectorAll('.at')].map((row) => row.querySelector('a').textContent)"
FOCUSED = "document.activeElement.getAttribute('data-key') && document.activeElement.closest('main, header').tagName"
KEYS_SHOWN = "document.getElementById('keys').open"
HOUR = 3_600_000
LONG = [message for number in range(25) for message in (user(f"question {number}"), said(f"answer {number}"))]


@pytest.fixture
async def viewer(tmp_path, monkeypatch):
    """Yield the URL of a viewer of the demo's fleet and of a session that is longer than a page, an hour later."""
    topics = filled(demo_inputs())
    topics.put_turns("long", OPENED, *appended(*LONG))
    monkeypatch.setattr(overview, "now_ms", lambda: BEGAN_MS + HOUR)
    async with served(topics, tmp_path / "index") as url:
        yield url.rstrip("/")


async def test_keys_mark_rows_and_open_them(viewer):
    async with browsing() as browser, browser.tab() as page:
        await page.go(f"{viewer}/sessions?code=retracted")
        names = await page.ask("[...document.querySelectorAll('a.session')].map((link) => link.textContent)")
        marked = [await page.ask(MARKED)]
        for key in [*"jjk", *"k" * len(names), *"j" * (len(names) + 1)]:
            await page.press(key)
            marked.append(await page.ask(MARKED))
        await page.press("k")
        async with page.navigation():
            await page.press("Enter")
        assert (await page.ask("document.title")).startswith(names[-2])
        path = await page.ask("location.pathname")
    assert len(names) > 3
    up_and_down = [0, 1, 0, *[0] * len(names), *range(1, len(names)), len(names) - 1, len(names) - 1]
    assert marked == [[], *([names[at]] for at in up_and_down)]
    assert path == f"/sessions/{names[-2]}"


@pytest.mark.parametrize(
    ("path", "where"),
    [("/", "HEADER"), ("/explain/OAI-01", "HEADER"), ("/sessions", "MAIN"), ("/sessions/long", "MAIN")],
)
async def test_a_slash_focuses_the_search_field_where_keys_are_letters(viewer, path, where):
    async with browsing() as browser, browser.tab() as page:
        await page.go(viewer + path)
        await page.press("j")
        marked = await page.ask(MARKED)
        await page.press("/")
        focused = await page.ask(FOCUSED)
        for key in "j?/":
            await page.press(key)
        typed = await page.ask("document.activeElement.value")
        left = await page.ask(MARKED), await page.ask(KEYS_SHOWN)
    assert (focused, typed, left) == (where, "j?/", (marked, False))


async def test_a_question_mark_shows_the_keys_and_disables_the_others(viewer):
    async with browsing() as browser, browser.tab() as page:
        await page.go(f"{viewer}/sessions")
        shown = [await page.ask(KEYS_SHOWN)]
        await page.press("?")
        shown.append(await page.ask(KEYS_SHOWN))
        said_there = await page.ask("document.getElementById('keys').innerText")
        for key in "j/":
            await page.press(key)
        held = await page.ask(MARKED), await page.ask(FOCUSED)
        await page.click("#keys button")
        shown.append(await page.ask(KEYS_SHOWN))
        await page.press("j")
        marked = await page.ask(MARKED)
    assert (shown, held, len(marked)) == ([False, True, False], ([], None), 1)
    assert [line for line in ("to the next, the previous row", "search", "these keys") if line not in said_there] == []


# A page, words that it shows, the link that is clicked there, and the page that it leads to.
WITHOUT_SCRIPTS = (
    ("/", ("fixes that lost content", "result_synthesised", "promoted"), "a[href*='severity=lost']", "/sessions"),
    ("/sessions", ("text-first", "Search"), "a[rel=next]", "/sessions"),
    ("/sessions?code=result_synthesised", ("lost-result",), "a[href='/sessions/lost-result']", "/sessions/lost-result"),
    ("/sessions/long", ("answer 24", "Earlier", "As of when"), "a[href$='/stream']", "/sessions/long/stream"),
    ("/sessions/retry/stream", ("As of when this page was loaded", "retracted"), "h1 a", "/sessions/retry"),
)


async def test_pages_can_be_read_and_followed_without_scripts(viewer):
    links = set()
    async with browsing() as browser, browser.tab(scripts=False) as page:

        async def read(path, words):
            text = await page.text()
            assert [each for each in words if each not in text] == [], (path, text)
            assert not await page.ask("document.documentElement.classList.contains('scripted')")
            links.update(await page.ask("[...document.links].map((link) => link.href.split('#')[0])"))

        for path, words, link, leads_to in WITHOUT_SCRIPTS:
            assert await page.go(viewer + path) == 200
            await read(path, words)
            await page.follow(link)
            assert await page.ask("location.pathname") == leads_to
        assert await page.go(f"{viewer}/sessions/long") == 200
        await page.follow(".more a")
        assert "question 0" in await page.text()

        await page.go(f"{viewer}/sessions/lost-result")
        await page.follow("a[href*='/requests/'][href*='at=']")
        assert "/requests/" in await page.ask("location.pathname")
        await read("the request", ("Came in", "Went out", "result_synthesised", "SHA-256"))
        assert page.did() == Opened()
    own = sorted(link for link in links if link.startswith(viewer))
    async with aiohttp.ClientSession() as http:
        answers = {link: (await http.get(link)).status for link in own}
    assert len(own) > 50
    assert {link: status for link, status in answers.items() if status != 200} == {}


@pytest.mark.parametrize(
    ("path", "form"), [("/", "header form"), ("/sessions", "main form"), ("/sessions/lost-result", "header form")]
)
async def test_the_search_form_works_without_scripts(viewer, path, form):
    async with browsing() as browser, browser.tab(scripts=False) as page:
        await page.go(viewer + path)
        await page.type(f"{form} [name=q]", '"question 7"')
        async with page.navigation():
            await page.press("Enter")
        assert await page.ask("new URLSearchParams(location.search).get('q')") == '"question 7"'
        names = await page.ask("[...document.querySelectorAll('a.session')].map((link) => link.textContent)")
        kept = await page.ask("document.querySelector('main [name=q]').value")
    assert (names, kept) == (["long"], '"question 7"')
