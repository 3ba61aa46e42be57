"""Lines that are decoded at once give what they give when they are read member by member."""

import json
from pathlib import Path

import msgspec
import pytest
from pipeline.streams.claude_cli.plain import AssistantLine, ResultLine, decode, plain_events

from pipeline.streams.bytes.salvage import read_fields
from pipeline.streams.claude_cli.lines import line_events

FLEET = Path(__file__).parents[2] / "pipeline/demo/fleet/streams.jsonl"
LINES = [
    line
    for recording in map(json.loads, FLEET.read_text().splitlines())
    for run in recording["feed"]
    for line in run.get("lines", ())
    if line.startswith("{") and line.endswith("}")
]
RECORDED = [fields for line in LINES if (fields := json.loads(line)).get("type") in {"assistant", "result"}]
# What a member may be instead.
OTHERS = [None, 1, 1.5, True, "", "x", [], ["x"], {}, {"type": "text"}, "\ud800", "é"]


def plainly(data):
    """The events of a line by its typed decode; None where that leaves it to the other."""
    try:
        line = decode(data)
    except (ValueError, RecursionError):
        return None
    assert isinstance(line, AssistantLine | ResultLine)
    return plain_events(line, data)


def by_member(data):
    fields = read_fields(data)
    return line_events(json.loads(bytes(fields["type"])), fields)


def same(events):
    """Events as plain JSON, for the order of extras means nothing."""
    return json.loads(msgspec.json.encode(events))


def variants(fields):
    """The line, and each line that differs from it in one member, or has one more or one less."""
    yield fields
    for name in [*fields, "error", "isSidechain", "isApiErrorMessage", "new_member"]:
        if name != "type":
            yield {key: value for key, value in fields.items() if key != name}
            yield from ({**fields, name: other} for other in OTHERS)
    message = fields.get("message", {})
    for name in [*message, "new_member"]:
        yield from ({**fields, "message": {**message, name: other}} for other in OTHERS)


@pytest.mark.parametrize("at", range(len(RECORDED)))
def test_both_ways_of_reading_give_the_same_events(at):
    for fields in variants(RECORDED[at]):
        data = json.dumps(fields).encode()
        found = plainly(data)
        assert found is None or same(found) == same(by_member(data)), data


def test_most_recorded_lines_are_decoded_at_once():
    assert sum(plainly(json.dumps(fields).encode()) is not None for fields in RECORDED) > 0.8 * len(RECORDED)


@pytest.mark.parametrize("damage", [b"\xff", b"\xed\xa0\x80", rb"\ud83d"])
def test_damaged_text_is_left_to_the_tolerant_reader(damage):
    block = b'{"type":"text","text":"' + damage + b'"}'
    assert plainly(b'{"type":"assistant","message":{"id":"m","content":[' + block + b"]}}") is None
