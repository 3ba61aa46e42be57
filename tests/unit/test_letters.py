"""Dead letters have one definition: the viewer, the report and the dashboards count the same."""

import html
import re

import pytest
from build import user
from published_records import OPENED, appended
from viewer_lab import Topics, index_of, pages_of

from reknit.pipeline.letters import LETTER_KINDS, LETTER_MATCHERS, letter_kind
from reknit.pipeline.metrics import DEAD_LETTER_CODES, Metrics
from reknit.pipeline.report import Tally
from reknit.pipeline.viewer import overview
from reknit.pipeline.viewer.index import activity, sessions, timeline
from reknit.topics import AGENT_TURNS, DEAD_LETTERS, PROVIDER_REQUESTS
from reknit.topics.headers import ERROR_LETTER

DAY_MS = 86_400_000
MISSED = '{"error": {"type": "invalid_request_error", "message": "the moon is in the wrong phase for tools"}}'


class Counted(Topics):
    """Topics whose stages count as a worker's do."""

    def __init__(self):
        super().__init__()
        self.metrics = Metrics(targets=["anthropic"], pipeline="p.")
        for stage in self._stages.values():
            self._count(stage)

    def _count(self, stage):
        process = stage.process

        def counting(records):
            result = process(records)
            self.metrics.on_commit(stage.topic, 0, result, len(records))
            return result

        stage.process = counting

    def put_letters(self, session):
        """Publish two unprocessable records, one request that is rejected, and one that its provider refused."""
        self.put(AGENT_TURNS, session, b"no json")
        self.put(AGENT_TURNS, session, {"type": "history.rewound", "to": 99})
        self.put_turns(f"{session}/rejected", {"type": "session.opened", "model": "m"}, *appended(user("no limit")))
        self.put_turns(f"{session}/refused", OPENED, *appended(user("hello")))
        request_id = dict(self.logs[PROVIDER_REQUESTS, 0][-1].headers)["request-id"].decode()
        answer = {"type": "provider.answered", "request_id": request_id, "status": 400, "body": MISSED}
        self.put_turns(f"{session}/refused", answer)


def selected(metrics, matcher=""):
    """Return the sum of the metric over the codes that a PromQL matcher selects."""
    total = 0
    for family in metrics.registry.collect():
        for sample in family.samples:
            if sample.name == "reknit_dead_letters_total" and matches(matcher, sample.labels["code"]):
                total += sample.value
    return int(total)


def matches(matcher, code):
    if not matcher:
        return True
    operator, value = re.fullmatch(r'code(=~|!~|=)"(.*)"', matcher).groups()
    return (re.fullmatch(value, code) is not None) == (operator != "!~")


@pytest.mark.parametrize("code", DEAD_LETTER_CODES)
def test_each_code_has_the_same_kind_here_and_in_promql(code):
    kinds = [kind for kind, matcher in LETTER_MATCHERS.items() if matches(matcher, code)]
    assert kinds == [letter_kind(code)]


def test_the_kinds_are_named_once():
    assert set(LETTER_KINDS) == set(LETTER_MATCHERS) == {letter_kind(code) for code in DEAD_LETTER_CODES}


COUNTS = {"failed": 2, "rejected": 1, "refused": 1}


@pytest.fixture
def topics():
    made = Counted()
    made.put_letters("s")
    note = ((ERROR_LETTER, b"0/0"), *made.logs[DEAD_LETTERS, 0][0].headers)
    made._append(DEAD_LETTERS, b"s", None, note)  # a note about a dead letter does not count
    return made


def test_the_viewer_the_report_and_the_metrics_count_the_same(topics, tmp_path):
    index = index_of(tmp_path / "index", topics)
    reader, now = index.reader, topics.now_ms
    found = overview.summed(activity.overview(reader, now - DAY_MS, now + 1)).figures
    figures = {figure.name: figure.count for figure in found}
    shown = {kind: figures[words] for kind, words in LETTER_KINDS.items()}
    lists = {kind: len(timeline.letters(reader, timeline.LetterFilter(kind=kind)).rows) for kind in LETTER_KINDS}
    counts = {
        kind: sum(group.letters for group in timeline.letter_groups(reader, timeline.LetterFilter(kind=kind), 100))
        for kind in LETTER_KINDS
    }
    rows = [sessions.session(reader, name) for name in ("s", "s/rejected", "s/refused")]
    tally = Tally()
    for record in topics.logs[DEAD_LETTERS, 0]:
        tally.count_letter(record.key, dict(record.headers), "a day")
    told = tally.report().dead_letters
    metrics = {kind: selected(topics.metrics, matcher) for kind, matcher in LETTER_MATCHERS.items()}
    index.close()
    assert [shown, lists, counts, metrics] == [COUNTS] * 4
    assert {kind: getattr(told, kind) for kind in LETTER_KINDS} == COUNTS
    assert [figures["dead letters"], told.all, selected(topics.metrics)] == [4, 4, 4]
    assert [(row.letters, row.rejections) for row in rows] == [(2, 0), (1, 1), (1, 0)]


async def test_each_number_of_the_overview_links_to_as_many_dead_letters(topics, tmp_path, monkeypatch):
    topics.now_ms += 3 * DAY_MS
    topics.put_letters("later")
    topics.put_letters("later still")
    monkeypatch.setattr(overview, "now_ms", lambda: topics.now_ms + 1000)
    shown = {}
    async with pages_of(topics, tmp_path) as ask:
        for span in ("24h", "7d"):
            _, text = await ask(f"/?span={span}")
            numbers = re.findall(r'<a href="(/letters[^"]*)"[^>]*><strong>([\d,]+)</strong><span>([^<]*)</span>', text)
            for href, count, words in numbers:
                _, letters = await ask(html.unescape(href))
                counted = re.search(r'id="count">(\d+) dead letter', letters)[1]
                shown[span, words] = int(count), int(counted), letters.count("<tr data-row>")
    words = ("dead letters", *LETTER_KINDS.values())
    numbers = {"24h": (8, 4, 2, 2), "7d": (12, 6, 3, 3)}
    assert shown == {
        (span, each): (number,) * 3
        for span, found in numbers.items()
        for each, number in zip(words, found, strict=True)
    }


@pytest.mark.parametrize(
    ("query", "sessions"),
    [
        ("handled=1", ["later/refused", "later/rejected", "later", "later", "s/refused", "s/rejected", "s", "s"]),
        ("", ["later/refused", "later/rejected", "later", "later", "s/refused", "s/rejected", "s"]),
        ("kind=failed&handled=1", ["later", "later", "s", "s"]),
        ("kind=rejected", ["later/rejected", "s/rejected"]),
        ("kind=refused&since=2025-10-11", ["later/refused"]),
        ("until=2025-10-11&handled=1", ["s/refused", "s/rejected", "s", "s"]),
        ("session=s&code=not_json&handled=1", ["s"]),
        ("session=later&kind=rejected", []),
    ],
)
async def test_dead_letters_are_selected_by_kind_and_time(topics, tmp_path, query, sessions):
    topics.now_ms += 3 * DAY_MS
    topics.put_letters("later")
    async with pages_of(topics, tmp_path) as ask:
        status, text = await ask(f"/letters?{query}")
        wrong = [(await ask(f"/letters?{each}"))[0] for each in ("kind=nonsense", "since=soon")]
    found = [html.unescape(name) for name in re.findall(r'<a class="session foreign" href="[^"]*">(.*?)</a>', text)]
    assert (status, found, wrong) == (200, sessions, [404, 400])
