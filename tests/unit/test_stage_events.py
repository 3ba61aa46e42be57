"""The stream side: records in, items, finished turns, dead letters and state out."""

from __future__ import annotations

import json

import msgspec
import pytest

from pipeline.history import History
from pipeline.history.readers import read_message
from pipeline.model import Policy
from pipeline.stages.base import Record
from pipeline.stages.defaults import Defaults
from pipeline.stages.events import EventsStage
from topics import AGENT_TURNS, DEAD_LETTERS, SESSION_ITEMS
from topics.items import AnyItem

KEY = b"session-1"
HEADERS = (("source", b"claude-cli"), ("run", b"r1"))


def event(kind: str, **fields: object) -> bytes:
    return json.dumps({"type": "stream_event", "parent_tool_use_id": None, "event": {"type": kind, **fields}}).encode()


def streamed(text: str, message_id: str = "msg_1") -> list[bytes]:
    half = len(text) // 2
    assistant = {"id": message_id, "role": "assistant", "model": "m", "content": [{"type": "text", "text": text}]}
    return [
        event("message_start", message={"id": message_id, "model": "m", "role": "assistant", "content": []}),
        event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
        event("content_block_delta", index=0, delta={"type": "text_delta", "text": text[:half]}),
        event("content_block_delta", index=0, delta={"type": "text_delta", "text": text[half:]}),
        json.dumps({"type": "assistant", "message": assistant, "parent_tool_use_id": None}).encode(),
        event("content_block_stop", index=0),
        event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 3}),
        event("message_stop"),
        json.dumps({"type": "result", "subtype": "success", "is_error": False, "result": text}).encode(),
    ]


def records(values: list[bytes | None], key: bytes = KEY, headers=HEADERS, first: int = 0) -> list[Record]:
    return [
        Record(partition=0, offset=first + i, key=key, value=value, headers=headers, timestamp=1000 + i)
        for i, value in enumerate(values)
    ]


def items(outputs) -> list[dict]:
    return [json.loads(output.value) for output in outputs if output.topic == SESSION_ITEMS]


def of(outputs, topic: str) -> list:
    return [output for output in outputs if output.topic == topic]


def policy(offset: int, *, record: bool) -> Record:
    header = ("policy", json.dumps({"record_assistant": record}).encode())
    return Record(partition=0, offset=offset, key=KEY, value=None, headers=(header,))


def restored(stage: EventsStage, changes: dict) -> EventsStage:
    fresh = EventsStage()
    for key, value in changes.items():
        fresh.restore(key, value)
    return fresh


def test_a_streamed_answer_becomes_items_and_deltas_of_one_poll_are_joined():
    made = items(EventsStage().process(records(streamed("Hello world"))).outputs)
    deltas = [item for item in made if item["type"] == "item/delta"]
    assert [delta["content"] for delta in deltas] == ["Hello world"]
    assert [item["type"] for item in made if item["type"].startswith("item/")] == [
        "item/started",
        "item/delta",
        "item/completed",
    ]
    assert made[-1]["type"] == "turn/result"
    assert "unseen" not in made[-1]


def test_records_one_by_one_give_the_same_text_at_the_same_places():
    stage = EventsStage()
    made = [item for record in records(streamed("Hello world")) for item in items(stage.process([record]).outputs)]
    deltas = [(item.get("at", 0), item["content"]) for item in made if item["type"] == "item/delta"]
    assert deltas == [(0, "Hello"), (5, " world")]


@pytest.mark.parametrize("cut", range(1, 9))
def test_state_read_back_goes_on_as_if_nothing_had_happened(cut: int):
    lines = records(streamed("Hello world"))
    undisturbed = EventsStage()
    expected = [o for record in lines for o in undisturbed.process([record]).outputs]
    stage = EventsStage()
    changes: dict = {}
    found = []
    for record in lines[:cut]:
        result = stage.process([record])
        found += result.outputs
        changes |= result.changes
    stage = restored(stage, changes)
    for record in lines[cut:]:
        found += stage.process([record]).outputs
    assert found == expected


def test_a_finished_turn_waits_until_the_policy_is_known_whichever_comes_first():
    late = EventsStage()
    first = late.process(records([*streamed("Hi there"), None], headers=(*HEADERS, ("exit", b"0"))))
    assert of(first.outputs, AGENT_TURNS) == []
    later = restored(late, first.changes).process([policy(20, record=True)])
    early = EventsStage()
    early.process([policy(0, record=True)])
    at_once = early.process(records([*streamed("Hi there"), None], headers=(*HEADERS, ("exit", b"0")), first=1))
    assert of(later.outputs, AGENT_TURNS) == of(at_once.outputs, AGENT_TURNS)
    (turn,) = of(later.outputs, AGENT_TURNS)
    record = json.loads(turn.value)
    assert (record["type"], record["origin"], record["self_driving"]) == ("turn.appended", "recorded", True)
    assert record["message"] == {"role": "assistant", "content": [{"type": "text", "text": "Hi there"}]}


def test_a_prompt_that_the_cli_wrote_itself_is_marked_in_the_log_and_in_the_history():
    prompt = {"role": "user", "content": "Your response above was cut off mid-stream."}
    stage = EventsStage()
    stage.process([policy(0, record=True)])
    line = json.dumps({"type": "user", "isSynthetic": True, "message": prompt}).encode()
    found = stage.process(records([*streamed("Hi there"), line, None], headers=(*HEADERS, ("exit", b"0")), first=1))
    first, second = [json.loads(turn.value)["message"] for turn in of(found.outputs, AGENT_TURNS)]
    assert "synthetic" not in first
    words = [{"type": "text", "text": prompt["content"]}]
    assert second == {"role": "user", "content": words, "synthetic": True}
    history = History(Policy())
    for index, message in enumerate((prompt, first, second, prompt)):
        (turn,), fixes = read_message(message, index=index)
        assert fixes == []
        history.append(turn)
    assert [piece.synthetic for piece in history.exchanges[-1].user] == [True, False]


def test_waiting_turns_leave_the_changelog_once_they_are_recorded():
    stage = EventsStage()
    first = stage.process(records([*streamed("Hi there"), None], headers=(*HEADERS, ("exit", b"0"))))
    waiting = [key for key in first.changes if key[:1] == b"w"]
    assert len(waiting) == 1
    second = stage.process([policy(20, record=True)])
    assert second.changes[waiting[0]] is None


def test_a_session_that_does_not_record_appends_nothing():
    stage = EventsStage(Defaults(policy=Policy(record_assistant=True)))
    stage.process([policy(0, record=False)])
    made = stage.process(records([*streamed("Hi"), None], headers=(*HEADERS, ("exit", b"0")), first=1))
    assert of(made.outputs, AGENT_TURNS) == []


def test_the_end_of_an_earlier_run_does_not_end_the_present_one():
    stage = EventsStage()
    stage.process(records(streamed("Hello world")[:3]))
    late = (("source", b"claude-cli"), ("run", b"r0"), ("exit", b"0"))
    assert stage.process(records([None], headers=late, first=3)).outputs == []
    rest = items(stage.process(records(streamed("Hello world")[3:], first=4)).outputs)
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
    made = items(stage.process(records([None], headers=(*HEADERS, ("exit", b"killed")), first=3)).outputs)
    completed = [item for item in made if item["type"] == "item/completed"]
    assert [item["incomplete"] for item in completed] == [True]


BAD = [
    pytest.param(Record(partition=3, offset=7, key=None, value=b"{}"), "no_key", id="no key"),
    pytest.param(Record(partition=3, offset=7, key=KEY, value=None), "no_value", id="no value"),
    pytest.param(
        Record(partition=3, offset=7, key=KEY, value=b"{}", headers=(("source", b"nobody"),)),
        "unknown_source",
        id="unknown source",
    ),
    pytest.param(
        Record(partition=3, offset=7, key=KEY, value=b"{}", headers=(("framing", b"\xff"),)),
        "bad_framing",
        id="unknown framing",
    ),
    pytest.param(
        Record(partition=3, offset=7, key=KEY, value=None, headers=(("policy", b"{"),)), "bad_policy", id="bad policy"
    ),
]


@pytest.mark.parametrize(("record", "code"), BAD)
def test_what_cannot_be_used_becomes_a_dead_letter_and_the_neighbours_go_on(record: Record, code: str):
    neighbour = records(streamed("Hello"), key=b"other", first=8)
    result = EventsStage().process([record, *neighbour])
    (letter,) = of(result.outputs, DEAD_LETTERS)
    headers = dict(letter.headers)
    assert (letter.key, letter.value) == (record.key, record.value)
    assert letter.headers[: len(record.headers)] == record.headers
    assert headers["reknit.error.code"] == code.encode()
    assert (headers["reknit.error.partition"], headers["reknit.error.offset"]) == (b"3", b"7")
    assert headers["reknit.error.topic"] == b"provider.events.v1"
    assert items(result.outputs) == items(EventsStage().process(neighbour).outputs)
    assert result.tally["reknit_dead_letters_total", "provider.events.v1", code] == 1


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
def test_hostile_events_give_items_or_dead_letters_and_the_session_goes_on(value: bytes):
    stage = EventsStage()
    first = stage.process(records([value]))
    assert first.outputs
    for output in of(first.outputs, SESSION_ITEMS):
        msgspec.json.decode(output.value, type=AnyItem)
    made = items(stage.process(records(streamed("Hello"), first=1)).outputs)
    assert [item["content"] for item in made if item["type"] == "item/delta"] == ["Hello"]


def test_what_is_counted_is_what_happened():
    lines = streamed("Hello world")
    retry = json.dumps({"type": "system", "subtype": "api_retry", "attempt": 1, "max_retries": 10}).encode()
    result = EventsStage().process(records([*lines[:4], retry, *streamed("Hello again", "msg_2"), b"??"]))
    assert result.tally["reknit_items_total", "claude-cli", "stream"] == 2
    assert result.tally["reknit_retractions_total", "claude-cli"] == 1
    assert result.tally["reknit_events_unrecognised_total", "claude-cli"] == 1
