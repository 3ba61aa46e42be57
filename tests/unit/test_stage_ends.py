"""Sessions that end, that cannot be read, or that have nothing to send: none leaves state, and none fails silently."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import claude_lines as cli
import pytest
from build import answered, call, called, said, user
from stage_runs import KEY, OPENED, bodies, letters, of, processed, records, restored, turn
from stored import key_for

from reknit.pipeline import Session
from reknit.pipeline.errors import InputError, InternalError
from reknit.pipeline.registry import TARGETS
from reknit.pipeline.stages.base import Record
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.events import EventsStage
from reknit.pipeline.stages.turns import TurnsStage
from reknit.pipeline.streams.session import Recovery
from reknit.topics import AGENT_TURNS, DEAD_LETTERS, PROVIDER_EVENTS, PROVIDER_REQUESTS, SESSION_ITEMS

CLOSED = {"type": "session.closed"}


def run(*events: object):
    return TurnsStage().process(records(list(events)))


LONG = [turn(m, id=f"{n}{m['role']}") for n in range(40) for m in (user("q" * 900), said("a"))]


def codes(found) -> list[str]:
    return [code for _, code in letters(found.outputs)]


def test_a_session_closed_reopened_and_closed_in_one_batch_leaves_no_state():
    twice = [CLOSED, turn(user("again"), id="0user"), CLOSED]
    *_, state = processed(TurnsStage, [records([OPENED, *LONG]), records(twice, first=100)])
    assert state == {}


def test_a_session_closed_twice_accepts_turns_with_the_same_ids_again():
    stage = TurnsStage()
    stage.process(records([OPENED, *LONG]))
    found = stage.process(records([CLOSED, LONG[0], CLOSED, OPENED, LONG[0]], first=100))
    assert [body["messages"][0]["content"] for body in bodies(found)][-1] == user("q" * 900)["content"]
    # The one in between has no model, because the worker's defaults have none.
    assert [output.value for output in of(found, DEAD_LETTERS)] == [json.dumps(LONG[0]).encode()]


def test_a_session_that_was_never_decoded_is_closed_with_all_its_records():
    *_, state = processed(TurnsStage, [records([OPENED, *LONG])])
    found = restored(TurnsStage(), state).process(records([CLOSED], first=100))
    assert found.changes == dict.fromkeys(state)


def test_closing_a_session_notifies_the_stream_side_with_the_place_in_the_log():
    (told,) = of(run(CLOSED), PROVIDER_EVENTS)
    said = (("closed", b"agent.turns.v1/2/0"), ("origin", b"reknit"))
    assert (told.key, told.value, told.headers) == (KEY, None, said)


def closing(*offsets: int) -> list[Record]:
    return [each for at in offsets for each in records([None], (("closed", b"agent.turns.v1/2/0"),), first=at)]


def opened_answer(words: str, first: int = 0) -> list[Record]:
    return streamed([cli.start("msg_1"), *cli.text(words)], first)


def streamed(lines: list[dict], first: int = 0) -> list[Record]:
    return records(lines, (("source", b"claude-cli"),), first=first)


@pytest.mark.parametrize("decoded", [True, False], ids=["in memory", "read back"])
def test_a_closed_session_frees_the_stream_side(decoded):
    _, stage, state = processed(EventsStage, [opened_answer("half")])
    assert state
    if not decoded:
        stage = restored(EventsStage(), state)
    found = stage.process(closing(9, 10))
    assert {key: value for key, value in found.changes.items() if value is not None} == {}
    assert found.changes.keys() >= state.keys()
    items = [json.loads(output.value) for output in of(found, SESSION_ITEMS)]
    assert [item["incomplete"] for item in items if item["type"] == "item/completed"] == [True]
    again = stage.process(opened_answer("new", first=20))
    assert any(value is not None for value in again.changes.values())


def test_closing_a_session_unknown_to_the_stream_side_does_nothing():
    found = EventsStage().process(closing(1))
    assert (found.outputs, found.changes) == ([], {})


def test_turns_waiting_for_the_policy_are_removed_with_the_closed_session():
    lines = [cli.whole("msg_1", cli.said("done")), cli.result("done")]
    _, stage, state = processed(EventsStage, [streamed(lines)])
    assert len(state) > 1
    found = stage.process(closing(9))
    assert found.changes == dict.fromkeys(state)
    assert not of(found, AGENT_TURNS)


CUT = {"type": "tool_use", "id": "t1", "name": "ls", "input": "{", "incomplete": True}


@pytest.mark.parametrize("target", sorted(TARGETS))
@pytest.mark.parametrize("policy", ["drop", "text"])
@pytest.mark.parametrize("words", [[], ["Let me look."]], ids=["call alone", "call and words"])
def test_a_result_of_a_cut_call_is_followed_by_a_request(target: str, policy: str, words: list):
    opened = OPENED | {"targets": [target], "policy": {"incomplete_call": policy}, "params": {"max_tokens": 100}}
    asked = run(opened, turn(user("go")), turn(said(*words, CUT)))
    # The state is reloaded, so that the cut call is known after a restart too.
    fresh = restored(TurnsStage(), asked.changes)
    found = fresh.process(records([turn(answered("t1"))], first=3))
    assert len(of(asked, PROVIDER_REQUESTS)) == 1
    assert len(of(found, PROVIDER_REQUESTS)) == 1


def test_a_result_without_any_call_sends_nothing():
    found = run(OPENED, turn(user("go")), turn(said("done")), turn(answered("nobody")))
    assert len(bodies(found)) == 1


def test_the_other_call_of_a_cut_turn_is_waited_for():
    found = run(OPENED, turn(user("go")), turn(said(CUT, call("t2"))), turn(answered("t1")), turn(answered("t2")))
    assert len(bodies(found)) == 2
    assert [block["type"] for block in bodies(found)[1]["messages"][2]["content"]] == ["tool_result"]


# The Responses API accepts an empty input.
@pytest.mark.parametrize("target", sorted(set(TARGETS) - {"openai-responses"}))
def test_a_wanted_request_for_an_empty_history_is_rejected_in_the_providers_words(target: str):
    opened = {"type": "session.opened", "targets": [target], "model": "m", "params": {"max_tokens": 100}}
    stage = TurnsStage()
    found = stage.process(records([opened, {"type": "request.wanted", "id": "w1"}]))
    assert not of(found, PROVIDER_REQUESTS)
    assert codes(found) == ["rejected"]
    later = stage.process(records([turn(user("Go on.")), {"type": "request.wanted", "id": "w2"}], first=2))
    assert len(of(later, PROVIDER_REQUESTS)) == 2
    assert not of(later, DEAD_LETTERS)


# Damaged state.


def damaged_heads(head: bytes) -> list[bytes]:
    return [head[:at] for at in range(0, len(head), 7)] + [
        head[:at] + bytes([head[at] ^ flip]) + head[at + 1 :] for at in range(len(head)) for flip in (0x01, 0x80)
    ]


def test_a_damaged_head_is_a_typed_error_or_a_session():
    session = Session(["anthropic", "gemini", "cascade"], system=[{"type": "text", "text": "Be kind."}])
    for message in (user("go"), called("t1"), answered("t1"), said("done"), user("on"), called("t2")):
        session.append(json.dumps(message).encode())
    session.request()
    refused = 0
    for damaged in damaged_heads(session.head()):
        try:
            Session.load(damaged, [])
        except (InternalError, InputError):
            refused += 1
    assert refused > 100


def test_a_damaged_snapshot_is_a_typed_error_or_a_recovery():
    recovery = Recovery("anthropic")
    recovery.feed(b"".join(record.value + b"\n\n" for record in opened_answer("half")))
    refused = 0
    for damaged in damaged_heads(recovery.snapshot()):
        try:
            Recovery.restore(damaged)
        except InputError:
            refused += 1
    assert refused > 20


@pytest.mark.parametrize("policy", ["go-on", "follow", "park"])
def test_an_unreadable_session_is_never_treated_as_new(policy):
    stage = TurnsStage(Defaults(on_dead_letter=policy))
    stage.restore(key_for("head", KEY), b"\xc1 not a head")
    for at in range(3):
        found = stage.process(records([turn(user("hi")), b"not json"], first=2 * at))
        assert [output.topic for output in found.outputs] == [DEAD_LETTERS] * 2
        assert codes(found) == ["state_unreadable", "not_json"]
        assert found.changes == {}
    found = stage.process(records([CLOSED, turn(user("hi"))], first=9))
    assert found.changes[key_for("head", KEY)] is not None
    assert codes(found)[:1] in ([], ["rejected"])


def test_an_unreadable_stream_is_never_treated_as_new():
    stage = EventsStage()
    stage.restore(key_for("stream", KEY), b"\xc1 not a state")
    for at in range(2):
        found = stage.process(opened_answer("x", first=3 * at))
        assert {output.topic for output in found.outputs} == {DEAD_LETTERS}
        assert set(codes(found)) == {"state_unreadable"}
    found = stage.process(closing(9))
    assert found.changes == {key_for("stream", KEY): None}


# The order of changelog records.

_ORDER = """
import json
from reknit.pipeline.stages.base import Record
from reknit.pipeline.stages.turns import TurnsStage

def records(events):
    return [Record(partition=2, offset=i, key=b"s", value=json.dumps(e).encode()) for i, e in enumerate(events)]

said = [{"role": role, "content": "q" * 900} for role in ("user", "assistant")]
turns = [{"type": "turn.appended", "message": m, "id": f"{n}{m['role']}"} for n in range(30) for m in said]
stage = TurnsStage()
first = stage.process(records(turns))
second = stage.process(records([{"type": "history.rewound", "to": 3}]))
third = stage.process(records([{"type": "session.closed"}]))
print([[key.hex() for key in found.changes] for found in (first, second, third)])
"""


def test_the_order_of_changelog_records_does_not_depend_on_the_hash_seed():
    command = [sys.executable, "-c", _ORDER]
    seeded = [os.environ | {"PYTHONHASHSEED": seed} for seed in ("1", "2", "3")]
    assert len({subprocess.run(command, env=env, capture_output=True, check=True).stdout for env in seeded}) == 1
