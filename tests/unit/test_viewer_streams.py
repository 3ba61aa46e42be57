"""The page of a stream over HTTP: by pages, by runs, live through lost connections, and in a real browser."""

import asyncio

import aiohttp
import pytest
from browser import ELSEWHERE, HOSTILE, Opened, browsing, needs_browser
from stream_pages import START, Rows, completed, delta, recorded
from viewer_lab import Topics, followed, listening

from reknit.pipeline.viewer import live, streams
from reknit.pipeline.viewer.addresses import session_path

NAME = "a/session <b>"


def served(tmp_path):
    return followed(Topics(), NAME, tmp_path / "index")


async def text_of(http, url, status=200):
    async with http.get(url) as answer:
        assert answer.status == status
        return await answer.text()


def attribute(page, name):
    return page.partition(f'{name}="')[2].partition('"')[0].replace("&amp;", "&")


async def test_a_page_shows_the_outcome_of_a_stream_and_names_its_runs(tmp_path):
    async with served(tmp_path) as viewer, aiohttp.ClientSession() as http:
        viewer.publish(*[value for value, _ in recorded("retry")], run="first")
        viewer.publish(START | {"item_id": "z", "origin": "promoted", "text": "All."}, completed("z"), run="second")
        whole = Rows(await text_of(http, viewer.path("stream"))).rows
        first = await text_of(http, viewer.path("stream", run="first"))
        second = Rows(await text_of(http, viewer.path("stream", run="second"))).rows
        assert [row["id"] for row in whole] == [row["id"] for row in (*Rows(first).rows, *second)]
        withdrawn = [row["words"] for row in Rows(first).rows if "retracted" in row["badges"]]
        assert withdrawn == ["This answer is long enough to be cut in th"]
        assert [("promoted" in row["badges"], row["words"]) for row in second] == [(True, "All.")]
        assert first.count('aria-current="page"') == 1
        assert "a/session &lt;b&gt;" in first


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/sessions/nobody/stream", 404),
        (session_path(NAME, "stream", before="x"), 400),
        (session_path(NAME, "live", after="0/x"), 400),
    ],
)
async def test_a_missing_session_and_an_invalid_place_are_reported_on_a_page(tmp_path, path, status):
    async with served(tmp_path) as viewer, aiohttp.ClientSession() as http:
        viewer.publish(START)
        await text_of(http, viewer.url + path, status)


async def test_a_long_stream_is_paged_and_every_item_is_complete(tmp_path):
    async with served(tmp_path) as viewer, aiohttp.ClientSession() as http:
        # Each item ends long after it began, on another page of the stream.
        ids = [f"i{number}" for number in range(300)]
        viewer.publish(*[START | {"item_id": item} for item in ids])
        viewer.publish(*[delta(item, item=item) for item in ids])
        viewer.publish(*[completed(item, incomplete=True, reason="cut") for item in ids])
        found, url, parts = {}, viewer.path("stream"), 0
        while url:
            page = await text_of(http, url)
            rows = Rows(page).rows
            assert all((row["words"] or "").startswith("i") and "incomplete" in row["badges"] for row in rows)
            found |= {row["words"]: row for row in rows}
            parts += 1
            earlier = attribute(page.partition('class="pager"')[2], "href")
            url = earlier and viewer.url + earlier
        assert (found.keys(), parts) == (set(ids), 6)


async def test_a_resumed_stream_has_every_record_once(tmp_path):
    values = [value for value, _ in recorded("second-call-cut")]
    async with served(tmp_path) as viewer, aiohttp.ClientSession() as http:
        viewer.publish(*values[:5])
        page = await text_of(http, viewer.path("stream"))
        live, had = viewer.url + attribute(page, "data-live"), attribute(page, "data-place")
        assert had == "0/4"
        seen = []
        for number in range(5, len(values), 3):
            batch = values[number : number + 3]
            viewer.publish(*batch[:1])  # while no client is connected
            async with listening(http, live, **{"Last-Event-ID": had}) as read:
                seen += await read(1)
                viewer.publish(*batch[1:])
                seen += await read(len(batch) - 1)
            had = seen[-1][0]
        assert [place for place, _ in seen] == [f"0/{number}" for number in range(5, len(values))]


async def test_a_page_of_one_run_gets_only_that_run(tmp_path):
    async with served(tmp_path) as viewer, aiohttp.ClientSession() as http:
        viewer.publish(START, run="one")
        viewer.publish(START | {"item_id": "b"}, run="two")
        async with listening(http, viewer.path("live", run="two", after="-1/-1")) as read:
            told = [(place, change and change["row"]) for place, change in await read(2)]
        assert told == [("0/0", None), ("0/1", "r0-1")]


async def test_viewers_beyond_the_limit_are_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr(streams, "MOST_VIEWINGS", 1)
    async with served(tmp_path) as viewer, aiohttp.ClientSession() as http:
        viewer.publish(START)
        async with http.get(viewer.path("live")) as first:
            await first.content.readline()
            await text_of(http, viewer.path("live"), 503)


async def test_a_browser_that_reads_nothing_is_disconnected(tmp_path, monkeypatch):
    monkeypatch.setattr(live, "_SLOW_SECONDS", 0.01)
    async with served(tmp_path) as viewer, aiohttp.ClientSession(read_bufsize=1 << 22) as http:
        viewer.publish(START)
        slow = aiohttp.ClientSession()
        async with slow, listening(slow, viewer.path("live", after="-1/-1")) as read:
            await read(1)
            # More than the buffers between the two can hold; nothing of it is read.
            for number in range(8):
                viewer.publish(START | {"item_id": f"b{number}", "text": "\u202e" * streams.TEXT})
                await asyncio.sleep(0.01)
            while viewer.app[streams.LIVE].viewings:  # noqa: ASYNC110  a viewer has no event for a disconnect
                await asyncio.sleep(0.01)
        # The page resumes at its place as soon as it reads again.
        async with listening(http, viewer.path("live", after="0/7")) as read:
            assert [place for place, _ in await read(1)] == ["0/8"]


async def test_a_page_continues_with_the_next_viewer_at_the_same_place(tmp_path):
    async with aiohttp.ClientSession() as http:
        async with served(tmp_path) as viewer:
            viewer.publish(START)
            answer = await http.get(viewer.path("live", after="-1/-1"))
            while b"data: {" not in await answer.content.readline():
                pass
        # The connection was closed without a message that would keep a browser from reconnecting.
        assert b"reload" not in await answer.content.read()
        async with served(tmp_path) as viewer:
            viewer.publish(START, delta("more"))
            async with listening(http, viewer.path("live"), **{"Last-Event-ID": "0/0"}) as read:
                assert [place for place, _ in await read(1)] == ["0/1"]


SEEN = """[...document.querySelectorAll('#stream .stream-row:not(.kind-aside)')].map((row) =>
  [row.querySelector('.kind').textContent, ...[...row.querySelectorAll('.badge')].map((b) => b.textContent.slice(2)),
   row.querySelector('.said')?.textContent ?? ''].join(' | '))"""


@needs_browser
async def test_a_blackout_is_shown_as_it_happens(tmp_path):
    values = [value for value, _ in recorded("blackout-tools")]
    async with served(tmp_path) as viewer, browsing() as browser, browser.tab() as page:
        viewer.publish(b'{"type": "session/init", "model": "m", "seq": 1000}', run="")
        assert await page.go(viewer.path("stream")) == 200
        await page.until("document.getElementById('live-state').textContent === 'Live'")
        seen = []
        for number, value in enumerate(values, start=1):
            viewer.publish(value)
            await page.until(f"document.getElementById('stream').dataset.place === '0/{number}'")
            seen.append(await page.ask(SEEN))
        # The notice comes first, then each block immediately and complete: nothing of it had streamed.
        assert [len(rows) for rows in seen] == [1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 4, 4, 5, 5, 5, 5, 6]
        assert [row.split(" | ")[:2] for row in seen[-1][1:5]] == [
            ["Thinking", "promoted"], ["Text", "promoted"], ["Call", "promoted"], ["Text", "promoted"],
        ]  # fmt: skip
        assert page.did() == Opened()


@needs_browser
async def test_a_text_grows_in_its_row_and_a_retraction_is_shown(tmp_path):
    async with served(tmp_path) as viewer, browsing() as browser, browser.tab() as page:
        viewer.publish(START, delta("Hello"))
        await page.go(viewer.path("stream"))
        await page.until("document.getElementById('live-state').textContent === 'Live'")
        await page.ask("document.querySelector('.stream-row').marker = 'the same'")
        viewer.publish(delta(", <b>w\u202e", 5), delta("orld", 12))
        await page.until("document.getElementById('stream').dataset.place === '0/3'")
        assert await page.ask("document.querySelector('.stream-row').marker") == "the same"
        assert await page.ask("document.querySelector('.said').textContent") == "Hello, <b>wU+202Eorld"
        viewer.publish({"type": "item/retracted", "item_id": "a"})
        await page.until("document.querySelector('.stream-row').classList.contains('is-retracted')")
        # A fold that the reader opened stays open when its row is redrawn.
        viewer.publish({"type": "turn/result", "is_error": False, "result": "x", "seq": 1})
        await page.until("document.querySelectorAll('.stream-row').length === 2")


@needs_browser
async def test_live_content_is_text_too(tmp_path):
    async with served(tmp_path) as viewer, browsing() as browser, browser.tab() as page:
        viewer.publish(START)
        await page.go(viewer.path("stream"))
        await page.until("document.getElementById('live-state').textContent === 'Live'")
        text, place = "", 0
        for number, poison in enumerate((*HOSTILE, ELSEWHERE)):
            item = {"item_id": f"b{number}", "item_type": poison, "text": poison}
            viewer.publish(delta(poison, len(text)), START | item)
            viewer.publish({"type": "agent/error", "message": poison, "code": poison, "seq": number}, run=poison)
            text, place = text + poison, place + 3
        await page.until(f"document.getElementById('stream').dataset.place === '0/{place}'")
        assert await page.ask("document.querySelector('.said').textContent") == text
        assert page.did() == Opened()
