"""Output of ``codex exec --json``: the displayed items and the recorded turns, for every kind of end."""

import json

import pytest
from build import call, image, result, text, thinking
from stream_runs import entries, extras, items_of, only, run, texts

from reknit.pipeline.streams.fields import MOST_COUNTED
from reknit.pipeline.streams.session import Recovery
from reknit.topics.items import AgentError, AgentUnrecognized, SessionInit, TurnDiagnosis, TurnResult, TurnStop, Usage

THREAD = {"type": "thread.started", "thread_id": "th"}
TURN = {"type": "turn.started"}
AGAIN = {"type": "error", "message": "Reconnecting... 1/5 (stream disconnected before completion: cut)"}
USAGE = {"input_tokens": 10, "cached_input_tokens": 2, "cache_write_input_tokens": 1, "output_tokens": 5}
DONE = {"type": "turn.completed", "usage": USAGE}
FAILED = {"type": "turn.failed", "error": {"message": "Boom"}}


def item(number, kind, at="completed", **members):
    return {"type": f"item.{at}", "item": {"id": f"item_{number}", "type": kind, **members}}


def said(number, words):
    return item(number, "agent_message", text=words)


def command(number, at="completed", **members):
    return item(number, "command_execution", at, command="ls", **members)


RAN = {"aggregated_output": "a\n", "exit_code": 0, "status": "completed"}
SEARCHED = {"query": "x", "action": {"type": "search"}}
PLAN = [{"text": "look", "completed": False}]
CHANGES = [{"path": "/w/a", "kind": "add"}]
PARTS = [text("t"), {"type": "image", "data": "aGk=", "mimeType": "image/png"}, {"type": "resource_link", "uri": "u"}]
FOUND = {"server": "docs", "tool": "find", "arguments": {"q": 1}, "result": {"content": PARTS}}


def whole(*lines):
    return run("codex-cli", THREAD, TURN, *lines, DONE)


def test_a_turn_is_its_answers_with_their_results():
    found = whole(
        item(0, "error", message="a warning"),
        item(1, "reasoning", text="hm"),
        said(2, "I will look."),
        command(3, "started", status="in_progress"),
        command(3, **RAN),
        said(4, "Done."),
    )
    assert found.contents == [
        [thinking("hm"), text("I will look."), call("run-0-item_3", "command_execution", command="ls")],
        [result("run-0-item_3", [text("a\n")])],
        [text("Done.")],
    ]
    assert [entry.origin for entry in found.view.entries] == ["stream"] * 4
    assert [(error.message, error.will_retry) for error in only(found.items, AgentError)] == [("a warning", False)]
    assert only(found.items, SessionInit)[0].session_id == "th"
    assert [stop.incomplete for stop in only(found.items, TurnStop)] == [False, False]
    (ended,) = only(found.items, TurnResult)
    assert (ended.is_error, ended.usage) == (False, Usage(7, 5, 1, 2))
    assert json.loads(bytes(ended.extras["thread_usage"])) == USAGE


CALLS = [
    (
        command(0, aggregated_output="no\n", exit_code=3, status="failed"),
        ("command_execution", {"command": "ls"}),
        ([text("no\n")], True, {"exit_code": 3, "status": "failed"}),
    ),
    (
        item(0, "file_change", changes=CHANGES, status="completed"),
        ("file_change", {"changes": CHANGES}),
        ([text("completed")], False, {"status": "completed"}),
    ),
    (
        item(0, "mcp_tool_call", **FOUND, status="completed"),
        ("mcp__docs__find", {"q": 1}),
        ([text("t"), image("aGk="), text('{"type": "resource_link", "uri": "u"}')], False, {"status": "completed"}),
    ),
    (
        item(0, "mcp_tool_call", server="docs", tool="find", arguments=None, error={"message": "gone"}),
        ("mcp__docs__find", {}),
        ([text("gone")], True, {}),
    ),
    (
        item(0, "mcp_tool_call", server="s", tool="t", result={"content": ["x"], "structured_content": {"a": 1}}),
        ("mcp__s__t", {}),
        ([text('{"a": 1}')], False, {}),
    ),
    (
        item(0, "collab_tool_call", tool="spawn_agent", prompt="go", agents_states={"t": 1}, status="completed"),
        ("spawn_agent", {"prompt": "go"}),
        ([text('{"t": 1}')], False, {"status": "completed"}),
    ),
    (item(0, "web_search", **SEARCHED), ("web_search", SEARCHED), ([text("completed")], False, {})),
]


@pytest.mark.parametrize(("line", "called", "answered"), CALLS, ids=lambda value: str(value)[:60])
@pytest.mark.parametrize("started", [True, False])
def test_a_call_item_is_shown_and_recorded_with_its_result(line, called, answered, started):
    begun = json.loads(json.dumps(line).replace("item.completed", "item.started"))
    found = whole(*([begun] if started else []), line)
    (block,), (came,) = found.contents
    assert (block["name"], block["input"]) == called
    assert (came["content"], came.get("is_error", False)) == answered[:2]
    (entry,) = found.view.entries
    told = entry.result.extras if isinstance(entry.result.extras, dict) else {}
    assert (entry.result.is_error, {name: json.loads(bytes(raw)) for name, raw in told.items()}) == answered[1:]


def test_each_todo_list_of_the_model_is_a_separate_call():
    done = [PLAN[0] | {"completed": True}]
    lists = [("started", PLAN), ("updated", done), ("updated", done), ("completed", done)]
    found = whole(*(item(1, "todo_list", at, items=items) for at, items in lists))
    calls = [block["input"]["items"] for block in found.blocks if block["type"] == "tool_use"]
    assert calls == [PLAN, done, done]
    assert len({block["id"] for block in found.blocks if block["type"] == "tool_use"}) == 3


def test_other_members_of_a_message_are_extras():
    found = whole(item(0, "agent_message", text="A", phase="commentary"))
    assert extras(found.items) == [{"phase": "commentary"}]
    assert found.blocks == [text("A")]


def test_excessive_token_counts_are_bounded():
    found = run("codex-cli", TURN, DONE | {"usage": {"input_tokens": 10**40, "output_tokens": -1}}, sizes=[1, 1])
    assert [ended.usage for ended in only(found.items, TurnResult)] == [Usage(MOST_COUNTED)]


def repeats(found):
    return [(entry.text, entry.repeats) for entry in found.view.entries]


def test_a_text_repeated_after_a_notice_names_the_earlier_one():
    found = whole(said(0, "A"), said(1, "B"), AGAIN, said(2, "A"), AGAIN, AGAIN, said(3, "B"), said(4, "A"))
    ids = [entry.item_id for entry in found.view.entries]
    assert repeats(found) == [("A", ""), ("B", ""), ("A", ids[0]), ("B", ids[1]), ("A", ids[2])]
    assert [block["text"] for block in found.blocks] == ["A", "B", "A", "B", "A"]
    assert [stop.incomplete for stop in only(found.items, TurnStop)] == [True, True, False]
    assert [error.will_retry for error in only(found.items, AgentError)] == [True] * 3


NO_REPEATS = [
    pytest.param([said(0, "A"), said(1, "A")], id="without a notice"),
    pytest.param([said(0, "A"), item(1, "error", message="careful"), said(2, "A")], id="a warning"),
    pytest.param([said(0, "A"), AGAIN, said(1, "B")], id="something else"),
    pytest.param([said(0, "A"), command(1, **RAN), said(2, "A")], id="after a call"),
    pytest.param([said(0, "A"), command(1, **RAN), said(2, "B"), AGAIN, said(3, "A")], id="an earlier answer"),
]


@pytest.mark.parametrize("lines", NO_REPEATS)
def test_these_are_not_repeats(lines):
    assert {entry.repeats for entry in whole(*lines).view.entries} == {""}


NOTICES = [
    ("Reconnecting... 1/5 (stream disconnected before completion: cut)", True),
    ("Reconnecting... 1/5", True),
    ("Reconnecting... waiting for network (Connection failed: error sending request)", True),
    ("stream error: stream disconnected before completion: cut; retrying 1/5 in 188ms…", True),
    ("unexpected status 400 Bad Request: bad", False),
]


@pytest.mark.parametrize(("message", "again"), NOTICES)
def test_a_notice_says_if_codex_retries_and_ends_nothing(message, again):
    found = whole(said(0, "A"), {"type": "error", "message": message}, said(1, "B"))
    assert [(error.message, error.will_retry) for error in only(found.items, AgentError)] == [(message, again)]
    assert [block["text"] for block in found.blocks] == ["A", "B"]
    assert [ended.is_error for ended in only(found.items, TurnResult)] == [False]


def test_a_call_running_during_a_retry_keeps_its_result():
    begun = command(1, "started", status="in_progress")
    found = whole(said(0, "A"), begun, AGAIN, command(1, **RAN), said(2, "A"), command(3, **RAN))
    assert [content[-1]["type"] for content in found.contents] == ["tool_use", "tool_result"] * 2
    ids = [entry.item_id for entry in found.view.entries]
    assert [entry.repeats for entry in found.view.entries] == ["", "", ids[0], ids[1]]


ENDS = [
    pytest.param([said(0, "A"), FAILED], [True], [(True, ["Boom"])], [], id="failed"),
    pytest.param([said(0, "A")], [True], [], ["end"], id="killed"),
    pytest.param([], [True], [], ["end"], id="killed before anything came"),
    pytest.param([AGAIN], [True], [], ["end"], id="killed after a notice"),
    pytest.param([command(0, **RAN)], [True], [], ["end"], id="killed after a call"),
    pytest.param([command(0, "started")], [True], [], ["end"], id="killed in a call"),
    pytest.param([item(0, "web_search", "started", query="")], [True], [], ["end"], id="killed in a search"),
    pytest.param([said(0, "A"), TURN, said(1, "A"), DONE], [True, False], [(False, None)], ["next turn"], id="turn"),
    pytest.param([said(0, "A"), THREAD, TURN, DONE], [True, False], [(False, None)], ["next run"], id="thread"),
]


@pytest.mark.parametrize(("lines", "stops", "results", "diagnoses"), ENDS)
def test_a_turn_is_complete_only_with_its_completion_event(lines, stops, results, diagnoses):
    found = run("codex-cli", THREAD, TURN, *lines, end="end")
    assert [stop.incomplete for stop in only(found.items, TurnStop)] == stops
    told = [(each.is_error, each.errors) for each in only(found.items, TurnResult)]
    assert [(failed, json.loads(bytes(errors)) if errors else None) for failed, errors in told] == results
    assert [each.reason for each in only(found.items, TurnDiagnosis)] == diagnoses


def test_an_unfinished_search_is_shown():
    (entry,) = run("codex-cli", TURN, item(0, "web_search", "started", query="x")).view.entries
    assert (entry.started.name, bytes(entry.input), entry.result) == ("web_search", b'{"query":"x"}', None)


@pytest.mark.parametrize("told", [True, False], ids=["its run is named", "it only begins"])
def test_a_resumed_run_has_its_own_items_and_its_own_share_of_tokens(told):
    recovery, items = Recovery("codex-cli"), []
    total = {name: count * 3 for name, count in USAGE.items()}
    for name, usage in [("r1", USAGE), ("r2", total), ("r3", USAGE)]:
        for line in (THREAD, TURN, command(0, **RAN), said(1, "Done."), {"type": "turn.completed", "usage": usage}):
            items += recovery.feed(json.dumps(line).encode(), name if told else None)
            recovery = Recovery.restore(recovery.snapshot())
    items += recovery.end_run()
    calls = [entry.item_id for entry in entries(items) if entry.item_type == "tool_use"]
    assert calls == ["run-0-item_0", "run-1-item_0", "run-2-item_0"]
    # The third run's total is smaller than the previous one: it is the run's own count, as in old versions.
    shares = [Usage(7, 5, 1, 2), Usage(14, 10, 2, 4), Usage(7, 5, 1, 2)]
    assert [ended.usage for ended in only(items, TurnResult)] == shares
    roles = [json.loads(turn.message)["role"] for turn in recovery.take_finished()]
    assert roles == ["assistant", "user", "assistant"] * 3


def test_a_repeated_item_line_is_skipped_and_a_repeated_list_is_not():
    lines = [said(0, "A"), command(1, "started"), command(1, **RAN), item(2, "todo_list", "updated", items=PLAN)]
    found = whole(*(line for line in lines for _ in range(2)))
    assert [entry.item_type for entry in found.view.entries] == ["text", "tool_use", "tool_use", "tool_use"]


UNKNOWN = [
    ({"type": "item.completed", "item": {"id": "i", "type": "plan", "text": "x"}}, "unknown item.completed: plan"),
    (command(1, "updated", aggregated_output="half"), "unknown item.updated: command_execution"),
    ({"type": "item.completed"}, "malformed item.completed"),
    (item(1, "agent_message", text=None), "malformed item.completed"),
    (item(1, "reasoning", "started", text="h"), "malformed item.started"),
    (item(1, "error", message=[]), "malformed item.completed"),
    ({"type": "error", "message": 1}, "malformed error"),
    ({"type": "turn.paused", "why": 1}, "unknown event type: turn.paused"),
    ({"no": "type"}, "no event type"),
    (b"not JSON", "non-JSON output"),
    (b"null", "not a JSON object"),
    (b'{"type":"item.comp', "non-JSON output"),
]


@pytest.mark.parametrize(("line", "reason"), UNKNOWN, ids=lambda value: str(value)[:40])
def test_unknown_lines_are_passed_on_unchanged(line, reason):
    found = items_of("codex-cli", THREAD, TURN, said(0, "A"), line, said(1, "B"), DONE)
    (odd,) = only(found, AgentUnrecognized)
    assert odd.reason == reason
    sent = line if isinstance(line, bytes) else json.dumps(line, separators=(",", ":")).encode()
    assert (odd.text.encode() if odd.text else bytes(odd.event).replace(b", ", b",").replace(b": ", b":")) == sent
    assert texts(found) == ["A", "B"]
