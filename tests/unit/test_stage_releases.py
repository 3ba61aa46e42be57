"""A release in slices gives the outputs of a release in one step, in order, despite other records and restarts."""

from __future__ import annotations

import json
from itertools import accumulate

import msgspec
import pytest
from build import said, user
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from stage_runs import Sliced, letters, turn
from stored import kinds_in, without_kinds

from reknit.pipeline.engine.stores import PackedRecords
from reknit.pipeline.errors import InternalError
from reknit.pipeline.replay import Plan, PlannedStage
from reknit.pipeline.stages.base import Output, Record
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.turns import TurnsStage
from reknit.topics import AGENT_TURNS, DEAD_LETTERS, PROVIDER_EVENTS, PROVIDER_REQUESTS

OPENED = {"type": "session.opened", "policy": {"expires_after": 60}}
CLOSED, FORGOTTEN = {"type": "session.closed"}, {"type": "session.forgotten"}
RELEASED = {"type": "session.released"}
REPAIRED = RELEASED | {"record": turn(said("repaired"))}
UNUSABLE = {"type": "turn.appended", "message": {"role": "nobody"}}
WANTED = {"type": "request.wanted"}
RESTORED = {"type": "history.restored", "messages": [user("first"), said("second")]}
ANSWERED = {"type": "provider.answered", "request_id": "r", "status": 400, "body": "no"}
PARK = Defaults(model="m", params={"max_tokens": msgspec.Raw(b"9")}, on_dead_letter="park")


def log(*rows):
    """Records of a partition: session, second, and event."""
    return [
        Record(
            partition=0,
            offset=offset,
            key=key.encode(),
            value=value if isinstance(value, bytes) else json.dumps(value).encode(),
            timestamp=int(second * 1000),
        )
        for offset, (key, second, value) in enumerate(rows)
    ]


def of_session(*events, key="a"):
    return log(*((key, 1, event) for event in events))


def texts(outputs):
    bodies = [json.loads(output.value) for output in outputs if output.topic == PROVIDER_REQUESTS]
    return [body["messages"][-1]["content"][-1]["text"] for body in bodies]


def hello(text):
    return turn(user(text), id=text)


def parked_with(*events):
    """A session that is parked by its second record, and these records after it."""
    return [OPENED, UNUSABLE, *events]


# The same outputs.

_STEPS = st.sampled_from([0, 1, 59.999, 60, 60.001, 61, 130])
_EVENTS = st.sampled_from(
    [OPENED, hello("one"), turn(user("two")), turn(said("three")), WANTED, RESTORED, CLOSED, ANSWERED, b"{", UNUSABLE]
    + [RELEASED, REPAIRED, RELEASED | {"id": "r"}] * 2
)


def at_once(records, defaults):
    stage = TurnsStage(defaults)
    outputs = [output for record in records for output in stage.process([record]).outputs]
    assert stage.due_record() is None
    return outputs


def by_session(outputs: list[Output]) -> dict:
    """Return each session's outputs by topic. The record named in an expiry is ignored: it may be another session's."""
    found: dict = {}
    for output in outputs:
        expired = output.topic == PROVIDER_EVENTS and output.headers[0][0] == "expired"
        shown = structs.replace(output, headers=(("expired", b""),)) if expired else output
        found.setdefault((output.key, output.topic), []).append(shown)
    return found


@given(
    st.lists(st.tuples(st.sampled_from("aaaab"), _STEPS, _EVENTS), min_size=4, max_size=24),
    st.lists(st.integers(0, 3), min_size=1, max_size=6),
    st.sampled_from([None, "changelog", "store"]),
    st.sampled_from([{}, {"parked_records": 3}, {"parked_bytes": 600}]),
)
def test_outputs_of_a_session_do_not_depend_on_slices_or_restarts(rows, pace, restart, bounds):
    rows = [*((key, 0, event) for event in (OPENED, UNUSABLE) for key in "ab"), *rows]
    seconds = accumulate(step for _, step, _ in rows)
    timed = [(key, second, event) for (key, _, event), second in zip(rows, seconds, strict=True)]
    last = timed[-1][1]
    # Each session is released in the end, and records of another session free the expired ones.
    records = log(
        *timed, *((key, last, RELEASED) for key in "ab"), *(("z", last + more, WANTED) for more in (0, 90, 99))
    )
    defaults = structs.replace(PARK, **bounds)
    sliced, whole, expected = Sliced(lambda: TurnsStage(defaults), restart), TurnsStage(defaults), []
    for number, record in enumerate(records):
        expected += whole.process([record]).outputs
        sliced.take(record)
        sliced.release(1 << 30 if record.key == b"z" else pace[number % len(pace)])
        if sliced.stage.due_record() is None:  # all that came was taken, so all that has ended has ended here too
            assert by_session(sliced.outputs) == by_session(expected)
    assert "release" not in kinds_in(sliced.state)


def ended(outputs):
    return [output.key for output in outputs if output.topic == PROVIDER_EVENTS and output.headers[0][0] == "expired"]


def released_from(at, records, **bounds):
    """Return all outputs if due records wait until the record at this index, and are all processed from there on."""
    sliced = Sliced(lambda: TurnsStage(structs.replace(PARK, **bounds)))
    for number, record in enumerate(records):
        if number >= at:
            sliced.release()
        sliced.take(record)
    sliced.release()
    return sliced.outputs


WAITING = (("a", 0, OPENED), ("a", 0, UNUSABLE), ("a", 10, hello("one")), ("a", 20, turn(said("two"))))


@pytest.mark.parametrize(
    ("rows", "dead"),
    [
        # The gap of 60 s begins with the release at 100 s, whenever its records are processed.
        ([("a", 160, hello("in time"))], []),
        ([("a", 160.001, hello("late"))], [(5, "expired")]),
        ([("b", 170, WANTED), ("a", 171, hello("late"))], [(6, "expired")]),
        # Each later record restarts it.
        ([("a", 150, hello("x")), ("a", 210, hello("in time"))], []),
        ([("a", 150, hello("x")), ("a", 211, hello("late"))], [(6, "expired")]),
        ([("b", 170, WANTED), ("a", 171, RESTORED), ("a", 231, WANTED)], []),
        # A broker's clock that goes back does not move the time back.
        ([("b", 170, WANTED), ("a", 150, hello("late"))], [(6, "expired")]),
    ],
)
def test_a_session_expires_as_if_it_had_been_released_in_one_step(rows, dead):
    records = log(*WAITING, ("a", 100, RELEASED), *rows, ("z", 500, WANTED))
    expected = at_once(records, PARK)
    assert [letter for letter in letters(expected) if letter[1] == "expired"] == dead
    for at in range(5, len(records)):
        assert by_session(released_from(at, records)) == by_session(expected)


def test_a_session_that_expired_during_its_release_is_freed_at_the_end_of_the_release():
    # The later record follows one that was dropped at the bound, so it does not restart the timeout.
    rows = [("a", 30, hello("two")), ("a", 100, RELEASED), ("a", 150, hello("meanwhile")), ("b", 170, WANTED)]
    *records, last = log(*WAITING[:3], *rows, ("z", 171, WANTED))
    sliced = Sliced(lambda: TurnsStage(structs.replace(PARK, parked_records=1)))
    for record in records:
        sliced.take(record)
        sliced.release(1 if record.offset == 5 else 0)
    *earlier, at_the_end = sliced.release()
    assert [ended(outputs) for outputs in (*earlier, at_the_end)] == [[]] * len(earlier) + [[b"a"]]
    assert ended(sliced.take(last)) == []


@pytest.mark.parametrize(
    ("bounds", "events", "dead"),
    [
        # Records dropped at the bound are missing, so later ones follow them, including those that arrived meanwhile.
        (
            {"parked_records": 1},
            [hello("2"), RELEASED, hello("3"), RESTORED, WANTED],
            [(3, "parked_full"), (5, "quarantined")],
        ),
        # The same if a record of the release fails, and a second release follows.
        (
            {"parked_records": 2},
            [b"{", hello("2"), RELEASED, hello("3"), RELEASED, hello("4")],
            [(4, "parked_full"), (3, "not_json"), (6, "parked_full"), (8, "quarantined")],
        ),
        (
            {"parked_records": 3},
            [b"{", hello("2"), hello("3"), RELEASED, hello("4"), RELEASED, hello("5")],
            [(5, "parked_full"), (3, "not_json"), (7, "parked_full"), (9, "quarantined")],
        ),
        # Records that arrived meanwhile wait within the bounds once the session is parked again.
        (
            {"parked_records": 2},
            [b"{", RELEASED, hello("2"), hello("3"), hello("4"), RELEASED, hello("5")],
            [(3, "not_json"), (7, "parked_full"), (9, "quarantined")],
        ),
        (
            {"parked_bytes": 300},
            [b"{", hello("2"), RELEASED, hello("3"), hello("4"), RELEASED, hello("5")],
            [(3, "not_json"), (7, "parked_full"), (9, "quarantined")],
        ),
    ],
)
def test_bounds_hold_as_if_a_session_had_been_released_in_one_step(bounds, events, dead):
    records = of_session(OPENED, UNUSABLE, hello("1"), *events)
    expected = at_once(records, structs.replace(PARK, **bounds))
    assert letters(expected)[1:] == dead
    for at in range(4, len(records) + 1):
        assert by_session(released_from(at, records, **bounds)) == by_session(expected)


# Slices.

SAID = [hello("one"), turn(said("two")), hello("three"), turn(said("four")), hello("five")]


@pytest.mark.parametrize("restart", [None, "changelog", "store"])
def test_waiting_records_are_processed_in_order_one_at_a_time(restart):
    sliced = Sliced(lambda: TurnsStage(PARK), restart)
    sliced.take(*of_session(*parked_with(*SAID), REPAIRED | {"id": "r"}))
    assert texts(sliced.outputs) == []
    assert sliced.stage.levels() == {
        "reknit_sessions_parked": 0,
        "reknit_sessions_releasing": 1,
        "reknit_turns_waiting": 5,
    }
    assert [texts(outputs) for outputs in sliced.release(3)] == [["one"], [], ["three"]]
    assert sliced.stage.levels()["reknit_turns_waiting"] == 2
    assert [texts(outputs) for outputs in sliced.release()] == [[], ["five"]]
    assert sliced.stage.levels() == {"reknit_sessions_parked": 0, "reknit_turns_waiting": 0}
    assert kinds_in(sliced.state).isdisjoint({"parked session", "waiting record", "release"})


@pytest.mark.parametrize("restart", [None, "changelog", "store"])
def test_later_records_of_a_session_wait_for_its_release_and_those_of_neighbours_do_not(restart):
    sliced = Sliced(lambda: TurnsStage(PARK), restart)
    records = log(
        *(("a", 0, event) for event in [*parked_with(*SAID), RELEASED]),
        ("a", 0, turn(said("six"))),
        ("b", 0, hello("neighbour")),
        ("a", 0, hello("seven")),
    )
    sliced.take(*records[:8])
    first = sliced.release(1)
    assert texts(sliced.take(*records[8:])) == ["neighbour"]
    assert [texts(outputs) for outputs in first + sliced.release()] == [
        ["one"],
        [],
        ["three"],
        [],
        ["five"],
        [],
        ["seven"],
    ]


def test_releases_are_processed_one_after_the_other():
    sliced = Sliced(lambda: TurnsStage(PARK), "changelog")
    waiting = [(key, 0, event) for event in parked_with(hello("one"), turn(said("x")), hello("two")) for key in "ab"]
    sliced.take(*log(*waiting, ("b", 0, RELEASED), ("a", 0, RELEASED)))
    assert [(output.key, *texts([output])) for made in sliced.release() for output in made] == [
        (b"b", "one"),
        (b"b", "two"),
        (b"a", "one"),
        (b"a", "two"),
    ]


def test_a_session_closed_during_its_release_begins_again_with_the_next_record():
    events = [hello("one"), CLOSED, hello("two"), turn(said("x")), hello("three")]
    for restart in (None, "changelog", "store"):
        sliced = Sliced(lambda: TurnsStage(PARK), restart)
        sliced.take(*of_session(*parked_with(*events), RELEASED))
        sliced.release()
        assert texts(sliced.outputs) == ["one", "two", "three"]
        first = [dict(output.headers)["first"] for output in sliced.outputs if output.topic == PROVIDER_REQUESTS]
        assert first == [b"0", b"4", b"4"]


@pytest.mark.parametrize("restart", [None, "changelog", "store"])
def test_forgetting_takes_effect_between_slices(restart):
    sliced = Sliced(lambda: TurnsStage(PARK), restart)
    *records, forgotten, late = of_session(*parked_with(*SAID), RELEASED, hello("late"), FORGOTTEN, hello("later"))
    sliced.take(*records)
    sliced.release(1)
    told = sliced.take(forgotten)
    assert [(output.topic, output.headers[0][0]) for output in told] == [(PROVIDER_EVENTS, "forgotten")]
    assert sliced.release() == []
    assert texts(sliced.outputs) == ["one"]
    assert letters(sliced.take(late)) == [(10, "forgotten")]
    assert kinds_in(sliced.state) == {"time", "marker"}


@pytest.mark.parametrize("restart", [None, "changelog", "store"])
def test_a_failing_record_parks_the_session_and_a_second_release_continues_from_there(restart):
    sliced = Sliced(lambda: TurnsStage(PARK), restart)
    records = of_session(*parked_with(hello("one"), b"{", hello("two")), RELEASED, hello("three"), REPAIRED)
    sliced.take(*records[:6])
    sliced.release(1)
    sliced.take(records[6])  # arrives while the session is being released
    assert [letters(outputs) for outputs in sliced.release()] == [[(3, "not_json")]]
    assert sliced.stage.levels() == {"reknit_sessions_parked": 1, "reknit_turns_waiting": 2}
    sliced.take(records[7])
    sliced.release()
    assert texts(sliced.outputs) == ["one", "two", "three"]


@pytest.mark.parametrize("restart", [None, "changelog", "store"])
def test_a_second_release_that_arrived_before_the_failing_record_is_not_lost(restart):
    sliced = Sliced(lambda: TurnsStage(PARK), restart)
    records = of_session(*parked_with(hello("one"), b"{", hello("two")), RELEASED, hello("three"), REPAIRED)
    sliced.take(*records[:7])
    sliced.take(records[7])
    sliced.release()
    assert letters(sliced.outputs) == [(1, "unknown_role"), (3, "not_json")]
    assert texts(sliced.outputs) == ["one", "two", "three"]
    assert sliced.stage.levels() == {"reknit_sessions_parked": 0, "reknit_turns_waiting": 0}


def test_a_release_of_a_session_that_is_not_parked_does_not_affect_it():
    for policy in ("park", "follow", "go-on"):
        sliced = Sliced(lambda policy=policy: TurnsStage(structs.replace(PARK, on_dead_letter=policy)), "changelog")
        sliced.take(*of_session(OPENED, RELEASED, hello("one")))
        assert (letters(sliced.outputs), texts(sliced.outputs)) == ([(1, "not_parked")], ["one"])


def test_at_the_bound_a_stage_requests_no_more_records_and_drops_none():
    sliced = Sliced(lambda: TurnsStage(structs.replace(PARK, parked_records=2)), "changelog")
    records = of_session(
        *parked_with(hello("one"), turn(said("x"))), RELEASED, *(turn(user(f"{at}")) for at in range(4))
    )
    sliced.take(*records[:6])
    assert sliced.stage.has_room()
    sliced.take(records[6])
    assert not sliced.stage.has_room()
    sliced.take(*records[7:])
    sliced.release(3)
    assert not sliced.stage.has_room(), "three of four that came since still wait"
    sliced.release(2)
    assert sliced.stage.has_room()
    sliced.release()
    assert letters(sliced.outputs) == [(1, "unknown_role")]
    assert texts(sliced.outputs) == ["one", "0", "1", "2", "3"]


def test_a_stage_without_due_records_has_room():
    assert TurnsStage(structs.replace(PARK, parked_records=0)).has_room()


@pytest.mark.parametrize("restart", [None, "changelog", "store"])
def test_a_released_record_that_made_the_stage_raise_parks_the_session(restart):
    sliced = Sliced(lambda: TurnsStage(PARK), restart)
    sliced.take(*of_session(*parked_with(*SAID), RELEASED))
    sliced.release(1)
    refused = sliced.refuse(sliced.stage.due_record(), InternalError("internal", ""))
    assert letters(refused) == [(3, "internal")]
    assert sliced.release() == []
    assert sliced.stage.levels() == {"reknit_sessions_parked": 1, "reknit_turns_waiting": 3}


def test_a_later_record_at_which_the_stage_raised_waits_for_its_turn():
    sliced = Sliced(lambda: TurnsStage(PARK), "changelog")
    rows = [*WAITING, ("a", 100, RELEASED), ("a", 130, hello("x")), ("a", 185, hello("late")), ("z", 186, WANTED)]
    *records, refused, late, last = log(*rows)
    sliced.take(*records)
    assert sliced.refuse(refused, InternalError("internal", "")) == []
    sliced.take(late, last)
    sliced.release()
    assert texts(sliced.outputs) == ["one", "x", "late"]


def test_below_format_3_a_release_is_one_step():
    for state_format in (1, 2):
        stage = TurnsStage(PARK)
        stage.use_format(state_format)
        made = stage.process(of_session(*parked_with(*SAID), RELEASED))
        assert texts(made.outputs) == ["one", "three", "five"]
        assert stage.due_record() is None
        assert "release" not in kinds_in(made.changes)


def test_a_replay_publishes_only_its_range_of_a_release():
    plan = Plan(
        id="r",
        version="1",
        created=0,
        source_prefix="",
        partitions=1,
        starts={AGENT_TURNS: [0]},
        ends={AGENT_TURNS: [99]},
        ranges={AGENT_TURNS: [[(4, 6)]]},
    )
    sliced = Sliced(lambda: PlannedStage(TurnsStage(PARK), plan), "changelog")
    sliced.take(*of_session(*parked_with(*SAID), RELEASED))
    sliced.release()
    assert texts(sliced.outputs) == ["three"]


class CountingStore(PackedRecords):
    reads = 0

    def read(self, session):
        CountingStore.reads += 1
        return super().read(session)


def test_only_the_session_under_release_has_its_waiting_records_in_memory():
    stage, store = TurnsStage(PARK), CountingStore(1 << 20)
    stage.keep_in(store)
    stage.use_format(3)
    keys = "abcdefgh"
    waiting = [(key, 0, event) for event in parked_with(hello("one"), turn(said("x"))) for key in keys]
    for record in log(*waiting, *((key, 0, RELEASED) for key in keys), *((key, 0, hello("two")) for key in keys)):
        stage.committed(stage.process([record]).changes, 0)
    assert {session: len(waits) for session, waits in stage._states._waiting.items()} == {b"a": 3}
    before = CountingStore.reads
    found = []
    while (due := stage.due_record()) is not None:
        made = stage.process([due])
        found += made.outputs
        stage.committed(made.changes, 1 << 30)
    assert texts(found) == ["one", "two"] * len(keys)
    assert CountingStore.reads - before <= 2 * len(keys)


def test_the_size_of_a_slice_does_not_grow_with_the_release():
    stage = TurnsStage(PARK)
    stage.use_format(3)
    texts_of_all = [turn((said if at % 2 else user)(f"{at} " + "x" * 200)) for at in range(300)]
    stage.committed(stage.process(of_session(*parked_with(*texts_of_all), RELEASED)).changes, 1 << 30)
    sizes = []
    while (due := stage.due_record()) is not None:
        made = stage.process([due])
        sizes.append(sum(len(key) + len(value or b"") for key, value in made.changes.items()))
        stage.committed(made.changes, 1 << 30)
    assert len(sizes) == 300
    assert sum(sizes[200:]) <= 1.1 * sum(sizes[100:200])


def test_a_release_without_records_ends_by_itself():
    """A crash between two writes may leave this state if writing is not atomic."""
    sliced = Sliced(lambda: TurnsStage(PARK), "changelog")
    sliced.take(*of_session(*parked_with(hello("one")), RELEASED))
    sliced.state = without_kinds(sliced.state, "waiting record")
    sliced._begin()
    assert sliced.stage.due_record() is None
    records = of_session(*parked_with(hello("one")), RELEASED, hello("two"))
    assert texts(sliced.take(records[4])) == ["two"]
    assert "release" not in kinds_in(sliced.state)


def test_dead_letters_of_a_release_name_the_records_own_places():
    sliced = Sliced(lambda: TurnsStage(structs.replace(PARK, on_dead_letter="go-on")), "changelog")
    parking = Sliced(lambda: TurnsStage(PARK), "changelog")
    parking.take(*of_session(*parked_with(hello("one"), b"{", hello("two")), RELEASED))
    sliced.state = parking.state
    sliced._begin()
    sliced.release()
    assert [o.topic for o in sliced.outputs] == [PROVIDER_REQUESTS, DEAD_LETTERS, PROVIDER_REQUESTS]
    assert letters(sliced.outputs) == [(3, "not_json")]
