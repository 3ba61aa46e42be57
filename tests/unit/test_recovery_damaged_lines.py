"""Damaged lines become items, never errors."""

import json

import pytest
from claude_lines import block_delta, start
from msgspec import UNSET, Raw
from stream_runs import items_of, only, texts

from reknit.pipeline.streams.events import MOST_TEXT, BlockDelta, BlockNoted
from reknit.pipeline.streams.framing.repair import Halves
from reknit.topics.items import AgentUnrecognized, ItemDelta, SessionRateLimit

LIMIT = b'{"type":"rate_limit_event","rate_limit_info":{"status":"allowed","note":"{\\"type\\":\\"x\\"}"}}'


def answer(text):
    message = {"id": "m1", "model": "m", "content": [{"type": "text", "text": text}]}
    line = {"type": "assistant", "message": message, "parent_tool_use_id": None}
    return json.dumps(line, ensure_ascii=False).encode()


def recovered(*data):
    return items_of("claude-cli", *data)


def reasons(items):
    return [item.reason for item in only(items, AgentUnrecognized)]


LINE = answer('Grüße, 你好 and {braces} and "quotes".')
# Not in the first bytes: a line that begins with the foreign event is that event with something after it.
PLACES = range(1, len(LINE))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("newline", [b"", b"\n"], ids=["same-line", "next-line"])
def test_an_event_written_into_another_line_is_cut_out(place, newline):
    items = recovered(LINE[:place] + LIMIT + newline + LINE[place:])
    assert reasons(items) == []
    assert texts(items) == ['Grüße, 你好 and {braces} and "quotes".']
    assert len(only(items, SessionRateLimit)) == 1


def test_halves_of_a_line_may_arrive_in_different_feeds_with_a_snapshot_between():
    items = items_of("claude-cli", LINE[:120] + LIMIT, LIMIT, LINE[120:], sizes=[1, 1])
    assert (reasons(items), len(texts(items))) == ([], 1)


def test_two_events_may_be_written_into_one_line():
    items = recovered(LINE[:60] + LIMIT + b"\n" + LINE[60:120] + LIMIT + b"\n" + LINE[120:])
    assert (reasons(items), len(texts(items))) == ([], 1)
    assert len(only(items, SessionRateLimit)) == 2


def test_events_without_newlines_keep_their_order():
    items = recovered(answer("one") + answer("two") + LIMIT)
    assert (texts(items), reasons(items)) == (["one", "two"], [])


def test_a_half_whose_rest_never_arrives_is_passed_on_unchanged():
    items = recovered(LINE[:120] + LIMIT + b"\n" + answer("next"))
    assert (reasons(items), texts(items)) == (["non-JSON output"], ["next"])


def test_a_half_waits_for_sixteen_lines_and_no_longer():
    others = [answer(f"n{number}") for number in range(20)]
    late = recovered(LINE[:120] + LIMIT, *others[:16], LINE[120:], *others[16:])
    assert (reasons(late), len(texts(late))) == (["non-JSON output", "non-JSON output"], 20)
    soon = recovered(LINE[:120] + LIMIT, *others[:15], LINE[120:], *others[15:])
    assert (reasons(soon), len(texts(soon))) == ([], 21)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"not json at all", "non-JSON output"),
        (b"null", "not a JSON object"),
        (b"[1, 2]", "not a JSON object"),
        (b'"text"', "not a JSON object"),
        (b'{"type":"assistant"', "non-JSON output"),
        (b'{"type":"assistant"}}', "non-JSON output"),
        (b'{"type": NaN}', "non-JSON output"),
        (b"\xff\xfe\x00\x01\x80binary", "non-JSON output"),
        (b'{"type":' + b"[" * 5000 + b"]" * 5000 + b"}", "nesting too deep"),
        (b"[" * 100_000, "not a JSON object"),
    ],
)
def test_an_unreadable_line_is_an_item(line, reason):
    (item,) = recovered(line)
    assert isinstance(item, AgentUnrecognized)
    assert (item.reason, item.seq) == (reason, 0)
    assert item.text == line.decode("utf-8", "replace")[:MOST_TEXT]


def test_blank_lines_and_carriage_returns_are_ignored():
    assert recovered(b"\n\n  \n\r\n") == []
    assert texts(recovered(answer("a") + b"\r\n" + answer("b") + b"\r\n")) == ["a", "b"]


@pytest.mark.parametrize(
    ("json_text", "text"),
    [(rb"a\ud83db", "a\ufffdb"), (rb"\udc00", "\ufffd"), (rb"\ud83d\ude00", "\U0001f600"), (b"a\xffb", "a\ufffdb"),
     # The character that masks a lone first half.
     (b"\\ud83d" + "\U0010d800".encode(), "\ufffd\U0010d800")],
)  # fmt: skip
def test_a_lone_surrogate_or_a_bad_byte_is_replaced_and_the_rest_is_read(json_text, text):
    items = recovered(answer("HERE").replace(b"HERE", json_text))
    assert (reasons(items), texts(items)) == ([], [text])


def test_a_lone_surrogate_in_a_delta_is_repaired_by_the_complete_message():
    # In JSON each half is a separate escape.
    cut = [start("m1"), *(block_delta(0, type="text_delta", text=half) for half in ("\ud83d", "\ude00"))]
    assert texts(recovered(*cut)) == ["\U0001f600"]
    assert texts(recovered(*cut[:2])) == ["\ufffd"]
    assert texts(recovered(*cut, answer("\U0001f600"))) == ["\U0001f600"]


def test_a_character_whose_halves_are_in_two_deltas_is_whole_between_other_text():
    deltas = [block_delta(0, type="text_delta", text=part) for part in ("a \ud83d", "\ude00 b")]
    assert texts(recovered(start("m1"), *deltas)) == ["a \U0001f600 b"]
    alone = recovered(start("m1"), deltas[0])
    assert [(item.content, item.raw) for item in only(alone, ItemDelta)] == [("a ", UNSET), ("\ufffd", UNSET)]
    assert texts(alone) == ["a \ufffd"]


def test_a_half_that_waits_ends_with_its_run():
    halves = Halves()
    assert halves.follow([BlockDelta(0, "text_delta", "a \U0010d83d", "m1")]) == [
        BlockDelta(0, "text_delta", "a ", "m1")
    ]
    assert halves.end_run() == [BlockDelta(0, "text_delta", "\ufffd", "m1", count=0)]
    assert halves.end_run() == []


def test_masks_in_json_with_bytes_that_are_not_utf_8_are_replaced():
    halves = Halves(masked=True)
    (noted,) = halves.follow([BlockNoted(0, "citations", Raw('"\U0010d83d '.encode() + b'\xff"'))])
    assert noted.value == Raw('"\ufffd \ufffd"'.encode())


def test_a_long_line_that_is_not_json_is_cut_and_its_size_reported():
    line = b"x" * (10 * 1024 * 1024)
    (item,) = recovered(line)
    assert isinstance(item, AgentUnrecognized)
    assert (len(item.text), item.size) == (MOST_TEXT, len(line))


def test_a_long_text_is_complete():
    text = "ä" * (5 * 1024 * 1024)
    assert texts(recovered(answer(text))) == [text]


@pytest.mark.parametrize(
    "hostile",
    [b'{"type":"system"', b'{"type":"system"}', b'{"a":{"type":"rate_limit_event",', b"{" + b" " * 50, b'"\\'],
)
def test_a_hostile_line_is_reported_with_its_size(hostile):
    """``tests/benchmarks/bench_growth.py`` measures the cost."""
    line = hostile * (250_000 // len(hostile))
    (item,) = recovered(line)
    assert isinstance(item, AgentUnrecognized)
    assert (len(item.text), item.size) == (MOST_TEXT, len(line))
