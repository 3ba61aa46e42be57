"""A run's items are reconciled with its program's transcript, and turns wait for an expected transcript."""

import json

import pytest
from msgspec import json as decoding
from stream_runs import errors

from reknit.pipeline.stages.base import Record
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.events import EventsStage
from reknit.pipeline.streams.session import Recovery, recover
from reknit.topics import AGENT_TURNS, DEAD_LETTERS, SESSION_ITEMS
from reknit.topics.items import AnyItem
from reknit.topics.reducer import reduce


def at(second):
    return f"2026-11-22T09:00:{second:02}.000Z"


def init(second, session="s"):
    return {"type": "init", "timestamp": at(second), "session_id": session, "model": "m"}


def words(*texts):
    line = {"type": "message", "timestamp": at(1), "role": "assistant", "delta": True}
    return [line | {"content": text} for text in texts]


def call(call_id):
    return {"type": "tool_use", "tool_name": "f", "tool_id": call_id, "parameters": {"of": call_id}}


def result(call_id):
    return {"type": "tool_result", "tool_id": call_id, "status": "success", "output": "out"}


DONE = {"type": "result", "timestamp": at(50), "status": "success"}


def head(session="s"):
    return {"sessionId": session, "projectHash": "p"}


def prompt(second, text="q", message_id="u"):
    return {"id": message_id, "timestamp": at(second), "type": "user", "content": [{"text": text}]}


def answer(second, text, *calls, message_id="a"):
    told = [{"id": one, "name": "f", "args": {"of": one}, "result": [response(one)]} for one in calls]
    line = {"id": message_id, "timestamp": at(second), "type": "gemini", "content": text, "model": "m"}
    return line | ({"toolCalls": told} if told else {})


def response(call_id):
    return {"functionResponse": {"id": call_id, "name": "f", "response": {"output": "held"}}}


def joined(lines):
    return b"\n".join(json.dumps(line, separators=(",", ":")).encode() for line in lines)


def shown(items):
    """Return the items of the answer: id, text, origin and doubtful reason."""
    return [
        (entry.item_id, entry.text or bytes(entry.input).decode(), entry.origin, entry.doubtful)
        for entry in reduce(items).blocks("text", "tool_use")
    ]


FIRST, SECOND = "gemini-cli-block-0", "gemini-cli-block-1"


@pytest.mark.parametrize(
    ("stream", "transcript", "expected"),
    [
        pytest.param(
            [*words("The answ", "Let me think."), DONE],
            [prompt(1), answer(2, "Let me think.")],
            [(FIRST, "Let me think.", "stream", "end")],
            id="two attempts that nobody could tell apart",
        ),
        pytest.param(
            [*words("The answ", "Let me think."), call("1"), result("1"), *words("Done."), DONE],
            [prompt(1), answer(2, "Let me think.", "1"), answer(3, "Done.", message_id="b")],
            [
                ("1", '{"of":"1"}', "stream", ""),
                (SECOND, "Done.", "stream", "end"),
                ("gemini-cli-promoted-0", "Let me think.", "promoted", ""),
            ],
            id="a text that is complete is withdrawn, and told anew",
        ),
        pytest.param(
            [*words("Hel")],
            [prompt(1), answer(2, "Hello", "1")],
            [(FIRST, "Hello", "stream", ""), ("1", '{"of":"1"}', "promoted", "")],
            id="a stream that was cut",
        ),
        pytest.param(
            [call("1"), call("2"), result("1"), result("2"), *words("Done."), DONE],
            [prompt(1), answer(2, "", "2"), answer(3, "Done.", message_id="b")],
            [("2", '{"of":"2"}', "stream", ""), (FIRST, "Done.", "stream", "end")],
            id="a call that the transcript does not hold",
        ),
        pytest.param(
            [*words("a"), call("1"), *words("b"), call("2"), result("1"), result("2"), DONE],
            [prompt(1), answer(2, "ab", "1", "2")],
            [
                ("1", '{"of":"1"}', "stream", ""),
                ("2", '{"of":"2"}', "stream", ""),
                ("gemini-cli-promoted-0", "ab", "promoted", ""),
            ],
            id="words between calls, which the transcript has together",
        ),
        pytest.param(
            [*words("Hello"), DONE],
            [prompt(1), answer(2, "Hello"), {"$rewindTo": "u"}],
            [],
            id="an answer that was taken back",
        ),
        pytest.param(
            [call("1"), result("1"), *words("Done."), DONE],
            [prompt(1), answer(2, "Done.", "1")],
            [("1", '{"of":"1"}', "stream", ""), ("gemini-cli-promoted-0", "Done.", "promoted", "")],
            id="words after a call, which the transcript has before it",
        ),
        pytest.param([*words("Hello"), DONE], [], [], id="a transcript without an answer"),
    ],
)
def test_the_final_items(stream, transcript, expected):
    lines = joined([init(0), *stream])
    assert shown(recover(lines, "gemini-cli", transcript=joined([head(), *transcript]))) == expected


def test_a_result_that_the_stream_lost_is_reported():
    items = recover(joined([init(0), call("1")]), "gemini-cli", transcript=joined([head(), answer(2, "", "1")]))
    (entry,) = reduce(items).blocks("tool_use")
    assert bytes(entry.result.content) == b'[{"type":"text","text":"held"}]'


UNREADABLE = "the transcript cannot be read in full"
ODD = {"id": "1", "name": "f", "parts": 5}


@pytest.mark.parametrize(
    ("transcript", "message"),
    [
        pytest.param([head("another"), answer(2, "No")], "the transcript is of another session", id="another session"),
        pytest.param([head(), answer(2, "No"), 17], UNREADABLE, id="a line that is no object"),
        pytest.param([head(), answer(2, "No") | {"toolCalls": 1}], UNREADABLE, id="a message that is none"),
        pytest.param([head(), prompt(2) | {"content": [{"functionResponse": ODD}]}], UNREADABLE, id="a result's parts"),
        pytest.param([head(), answer(2, "No\ud83d")], UNREADABLE, id="half a character"),
    ],
)
def test_an_unusable_transcript_changes_nothing_and_is_reported(transcript, message):
    lines = joined([init(0), *words("Hello"), DONE])
    items = list(recover(lines, "gemini-cli", transcript=joined(transcript)))
    assert shown(items) == [(FIRST, "Hello", "stream", "end")]
    assert errors(items) == [(message, "transcript")]


def test_a_transcript_cut_inside_a_line_changes_nothing():
    lines, whole = joined([init(0), *words("Hello"), DONE]), joined([head(), prompt(1), answer(2, "Hello")])
    document = json.dumps(head() | {"messages": [prompt(1), answer(2, "Hello")]}, indent=1).encode()
    for cut in (whole[:-5], document[:-5]):
        assert shown(recover(lines, "gemini-cli", transcript=cut)) == [(FIRST, "Hello", "stream", "end")]
    assert shown(recover(lines, "gemini-cli", transcript=b"\n\n")) == [(FIRST, "Hello", "stream", "end")]


def test_each_run_of_a_resumed_session_uses_its_own_part():
    recovery, items = Recovery("gemini-cli"), []
    chat = [head(), prompt(1), answer(2, "one")]
    for run, second, lines in (("r1", 0, words("One", "one")), ("r2", 10, words("Two", "two"))):
        items += recovery.feed(joined([init(second), *lines, DONE]), run)
        recovery.expect_transcript()
        items += recovery.feed_transcript(joined(chat), run) + recovery.end_transcript(run)
        chat += [prompt(11, message_id="v"), answer(12, "two", message_id="b")]
        recovery = Recovery.restore(recovery.snapshot())
    assert [text for _, text, _, _ in shown(items)] == ["one", "two"]
    turns = recovery.take_finished()
    assert [(turn.role, turn.message_id, turn.model) for turn in turns] == [
        ("assistant", "a", "m"),
        ("assistant", "b", "m"),
    ]
    assert [json.loads(turn.message)["content"][0]["text"] for turn in turns] == ["one", "two"]


def test_turns_of_a_transcript_have_the_role_of_their_author():
    recovery = Recovery("gemini-cli")
    recovery.feed(joined([init(0), call("1"), result("1"), *words("Done."), DONE]), "r")
    recovery.expect_transcript()
    chat = [head(), prompt(1), answer(2, "", "1"), answer(3, "Done.", message_id="b")]
    recovery.feed_transcript(joined(chat), "r")
    recovery.end_transcript("r")
    found = [(turn.role, turn.message_id, json.loads(turn.message)["role"]) for turn in recovery.take_finished()]
    assert found == [("assistant", "a", "assistant"), ("user", None, "user"), ("assistant", "b", "assistant")]


def test_the_part_of_a_run_with_a_lost_stream_begins_where_the_previous_one_ended():
    recovery, items = Recovery("gemini-cli"), []
    chat = [head(), prompt(1), answer(2, "one")]
    items += recovery.feed(joined([init(0), *words("one"), DONE]), "r1")
    items += recovery.feed_transcript(joined(chat), "r1") + recovery.end_run()
    chat += [prompt(11, message_id="v"), answer(12, "two", message_id="b")]
    items += recovery.feed_transcript(joined(chat), "r2") + recovery.end_run()
    assert [text for _, text, _, _ in shown(items)] == ["one", "two"]


# In the pipeline.

POLICY = Record(partition=0, offset=0, key=b"s", value=None, headers=(("policy", b'{"record_assistant":true}'),))
EXPECTED = ("transcript", b"expected")
STREAM, TRANSCRIPT = b"gemini-cli", b"gemini-cli-transcript"


def record(value, *headers, source=STREAM, run=b"r"):
    return Record(partition=0, offset=1, key=b"s", value=value, headers=(("source", source), ("run", run), *headers))


def logged(outputs):
    """Return the recorded turns as their texts."""
    turns = [json.loads(output.value)["message"]["content"] for output in outputs if output.topic == AGENT_TURNS]
    return ["".join(block.get("text", block["type"]) for block in content) for content in turns]


SAID = joined([init(0), *words("The answ", "Let me think."), DONE])
HELD = joined([head(), prompt(1), answer(2, "Let me think.")])
END = ("exit", b"0")
BOTH = [record(SAID, EXPECTED), record(HELD, source=TRANSCRIPT)]
PIECES = [record(part, ("framing", b"bytes"), source=TRANSCRIPT) for part in (HELD[:40], HELD[40:])]


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        pytest.param([record(SAID), record(None, END)], ["The answLet me think."], id="none is expected"),
        pytest.param([record(SAID, EXPECTED)], [], id="it is expected"),
        pytest.param([record(SAID, EXPECTED), record(None, END)], ["The answLet me think."], id="it never came"),
        pytest.param(
            [*BOTH, record(None, END, source=TRANSCRIPT)],
            ["Let me think."],
            id="it has ended",
        ),
        pytest.param([*BOTH, record(None, END)], ["Let me think."], id="the run has ended"),
        pytest.param([*BOTH, record(SAID, EXPECTED, run=b"r2")], ["Let me think."], id="another run begins"),
        pytest.param(
            [record(HELD, EXPECTED, source=TRANSCRIPT), record(SAID, EXPECTED), record(None, END)],
            ["Let me think."],
            id="it came first",
        ),
        pytest.param(
            [record(SAID, EXPECTED), *PIECES, record(None, END, source=TRANSCRIPT)],
            ["Let me think."],
            id="it came in pieces",
        ),
        pytest.param(
            [*BOTH, record(None, END, source=TRANSCRIPT, run=b"old")],
            [],
            id="the end of another run's",
        ),
    ],
)
def test_turns_wait_for_an_expected_transcript(records, expected):
    stage = EventsStage(Defaults())
    outputs = [output for one in (POLICY, *records) for output in stage.process([one]).outputs]
    assert logged(outputs) == expected
    together = EventsStage(Defaults()).process([POLICY, *records]).outputs
    assert logged(together) == expected


def test_a_transcript_after_the_turns_are_recorded_corrects_the_screen():
    stage = EventsStage(Defaults())
    end = record(None, END, source=TRANSCRIPT)
    outputs = stage.process([POLICY, record(SAID), record(None, END), record(HELD, source=TRANSCRIPT), end]).outputs
    items = [decoding.decode(output.value, type=AnyItem) for output in outputs if output.topic == SESSION_ITEMS]
    assert [text for _, text, _, _ in shown(items)] == ["Let me think."]
    assert logged(outputs) == ["The answLet me think."]


def test_an_invalid_transcript_header_is_a_dead_letter():
    outputs = EventsStage(Defaults()).process([record(SAID, ("transcript", b"maybe"))]).outputs
    (letter,) = [output for output in outputs if output.topic == DEAD_LETTERS]
    assert dict(letter.headers)["reknit.error.code"] == b"bad_transcript"
