"""Position records and group offsets: their fields in addition to the offset, and how older builds read them."""

import pytest

from reknit.pipeline.stages.base import POSITION, position_value, read_position
from reknit.topics.positions import (
    UNMARKED,
    GroupPosition,
    PositionMark,
    group_metadata,
    position_row,
    read_group_position,
    read_mark,
)

IDS = {"input_id": "9Xr3", "state_id": "q-_1"}


def read_as_before_topic_ids(value):
    """Read the value as builds without topic ids do."""
    position, _, state_format = value.partition(b" ")
    return int(position), int(state_format or 1)


@pytest.mark.parametrize("state_format", [1, 2])
@pytest.mark.parametrize("mark", [UNMARKED, PositionMark(**IDS), PositionMark(input_id="9Xr3")])
def test_topic_ids_are_headers_and_the_value_is_that_of_older_builds(state_format, mark):
    key, value, headers = position_row(17, state_format, mark)
    assert (key, value) == (POSITION, position_value(17, state_format))
    assert read_as_before_topic_ids(value) == (17, state_format)
    assert (read_position(value), read_mark(value, headers)) == ((17, state_format), mark)


@pytest.mark.parametrize("state_format", [1, 2])
@pytest.mark.parametrize("mark", [PositionMark(base=500, **IDS), PositionMark(until=90), PositionMark(base=5, until=0)])
def test_a_position_that_older_builds_must_not_use_is_unreadable_for_them(state_format, mark):
    _, value, headers = position_row(17, state_format, mark)
    assert (read_position(value), read_mark(value, headers)) == ((17, state_format), mark)
    with pytest.raises(ValueError, match="invalid literal"):
        read_as_before_topic_ids(value)


@pytest.mark.parametrize("value", [b"17 2 shards=4", b"17 2 base=x", b"17 2 3"])
def test_a_position_of_a_newer_build_is_rejected(value):
    with pytest.raises(ValueError, match=r"unknown field|invalid literal"):
        read_mark(value, ())


@pytest.mark.parametrize(
    ("metadata", "found"),
    [
        (group_metadata(0, 9), GroupPosition(9)),
        (group_metadata(500, 9), GroupPosition(9, base=500)),
        (group_metadata(0, 0), GroupPosition(9, has_state=False)),
        (group_metadata(500, 10, released_at=503), GroupPosition(10, base=500, released_at=503)),
        ("reknit", GroupPosition(9)),
        ("", None),
        ("reknitted", None),
    ],
)
def test_a_groups_offset_shows_if_a_worker_committed_it_and_its_base(metadata, found):
    assert read_group_position(9, metadata) == found
