"""The Gemini CLI's output: its content is kept, and possible retries that it does not report are marked."""

import json

import pytest
from build import call as tool_use
from build import result as tool_result
from build import said, text, user
from stream_runs import errors, only, run

from reknit.pipeline.providers.gemini_cli import stream as attempts
from reknit.pipeline.streams.session import recover
from reknit.topics.items import AgentUnrecognized, SessionInit, TurnResult, TurnStop, Usage
from reknit.topics.reducer import reduce

INIT = {"type": "init", "timestamp": "2026-11-22T09:00:00.000Z", "session_id": "s", "model": "gemini-2.5-flash"}
PROMPT = {"type": "message", "timestamp": "t", "role": "user", "content": "Say hello"}
STATS = {"total_tokens": 15, "input_tokens": 10, "output_tokens": 5, "cached": 4, "duration_ms": 7, "tool_calls": 0}
DONE = {"type": "result", "timestamp": "t", "status": "success", "stats": STATS}
FAILED = {"type": "result", "timestamp": "t", "status": "error", "error": {"type": "unknown", "message": "[API Error]"}}
LONG, CUT = "This answer is long enough to be cut.", "This answer is lo"


def words(*texts):
    line = {"type": "message", "timestamp": "t", "role": "assistant", "delta": True}
    return [line | {"content": text} for text in texts]


def after(milliseconds, line):
    """Return the line with a timestamp this many milliseconds after nine o'clock."""
    return line | {"timestamp": f"2026-11-22T09:00:{milliseconds // 1000:02}.{milliseconds % 1000:03}Z"}


def call(call_id, command="ls", name="run"):
    return {"type": "tool_use", "tool_name": name, "tool_id": call_id, "parameters": {"command": command, "n": 1}}


def result(call_id, output="out", **more):
    return {"type": "tool_result", "tool_id": call_id, "status": "success", "output": output} | more


def items_of(*lines):
    return list(recover([json.dumps(line, separators=(",", ":")) for line in lines], source="gemini-cli"))


def shown(items):
    """Return each item except the prompt: its text and its marks."""
    return [
        (entry.text, *(["incomplete"] if entry.incomplete else []), *([entry.doubtful] if entry.doubtful else []))
        for entry in reduce(items).entries
        if entry.item_type != "user_message"
    ]


CALL = '{"command":"ls","n":1}'


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param([*words("Hel", "lo"), DONE], [("Hello", "end")], id="an answer whose end nobody knows"),
        pytest.param([*words("Hel", "lo"), FAILED], [("Hello", "incomplete")], id="a failure at exit 0 is one"),
        pytest.param(words("Hel", "lo"), [("Hello", "incomplete")], id="a run that was killed"),
        pytest.param(
            [*words("Hello"), DONE | {"stats": STATS | {"output_tokens": 0}}],
            [("Hello", "attempt")],
            id="an answer that took no tokens",
        ),
        pytest.param(
            [*words("I look."), call("1"), result("1"), *words("Done."), DONE],
            [("I look.",), (CALL,), ("Done.", "end")],
            id="a call and its result end an answer",
        ),
        pytest.param(
            [*words(CUT, "This ans", "wer is long enough to be cut."), DONE],
            [(CUT, "incomplete"), (LONG, "attempt")],
            id="a second attempt",
        ),
        pytest.param(
            [*words(CUT, "This ans", "This answer is l", "ong enough to be cut."), DONE],
            [(CUT, "incomplete"), ("This ans", "incomplete", "attempt"), (LONG, "attempt")],
            id="a second attempt that was cut earlier, and a third",
        ),
        pytest.param(
            [*words("Before. "), *words(CUT, "Before. ", CUT, " now.")],
            [("Before. " + CUT, "incomplete"), ("Before. " + CUT + " now.", "incomplete", "attempt")],
            id="a second attempt in a run that was killed",
        ),
        pytest.param(
            [*words(LONG, "This "), DONE], [(LONG + "This ", "attempt")], id="what may begin another is not parted"
        ),
        pytest.param([*words("ha", "ha", "!"), DONE], [("haha!", "attempt")], id="a short beginning is not parted"),
        pytest.param([*words("The one, ", "Then two"), DONE], [("The one, Then two", "end")], id="a chance likeness"),
        pytest.param(
            [*words("I look."), call("1"), *words("I lo", "ok."), call("2"), result("1"), result("2"), DONE],
            [("I look.",), (CALL,), ("I look.", "attempt"), (CALL, "attempt")],
            id="an attempt that came as far as its call",
        ),
        pytest.param(
            [*words("I look."), call("1"), *words("And on."), call("2", "pwd"), result("1"), DONE],
            [("I look.",), (CALL,), ("And on.",), ('{"command":"pwd","n":1}',)],
            id="words between calls",
        ),
        pytest.param(
            [call("1"), result("1"), call("2"), result("2"), DONE],
            [(CALL,), (CALL,)],
            id="a call again, with the first one's result before it",
        ),
        pytest.param(
            [*map(after, (600, 1099, 1100), words("Slow", " but", " steady")), DONE],
            [("Slow but steady", "end")],
            id="pauses that are too short",
        ),
        pytest.param(
            [*map(after, (100, 600, 1000, 1300), [*words("The answ", "Let me", " think."), call("1")]), result("1")],
            [("The answLet me think.", "attempt"), (CALL,)],
            id="a pause, and another beginning",
        ),
        pytest.param(
            [*map(after, (100, 1200), [*words("The answ"), call("1")]), result("1"), *words("Done."), DONE],
            [("The answ", "attempt"), (CALL, "attempt"), ("Done.", "end")],
            id="a pause, and a call",
        ),
        pytest.param(
            [*words("a"), PROMPT | {"role": "assistant", "content": "whole"}, *words("b"), DONE],
            [("a",), ("whole",), ("b", "end")],
            id="words that came whole",
        ),
    ],
)
def test_displayed_items(lines, expected):
    assert shown(items_of(INIT, PROMPT, *lines)) == expected


def test_metadata_of_the_answer():
    notice = {"type": "error", "timestamp": "t", "severity": "warning", "message": "Loop detected"}
    items = items_of(INIT, PROMPT, *words("a"), notice, {"type": "new", "of": 1}, *words("b"), DONE)
    assert shown(items) == [("ab", "end")]
    assert only(items, SessionInit) == [SessionInit(session_id="s", model="gemini-2.5-flash", seq=0)]
    assert errors(items) == [("Loop detected", "warning")]
    assert [bytes(item.event) for item in only(items, AgentUnrecognized)] == [b'{"type":"new","of":1}']
    assert [item.incomplete for item in only(items, TurnStop)] == [False]
    (told,) = only(items, TurnResult)
    assert (told.subtype, told.is_error, told.result, told.duration_ms) == ("success", False, None, 7)
    assert told.usage == Usage(input_tokens=6, output_tokens=5, cache_read_input_tokens=4)
    prompt = reduce(items).entries[0]
    assert (prompt.item_type, prompt.started.is_replay) == ("user_message", True)


def test_a_failure_is_shown_with_its_message_and_a_failed_call_is_an_error():
    gone = {"type": "tool_result", "tool_id": "1", "status": "error", "error": {"type": "E", "message": "no such"}}
    items = items_of(INIT, PROMPT, call("1"), gone, FAILED)
    (entry,) = reduce(items).blocks("tool_use")
    assert (entry.result.is_error, bytes(entry.result.content)) == (True, b'[{"type":"text","text":"no such"}]')
    (told,) = only(items, TurnResult)
    assert (told.is_error, told.result, told.unseen, told.expanded) == (True, "[API Error]", True, True)


def test_a_run_that_begins_in_the_same_pipe_retracts_nothing():
    items = items_of(INIT, PROMPT, *words("one"), INIT, PROMPT, *words("two"), DONE)
    view = reduce(items)
    assert (shown(items), view.retracted) == ([("one", "incomplete"), ("two", "end")], set())


def test_turns_for_the_log():
    lines = [INIT, PROMPT, *words("I look."), call("1"), result("1"), *words("Done."), DONE]
    assert [json.loads(turn.message) for turn in run("gemini-cli", lines).turns] == [
        said("I look.", tool_use("1", "run", command="ls", n=1)),
        user(tool_result("1", [text("out")])),
        said("Done."),
    ]


def test_long_texts_are_not_searched_repeatedly(monkeypatch):
    joined = []
    join = attempts.Attempts.text
    monkeypatch.setattr(attempts.Attempts, "text", lambda self: joined.append(0) or join(self))
    assert shown(items_of(INIT, *words("A list: ", *("item " for _ in range(2000))), DONE))[0][1] == "end"
    assert joined == []
