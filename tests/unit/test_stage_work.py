"""The cost of a record depends on it and on the open end, not on the length of its session.

The exceptions recompute the history: a far rewind, a restore, the end, and openings that change something, however
many arrive together.
"""

from __future__ import annotations

import pytest
from build import answered, called, said, user
from stage_runs import OPENED, records, turn
from work_counter import lines

from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.turns import TurnsStage


def begun(turns, policy="go-on"):
    """A stage with a session of ``count`` turns."""
    stage = TurnsStage(Defaults(on_dead_letter=policy))
    said_so_far = [turn((said if at % 2 else user)(f"{at}"), id=f"i{at}") for at in range(turns)]
    for offset, each in enumerate([OPENED, *said_so_far]):
        stage.committed(stage.process(records([each], first=offset)).changes, 1 << 40)
    return stage


def work(turns, event, policy):
    """Return the number of lines that run for an event in a session of this many turns."""
    stage = begun(turns, policy)
    return lines(lambda: stage.process(records([event], first=turns + 1)))


EVENTS = {
    "a user's turn, and its request": turn(user("x")),
    "an assistant's turn": turn(said("x")),
    "a call": turn(called("c")),
    "a result of no call": turn(answered("nobody")),
    "a turn that came before": turn(user("0"), id="i0"),
    "an id that came with something else": turn(user("other"), id="i0"),
    "a message that nobody can read": turn({"role": "nobody"}),
    "no JSON": b"{",
    "a request that is wanted": {"type": "request.wanted"},
    "an opening that changes nothing": OPENED,
}


@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
def test_a_record_costs_no_more_in_a_long_session(event):
    short, long = work(100, event, "go-on"), work(1_000, event, "go-on")
    assert long <= 1.25 * short + 40


def openings(turns, count):
    """Return the lines run for ``count`` changing openings in one batch, and the body of the request after them."""
    stage = begun(turns)
    opened = [OPENED | {"system": f"be brief {(count - at) % 2}"} for at in range(count)]
    *opened, asked = records([*opened, turn(user("x"))], first=turns + 1)
    work = lines(lambda: stage.process(opened))
    (request,) = stage.process([asked]).outputs
    return work, request.value


def test_many_openings_in_one_batch_repair_the_history_once():
    found = {turns: (openings(turns, 1), openings(turns, 50)) for turns in (100, 1_000)}
    more = {turns: many[0] - once[0] for turns, (once, many) in found.items()}
    assert more[1_000] <= 1.25 * more[100] + 40
    assert all(many[1] == once[1] for once, many in found.values())


@pytest.mark.parametrize("policy", ["follow", "park"])
def test_parking_a_session_costs_no_more_if_it_is_long(policy):
    assert work(1_000, b"{", policy) <= 1.25 * work(100, b"{", policy) + 40


# Both lengths end at the same place in a segment of 16 messages.
SHORT, LONG = 104, 1_000
REWINDS = {
    "by one turn": lambda turns: turns - 1,
    "to before the last segment": lambda turns: turns - 12,
    "over several segments": lambda turns: turns - 50,
    "to a record's id": lambda turns: f"i{turns - 3}",
    "to nobody": lambda turns: "nobody",
}


def rewinding(turns, to):
    """Return the number of lines that run for a rewind and the turn after it, several times."""
    stage, cost = begun(turns), []
    again = [turn((said if at % 2 else user)(f"{at} again"), id=f"i{at}") for at in range(turns - 60, turns)]
    for offset in range(0, 300, 100):
        batch = records([{"type": "history.rewound", "to": to(turns)}, turn(user("x"))], first=turns + 1 + offset)
        cost += [lines(lambda record=record: stage.process([record])) for record in batch]
        # Up to the previous end; what is still known is a repetition.
        for each in ({"type": "history.rewound", "to": turns - 60}, *again):
            stage.committed(stage.process(records([each])).changes, 1 << 40)
    return cost


@pytest.mark.parametrize("to", REWINDS.values(), ids=REWINDS)
def test_a_rewind_costs_what_it_cuts(to):
    short, long = rewinding(SHORT, to), rewinding(LONG, to)
    assert all(there <= 1.25 * here + 100 for here, there in zip(short, long, strict=True)), (short, long)
