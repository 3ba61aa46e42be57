"""A hostile visitor does not affect others: endless searches, numbers out of range, many live pages."""

import asyncio
import threading
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import quote, urlencode

import aiohttp
import pytest
from build import call, said, user
from multidict import MultiDict
from viewer_lab import followed, index_of, pages_of, served, session_of

from reknit.pipeline.errors import InputError
from reknit.pipeline.viewer import live, overview, pools
from reknit.pipeline.viewer.index import sessions
from reknit.pipeline.viewer.index.search import MOST_CODES, MOST_WORDS, Search, terms_of
from reknit.pipeline.viewer.pages import VIEWER
from reknit.pipeline.viewer.pools import BusyError, Pool

SESSION = "one"


def topics():
    return session_of(SESSION, user("first"), said(call("a")), user("second"))


# A search has few conditions, each once.


def queried(*pairs):
    return Search.from_query(MultiDict(pairs))


@pytest.mark.parametrize(
    ("words", "terms"),
    [
        ("a b a", ["a", "b"]),
        ("Read read READ", ["READ"]),
        ('"a b" a b "a b"', ["a b", "a", "b"]),
        ("... && a", ["a"]),
        (" ".join(["same"] * 1300), ["same"]),
        (" ".join(f"w{number}" for number in range(MOST_WORDS)), [f"w{number}" for number in range(MOST_WORDS)]),
    ],
)
def test_a_search_has_each_word_once(words, terms):
    assert terms_of(words) == terms
    assert queried(("q", words)).words == words


@pytest.mark.parametrize(
    "words",
    [
        " ".join(f"w{number}" for number in range(MOST_WORDS + 1)),
        " ".join(f"w{number}" for number in range(400)),
        '"' + " ".join(f"w{number}" for number in range(MOST_WORDS + 1)) + '"',
        "-".join(f"w{number}" for number in range(MOST_WORDS + 1)),
        " ".join(f'"a{number} b"' for number in range(MOST_WORDS // 2 + 1)),
    ],
    ids=["one too many", "pasted", "a phrase", "one word of many", "phrases"],
)
def test_too_many_words_are_rejected(words):
    with pytest.raises(InputError, match=f"at most {MOST_WORDS} words") as raised:
        queried(("q", words))
    assert (raised.value.code, raised.value.path) == ("search_too_large", "q")


def test_a_search_has_each_code_once_and_a_limited_number():
    some = [("code", f"c{number}") for number in range(MOST_CODES)]
    assert queried(*some * 100).codes == tuple(f"c{number}" for number in range(MOST_CODES))
    with pytest.raises(InputError, match=f"at most {MOST_CODES} codes; these are 700"):
        queried(*(("code", f"c{number}") for number in range(700)))


@pytest.mark.parametrize(
    "path",
    [
        "/sessions?" + urlencode([("code", f"c{number}") for number in range(700)]),
        "/sessions?" + urlencode({"q": " ".join(f"w{number}" for number in range(400))}),
        "/sessions?" + urlencode({"q": " ".join(f"w{number}" for number in range(1300)), "session": "o"}),
        "/explain?" + urlencode({"q": " ".join(f"w{number}" for number in range(400))}),
    ],
    ids=["facets", "words", "words and the beginning of a name", "explain"],
)
async def test_a_hostile_search_is_rejected_with_a_reason(tmp_path, path):
    async with pages_of(topics(), tmp_path) as ask:
        status, text = await ask(path)
    assert (status, "search_too_large" in text) == (400, True)


# A search can be stopped, and uses its own threads.

ENDLESS = "WITH RECURSIVE n (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


class Endless:
    """Replaces a search: reads endlessly, and counts the running and stopped searches."""

    def __init__(self):
        self.running = self.stopped = 0
        self._lock = threading.Lock()

    def __call__(self, reader, wanted, *rest):
        if wanted == Search():  # the list of all sessions, which is not a search
            return sessions.sessions(reader, wanted, *rest)
        with self._lock:
            self.running += 1
        try:
            return reader.rows(ENDLESS)
        finally:
            with self._lock:
                self.running -= 1
                self.stopped += 1

    async def until(self, **wanted):
        async with asyncio.timeout(60):
            while any(getattr(self, name) != value for name, value in wanted.items()):  # noqa: ASYNC110  threads set no event
                await asyncio.sleep(0.005)


@pytest.fixture
def endless(monkeypatch):
    found = Endless()
    monkeypatch.setattr(overview, "sessions", found)
    return found


async def test_a_slow_search_is_stopped_and_the_next_one_is_not(tmp_path, monkeypatch, endless):
    monkeypatch.setattr(pools, "SECONDS", 0.1)
    async with pages_of(topics(), tmp_path) as ask:
        slow = await ask("/sessions?q=first")
        monkeypatch.setattr(overview, "sessions", sessions.sessions)
        # More than there are threads, so that each is reused after it was stopped.
        after = [await ask("/sessions?q=first") for _ in range(4)]
    assert (slow[0], "too_slow" in slow[1], endless.stopped) == (503, True, 1)
    assert [(status, f">{SESSION}<" in text) for status, text in after] == [(200, True)] * 4


async def test_a_search_ends_when_its_browser_disconnects(tmp_path, monkeypatch, endless):
    monkeypatch.setattr(pools, "SECONDS", 3600.0)
    async with served(topics(), tmp_path / "index") as url:
        async with aiohttp.ClientSession() as http:
            asking = asyncio.create_task(http.get(f"{url}sessions?q=first"))
            await endless.until(running=1)
            asking.cancel()
            await asyncio.wait([asking])
        await endless.until(running=0, stopped=1)


# Pages without a search.
OTHERS = ("/", "/sessions", f"/sessions/{SESSION}", "/letters", f"/sessions/{SESSION}/stream", "/explain/result_moved")


async def test_hostile_searches_occupy_no_thread_of_another_page(tmp_path, monkeypatch, endless):
    monkeypatch.setattr(pools, "SECONDS", 3600.0)
    async with served(topics(), tmp_path / "index") as url, aiohttp.ClientSession() as http:
        asking = [asyncio.create_task(http.get(f"{url}sessions?q=w{number}")) for number in range(12)]
        await endless.until(running=pools.SEARCH_THREADS)  # the others wait for a thread
        # No search ends before it is cancelled, so a page that waited for one would wait for ever.
        async with asyncio.timeout(60):
            answers = [(await http.get(url.rstrip("/") + path)).status for path in OTHERS]
        still_running = endless.running
        for task in asking:
            task.cancel()
        await asyncio.wait(asking)
        await endless.until(running=0)
    assert (answers, still_running) == ([200] * len(OTHERS), pools.SEARCH_THREADS)


async def test_searches_beyond_the_queue_are_rejected_immediately(tmp_path, monkeypatch, endless):
    monkeypatch.setattr(pools, "SECONDS", 3600.0)
    async with served(topics(), tmp_path / "index") as url, aiohttp.ClientSession() as http:
        some = pools.SEARCH_THREADS + 14
        asking = [asyncio.create_task(http.get(f"{url}sessions?q=w{number}")) for number in range(some)]
        await endless.until(running=pools.SEARCH_THREADS)
        async with http.get(f"{url}sessions?q=one+more") as answer:
            refused = answer.status, "busy" in await answer.text()
        for task in asking:
            task.cancel()
        await asyncio.wait(asking)
    assert refused == (503, True)


async def test_a_call_that_waits_for_a_thread_is_dropped_with_its_browser():
    pool, release, ran = Pool("test", threads=1, waiting=1), threading.Event(), []
    first = asyncio.create_task(pool.run(release.wait))
    second = asyncio.create_task(pool.run(ran.append, "second"))
    await asyncio.sleep(0)
    with pytest.raises(BusyError):
        await pool.run(ran.append, "third")
    second.cancel()
    await asyncio.wait([second])
    release.set()
    await first
    await pool.run(ran.append, "fourth")
    pool.close()
    assert ran == ["fourth"]


def test_row_iteration_is_stopped_between_two_rows(tmp_path):
    index = index_of(tmp_path / "index", topics())
    stop, reader = pools.Stop(), index.reader
    pools.STOP.set(stop)
    rows = reader.each("SELECT place FROM entries")
    next(rows)
    reader.rows("SELECT 1")  # another statement in between takes nothing from the first one's rows
    stop.set()
    with pytest.raises(pools.StoppedError):
        reader.rows("SELECT 1")
    pools.STOP.set(None)
    rows.close()
    assert reader.rows("SELECT 1") == [(1,)]
    index.close()


# Numbers beyond what SQLite accepts, and beyond the bits of a place.

HUGE = (2**63, 2**64, -(2**63) - 1, 10**30, int("9" * 4000))
ROUTES = (
    "/sessions?after={0}-1",
    "/sessions?after=1-{0}",
    "/sessions?q=first&after={0}-{0}",
    "/letters?after={0}-1",
    "/sessions/one?before={0}-1",
    "/sessions/one?after=1-{0}",
    "/sessions/one/timeline?after={0}/{0}",
    "/sessions/one/timeline?after=1/{0}",
    "/sessions/one/stream?before={0}/1",
    "/sessions/one/stream?before=1/{0}",
    "/sessions/one/stream?runs={0}-0",
    "/sessions/one/live?after={0}/1",
    "/sessions/one/live?after=1/{0}",
    "/sessions/one/records/agent.turns.v1/{0}/0",
    "/sessions/one/records/agent.turns.v1/0/{0}",
)


@pytest.mark.parametrize("route", ROUTES)
async def test_an_out_of_range_number_is_the_callers_fault(tmp_path, caplog, route):
    async with pages_of(topics(), tmp_path) as ask:
        answers = [(await ask(route.format(number)))[0] for number in HUGE]
    assert answers == [400] * len(HUGE)
    assert "a page failed" not in caplog.text


@pytest.mark.parametrize("place", ["agent.turns.v1/65536/0", "agent.turns.v1/0/8796093022208", "agent.turns.v1/-1/0"])
async def test_a_place_that_overflows_into_another_topic_is_rejected(tmp_path, place):
    # The partition's next bit belongs to the number of the topic.
    async with pages_of(topics(), tmp_path) as ask:
        assert (await ask(f"/sessions/{SESSION}/records/{place}"))[0] == 400


# Hostile texts for every part of an address.
ODD = (
    "\x00",
    "\ud800",
    "\udcff",
    "é" * 200,
    "%",
    "%zz",
    "1" * 7000,
    "-1/-1",
    "0-0",
    "²-³",
    "/",
    "..",
    "\r\nA: b",
    "\x7f",
)
PLACES = (
    "/?span={0}",
    "/?by={0}",
    "/?until={0}",
    "/?part={0}",
    "/sessions?q={0}",
    "/sessions?code={0}",
    "/sessions?session={0}",
    "/sessions?since={0}",
    "/sessions?after={0}",
    "/sessions/{0}",
    "/sessions/{0}/stream",
    "/sessions/one/requests/{0}",
    "/sessions/one?view={0}",
    "/sessions/one?target={0}",
    "/sessions/one?before={0}",
    "/sessions/one/stream?run={0}",
    "/sessions/one/records/{0}/0/0",
    "/letters?code={0}",
    "/letters?session={0}",
    "/letters?kind={0}",
    "/letters?until={0}",
    "/letters/{0}/{0}",
    "/explain/{0}",
    "/explain?q={0}",
    "/compare?session={0}",
    "/playground?target={0}",
    "/playground?example={0}",
    "/progress?part={0}",
    "/login?next={0}",
    "/static/{0}",
    "/{0}",
)


@pytest.mark.parametrize("place", PLACES)
async def test_no_text_in_an_address_is_a_server_error(tmp_path, caplog, place):
    async with pages_of(topics(), tmp_path) as ask:
        answers = {}
        for text in ODD:
            answers[text] = (await ask(place.format(quote(text, safe="", errors="surrogatepass"))))[0]
    assert {text: status for text, status in answers.items() if status >= 500} == {}
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


# Live pages.


@asynccontextmanager
async def live_answer(http, viewer, kind):
    async with http.get(viewer.path(kind)) as answer:
        if answer.status == 200:
            await answer.content.readline()
        yield answer.status


async def test_the_number_of_live_pages_per_peer_is_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(live, "MOST_OF_A_PEER", 3)
    topics = session_of("a", user("hello"))
    async with followed(topics, "a", tmp_path / "index") as viewer, aiohttp.ClientSession() as http:
        peers = iter("11123")
        address = {"now": next(peers)}
        peer = viewer.app[VIEWER].guard.peer
        monkeypatch.setattr(
            type(viewer.app[VIEWER].guard), "peer", lambda _self, request: replaced(peer(request), address["now"])
        )
        async with AsyncExitStack() as stack:
            first = [
                await stack.enter_async_context(live_answer(http, viewer, kind))
                for kind in ("live", "timeline", "live")
            ]
            refused = await stack.enter_async_context(live_answer(http, viewer, "timeline"))
            address["now"] = "2"
            other = await stack.enter_async_context(live_answer(http, viewer, "timeline"))
        address["now"] = "1"
        async with asyncio.timeout(60):
            while viewer.app[live.LIVE_PAGES]:  # noqa: ASYNC110  a viewer has no event for it
                await asyncio.sleep(0.01)
        async with live_answer(http, viewer, "live") as again:
            pass
    assert (first, refused, other, again) == ([200] * 3, 503, 200, 200)


def replaced(peer, address):
    return type(peer)(address, peer.scheme, peer.host, peer.user)


async def test_by_default_one_peer_has_a_tenth_of_all_live_pages():
    assert live.MOST_OF_A_PEER * 10 <= live.MOST_VIEWINGS


def test_pages_wait_for_no_thread_that_a_search_may_occupy():
    # All users of `asyncio.to_thread` share one set of threads. The follower and the watch use it; pages do not.
    folder = Path(overview.__file__).parent
    modules = {*folder.glob("*.py"), *folder.glob("streams/*.py")} - {folder / "server.py", folder / "watch.py"}
    assert [path.name for path in modules if "to_thread(" in path.read_text("utf-8")] == []
    assert len(modules) > 10
