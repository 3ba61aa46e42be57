"""Pages report that the pipeline keeps up only while a recent check of the cluster proves it."""

import html
import re

import aiohttp
import pytest
from browser import Opened, browsing, needs_browser
from build import user
from msgspec import structs
from viewer_lab import index_of, pages_of, served, session_of, viewer_of

from reknit.pipeline.config import load_config
from reknit.pipeline.viewer.guard import Guard
from reknit.pipeline.viewer.index.reading import Behind
from reknit.pipeline.viewer.pages import duration
from reknit.pipeline.viewer.progress import FRESH_SECONDS, STUCK_SECONDS, Look, Loss, Progress, Seen
from reknit.pipeline.viewer.progress_page import followed
from reknit.pipeline.viewer.server import application, serving
from reknit.topics import AGENT_TURNS, PROVIDER_EVENTS, PROVIDER_REQUESTS, SESSION_ITEMS

NOW_MS = 1_760_000_000_000
DONE = Seen(first=0, end=100, position=100)


class Clocks:
    """A progress with clocks that only tests advance."""

    def __init__(self):
        self.seconds = 1000.0
        self.progress = Progress(lambda: self.seconds, lambda: NOW_MS + (self.seconds - 1000) * 1000)
        self.progress.begin()

    def look(self, *, after=2.0, is_at_work=True, newest=None, **turns):
        """Note a check, ``after`` seconds after the last one.

        ``p1`` is partition 1 of the turns; 0 and 1 are done by default.
        """
        self.seconds += after
        found = {(AGENT_TURNS, 0): DONE, (AGENT_TURNS, 1): DONE}
        found |= {(AGENT_TURNS, int(name[1:])): seen for name, seen in turns.items()}
        self.progress.note(Look(partitions=found, is_at_work=is_at_work, newest=newest or {}))

    def says(self, after=0.0):
        self.seconds += after
        status = self.progress.status()
        return status.level, status.words


@pytest.fixture
def clocks():
    return Clocks()


def waiting(end, position=100, **more):
    return Seen(first=0, end=end, position=position, **more)


def test_before_the_first_check_nothing_is_known(clocks):
    assert clocks.says() == ("unknown", "not known yet")
    assert clocks.says(FRESH_SECONDS + 1) == ("bad", "no broker has answered for 7 s")


def test_a_progress_that_is_never_updated_says_so():
    assert Progress().status().words == "not known yet"


def test_a_pipeline_that_has_processed_everything_keeps_up(clocks):
    clocks.look()
    assert clocks.says() == ("good", "keeps up")


def test_a_short_wait_is_not_reported(clocks):
    for end in (101, 120, 150):
        clocks.look(p1=waiting(end, position=end - 1, has_records=True))
        assert clocks.says() == ("good", "keeps up")


@pytest.mark.parametrize("known_ms", [None, NOW_MS - 4000])
def test_a_long_wait_is_reported_with_count_and_duration(clocks, known_ms):
    clocks.look(p1=waiting(150, has_records=True, oldest_ms=known_ms))
    clocks.look(p1=waiting(220, position=101, has_records=True, oldest_ms=known_ms))
    clocks.look(p1=waiting(290, position=102, has_records=True, oldest_ms=known_ms))
    assert clocks.says(2.0) == ("warn", f"188 records wait, the oldest for {6 if known_ms is None else 12} s")


def test_the_wait_before_the_viewer_began_counts_too(clocks):
    clocks.look(p1=waiting(45_100, has_records=True, oldest_ms=NOW_MS - 3_600_000))
    assert clocks.says() == ("warn", "45,000 records wait, the oldest for 3,602 s")


def test_a_moving_partition_is_late_and_one_that_does_not_move_is_stuck(clocks):
    for step in range(20):
        clocks.look(p0=waiting(1000 + step, position=100 + step), p1=waiting(500, has_records=True))
        level, words = clocks.says()
        assert level == ("bad" if step * 2 >= STUCK_SECONDS else "warn" if step * 2 > 5 else "good")
    assert words == "partition 1 of agent.turns.v1 stuck for 38 s: 400 records wait"
    clocks.look(p0=waiting(1000, position=1000), p1=waiting(500, position=500))
    assert clocks.says() == ("good", "keeps up")


def test_two_stuck_partitions_are_counted(clocks):
    for _ in range(20):
        clocks.look(p0=waiting(101, has_records=True), p1=waiting(500, has_records=True))
    assert clocks.says()[1] == "partition 0 of agent.turns.v1 and 1 more stuck for 38 s: 401 records wait"


@pytest.mark.parametrize("level_of", [{}, {"has_records": True, "oldest_ms": NOW_MS}])
def test_a_group_without_members_is_no_worker(clocks, level_of):
    clocks.look(is_at_work=False)
    assert clocks.says() == ("bad", "no worker")
    clocks.look(is_at_work=False, p1=waiting(45_100, **level_of))
    assert clocks.says() == ("bad", "no worker: 45,000 records wait")


def test_a_worker_that_never_committed_has_the_whole_topic_waiting(clocks):
    clocks.look(is_at_work=False, p1=Seen(first=40, end=50, position=None))
    assert clocks.says() == ("bad", "no worker: 10 records wait")


def test_transaction_markers_do_not_count_as_waiting(clocks):
    for _ in range(30):
        clocks.look(p1=waiting(105, has_records=False))
        assert clocks.says() == ("good", "keeps up")


@pytest.mark.parametrize("after", [FRESH_SECONDS + 1, 40.0, 3600.0])
def test_no_page_reports_success_once_no_broker_answers(clocks, after):
    clocks.look()
    assert clocks.says(FRESH_SECONDS - 1) == ("good", "keeps up")
    assert clocks.says(after)[0] == "bad"
    assert clocks.says()[1].startswith("no broker has answered for ")
    clocks.look(after=0)
    assert clocks.says() == ("good", "keeps up")


def test_a_brokers_rejection_is_shown_in_its_words(clocks):
    clocks.look()
    clocks.progress.note_problem("the brokers refuse DESCRIBE on the group p.reknit")
    assert clocks.says(FRESH_SECONDS + 1) == ("unknown", "the brokers refuse DESCRIBE on the group p.reknit")


def test_missing_topics_are_reported(clocks):
    clocks.progress.note(Look(partitions={}, is_at_work=True))
    assert clocks.says() == ("bad", "the input topics are missing")


def test_the_age_of_the_newest_records(clocks):
    newest = {AGENT_TURNS: NOW_MS - 9000, PROVIDER_EVENTS: NOW_MS - 3000, PROVIDER_REQUESTS: NOW_MS - 8000}
    clocks.look(newest=newest | {SESSION_ITEMS: NOW_MS - 620_000})
    status = clocks.progress.status()
    assert (status.input_seconds, status.output_seconds) == (5.0, 10.0)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (119, "119 s"), (240, "4 min"), (7199, "120 min"), (7200, "2 h"), (400_000, "5 d")],
)
def test_durations_are_short(seconds, text):
    assert duration(seconds) == text


def test_an_index_stores_losses_and_the_age_of_its_records(tmp_path):
    index = index_of(tmp_path / "index", session_of("one", user("hello")))
    index.note_loss(AGENT_TURNS, 1, 100, 3100, NOW_MS)
    index.note_loss(AGENT_TURNS, 1, 100, 4100, NOW_MS + 5)
    index.note_loss(AGENT_TURNS, 2, 0, 7, NOW_MS - 1)
    newest = index.newest
    index.close()
    again = index_of(tmp_path / "index")
    assert again.losses(NOW_MS) == [(AGENT_TURNS, 1, 100, 4100, NOW_MS + 5)]
    assert (again.newest, set(newest) >= {AGENT_TURNS, PROVIDER_REQUESTS}) == (newest, True)
    again.close()


# On pages.


def viewer_with(index, progress, **config):
    found = load_config(env={}, overrides={"bootstrap_servers": "kafka-1:9092", "prefix": "live."} | config)
    return structs.replace(viewer_of(index=index), config=found, progress=progress)


def header_of(text):
    """Return the header's text as people read it."""
    status = text.partition('<div id="status"')[2].partition(">")[2].partition("</div>")[0]
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", status)).split())


EVERY_PAGE = (
    "/",
    "/sessions",
    "/letters",
    "/compare",
    "/playground",
    "/explain",
    "/progress",
    "/nothing",
    "/sessions/one",
)


async def test_every_header_names_cluster_and_prefix_and_the_state_of_the_pipeline(tmp_path, clocks):
    index = index_of(tmp_path / "index", session_of("one", user("hello")))
    app = application(viewer_with(index, clocks.progress))
    async with serving(app, "127.0.0.1", 0) as url, aiohttp.ClientSession() as http:

        async def headers():
            return {path: header_of(await (await http.get(url.rstrip("/") + path)).text()) for path in EVERY_PAGE}

        clocks.look(newest={AGENT_TURNS: NOW_MS - 1000, SESSION_ITEMS: NOW_MS})
        well = await headers()
        clocks.look(after=30.0, is_at_work=False, p1=waiting(45_100, has_records=True))
        clocks.progress.losses = [Loss(topic=AGENT_TURNS, partition=1, first=0, next=3000, seen_ms=NOW_MS)]
        dead = await headers()
        clocks.seconds += 40
        frozen = await headers()
    index.close()
    assert {text.partition(" as of ")[0] for text in well.values()} == {
        "kafka-1:9092 live. keeps up newest input 3 s ago, output 2 s ago"
    }
    assert {text.partition(" as of ")[0] for text in dead.values()} == {
        "kafka-1:9092 live. no worker: 45,000 records wait 3,000 records lost"
    }
    assert {text.partition(" lost")[0] for text in frozen.values()} == {
        "kafka-1:9092 live. no broker has answered for 40 s 3,000 records"
    }


async def test_without_a_login_neither_cluster_nor_prefix_is_shown(tmp_path, clocks):
    index = index_of(tmp_path / "index")
    viewer = structs.replace(viewer_with(index, clocks.progress), guard=Guard(login="a-token-that-nobody-guesses"))
    async with serving(application(viewer), "127.0.0.1", 0) as url, aiohttp.ClientSession() as http:
        async with http.get(f"{url}login") as answer:
            text = await answer.text()
        async with http.get(f"{url}progress?part=header", allow_redirects=False) as answer:
            asked = answer.status
    index.close()
    assert ("kafka-1" in text, "live." in text, asked) == (False, False, 303)


async def test_the_progress_page_shows_each_partition_and_losses(tmp_path, clocks):
    index = index_of(tmp_path / "index", session_of("one", user("hello")))
    for _ in range(20):
        clocks.look(p1=waiting(1300, has_records=True, oldest_ms=NOW_MS - 600_000))
    clocks.progress.losses = [Loss(topic=PROVIDER_EVENTS, partition=2, first=1100, next=4100, seen_ms=NOW_MS)]
    async with (
        serving(application(viewer_with(index, clocks.progress)), "127.0.0.1", 0) as url,
        aiohttp.ClientSession() as http,
    ):
        text = await (await http.get(f"{url}progress")).text()
    index.close()
    rows = [
        [" ".join(html.unescape(re.sub(r"<[^>]*>", " ", cell)).split()) for cell in re.findall(r"<td.*?</td>", row)]
        for row in re.findall(r"<tr data-row>.*?</tr>", text)
    ]
    assert rows == [
        ["agent.turns.v1", "0", "0", "done", "", "100", "100"],
        ["agent.turns.v1", "1", "1,200", "stuck for 38 s", "11 min", "100", "1,300"],
        ["provider.events.v1", "2", "1,100", "4,099", "3,000", "2025-10-09 08:53:20"],
    ]
    assert 'the group <code class="foreign">live.reknit</code> has members' in text


async def test_the_index_is_not_up_to_date_with_a_broker_that_does_not_answer(tmp_path, clocks):
    index = index_of(tmp_path / "index")
    viewer = viewer_with(index, clocks.progress)
    clocks.look()
    assert followed(viewer) == Behind(records=0, by_topic={})
    clocks.seconds += 40
    assert followed(viewer) == Behind(records=0, by_topic={}, error="no broker has answered for 40 s")
    index.close()


async def test_header_refreshes_of_open_pages_are_not_audited(tmp_path):
    lines = []
    async with pages_of(session_of("one", user("a")), tmp_path, guard=Guard(audit=lines.append)) as ask:
        await ask("/progress?part=header", part=True)
        await ask("/sessions/one")
    assert [line.path for line in lines] == ["/sessions/one"]


# In a browser.

WORDS = "document.getElementById('status-words').textContent"
# All texts of the header since then.
NOTE_WORDS = f"""window.seen = new Set();
    new MutationObserver(() => seen.add({WORDS}))
        .observe(document.querySelector('header'), {{subtree: true, childList: true, characterData: true}})"""
FOUR_ANSWERS = """new Promise((done) => {
    let left = 4;
    document.addEventListener('htmx:afterSettle', () => --left || done(true));
})"""


@needs_browser
async def test_an_open_page_follows_the_pipeline_and_its_focused_link_stays(tmp_path, clocks):
    index = index_of(tmp_path / "index", session_of("one", user("hello")))
    clocks.look()
    app = application(viewer_with(index, clocks.progress))
    async with serving(app, "127.0.0.1", 0) as url, browsing() as browser, browser.tab() as page:
        await page.go(f"{url}explain")
        await page.ask("document.getElementById('status-words').focus()")
        seen = [await page.ask(WORDS)]
        clocks.seconds += 40
        seen.append(await page.until(f"{WORDS}.startsWith('no broker') && {WORDS}"))
        focused = await page.ask("document.activeElement.id")
        clocks.look(is_at_work=False)
        seen.append(await page.until(f"{WORDS}.startsWith('no worker') && {WORDS}"))
        assert page.did() == Opened()
    index.close()
    assert seen == ["keeps up", "no broker has answered for 40 s", "no worker"]
    assert focused == "status-words"


@needs_browser
async def test_an_open_page_stays_current_while_answers_arrive(tmp_path, clocks):
    index = index_of(tmp_path / "index", session_of("one", user("hello")))
    clocks.look()
    app = application(viewer_with(index, clocks.progress))
    async with serving(app, "127.0.0.1", 0) as url, browsing() as browser, browser.tab() as page:
        await page.go(f"{url}explain")
        # By its own clock the page is an hour old; each answer makes it current again.
        await page.ask(NOTE_WORDS)
        await page.ask("(now => { Date.now = () => now() + 3600000; })(Date.now.bind(Date))")
        await page.until("seen.has('not known: no answer from the viewer')")
        await page.until(f"{WORDS} === 'keeps up'")
        await page.ask("seen.clear()")
        await page.ask(FOUR_ANSWERS)
        seen = await page.ask("[...seen]")
    index.close()
    assert seen == ["keeps up"]


@needs_browser
async def test_a_page_whose_viewer_has_ended_stops_reporting_success(tmp_path, clocks):
    index = index_of(tmp_path / "index", session_of("one", user("hello")))
    clocks.look()
    async with browsing() as browser, browser.tab() as page:
        async with serving(application(viewer_with(index, clocks.progress)), "127.0.0.1", 0) as url:
            await page.go(f"{url}explain")
            before = await page.ask(WORDS), await page.ask("document.getElementById('status-words').className")
        after = await page.until(f"{WORDS} !== 'keeps up' && {WORDS}")
        colour = await page.ask("document.getElementById('status-words').className")
    index.close()
    assert (before, after, colour) == (("keeps up", "tag good"), "not known: no answer from the viewer", "tag warn")


@needs_browser
async def test_an_error_stays_visible_while_the_header_refreshes(tmp_path):
    topics = session_of("one", user("hello"))
    async with served(topics, tmp_path / "index") as url, browsing() as browser, browser.tab() as page:
        await page.go(f"{url}explain")
        await page.type("main [name=q]", " ".join(f"w{number}" for number in range(40)))
        await page.until("document.getElementById('trouble').textContent.startsWith('400: a search takes at most')")
        await page.ask(
            "new Promise((done) => document.addEventListener('htmx:afterOnLoad', (event) =>"
            " isStatus(event) && setTimeout(() => done(true), 50)))"
        )
        assert (await page.ask("document.getElementById('trouble').hidden")) is False
