"""Keys and headers that any client can write: a dead letter if they are required, otherwise the record without them."""

from __future__ import annotations

import json

import claude_lines as cli
import pytest
from build import said, user
from msgspec import structs
from stage_runs import KEY, OPENED, in_batches, letters, of, processed, records, turn
from stored import key_for

from reknit.pipeline.stages.base import Record
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.events import EventsStage
from reknit.pipeline.stages.turns import TurnsStage
from reknit.topics import AGENT_TURNS, DEAD_LETTERS, HISTORY_FIXES, PROVIDER_EVENTS, PROVIDER_REQUESTS, SESSION_ITEMS

LONG = b"x" * (16 * 1024 + 1)
FAULTS = {"null": None, "not UTF-8": b"a\xff\xfe", "long": LONG}
SAYS = {"null": "is null", "not UTF-8": "is not UTF-8", "long": "is longer than 16384 bytes"}
BAD_NAME = ("\ufffdname", b"x")
DROPPED = "reknit_headers_dropped_total"

# The headers of every event; each can be replaced by a bad one.
GOOD = {
    "source": b"claude-cli",
    "run": b"r",
    "producer": b"crew/1",
    "traceparent": b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "request-id": b"q",
}
EVENT = {"type": "assistant", "message": {"id": "m", "role": "assistant", "content": [cli.said("hello")]}}
BROKEN = turn(user("hi", " "))  # one fix and one request


def headers(**changed):
    named = GOOD | {name.replace("_", "-"): value for name, value in changed.items()}
    return tuple(named.items())


def without(*names):
    return tuple((name, value) for name, value in GOOD.items() if name not in names)


def assert_well_formed(found):
    for output in found.outputs:
        for name, value in output.headers:
            assert isinstance(value, bytes), name
            value.decode()


def letter_of(found):
    (letter,) = of(found, DEAD_LETTERS)
    return {name: value.decode() for name, value in letter.headers}


def shown(found):
    return [(output.key, json.loads(output.value), output.headers) for output in of(found, SESSION_ITEMS)]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", ["source", "run", "framing", "transcript", "status"])
def test_an_event_with_a_bad_required_header_is_a_dead_letter_and_the_session_continues(name: str, fault: str):
    bad, good = records([EVENT], headers(**{name: FAULTS[fault]})), records([EVENT], headers(), first=1)
    found, alone = EventsStage().process([*bad, *good]), EventsStage().process(good)
    assert letters(found.outputs) == [(0, "bad_header")]
    assert letter_of(found)["reknit.error.message"] == f"header `{name}` {SAYS[fault]}"
    assert shown(found) == shown(alone)
    assert found.changes == alone.changes
    assert found.tally == alone.tally | {("reknit_dead_letters_total", PROVIDER_EVENTS, "bad_header"): 1}
    assert_well_formed(found)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(
    "name", ["producer", "traceparent", "request-id", "exit", "policy", "closed", "origin", "dataref"]
)
def test_a_bad_optional_header_of_an_event_is_ignored_and_counted(name: str, fault: str):
    given = records([EVENT] * 3, headers(**{name: FAULTS[fault]}))
    found = EventsStage().process(given)
    alone = EventsStage().process(records([EVENT] * 3, without(name)))
    assert found.outputs == alone.outputs
    assert found.changes == alone.changes
    assert found.tally == alone.tally | {(DROPPED, PROVIDER_EVENTS, name): 3}


def test_a_header_outside_the_contract_is_neither_read_nor_counted():
    found = EventsStage().process(records([EVENT], headers(other=b"\xff", more=None)))
    assert (found.outputs, found.tally) == (
        (alone := EventsStage().process(records([EVENT], headers()))).outputs,
        alone.tally,
    )


def test_a_request_id_is_required_with_a_status():
    found = EventsStage().process(records([b"{}"], headers(request_id=b"\xff", status=b"400")))
    assert letters(found.outputs) == [(0, "bad_header")]
    assert of(found, AGENT_TURNS) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_ends_whatever_its_exit_header_holds(fault: str):
    ends = {}
    for reason in (b"end of run", FAULTS[fault]):
        stage = EventsStage()
        stage.process(records([cli.start("m"), cli.block_start(0, cli.said(""))], headers()))
        ends[reason] = stage.process(records([None], headers(exit=reason), first=2))
    assert ends[FAULTS[fault]].outputs == ends[b"end of run"].outputs
    assert [item["type"] for _, item, _ in shown(ends[b"end of run"])][-1] == "turn/diagnosis"
    assert ends[FAULTS[fault]].tally[DROPPED, PROVIDER_EVENTS, "exit"] == 1


@pytest.mark.parametrize("fault", FAULTS)
def test_an_unreadable_policy_is_a_dead_letter(fault: str):
    found = EventsStage().process(records([None], (("policy", FAULTS[fault]),)))
    assert letters(found.outputs) == [(0, "bad_header")]


def test_the_workers_own_policy_may_name_any_number_of_tools():
    tools = [{"name": f"{'tool' * 10}{at}", "input_schema": {"type": "object"}} for at in range(1000)]
    opened = {**OPENED, "targets": ["cascade"], "tools": tools}
    (told,) = of(TurnsStage().process(records([opened])), PROVIDER_EVENTS)
    assert len(dict(told.headers)["policy"]) > len(LONG)
    found = EventsStage().process(records([None], told.headers))
    assert (letters(found.outputs), [key for key in found.changes if KEY in key]) == ([], [key_for("stream", KEY)])


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", ["producer", "traceparent", "judged", "dataref"])
def test_a_bad_optional_header_of_a_turn_is_ignored_and_counted(name: str, fault: str):
    events = [OPENED, BROKEN]
    found = TurnsStage().process(records(events, headers(**{name: FAULTS[fault]})))
    alone = TurnsStage().process(records(events, without(name)))
    assert found.outputs == alone.outputs
    assert {output.topic for output in found.outputs} >= {PROVIDER_REQUESTS, HISTORY_FIXES}
    assert found.tally == alone.tally | {(DROPPED, AGENT_TURNS, name): 2}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("stage", [TurnsStage, EventsStage])
def test_an_unreadable_object_key_makes_a_dead_letter(stage, fault: str):
    found = stage().process(records([None], (("dataref", FAULTS[fault]),)))
    assert letters(found.outputs) == [(0, "bad_header")]
    assert letter_of(found)["reknit.error.message"] == f"header `dataref` {SAYS[fault]}"


def test_the_last_header_of_a_name_counts():
    taken = EventsStage().process(records([EVENT], (("source", None), ("run", b"\xff"), *headers())))
    assert letters(taken.outputs) == []
    refused = EventsStage().process(records([EVENT], (*headers(), ("run", b"\xff"))))
    assert letters(refused.outputs) == [(0, "bad_header")]


# Names and keys.

STAGES = {
    TurnsStage: [
        OPENED,
        turn(user("hi")),
        {"type": "session.closed"},
        {"type": "session.forgotten"},
        b"not JSON",
        None,
    ],
    EventsStage: [EVENT, b"not JSON", None],
}
GIVEN = [(stage, event) for stage, events in STAGES.items() for event in events]
CONTROL = [("exit", b"0"), ("policy", b"{}"), ("closed", b"a/0/1"), ("expired", b"a/0/1"), ("forgotten", b"a/0/1")]


@pytest.mark.parametrize("control", CONTROL, ids=[name for name, _ in CONTROL])
@pytest.mark.parametrize(
    ("key", "code"),
    [(KEY, "bad_header"), (b"\xff\xfe", "bad_key"), (b"ok\xc3", "bad_key"), (b"", "no_key"), (None, "no_key")],
)
@pytest.mark.parametrize(("stage", "event"), GIVEN)
def test_a_record_without_a_session_or_with_a_bad_name_changes_nothing(stage, event, key, code, control):
    named = (BAD_NAME, control) if key == KEY else (control,)
    (given,) = records([event], named, key=key)
    found = stage().process([given])
    assert letters(found.outputs) == [(0, code)]
    (letter,) = found.outputs
    assert (letter.key, letter.value, found.changes) == (key, given.value, {})
    assert letter.headers[: len(named)] == named


@pytest.mark.parametrize("size", [1, 99])
def test_a_record_with_a_bad_name_does_not_affect_its_neighbours(size: int):
    good = records([EVENT] * 4, headers())
    bad = [structs.replace(each, offset=9, headers=(*each.headers, BAD_NAME)) for each in good[:2]]
    mixed = [good[0], bad[0], good[1], bad[1], *good[2:]]
    outputs, _, state = processed(EventsStage, in_batches(mixed, size))
    alone, _, kept = processed(EventsStage, in_batches(good, size))
    assert [code for _, code in letters(outputs)] == ["bad_header"] * 2
    assert json_lines(outputs) == json_lines(alone)
    assert state == kept


def json_lines(outputs):
    return [(output.key, json.loads(output.value)) for output in outputs if output.topic == SESSION_ITEMS]


# The content of a dead letter.


def test_a_dead_letter_escapes_invalid_utf8_and_keeps_the_rest():
    given = (
        ("bytes", b"a\xffb"),
        ("null", None),
        ("long", LONG),
        ("text", "é".encode()),
        ("image", b"\x89" * 9_000),
    )
    found = TurnsStage().process(records([b"not JSON"], given))
    (letter,) = of(found, DEAD_LETTERS)
    kept = dict(letter.headers)
    assert (kept["bytes"], kept["null"], kept["long"], kept["text"]) == (b"a\\xffb", b"", LONG, "é".encode())
    assert kept["image"] == b"\\x89" * 4096
    assert_well_formed(found)


def test_a_record_cannot_forge_a_note_about_another_dead_letter():
    forged = (("reknit.error.letter", b"0/5"), ("reknit.error.limit", b"sessions=1"), ("reknit.error.code", b"\xff"))
    (letter,) = of(TurnsStage().process(records([b"not JSON"], forged)), DEAD_LETTERS)
    named = [name for name, _ in letter.headers]
    assert "reknit.error.letter" not in named
    assert "reknit.error.limit" not in named
    assert named.count("reknit.error.code") == 1


def test_the_path_of_an_error_is_cut_like_its_message():
    event = {**OPENED, "params": {"x" * 20_000: 1, "previous_response_id": "r"}, "targets": ["y" * 20_000]}
    found = TurnsStage().process(records([event, turn({"role": "z" * 20_000, "content": "x"})]))
    assert letters(found.outputs)
    assert max(len(value) for output in of(found, DEAD_LETTERS) for _, value in output.headers) <= 4000


def test_a_request_omits_the_header_of_an_overlong_model_name():
    model = "m" * len(LONG)
    (request,) = of(TurnsStage().process(records([{**OPENED, "model": model}, turn(user("hi"))])), PROVIDER_REQUESTS)
    assert "model" not in dict(request.headers)
    assert json.loads(request.value)["model"] == model


# A session that is parked.

PARK = Defaults(on_dead_letter="park")
FAILS = {
    "a bad name": (turn(user("two")), (("producer", b"p/1"), BAD_NAME)),
    "no object": (None, (("producer", b"p/1"), ("dataref", b"\xff"))),
}


def parked(value, given, *, release=None):
    """A session that fails at its third record, has two more, and is released."""
    plain = (("producer", b"p/1"),)
    log = records([OPENED, turn(user("one"))], plain)
    log += records([value], given, first=2)
    # One of the waiting records has headers that state must keep unchanged.
    log += records([turn(said("three"))], (*plain, ("null", None), ("bytes", b"\xff")), first=3)
    log += records([turn(user("four"))], plain, first=4)
    if release is not None:
        log += records([{"type": "session.released", **release}], plain, first=5)
    return log


@pytest.mark.parametrize("restart", [None, "changelog", "store"])
@pytest.mark.parametrize("fails", FAILS)
def test_a_session_parked_for_a_header_is_released_as_if_it_had_never_failed(fails: str, restart):
    repaired = turn(user("two"))
    log = parked(*FAILS[fails], release={"record": repaired})
    outputs, _, _ = processed(lambda: TurnsStage(PARK), in_batches(log, 1), restart)
    right = parked(repaired, (("producer", b"p/1"),))
    expected, _, _ = processed(lambda: TurnsStage(PARK), in_batches(right, 1))
    assert letters(outputs) == [(2, "bad_header")]
    assert [o for o in outputs if o.topic == PROVIDER_REQUESTS] == [o for o in expected if o.topic == PROVIDER_REQUESTS]
    assert len(of_topic(outputs, PROVIDER_REQUESTS)) == 3


def of_topic(outputs, topic):
    return [output for output in outputs if output.topic == topic]


@pytest.mark.parametrize("restart", [None, "changelog"])
def test_a_waiting_record_with_a_bad_name_is_a_dead_letter_when_it_is_processed(restart):
    log = parked(b"not JSON", (), release={})
    log[3] = structs.replace(log[3], headers=(*log[3].headers, BAD_NAME))
    outputs, stage, _ = processed(lambda: TurnsStage(PARK), in_batches(log, 1), restart)
    assert letters(outputs) == [(2, "not_json"), (3, "bad_header")]
    assert stage.levels() == {"reknit_sessions_parked": 1, "reknit_turns_waiting": 1}


@pytest.mark.parametrize("policy", ["follow", "park"])
def test_an_invalid_session_key_leaves_nothing_in_state(policy: str):
    found = TurnsStage(Defaults(on_dead_letter=policy)).process(records([turn(user("hi"))] * 2, key=b"\xff"))
    assert letters(found.outputs) == [(0, "bad_key"), (1, "bad_key")]
    assert found.changes == {}


# Times.

TIMES = [-1, 0, 1, 10**15, 2**63 - 1, -(2**63)]


@pytest.mark.parametrize("stage", STAGES)
def test_any_timestamp_is_accepted(stage):
    policy = {**OPENED, "policy": {"expires_after": 60}}
    events = [policy, turn(user("hi")), turn(said("ho"))] if stage is TurnsStage else [EVENT] * 3
    for time in TIMES:
        log = [structs.replace(each, timestamp=time) for each in records(events, headers())]
        outputs, _, _ = processed(stage, in_batches(log, 1), "changelog")
        assert letters(outputs) == []


def test_a_null_header_of_an_event_does_not_make_the_stage_raise():
    """The stage once raised for one, and the engine read the partition's whole state again."""
    given = Record(partition=0, offset=0, key=KEY, value=b"{}", headers=tuple((name, None) for name in sorted(GOOD)))
    assert letters(EventsStage().process([given]).outputs) == [(0, "bad_header")]
