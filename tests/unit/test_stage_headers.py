"""Headers of outputs: the source record, the reason, the producer, and the links between requests."""

from __future__ import annotations

import json

import pytest
from anthropic_events import block, start
from build import called, said, user
from stage_runs import KEY, OPENED, in_batches, of, processed, records, turn

from reknit.pipeline.stages.events import EventsStage
from reknit.pipeline.stages.turns import TurnsStage
from reknit.topics import DEAD_LETTERS, HISTORY_FIXES, PROVIDER_EVENTS, PROVIDER_REQUESTS, SESSION_ITEMS

WANTED = {"type": "request.wanted"}
PASSED = (("producer", b"crew/1.4"), ("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))


INTERRUPTED = [turn(user("hi")), turn(called("call_1", "ls")), turn(user("never mind"))]


def headers_of(stage, events: list[dict], topic: str, headers: tuple = (), first: int = 0) -> list[dict[str, str]]:
    """Return the headers of a stage's outputs for a topic."""
    found = of(stage.process(records(events, headers, first=first)), topic)
    return [{k: v.decode() for k, v in each.headers} for each in found]


def requests(*events: dict, first: int = 0) -> list[dict[str, str]]:
    return headers_of(TurnsStage(), list(events), PROVIDER_REQUESTS, first=first)


def test_a_request_names_its_cause_and_the_first_record_of_its_session():
    first, second = requests(OPENED, turn(user("hi")), turn(said("yes?")), turn(user("go")), first=40)
    assert (first["cause"], first["reason"], first["first"]) == ("agent.turns.v1/2/41", "turn", "40")
    assert (second["cause"], second["first"]) == ("agent.turns.v1/2/43", "40")


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([turn(user("hi"))], "turn"),
        (INTERRUPTED, "interrupted"),
        ([*INTERRUPTED, turn(user("nor that"))], "interrupted"),
        ([*INTERRUPTED, turn(said("ok")), turn(user("next"))], "turn"),
        ([*INTERRUPTED, turn(called("call_2", "ls")), turn(user("stop"))], "interrupted"),
        ([turn(user("hi")), WANTED], "wanted"),
    ],
)
def test_a_request_has_a_reason(events, reason: str):
    assert requests(OPENED, *events)[-1]["reason"] == reason


def test_each_wanted_request_has_its_own_id():
    found = requests(OPENED, turn(user("hi")), WANTED, WANTED, turn(said("yes?")), turn(user("go")), WANTED)
    ids = [each["request-id"] for each in found]
    assert len(set(ids)) == len(ids) == 5
    assert [each.get("supersedes") for each in found] == [None, ids[0], ids[1], None, ids[3]]


def test_a_reopened_session_makes_other_ids():
    life = [OPENED, turn(user("hi")), {"type": "session.closed"}]
    first, second = requests(*life, *life)
    assert first["request-id"] != second["request-id"]
    assert (first["first"], second["first"]) == ("0", "3")


def test_ids_and_counts_survive_a_restart():
    events = [OPENED, turn(user("hi")), WANTED, WANTED]
    whole = requests(*events)
    outputs, *_ = processed(TurnsStage, in_batches(records(events), 1), "changelog")
    found = [dict(each.headers)["request-id"].decode() for each in outputs if each.topic == PROVIDER_REQUESTS]
    assert found == [each["request-id"] for each in whole]


def test_a_request_has_the_reason_for_a_new_prefix():
    restored = {"type": "history.restored", "messages": [user("other"), said("history"), user("and")]}
    first, second, third = requests(OPENED, turn(user("hi")), restored, WANTED, turn(said("ok")), turn(user("go")))
    assert "prefix-reset" not in first
    assert second["prefix-reset"] == "replaced"
    assert "prefix-reset" not in third


def test_producer_and_trace_of_a_turn_are_passed_to_requests_and_fixes():
    broken = turn(user("hi", " "))
    for topic in (PROVIDER_REQUESTS, HISTORY_FIXES):
        found = headers_of(TurnsStage(), [OPENED, broken], topic, PASSED)
        assert found
        for each in found:
            assert {name: each[name].encode() for name, _ in PASSED} == dict(PASSED)


def test_a_release_of_a_session_that_is_not_parked_is_a_dead_letter():
    mended = {"type": "session.released", "record": turn(user("mended"))}
    (letter,) = headers_of(TurnsStage(), [mended], DEAD_LETTERS)
    assert letter["reknit.error.code"] == "not_parked"


def test_a_providers_answer_sends_nothing_and_changes_nothing():
    answered = {"type": "provider.answered", "request_id": "r", "status": 400, "body": "no"}
    calm = requests(OPENED, turn(user("hi")), WANTED)
    assert requests(OPENED, turn(user("hi")), answered)[:1] == calm[:1]
    assert len(requests(OPENED, turn(user("hi")), answered)) == 1


def test_a_forgotten_session_is_forgotten_on_both_sides():
    stage = TurnsStage()
    found = stage.process(records([OPENED, turn(user("hi")), {"type": "session.forgotten"}]))
    assert not [key for key, value in found.changes.items() if value is not None and KEY in key + value]
    (*_, last) = of(found, PROVIDER_EVENTS)
    assert last.headers == (("forgotten", b"agent.turns.v1/2/2"), ("origin", b"reknit"))
    events = EventsStage()
    kept = events.process(records([b"{}"], (("source", b"anthropic"),))).changes
    gone = events.process(records([None], last.headers, first=1)).changes
    assert dict.fromkeys(kept) == {key: value for key, value in gone.items() if KEY in key}


def sse(event: dict) -> bytes:
    return b"data: " + json.dumps(event).encode() + b"\n\n"


@pytest.mark.parametrize("batch", [1, 4], ids=["one by one", "in one batch"])
def test_items_name_their_run_and_the_request_that_they_answer(batch: int):
    """The last items of a run belong to that run, although only the next run shows that it is over."""
    fed = []
    for name in ("1", "2"):
        headers = (("source", b"anthropic"), ("run", f"r{name}".encode()), ("request-id", f"q{name}".encode()))
        events = [start(f"m{name}"), block(0, "text", text="well")]
        fed += records(map(sse, events), headers, first=len(fed))
    found = [each for each in processed(EventsStage, in_batches(fed, batch))[0] if each.topic == SESSION_ITEMS]
    said_of = [(json.loads(each.value)["type"], {k: v.decode() for k, v in each.headers}) for each in found]
    assert [headers for kind, headers in said_of if kind == "item/started"] == [
        {"run": "r1", "request-id": "q1"},
        {"run": "r2", "request-id": "q2"},
    ]
    assert [headers for kind, headers in said_of if kind == "item/completed"] == [{"run": "r1"}]
