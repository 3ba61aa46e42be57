"""Sources that never repeat a message whole: a block is proved by its stop and the message's stop reason."""

from __future__ import annotations

import json

import pytest

from pipeline.streams.events import (
    BlockDelta,
    BlockStarted,
    BlockStopped,
    Event,
    Failed,
    MessageDelta,
    MessageStarted,
    MessageStopped,
    RunEnded,
)
from pipeline.streams.recovery.machine import Machine
from pipeline.streams.recovery.memory import Ids, Memory
from pipeline.streams.recovery.render import FinishedTurn
from topics.items import Item, ItemCompleted, ItemRetracted, TurnStop
from topics.reducer import reduce

TEXT = [BlockStarted(index=0, kind="text"), BlockDelta(0, "text_delta", "Hello."), BlockStopped(0)]
CALL = [
    BlockStarted(index=1, kind="tool_use", tool_id="t1", name="Bash"),
    BlockDelta(1, "input_json_delta", '{"cmd": "ls"}'),
    BlockStopped(1),
]
CUT_CALL = [CALL[0], BlockDelta(1, "input_json_delta", '{"cmd": "l'), CALL[2]]
FINISH = [MessageDelta("tool_use"), MessageStopped()]


def run(*events: Event) -> tuple[list[Item], list[FinishedTurn]]:
    machine = Machine(Memory(Ids("x")), "stop", records=True)
    items = [item for event in (MessageStarted("m1"), *events, RunEnded("exit")) for item in machine.step(event)]
    return items, machine.memory.finished


def completed(items: list[Item]) -> list[tuple[str, bool]]:
    return [(item.item_id, item.incomplete) for item in items if isinstance(item, ItemCompleted)]


def test_blocks_that_stopped_are_complete_when_the_message_has_its_stop_reason() -> None:
    items, (turn,) = run(*TEXT, *CALL, *FINISH)
    assert completed(items) == [("x-block-0", False), ("t1", False)]
    assert json.loads(turn.message)["content"] == [
        {"type": "text", "text": "Hello."},
        {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"cmd": "ls"}},
    ]
    assert not turn.incomplete


def test_a_stop_reason_behind_the_stop_proves_the_blocks_and_closes_the_turn_once_more() -> None:
    items, (turn,) = run(*TEXT, *CALL, *reversed(FINISH), MessageDelta("tool_use"))
    assert completed(items) == [("x-block-0", False), ("t1", False)]
    stops = [(item.incomplete, item.stop_reason) for item in items if isinstance(item, TurnStop)]
    assert stops == [(True, None), (False, "tool_use")]
    assert not turn.incomplete


def test_a_stop_reason_behind_an_error_and_a_stop_proves_nothing() -> None:
    items, (turn,) = run(*TEXT, Failed("overloaded", "overloaded_error"), *reversed(FINISH))
    assert completed(items) == [("x-block-0", True)]
    assert turn.incomplete


def test_a_call_without_arguments_has_an_empty_object() -> None:
    _, (turn,) = run(CALL[0], CALL[2], *FINISH)
    assert json.loads(turn.message)["content"][0]["input"] == {}


@pytest.mark.parametrize("end", [[], [MessageDelta(None)], [MessageStopped()]], ids=["none", "null", "stop"])
def test_without_a_stop_reason_nothing_is_complete(end: list[Event]) -> None:
    items, (turn,) = run(*TEXT, *end)
    assert completed(items) == [("x-block-0", True)]
    assert turn.incomplete


def test_a_call_whose_input_is_not_json_is_not_made_whole_by_its_stop() -> None:
    items, (turn,) = run(*CUT_CALL, *FINISH)
    assert ItemCompleted(item_id="t1", partial_input='{"cmd": "l', incomplete=True, reason="exit") in items
    assert json.loads(turn.message)["content"][0] == {
        "type": "tool_use",
        "id": "t1",
        "name": "Bash",
        "input": '{"cmd": "l',
        "incomplete": True,
    }


def test_what_did_not_finish_is_withdrawn_by_the_next_attempt() -> None:
    items, (turn,) = run(*TEXT, MessageStarted("m2"), *TEXT, *FINISH)
    assert ItemRetracted(item_id="x-block-0") in items
    assert [(entry.item_id, entry.text) for entry in reduce(items).entries] == [("x-block-1", "Hello.")]
    assert turn.message_id == "m2"
