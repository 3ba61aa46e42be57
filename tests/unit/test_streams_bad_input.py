"""Bad input of any source becomes an item that says so, in linear time, and the session continues."""

import json

import pytest
from anthropic_events import block, delta, end, start, stop, text
from stream_runs import run, texts
from work_counter import lines

from reknit.pipeline.registry import SOURCES
from reknit.pipeline.streams.session import Recovery
from reknit.topics.reducer import reduce

START, TEXT, END = start(), block(0, "text", text=""), [stop(0), *end()]
each_source = pytest.mark.parametrize("source", sorted(SOURCES))


def encoded(*events):
    return [f"data: {json.dumps(event)}\n\n".encode() for event in events]


@each_source
@pytest.mark.parametrize(
    "data",
    [
        pytest.param(bytes(range(256)) * 40, id="every byte"),
        pytest.param(b"\x00\x00\x00\x20\x00\x00\x00\x10" + b"\xff" * 100, id="a broken frame"),
        pytest.param("data: \U0001f600".encode()[:-2], id="cut UTF-8"),
        pytest.param(b'{"type":"message_start"' + b"," * 1000, id="commas"),
        pytest.param(b"[" * 200_000, id="deep lists"),
        pytest.param(b'{"a":' * 200_000, id="deep objects"),
        pytest.param(b"data:\n" * 10_000, id="empty data"),
        pytest.param(b"null\n[]\n1\ntrue\n", id="values"),
        pytest.param(b"\n\r\n\r\r\n", id="nl"),
    ],
)
def test_any_input_is_accepted_by_every_source(source, data):
    whole, cut = Recovery(source), Recovery(source)
    whole.feed(data)
    for at in range(0, len(data), 4096):
        cut.feed(data[at : at + 4096], framing="bytes")
    for recovery in (whole, cut):
        recovery.end_run("exit")
        assert Recovery.restore(recovery.snapshot()).source == source


def test_interleaved_runs_lose_nothing():
    recovery = Recovery("anthropic")
    first, second = (encoded(START, TEXT, text(0, f"{name}1"), text(0, f"{name}2"), *END) for name in "ab")
    items = []
    for one, two in zip(first, second, strict=True):
        items += recovery.feed(one, "run-a")
        items += recovery.feed(two, "run-b")
    view = reduce([*items, *recovery.end_run("exit")])
    assert "".join(sorted(entry.text for entry in view.entries)) == "a1a2b1b2"
    assert view.retracted == set()


def test_blocks_without_a_start_are_shown():
    data = b"".join(encoded(START, text(7, "a"), text(2**31 - 1, "b"), *END))
    assert texts(Recovery("anthropic").feed(data)) == ["a", "b"]


@pytest.mark.parametrize(
    "event",
    [
        lambda n: text(0, "x"),
        lambda n: block(n, "text", text="x"),
        lambda n: block(0, "text", text="x"),
        lambda n: text(n % 50, "x"),
        lambda n: start(f"m{n}"),
        lambda n: delta(0, "citations_delta", citation={"n": n}),
    ],
    ids=["deltas", "blocks", "the same block", "interleaved blocks", "attempts", "citations"],
)
def test_the_work_is_linear_in_the_length_of_a_message(event):
    def work(count):
        records, recovery = [*encoded(START, TEXT), *encoded(*map(event, range(count)))], Recovery("anthropic")
        return lines(lambda: [recovery.feed(record) for record in records])

    once, twice, thrice = (work(count) for count in (200, 400, 600))
    # Equal growth for equal increments. `tests/benchmarks/bench_streams.py` measures work that is done in C.
    assert abs((thrice - twice) - (twice - once)) <= (twice - once) // 20


def test_a_hundred_thousand_tiny_events_in_one_record():
    data = b"".join(encoded(START, TEXT, *[text(0, "x")] * 100_000, *END))
    assert list(map(len, texts(Recovery("anthropic").feed(data)))) == [100_000]


@each_source
def test_a_line_of_ten_megabytes_in_small_records(source):
    line = b'data: {"unheard of":"' + b"x" * 10_000_000 + b'"}\n\n'
    pieces = [line[at : at + 100_000] for at in range(0, len(line), 100_000)]
    view = run(source, pieces, framing="bytes").view
    assert len(view.unrecognized) == 1
    assert view.entries == []
