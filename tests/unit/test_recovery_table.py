"""Every pair of state and input is in the table, or raises a typed error that blames the provider."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis.strategies import lists, sampled_from

from reknit.pipeline.errors import StreamError
from reknit.pipeline.streams.recovery import MEANINGS, TABLE, attempts, complete, out_of_band, run_end, transition
from reknit.pipeline.streams.recovery.attempts import (
    extend_block,
    ignore,
    note_member,
    open_block,
    start_again,
    start_unseen,
    stop_block,
    take_stray,
)
from reknit.pipeline.streams.recovery.complete import replace_said_again, replace_unconfirmed
from reknit.pipeline.streams.recovery.memory import Input
from reknit.pipeline.streams.recovery.memory import MessageState as State
from reknit.pipeline.streams.recovery.out_of_band import show_aside
from reknit.pipeline.streams.recovery.run_end import end_run

# Functions that take an event and return items, in any module.
ACTIONS = {
    action
    for module in (attempts, complete, out_of_band, run_end)
    for called, action in vars(module).items()
    if not called.startswith("_")
    and [name.strip("_") for name in getattr(action, "__annotations__", ())] == ["context", "event", "return"]
}

BLOCK_INPUTS = {Input.BLOCK_START, Input.BLOCK_DELTA, Input.BLOCK_NOTE, Input.BLOCK_STOP}
# Inputs that only an attempt can get; in other states they are classified as late.
ATTEMPT_INPUTS = BLOCK_INPUTS | {
    Input.FINISH,
    Input.FINISH_ANSWERED,
    Input.NO_FINISH,
    Input.STOP,
    Input.ABANDON,
    Input.USAGE,
    Input.RESULT_BEFORE,
    Input.NEXT_RUN,
}
ATTEMPTS = {State.OPEN, State.CUT, State.FINISHED, State.ANSWERED, State.DONE}


def test_each_pair_gives_a_known_state_and_action_or_a_typed_error():
    for state, given_ in product(State, Input):
        if (state, given_) not in TABLE:
            with pytest.raises(StreamError, match=r"cannot come") as refused:
                transition(state, given_)
            assert (refused.value.fault, refused.value.code) == ("provider", "unexpected_event")
            continue
        after, action = transition(state, given_)
        assert (after, action) == TABLE[state, given_]
        assert isinstance(after, State)
        assert action in ACTIONS
        assert action.__doc__


def test_an_attempt_takes_all_streamed_inputs():
    missing = {(state, given) for state in ATTEMPTS for given in ATTEMPT_INPUTS} - TABLE.keys()
    assert missing == set()


def test_without_an_attempt_no_streamed_input_is_taken():
    others = set(State) - ATTEMPTS
    assert {pair for pair in TABLE if pair[0] in others and pair[1] in ATTEMPT_INPUTS} == set()


def test_only_an_open_attempt_grows():
    growing = {open_block, extend_block, note_member, stop_block}
    assert {state for (state, _), (_, action) in TABLE.items() if action in growing} == {State.OPEN}


def test_block_inputs_for_a_closed_attempt_are_strays():
    for state in ATTEMPTS - {State.OPEN}:
        assert {TABLE[state, given_] for given_ in BLOCK_INPUTS} == {(state, take_stray)}


def test_content_without_a_start_begins_an_attempt_if_none_can_take_it():
    pairs = {state: pair for (state, given_), pair in TABLE.items() if given_ is Input.UNSTARTED}
    # A message that failed after its stop reason and then stopped may still get its content.
    assert pairs.pop(State.CUT) == (State.CUT, take_stray)
    starting = {State.IDLE, State.DONE, State.PROMOTED, State.CLOSED}
    assert pairs == dict.fromkeys(starting, (State.OPEN, start_unseen))


def test_a_run_can_end_in_every_state_and_a_late_event_changes_nothing():
    for state in State:
        assert TABLE[state, Input.END] == (State.IDLE, end_run)
        assert TABLE[state, Input.LATE] == (state, ignore)
        assert TABLE[state, Input.ASIDE] == (state, show_aside)


def test_an_accepted_attempt_is_never_replaced():
    replacing = {start_again, replace_unconfirmed, replace_said_again}
    for state in (State.ANSWERED, State.DONE, State.PROMOTED, State.CLOSED):
        assert {action for (from_, _), (_, action) in TABLE.items() if from_ is state} & replacing == set()


# The state changes of a message, by input; every other pair of the table keeps the state.
MOVES = {
    Input.START: dict.fromkeys(State, State.OPEN),
    Input.UNSTARTED: dict.fromkeys(set(State) - {State.CUT}, State.OPEN),
    Input.FOREIGN: dict.fromkeys(State, State.PROMOTED),
    Input.END: dict.fromkeys(State, State.IDLE),
    Input.NEXT_RUN: dict.fromkeys(ATTEMPTS, State.IDLE),
    Input.RESULT: dict.fromkeys(set(State) - {State.IDLE}, State.CLOSED),
    Input.ABANDON: dict.fromkeys(ATTEMPTS, State.CUT),
    Input.NO_FINISH: {State.OPEN: State.CUT},
    Input.FINISH: {State.OPEN: State.FINISHED},
    Input.FINISH_ANSWERED: {State.OPEN: State.ANSWERED, State.FINISHED: State.ANSWERED},
    Input.FINISH_STOPPED: {State.CUT: State.DONE},
    Input.STOP: {State.OPEN: State.CUT, State.FINISHED: State.DONE, State.ANSWERED: State.DONE},
    Input.RETRY: {State.OPEN: State.CUT, State.FINISHED: State.CUT},
    Input.ANSWER: {State.FINISHED: State.ANSWERED},
}


def test_no_other_input_changes_the_state():
    for (state, given_), (after, _) in TABLE.items():
        assert after is MOVES.get(given_, {}).get(state, state), (state, given_)


@given(lists(sampled_from(Input), max_size=30))
def test_every_reachable_state_has_rows(inputs):
    state = State.IDLE
    for given_ in inputs:
        if (state, given_) in TABLE:
            state, _ = transition(state, given_)
    assert (state, Input.START) in TABLE


def test_every_action_and_every_state_is_reached():
    assert {action for _, action in TABLE.values()} == ACTIONS
    assert {state for state, _ in TABLE.values()} | {State.IDLE} == set(State)


def test_every_state_has_its_meaning():
    assert list(MEANINGS) == list(State)
