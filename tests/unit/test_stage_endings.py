"""Sessions that expire or are forgotten: by the times of the records, independent of batching and restarts."""

from __future__ import annotations

import json
from itertools import pairwise

import msgspec
import pytest
from build import said, user
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from stage_runs import bodies, letters, of, processed, turn
from stored import of_session

from reknit.pipeline.stages.base import Record, Result
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.events import EventsStage
from reknit.pipeline.stages.tenants import Limits
from reknit.pipeline.stages.turns import TurnsStage
from reknit.topics import DEAD_LETTERS, PROVIDER_EVENTS

OPENED = {"type": "session.opened", "policy": {"expires_after": 60}}
CLOSED, FORGOTTEN = {"type": "session.closed"}, {"type": "session.forgotten"}
RESTORED = {"type": "history.restored", "messages": [user("first"), said("second")]}
RELEASED = {"type": "session.released"}
UNUSABLE = {"type": "turn.appended", "message": {"role": "nobody"}}
WANTED = {"type": "request.wanted"}


def hello(text: str = "hello") -> dict:
    return turn(user(text))


def turns(**more: object) -> TurnsStage:
    return TurnsStage(Defaults(model="m", params={"max_tokens": msgspec.Raw(b"9")}, **more))


def log(*rows: tuple[str, float, object], headers: tuple = ()) -> list[Record]:
    """Records of a partition: session, second, and event."""
    return [
        Record(
            partition=0,
            offset=offset,
            key=key.encode(),
            value=said if said is None or isinstance(said, bytes) else json.dumps(said).encode(),
            headers=headers,
            timestamp=int(second * 1000),
        )
        for offset, (key, second, said) in enumerate(rows)
    ]


def requested(found: Result) -> list[list[str]]:
    return [[block["text"] for message in body["messages"] for block in message["content"]] for body in bodies(found)]


def stream_records(found: Result) -> list[tuple[bytes, str]]:
    """Return the records for the stream side: the session and the first header of each."""
    return [(output.key, output.headers[0][0]) for output in of(found, PROVIDER_EVENTS)]


@pytest.mark.parametrize(
    ("rows", "dead", "texts"),
    [
        pytest.param([("a", 60, hello("two"))], [], [["one"], ["one", "two"]], id="at the gap's end it goes on"),
        pytest.param([("a", 60.001, hello())], [(2, "expired")], [["one"]], id="behind it, it does not"),
        pytest.param(
            [("a", 50, hello("two")), ("a", 100, WANTED)],
            [],
            [["one"], ["one", "two"], ["one", "two"]],
            id="prolonged",
        ),
        pytest.param(
            [("a", 50, b"nonsense"), ("a", 61, hello())],
            [(2, "not_json"), (3, "expired")],
            [["one"]],
            id="what cannot be used does not prolong it",
        ),
        pytest.param(
            [("a", 70, hello()), ("a", 71, b"nonsense"), ("a", 72, CLOSED)],
            [(2, "expired"), (3, "expired"), (4, "expired")],
            [["one"]],
            id="every straggler is told",
        ),
        pytest.param([("a", 70, OPENED), ("a", 71, hello("new"))], [], [["one"], ["new"]], id="opened again"),
        pytest.param(
            [("a", 70, RESTORED), ("a", 71, hello("new"))], [], [["one"], ["first", "second", "new"]], id="restored"
        ),
        pytest.param(
            [("b", 70, b""), ("a", 60, hello())],
            [(2, "not_json"), (3, "expired")],
            [["one"]],
            id="time never goes back",
        ),
        pytest.param(
            [("a", 50, CLOSED), ("a", 70, hello("new"))], [], [["one"], ["new"]], id="a closed one does not expire"
        ),
        pytest.param(
            [("a", 1, {**OPENED, "policy": {"expires_after": 0}}), ("a", 999, WANTED)],
            [],
            [["one"], ["one"]],
            id="the policy is taken back",
        ),
        pytest.param(
            [("a", 1, {**OPENED, "policy": {"expires_after": 5}}), ("a", 7, WANTED)],
            [(3, "expired")],
            [["one"]],
            id="a shorter gap counts at once",
        ),
    ],
)
def test_a_session_expires_by_the_times_of_its_own_records(rows, dead, texts):
    found = turns().process(log(("a", 0, OPENED), ("a", 0, hello("one")), *rows))
    assert (letters(found.outputs), requested(found)) == (dead, texts)


def test_a_parked_session_does_not_expire_and_its_release_restarts_the_timeout():
    stage = turns(on_dead_letter="park")
    found = stage.process(
        log(("a", 0, OPENED), ("a", 1, b"nonsense"), ("a", 500, hello()), ("a", 501, RELEASED), ("a", 561.001, WANTED))
    )
    assert (letters(found.outputs), requested(found)) == ([(1, "not_json"), (4, "expired")], [["hello"]])


def test_a_late_record_neither_stops_a_worker_nor_parks_a_session():
    for policy in ("stop", "park", "follow"):
        stage = turns(on_dead_letter=policy)
        found = stage.process(log(("a", 0, FORGOTTEN), ("a", 1, hello())))
        assert letters(found.outputs) == [(1, "forgotten")]
        assert of_session(found.changes, b"a") == {}


def test_another_sessions_record_frees_an_expired_session_on_both_sides():
    stage, state = turns(), {}
    for record in log(("a", 0, OPENED), ("a", 1, hello()), ("b", 61, hello()), ("b", 61.001, hello())):
        found = stage.process([record])
        state |= found.changes
    assert stream_records(found) == [(b"a", "expired")]
    assert found.tally["reknit_sessions_ended_total", "expired"] == 1
    assert of_session(state, b"a") == {}


def test_sessions_that_expire_together_are_freed_a_few_per_record():
    names = [f"{n:03}" for n in range(200)]
    stage = turns()
    stage.process(log(*((name, 0, OPENED) for name in names)))
    freed = [
        [key.decode() for key, _ in stream_records(stage.process([record]))]
        for record in log(*(("late", 100 + n, hello(str(n))) for n in range(5)))
    ]
    assert list(map(len, freed)) == [64, 64, 64, 8, 0]
    assert [name for some in freed for name in some] == names


def test_an_ended_session_record_is_removed_once_no_older_input_can_arrive():
    stage = turns(marker_ms=1000_000)
    found = stage.process(
        log(
            ("a", 0, OPENED),
            ("b", 70, FORGOTTEN),
            ("a", 1060, WANTED),
            ("b", 1071, hello("b")),
            ("a", 1072, hello("a")),
        )
    )
    assert letters(found.outputs) == [(2, "expired")]
    assert requested(found) == [["b"], ["a"]]


def test_the_dead_letter_of_a_forgotten_session_has_none_of_its_content():
    headers = (("producer", b"crew/1"), ("dataref", b"place"))
    found = turns().process([*log(("a", 1, FORGOTTEN)), *log(("a", 2, OPENED), ("a", 3, b"secret"), headers=headers)])
    late = of(found, DEAD_LETTERS)
    assert [output.value for output in late] == [None, None]
    assert {name for output in late for name, _ in output.headers} == {
        f"reknit.error.{name}" for name in ("code", "message", "topic", "partition", "offset", "version")
    }
    assert [code for _, code in letters(found.outputs)] == ["forgotten", "forgotten"]


def test_a_session_can_be_forgotten_twice_and_after_it_expired():
    found = turns().process(log(("a", 0, OPENED), ("b", 70, hello()), ("a", 71, FORGOTTEN), ("a", 72, FORGOTTEN)))
    assert letters(found.outputs) == []
    assert stream_records(found)[1:] == [(b"a", "expired"), (b"a", "forgotten"), (b"a", "forgotten")]


# The stream side.

DELTA = json.dumps(
    {"type": "stream_event", "event": {"type": "message_start", "message": {"id": "m", "role": "assistant"}}}
)


def events(*rows: tuple[str, float, object, tuple[str, ...]]) -> list[Record]:
    """Records of provider events: session, second, value, and the names of headers."""
    found = log(*(row[:3] for row in rows))
    return [structs.replace(record, headers=_headers(row[3])) for record, row in zip(found, rows, strict=True)]


def _headers(names: tuple[str, ...]) -> tuple:
    return tuple((name, b"{}" if name == "policy" else b"agent.turns.v1/0/7") for name in names)


@pytest.mark.parametrize(
    ("end", "dead"),
    [
        ("closed", []),
        ("expired", [(2, "expired")]),
        ("forgotten", [(2, "forgotten"), (3, "forgotten"), (4, "forgotten")]),
    ],
)
def test_the_stream_side_continues_when_the_history_side_allows_it(end: str, dead: list):
    told = events(
        *(("a", 0, DELTA.encode(), ()), ("a", 1, None, (end,)), ("a", 2, DELTA.encode(), ())),
        *(("a", 3, None, ("policy",)), ("a", 4, DELTA.encode(), ())),
    )
    assert letters(EventsStage().process(told).outputs) == dead


def test_open_items_of_a_forgotten_session_are_not_shown():
    stage = EventsStage()
    stage.process(events(("a", 0, DELTA.encode(), ())))
    found = stage.process(events(("a", 1, None, ("forgotten",))))
    assert found.outputs == []
    assert {key: value for key, value in found.changes.items() if key.endswith(b"a")} == {b"ea": None}


# The result does not depend on batching and restarts.

_NAMES = st.sampled_from("abc")
_STEPS = st.sampled_from([0, 1, 30, 59.999, 60, 60.001, 61, 130])
_TURNS = st.sampled_from([OPENED, hello(), WANTED, RESTORED, CLOSED, FORGOTTEN, RELEASED, b"nonsense", UNUSABLE])
_EVENTS = st.sampled_from(
    [(DELTA.encode(), ()), *((None, (n,)) for n in ("policy", "closed", "expired", "forgotten", "exit"))]
)


def in_order(rows: list) -> list:
    """Convert the delays before rows to seconds since the start; the clock also goes back."""
    found, now = [], 0.0
    for name, step, value in rows:
        now += -step if step == 30 else step
        found.append((name, now, value))
    return found


def run(make, batches: list[list[Record]], *, restarted: bool) -> tuple[dict, dict]:
    """Return all outputs by topic and session, and the final content of the changelog.

    Assert that the changelog has nothing of a session that has ended.
    """
    found, stage, state = processed(make, batches, "changelog" if restarted else None)
    outputs: dict = {}
    for output in found:
        outputs.setdefault((output.topic, output.key), []).append(output)
    over = {name for name in (b"a", b"b", b"c") if stage._endings.why_over(name)}
    assert not any(of_session(state, name) for name in over)
    return outputs, state


def assert_independent_of_batching(make, records: list[Record], cuts: set[int]) -> None:
    edges = [0, *sorted(cut for cut in cuts if 0 < cut < len(records)), len(records)]
    batches = [records[a:b] for a, b in pairwise(edges)]
    alone = run(make, [[record] for record in records], restarted=False)
    assert run(make, batches, restarted=False) == alone
    assert run(make, batches, restarted=True) == alone


@given(
    st.lists(st.tuples(_NAMES, _STEPS, _TURNS), max_size=14),
    st.sets(st.integers(1, 13)),
    st.sampled_from(["go-on", "follow", "park"]),
    st.sampled_from([Limits(), Limits(bytes=1_000)]),
)
def test_session_ends_do_not_depend_on_batching_or_restarts(rows, cuts, on_dead_letter, limits):
    assert_independent_of_batching(
        lambda: turns(marker_ms=150_000, on_dead_letter=on_dead_letter, limits=limits), log(*in_order(rows)), cuts
    )


@given(st.lists(st.tuples(_NAMES, _STEPS, _EVENTS), max_size=14), st.sets(st.integers(1, 13)))
def test_session_ends_of_streams_do_not_depend_on_batching_or_restarts(rows, cuts):
    told = events(*((name, second, *said) for name, second, said in in_order(rows)))
    assert_independent_of_batching(lambda: EventsStage(Defaults(marker_ms=150_000)), told, cuts)
