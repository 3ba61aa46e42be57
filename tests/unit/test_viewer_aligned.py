"""The received history aligned with the sent body: which cells share a row, and each fix at its block."""

import json
from collections import Counter

import msgspec
import pytest
from build import answered, call, called, image, result, said, system, text, user
from published_records import OPENED, appended, turns
from viewer_lab import HISTORIES
from work_counter import function_calls

from reknit.pipeline.fixes import Fix
from reknit.pipeline.registry import TARGETS
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.turns import TurnsStage
from reknit.pipeline.targets import Setting
from reknit.pipeline.viewer.aligned import Aligned, session_until
from reknit.pipeline.viewer.cells import cell_of
from reknit.topics import HISTORY_FIXES, PROVIDER_REQUESTS
from reknit.topics.headers import RequestHeaders, decode
from reknit.topics.records import FixRecord

HEALTHY = (user("Hi."), said("Hello.", call("a")), answered("a"), said("Two files."), user("Which?"))


def records_of(rows_of, target):
    """Return the records of one of the demo's histories, for this target."""
    found = [each for feed in rows_of["feed"] if feed["to"] == "agent.turns.v1" for each in feed.get("records", ())]
    return turns(
        {"type": "session.opened"}, *[{**each, "targets": [target]} if "targets" in each else each for each in found]
    )


def requests_in(outputs):
    return [(decode(each.headers, RequestHeaders), each.value) for each in outputs if each.topic == PROVIDER_REQUESTS]


def fixes_in(outputs):
    found = [msgspec.json.decode(each.value, type=FixRecord) for each in outputs if each.topic == HISTORY_FIXES]
    return [fix for fix in found if not fix.source]


def aligned(records, described, defaults):
    cause = int(described.cause.rpartition("/")[2])
    session = session_until(records, b"s1", cause, defaults)
    done = session.request(described.target)
    assert done.sha256 == described.body_sha256
    return Aligned.of_request(session.turns, done, session.setting)


def of(messages, target="anthropic", **opened):
    """Return the last request of a session, aligned."""
    records = turns({**OPENED, "targets": [target], **opened}, *appended(*messages))
    described, _ = requests_in(TurnsStage().process(records).outputs)[-1]
    return aligned(records, described, Defaults())


def rows_of(found):
    """Return each row: its kind, and both places with their notes and fixes."""
    return [(row.how, side(row.left), side(row.right)) for row in found.rows(0, len(found))]


def side(cell):
    if cell is None:
        return None
    marks = "".join(f" {mark.severity} {mark.code}" for mark in cell.fixes)
    return f"{cell.path}{f' {cell.note} {cell.to}'.rstrip()}{marks}"


def shown(found):
    return [mark for row in [found.head(), *found.rows(0, len(found))] for mark in row.marks]


def identity(fix):
    return fix.code, fix.path, fix.detail, fix.before, fix.after


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", HISTORIES)
def test_every_published_fix_is_at_exactly_one_place(name, target):
    defaults = Defaults(targets=(target,), model="claude-sonnet-4-5", params={"max_tokens": msgspec.Raw(b"100")})
    records = records_of(HISTORIES[name], target)
    outputs = TurnsStage(defaults).process(records).outputs
    published = fixes_in(outputs)
    for described, _ in requests_in(outputs):
        found = aligned(records, described, defaults)
        assert Counter(shown(found)) == Counter(found.marks)
        assert len(found.marks) == described.fixes + sum(mark.severity == "observed" for mark in found.marks)
        mine = [fix for fix in published if fix.request_id == described.request_id]
        assert Counter(map(identity, mine)) <= Counter(map(identity, shown(found)))


def test_unchanged_blocks_are_aligned_with_themselves():
    found = of(HEALTHY)
    rows = found.rows(0, len(found))
    assert rows_of(found) == [("same", path, path) for path in (
        "messages.0.content.0", "messages.1.content.0", "messages.1.content.1", "messages.2.content.0",
        "messages.3.content.0", "messages.4.content.0",
    )]  # fmt: skip
    assert [(row.left.text, row.left.name, row.left.tool_id) for row in rows[:1]] == [("Hi.", "", "")]
    assert (rows[2].right.kind, rows[2].right.name, rows[2].right.tool_id) == ("tool_use", "ls", "a")
    assert [(row.left.begins, row.right.begins, row.right.role) for row in rows[:3]] == [
        (True, True, "user"), (True, True, "assistant"), (False, False, "assistant")]  # fmt: skip


MENDED = {
    "a result that is missing": (
        (user("Run."), called("a"), user("Stop."), said("Yes."), user("Go.")),
        [
            ("same", "messages.1.content.0", "messages.1.content.0"),
            ("appeared", None, "messages.2.content.0 lossy result_synthesised"),
            ("same", "messages.2.content.0", "messages.2.content.1"),
        ],
    ),
    "a result that was moved": (
        (user("Run."), called("a"), user("Wait.", result("a")), said("Yes."), user("Go.")),
        [
            ("same", "messages.1.content.0", "messages.1.content.0"),
            ("moved", None, "messages.2.content.0 came as messages.2.content.1"),
            ("same", "messages.2.content.0", "messages.2.content.1"),
            ("moved", "messages.2.content.1 went to messages.2.content.0 lossless result_moved", None),
        ],
    ),
    "a call that was moved": (
        (user("Run."), said(call("a"), "Running."), answered("a"), said("Yes."), user("Go.")),
        [
            ("moved", "messages.1.content.0 went to messages.1.content.1 lossless call_moved", None),
            ("same", "messages.1.content.1", "messages.1.content.0"),
            ("moved", None, "messages.1.content.1 came as messages.1.content.0"),
        ],
    ),
    "an orphan": (
        (user("Hi."), said("Yes."), user("Go.", result("x"))),
        [
            ("same", "messages.1.content.0", "messages.1.content.0"),
            ("same", "messages.2.content.0", "messages.2.content.0"),
            ("vanished", "messages.2.content.1 lossy result_orphan", None),
        ],
    ),
    "a message of nothing": (
        (user("Hi."), {"role": "assistant", "content": []}, user("Go.")),
        [
            ("vanished", "messages.1 lossless turn_empty", None),
            ("same", "messages.2.content.0", "messages.1.content.0"),
        ],
    ),
    "an image in an error": (
        (user("Run."), called("a"), user(result("a", [text("No."), image()], is_error=True))),
        [
            ("same", "messages.1.content.0", "messages.1.content.0"),
            ("changed", "messages.2.content.0 lossless error_media_moved", "messages.2.content.0"),
            ("moved", "messages.2.content.0.content.1", "messages.2.content.1"),
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", MENDED)
def test_a_fix_is_shown_at_its_block(case):
    messages, rows = MENDED[case]
    assert rows_of(of(messages))[1 : len(rows) + 1] == rows


def test_a_text_has_one_cell_for_each_of_its_messages():
    for target in ("codex-cli", "claude-cli"):
        found = of(HEALTHY, target)
        rows = found.rows(0, len(found))
        assert [row.right and row.right.message for row in rows] == [
            "messages.0", "messages.1", None, "messages.2", "messages.3", "messages.4"]  # fmt: skip
        assert rows[1].right.text == "### Assistant\nHello.\n[Tool call: ls({})]"
        assert rows[2].left.note == "in what stands above"
    found = of(HEALTHY, "cascade")
    assert [row.right and row.right.path for row in found.rows(0, 3)] == [
        "messages.0.content",
        "messages.1.content",
        None,
    ]


def test_members_other_than_the_messages_are_a_separate_row():
    found = of(
        (system("Be brief."), user("Hi.")), "openai-chat", params={"max_tokens": 5, "top_k": 3}, system="Be kind."
    )
    head = found.head()
    assert [(mark.code, mark.severity) for mark in head.left.fixes] == [("param_dropped", "lossy")]
    assert json.loads(head.left.text)["system"] == "Be kind."
    assert json.loads(head.right.text) == {"model": "claude-sonnet-4-5", "max_tokens": 5}
    assert rows_of(found)[0] == ("same", "messages.0.content in the system prompt", None)


def test_a_session_that_was_parked_is_shown_as_of_its_request():
    defaults = Defaults(on_dead_letter="park", model="claude-sonnet-4-5", params={"max_tokens": msgspec.Raw(b"9")})
    good = {"type": "turn.appended", "message": user("Mended.")}
    records = turns(
        *appended(user("Hi."), said("Yes.")),
        {"type": "turn.appended", "message": {"role": "nobody", "content": 5}},
        *appended(said("Waits."), user("Waits as well.")),
        {"type": "session.released", "record": good},
        *appended(said("Later."), user("Later still.")),
    )
    outputs = TurnsStage(defaults).process(records).outputs
    made = [described for described, _ in requests_in(outputs)]
    assert [described.cause[-1] for described in made] == ["0", "2", "4", "7"]
    assert [len(aligned(records, described, defaults)) for described in made] == [1, 3, 5, 7]


def test_without_its_beginning_both_sides_are_aligned_by_position():
    fixes = [Fix(code="result_moved", path="messages.2.content.0", lossless=True)]
    body = json.dumps({"model": "m", "messages": [user("Hi.", "You."), {"role": "assistant", "tool_calls": [{}]}]})
    records = turns(*appended(user("Hello."), said("Yes."), user("Go.")))
    session = session_until(records, b"s1", 2, Defaults())
    found = Aligned.by_position(session.turns, body.encode(), "openai-chat", Setting(), fixes)
    assert rows_of(found) == [
        ("same", "messages.0.content.0", "messages.0.content.0"),
        ("same", "messages.1.content.0", "messages.0.content.1"),
        ("same", "messages.2.content.0 lossless result_moved", "messages.1"),
        ("same", None, "messages.1.tool_calls.0"),
    ]
    assert not found.exact
    assert rows_of(Aligned.by_position([], b"\xff no JSON", "anthropic", Setting(), fixes)) == [("same", None, "")]


CELLS = {
    b'"words"': ("text", "words", "", ""),
    b'{"type": "text", "text": "words", "cache_control": {}}': ("text", "words", "", ""),
    b'{"text": "words"}': ("text", "words", "", ""),
    b'{"text": "words", "thought": true}': ("text", '{\n  "text": "words",\n  "thought": true\n}', "", ""),
    b'{"type": "tool_use", "id": "a", "name": "ls", "input": {"n": 1.0}}': ("tool_use", '{\n  "n": 1.0\n}', "ls", "a"),
    b'{"type": "function", "id": "a", "function": {"name": "ls", "arguments": "{}"}}': ("function", "{}", "ls", "a"),
    b'{"type": "function_call", "id": "i", "call_id": "a", "name": "ls", "arguments": "{}"}': (
        "function_call", "{}", "ls", "a"),
    b'{"functionCall": {"name": "ls", "args": {}}}': ("functionCall", "{}", "ls", ""),
    b'{"toolResult": {"toolUseId": "a", "content": [{"text": "files"}]}}': ("toolResult", "files", "", "a"),
    b'{"type": "tool_result", "tool_use_id": "a", "content": "no", "is_error": true}': (
        "tool_result", '{\n  "content": "no",\n  "is_error": true\n}', "", "a"),
    b'{"type": "image"}': ("image", '{\n  "type": "image"\n}', "", ""),
    b"[1, 2]": ("text", "[\n  1,\n  2\n]", "", ""),
    b"\xffno JSON": ("text", "\ufffdno JSON", "", ""),
}  # fmt: skip


@pytest.mark.parametrize("raw", CELLS)
def test_a_cell_shows_the_content_of_its_block(raw):
    cell = cell_of(raw, path="p")
    assert (cell.kind, cell.text, cell.name, cell.tool_id) == CELLS[raw]


def test_a_page_of_a_long_history_takes_no_more_work_than_one_of_a_short():
    def work(count):
        found = of([message for at in range(count) for message in (user(f"{at}"), said("Yes."))] + [user("Go.")])
        return function_calls(lambda: found.rows(len(found) - 5, len(found)))

    assert work(100) == work(10)


PLACES = {
    "messages.2.content.1": (4, 3),
    "messages.2.content.0": (3, 2),
    "messages.2.content.0.text": (3, 2),
    "messages.2": (-1, 2),
    "messages.9.content.0": (-1, -1),
    "": (-1, -1),
}


def test_a_place_of_either_side_is_found():
    found = of((user("Run."), called("a"), user("Wait.", result("a")), said("Yes."), user("Go.")))
    assert {path: (found.number_of(path), found.number_sent(path)) for path in PLACES} == PLACES
