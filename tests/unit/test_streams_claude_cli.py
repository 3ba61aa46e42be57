"""The Claude CLI's own lines: interruptions, killed runs, new conversations, and lines other than messages."""

import json

import pytest
from claude_lines import INIT, answer, call, end, finish, result, said, start, stop, text, used, whole
from stream_runs import only, run

from reknit.pipeline.streams.session import Recovery
from reknit.topics.items import (
    AgentNotice,
    AgentUnrecognized,
    HookCompleted,
    HookStarted,
    ItemCompleted,
    ItemRetracted,
    ModelChanged,
    PermissionDenied,
    SessionCompacted,
    SessionReset,
    TaskList,
    TaskUpdated,
    TurnResult,
)
from reknit.topics.reducer import reduce


def system(subtype, **members):
    return {"type": "system", "subtype": subtype} | members


def interrupted(words="[Request interrupted by user]"):
    return {"type": "user", "message": {"role": "user", "content": [{"type": "text", "text": words}]}}


CUT = [start("m1"), *text("This answer "), whole("m1", said("This answer "))]
WHOLE = [*CUT, end(), finish("end_turn"), stop()]


def states(outcome):
    """Return the main turn's texts and calls, each with its marks."""
    entries = outcome.view.blocks("text", "tool_use")
    return [(entry.text, entry.incomplete, entry.reason, entry.doubtful, entry.outside) for entry in entries]


# -- interruptions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lines",
    [
        [*CUT[:-1], whole("m1", said("This answer "), aborted=True), interrupted(), stop(1, "m1"), result()],
        [*CUT, interrupted(), result(subtype="error_during_execution", is_error=True)],
        [whole("m1", said("This answer "), aborted=True), interrupted(), result()],
    ],
    ids=["flag", "2.1.200", "without stream events"],
)
def test_a_text_cut_by_an_interruption_is_incomplete(lines):
    outcome = run("claude-cli", *lines)
    assert states(outcome) == [("This answer ", True, "interrupted", "", "")]
    cut, line = outcome.turns
    assert (cut.role, cut.incomplete) == ("assistant", True)
    assert (line.role, line.synthetic, line.incomplete) == ("user", True, False)


@pytest.mark.parametrize(
    "lines",
    [
        [*WHOLE, interrupted(), result()],
        [*CUT, end(), interrupted(), finish("end_turn"), stop(), result()],
    ],
    ids=["after the message", "after the block"],
)
def test_an_interruption_after_a_blocks_stop_leaves_it_complete(lines):
    outcome = run("claude-cli", *lines)
    assert states(outcome) == [("This answer ", False, "", "", "")]
    assert [turn.incomplete for turn in outcome.turns] == [False, False]


def test_an_interruption_before_any_message_is_a_turn_of_the_user():
    outcome = run("claude-cli", interrupted(), *WHOLE, result())
    assert states(outcome) == [("This answer ", False, "", "", "")]
    assert [(turn.role, turn.incomplete) for turn in outcome.turns] == [("user", False), ("assistant", False)]


def test_an_interrupted_call_is_complete_once_the_program_named_it():
    lines = [start("m1"), *call("t1", "{}"), whole("m1", used("t1"), aborted=True), stop(), result()]
    outcome = run("claude-cli", *lines)
    assert [(entry.item_id, entry.incomplete) for entry in outcome.view.entries] == [("t1", False)]


# -- killed runs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("killed", [0, 1, 2], ids=["no stop", "block stopped", "stop reason"])
def test_the_last_messages_blocks_of_a_killed_run_are_doubtful_and_not_in_the_log(killed):
    lines = [
        *WHOLE,
        *[start("m2"), *call("t1", "{}"), whole("m2", used("t1")), end(), finish("tool_use")][: 4 + killed],
    ]
    outcome = run("claude-cli", *lines, answer("t1"), end="SIGKILL")
    assert states(outcome) == [("This answer ", False, "", "", ""), ("{}", False, "", "kept", "")]
    assert [turn.message_id for turn in outcome.turns] == ["m1"]


def test_a_stopped_message_is_kept_whatever_ends_the_run():
    lines = [*WHOLE, start("m2"), *call("t1", "{}"), whole("m2", used("t1")), end(), finish("tool_use"), stop()]
    outcome = run("claude-cli", *lines, answer("t1"), start("m3"), *text("x"), end="SIGTERM")
    assert [mark[3] for mark in states(outcome)] == ["", "", ""]
    assert [(turn.role, turn.message_id) for turn in outcome.turns] == [
        ("assistant", "m1"),
        ("assistant", "m2"),
        ("user", None),
    ]


def test_without_stream_events_an_answered_call_is_kept_and_the_last_message_is_not():
    outcome = run("claude-cli", whole("m1", used("t1")), answer("t1"), end="SIGTERM")
    assert [turn.role for turn in outcome.turns] == ["assistant", "user"]
    outcome = run("claude-cli", whole("m1", said("a")), end="SIGTERM")
    assert ([mark[3] for mark in states(outcome)], outcome.turns) == (["kept"], [])


def test_a_killed_run_in_the_same_pipe_is_doubtful_once_the_next_one_begins():
    recovery = Recovery("claude-cli")
    items = [item for line in [*CUT, INIT] for item in recovery.feed(json.dumps(line).encode())]
    recovery = Recovery.restore(recovery.snapshot())
    assert only(items, ItemCompleted)[-1] == ItemCompleted(item_id="cc-block-0", doubtful="kept")
    assert recovery.take_finished() == []


@pytest.mark.parametrize("reason", ["end of input", "next source", "exit 0"])
def test_a_run_without_a_result_is_doubtful_whatever_ends_it(reason):
    outcome = run("claude-cli", *CUT, end=reason)
    assert ([mark[3] for mark in states(outcome)], outcome.turns) == (["kept"], [])


# -- the program's session file -----------------------------------------------------------------------------------

KILLED = [
    *WHOLE,
    *[start("m2"), *text("Let me look."), whole("m2", said("Let me look.")), end()],
    *[*call("t1", "{}", 1), whole("m2", used("t1")), end(1), answer("t1")],
]


def kept(*lines):
    """A session file of assistant lines, each a message's id and its blocks, and a truncated line."""
    found = [
        {"type": "assistant", "uuid": str(number), "message": {"id": name, "content": list(blocks)}}
        for number, (name, *blocks) in enumerate(lines)
    ]
    return b"\n".join([*(json.dumps(line).encode() for line in found), b'{"type":"user","cut'])


def settled(file, *, late, framing="events", named="r1"):
    """Return the view and the turns of the killed run with this session file, followed by another run."""
    recovery, items, turns = Recovery("claude-cli"), [], []
    for line in KILLED:
        items += recovery.feed(json.dumps(line).encode(), "r1")
    if late:
        items += recovery.end_run("SIGKILL")
        turns += recovery.take_finished()
        recovery = Recovery.restore(recovery.snapshot())
    for at in range(0, len(file), 50) if framing == "bytes" else [0]:
        items += recovery.feed_transcript(file[at : at + 50] if framing == "bytes" else file, named, framing=framing)
    items += recovery.end_transcript(named) if late else recovery.end_run("SIGKILL")
    items += [item for line in [*WHOLE, result("x")] for item in recovery.feed(json.dumps(line).encode(), "r2")]
    items += recovery.end_run("exit 0")
    return reduce(items), turns + recovery.take_finished()


def words(turns):
    return [block.get("text", block["type"]) for turn in turns for block in json.loads(turn.message)["content"]]


@pytest.mark.parametrize("late", [False, True], ids=["before the end", "after the end"])
@pytest.mark.parametrize("framing", ["events", "bytes"])
@pytest.mark.parametrize(
    ("file", "shown", "recorded"),
    [
        (kept(("m1", said("This answer "))), [], []),
        (kept(("m2", said("Let me look."))), ["Let me look."], ["Let me look."]),
        (
            kept(("m2", said("Let me look.")), ("m2", used("t1"))),
            ["Let me look.", "{}"],
            ["Let me look.", "tool_use", "tool_result"],
        ),
        (kept(("m2", used("t1"))), ["{}"], ["tool_use", "tool_result"]),
        (kept(("m3", said("Let me look.")), ("m2", said("Other."))), [], []),
    ],
    ids=["nothing", "the text", "all", "the call", "others"],
)
def test_a_session_file_confirms_its_blocks_and_retracts_the_rest(file, shown, recorded, framing, late):
    view, turns = settled(file, late=late, framing=framing)
    entries = view.blocks("text", "tool_use")
    assert [entry.text for entry in entries] == ["This answer ", *shown, "This answer "]
    assert [entry.doubtful for entry in entries] == [""] * (2 + len(shown))
    assert words(turns) == ["This answer ", *recorded, "This answer "]
    assert len({turn.id for turn in turns}) == len(turns)


@pytest.mark.parametrize("late", [False, True], ids=["before the end", "after the end"])
def test_a_session_file_without_the_name_of_a_run_belongs_to_the_last_one(late):
    view, turns = settled(kept(("m2", said("Let me look."))), late=late, named=None)
    assert [entry.doubtful for entry in view.blocks("text", "tool_use")] == [""] * 3
    assert words(turns) == ["This answer ", "Let me look.", "This answer "]


@pytest.mark.parametrize("file", [b"", b"\n\n"])
def test_an_empty_session_file_leaves_blocks_doubtful(file):
    view, turns = settled(file, late=True)
    assert [entry.doubtful for entry in view.blocks("text", "tool_use")] == ["", "kept", "kept", ""]
    assert words(turns) == ["This answer ", "This answer "]


@pytest.mark.parametrize("late", [False, True], ids=["before the end", "after the end"])
def test_a_session_file_of_another_run_changes_nothing(late):
    view, turns = settled(kept(("m2", said("Let me look."))), late=late, named="r0")
    assert [entry.doubtful for entry in view.blocks("text", "tool_use")] == ["", "kept", "kept", ""]
    assert words(turns) == ["This answer ", "This answer "]


@pytest.mark.parametrize("cut", [False, True])
def test_blocks_are_proven_or_withdrawn_by_a_session_file_that_comes_later(cut):
    recovery = Recovery("claude-cli")
    lines = [start("m1"), *text("One"), whole("m1", said("One")), end(), *text("Two", 1)]
    for line in [*lines, whole("m1", said("Two"), **({"aborted": True} if cut else {}))]:
        recovery.feed(json.dumps(line).encode(), "r1")
    recovery.end_run("SIGKILL")
    recovery.feed_transcript(kept(("m1", said("Two"))), "r1", framing="events")
    assert recovery.end_transcript("r1") == [
        ItemRetracted(item_id="cc-block-0", reason="transcript"),
        ItemCompleted(item_id="cc-block-1", incomplete=cut, reason="interrupted" if cut else ""),
    ]


# -- conversations ------------------------------------------------------------------------------------------------

RESET = {"type": "conversation_reset", "new_conversation_id": "c2", "trigger": "clear"}


@pytest.mark.parametrize(
    ("line", "kind", "why"),
    [(RESET, SessionReset, "reset"), (system("compact_boundary"), SessionCompacted, "compacted")],
    ids=["reset", "compacted"],
)
def test_items_before_a_boundary_are_outside_the_conversation(line, kind, why):
    later = [start("m2"), *text("Later."), whole("m2", said("Later.")), end(), finish("end_turn"), stop(), result()]
    outcome = run("claude-cli", *WHOLE, result(), line, INIT, *later)
    assert [mark[4] for mark in states(outcome)] == [why, ""]
    assert len(only(outcome.items, kind)) == 1
    again = reduce([*outcome.items, *outcome.items])
    assert [entry.outside for entry in again.blocks("text")] == [why, ""]


def test_a_reset_ends_the_message_and_is_recorded_between_the_turns():
    outcome = run("claude-cli", *WHOLE, RESET, *[start("m2"), *text("b"), whole("m2", said("b")), stop()], result())
    assert [(turn.message_id, turn.resets) for turn in outcome.turns] == [("m1", False), (None, True), ("m2", False)]
    assert len({turn.id for turn in outcome.turns}) == 3


def test_a_reset_that_was_not_taken_is_saved_with_the_state():
    recovery = Recovery("claude-cli")
    for line in (*WHOLE, RESET):
        recovery.feed(json.dumps(line).encode())
    turns = Recovery.restore(recovery.snapshot()).take_finished()
    assert [(turn.message_id, turn.resets) for turn in turns] == [("m1", False), (None, True)]


# -- results and other lines --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "unseen"),
    [
        ({"structured_output": {"answer": "x"}}, False),
        ({"local_command": "cost"}, False),
        ({"is_error": True, "terminal_reason": "prompt_too_long"}, False),
        ({}, True),
        ({"is_error": True}, True),
    ],
)
def test_a_result_shown_by_another_line_is_not_unseen(members, unseen):
    (told,) = only(run("claude-cli", *WHOLE, result("Elsewhere.", **members)).items, TurnResult)
    assert told.unseen == unseen
    assert told.expanded == (unseen or told.is_error)
    (early,) = only(run("claude-cli", result("Prompt is too long", is_error=True)).items, TurnResult)
    assert not early.unseen


@pytest.mark.parametrize(
    ("line", "item"),
    [
        (
            system(
                "model_fallback", original_model="a", fallback_model="b", trigger="overloaded", content="Switched to b"
            ),
            ModelChanged(from_model="a", to_model="b", trigger="overloaded", message="Switched to b", seq=0),
        ),
        (
            system("permission_denied", tool_name="Write", tool_use_id="t", decision_reason="outside", message="no"),
            PermissionDenied(item_id="t", tool_name="Write", reason="outside", message="no", seq=0),
        ),
        (
            system("hook_started", hook_id="h", hook_name="Stop", hook_event="Stop"),
            HookStarted(hook_id="h", hook_name="Stop", hook_event="Stop", seq=0),
        ),
        (
            system(
                "hook_response", hook_id="h", hook_name="Stop", outcome="error", exit_code=2, output="o", stderr="o"
            ),
            HookCompleted(hook_id="h", hook_name="Stop", outcome="error", exit_code=2, output="o", seq=0),
        ),
        (
            system("notification", key="k", text="t", priority="immediate"),
            AgentNotice(message="t", level="immediate", key="k", seq=0),
        ),
        (system("informational", content="c", level="notice"), AgentNotice(message="c", level="notice", seq=0)),
    ],
    ids=lambda value: value["subtype"] if isinstance(value, dict) else "",
)
def test_notices_for_operators_have_their_own_items(line, item):
    assert run("claude-cli", line).items == [item]


def test_task_changes_are_kept_as_json():
    updated, listed = run(
        "claude-cli", system("task_updated", task_id="t", patch={"a": 1}), system("background_tasks_changed", tasks=[])
    ).items
    assert (type(updated), updated.task_id, json.loads(bytes(updated.patch))) == (TaskUpdated, "t", {"a": 1})
    assert (type(listed), json.loads(bytes(listed.tasks))) == (TaskList, [])


def test_token_estimates_leave_nothing_and_members_of_the_wrong_type_are_skipped():
    assert run("claude-cli", system("thinking_tokens", estimated_tokens=2)).items == []
    odd = [
        system(kind, text=1, content=[], tasks=None, hook_id={}, exit_code="x")
        for kind in ("notification", "hook_response")
    ]
    items = run("claude-cli", *odd, RESET | {"trigger": 5}).items
    assert [type(item) for item in items] == [AgentNotice, HookCompleted, SessionReset]
    assert only(items, AgentUnrecognized) == []
