"""Pauses between attempts: as the provider requests, and otherwise growing."""

import pytest

from reknit.pipeline.client.retries import LONGEST_WAIT, asked_pause, pause_after

NOW = 1_764_064_800.0  # Tue, 25 Nov 2025 10:00:00 GMT


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "300"}, 300.0),
        ({"retry-after": " 300 "}, 300.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "86400"}, 86_400.0),
        ({"retry-after-ms": "20"}, 0.02),
        ({"retry-after-ms": "20", "retry-after": "300"}, 0.02),
        ({"retry-after-ms": "soon", "retry-after": "300"}, 300.0),
        ({"retry-after": "Tue, 25 Nov 2025 10:05:00 GMT"}, 300.0),
        ({"retry-after": "Tuesday, 25-Nov-25 10:05:00 GMT"}, 300.0),
        ({"retry-after": "Tue Nov 25 10:05:00 2025"}, 300.0),
        ({"retry-after": "Tue, 25 Nov 2025 12:05:00 +0200"}, 300.0),
        ({"retry-after": "Tue, 25 Nov 2025 09:00:00 GMT"}, 0.0),
        ({"retry-after": "Tue, 25 Nov 2025 10:05:00 GMT", "date": "Tue, 25 Nov 2025 10:04:30 GMT"}, 30.0),
        ({"retry-after": "Tue, 25 Nov 2025 10:05:00 GMT", "date": "today"}, 300.0),
        ({}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "1e9"}, None),
        ({"retry-after": "٣٠٠"}, None),
        ({"retry-after": "9" * 400}, None),
        ({"retry-after": "Tue, 99 Nov 2025 99:99:99 GMT"}, None),
        ({"retry-after": "soon"}, None),
    ],
)
def test_retry_after_is_read_in_each_form(headers, seconds):
    assert asked_pause(headers, NOW) == seconds


def test_pauses_grow_to_a_minute_and_differ():
    for attempt in range(2_000):
        longest = min(0.5 * 2 ** min(attempt, 10), 60.0)
        assert longest / 2 <= pause_after(attempt) <= longest
    assert len({pause_after(3) for _ in range(20)}) > 1


def test_the_documented_limit_is_an_hour():
    assert LONGEST_WAIT == 3600.0
