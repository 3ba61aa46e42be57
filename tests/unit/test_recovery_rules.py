"""The eight rules for content of a cut response, each in the smallest run that shows it."""

import json

import pytest
from claude_lines import (
    INIT,
    RETRY,
    answer,
    block_delta,
    call,
    end,
    event,
    finish,
    result,
    said,
    start,
    stop,
    text,
    used,
    whole,
)
from stream_runs import items_of, only
from stream_runs import run as outcome

from reknit.topics.items import (
    ItemCompleted,
    ItemDelta,
    ItemResult,
    ItemRetracted,
    ItemStarted,
    TurnDiagnosis,
    TurnResult,
    TurnStop,
)
from reknit.topics.reducer import reduce

CUT_ANSWER = [start("m1"), *text("The answ")]
WHOLE_ANSWER = whole("m2", said("The answer."))


def recovered(*run, **options):
    return items_of("claude-cli", *run, end="exit 1", **options)


def ids(items):
    """Return the final screen."""
    return [entry.item_id for entry in reduce(items).entries]


def withdrawn(items):
    return [item.item_id for item in only(items, ItemRetracted)]


def shown(view):
    """Return the main turn's blocks on the screen; the type of an incomplete one begins with ``!``."""
    return [("!" * entry.incomplete + entry.item_type, entry.text) for entry in view.blocks("text", "thinking")]


def kinds(items):
    return [item.__struct_config__.tag for item in items]


# -- the screen ---------------------------------------------------------------------------------------------------

FIRST = [start("m1"), text("First."), whole("m1", said("First.")), text("Sec", 1)]
THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": "s"}


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        pytest.param(
            [start("m1"), text("kept"), whole("m1", said("kept")), text("given up", 1), whole("m1", said("given up")),
             stop(1, "m1"), start("m2")],
            [("text", "kept")], id="blocks that are named as abandoned go, confirmed or not, and the others stay"),
        pytest.param(
            [start("m1"), text("given up"), whole("m1", said("given up")), stop(0, "m1"), start("m2")],
            [], id="all blocks go if the first is named as abandoned"),
        pytest.param([CUT_ANSWER, stop(), RETRY], [("!text", "The answ")], id="an attempt stays until it is replaced"),
        pytest.param([CUT_ANSWER, stop(), RETRY, start("m2")], [], id="and is withdrawn when it is"),
        pytest.param(
            [start("m1"), text("The answer."), whole("m1", said("The answer.")), end(), finish("end_turn"),
             WHOLE_ANSWER],
            [("text", "The answer.")], id="a finished attempt without its stop is replaced too"),
        pytest.param([FIRST, finish("end_turn"), RETRY, WHOLE_ANSWER], [("text", "First."), ("text", "The answer.")],
                     id="a retry after the stop reason keeps what was confirmed"),
        pytest.param([FIRST, WHOLE_ANSWER, result("The answer."), whole("m2", said("First."))],
                     [("text", "First."), ("text", "The answer."), ("text", "First.")],
                     id="what the replacement says after its result withdraws nothing more"),
        pytest.param([CUT_ANSWER, result(), start("m2")], [("!text", "The answ")],
                     id="after a result nothing is replaced"),
        pytest.param([CUT_ANSWER, result(), WHOLE_ANSWER], [("!text", "The answ"), ("text", "The answer.")],
                     id="nor without a start"),
        pytest.param([CUT_ANSWER, result(), whole("m1", said("The answer."))], [("text", "The answer.")],
                     id="but a late line still completes"),
        pytest.param([CUT_ANSWER, RETRY, INIT, start("m2"), text("The answer."), whole("m2", said("The answer."))],
                     [("text", "The answer.")], id="an attempt that is made again is no run that was ended"),
        pytest.param(
            [start("m1"), text("One.", kind="thinking"), whole("m1", THOUGHT | {"thinking": "One."}), text("\n\n", 1),
             text("Two.", 2, kind="thinking"), whole("m1", THOUGHT | {"thinking": ""}), text("Dne.", 3),
             whole("m1", said("Done.")), result("Done.")],
            [("thinking", "One."), ("thinking", "Two."), ("text", "Done.")],
            id="a blank text between two stretches of thinking shifts no place"),
        pytest.param(
            [start("m1"), text("Yes"), end(), text("Yes. And more.", 1), end(1), whole("m1", said("Yes. And more.")),
             whole("m1", said("Yes."))],
            [("text", "Yes."), ("text", "Yes. And more.")],
            id="a whole text goes to its equal before the one that it goes on from"),
        pytest.param([start("m1"), text("\n\n"), whole("m1", said("\n\n")), finish("end_turn"), stop()],
                     [("text", "\n\n")], id="a blank text that a complete message holds stays"),
        pytest.param(
            [start("m1"), text("Hm.", kind="thinking"), whole("m1", THOUGHT), end(), whole("m1", said("Done."))],
            [("thinking", "Hm."), ("text", "Done.")], id="the block that did not stream is promoted"),
        pytest.param(
            [start("m1"), text("First."), whole("m1", said("First.")), text("Third.", 2),
             whole("m1", said("Second.")), whole("m1", said("Third."))],
            [("text", "First."), ("text", "Third."), ("text", "Second.")],
            id="a whole text that did not stream does not replace a text that streamed in a later place"),
        pytest.param(
            [start("m1"), text("Hlo"), text("World", 1), whole("m1", said("Hello")), whole("m1", said("World"))],
            [("text", "Hello"), ("text", "World")],
            id="a delta lost in the middle is mended by the block at its place"),
        pytest.param(
            [start("m1"), text("Real."), end(), text("\n\n", 1), whole("m1", said("(no content)")),
             whole("m1", said("Real."))],
            [("text", "Real."), ("text", "(no content)")], id="words for a blank text stand there, wherever it is"),
        pytest.param(
            [start("m1"), call("t1", "{}"), text("Hm.", 1, "thinking"), whole("m1", THOUGHT | {"thinking": ""})],
            [("thinking", "Hm.")], id="thinking that is left out is confirmed wherever it stands"),
        pytest.param([whole("m1", said("a")), whole("m1", said("a"))], [("text", "a"), ("text", "a")],
                     id="two blocks of the same text are two blocks"),
        pytest.param([start("m1"), text("Hm.", kind="thinking"), whole("m1", THOUGHT | {"thinking": ""})],
                     [("thinking", "Hm.")], id="thinking that complete messages leave out stays as it streamed"),
        pytest.param([start("m1"), block_delta(3, type="text_delta", text="Hi")], [("!text", "Hi")],
                     id="deltas of a block whose start was lost still show"),
    ],
)  # fmt: skip
def test_the_screen_has_the_recovered_blocks(run, expected):
    assert shown(reduce(recovered(*run))) == expected


# -- rule 1: stops prove nothing --------------------------------------------------------------------------------------


def test_a_block_is_completed_by_a_complete_message_and_not_by_its_stop():
    streamed = [start("m1"), *text("Hi"), end(), finish("end_turn"), stop()]
    before = recovered(streamed)
    assert [item.incomplete for item in only(before, ItemCompleted)] == [True]
    after = recovered(streamed, whole("m1", said("Hi")))
    assert only(after, ItemCompleted) == [ItemCompleted(item_id="cc-block-0")]


def test_abandoned_blocks_of_another_message_change_nothing():
    items = recovered(start("m1"), text("Hi"), stop(0, "m0"), whole("m1", said("Hi")), finish("end_turn"), stop())
    assert shown(reduce(items)) == [("text", "Hi")]
    assert only(items, TurnStop) == [TurnStop()]


# -- rule 2: cut with a stop, or by a retry -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "cut",
    [[stop()], [end(), stop(0, "m1")], [finish(None)], [finish(None), stop()], [RETRY], [stop(), RETRY]],
    ids=["stop", "abandoned", "null", "null-stop", "retry", "stop-retry"],
)
@pytest.mark.parametrize("next_", [[start("m2")], [WHOLE_ANSWER]], ids=["streams-again", "silent"])
def test_after_a_cut_only_unconfirmed_blocks_are_retracted(cut, next_):
    # The first block was confirmed, so abandonment from block 1 on keeps it as well.
    named = [json.loads(json.dumps(line).replace('"from_block_index": 0', '"from_block_index": 1')) for line in cut]
    items = recovered(*FIRST, named, next_)
    assert withdrawn(items) == ["cc-block-1"]
    assert shown(reduce(items))[0] == ("text", "First.")


def test_a_second_start_is_a_new_attempt_even_with_the_same_id():
    items = recovered(CUT_ANSWER, start("m1"), text("The answer."), whole("m1", said("The answer.")))
    assert shown(reduce(items)) == [("text", "The answer.")]
    assert {item.item_id for item in only(items, ItemStarted)} == {"cc-block-0", "cc-block-1"}


# -- rule 3: silent replacement -----------------------------------------------------------------------------------


def test_another_message_without_a_start_replaces_unconfirmed_blocks_of_an_open_attempt():
    items = recovered(*FIRST[:-1], end(), FIRST[-1], WHOLE_ANSWER)
    assert withdrawn(items) == ["cc-block-1"]
    assert shown(reduce(items)) == [("text", "First."), ("text", "The answer.")]


def test_each_block_of_the_replacement_retracts_one_equal_confirmed_block():
    blocks = [said("Same."), said("Same."), said("Other."), used("t1", a=1, b=2), used("t2", a=2)]
    run = [
        start("m1"),
        *[[*text("Same.", index), whole("m1", said("Same.")), end(index)] for index in (0, 1)],
        *[text("Other.", 2), whole("m1", said("Other.")), end(2)],
        *[call("t1", '{"a":1,"b":2}', 3), whole("m1", blocks[3]), call("t2", '{"a":2}', 4), whole("m1", blocks[4])],
        text("Cut", 5),
    ]
    again = [whole("m2", said("Same.")), whole("m2", used("t3", b=2, a=1)), whole("m2", used("t4", a=1))]
    items = recovered(*run, *again)
    assert withdrawn(items) == ["cc-block-3", "cc-block-0", "t1"]
    assert [(entry.item_id, entry.text) for entry in reduce(items).blocks("text", "tool_use")] == [
        ("cc-block-1", "Same."),
        ("cc-block-2", "Other."),
        ("t2", '{"a":2}'),
        ("cc-promoted-0", "Same."),
        ("t3", ""),
        ("t4", ""),
    ]


def test_a_call_of_another_tool_or_with_another_input_is_another_call():
    read = {"type": "tool_use", "id": "t2", "name": "Read", "input": {"a": 1}}
    run = [start("m1"), call("t1", '{"a":1}'), whole("m1", used("t1", a=1)), end(), text("Cut", 1)]
    items = recovered(*run, whole("m2", read), whole("m2", used("t3", a=1.5)), whole("m2", used("t4", a=1)))
    assert withdrawn(items) == ["cc-block-0", "t1"]


def test_replaced_blocks_are_saved_with_the_state():
    run = [*FIRST, whole("m2", said("New.")), whole("m2", said("First."))]
    assert shown(reduce(recovered(*run, sizes=[1] * 8))) == [("text", "New."), ("text", "First.")]


@pytest.mark.parametrize(
    "accepted",
    [
        [finish("end_turn"), stop()],
        [finish("tool_use"), answer("t1")],
        [answer("t1"), finish("tool_use")],
        [finish("tool_use"), answer("t1"), RETRY],
    ],
    ids=["stopped", "answered", "answered-early", "next-one-retried"],
)
def test_an_accepted_attempt_is_followed_and_not_replaced(accepted):
    run = [start("m1"), call("t1", '{"a":1}'), whole("m1", used("t1", a=1)), end(), accepted, WHOLE_ANSWER]
    items = recovered(*run)
    assert (withdrawn(items), ids(items)) == ([], ["t1", "cc-promoted-0"])
    items = recovered(*run[:-1], whole("m2", used("t3", a=1)))
    assert (withdrawn(items), ids(items)) == ([], ["t1", "t3"])


@pytest.mark.parametrize(
    "waiting",
    [
        [finish("tool_use"), answer("t1", parent_tool_use_id="t0")],
        [finish("end_turn"), answer("t1")],
        [answer("t1"), finish("end_turn")],
    ],
    ids=["answered-by-a-sub-agent", "stopped-for-another-reason", "stopped-for-another-reason-later"],
)
def test_an_unaccepted_block_is_retracted_if_the_replacement_repeats_it(waiting):
    run = [start("m1"), call("t1", '{"a":1}'), whole("m1", used("t1", a=1)), end(), waiting]
    assert ids(recovered(*run, whole("m2", used("t3", a=1)))) == ["t3"]


def test_a_finished_attempt_followed_by_another_was_accepted():
    items = recovered(start("m1"), text("Hi"), finish("end_turn"), start("m2"))
    assert shown(reduce(items)) == [("!text", "Hi")]
    assert only(items, TurnStop) == [TurnStop()]
    left = ItemCompleted(item_id="cc-block-0", incomplete=True, reason="next message")
    for next_ in (start("m2"), whole("m2", said("Bye"))):
        assert left in recovered(start("m1"), text("Hi"), finish("end_turn"), stop(), next_)


def test_a_call_without_a_result_is_retracted_if_the_replacement_repeats_it():
    first = [call("t1", '{"a":1}'), whole("m1", used("t1", a=1))]
    second = [call("t2", '{"a":2}', 1), whole("m1", used("t2", a=2))]
    run = [start("m1"), first, second, finish("tool_use"), answer("t1"), WHOLE_ANSWER, whole("m2", used("t3", a=2))]
    assert ids(recovered(*run)) == ["t1", "cc-promoted-0", "t3"]


def test_all_lines_of_the_replacement_are_one_message():
    items = recovered(CUT_ANSWER, whole("m2", said("One.")), whole("m2", said("Two.")))
    assert shown(reduce(items)) == [("text", "One."), ("text", "Two.")]
    assert len(only(items, ItemRetracted)) == 1


# -- blank blocks, and repeated starts ---------------------------------------------------------------------------


@pytest.mark.parametrize("blank", ["", "\n\n", " \t"])
@pytest.mark.parametrize("ending", [[finish("end_turn"), stop(), result("Real.")], [result("Real.")]])
def test_a_blank_text_that_no_complete_message_holds_leaves_no_item(blank, ending):
    run = [start("m1"), text(blank), end(), text("Real.", 1), whole("m1", said("Real.")), end(1)]
    items = recovered(*run, ending)
    (entry,) = reduce(items).entries
    assert (entry.item_id, entry.text, entry.incomplete) == ("cc-block-1", "Real.", False)
    assert only(items, ItemCompleted) == [ItemCompleted(item_id="cc-block-1")]


def test_the_programs_placeholder_takes_the_place_of_a_blank_text():
    run = [start("m1"), text("\n\n"), end(), call("t1", "{}", 1), end(1)]
    view = reduce(recovered(*run, whole("m1", said("(no content)")), whole("m1", used("t1"))))
    assert [(entry.item_id, entry.text) for entry in view.entries] == [("cc-block-0", "(no content)"), ("t1", "{}")]


@pytest.mark.parametrize("at", [1, 2, 3], ids=["at-once", "in-the-middle", "when-confirmed"])
def test_a_block_started_twice_in_one_place_is_one_block(at):
    first, *deltas = [*text("Hello, ", 0), block_delta(0, type="text_delta", text="world.")]
    parts = [first, *deltas, whole("m1", said("Hello, world."))]
    items = recovered(start("m1"), *parts[:at], first, *parts[at:], result("Hello, world."))
    assert [item.item_id for item in only(items, ItemStarted)] == ["cc-block-0"]
    assert shown(reduce(items)) == [("text", "Hello, world.")]


def test_a_call_started_twice_keeps_its_id():
    first, more = call("t1", '{"a":1}')
    confirmed = whole("m1", used("t1", a=1))
    assert ids(recovered(start("m1"), first, first, more, confirmed)) == ["t1"]
    other = call("t2", '{"a":1}')[0]
    assert ids(recovered(start("m1"), first, more, other, confirmed, whole("m1", used("t2", a=1)))) == ["t1", "t2"]


# -- rule 4: late stops -------------------------------------------------------------------------------------------


def test_late_stops_of_a_replaced_attempt_are_ignored():
    late = [end(), finish(None), stop()]
    with_late = recovered(CUT_ANSWER, whole("m2", used("t1")), answer("t1"), late, start("m3"))
    without = recovered(CUT_ANSWER, whole("m2", used("t1")), answer("t1"), start("m3"))
    assert with_late[:-1] == without[:-1]  # the counts in the diagnosis differ


def test_a_late_stop_that_names_its_message_does_not_stop_the_current_one():
    late = [event("content_block_delta", "m1", index=0, delta={"type": "text_delta", "text": "late"}), stop(None, "m1")]
    items = recovered(CUT_ANSWER, start("m2"), text("The ans"), late, whole("m3", said("The answer.")))
    assert shown(reduce(items)) == [("text", "The answer.")]
    assert ItemDelta(item_id="cc-block-1", delta_type="text_delta", content="late", at=7) not in items


# -- rule 5: notices ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "notice",
    [
        whole("n", said("API Error"), isApiErrorMessage=True),
        whole("n", said("API Error"), is_api_error_message=True),
        whole("n", said("API Error"), error="server_error"),
        {"type": "assistant", "message": {"id": "n", "model": "<synthetic>", "content": [said("API Error")]}},
    ],
    ids=["camel", "snake", "error", "synthetic"],
)
def test_a_notice_is_an_error_and_neither_confirms_nor_replaces(notice):
    items = recovered(start("m1"), text("Hi"), notice, whole("m1", said("Hi")), result("API Error"))
    view = reduce(items)
    assert [error.message for error in view.notices.values()] == ["API Error"]
    assert (shown(view), withdrawn(items)) == ([("text", "Hi")], [])
    assert [told.unseen for told in view.results.values()] == [True]


# -- rule 6: other lines inside a stream ---------------------------------------------------------------------------


def test_tool_results_and_sub_agents_inside_a_stream_do_not_affect_it():
    sub = whole("s1", said("Found nothing."), used("t9"), parent_tool_use_id="t0")
    inside = [answer("t0"), sub, answer("t9", parent_tool_use_id="t0")]
    items = recovered(start("m1"), text("A"), inside, text("B", 1), whole("m1", said("A")), whole("m1", said("B")))
    view = reduce(items)
    assert shown(view) == [("text", "A"), ("text", "B")]
    assert [(entry.item_id, entry.text) for entry in view.blocks("text", "tool_use", parent=True)] == [
        ("cc-subagent-0", "Found nothing."),
        ("t9", ""),
    ]
    assert [item.parent_tool_use_id for item in only(items, ItemResult)] == [None, "t0"]
    assert TurnStop(model="m", parent_tool_use_id="t0") in items


def test_streamed_events_of_a_sub_agent_do_not_reach_the_main_stream():
    sub = [line | {"parent_tool_use_id": "t0"} for line in [start("s1"), *text("sub"), finish(None), stop()]]
    assert recovered(start("m1"), sub, text("A"), whole("m1", said("A"))) == recovered(
        start("m1"), text("A"), whole("m1", said("A"))
    )


# -- rules 7 and 8: synthetic lines, ends ------------------------------------------------------------------------


def test_lines_that_the_program_wrote_itself_are_marked():
    line = {"type": "user", "isSynthetic": True, "message": {"role": "user", "content": "Go on."}}
    (item,) = only(recovered(line), ItemStarted)
    assert (item.item_type, item.is_synthetic, item.is_sidechain) == ("user_message", True, False)
    assert bytes(item.content) == b'[{"type":"text","text":"Go on."}]'
    (item,) = only(recovered(line | {"isSidechain": True}), ItemStarted)
    assert item.is_sidechain


@pytest.mark.parametrize("ending", [[], [result("x", is_error=True)]], ids=["killed", "error"])
def test_the_end_of_a_run_keeps_open_items_and_marks_them(ending):
    items = recovered(CUT_ANSWER, call("t1", '{"cmd": "ls', 1), ending)
    reason = "result" if ending else "exit 1"
    assert only(items, ItemCompleted) == [
        ItemCompleted(item_id="cc-block-0", incomplete=True, reason=reason),
        ItemCompleted(item_id="t1", partial_input='{"cmd": "ls', incomplete=True, reason=reason),
    ]
    assert withdrawn(items) == []


def streamed_whole(message_id, words):
    return [start(message_id), *text(words), whole(message_id, said(words)), end(), finish("end_turn"), stop()]


@pytest.mark.parametrize(
    ("run", "unseen"),
    [
        pytest.param([result("")], False, id="no words"),
        pytest.param([result(" \n")], False, id="blanks"),
        pytest.param([result("Hi")], True, id="no message"),
        pytest.param([streamed_whole("m1", "No."), streamed_whole("m2", "Hi"), result("Hi")], False, id="newest"),
        pytest.param([streamed_whole("m1", "Hi"), streamed_whole("m2", "No."), result("Hi")], True, id="older"),
        pytest.param([streamed_whole("m1", "Hi"), start("m2"), text("Hel"), stop(), start("m3"), result("Hi")], False,
                     id="newest of which something is left"),
        pytest.param([streamed_whole("m1", "Hi"), result("Hi", begun_message_ids=["m0"])], False, id="the only one"),
        pytest.param([whole("m1", said("One."), said("Two.")), result("One.\n\nTwo.")], False, id="two blocks, apart"),
        pytest.param([whole("m1", said("One."), said("Two.")), result("One.Two.")], False, id="two blocks, joined"),
        pytest.param([streamed_whole("m1", "No."), whole("m2", said("Hi")), result("Hi", begun_message_ids=["m1"])],
                     False, id="silent"),
    ],
)  # fmt: skip
def test_a_result_is_compared_with_the_newest_message_it_can_be_about(run, *, unseen):
    assert [item.unseen for item in only(recovered(*run), TurnResult)] == [unseen]


@pytest.mark.parametrize(
    ("run", "incomplete"),
    [
        ([whole("m1", said("Hi")), result("Hi")], False),
        ([whole("m1", said("Hi")), finish("end_turn"), stop()], False),
        ([end(), stop()], True),
    ],
    ids=["told by a result", "stopped for a reason", "cut"],
)
def test_a_result_does_not_end_a_turn_twice(run, *, incomplete):
    items = recovered(start("m1"), text("Hi"), *run, result("Hi"))
    assert [item.incomplete for item in only(items, TurnStop)] == [incomplete]


def test_content_repeated_by_a_replacement_is_in_the_log_once():
    run = [start("m1"), text("Same."), whole("m1", said("Same.")), whole("m2", said("Same.")), result("Same.")]
    assert [turn.message_id for turn in outcome("claude-cli", run).turns] == ["m2"]


def test_a_result_of_earlier_messages_does_not_affect_the_running_attempt():
    early, late = (result(words, begun_message_ids=[name]) for words, name in (("One.", "m1"), ("Two.", "m2")))
    first = [start("m1"), *text("One."), whole("m1", said("One.")), finish("end_turn"), stop()]
    second = [start("m2"), *text("Tw"), early, whole("m2", said("Two.")), finish("end_turn"), stop()]
    view = reduce(recovered(first, second, late))
    assert shown(view) == [("text", "One."), ("text", "Two.")]
    assert [told.unseen for told in view.results.values()] == [False, False]


@pytest.mark.parametrize(
    "before",
    [[], [finish("end_turn")], [finish(None)], [end(), stop()], [stop(1, "m1")]],
    ids=["open", "finished", "null", "stop", "abandoned"],
)
@pytest.mark.parametrize(
    "next_", [[start("m2"), *text("Next."), whole("m2", said("Next."))], [whole("m2", said("Next."))]]
)
def test_another_run_in_the_same_pipe_retracts_nothing(before, next_):
    items = recovered(CUT_ANSWER, before, INIT, next_, result("Next."))
    assert shown(reduce(items)) == [("!text", "The answ"), ("text", "Next.")]
    assert withdrawn(items) == []
    (told,) = only(items, TurnDiagnosis)
    assert (told.reason, told.head, "aside" in told.counts) == ("next run", "The answ", False)
    assert kinds(items).index("turn/diagnosis") < kinds(items).index("session/init")


def test_a_run_that_begins_after_a_result_or_before_any_message_ends_nothing():
    one = [start("m1"), text("One."), whole("m1", said("One.")), finish("end_turn"), stop(), result("One.")]
    items = recovered(INIT, one, INIT, WHOLE_ANSWER, INIT, result("The answer."))
    assert shown(reduce(items)) == [("text", "One."), ("text", "The answer.")]
    assert only(items, TurnDiagnosis) == []


# -- a turn is complete if all of it was confirmed and its result is a success -----------------------------------


@pytest.mark.parametrize("stops", [[], [end()], [end(), finish("end_turn")], [end(), stop()], [finish(None), stop()]])
@pytest.mark.parametrize("subtype", ["success", "error_during_execution"])
def test_a_successful_turn_is_complete_whatever_stops_are_lost(stops, subtype):
    run = [start("m1"), text("\n"), text("Hi", 1), whole("m1", said("Hi"))]
    items = recovered(*run, stops, result("Hi", subtype=subtype))
    assert only(items, TurnStop)[-1] == TurnStop()
    failed = recovered(*run, stops, result("Hi", subtype="success", is_error=True))
    lost = finish("end_turn") not in stops
    assert [item.incomplete for item in only(failed, TurnStop)] == [lost]


def test_a_turn_with_an_unconfirmed_block_is_incomplete():
    items = recovered(start("m1"), text("Hi"), whole("m1", said("Hi")), text("Mor", 1), result("Hi"))
    assert only(items, TurnStop) == [TurnStop(incomplete=True)]


@pytest.mark.parametrize("next_", [[start("m2")], [WHOLE_ANSWER]], ids=["streams", "whole"])
def test_a_turn_whose_calls_were_all_answered_is_complete_without_its_stops(next_):
    run = [start("m1"), call("t1", "{}"), whole("m1", used("t1"))]
    assert only(recovered(*run, answer("t1"), next_), TurnStop)[0] == TurnStop()
    assert only(recovered(*run, next_), TurnStop)[0] == TurnStop(incomplete=True)


# -- recovery of content -----------------------------------------------------------------------------------------


def test_a_blackout_promotes_every_block_in_order_with_ids_that_never_reset():
    first = whole("m1", {"type": "thinking", "thinking": "plan", "signature": "s"}, said("a"), used("t1", x=1))
    view = reduce(recovered(RETRY, first, answer("t1"), whole("m2", said("b")), result("b")))
    assert [(entry.item_id, entry.item_type, entry.text) for entry in view.entries] == [
        ("cc-promoted-0", "thinking", "plan"),
        ("cc-promoted-1", "text", "a"),
        ("t1", "tool_use", ""),
        ("cc-promoted-2", "text", "b"),
    ]
    assert {entry.origin for entry in view.entries} == {"promoted"}


def test_a_partly_streamed_block_is_completed_with_the_rest():
    items = recovered(start("m1"), text("Hel"), whole("m1", said("Hello.")))
    assert ItemCompleted(item_id="cc-block-0", text="Hello.") in items
    assert shown(reduce(items)) == [("text", "Hello.")]


@pytest.mark.parametrize(("partial", "rest"), [('{"a": 1}', None), ('{"a"', b'{"a":1}'), ("", b'{"a":1}')])
def test_a_partly_streamed_call_is_completed_with_its_input(partial, rest):
    line = json.dumps(whole("m1", used("t1", a=1)), separators=(",", ":")).encode()
    (done,) = only(recovered(start("m1"), call("t1", partial), line, result()), ItemCompleted)
    assert ((bytes(done.input) if done.input else None), done.incomplete) == (rest, False)


def test_a_line_without_a_message_id_belongs_to_the_current_message():
    items = recovered(start("m1"), text("Hi"), whole(None, used("t1")), whole(None, said("Hi")))
    assert shown(reduce(items)) == [("text", "Hi")]
    assert kinds(items)[-2:] == ["turn/stop", "turn/diagnosis"]
