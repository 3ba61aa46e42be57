"""The pages of dead letters: their list, one of them, and retries of one and of a filtered set."""

import html
import re
from urllib.parse import urljoin

import aiohttp
import pytest
from browser import HOSTILE
from build import user
from published_records import OPENED, appended
from viewer_lab import pages_of, session_of

from reknit.pipeline.cli.dead_letters import Left
from reknit.pipeline.viewer import letters
from reknit.topics import AGENT_TURNS

TORN = b'{"type": "turn.appended", "message": {"role": "assistant", "content": "Good mor'
WRONG = {"type": "turn.appended", "message": {"role": "nobody", "content": "Hello?"}}
TOKEN = re.compile(r'name="X-Reknit-Token" content="([^"]*)"')


def torn():
    topics = session_of("s1", user("Hi."))
    topics.put(AGENT_TURNS, "s1", TORN)
    return topics


def several():
    """Dead letters of two sessions: two that a retry may help, and one that is not JSON."""
    topics = torn()
    topics.put_turns("s2", OPENED, *appended(user("Hi.")), WRONG)
    topics.put_turns("s1", WRONG)
    return topics


class Log:
    """Stands for the cluster: each letter that is retried, and those that are left with a reason."""

    def __init__(self, monkeypatch, **left):
        self.asked = []
        self._left = {place.replace("_", "/").removeprefix("at/"): why for place, why in left.items()}
        monkeypatch.setattr(letters, "act_on_letters", self._act)

    async def _act(self, _config, wanted, done):
        self.asked.append((sorted(wanted.places), done))
        return [(Place(place), self._left.get(place)) for place in sorted(wanted.places)]


class Place:
    def __init__(self, place):
        self.place = place


class Tab:
    """A browser that follows redirects, with the form of the page that it has."""

    def __init__(self, http, url):
        self._http, self._url = http, url
        self.text = self.path = ""
        self.history = []

    async def go(self, path):
        async with self._http.get(urljoin(self._url, path)) as answer:
            self.text, self.path = await answer.text(), str(answer.url.relative())
            return answer.status

    async def post(self, path, **fields):
        data = dict(re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', self.text)) | fields
        data = {name: html.unescape(value) for name, value in data.items()}
        async with self._http.post(urljoin(self._url, path), data=data) as answer:
            self.text, self.path = await answer.text(), str(answer.url.relative())
            self.history = [each.status for each in answer.history]
            return answer.status


async def test_a_dead_letter_page_shows_its_reason_and_content(tmp_path):
    topics = torn()
    topics.put(AGENT_TURNS, "s1", b"\xff\x00bytes", headers=[("producer", b"agent/1")])
    async with pages_of(topics, tmp_path) as ask:
        _, listed = await ask("/letters?session=s1")
        assert re.findall(r'href="(/letters/[\d/]+)"', listed) == ["/letters/0/1", "/letters/0/0"]
        _, none = await ask("/letters?code=rejected")
        assert "No dead letter fits." in none
        _, letter = await ask("/letters/0/0")
        assert "not JSON" in letter
        assert html.escape(TORN.decode()).replace("&quot;", "&#34;") in letter
        _, binary = await ask("/letters/0/1")
        assert "00000000  ff 00 62 79 74 65 73" in binary
        assert "agent/1" in binary
        assert (await ask("/letters/0/7"))[0] == 404
        assert (await ask("/letters/0/x"))[0] == 404
        token = re.search(r'name="X-Reknit-Token" content="([^"]*)"', letter)[1]
        status, refused = await ask("/letters/0/0/retry", post={"token": token})
        assert (status, "this viewer only reads" in refused) == (400, True)
        assert '<form method="post"' not in letter


@pytest.fixture
async def tab(tmp_path):
    async with pages_of(several(), tmp_path, allow_retry=True) as ask, aiohttp.ClientSession() as http:
        yield Tab(http, ask.url)


async def test_a_retry_redirects_to_its_result_which_a_reload_does_not_repeat(tab, monkeypatch):
    log = Log(monkeypatch)
    await tab.go("/letters/0/1")
    assert await tab.post("/letters/0/1/retry") == 200
    assert (tab.history, "written to its session&#39;s log again" in tab.text.replace("'", "&#39;")) == ([303], True)
    assert re.fullmatch(r"/letters/0/1\?result=[\w-]{20,}", tab.path)
    await tab.go(tab.path)
    assert "written to its session" in tab.text
    assert log.asked == [(["0/1"], "retried")]
    await tab.go("/letters/0/1?result=another")
    assert "written to its session" not in tab.text.partition("<h2>Value")[0].partition("<form")[0]


async def test_a_retry_requires_the_token_and_an_existing_letter(tab, monkeypatch):
    log = Log(monkeypatch)
    await tab.go("/letters/0/1")
    assert await tab.post("/letters/0/9/retry") == 404
    await tab.go("/letters/0/1")
    assert await tab.post("/letters/0/1/retry", token="") == 403
    assert await tab.go("/letters/0/1/retry") == 405
    assert log.asked == []


async def test_a_letter_that_a_retry_cannot_help_has_no_button(tab):
    await tab.go("/letters/0/0")
    assert "A retry cannot help: it is no JSON object." in tab.text
    assert "<code>reknit dead-letters retry 0/0 --record FILE</code> writes another record in its place" in tab.text
    assert "<button disabled>Retry</button>" in tab.text
    assert 'action="/letters/0/0/retry"' not in tab.text


async def test_a_retry_that_was_left_says_why(tab, monkeypatch):
    Log(monkeypatch, at_0_1=Left("its session follows an earlier letter; restore its history first"))
    await tab.go("/letters/0/1")
    await tab.post("/letters/0/1/retry")
    assert "It was not retried: its session follows an earlier letter; restore its history first." in tab.text


async def test_letters_are_grouped_by_code_and_by_session(tab):
    await tab.go("/letters")
    groups = dict(re.findall(r'<li><a href="/letters\?(\w+=\w+)">.*?<strong>(\d+)</strong>', tab.text))
    assert groups == {"code=unknown_role": "2", "code=not_json": "1", "session=s1": "2", "session=s2": "1"}
    await tab.go("/letters?session=s1&code=unknown_role")
    assert re.findall(r'href="(/letters/[\d/]+)"', tab.text) == ["/letters/0/2"]


@pytest.mark.parametrize(
    ("query", "places"),
    [
        ("", ["0/0", "0/1", "0/2"]),
        ("?session=s1", ["0/0", "0/2"]),
        ("?code=unknown_role", ["0/1", "0/2"]),
        ("?kind=failed&session=s2", ["0/1"]),
        ("?until=2025-10-09T08:53:24Z", ["0/0"]),
    ],
)
async def test_the_filtered_letters_are_retried_with_one_confirmed_action(tab, monkeypatch, query, places):
    log = Log(monkeypatch, at_0_0=Left("it is no JSON object", "what is meant"))
    await tab.go(f"/letters{query}")
    assert await tab.post("/letters/retry") == 400
    assert "check the box" in tab.text
    await tab.go(f"/letters{query}")
    assert await tab.post("/letters/retry", confirmed="1") == 200
    assert log.asked == [(places, "retried")]
    assert tab.history == [303]
    retried = len(places) - ("0/0" in places)
    assert re.search(rf"<p>{retried} of {len(places)} dead letters? (was|were) written", tab.text)
    skipped = re.findall(r"<li>(\d+) skipped: ([\w ]+)", tab.text)
    assert skipped == ([("1", "it is no JSON object")] if "0/0" in places else [])
    await tab.go(tab.path)
    assert len(log.asked) == 1


async def test_a_retry_is_bounded_and_reports_what_is_left_over(tab, monkeypatch):
    log = Log(monkeypatch)
    monkeypatch.setattr(letters, "MOST_RETRIED", 2)
    await tab.go("/letters")
    assert "Retry the oldest 2 dead letters of this list" in tab.text
    await tab.post("/letters/retry", confirmed="1")
    assert log.asked == [(["0/0", "0/1"], "retried")]
    assert "1 more dead letter of this selection remain" in tab.text


async def test_letters_that_arrived_after_the_page_are_not_retried(tab, monkeypatch):
    log = Log(monkeypatch)
    await tab.go("/letters?session=s2")
    shown = tab.text
    await tab.go("/letters")
    newest = re.search(r'name="until_ms" value="(\d+)"', shown)[1]
    await tab.post("/letters/retry", confirmed="1", until_ms=newest)
    assert log.asked == [(["0/0", "0/1"], "retried")]


async def test_letters_that_the_topic_no_longer_has_are_reported(tab, monkeypatch):
    async def act(_config, wanted, _done):
        assert wanted.may_be_gone
        return [(Place("0/1"), None)]

    monkeypatch.setattr(letters, "act_on_letters", act)
    await tab.go("/letters?code=unknown_role")
    await tab.post("/letters/retry", confirmed="1")
    assert "1 of 2 dead letters was written" in tab.text
    assert "1 skipped: its topic does not have it any more" in tab.text


async def test_a_set_that_no_retry_can_help_cannot_be_retried(tab):
    await tab.go("/letters?code=not_json")
    assert "A retry cannot help any of them:" in tab.text
    assert '<button class="main" disabled>Retry</button>' in tab.text
    await tab.go("/letters")
    assert "A retry cannot help 1 of them:" in tab.text
    assert '<button class="main">Retry</button>' in tab.text


@pytest.mark.parametrize("field", [{"since_ms": "x"}, {"until_ms": "9" * 40}, {"kind": "other"}])
async def test_a_malformed_selection_is_the_senders_fault(tab, monkeypatch, field):
    log = Log(monkeypatch)
    await tab.go("/letters")
    assert await tab.post("/letters/retry", confirmed="1", **field) in {400, 404}
    assert log.asked == []


async def test_a_viewer_that_only_reads_retries_nothing(tmp_path, monkeypatch):
    log = Log(monkeypatch)
    async with pages_of(several(), tmp_path) as ask:
        _, text = await ask("/letters")
        assert "retry-all" not in text
        form = {"token": TOKEN.search(text)[1], "confirmed": "1", "since_ms": "0", "until_ms": "1"}
        status, refused = await ask("/letters/retry", post=form)
    assert (status, "this viewer only reads" in refused, log.asked) == (400, True, [])


@pytest.mark.parametrize("words", HOSTILE)
async def test_session_names_in_groups_are_text(tmp_path, words):
    topics = several()
    topics.put_turns(words, WRONG)
    async with pages_of(topics, tmp_path, allow_retry=True) as ask:
        _, text = await ask("/letters")
    assert words not in text
