"""The reference reducer: items reduce to a view, and repeated items change nothing."""

import msgspec
import pytest
from msgspec import Raw

from reknit.topics.items import (
    AgentError,
    AgentUnrecognized,
    AnyItem,
    ItemCompleted,
    ItemDelta,
    ItemResult,
    ItemRetracted,
    ItemStarted,
    SessionInit,
    TurnResult,
    TurnStop,
)
from reknit.topics.reducer import reduce


def delta(content, at):
    return ItemDelta(item_id="a", delta_type="text_delta", content=content, at=at)


STARTED = ItemStarted(item_id="a", item_type="text")
STREAM = [
    SessionInit(session_id="s", seq=0),
    STARTED,
    delta("Hel", 0),
    delta("lo", 3),
    ItemStarted(item_id="t", item_type="tool_use", name="Bash"),
    ItemDelta(item_id="t", delta_type="input_json_delta", content='{"a":1', at=0),
    ItemCompleted(item_id="a"),
    ItemCompleted(item_id="t", input=Raw(b'{"a":1}')),
    ItemResult(item_id="t", content=Raw(b"[]")),
    ItemStarted(item_id="b", item_type="text"),
    ItemDelta(item_id="b", delta_type="text_delta", content="gone"),
    AgentError(message="API error", seq=1),
    ItemRetracted(item_id="b"),
    TurnStop(),
    ItemStarted(item_id="u", item_type="user_message", content=Raw(b"[]")),
    ItemStarted(item_id="c", item_type="text", parent_tool_use_id="t"),
    ItemCompleted(item_id="c", incomplete=True, reason="exit"),
    TurnResult(is_error=False, result="Hello", seq=2),
    AgentUnrecognized(reason="non-JSON output", text="?", seq=3),
]


def test_an_item_stays_doubtful_until_its_last_record_says_otherwise():
    doubted = ItemStarted(item_id="d", item_type="text", text="Half", doubtful="attempt", repeats="a")
    view = reduce([*STREAM, doubted, ItemCompleted(item_id="d", doubtful="end")])
    entry = view.blocks("text")[-1]
    assert (entry.item_id, entry.done, entry.doubtful, entry.repeats) == ("d", True, "end", "a")
    view.apply(ItemCompleted(item_id="d", text="Half a word"))
    proven = view.blocks("text")[-1]
    assert (proven.text, proven.done, proven.doubtful) == ("Half a word", True, "")
    view.apply(ItemCompleted(item_id="d", text="Another"))
    assert view.blocks("text")[-1].text == "Half a word"


def picture_of(entry):
    given, came = entry.input and bytes(entry.input), entry.result and bytes(entry.result.content)
    return entry.item_id, entry.text, given, entry.done, entry.incomplete, entry.reason, came


def picture(view):
    return (
        [picture_of(entry) for entry in view.entries],
        view.retracted,
        sorted(view.notices),
        sorted(view.results),
        sorted(view.unrecognized),
    )


EXPECTED = (
    [
        ("a", "Hello", None, True, False, "", None),
        ("t", '{"a":1', b'{"a":1}', True, False, "", b"[]"),
        ("u", "", None, True, False, "", None),
        ("c", "", None, True, True, "exit", None),
    ],
    {"b"},
    [1],
    [2],
    [3],
)


def test_a_stream_reduces_to_its_view():
    assert picture(reduce(STREAM)) == EXPECTED


@pytest.mark.parametrize("length", range(1, len(STREAM) + 1))
def test_a_repeated_range_of_items_changes_nothing(length):
    for start in range(len(STREAM) - length + 1):
        again = STREAM[: start + length] + STREAM[start : start + length] + STREAM[start + length :]
        assert picture(reduce(again)) == EXPECTED


def test_records_survive_their_json():
    read = msgspec.json.decode(msgspec.json.encode(STREAM), type=list[AnyItem])
    assert picture(reduce(read)) == EXPECTED
    assert msgspec.json.encode(read) == msgspec.json.encode(STREAM)


def test_default_values_are_left_out():
    assert msgspec.json.encode([STARTED, delta("x", 0), TurnStop(), TurnResult(is_error=False)]) == (
        b'[{"type":"item/started","item_id":"a","item_type":"text"},'
        b'{"type":"item/delta","item_id":"a","delta_type":"text_delta","content":"x"},'
        b'{"type":"turn/stop"},{"type":"turn/result","is_error":false}]'
    )


@pytest.mark.parametrize(
    ("items", "text"),
    [
        ([delta("Hello", 0), delta("lo, you", 3)], "Hello, you"),
        ([delta("Hello", 0), delta("ell", 1)], "Hello"),
        ([delta("👩‍👧", 0), delta("!", 3)], "👩‍👧!"),
        # A piece in between is missing: deltas after it are hidden until the complete text arrives.
        ([delta("He", 0), delta("o", 4)], "He"),
        ([delta("He", 0), delta("o", 4), ItemCompleted(item_id="a", text="Hello")], "Hello"),
        ([delta("Hello", 0), ItemCompleted(item_id="a", text="Hi"), delta("Hello", 0)], "Hi"),
    ],
)
def test_deltas_are_placed_by_their_position(items, text):
    assert reduce([STARTED, *items]).entries[0].text == text


def test_an_incomplete_item_may_be_completed_and_then_stays_complete():
    cut = ItemCompleted(item_id="a", incomplete=True, reason="result")
    view = reduce([STARTED, delta("He", 0), cut, ItemCompleted(item_id="a", text="Hello"), cut])
    assert [(entry.text, entry.incomplete, entry.reason) for entry in view.entries] == [("Hello", False, "")]


def test_a_retracted_item_does_not_come_back():
    gone = ItemRetracted(item_id="a")
    assert reduce([gone, STARTED, delta("x", 0)]).entries == []
    assert reduce([STARTED, gone, STARTED, ItemResult(item_id="a", content=Raw(b"[]"))]).entries == []
