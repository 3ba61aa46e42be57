"""The stream side: records in; items, finished turns, dead letters and state out."""

from __future__ import annotations

import json

import msgspec
import pytest
import stage_runs
from build import user
from claude_lines import RETRY, block_delta, end, finish, result, said, start, stop, text, whole
from stage_runs import KEY, in_batches, of, processed, restored
from stored import of_kinds

from reknit.pipeline.history import History
from reknit.pipeline.history.readers.shapes import read_message
from reknit.pipeline.policy import Policy
from reknit.pipeline.stages.base import Record
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.events import EventsStage
from reknit.topics import AGENT_TURNS, DEAD_LETTERS, SESSION_ITEMS
from reknit.topics.items import AnyItem

HEADERS = (("source", b"claude-cli"), ("run", b"r1"))


def streamed(words: str, message_id: str = "msg_1") -> list[dict]:
    half = len(words) // 2
    return [
        start(message_id),
        *text(words[:half]),
        block_delta(0, type="text_delta", text=words[half:]),
        whole(message_id, said(words)),
        end(),
        finish("end_turn"),
        stop(),
        result(words),
    ]


def records(events: list, headers=HEADERS, **more) -> list[Record]:
    return stage_runs.records(events, headers, **more)


def ended(words: str, *more: object, first: int = 0) -> list[Record]:
    """An answer and the end of its run."""
    return records([*streamed(words), *more, None], (*HEADERS, ("exit", b"0")), first=first)


def items(found) -> list[dict]:
    return [json.loads(output.value) for output in of(found, SESSION_ITEMS)]


def policy(*, record: bool, first: int = 0) -> list[Record]:
    """The record with which the history side announces a session's policy."""
    return records([None], (("policy", json.dumps({"record_assistant": record}).encode()),), first=first)


def test_a_streamed_answer_becomes_items_and_deltas_of_one_poll_are_joined():
    made = items(EventsStage().process(records(streamed("Hello world"))))
    assert [item["content"] for item in made if item["type"] == "item/delta"] == ["Hello world"]
    assert [item["type"] for item in made if item["type"].startswith("item/")] == [
        "item/started",
        "item/delta",
        "item/completed",
    ]
    assert made[-1]["type"] == "turn/result"
    assert "unseen" not in made[-1]


def test_a_new_conversation_of_the_program_rewinds_the_recorded_turns():
    stage = EventsStage(Defaults(policy=Policy(record_assistant=True)))
    reset = {"type": "conversation_reset", "trigger": "clear"}
    found = stage.process(records([*streamed("Before."), reset, *streamed("After.", "msg_2"), result("After.")]))
    log = [json.loads(output.value) for output in of(found, AGENT_TURNS)]
    assert [(record["type"], record.get("to")) for record in log] == [
        ("turn.appended", None),
        ("history.rewound", 0),
        ("turn.appended", None),
    ]
    assert len({record["id"] for record in log}) == 3
    assert found.tally["reknit_turns_finished_total", "claude-cli"] == 2


def test_single_records_give_the_same_text_at_the_same_places():
    outputs, *_ = processed(EventsStage, in_batches(records(streamed("Hello world")), 1))
    made = [json.loads(output.value) for output in outputs if output.topic == SESSION_ITEMS]
    deltas = [(item.get("at", 0), item["content"]) for item in made if item["type"] == "item/delta"]
    assert deltas == [(0, "Hello"), (5, " world")]


@pytest.mark.parametrize("cut", range(1, 9))
def test_reloaded_state_continues_unchanged(cut: int):
    lines = records(streamed("Hello world"))
    expected, *_ = processed(EventsStage, in_batches(lines, 1))
    before, _, state = processed(EventsStage, in_batches(lines[:cut], 1))
    stage = restored(EventsStage(), state)
    assert before + [o for record in lines[cut:] for o in stage.process([record]).outputs] == expected


def test_a_finished_turn_waits_until_the_policy_is_known_in_either_order():
    first = EventsStage().process(ended("Hi there"))
    assert of(first, AGENT_TURNS) == []
    later = restored(EventsStage(), first.changes).process(policy(record=True, first=20))
    early = EventsStage()
    early.process(policy(record=True))
    at_once = early.process(ended("Hi there", first=1))
    assert of(later, AGENT_TURNS) == of(at_once, AGENT_TURNS)
    (turn,) = of(later, AGENT_TURNS)
    record = json.loads(turn.value)
    assert (record["type"], record["origin"], record["self_driving"]) == ("turn.appended", "recorded", True)
    assert record["message"] == {"role": "assistant", "content": [{"type": "text", "text": "Hi there"}]}


def test_a_prompt_that_the_cli_wrote_itself_is_marked_in_the_log_and_in_the_history():
    prompt = {"role": "user", "content": "Your response above was cut off mid-stream."}
    stage = EventsStage()
    stage.process(policy(record=True))
    line = {"type": "user", "isSynthetic": True, "message": prompt}
    found = stage.process(ended("Hi there", line, first=1))
    first, second = [json.loads(turn.value)["message"] for turn in of(found, AGENT_TURNS)]
    assert "synthetic" not in first
    assert second == user(prompt["content"], synthetic=True)
    history = History(Policy())
    for index, message in enumerate((prompt, first, second, prompt)):
        (turn,), fixes = read_message(message, index=index)
        assert fixes == []
        history.append(turn)
    assert [piece.synthetic for piece in history.exchanges[-1].user] == [True, False]


def test_waiting_turns_leave_the_changelog_once_they_are_recorded():
    stage = EventsStage()
    (waiting,) = of_kinds(stage.process(ended("Hi there")).changes, "waiting record")
    assert stage.process(policy(record=True, first=20)).changes[waiting] is None


def test_a_session_that_does_not_record_appends_nothing():
    stage = EventsStage(Defaults(policy=Policy(record_assistant=True)))
    stage.process(policy(record=False))
    assert of(stage.process(ended("Hi", first=1)), AGENT_TURNS) == []


def test_the_end_of_an_earlier_run_does_not_end_the_current_one():
    stage = EventsStage()
    stage.process(records(streamed("Hello world")[:3]))
    late = (("source", b"claude-cli"), ("run", b"r0"), ("exit", b"0"))
    assert stage.process(records([None], headers=late, first=3)).outputs == []
    rest = items(stage.process(records(streamed("Hello world")[3:], first=4)))
    assert [item.get("incomplete", False) for item in rest if item["type"] == "item/completed"] == [False]


def test_interleaved_sessions_keep_their_own_order():
    one, other = streamed("Hello one"), streamed("Hello two")
    mixed = [r for pair in zip(records(one), records(other, key=b"other"), strict=True) for r in pair]
    made = EventsStage().process(mixed).outputs
    for key, lines in ((KEY, one), (b"other", other)):
        alone = EventsStage().process(records(lines, key=key)).outputs
        assert [output for output in made if output.key == key] == alone


def test_the_end_of_a_run_leaves_an_incomplete_item():
    stage = EventsStage()
    stage.process(records(streamed("Hello world")[:3]))
    made = items(stage.process(records([None], (*HEADERS, ("exit", b"killed")), first=3)))
    assert [item["incomplete"] for item in made if item["type"] == "item/completed"] == [True]


BAD = [
    pytest.param(Record(partition=3, offset=7, key=None, value=b"{}"), "no_key", id="no key"),
    pytest.param(Record(partition=3, offset=7, key=KEY, value=None), "no_value", id="no value"),
    pytest.param(
        Record(partition=3, offset=7, key=KEY, value=b"{}", headers=(("source", b"nobody"),)),
        "unknown_source",
        id="unknown source",
    ),
    pytest.param(
        Record(partition=3, offset=7, key=KEY, value=b"{}", headers=(("framing", b"lines"),)),
        "bad_framing",
        id="unknown framing",
    ),
    pytest.param(
        Record(partition=3, offset=7, key=KEY, value=None, headers=(("policy", b"{"),)), "bad_policy", id="bad policy"
    ),
]


@pytest.mark.parametrize(("record", "code"), BAD)
def test_an_unusable_record_becomes_a_dead_letter_and_its_neighbours_are_processed(record: Record, code: str):
    neighbour = records(streamed("Hello"), key=b"other", first=8)
    found = EventsStage().process([record, *neighbour])
    (letter,) = of(found, DEAD_LETTERS)
    headers = dict(letter.headers)
    assert (letter.key, letter.value) == (record.key, record.value)
    assert letter.headers[: len(record.headers)] == record.headers
    assert headers["reknit.error.code"] == code.encode()
    assert (headers["reknit.error.partition"], headers["reknit.error.offset"]) == (b"3", b"7")
    assert headers["reknit.error.topic"] == b"provider.events.v1"
    assert items(found) == items(EventsStage().process(neighbour))
    assert found.tally["reknit_dead_letters_total", "provider.events.v1", code] == 1


HOSTILE = [
    b"\x00\xff\xfe binary noise \x80",
    b"null",
    b"not json",
    b"[" * 100_000,
    b'{"type":"assistant","message":null}',
    b'{"type":"stream_event","event":{"type":"content_block_delta","index":9,"delta":{"type":"new_delta"}}}',
    b'{"type":"nobody.knows","x":"\\ud800"}',
    b'{"type":"user","message":{"content":"' + b"x" * 10_000_000 + b'"}}',
]


@pytest.mark.parametrize("value", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_events_give_items_or_dead_letters_and_the_session_continues(value: bytes):
    stage = EventsStage()
    first = stage.process(records([value]))
    assert first.outputs
    for output in of(first, SESSION_ITEMS):
        msgspec.json.decode(output.value, type=AnyItem)
    made = items(stage.process(records(streamed("Hello"), first=1)))
    assert [item["content"] for item in made if item["type"] == "item/delta"] == ["Hello"]


def test_counters_match_the_events():
    lines = streamed("Hello world")
    tally = EventsStage().process(records([*lines[:4], RETRY, *streamed("Hello again", "msg_2"), b"??"])).tally
    assert tally["reknit_items_total", "claude-cli", "stream"] == 2
    assert tally["reknit_retractions_total", "claude-cli"] == 1
    assert tally["reknit_events_unrecognised_total", "claude-cli"] == 1
