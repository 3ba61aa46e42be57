"""A session's live timeline: each entry once, for every viewer and through lost connections."""

import re

import aiohttp
import pytest
from browser import HOSTILE, Opened, browsing, needs_browser
from build import called, rounds, said, user
from published_records import appended
from viewer_lab import followed, listening, session_of

from reknit.pipeline.viewer import sessions

NAME = "a/session <b>"
MORE = [*appended(called("a"), user("never mind")), {"type": "session.closed"}]


def served(tmp_path, *messages):
    return followed(session_of(NAME, *messages), NAME, tmp_path / "index")


async def page_of(http, url):
    """Return the ids of a page's rows, and the place that it ends with."""
    async with http.get(url) as answer:
        page = await answer.text()
    return re.findall(r'<tr [^>]*id="(e\d+)"', page), re.search(r'data-place="([^"]*)"', page)[1]


def in_order(events):
    """Return the rows of events, by time."""
    keys = {tuple(map(int, change["at"].split("/"))): change["row"] for _, change in events}
    return [keys[key] for key in sorted(keys)]


@pytest.mark.parametrize(
    ("view", "target", "count"),
    [("", "", 8), ("turns", "", 5), ("requests", "", 2), ("fixes", "", 1), ("refused", "", 0), ("", "gemini", 6)],
)
async def test_an_open_page_gets_the_rows_of_a_page_loaded_later(tmp_path, view, target, count):
    async with served(tmp_path, user("first")) as viewer, aiohttp.ClientSession() as http:
        _, place = await page_of(http, viewer.path(view=view, target=target))
        async with listening(http, viewer.path("timeline", view=view, target=target, after=place)) as read:
            viewer.put(*MORE)
            rows, _ = await page_of(http, viewer.path(view=view, target=target))
            not_had = [row for row in rows if row != f"e{place.split('/')[1]}"]
            events = await read(len(not_had))
    assert (len(rows), in_order(events)) == (count, not_had)


async def test_a_live_row_equals_the_pages_row(tmp_path):
    async with served(tmp_path, user("first <i>")) as viewer, aiohttp.ClientSession() as http:
        async with listening(http, viewer.path("timeline", after="-1/-1")) as read:
            found = [change["html"] for _, change in await read(3)]
        async with http.get(viewer.path()) as answer:
            page = await answer.text()
    assert [html for html in found if html not in page] == []


async def test_after_a_lost_connection_every_entry_arrives(tmp_path):
    async with served(tmp_path, *rounds(3)) as viewer, aiohttp.ClientSession() as http:
        had, place = await page_of(http, viewer.path())
        for number in range(4):
            viewer.put(*appended(user(f"while nobody is connected {number}")))
            viewer.topics.now_ms -= 3500  # late records, from before the page's last entry
            viewer.put(*appended(said("late")))
            rows, _ = await page_of(http, viewer.path())
            async with listening(http, viewer.path("timeline"), **{"Last-Event-ID": place}) as read:
                while len(had) < len(rows):
                    ((place, change),) = await read(1)
                    had += [change["row"]] if change["row"] not in had else []
        assert sorted(had) == sorted(rows)


@pytest.mark.parametrize(
    ("limit", "records", "words"),
    [
        (1000, [{"type": "session.forgotten"}], "The session was forgotten."),
        (3, MORE, "Much came at once: reload the page."),
        (0, [], "Much has come since: reload the page."),
    ],
)
async def test_a_page_that_cannot_continue_is_told_to_reload(tmp_path, monkeypatch, limit, records, words):
    monkeypatch.setattr(sessions, "AT_ONCE", limit)
    async with served(tmp_path, user("first")) as viewer, aiohttp.ClientSession() as http:
        _, place = await page_of(http, viewer.path())
        after = place if limit else "-1/-1"
        async with http.get(viewer.path("timeline", after=after)) as answer:
            await answer.content.readline()
            viewer.put(*records)
            assert (await answer.text()).endswith(f"event: reload\ndata: {words}\n\n")


@pytest.mark.parametrize(
    ("query", "most", "status"),
    [({"view": "nonsense"}, 200, 404), ({"after": "nonsense"}, 200, 400), ({}, 0, 503)],
)
async def test_an_invalid_view_is_rejected(tmp_path, monkeypatch, query, most, status):
    monkeypatch.setattr(sessions, "MOST_VIEWINGS", most)
    async with served(tmp_path) as viewer, aiohttp.ClientSession() as http:
        async with http.get(viewer.path("timeline", **query)) as answer:
            assert answer.status == status
        async with http.get(viewer.path("timeline").replace("session", "session-of-nobody")) as answer:
            assert answer.status in {404, status}


LAST = "document.querySelector('#timeline tr:last-child td:last-child').textContent.trim()"
NEWS = "(news => news.hidden ? '' : news.textContent)(document.getElementById('news'))"
LIVE = "document.getElementById('live-state').textContent === 'Live'"


@needs_browser
async def test_new_entries_appear_at_the_end_and_the_counters_follow(tmp_path):
    async with served(tmp_path) as viewer, browsing() as browser, browser.tab() as page:
        await page.go(viewer.path(view="fixes"))
        await page.until(LIVE)
        empty = await page.ask("document.querySelector('table.timeline').getClientRects().length")
        viewer.put(*appended(user("hello")), *MORE)
        await page.until("document.querySelectorAll('#timeline tr').length === 1")
        await page.until("document.querySelector('#figures strong').textContent === '3'")
        shown = await page.ask("document.getElementById('nothing-yet') || document.querySelector('td code').innerText")
        assert (empty, shown, await page.ask(NEWS)) == (0, "result_synthesised", "")
        viewer.put(*appended(*[user(text) for text in HOSTILE]))
        await page.go(viewer.path())
        await page.until(LIVE)
        viewer.put(*appended(*[user(text) for text in HOSTILE]))
        await page.until("document.querySelectorAll('#timeline tr.fresh').length >= 10")
        assert page.did() == Opened()


@needs_browser
async def test_a_scrolled_page_stays_in_place_and_shows_the_number_of_new_entries(tmp_path):
    async with served(tmp_path, *rounds(12)) as viewer, browsing() as browser, browser.tab(height=500) as page:
        await page.go(viewer.path(view="turns"))
        await page.until(LIVE)
        viewer.put(*appended(user("one"), said("two"), user("three")))
        await page.until(f"{NEWS} === '3 new'")
        assert (await page.ask("scrollY"), await page.ask(LAST)) == (0, "three")
        assert await page.violations() == []
        await page.click("#news")
        await page.ask("scrollTo(0, document.documentElement.scrollHeight)")
        await page.until(f"{NEWS} === ''")
        viewer.put(*appended(said("four")))
        # At its end a page follows new entries.
        await page.until(f"{LAST} === 'four' && innerHeight + scrollY >= document.documentElement.scrollHeight - 1")
        assert await page.ask(NEWS) == ""


@needs_browser
async def test_an_earlier_page_keeps_its_place_until_the_pages_in_between_are_loaded(tmp_path):
    async with served(tmp_path, *rounds(15)) as viewer, browsing() as browser, browser.tab(height=500) as page:
        await page.go(viewer.path(view="turns", after="0-0"))
        await page.until(LIVE)
        before = await page.ask(LAST)
        viewer.put(*appended(user("one"), said("two")))
        await page.until(f"{NEWS} === '2 new'")
        assert await page.ask(LAST) == before == "Later"
        await page.click("#timeline tr:last-child a")
        await page.until(f"{LAST} === 'two'")
        viewer.put(*appended(user("three")))
        await page.until(f"{LAST} === 'three'")
        names = await page.ask("[...document.querySelectorAll('#timeline [data-row]')].map(row => row.id)")
        assert len(names) == len(set(names)) == 1 + 60 + 3
        await page.go(viewer.path(view="turns", after="0-0"))
        await page.until(LIVE)
        viewer.put(*appended(said("four")))
        await page.until(f"{NEWS} === '1 new'")
        await page.follow("#news")
        assert "after" not in await page.ask("location.search")
        assert await page.ask(LAST) == "four"
