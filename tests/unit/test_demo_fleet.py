"""The bundled fleet: small, well-formed, free of anybody's machine, and covering what it claims to cover."""

import json
import re
from importlib.resources import files

import msgspec
import pytest

from pipeline.demo.recordings import FILES, Events, Input, Turns, Wait, fleet, inputs, refusals
from pipeline.rules import RULES
from topics import AGENT_TURNS, PROVIDER_EVENTS
from topics.records import TURN_RECORDS

FLEET = fleet()
TEXTS = {name: files("pipeline.demo").joinpath("fleet", name).read_text("utf-8") for name in FILES}
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
def test_nothing_names_a_machine(name):
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
    [recording] = [one for one in FLEET if one.session == "recorded-answer"]
    found = list(inputs(recording))
    topics = [record.topic if isinstance(record, Input) else record for record in found]
    assert topics == [AGENT_TURNS] * 2 + [PROVIDER_EVENTS] * 4 + [Wait(recorded=1), AGENT_TURNS]
    assert found[5].value is None
    assert dict(found[5].headers) == {"source": b"claude-cli", "run": b"1", "exit": b"0"}


def test_the_fleet_meets_refusals_of_many_kinds():
    met = [refusal for recording in FLEET for refusal in refusals(recording)]
    assert {refusal.rule for refusal in met} <= RULES.keys()
    hard = {refusal.rule for refusal in met if not refusal.tolerated}
    assert hard == {
        *("ANT-03", "ANT-04", "ANT-05", "ANT-07", "ANT-08", "ANT-09", "ANT-10", "ANT-11", "ANT-12", "ANT-13"),
        *("ANT-13b", "ANT-14", "ANT-15", "ANT-16", "ANT-18", "ANT-19", "ANT-24", "ANT-25", "ANT-31", "CLI-06"),
    }


def test_a_session_that_its_stream_writes_too_has_no_refusal_of_its_own():
    recorded = [one for one in FLEET if any(isinstance(step, Wait) for step in one.feed)]
    assert [one.session for one in recorded] == ["recorded-answer", "recorded-calls", "codex-retry", "gemini-doubled"]
    assert all(refusals(one) == [] for one in recorded)
