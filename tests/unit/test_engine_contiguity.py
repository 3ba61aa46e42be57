from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from pipeline.engine.contiguity import Chain, Hole, Span


class R(Struct, frozen=True):
    offset: int


def span(start, end, *offsets):
    return Span(start, end, [R(offset) for offset in offsets], end)


def offsets(records):
    return [record.offset for record in records]


def test_gaps_inside_a_span_are_markers_and_compaction():
    chain = Chain(0)
    assert offsets(chain.new_records(span(0, 10, 0, 1, 5, 8))) == [0, 1, 5, 8]
    assert chain.end == 10


def test_a_span_of_markers_moves_the_end():
    chain = Chain(7)
    assert offsets(chain.new_records(span(7, 9))) == []
    assert offsets(chain.new_records(span(9, 10, 9))) == [9]
    assert chain.end == 10


def test_a_span_that_begins_later_is_a_hole_and_takes_nothing():
    chain = Chain(3)
    with pytest.raises(Hole) as hole:
        chain.new_records(span(4, 6, 4, 5))
    assert hole.value.offset == 3
    assert chain.end == 3


def test_what_was_taken_is_not_taken_again():
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
def test_whatever_is_fetched_lost_and_fetched_again_every_record_comes_once_in_order(existing, fetches):
    """The log has records at ``existing``. A fetch starts anywhere, as after a rebalance, or where one ended."""
    log = sorted(existing)
    chain, taken, position = Chain(0), [], 0
    for start, length, jumps in [*fetches, (0, 100, True)]:
        position = start if jumps else position
        piece = span(position, position + length, *(offset for offset in log if position <= offset < position + length))
        position += length
        try:
            taken += offsets(chain.new_records(piece))
        except Hole as hole:
            position = hole.offset
    assert taken == [offset for offset in log if offset < chain.end]
    assert chain.end >= 100
