"""The demo's fleet is small, names no machine and covers what it claims; and the report of each of its sessions is
exact.

The reports come from both stages in one process and are exact for every session.
"""

import json
import re
from importlib.resources import files
from pathlib import Path

import msgspec
import pytest
from viewer_lab import Topics

from reknit.pipeline.demo.recordings import FILES, Events, Gathered, Input, Turns, Wait, fleet, inputs, refusals
from reknit.pipeline.fixes import FIXES
from reknit.pipeline.rules.sets import RULES
from reknit.topics import AGENT_TURNS, HISTORY_FIXES, PROVIDER_EVENTS, PROVIDER_REQUESTS
from reknit.topics.records import TURN_RECORDS

FLEET = fleet()
SESSIONS = {recording.session: recording for recording in FLEET}
TEXTS = {name: files("reknit.pipeline.demo").joinpath("fleet", name).read_text("utf-8") for name in FILES}
# A record that is torn on purpose.
TORN = {"poison"}


def test_the_fleet_is_small_enough_for_a_wheel():
    assert sum(map(len, TEXTS.values())) < 300_000


def test_sessions_are_distinct_and_titled():
    assert len({recording.session for recording in FLEET}) == len(FLEET)
    assert len({recording.title for recording in FLEET}) == len(FLEET)
    for recording in FLEET:
        assert re.fullmatch(r"[a-z0-9-]+", recording.session)
        assert recording.title
        assert recording.source


@pytest.mark.parametrize("name", FILES)
def test_no_recording_names_a_machine(name):
    places = r"(?<![\w.])/(?:home|root|Users|tmp|scratch|var|private|opt|mnt)\b|\b\d{1,3}(?:\.\d{1,3}){3}\b|localhost"
    assert re.findall(places, TEXTS[name]) == []
    assert re.findall(r"\bsk-[A-Za-z0-9-]{8,}|Bearer |api_key|@[a-z0-9-]+\.[a-z]{2,}", TEXTS[name]) == []


def test_every_log_record_is_of_the_contract():
    for recording in FLEET:
        for step in recording.feed:
            if isinstance(step, Turns):
                for record in step.records:
                    TURN_RECORDS.decode(record)
                assert bool(step.text) == (recording.session in TORN and not step.records)


def test_torn_records_are_torn():
    [torn] = [step.text for recording in FLEET for step in recording.feed if isinstance(step, Turns) and step.text]
    with pytest.raises(msgspec.DecodeError):
        TURN_RECORDS.decode(torn.encode())


def test_every_event_is_one_line_of_an_agent_program():
    runs = [step for recording in FLEET for step in recording.feed if isinstance(step, Events)]
    assert {run.source for run in runs} == {"claude-cli", "codex-cli", "gemini-cli"}
    for run in runs:
        assert run.exit
        for line in run.lines:
            assert "\n" not in line
            assert json.loads(line)["type"]


def test_a_recording_becomes_records_in_order():
    recording = SESSIONS["recorded-answer"]
    found = list(inputs(recording))
    topics = [record.topic if isinstance(record, Input) else record for record in found]
    assert topics == [AGENT_TURNS] * 2 + [PROVIDER_EVENTS] * 4 + [Wait(recorded=1), AGENT_TURNS]
    assert found[5].value is None
    assert dict(found[5].headers) == {"source": b"claude-cli", "run": b"1", "exit": b"0"}


def test_the_fleet_meets_many_kinds_of_refusals():
    met = [refusal for recording in FLEET for refusal in refusals(recording)]
    assert {refusal.rule for refusal in met} <= RULES.keys()
    hard = {refusal.rule for refusal in met if not refusal.tolerated}
    assert hard == {
        *("ANT-03", "ANT-04", "ANT-05", "ANT-07", "ANT-08", "ANT-09", "ANT-10", "ANT-11", "ANT-12", "ANT-13"),
        *("ANT-13b", "ANT-14", "ANT-15", "ANT-16", "ANT-18", "ANT-19", "ANT-24", "ANT-25", "ANT-31", "CLI-06"),
    }


def test_a_session_with_recorded_turns_has_no_refusals():
    recorded = [one for one in FLEET if any(isinstance(step, Wait) for step in one.feed)]
    assert [one.session for one in recorded] == ["recorded-answer", "recorded-calls", "codex-retry", "gemini-doubled"]
    assert all(refusals(one) == [] for one in recorded)


# The report of each session.

VECTORS = Path(__file__).parents[1] / "conformance" / "demo_fleet.jsonl"
EXPECTED = {row["session"]: row for row in map(msgspec.json.decode, VECTORS.read_bytes().splitlines())}


def published(recording):
    """Return every record that a pipeline without a broker would have of the session, topic by topic."""
    topics = Topics()
    for step in inputs(recording):
        if isinstance(step, Wait):
            assert gathered(records_in(topics)).recorded == step.recorded
        else:
            topics.put(step.topic, recording.session, step.value, step.headers)
    return records_in(topics)


def records_in(topics):
    return [Input(topic, record.value, record.headers) for (topic, _), log in topics.logs.items() for record in log]


def gathered(records):
    found = Gathered()
    for record in records:
        found.add_record(record.topic, record.value, record.headers)
    return found


def report_of(records, recording):
    report = msgspec.to_builtins(gathered(records).report(recording))
    del report["title"], report["source"]
    return report


def test_every_session_has_an_expectation():
    assert list(EXPECTED) == list(SESSIONS)


@pytest.mark.parametrize("session", SESSIONS)
def test_the_report_is_exact(session):
    recording = SESSIONS[session]
    assert report_of(published(recording), recording) == EXPECTED[session]


@pytest.mark.parametrize(
    "session", ["displaced-result", "rejected", "poison", "retry", "killed-in-call", "recorded-calls"]
)
def test_duplicate_records_change_nothing(session):
    # At least once: a batch that was not committed is delivered again, from its first record.
    recording = SESSIONS[session]
    records = published(recording)
    assert report_of(records + records, recording) == EXPECTED[session]
    assert report_of([record for record in records for _ in range(2)], recording) == EXPECTED[session]


def test_a_recovered_answer_is_in_the_next_request():
    requests = [record.value for record in published(SESSIONS["recorded-answer"]) if record.topic == PROVIDER_REQUESTS]
    messages = [msgspec.json.decode(body)["messages"] for body in requests]
    assert [[message["role"] for message in each] for each in messages] == [["user"], ["user", "assistant", "user"]]
    [answer] = EXPECTED["recorded-answer"]["promoted"]
    assert messages[1][1]["content"] == [{"type": "text", "text": answer["text"]}]


def test_every_previously_refused_session_becomes_valid():
    # The summary's first two lines, as a fact about the whole fleet.
    for session, expected in EXPECTED.items():
        assert expected["valid"] in {True, None}, session
        if any(not refusal["tolerated"] for refusal in expected["met"]):
            assert expected["valid"], session


def test_the_counted_losses_are_those_of_the_catalogue():
    for session, recording in SESSIONS.items():
        codes = [
            msgspec.json.decode(record.value)["code"]
            for record in published(recording)
            if record.topic == HISTORY_FIXES
        ]
        assert EXPECTED[session]["lossy"] == sum(not FIXES[code].lossless for code in codes), session
