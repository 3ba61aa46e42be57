"""A source that is added by the text of CONTRIBUTING, and by nothing else, is one like any other."""

import json
import re
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import pytest
from msgspec import structs

from reknit.pipeline.providers.base import Provider
from reknit.pipeline.registry import SOURCES, TARGETS
from reknit.pipeline.stages.base import Record
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.events import EventsStage
from reknit.pipeline.stages.turns import TurnsStage
from reknit.pipeline.streams.session import Recovery, recover
from reknit.pipeline.streams.source import Source
from reknit.topics import AGENT_TURNS, PROVIDER_EVENTS, SESSION_ITEMS
from reknit.topics.items import AgentUnrecognized
from reknit.topics.reducer import reduce

TEXT = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Add a source")[2]
DECODER, ENTRY = (textwrap.dedent(block) for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)[:2])
SAID = [
    {"event": "perched", "id": "m1"},
    {"event": "squawk", "word": "pretty "},
    {"event": "squawk", "word": "Polly"},
    {"event": "flown", "why": "fed"},
]
LINES = [json.dumps(event).encode() for event in SAID]


@pytest.fixture(autouse=True)
def _parrot(monkeypatch):
    module = ModuleType("reknit.pipeline.streams.session.parrot")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # where annotations are looked up
    exec(compile(DECODER, "CONTRIBUTING.md", "exec"), vars(module))  # noqa: S102 - it is our own text
    names = vars(module) | {"Provider": Provider, "Source": Source}
    exec(compile(ENTRY, "CONTRIBUTING.md", "exec"), names)  # noqa: S102 - it is our own text
    source = names["PROVIDER"].source
    monkeypatch.setitem(SOURCES, source.name, source)


def said(items):
    return [(entry.item_id, entry.text, entry.done, entry.incomplete) for entry in reduce(items).entries]


def test_its_stream_is_recovered():
    items = list(recover(LINES, source="parrot"))
    assert said(items) == [("parrot-block-0", "pretty Polly", True, False)]
    assert items[-1].stop_reason == "fed"


def test_its_stream_is_recovered_wherever_its_bytes_are_cut():
    data = b"\n".join(LINES)
    for at in range(len(data)):
        recovery = Recovery("parrot")
        items = recovery.feed(data[:at], framing="bytes")
        recovery = Recovery.restore(recovery.snapshot())
        items += recovery.feed(data[at:], framing="bytes") + recovery.end_run()
        assert said(items) == [("parrot-block-0", "pretty Polly", True, False)], at


def test_a_cut_answer_stays_incomplete_and_another_attempt_replaces_it():
    assert said(recover(LINES[:2], source="parrot")) == [("parrot-block-0", "pretty ", True, True)]
    items = list(recover([*LINES[:2], *LINES], source="parrot"))
    assert reduce(items).retracted == {"parrot-block-0"}
    assert said(items) == [("parrot-block-1", "pretty Polly", True, False)]


def test_unknown_events_are_passed_on():
    found = [
        item for item in recover([*LINES, b'{"event":"molts"}'], source="parrot") if type(item) is AgentUnrecognized
    ]
    assert [bytes(item.event) for item in found] == [b'{"event":"molts"}']


def records(source, lines):
    headers = (("source", source),)
    return [Record(partition=0, offset=at, key=b"s", value=line, headers=headers) for at, line in enumerate(lines)]


def test_the_stage_publishes_items_and_records_turns():
    stage = EventsStage(Defaults())
    policy = Record(partition=0, offset=9, key=b"s", value=None, headers=(("policy", b'{"record_assistant":true}'),))
    end = Record(partition=0, offset=10, key=b"s", value=None, headers=(("source", b"parrot"), ("exit", b"0")))
    outputs = stage.process([policy, *records(b"parrot", LINES), end]).outputs
    assert [
        json.loads(o.value).get("content") for o in outputs if o.topic == SESSION_ITEMS and b"delta" in o.value
    ] == ["pretty Polly"]
    (turn,) = [json.loads(o.value) for o in outputs if o.topic == AGENT_TURNS]
    assert turn["message"] == {"role": "assistant", "content": [{"type": "text", "text": "pretty Polly"}]}
    assert turn["source"] == "parrot"
    assert "self_driving" not in turn


def change_entry(monkeypatch, **changes):
    monkeypatch.setitem(SOURCES, "parrot", structs.replace(SOURCES["parrot"], **changes))


@pytest.mark.parametrize(("rewrites", "at_once"), [(False, [len(LINES)]), (True, [])])
def test_records_of_a_rewriting_source_are_fed_one_by_one(monkeypatch, rewrites, at_once):
    change_entry(monkeypatch, rewrites=rewrites)
    fed = []
    feed_each = Recovery.feed_each

    def watched(self, values, run=None):
        fed.append(len(values))
        return feed_each(self, values, run)

    monkeypatch.setattr(Recovery, "feed_each", watched)
    outputs = EventsStage(Defaults()).process(records(b"parrot", LINES)).outputs
    assert fed == at_once
    shown = [json.loads(o.value) for o in outputs if o.topic == SESSION_ITEMS]
    assert "".join(item.get("content", "") for item in shown) == "pretty Polly"


def test_turns_of_a_self_driving_source_are_marked(monkeypatch):
    change_entry(monkeypatch, self_driving=True)
    policy = Record(partition=0, offset=9, key=b"s", value=None, headers=(("policy", b'{"record_assistant":true}'),))
    end = Record(partition=0, offset=10, key=b"s", value=None, headers=(("source", b"parrot"), ("exit", b"0")))
    outputs = EventsStage(Defaults()).process([policy, *records(b"parrot", LINES), end]).outputs
    assert [json.loads(o.value)["self_driving"] for o in outputs if o.topic == AGENT_TURNS] == [True]


def test_a_target_with_filtered_text_is_announced_to_the_stream_side(monkeypatch):
    """The announcement to the stream side depends on the target's description, because the target is also a source."""
    opened = json.dumps({"type": "session.opened", "targets": ["anthropic"], "model": "m"}).encode()
    record = Record(partition=0, offset=0, key=b"s", value=opened)

    def announced():
        outputs = TurnsStage(Defaults()).process([record]).outputs
        (policy,) = [dict(o.headers)["policy"] for o in outputs if o.topic == PROVIDER_EVENTS]
        return json.loads(policy).get("model")

    assert announced() is None
    monkeypatch.setitem(TARGETS, "anthropic", structs.replace(TARGETS["anthropic"], has_filters=True))
    assert announced() == "m"
