"""The pages of a session, of its requests and of dead letters, as a browser gets them."""

import html
import json
import re
from collections import Counter

import pytest
from browser import HOSTILE
from build import called, result, rounds, said, user
from click.testing import CliRunner
from published_records import OPENED, appended
from viewer_lab import HISTORIES, Topics, pages_of, session_of

from reknit.pipeline.cli.offline import test_command as reknit_test
from reknit.pipeline.stages.base import Record
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.viewer import requests as viewed
from reknit.pipeline.viewer.addresses import session_path
from reknit.topics import AGENT_TURNS, DEAD_LETTERS, HISTORY_FIXES, PROVIDER_EVENTS, PROVIDER_REQUESTS, SESSION_ITEMS

BROKEN = (user("Run."), called("a"), user("Wait.", result("a")), said("Yes."), user("Go.", result("x")))
TOOLS = [{"name": "ls", "input_schema": {"type": "object"}}]
TORN = b'{"type": "turn.appended", "message": {"role": "assistant", "content": "Good mor'


def of_fleet(*targets):
    """The demo's histories; those that name no targets are for these."""
    topics = Topics(Defaults(targets=targets))
    for session, told in HISTORIES.items():
        for feed in told["feed"]:
            # As json.dumps writes them, with blanks, which some targets keep.
            records = [json.dumps(record).encode() for record in feed.get("records", ())]
            topics.put_turns(session, *records, *([feed["text"].encode()] if "text" in feed else ()))
    return topics


def torn(**options):
    topics = session_of("s1", user("Hi."), **options)
    topics.put(AGENT_TURNS, "s1", TORN)
    return topics


def requests_of(topics):
    return [(each.key.decode(), {name: value.decode() for name, value in each.headers}) for each in requests(topics)]


def requests(topics):
    return topics.logs[PROVIDER_REQUESTS, 0]


def fixes_on(page):
    """Count the fixes shown at blocks, by code."""
    marks = re.findall(r'<span class="tag (?:lossy|lossless|observed)">[\w ]+</span> <a href="/explain/(\w+)">', page)
    return Counter(marks)


@pytest.mark.parametrize("targets", [("anthropic", "openai-chat", "gemini"), ("claude-cli", "codex-cli", "cascade")])
async def test_every_request_of_the_demo_is_shown_side_by_side_with_its_fixes(targets, tmp_path):
    topics = of_fleet(*targets)
    async with pages_of(topics, tmp_path) as ask:
        for name in {name for name, _ in requests_of(topics)}:
            status, page = await ask(session_path(name))
            assert status == 200, page
        for name, headers in requests_of(topics):
            status, page = await ask(session_path(name, "requests", headers["request-id"]))
            assert status == 200, page
            assert 'role="note"' not in page
            assert fixes_on(page).total() == int(headers["fixes"]), headers
            assert headers["body-sha256"] in page


async def test_a_session_with_any_name_has_its_pages(tmp_path):
    names = [
        "a/b",
        "a//b",
        "/",
        ".",
        "..",
        "~x",
        "a%2Fb",
        "a% b",
        "{{ 7 }} {% x %}",
        "</pre>",
        "a?b#c",
        "a+b",
        "é\u202e",
        "\0",
    ]
    topics = Topics()
    for name in names:
        topics.put_turns(name, OPENED, *appended(user("hi")))
    async with pages_of(topics, tmp_path) as ask:
        addresses = [session_path(name, *more) for name in names for more in ((), ("export",), ("stream",))]
        assert [address for address in addresses if (await ask(address))[0] != 200] == []


async def test_a_request_can_be_exported_as_a_passing_case(tmp_path):
    topics = of_fleet("anthropic", "openai-chat", "codex-cli")
    last = {(name, headers["target"]): headers["request-id"] for name, headers in requests_of(topics)}
    async with pages_of(topics, tmp_path) as ask:
        cases = [(await ask(session_path(name, "requests", id_, "case")))[1] for (name, _), id_ in last.items()]
    assert all("expect" in json.loads(case) for case in cases)
    ran = CliRunner().invoke(reknit_test, input="".join(cases))
    assert ran.stderr.splitlines()[-1] == f"{len(cases)} passed, 0 failed, 0 cannot be used"


async def test_a_page_shows_all_facts_about_a_request(tmp_path):
    topics = session_of("s1", *BROKEN, targets=["anthropic", "openai-chat"], tools=TOOLS)
    (_, first), *_, (_, headers), (_, other) = requests_of(topics)
    async with pages_of(topics, tmp_path) as ask:
        _, page = await ask(session_path("s1", "requests", headers["request-id"]))
        elsewhere = re.findall(r'class="elsewhere">[^<]*<a href="([^"]*)#at"', page)
        sent_to = [re.search(r"\?(\w+)=", way)[1] for way in elsewhere]
        for way in elsewhere:  # both lead to the place where the result is shown
            sought = (await ask(html.unescape(way)))[1].partition('id="at"')[2].partition("</tr>")[0]
            assert '<pre class="foreign" title="messages.2.content.' in sought
    text = " ".join(html.unescape(re.sub("<[^>]+>", " ", page)).split())
    for said_of_it in (
        f"Made for {headers['cause']} turn at",
        f"SHA-256 {headers['body-sha256']}",
        "Model claude-sonnet-4-5",
        "content lost result_orphan new a result that answers no call was left out",
        "nothing lost result_moved a tool result was moved back to directly after its call",
        "by the rules of anthropic, which have nothing against it",
    ):
        assert said_of_it in text
    assert sent_to == ["at", "sent"]
    assert session_path("s1", "requests", other["request-id"]) in page  # the switch between targets
    assert f"a={first['request-id']}" not in page
    share = 100 * int(headers["prefix-bytes"]) / len(requests(topics)[-2].value)
    assert f"{share:.1f} %" in text


@pytest.mark.parametrize("trace", ["0af7651916cd43dd8448eb211c80319c", "", "<b>"])
async def test_a_page_shows_the_trace_of_a_request(trace, tmp_path):
    topics = session_of("s1")
    parent = [("traceparent", f"00-{trace}-b7ad6b7169203331-01".encode())]
    topics.put(AGENT_TURNS, "s1", *appended(user("hi")), headers=parent)
    async with pages_of(topics, tmp_path) as ask:
        _, page = await ask(session_path("s1", "requests", requests_of(topics)[0][1]["request-id"]))
    assert re.findall(r"<dt>Trace</dt><dd><code>(.*?)</code>", page) == ([trace] if len(trace) == 32 else [])


async def test_each_fix_links_to_its_row(tmp_path):
    topics = session_of("s1", user("Run."), called("a"), user("Stop."), said("Yes."), user("Go.", result("x")))
    async with pages_of(topics, tmp_path) as ask:
        _, page = await ask(session_path("s1", "requests", requests_of(topics)[-1][1]["request-id"]))
        ways = re.findall(r'href="([^"]*[?&]fix=[^"]*)#at"', html.unescape(page))
        found = [(await ask(way))[1].partition('id="at"')[2].partition("</tr>")[0] for way in ways]
    assert [fixes_on(row) for row in found] == [{"result_orphan": 1}, {"result_synthesised": 1}]


async def test_a_published_violation_is_named(tmp_path):
    image = {"type": "image", "source": {"type": "file", "file_id": "file_1"}}
    topics = session_of("s1", user("Look."), called("a"), user(result("a", [image])), tools=TOOLS)
    async with pages_of(topics, tmp_path) as ask:
        _, page = await ask(session_path("s1", "requests", requests_of(topics)[-1][1]["request-id"]))
    assert re.findall(r'<span class="tag warn">(\w+)</span> <a href="/explain/([\w-]+)">', page) == [
        ("soft", "ANT-31c")
    ]


async def test_a_long_history_is_paged_and_computed_once(tmp_path, monkeypatch):
    worked_out, until = [], viewed.session_until
    monkeypatch.setattr(viewed, "session_until", lambda *given: worked_out.append(request_id) or until(*given))
    topics = session_of("s1", *rounds(60), user("Last."))
    request_id = requests_of(topics)[-1][1]["request-id"]
    way, numbers = session_path("s1", "requests", request_id), []
    async with pages_of(topics, tmp_path) as ask:
        part = False
        while way:
            _, page = await ask(way, part=part)
            numbers = [*map(int, re.findall(r'id="row-(\d+)"', page)), *numbers]
            assert ("<html" in page) is not part
            earlier = re.search(r'hx-get="([^"]*before=[^"]*)"', page)
            way, part = earlier and html.unescape(earlier[1]), True
        _, page = await ask(session_path("s1", "requests", request_id, at="messages.100.content.0"))
    assert numbers == list(range(241))
    assert worked_out == [request_id]
    assert 'id="at"' in page
    assert "before=" in page
    assert "after=" in page


async def test_a_timeline_is_paged(tmp_path):
    topics = session_of("s1", *rounds(30))
    seen, way = [], session_path("s1", view="turns")
    async with pages_of(topics, tmp_path) as ask:
        while way:
            _, page = await ask(way, part=bool(seen))
            seen = [*re.findall(r"/records/agent.turns.v1/0/(\d+)", page), *seen]
            earlier = re.search(r'hx-get="([^"]*before=[^"]*)"', page)
            way = earlier and html.unescape(earlier[1])
        _, first = await ask(session_path("s1", view="turns", after="0-0"))
        assert (await ask(session_path("s1", before="nonsense")))[0] == 400
        assert (await ask(session_path("s1", view="nonsense")))[0] == 404
    assert seen == [str(offset) for offset in range(121)]
    assert re.findall(r"/records/agent.turns.v1/0/(\d+)", first)[0] == "0"


async def test_a_session_is_shown_from_a_turn_on(tmp_path):
    topics = session_of("s1", *rounds(30))
    topics.put_turns("restored", {"type": "history.restored", "messages": [user("one"), said("two"), user("three")]})
    topics.put_turns("restored", *appended(said("four"), user("five")))
    async with pages_of(topics, tmp_path) as ask:

        async def first_row(session, **query):
            _, page = await ask(session_path(session, view="turns", **query))
            rows = re.findall(r'<tr class="kind-(\w+)( sought)?" id="e\d+".*?/0/(\d+)"', page, re.DOTALL)
            return rows[0], page

        for turn in (1, 2, 57, 120):
            (kind, sought, offset), _ = await first_row("s1", turn=turn)
            assert (kind, bool(sought), offset) == ("turn", True, str(turn))
        assert [(await first_row("restored", turn=turn))[0][0] for turn in (1, 3, 4)] == [
            "restored",
            "restored",
            "turn",
        ]
        (_, sought, _), page = await first_row("s1", turn=121)
        assert (sought, "This session has no turn 121" in page) == ("", True)
        _, foreign = await ask(session_path("restored", entry=f"{AGENT_TURNS}/0/5"))
        assert "sought" not in foreign
        assert (await ask(session_path("s1", entry="nonsense")))[0] == 400
        assert (await ask(session_path("s1", turn="-1")))[0] == 200


async def test_titles_are_shown_with_the_id_as_text(tmp_path):
    titles = {"s1": HOSTILE[0], "other": "unused"}
    async with pages_of(session_of("s1", user("Hi.")), tmp_path, titles=titles) as ask:
        for path in ("/sessions", session_path("s1")):
            _, page = await ask(path)
            assert html.escape(HOSTILE[0], quote=False) in html.unescape(page).replace("<", "&lt;").replace(">", "&gt;")
            assert HOSTILE[0] not in page


async def test_without_the_beginning_both_sides_are_aligned_by_position(tmp_path, monkeypatch):
    tried, until = [], viewed.session_until
    monkeypatch.setattr(viewed, "session_until", lambda *given: tried.append(given) or until(*given))
    topics = session_of("s1", *BROKEN)
    del topics.logs[AGENT_TURNS, 0][1:3]
    name, headers = requests_of(topics)[-1]
    async with pages_of(topics, tmp_path) as ask:
        status, page = await ask(session_path(name, "requests", headers["request-id"]))
        assert (await ask(session_path(name, "requests", headers["request-id"], "case")))[0] == 400
    assert status == 200
    assert "Repaired again, the request has another body" in page
    assert fixes_on(page)
    assert len(tried) == 2  # by the viewer's settings and by the request's, and not again for the next page


async def test_a_request_of_a_session_in_a_recreated_topic_is_computed_from_its_records(tmp_path):
    topics = Topics()
    topics.base = 2
    topics.put_turns("other", OPENED, *appended(user("hello"), said("hi")))
    topics.put_turns("s1", OPENED, *appended(user("one"), said("two"), user("three")))
    name, headers = requests_of(topics)[-1]
    assert (name, headers["first"], headers["cause"]) == ("s1", "5", "agent.turns.v1/0/6")
    async with pages_of(topics, tmp_path) as ask:
        status, page = await ask(session_path(name, "requests", headers["request-id"]))
    assert status == 200
    assert "Repaired again, the request has another body" not in page
    assert "records that led to this request are no longer there" not in page


# A request's body in an export, unless bodies are requested.
BODILESS = {"value": None, "lost": "left_out"}


async def test_an_export_has_every_record_of_its_session(tmp_path):
    topics = of_fleet("anthropic", "openai-chat")
    async with pages_of(topics, tmp_path) as ask:
        for name in ("two-targets", "poison"):
            found = json.loads((await ask(session_path(name, "export")))[1])
            wanted = {
                (topic, record.offset)
                for (topic, _), log in topics.logs.items()
                for record in log
                if record.key == name.encode()
                and topic in {AGENT_TURNS, PROVIDER_REQUESTS, HISTORY_FIXES, DEAD_LETTERS, SESSION_ITEMS}
            }
            assert found["session"] == name
            assert {(each["topic"], each["offset"]) for each in found["records"]} == wanted
            assert len(found["records"]) == len(wanted)
            whole = json.loads((await ask(session_path(name, "export", bodies=1)))[1])["records"]
            without = [each | BODILESS if each["topic"] == PROVIDER_REQUESTS else each for each in whole]
            assert without == found["records"]
            bodies = [each["value"] for each in whole if each["topic"] == PROVIDER_REQUESTS]
            assert bodies == [json.loads(each.value) for each in requests(topics) if each.key == name.encode()]


async def test_a_parked_session_is_marked(tmp_path):
    async with pages_of(torn(defaults=Defaults(on_dead_letter="park")), tmp_path) as ask:
        assert '<span class="tag warn">parked</span>' in (await ask(session_path("s1")))[1]


NAMES = ("a/b c", "..", "~x", "é\u202e?&#%2F", "<script>alert('ran')</script>")


@pytest.mark.parametrize("name", NAMES)
async def test_any_name_and_content_of_a_session_is_text(name, tmp_path):
    topics = session_of(name, *(user(words) for words in HOSTILE), said(*HOSTILE), user("Go.", result("x", HOSTILE[0])))
    topics.put(AGENT_TURNS, name, json.dumps({"type": "turn.appended", "message": 5, "x": HOSTILE}).encode())
    _, headers = requests_of(topics)[-1]
    ways = [
        session_path(name),
        session_path(name, view="fixes"),
        session_path(name, "requests", headers["request-id"]),
        session_path(name, "records", AGENT_TURNS, "0", "1"),
        "/letters",
        "/letters/0/0",
    ]
    async with pages_of(topics, tmp_path) as ask:
        for way in ways:
            status, page = await ask(way)
            assert status == 200, way
            main = page.partition("<main")[2].partition("</main>")[0]
            assert not re.search(r"<(script|img|svg|iframe|style|base|meta)\b", main), way
            assert "javascript:" not in "".join(re.findall(r'href="[^"]*"', main))
        assert (await ask(session_path(name, "requests", "0" * 32)))[0] == 404
        assert (await ask(session_path(name, "records", AGENT_TURNS, "0", "999")))[0] == 404
        assert (await ask(session_path("another", "records", AGENT_TURNS, "0", "1")))[0] == 404
        assert (await ask(session_path("another")))[0] == 404


async def test_a_request_without_headers_has_no_page(tmp_path):
    topics = session_of("s1", user("Hi."))
    topics.put_raw(PROVIDER_REQUESTS, Record(partition=0, offset=1, key=b"s1", value=b"{}", timestamp=1))
    async with pages_of(topics, tmp_path) as ask:
        assert (await ask(session_path("s1")))[0] == 200
        assert (await ask(session_path("s1", "records", PROVIDER_REQUESTS, "0", "1")))[0] == 200


# Records that any Kafka client can write.

BAD_HEADERS = (("run", b"\xff"), ("producer", None), ("\ufffd\ufffdname", b"x"), ("traceparent", b"x" * 20_000))
ODD_TIMES = (-1, 0, 2**63 - 1, -(2**63))


async def test_every_page_shows_records_with_odd_keys_headers_and_times(tmp_path):
    topics = session_of("s1", user("Hi."))
    topics.put(AGENT_TURNS, "s1", appended(user("no name"))[0], BAD_HEADERS)
    topics.put(PROVIDER_EVENTS, "s1", b"{}", BAD_HEADERS)
    topics.put(PROVIDER_EVENTS, "s1", None, (("exit", None), ("policy", b"\xff")))
    assert [dict(each.headers)["reknit.error.code"] for each in topics.logs[DEAD_LETTERS, 0]] == [b"bad_header"] * 3
    for topic in (AGENT_TURNS, PROVIDER_EVENTS, PROVIDER_REQUESTS, HISTORY_FIXES, DEAD_LETTERS, SESSION_ITEMS):
        for offset, time in enumerate(ODD_TIMES, 1000):
            bad = ((name, None) for name in ("request-id", "reknit.error.code", "reknit.error.letter", "exit"))
            record = Record(
                partition=0, offset=offset, key=b"\xff", value=b"\xff", headers=(*BAD_HEADERS, *bad), timestamp=time
            )
            topics.put_raw(topic, record)
    async with pages_of(topics, tmp_path) as ask:
        for session in ("s1", "\ufffd"):
            for more in ((), ("export",), ("stream",)):
                status, page = await ask(session_path(session, *more))
                assert status == 200, (session, more)
                assert session in page
        for topic in (AGENT_TURNS, DEAD_LETTERS):
            for record in topics.logs[topic, 0]:
                name = record.key.decode("utf-8", "replace")
                address = session_path(name, "records", topic, "0", str(record.offset))
                assert (await ask(address))[0] == 200, record
        for page in ("/", "/sessions", "/letters", *(f"/letters/0/{offset}" for offset in (0, 1, 2))):
            assert (await ask(page))[0] == 200, page


async def test_a_withdrawal_is_in_the_timeline_and_not_a_request(tmp_path):
    topics = session_of("s1", user("Hi."), said("Hello."), defaults=Defaults(withdraw=True))
    (_, sent), (_, withdrawn) = requests_of(topics)
    async with pages_of(topics, tmp_path) as ask:
        for view in ("", "?view=requests"):
            status, page = await ask(session_path("s1") + view)
            assert (status, page.count("withdrawal</span>")) == (200, 1)
            assert f"withdraws {sent['request-id']}" in page
        status, page = await ask(session_path("s1", "requests", sent["request-id"]))
        assert status == 200
        status, _ = await ask(session_path("s1", "requests", withdrawn["request-id"]))
        assert status == 404
        status, page = await ask(session_path("s1", "records", PROVIDER_REQUESTS, "0", "1"))
        assert (status, "answered" in page) == (200, True)
