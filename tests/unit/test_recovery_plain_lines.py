"""Lines of the Claude CLI that are decoded in one step give the same events as when they are read member by member."""

import json
from pathlib import Path

import msgspec
import pytest

from reknit.pipeline.providers.claude_cli.stream import ClaudeCli, decode, stream_events
from reknit.pipeline.streams.framing.repair import make_sound, read_fields

FLEET = Path(__file__).parents[2] / "pipeline/demo/fleet/streams.jsonl"
LINES = [
    line
    for recording in map(json.loads, FLEET.read_text().splitlines())
    for run in recording["feed"]
    for line in run.get("lines", ())
    if line.startswith("{") and line.endswith("}")
]
RECORDED = [fields for line in LINES if (fields := json.loads(line)).get("type") == "stream_event"]
# One of each kind of line, by the kinds of its members.
KINDS = {
    (event["type"], *(event.get(inner, {}).get("type") for inner in ("delta", "content_block"))): fields
    for fields in RECORDED
    for event in [fields["event"]]
}
# Alternative values of a member.
OTHERS = [None, 1, 1.5, True, "", "x", [], ["x"], {}, {"type": "text"}, {"stop_reason": "x"}, "\ud800", "é"]
# Additional members of a line or an event.
MORE = ["abandoned_blocks", "api_message_id", "context_management", "usage", "signature", "citations", "new_member"]


def read_at_once(line):
    return ClaudeCli().feed(line)


def read_by_member(line):
    """Read a line member by member. The decoder replaces the masks of half surrogates."""
    decoder = ClaudeCli()
    sound, masked = make_sound(line)
    decoder.halves.masked = masked
    events = stream_events(read_fields(sound))
    return decoder.halves.follow(events) if masked else events


def is_decoded_at_once(line):
    try:
        return decode(line).parent_tool_use_id is None
    except (ValueError, RecursionError):
        return False


def places(value, path=()):
    if isinstance(value, dict):
        yield path
        for name, inner in value.items():
            yield from places(inner, (*path, name))


def changed(value, path, change):
    if not path:
        return change(value)
    return value | {path[0]: changed(value[path[0]], path[1:], change)}


def variants(fields):
    yield fields
    for path in places(fields):
        here = fields
        for name in path:
            here = here[name]
        for name in dict.fromkeys([*here, *MORE]):
            if (path, name) in {((), "type"), ((), "event")}:
                continue  # then it is another kind of line
            yield changed(fields, path, lambda at, name=name: {key: at[key] for key in at if key != name})
            for other in OTHERS:
                yield changed(fields, path, lambda at, name=name, other=other: at | {name: other})


def test_there_is_a_line_of_every_kind():
    assert {event for event, *_ in KINDS} == {
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    }


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: " ".join(filter(None, kind)))
def test_both_ways_of_reading_give_the_same_events(kind):
    for fields in variants(KINDS[kind]):
        line = json.dumps(fields).encode()
        assert msgspec.json.encode(read_at_once(line)) == msgspec.json.encode(read_by_member(line)), line


def test_nearly_all_recorded_events_are_decoded_in_one_step():
    assert sum(is_decoded_at_once(json.dumps(fields).encode()) for fields in RECORDED) > 0.95 * len(RECORDED)


@pytest.mark.parametrize("damage", [b"\xff", b"\xed\xa0\x80", rb"\ud83d"])
def test_damaged_text_is_left_to_the_tolerant_reader(damage):
    delta = b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"' + damage + b'"}}'
    assert not is_decoded_at_once(b'{"type":"stream_event","event":' + delta + b"}")


def test_an_event_with_a_damaged_member_is_no_redelivery_of_itself():
    """A line that decodes but is not plain inside is read a second time, which must not count as a redelivery."""
    start = {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "c", "caller": {}}}
    line = json.dumps({"type": "stream_event", "event": start, "uuid": "u"}).encode()
    decoder = ClaudeCli()
    (event,) = decoder.feed(line)
    assert (event.tool_id, event.kind) == ("c", "tool_use")
    assert decoder.feed(line) == []
