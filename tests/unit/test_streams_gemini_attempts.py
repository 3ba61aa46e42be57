"""Gemini's attempts: a late chunk of one that is over is told by its id, as far back as ids are remembered."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pipeline.streams import Recovery
from topics.items import AgentUnrecognized, Item, ItemDelta, ItemRetracted, ItemStarted, TurnStop

# The ids of so many messages before the one that streams are remembered: a saved state must not grow without end.
REMEMBERED = 8
LAST = REMEMBERED + 1


def chunk(attempt: int, words: str, reason: str | None = None) -> bytes:
    candidate: dict[str, Any] = {"content": {"parts": [{"text": words}], "role": "model"}, "index": 0}
    candidate |= {"finishReason": reason} if reason else {}
    told = {"candidates": [candidate], "modelVersion": "gemini-3-pro", "responseId": f"r{attempt}"}
    return f"data: {json.dumps(told)}\r\n\r\n".encode()


def after_attempts() -> Recovery:
    """A run of attempts, each cut after its first words by the next one; the last of them streams."""
    recovery = Recovery("gemini", records=False)
    for attempt in range(LAST + 1):
        recovery.feed(chunk(attempt, "words"))
    return recovery


@pytest.mark.parametrize("back", range(1, REMEMBERED + 1))
def test_a_late_chunk_of_an_attempt_that_is_over_leaves_the_one_that_streams_alone(back):
    recovery = after_attempts()
    late: list[Item] = recovery.feed(chunk(LAST - back, " that come late"))
    assert [type(item) for item in late] == [AgentUnrecognized]
    assert late[0].reason == "a chunk of a message that is over"
    rest = recovery.feed(chunk(LAST, ", whole", "STOP")) + recovery.end_run("exit")
    assert [item.content for item in rest if isinstance(item, ItemDelta)] == [", whole"]
    assert [item.incomplete for item in rest if isinstance(item, TurnStop)] == [False]


def test_an_attempt_that_is_long_over_is_forgotten():
    items = after_attempts().feed(chunk(LAST - REMEMBERED - 1, "words again"))
    assert [type(item) for item in items] == [ItemRetracted, TurnStop, ItemStarted, ItemDelta]


def test_a_message_that_goes_on_after_its_end_is_none_that_is_over():
    """The same id again is the same attempt, however often it goes on."""
    recovery = Recovery("gemini", records=False)
    recovery.feed(chunk(0, "words"))
    said = [recovery.feed(chunk(1, f"answer {number}", "STOP")) for number in range(REMEMBERED + 1)]
    deltas = [item.content for items in said for item in items if isinstance(item, ItemDelta)]
    assert deltas == [f"answer {number}" for number in range(REMEMBERED + 1)]
    late = recovery.feed(chunk(0, " that come late"))
    assert [type(item) for item in late] == [AgentUnrecognized]
