"""What the demo tells of each session, from both stages in one process: exact, for every session of the fleet."""

from collections import deque
from pathlib import Path

import msgspec
import pytest

from pipeline.demo.recordings import Gathered, Input, Wait, fleet, inputs
from pipeline.fixes import FIXES
from pipeline.stages.base import Record
from pipeline.stages.defaults import Defaults
from pipeline.stages.events import EventsStage
from pipeline.stages.turns import TurnsStage
from topics import HISTORY_FIXES, PROVIDER_REQUESTS

VECTORS = Path(__file__).parents[1] / "conformance" / "demo_fleet.jsonl"
EXPECTED = {row["session"]: row for row in map(msgspec.json.decode, VECTORS.read_bytes().splitlines())}
FLEET = {recording.session: recording for recording in fleet()}


def published(recording):
    """Every record that a pipeline without a broker would have of the session, one at a time, in order."""
    stages = {stage.topic: stage for stage in (TurnsStage(Defaults()), EventsStage(Defaults()))}
    offsets = dict.fromkeys(stages, 0)
    found = []
    for step in inputs(recording):
        if isinstance(step, Wait):
            assert gathered(found).recorded == step.recorded
            continue
        waiting = deque([step])
        while waiting:
            record = waiting.popleft()
            found.append(record)
            if record.topic in stages:
                made = stages[record.topic].process([_at(offsets[record.topic], recording.session, record)])
                offsets[record.topic] += 1
                waiting.extend(Input(output.topic, output.value, output.headers) for output in made.outputs)
    return found


def _at(offset, session, record):
    return Record(partition=0, offset=offset, key=session.encode(), value=record.value, headers=record.headers)


def gathered(records):
    found = Gathered()
    for record in records:
        found.add_record(record.topic, record.value, record.headers)
    return found


def told(records, recording):
    report = msgspec.to_builtins(gathered(records).report(recording))
    del report["title"], report["source"]
    return report


def test_every_session_has_an_expectation():
    assert list(EXPECTED) == list(FLEET)


@pytest.mark.parametrize("session", FLEET)
def test_the_report_is_exact(session):
    recording = FLEET[session]
    assert told(published(recording), recording) == EXPECTED[session]


@pytest.mark.parametrize(
    "session", ["displaced-result", "rejected", "poison", "retry", "killed-in-call", "recorded-calls"]
)
def test_records_that_are_there_twice_change_nothing(session):
    # At least once: a batch that was not committed comes again, from its first record.
    recording = FLEET[session]
    records = published(recording)
    assert told(records + records, recording) == EXPECTED[session]
    assert told([record for record in records for _ in range(2)], recording) == EXPECTED[session]


def test_a_recovered_answer_is_in_the_next_request():
    requests = [record.value for record in published(FLEET["recorded-answer"]) if record.topic == PROVIDER_REQUESTS]
    messages = [msgspec.json.decode(body)["messages"] for body in requests]
    assert [[message["role"] for message in each] for each in messages] == [["user"], ["user", "assistant", "user"]]
    [answer] = EXPECTED["recorded-answer"]["promoted"]
    assert messages[1][1]["content"] == [{"type": "text", "text": answer["text"]}]


def test_only_what_was_refused_or_incomplete_before_is_invalid_or_missing_after():
    # The summary's first two lines, as a fact about the whole fleet.
    for session, expected in EXPECTED.items():
        assert expected["valid"] in {True, None}, session
        if any(not refusal["tolerated"] for refusal in expected["met"]):
            assert expected["valid"], session


def test_the_counted_losses_are_those_of_the_catalogue():
    for session, recording in FLEET.items():
        codes = [
            msgspec.json.decode(record.value)["code"]
            for record in published(recording)
            if record.topic == HISTORY_FIXES
        ]
        assert EXPECTED[session]["lossy"] == sum(not FIXES[code].lossless for code in codes), session
