from __future__ import annotations

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct, structs

from reknit.pipeline import __version__
from reknit.pipeline.engine.batches import (
    Chain,
    OffsetGap,
    Span,
    dead_letter_for,
    fetched_size,
    log_letters,
    output_size,
    size_letter,
    walk,
)
from reknit.pipeline.stages.base import Output, Record, Result, Stage, StoppedError
from reknit.topics import DEAD_LETTERS

VERSION = __version__.encode()


class R(Struct, frozen=True):
    offset: int


def span(start, end, *offsets):
    return Span(start, end, [R(offset) for offset in offsets], end)


def offsets(records):
    return [record.offset for record in records]


def test_gaps_inside_a_span_are_transaction_markers_and_compaction():
    chain = Chain(0)
    assert offsets(chain.new_records(span(0, 10, 0, 1, 5, 8))) == [0, 1, 5, 8]
    assert chain.end == 10


def test_a_span_of_transaction_markers_moves_the_end():
    chain = Chain(7)
    assert offsets(chain.new_records(span(7, 9))) == []
    assert offsets(chain.new_records(span(9, 10, 9))) == [9]
    assert chain.end == 10


def test_a_span_that_begins_later_is_an_offset_gap_and_takes_nothing():
    chain = Chain(3)
    with pytest.raises(OffsetGap) as hole:
        chain.new_records(span(4, 6, 4, 5))
    assert hole.value.offset == 3
    assert chain.end == 3


def test_records_already_taken_are_not_taken_again():
    chain = Chain(0)
    chain.new_records(span(0, 4, 0, 1, 2, 3))
    assert offsets(chain.new_records(span(2, 6, 2, 3, 4, 5))) == [4, 5]
    assert offsets(chain.new_records(span(0, 6, 0, 5))) == []
    assert chain.end == 6


def test_restart_takes_again():
    chain = Chain(0)
    chain.new_records(span(0, 4, 0, 1, 2, 3))
    chain.restart(2)
    assert offsets(chain.new_records(span(0, 4, 0, 1, 2, 3))) == [2, 3]


@settings(max_examples=200)
@given(
    st.sets(st.integers(0, 60)),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20), st.booleans()), max_size=40),
)
def test_records_come_once_and_in_order_however_they_are_fetched(existing, fetches):
    """The log has records at ``existing``. A fetch starts anywhere, as after a rebalance, or where one ended."""
    log = sorted(existing)
    chain, taken, position = Chain(0), [], 0
    for start, length, jumps in [*fetches, (0, 100, True)]:
        position = start if jumps else position
        piece = span(position, position + length, *(offset for offset in log if position <= offset < position + length))
        position += length
        try:
            taken += offsets(chain.new_records(piece))
        except OffsetGap as hole:
            position = hole.offset
    assert taken == [offset for offset in log if offset < chain.end]
    assert chain.end >= 100


def test_the_size_of_a_fetched_record_includes_all_its_parts():
    plain = Record(partition=0, offset=0, key=b"k", value=b"v", headers=(("h", b""),))
    least = fetched_size([plain])
    large = b"x" * 1000
    for change in ({"key": large}, {"value": large}, {"headers": (("h", large), ("null", None))}):
        assert fetched_size([structs.replace(plain, **change)]) in {least + 999, least + 1000}
    assert fetched_size([plain, plain]) == 2 * least


def test_the_log_line_of_a_dead_letter_ignores_the_records_own_headers(caplog):
    named = {"topic": b"in.v1", "partition": b"1", "offset": b"5", "code": b"no_key"}
    why = tuple((f"reknit.error.{name}", value) for name, value in named.items())
    with caplog.at_level("WARNING", "reknit.dead-letters"):
        log_letters([Output(DEAD_LETTERS, b"k", b"v", (("reknit.error.code", b"\xff"), ("null", None), *why))])
    assert caplog.messages == ["in.v1 partition 1 offset 5 became a dead letter: no_key"]


def test_the_dead_letter_of_an_oversized_output_has_position_and_digest():
    letter = size_letter(Output("out.v1", b"k", b"abc", (("x", b"1"),)), "in.v1", 1, 5)
    assert letter.topic == DEAD_LETTERS
    assert (letter.key, letter.value) == (b"k", None)
    assert letter.headers == (
        ("reknit.error.code", b"size"),
        ("reknit.error.topic", b"in.v1"),
        ("reknit.error.partition", b"1"),
        ("reknit.error.offset", b"5"),
        ("reknit.error.version", VERSION),
        ("reknit.error.output-topic", b"out.v1"),
        ("reknit.error.value-bytes", b"3"),
        ("reknit.error.value-sha256", hashlib.sha256(b"abc").hexdigest().encode()),
    )


def test_a_dead_letter_that_is_too_large_keeps_its_own_error():
    headers = (("h", b"1"), ("reknit.error.code", b"not_json"), ("reknit.error.offset", b"3"))
    letter = size_letter(Output(DEAD_LETTERS, b"k", b"abc", headers), "in.v1", 1, 5)
    assert letter.headers[:2] == (("reknit.error.code", b"not_json"), ("reknit.error.offset", b"3"))
    assert dict(letter.headers)["reknit.error.value-bytes"] == b"3"


def test_a_dead_letter_never_has_a_key_that_is_too_large():
    assert size_letter(Output("out.v1", b"k" * (2 << 20), b"abc"), "in.v1", 1, 5).key is None


def test_a_size_is_never_less_than_the_bytes_in_a_batch():
    from aiokafka.record.default_records import DefaultRecordBatchBuilder

    for output in (
        Output("t", None, None),
        Output("t", b"k" * 300, b"v" * 70_000, (("a-name", b"x" * 200), ("ü" * 100, b""))),
        Output("t", b"", b"", tuple((f"h{n}", b"%d" % n) for n in range(50))),
    ):
        builder = DefaultRecordBatchBuilder(
            magic=2,
            compression_type=0,
            is_transactional=True,
            producer_id=1,
            producer_epoch=1,
            base_sequence=0,
            batch_size=1,
        )
        builder.append(0, 1_700_000_000_000, output.key, output.value, list(output.headers))
        assert len(builder.build()) <= output_size(output)


class Fussy(Stage):
    topic = "in.v1"
    state_topic = "state.v1"

    def restore(self, key, value):
        raise AssertionError

    def process(self, records):
        (record,) = records
        if record.value == b"bad":
            raise ValueError(record.offset)
        if record.value == b"stop":
            raise StoppedError("stopped", "here")
        return Result(outputs=[Output("out.v1", record.key, record.value)])

    def refuse(self, record, error):
        if record.value == b"stop":
            raise StoppedError("stopped", "here")
        raise ValueError(error.code)


def records(*values):
    return [Record(partition=0, offset=offset, key=None, value=value) for offset, value in enumerate(values)]


def test_walk_stops_at_the_record_that_raises():
    results, error = walk(Fussy(), records(b"a", b"b", b"bad", b"c"))
    assert [result.outputs[0].value for result in results] == [b"a", b"b"]
    assert isinstance(error, ValueError)


def test_the_dead_letter_of_a_poison_record_is_unchanged_if_its_session_has_a_bug():
    record = Record(partition=2, offset=9, key=b"k", value=b"v", headers=(("h", b"1"), ("h", b"2")))
    made, error = dead_letter_for(Fussy(), record)
    why = (("code", b"internal"), ("topic", b"in.v1"), ("partition", b"2"), ("offset", b"9"), ("version", VERSION))
    headers = (("h", b"1"), ("h", b"2"), *((f"reknit.error.{name}", value) for name, value in why))
    assert made == Result(
        outputs=[Output(DEAD_LETTERS, b"k", b"v", headers)],
        tally={("reknit_dead_letters_total", "in.v1", "internal"): 1},
    )
    assert isinstance(error, ValueError)


def test_with_the_stop_policy_nothing_is_dead_lettered():
    results, error = walk(Fussy(), records(b"a", b"stop", b"b"))
    assert (len(results), type(error)) == (1, StoppedError)
    with pytest.raises(StoppedError):
        dead_letter_for(Fussy(), *records(b"stop"))


def test_walk_passes_all_records_if_none_raises():
    results, error = walk(Fussy(), records(b"a", b"b"))
    assert len(results) == 2
    assert error is None
