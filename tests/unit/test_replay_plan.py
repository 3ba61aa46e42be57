"""What a plan takes and covers, and the stage that does no more than it says."""

import json

import msgspec
import pytest
from build import user
from msgspec import structs

from pipeline.replay import Plan, PlannedStage, Selection, Uncompared, digest_of
from pipeline.stages.base import Record
from pipeline.stages.defaults import Defaults
from pipeline.stages.events import EventsStage
from pipeline.stages.turns import TurnsStage
from topics import AGENT_TURNS, PROVIDER_EVENTS, PROVIDER_REQUESTS, SESSION_ITEMS

PLAN = Plan(
    id="monday",
    version="0.4.0",
    created=0,
    source_prefix="live.",
    partitions=1,
    starts={AGENT_TURNS: [0], PROVIDER_EVENTS: [0]},
    ends={AGENT_TURNS: [100], PROVIDER_EVENTS: [100]},
)
DEFAULTS = Defaults(model="claude-sonnet-4-5", params={"max_tokens": msgspec.Raw(b"64")})


def turns(*sessions):
    rows = [
        (key, json.dumps({"type": "turn.appended", "message": user(f"{key} {at}")})) for at, key in enumerate(sessions)
    ]
    return [Record(partition=0, offset=at, key=key.encode(), value=row.encode()) for at, (key, row) in enumerate(rows)]


def requests(plan, records, at_once=100):
    stage = PlannedStage(TurnsStage(DEFAULTS), plan)
    parts = [records[at : at + at_once] for at in range(0, len(records), at_once)]
    outputs = [output for part in parts for output in stage.process(part).outputs if output.topic == PROVIDER_REQUESTS]
    return [(output.key.decode(), dict(output.headers)["cause"].decode().rpartition("/")[2]) for output in outputs]


@pytest.mark.parametrize(
    ("asked", "taken"),
    [
        ((), ["a1", "a2", "b[1]"]),
        (("a1",), ["a1"]),
        (("a?", "b"), ["a1", "a2"]),
        (("b[1]",), ["b[1]"]),
    ],
)
def test_sessions_are_named_by_ids_and_patterns(asked, taken):
    plan = structs.replace(PLAN, selection=Selection(sessions=asked))
    assert [key for key, _ in requests(plan, turns("a1", "a2", "b[1]"))] == taken


@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_a_range_selects_outputs_and_sessions_are_read_from_their_beginning(at_once):
    given = turns("a", "b", "a", "b", "a", "b")
    plan = structs.replace(PLAN, ranges={AGENT_TURNS: [[(2, 3), (4, 5)]]}, chosen={"a": []})
    assert requests(plan, given, at_once) == [("a", "2"), ("a", "4")]
    alone = TurnsStage(DEFAULTS).process([record for record in given if record.key == b"a"])
    bodies = [output.value for output in alone.outputs if output.topic == PROVIDER_REQUESTS]
    shown = PlannedStage(TurnsStage(DEFAULTS), plan).process(given)
    assert [output.value for output in shown.outputs if output.topic == PROVIDER_REQUESTS] == bodies[1:]
    assert shown.changes == alone.changes


def test_what_cannot_be_compared_or_was_forgotten_is_not_processed():
    plan = structs.replace(PLAN, uncompared=[Uncompared("a", AGENT_TURNS, "expired")], forgotten=[digest_of(b"b")])
    assert requests(plan, turns("a", "b", "c")) == [("c", "2")]
    assert not plan.takes_everything()
    assert PLAN.takes_everything()


def events(*rows):
    headers = [(() if run is None else (("run", run.encode()),)) for _, run in rows]
    return [
        Record(partition=0, offset=at, key=b"s", value=b'{"type":"system","subtype":"%d"}' % at, headers=named)
        for (at, _), named in zip(rows, headers, strict=True)
    ]


@pytest.mark.parametrize(
    ("runs", "shown"),
    [(["two"], [2, 3, 4]), ([None], [0, 1, 2, 3, 4]), ([], [3, 4])],
)
def test_items_are_those_of_whole_runs(runs, shown):
    plan = structs.replace(PLAN, ranges={PROVIDER_EVENTS: [[(3, 4)]]}, chosen={"s": runs})
    stage = PlannedStage(EventsStage(DEFAULTS), plan)
    given = events((0, "one"), (1, "one"), (2, "two"), (3, "two"), (4, None))
    made = [record.offset for record in given if any(o.topic == SESSION_ITEMS for o in stage.process([record]).outputs)]
    assert made == shown


def test_dead_letters_of_records_without_a_key_belong_to_nobody():
    nobody = [Record(partition=0, offset=at, key=None, value=b"{}") for at in range(2)]
    plan = structs.replace(PLAN, ranges={AGENT_TURNS: [[(1, 2)]]}, chosen={})
    assert len(PlannedStage(TurnsStage(DEFAULTS), plan).process(nobody).outputs) == 1
    named = structs.replace(PLAN, selection=Selection(sessions=("a",)))
    assert PlannedStage(TurnsStage(DEFAULTS), named).process(nobody).outputs == []
