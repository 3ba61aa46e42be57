"""Attempts of an API stream: interrupted in every state, retried in every state, and everything reported once.

No complete messages arrive: a block is confirmed by its stop and the message's stop reason.
"""

import json

import pytest
from build import call, text
from msgspec import Raw
from stream_runs import marked, only, stepped

from reknit.pipeline.streams.events import (
    BlockDelta,
    BlockNoted,
    BlockStarted,
    BlockStopped,
    Failed,
    MessageDelta,
    MessageStarted,
    MessageStopped,
    RunEnded,
    UsageKnown,
    WholeBlock,
    WholeMessage,
)
from reknit.pipeline.streams.recovery import Machine
from reknit.pipeline.streams.recovery.memory import Context, Ids, Memory, MessageState
from reknit.topics.items import (
    AgentUnrecognized,
    ItemCompleted,
    ItemRetracted,
    TurnDelta,
    TurnDiagnosis,
    TurnStop,
    Usage,
)
from reknit.topics.reducer import reduce

TEXT = [BlockStarted(index=0, kind="text"), BlockDelta(0, "text_delta", "Hello.")]
STOPPED = [*TEXT, BlockStopped(0)]
# The events that bring a first attempt to a state, and True if it is complete there.
REACHED = {
    MessageState.IDLE: ([], False),
    MessageState.OPEN: ([MessageStarted("m1"), *STOPPED], False),
    MessageState.CUT: ([MessageStarted("m1"), *TEXT, Failed("Overloaded", "overloaded")], False),
    MessageState.FINISHED: ([MessageStarted("m1"), *STOPPED, MessageDelta("end_turn")], True),
    MessageState.DONE: ([MessageStarted("m1"), *STOPPED, MessageDelta("end_turn"), MessageStopped()], True),
    MessageState.PROMOTED: (
        [WholeMessage(message_id="m1", blocks=(WholeBlock(kind="text", raw=Raw(b"{}"), text="Hello."),))],
        True,
    ),
}
AGAIN = [
    MessageStarted("m2"),
    BlockStarted(index=0, kind="text"),
    BlockDelta(0, "text_delta", "Bye."),
    BlockStopped(0),
    MessageDelta("end_turn"),
    MessageStopped(),
]
each_state = pytest.mark.parametrize("state", sorted(REACHED))


@each_state
def test_the_states_are_reached(state):
    assert stepped(*REACHED[state][0])[1].memory.state is state


@each_state
def test_an_interrupted_attempt_stays_and_says_whether_it_is_complete(state):
    events, whole = REACHED[state]
    items, machine = stepped(*events, RunEnded("connection lost"))
    assert marked(items) == ([("Hello.", not whole)] if events else [])
    assert reduce(items).retracted == set()
    assert [turn.incomplete for turn in machine.memory.finished] == ([not whole] if events else [])
    assert stepped(*events, RunEnded("x"), RunEnded("y"))[0] == stepped(*events, RunEnded("x"))[0]


@each_state
def test_an_incomplete_attempt_is_retracted_by_a_retry(state):
    events, whole = REACHED[state]
    items, machine = stepped(*events, *AGAIN, RunEnded("exit"))
    assert marked(items) == [("Hello.", False)] * whole + [("Bye.", False)]
    assert len(reduce(items).retracted) == (bool(events) and not whole)
    assert len(machine.memory.finished) == len(marked(items))


def test_a_message_that_failed_after_its_reason_is_retracted_by_a_retry():
    finished, _ = REACHED[MessageState.FINISHED]
    items, _ = stepped(*finished, Failed("reset", "reset"), *AGAIN, RunEnded("exit"))
    assert marked(items) == [("Bye.", False)]
    items, _ = stepped(*finished, Failed("reset", "reset"), RunEnded("exit"))
    assert marked(items) == [("Hello.", False)]
    assert len(only(items, TurnDiagnosis)) == 1


@each_state
def test_an_error_after_a_message_does_not_change_it(state):
    events, _ = REACHED[state]
    items, _ = stepped(*events, Failed("oops", "oops"))
    assert marked(items) == marked(stepped(*events)[0])


@each_state
def test_content_without_a_start_is_never_lost(state):
    events, _ = REACHED[state]
    for strays in ([BlockStarted(index=7, kind="text", text="stray")], [BlockDelta(7, "text_delta", "stray")]):
        items, _ = stepped(*events, *strays, RunEnded("exit"))
        assert marked(items)[-1] == ("stray", True)


def test_a_call_whose_stop_repeats_its_input_is_completed_with_it():
    begun = [MessageStarted("m1"), BlockStarted(index=0, kind="tool_use", tool_id="t1", name="f")]
    streamed = [BlockDelta(0, "input_json_delta", '{"a"'), BlockStopped(0, text='{"a":1}')]
    items, _ = stepped(*begun, *streamed, MessageDelta("tool_use"), MessageStopped())
    assert only(items, ItemCompleted) == [ItemCompleted(item_id="t1", input=Raw(b'{"a":1}'))]


def test_a_delta_without_a_block_begins_one_in_a_later_message_too():
    items, _ = stepped(*AGAIN, MessageStarted("m3"), BlockDelta(0, "text_delta", "stray"), RunEnded("exit"))
    assert marked(items) == [("Bye.", False), ("stray", True)]


def test_a_signature_without_its_block_is_kept():
    _, machine = stepped(MessageStarted("m1"), BlockDelta(0, "signature_delta", "c2ln"), RunEnded("exit"))
    assert b'"signature":"c2ln"' in machine.memory.finished[0].message


def test_every_signature_of_a_run_is_in_its_turn_and_on_no_screen():
    thoughts = []
    for at in (0, 1):
        thoughts += [BlockStarted(index=at, kind="thinking"), BlockDelta(at, "thinking_delta", "Hm.")]
        thoughts += [BlockDelta(at, "signature_delta", "c2ln"), BlockStopped(at)]
    items, machine = stepped(MessageStarted("m1"), *thoughts, MessageDelta("end_turn"), RunEnded("exit"))
    assert marked(items) == [("Hm.", False)] * 2
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
    assert json.loads(machine.memory.finished[0].message)["content"] == [thought, thought]


def test_metadata_of_an_unknown_block_is_passed_on():
    items, _ = stepped(MessageStarted("m1"), BlockNoted(3, "citations", Raw(b"[1]")))
    assert [item.event for item in only(items, AgentUnrecognized)] == [Raw(b"[1]")]


def test_a_member_of_a_block_that_comes_after_its_message_is_in_the_turn():
    events, _ = REACHED[MessageState.DONE]
    note = BlockNoted(0, "citations", Raw(b'{"n":1}'), appends=True)
    items, machine = stepped(*events, note, RunEnded("exit"))
    assert only(items, AgentUnrecognized) == []
    assert b'"citations":[{"n":1}]' in machine.memory.finished[0].message


def test_token_counts_are_reported_once():
    counted = [UsageKnown(Usage(output_tokens=tokens)) for tokens in (1, 2, 2)]
    told = [UsageKnown(Usage(output_tokens=2)), UsageKnown(Usage(output_tokens=3))]
    stop = TurnStop(stop_reason="end_turn", usage=Usage(output_tokens=2))
    for early, late, expected in (
        (counted, [], [stop]),
        ([], counted[:1], [TurnStop(stop_reason="end_turn"), TurnDelta(usage=Usage(output_tokens=1))]),
        (counted, told, [stop, TurnDelta(usage=Usage(output_tokens=3))]),
    ):
        events = [MessageStarted("m1"), *STOPPED, *early, MessageDelta("end_turn"), MessageStopped(), *late]
        items, _ = stepped(*events, RunEnded("exit"))
        assert only(items, TurnStop | TurnDelta) == expected


def test_an_empty_answer_has_its_stop():
    items, machine = stepped(MessageStarted("m1"), MessageDelta("end_turn"), RunEnded("exit"))
    assert items == [TurnStop(stop_reason="end_turn")]
    assert machine.memory.finished == []


def test_a_stop_after_the_reason_completes_its_block():
    items, _ = stepped(MessageStarted("m1"), *TEXT, MessageDelta("end_turn"), BlockStopped(0), MessageStopped())
    assert marked(items) == [("Hello.", False)]
    assert only(items, ItemCompleted) == [ItemCompleted(item_id="x-block-0")]


def whole(*kinds):
    blocks = [WholeBlock(kind=kind, raw=Raw(b"{}"), text=f"{kind} {at}", index=at) for at, kind in enumerate(kinds)]
    return WholeMessage(message_id="m1", blocks=tuple(blocks))


def test_a_repeated_complete_message_with_places_adds_only_new_blocks():
    events = [MessageStarted("m1"), BlockStarted(index=1, kind="text"), BlockDelta(1, "text_delta", "te")]
    items, _ = stepped(*events, whole("thinking", "text"), whole("thinking", "text", "text"), RunEnded("exit"))
    assert marked(items) == [("text 1", False), ("thinking 0", False), ("text 2", False)]
    assert [entry.origin for entry in reduce(items).entries] == ["stream", "promoted", "promoted"]


def test_a_complete_block_of_another_kind_is_not_the_streamed_one():
    items, _ = stepped(MessageStarted("m1"), *TEXT, whole("thinking"), MessageDelta("end_turn"), RunEnded("exit"))
    assert marked(items) == [("Hello.", True), ("thinking 0", False)]


# -- confirmation of blocks without complete messages ---------------------------------------------------------------

CALL = [
    BlockStarted(index=1, kind="tool_use", tool_id="t1", name="Bash"),
    BlockDelta(1, "input_json_delta", '{"cmd": "ls"}'),
    BlockStopped(1),
]
CUT_CALL = [CALL[0], BlockDelta(1, "input_json_delta", '{"cmd": "l'), CALL[2]]
FINISH = [MessageDelta("tool_use"), MessageStopped()]


def run(*events):
    items, machine = stepped(MessageStarted("m1"), *events, RunEnded("exit"))
    return items, machine.memory.finished


def completed(items):
    return [(item.item_id, item.incomplete) for item in only(items, ItemCompleted)]


def test_stopped_blocks_are_complete_once_the_message_has_its_stop_reason():
    items, (turn,) = run(*STOPPED, *CALL, *FINISH)
    assert completed(items) == [("x-block-0", False), ("t1", False)]
    assert json.loads(turn.message)["content"] == [text("Hello."), call("t1", "Bash", cmd="ls")]
    assert not turn.incomplete


def test_a_stop_reason_after_the_stop_confirms_the_blocks_and_closes_the_turn_again():
    items, (turn,) = run(*STOPPED, *CALL, *reversed(FINISH), MessageDelta("tool_use"))
    assert completed(items) == [("x-block-0", False), ("t1", False)]
    stops = [(item.incomplete, item.stop_reason) for item in only(items, TurnStop)]
    assert stops == [(True, None), (False, "tool_use")]
    assert not turn.incomplete


def test_a_stop_reason_after_an_error_and_a_stop_confirms_nothing():
    items, (turn,) = run(*STOPPED, Failed("overloaded", "overloaded_error"), *reversed(FINISH))
    assert completed(items) == [("x-block-0", True)]
    assert turn.incomplete


def test_a_call_without_arguments_has_an_empty_object():
    _, (turn,) = run(CALL[0], CALL[2], *FINISH)
    assert json.loads(turn.message)["content"][0]["input"] == {}


@pytest.mark.parametrize("end", [[], [MessageDelta(None)], [MessageStopped()]], ids=["none", "null", "stop"])
def test_without_a_stop_reason_nothing_is_complete(end):
    items, (turn,) = run(*STOPPED, *end)
    assert completed(items) == [("x-block-0", True)]
    assert turn.incomplete


def test_a_stop_does_not_complete_a_call_whose_input_is_not_json():
    items, (turn,) = run(*CUT_CALL, *FINISH)
    assert ItemCompleted(item_id="t1", partial_input='{"cmd": "l', incomplete=True, reason="exit") in items
    cut = {"type": "tool_use", "id": "t1", "name": "Bash", "input": '{"cmd": "l', "incomplete": True}
    assert json.loads(turn.message)["content"][0] == cut


def test_unfinished_blocks_are_retracted_by_the_next_attempt():
    items, (turn,) = run(*STOPPED, MessageStarted("m2"), *STOPPED, *FINISH)
    assert ItemRetracted(item_id="x-block-0") in items
    assert [(entry.item_id, entry.text) for entry in reduce(items).entries] == [("x-block-1", "Hello.")]
    assert turn.message_id == "m2"


def test_blocks_that_were_never_shown_are_not_retracted():
    silent = BlockStarted(index=0, kind="thinking")
    items, _ = run(silent, MessageStarted("m2"), *STOPPED, *FINISH)
    assert only(items, ItemRetracted) == []
    assert marked(items) == [("Hello.", False)]


@pytest.mark.parametrize(("code", "reason"), [("overloaded", "overloaded"), ("", "error")])
def test_a_block_cut_by_an_error_names_the_error(code, reason):
    items, _ = run(*TEXT, Failed("Overloaded", code))
    assert [item.reason for item in only(items, ItemCompleted)] == [reason]


def test_without_records_no_turns_are_kept():
    machine = Machine(Context(memory=Memory(Ids("x")), complete_messages=False, records=False))
    for event in (MessageStarted("m1"), *STOPPED, *FINISH, RunEnded("exit")):
        machine.apply(event)
    assert machine.memory.finished == []
