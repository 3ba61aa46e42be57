"""A parked session: records after one that could not be processed wait, and a repair gives the undisturbed result."""

from __future__ import annotations

import json

import pytest
from build import answered, called, said, user
from msgspec import Raw
from stage_runs import OPENED, in_batches, letters, processed, turn
from stored import kinds_in, record_ids

from reknit.pipeline.errors import InternalError
from reknit.pipeline.stages.base import Output, Record, StoppedError
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.events import EventsStage
from reknit.pipeline.stages.turns import TurnsStage
from reknit.topics import DEAD_LETTERS, HISTORY_FIXES, PROVIDER_EVENTS, PROVIDER_REQUESTS

KEY = b"s"
CLOSED = {"type": "session.closed"}
WANTED = {"type": "request.wanted"}
PARK = Defaults(on_dead_letter="park")
POISON = {"type": "turn.appended", "message": {"role": "nobody"}, "id": "p"}


def released(record=None, **fields):
    return {"type": "session.released", **({} if record is None else {"record": record}), **fields}


def record(offset, event, key=KEY):
    value = event if isinstance(event, bytes) else json.dumps(event).encode()
    traced = (("producer", b"crew/1"), ("traceparent", b"00-%032x-%016x-01" % (1, offset + 1)))
    return Record(partition=2, offset=offset, key=key, value=value, headers=traced, timestamp=1000 + offset)


def run(events, defaults=PARK, *, batch=1, restart=None):
    records = [record(offset, event) for offset, event in enumerate(events) if event is not None]
    return processed(lambda: TurnsStage(defaults), in_batches(records, batch), restart)


def published(outputs: list[Output]) -> list[Output]:
    return [output for output in outputs if output.topic != DEAD_LETTERS]


def texts(outputs):
    bodies = [json.loads(output.value) for output in outputs if output.topic == PROVIDER_REQUESTS]
    return [body["messages"][-1]["content"][-1]["text"] for body in bodies]


MENDED = turn(called("call.1"), id="p")
BEHIND = [
    turn(user("stop"), id="u1"),
    turn(said("well")),
    {**OPENED, "system": "Be brief."},
    turn(user("again"), id="u2"),
    turn(user("again"), id="u2"),
    turn(answered("call.1")),
    {"type": "history.rewound", "to": "u2"},
    WANTED,
]
CASES = {
    "in the midst": ([OPENED, turn(user("go"))], MENDED, BEHIND),
    "at the beginning": ([], OPENED, [turn(user("go")), *BEHIND]),
    "with a restore behind": ([OPENED], MENDED, [{"type": "history.restored", "messages": [user("a")]}, WANTED]),
    "with the end behind": ([OPENED, turn(user("go"))], MENDED, [*BEHIND, CLOSED, turn(user("a new life")), OPENED]),
    "with nothing behind": ([OPENED, turn(user("go"))], turn(user("and?")), []),
    "the end itself": ([OPENED], CLOSED, [OPENED, turn(user("a new life"))]),
}


@pytest.mark.parametrize("batch", [1, 3, 99])
@pytest.mark.parametrize("restart", [None, "changelog", "store"])
@pytest.mark.parametrize("poison", [POISON, b"\xff{"], ids=["unusable", "no JSON"])
@pytest.mark.parametrize("case", CASES)
def test_a_released_session_ends_as_if_nothing_had_failed(case, poison, restart, batch):
    before, mended, behind = CASES[case]
    later = [turn(said("fine")), turn(user("later"), id="u9")]
    expected, *_, calm = run([*before, mended, *behind, None, *later])
    outputs, stage, state = run(
        [*before, poison, *behind, released(mended, id="r"), *later], batch=batch, restart=restart
    )
    assert letters(outputs)[0][0] == len(before)
    assert [o for o in letters(outputs)[1:] if o[1] != "rejected"] == []
    assert published(outputs) == published(expected)
    assert stage.levels() == {"reknit_sessions_parked": 0, "reknit_turns_waiting": 0}
    assert kinds_in(state).isdisjoint({"parked session", "waiting record"})
    added = {key: state[key] for key in state.keys() - calm.keys()}
    assert (kinds_in(added) <= {"record id"}, record_ids(added) <= {"r"}) == (True, True)


def test_a_session_released_without_the_record_continues_after_it():
    outputs, stage, _ = run([OPENED, POISON, turn(user("one")), turn(said("two")), turn(user("three")), released()])
    assert letters(outputs) == [(1, "unknown_role")]
    assert texts(outputs) == ["one", "three"]
    assert not stage.levels()["reknit_sessions_parked"]


def test_parking_a_session_does_not_affect_its_neighbours():
    stage = TurnsStage(PARK)
    made = stage.process(
        [record(0, OPENED), record(1, POISON), record(2, OPENED, b"t"), record(3, turn(user("a")), b"t")]
    )
    assert texts(made.outputs) == ["a"]
    assert stage.levels() == {"reknit_sessions_parked": 1, "reknit_turns_waiting": 0}


def test_a_waiting_record_that_fails_parks_the_session_again():
    log = [OPENED, POISON, turn(user("one")), b"{", turn(said("two")), turn(user("three"))]
    first = run([*log, released()])
    assert letters(first[0])[1:] == [(3, "not_json")]
    assert texts(first[0]) == ["one"]
    assert first[1].levels() == {"reknit_sessions_parked": 1, "reknit_turns_waiting": 2}
    for restart in (None, "changelog", "store"):
        outputs, *_ = run([*log, released(), released(turn(said("so")))], restart=restart)
        assert texts(outputs) == ["one", "three"]


@pytest.mark.parametrize(
    "mended", [POISON, released(), {"type": "nobody.knows"}], ids=["unusable", "released", "unknown"]
)
def test_a_release_with_an_unprocessable_record_changes_nothing(mended):
    log = [OPENED, POISON, turn(user("one")), released(mended, id="r")]
    outputs, stage, _ = run(log)
    assert [offset for offset, _ in letters(outputs)] == [1, 3]
    assert stage.levels() == {"reknit_sessions_parked": 1, "reknit_turns_waiting": 1}
    assert texts(run([*log, released(turn(said("so")), id="r")])[0]) == ["one"]


def test_concurrent_release_is_idempotent():
    once = [OPENED, POISON, turn(user("one")), released(turn(said("so")), id="r")]
    for restart in (None, "changelog", "store"):
        outputs, stage, _ = run([*once, once[-1], turn(said("two")), turn(user("three"))], restart=restart)
        assert letters(outputs)[1:] == []
        assert texts(outputs) == ["one", "three"]
        assert not stage.levels()["reknit_sessions_parked"]


def test_a_session_that_is_not_parked_cannot_be_released():
    outputs, *_ = run([OPENED, released(), turn(user("one"))])
    assert letters(outputs) == [(1, "not_parked")]
    assert texts(run([OPENED, released(), turn(user("one"))], Defaults(on_dead_letter="go-on"))[0]) == ["one"]


@pytest.mark.parametrize("policy", ["go-on", "follow", "park"])
@pytest.mark.parametrize(
    "before", [[released(), POISON], [POISON, released()], [POISON, released(), released(), POISON]]
)
def test_where_batches_end_has_no_influence_on_the_beginning_of_a_session(before, policy):
    events, params = [*before, turn(user("one"))], {"max_tokens": Raw(b"100")}
    defaults = Defaults(on_dead_letter=policy, model="claude-sonnet-4-5", params=params)
    together, *apart = (run(events, defaults, restart=restart)[0] for restart in (None, "changelog", "store"))
    assert apart == [together, together]
    # A session that is parked or quarantined at the end has no request.
    waits = policy == "follow" or (policy == "park" and before[-1] == POISON)
    assert texts(together) == ([] if waits else ["one"])


@pytest.mark.parametrize("bound", [{"parked_records": 2}, {"parked_bytes": 500}], ids=["records", "bytes"])
def test_records_beyond_the_bound_are_dead_letters_until_the_history_is_restored(bound):
    defaults = Defaults(on_dead_letter="park", **bound)
    log = [OPENED, POISON, turn(user("one")), turn(said("two")), turn(user("x" * 300)), turn(user("y"))]
    restored = {"type": "history.restored", "messages": [user("a")]}
    for restart in (None, "changelog", "store"):
        outputs, stage, _ = run([*log, released(), turn(user("z")), restored, WANTED], defaults, restart=restart)
        assert letters(outputs)[1:] == [(4, "parked_full"), (5, "parked_full"), (7, "quarantined")]
        assert texts(outputs) == ["one", "a"]
        assert not stage.levels()["reknit_sessions_parked"]


def test_a_parked_session_is_forgotten_immediately_with_all_waiting_records():
    forgotten = {"type": "session.forgotten"}
    _, stage, state = run([OPENED, POISON, turn(user("one")), turn(user("two")), forgotten], batch=2)
    assert kinds_in(state) == {"time", "marker"}
    assert stage.levels() == {"reknit_sessions_parked": 0, "reknit_turns_waiting": 0}
    _, _, state = run([OPENED, POISON, turn(user("one")), forgotten], restart="changelog")
    assert kinds_in(state) == {"time", "marker"}


def test_a_record_that_made_the_stage_raise_parks_its_session():
    stage = TurnsStage(PARK)
    stage.process([record(0, OPENED)])
    made = stage.refuse(record(1, turn(user("bug"))), InternalError("internal", ""))
    made.outputs += stage.process([record(2, turn(user("one"))), record(3, released(turn(said("so"))))]).outputs
    assert letters(made.outputs) == [(1, "internal")]
    assert texts(made.outputs) == ["one"]


def test_a_waiting_record_costs_the_changelog_only_its_own_size():
    stage = TurnsStage(PARK)
    stage.process([record(0, OPENED), record(1, POISON)])
    sizes = [
        sum(len(value or b"") for value in stage.process([record(at, turn(user("x" * 100)))]).changes.values())
        for at in range(2, 502)
    ]
    assert max(sizes) - min(sizes) <= 16


def test_the_stop_policy_ends_the_worker_at_the_record():
    stage = TurnsStage(Defaults(on_dead_letter="stop"))
    with pytest.raises(StoppedError) as caught:
        stage.process([record(0, OPENED), record(1, {"type": "history.rewound", "to": "secret"})])
    assert "agent.turns.v1/2/1 cannot be processed (unknown_message)" in caught.value.message
    assert "secret" not in caught.value.message


def test_a_stream_continues_without_its_record_or_the_worker_stops_there():
    bad = Record(partition=2, offset=1, key=KEY, value=None)
    for policy in ("go-on", "follow", "park"):
        stage = EventsStage(Defaults(on_dead_letter=policy))
        found = [*stage.process([bad]).outputs, *stage.refuse(bad, InternalError("internal", "")).outputs]
        assert letters(found) == [(1, "no_value"), (1, "internal")]
    stage = EventsStage(Defaults(on_dead_letter="stop"))
    with pytest.raises(StoppedError, match=r"provider.events.v1/2/1 cannot be processed \(no_value\)"):
        stage.process([bad])


def test_a_failed_opening_loses_none_of_the_workers_own_records():
    outputs, *_ = run([{**OPENED, "targets": ["nobody"]}, turn(user("go")), released(OPENED)])
    assert [o.topic for o in outputs] == [DEAD_LETTERS, PROVIDER_EVENTS, PROVIDER_REQUESTS]
    assert HISTORY_FIXES not in {o.topic for o in outputs}
