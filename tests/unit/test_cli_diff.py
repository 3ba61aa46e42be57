"""``reknit diff`` over folders of dry runs: its output, its exit codes, and the page that it writes."""

import asyncio
import hashlib
import json
import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from browser import ELSEWHERE, HOSTILE, needs_browser, open_page
from build import said, user
from click.testing import CliRunner
from msgspec import structs
from published_records import OPENED, answers, appended, processed, side, turns, with_header

from reknit.pipeline.cli import main
from reknit.pipeline.config import load_config
from reknit.pipeline.diff import compare_session
from reknit.pipeline.objects import open_objects
from reknit.pipeline.replay import Plan, Uncompared, digest_of
from reknit.pipeline.replay.folder import PartitionFiles, begin
from reknit.pipeline.replay.reading import fetching
from reknit.pipeline.replay.sides import Both, Coverage, Side, Spool, is_of_worker
from reknit.pipeline.stages.base import Output, Record
from reknit.topics import (
    AGENT_TURNS,
    DEAD_LETTERS,
    HISTORY_FIXES,
    PROVIDER_EVENTS,
    PROVIDER_REQUESTS,
    RECORDED_PREFIX,
    SESSION_ITEMS,
)
from reknit.topics import headers as names

ENDS = {AGENT_TURNS: [1000, 1000], PROVIDER_EVENTS: [1000, 1000]}
PLAN = Plan(id="r", version="1", created=0, source_prefix="", partitions=2, starts={}, ends=ENDS)


def session(key, *words, answer="Hello world"):
    log = [OPENED, *appended(*(message for each in words for message in (user(each), said("ok"))))]
    return processed(turns(*log, key=key), answers(answer, key=key))


def folder(place, *sessions, plan=PLAN):
    """A dry run with sessions turn by turn in its partitions."""
    begin(place, plan)
    for number in range(plan.partitions):
        files = PartitionFiles(place, number)
        for output in (output for outputs in sessions[number :: plan.partitions] for output in outputs):
            is_input = output.topic in {AGENT_TURNS, PROVIDER_EVENTS}
            topic = RECORDED_PREFIX + output.topic if is_input else output.topic
            files.take([Output(topic, output.key, output.value, output.headers)], 0)
        files.finish(dict.fromkeys(ENDS, 1000))
        files.close()
    return str(place)


def diff(*arguments):
    done = CliRunner().invoke(main, ["diff", *arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    return done


def lines(done):
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def both(tmp_path):
    """Two dry runs of three sessions. One session differs."""
    same = [session(b"s1", "one", "two"), session(b"s3", "five")]
    before = folder(tmp_path / "a", same[0], session(b"s2", "three"), same[1])
    after = folder(tmp_path / "b", same[0], session(b"s2", "Three", answer="Goodbye"), same[1])
    return before, after


def test_identical_runs_have_no_differences(both):
    done = diff(both[0], both[0], "--expect-none")
    assert done.exit_code == 0
    assert done.stdout.splitlines()[1] == (
        "3 sessions compared: 0 differ (4 requests, 18 records of items, 3 recorded turns)"
    )


def test_differences_are_listed_by_session_and_summed(both):
    done = diff(*both, "--expect-none", "--json")
    assert done.exit_code == 3
    session, summary = lines(done)
    assert session["session"] == "s2"
    assert session["changes"][0] == {
        "subject": "request",
        "how": "changed",
        "label": "anthropic block text",
        "place": "anthropic agent.turns.v1/0/1",
        "path": "messages.0.content.0.text",
        "lines": ["-three", "+Three"],
    }
    assert summary["summary"]["compared"]["sessions"] == 3
    assert [(kind["subject"], kind["how"], kind["label"], kind["count"], kind["examples"])
            for kind in summary["summary"]["compared"]["kinds"]] == [
        ("request", "changed", "anthropic block text", 1, ["s2"]),
        ("item", "changed", "text", 1, ["s2"]),
        ("item", "changed", "turn/result", 1, ["s2"]),
        ("recorded", "changed", "turn.appended", 1, ["s2"]),
    ]  # fmt: skip


def test_the_default_output_has_the_same_content_in_lines(both):
    text = diff(*both).stdout
    assert "3 sessions compared: 1 differ" in text
    assert (
        "       1 in 1 session  request changed: anthropic block text\n"
        "          s2  anthropic agent.turns.v1/0/1  messages.0.content.0.text\n"
        "            -three\n"
        "            +Three\n"
    ) in text


def test_one_session_can_be_selected(both):
    assert diff(*both, "--session", "s1", "--session", "s3", "--expect-none").exit_code == 0
    assert diff(*both, "--session", "s2", "--expect-none").exit_code == 3


def test_nothing_compared_is_not_the_same_as_no_differences(both):
    done = diff(*both, "--session", "nobody", "--expect-none")
    assert done.exit_code == 2
    assert "nothing was compared" in done.stderr


@pytest.mark.parametrize("number", [0, 1])
def test_a_session_that_one_side_lacks_is_reported(both, tmp_path, number):
    less = folder(tmp_path / "c", session(b"s1", "one", "two"))
    sides = [both[0], less]
    summary = lines(diff(*sides[:: 1 - 2 * number], "--json"))[-1]["summary"]["compared"]
    assert (summary["sessions"], summary["differ"]) == (3, 2)
    assert {(kind["how"], kind["sessions"]) for kind in summary["kinds"]} == {(("vanished", "appeared")[number], 2)}


def test_sessions_outside_the_plan_are_listed_and_not_compared(both, tmp_path):
    plan = structs.replace(
        PLAN,
        uncompared=[Uncompared("s1", PROVIDER_EVENTS, "expired"), Uncompared("s3", AGENT_TURNS, "limited")],
        forgotten=[digest_of(b"s2")],
    )
    other = folder(tmp_path / "c", session(b"s1", "one", "two"), plan=plan)
    told = lines(diff(both[0], other, "--json"))[-1]["summary"]
    assert told["not_compared"] == {
        "its first record has expired": ["s1"],
        "forgotten": ["s2"],
        "a limit of its tenant refused records, which depends on the tenant's other sessions": ["s3"],
    }
    # The first session's requests are compared, and the last session's items.
    assert (told["compared"]["sessions"], told["compared"]["differ"]) == (2, 1)
    assert told["compared"]["counts"] == {"requests": 2, "records of items": 6, "recorded turns": 1}


def test_records_beyond_a_plan_are_left_out_on_both_sides(both, tmp_path):
    ranges = {AGENT_TURNS: [[(0, 2)], [(0, 2)]], PROVIDER_EVENTS: [[], []]}
    plan = structs.replace(PLAN, ranges=ranges, chosen={"s1": []})
    first = [
        output for output in session(b"s1", "one", "two") if b"agent.turns.v1/0/1" in dict(output.headers).values()
    ]
    other = folder(tmp_path / "c", first, plan=plan)
    told = lines(diff(both[0], other, "--json", "--expect-none"))[-1]["summary"]
    assert (told["compared"]["differ"], told["compared"]["counts"], told["left_out"]) == (0, {"requests": 1}, 8)


SHOWN = {PROVIDER_REQUESTS: 2, SESSION_ITEMS: 6, AGENT_TURNS: 1}
EXPIRED = {PROVIDER_EVENTS: "its items may have expired in p."}


@pytest.mark.parametrize(
    ("late", "lost", "expected", "why"),
    [
        ({}, None, SHOWN, {}),
        # Other requests for the oldest request's source record may have expired.
        ({(PROVIDER_REQUESTS, 0): {AGENT_TURNS: 1}}, None, SHOWN | {PROVIDER_REQUESTS: 1}, {}),
        ({(PROVIDER_REQUESTS, 0): {AGENT_TURNS: 3}}, None, {SESSION_ITEMS: 6, AGENT_TURNS: 1}, {}),
        ({(PROVIDER_REQUESTS, 0): {}}, None, {SESSION_ITEMS: 6, AGENT_TURNS: 1}, {}),
        ({(PROVIDER_REQUESTS, 1): {}}, None, SHOWN, {}),
        ({(DEAD_LETTERS, 0): {}}, None, SHOWN, {}),
        ({(SESSION_ITEMS, 0): {}}, SESSION_ITEMS, {PROVIDER_REQUESTS: 2}, EXPIRED),
        ({}, SESSION_ITEMS, SHOWN, {}),
    ],
)
def test_records_that_a_topic_no_longer_has_are_left_out(late, lost, expected, why):
    records = side(session(b"s1", "one", "two"))
    both = Both(b"s1", [record for record in records if record.topic != lost], records)
    coverage = Coverage((Side(name="p.", begins_late=late), Side(name="q.")))
    assert coverage.why_not(both) == why
    assert Counter(record.topic for record in coverage.covered(both, why).after) == expected


@pytest.mark.parametrize("lost", range(7))
def test_a_session_with_missing_items_is_listed(lost):
    outputs = session(b"s1", "one")
    items = [output for output in outputs if output.topic == SESSION_ITEMS]
    both = Both(b"s1", side(items[lost:]), side(items))
    found = Coverage((Side(name="", begins_late={(SESSION_ITEMS, 0): {}}), Side(name="q."))).why_not(both)
    assert found == ({PROVIDER_EVENTS: "its items may have expired in the live topics"} if lost else {})
    # Nothing has expired in other partitions, so it is a difference.
    assert Coverage((Side(name="", begins_late={(SESSION_ITEMS, 1): {}}), Side(name="q."))).why_not(both) == {}


@pytest.mark.parametrize(
    ("record", "is_theirs"),
    [
        ({"type": "turn.appended", "origin": "recorded", "message": {}}, True),
        ({"type": "turn.appended", "origin": "importer", "message": {}}, False),
        ({"type": "turn.appended", "message": {}}, False),
        ({"type": "provider.answered", "origin": "reknit"}, True),
        ({"type": "session.forgotten", "origin": "reknit"}, False),
        (["no record"], False),
    ],
)
def test_only_the_stream_sides_records_of_a_live_log_are_compared(record, is_theirs):
    assert is_of_worker(json.dumps(record).encode()) is is_theirs
    assert is_of_worker(None) is False
    assert is_of_worker(b"\xff{") is False


def test_a_session_of_several_versions_is_counted_separately(both, tmp_path):
    outputs = session(b"s1", "One", "two")
    at = next(at for at, output in enumerate(outputs) if output.topic == PROVIDER_REQUESTS)
    outputs[at] = with_header(outputs[at], names.REKNIT_VERSION, b"0.0.9")
    mixed = folder(tmp_path / "c", outputs, session(b"s2", "three"), session(b"s3", "five"))
    done = diff(both[0], mixed, "--expect-none")
    assert done.exit_code == 0
    assert "1 session compared that several versions wrote, counted apart: 1 differ" in done.stdout


def test_a_folder_that_is_not_a_finished_dry_run_is_reported(both, tmp_path):
    assert diff(both[0], f"{tmp_path}/").exit_code == 2
    begin(tmp_path / "half", PLAN)
    done = diff(both[0], str(tmp_path / "half"))
    assert done.exit_code == 2
    assert "partitions 0, 1 are not there yet" in done.stderr


@pytest.mark.parametrize("topic", [HISTORY_FIXES, SESSION_ITEMS, RECORDED_PREFIX + AGENT_TURNS])
@pytest.mark.parametrize("value", [b"not JSON", b"[]", None])
def test_an_invalid_record_is_reported_with_its_place(both, tmp_path, topic, value):
    other = folder(tmp_path / "c", session(b"s1", "one", "two"), [Output(topic, b"s2", value)])
    done = diff(both[0], other)
    assert done.exit_code == 2
    assert f"{topic.removeprefix(RECORDED_PREFIX)}/1/0 holds no record of its topic" in done.stderr


def test_an_empty_name_is_the_live_prefix_and_not_a_folder(both):
    done = diff("", both[0], "--bootstrap-servers", "127.0.0.1:1")
    assert done.exit_code == 75


def test_half_a_surrogate_pair_is_written_as_its_escape(tmp_path):
    sides = [
        folder(tmp_path / name, [Output(PROVIDER_REQUESTS, b"s1", body, ((names.CAUSE, b"agent.turns.v1/0/1"),))])
        for name, body in (("a", b'{"\\ud800": "\\udc00"}'), ("b", b'{"\\ud800": 1}'))
    ]
    (change,) = lines(diff(*sides, "--json"))[0]["changes"]
    assert (change["label"], change["path"]) == (" parameter \\ud800", "\\ud800")
    assert change["lines"] == ['-"\\udc00"', "+1"]


def test_shown_content_cannot_control_a_terminal(tmp_path):
    sides = [
        folder(tmp_path / name, session(b"s\x1b[2J\n3 sessions", word))
        for name, word in (("a", "\x1b[31m"), ("b", "\u202e"))
    ]
    text = diff(*sides).stdout
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "s⟦U+001B⟧[2J⟦U+000A⟧3 sessions" in text
    assert "-⟦U+001B⟧[31m" in text


def test_a_body_in_an_object_store_is_read_where_it_differs(tmp_path):
    outputs = session(b"s1", "one")
    config = tmp_path / "reknit.toml"
    config.write_text(f'[objects]\nurl = "file://{tmp_path}/store"\n')
    objects = open_objects(structs.replace(load_config(str(config), env={}), prefix="p."))
    at = next(at for at, output in enumerate(outputs) if output.topic == PROVIDER_REQUESTS)
    body = outputs[at].value.replace(b"one", b"One")
    dataref = asyncio.run(objects.put(b"s1", body))
    headers = {**dict(outputs[at].headers), names.DATAREF: dataref.encode()}
    headers[names.BODY_SHA256] = hashlib.sha256(body).hexdigest().encode()
    large = Record(partition=0, offset=0, key=b"s1", value=None, headers=tuple(headers.items()))
    inline = Record(partition=0, offset=0, key=b"s1", value=outputs[at].value, headers=outputs[at].headers)

    def differing(after, fetch):
        with Spool(fetch=[fetch, fetch]) as spool:
            spool.add_record(0, PROVIDER_REQUESTS, inline)
            spool.add_record(1, PROVIDER_REQUESTS, after)
            (both,) = spool.sessions()
            return [(each.label, each.path) for each in compare_session("s1", both.before, both.after).changes]

    fetch = fetching(load_config(str(config), env={}), "p.")
    assert differing(large, fetch) == [("anthropic block text", "messages.0.content.0.text")]
    asyncio.run(objects.forget(b"s1"))
    assert differing(large, fetch) == [("anthropic body", "")]
    same = [header for header in large.headers if header[0] != names.BODY_SHA256]
    same.append((names.BODY_SHA256, hashlib.sha256(inline.value).hexdigest().encode()))
    assert differing(structs.replace(large, headers=tuple(same)), fetch) == []


def test_a_spool_stores_one_copy_of_a_large_value_and_reads_it_on_demand(tmp_path, monkeypatch):
    value = b"x" * 100_000
    with Spool() as spool:
        for side in (0, 1):
            for offset in (1, 0):
                spool.add_record(side, PROVIDER_REQUESTS, Record(partition=0, offset=offset, key=b"s", value=value))
        (both,) = spool.sessions()
        assert [record.offset for record in both.before] == [0, 1]
        assert {record.read() for record in (*both.before, *both.after)} == {value}
        assert spool._database.execute("SELECT count(*) FROM large").fetchone() == (1,)
        directory = spool._directory.name
    with pytest.raises(FileNotFoundError):
        (tmp_path / directory).stat()


def test_the_commands_of_the_docs_run_unchanged(both, tmp_path, monkeypatch):
    for place, name in zip(both, ("before", "after"), strict=True):
        Path(place).rename(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[2] / "docs" / "diff.md").read_text(encoding="utf-8")
    commands = re.findall(r"^reknit (diff [^#\n]*)", text, flags=re.MULTILINE)
    ends = [CliRunner().invoke(main, shlex.split(command)).exit_code for command in commands]
    assert ends == [0, 0, 0, 3]
    assert Path("changes.html").exists()


# The page.


@pytest.fixture
def page(tmp_path):
    def written(before, after):
        place = tmp_path / "page.html"
        diff(before, after, "--html", str(place))
        return place

    return written


@needs_browser
async def test_the_page_shows_hostile_content_and_executes_none_of_it(page, tmp_path):
    texts = (*HOSTILE, ELSEWHERE, "a\u202eb\u200bc")
    sides = [
        folder(tmp_path / name, *(session(text.encode(), text + more, answer=text + more) for text in texts))
        for name, more in (("a", ""), ("b", " more"))
    ]
    counted = [
        f"document.querySelectorAll('{each}').length" for each in ("details[id]", "script, img, iframe, svg, base")
    ]
    opened = await open_page(page(*sides), ask=counted)
    assert (opened.requests, opened.dialogs, opened.messages) == ([], [], [])
    assert opened.values == [len(texts), 0]


@needs_browser
async def test_the_page_lists_the_differences(page, both):
    opened = await open_page(page(*both), ask=["document.body.textContent"])
    (text,) = opened.values
    for words in ("1differ", "request changed", "anthropic block text", "messages.0.content.0.text", "three", "Three"):
        assert words in text


def test_a_page_without_differences_says_so(page, both):
    assert "<p>Nothing differs.</p>" in page(both[0], both[0]).read_text(encoding="utf-8")


def test_comparing_does_not_load_the_modules_that_make_outputs():
    heavy = ("reknit.pipeline.session", "reknit.pipeline.engine", "reknit.pipeline.rules", "jinja2")
    code = f"import sys, reknit.pipeline.cli.reports; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"
