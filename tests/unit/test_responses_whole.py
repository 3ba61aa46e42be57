"""Responses streams that repeat a part, fail, follow each other, or do not stream at all."""

import json

import pytest
from build import said, user
from responses_events import (
    CREATED,
    added,
    call,
    delta,
    done,
    encoded,
    event,
    log,
    message,
    numbered,
    recovered,
    response,
    run,
)
from stream_runs import entries, extras, items_of, marked, only, shown, stop_reasons, texts

from reknit.pipeline import normalize
from reknit.topics.items import (
    AgentError,
    AgentUnrecognized,
    ItemCompleted,
    ItemDelta,
    ItemStarted,
    TurnDelta,
    TurnStop,
    Usage,
)


def answer(*output, **members):
    return {"object": "response", "id": "r1", "model": "gpt-5", "status": "completed", "output": list(output)} | members


def sealed(*words):
    summary = [{"type": "summary_text", "text": one} for one in words]
    return {"type": "reasoning", "id": "x1", "summary": summary, "encrypted_content": "sealed"}


TEXT_DONE = event("output_text.done", content_index=0, text="Hello")


def errors(items):
    return [item.message for item in only(items, AgentError)]


# -- complete parts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [[], ["H"], ["He", "l"], ["lo"], ["He", "l", "lo"]])
def test_a_complete_text_makes_up_for_lost_deltas(lost):
    pieces = [delta(words) for words in ("He", "l", "lo") if words not in lost]
    cut = recovered(CREATED, *pieces, TEXT_DONE)
    assert (marked(cut.items), cut.blocks) == ([("Hello", True)], [{"type": "text", "text": "Hello"}])
    assert marked(run(CREATED, *pieces, TEXT_DONE, response("completed"))) == [("Hello", False)]
    items = run(CREATED, *pieces, TEXT_DONE, done(message("Hello")), response("completed", message("Hello")))
    assert marked(items) == [("Hello", False)]
    assert len(only(items, ItemCompleted)) == 1


def test_deltas_after_a_complete_text_are_kept():
    assert texts(run(CREATED, delta("He"), TEXT_DONE, delta("!"))) == ["Hello!"]


def test_a_complete_part_after_the_complete_response_adds_nothing():
    clean = [CREATED, delta("Hello"), response("completed", message("Hello"))]
    assert run(*clean, TEXT_DONE) == run(*clean)


def test_a_complete_part_carries_its_annotations():
    cited = {"type": "url_citation", "url": "https://example.com", "title": "T"}
    part = event(
        "content_part.done", content_index=0, part={"type": "output_text", "text": "Hi", "annotations": [cited]}
    )
    annotated = event("output_text.annotation.added", content_index=0, annotation_index=0, annotation=cited)
    for last in ([part], [annotated], [annotated, part]):
        found = recovered(CREATED, delta("Hi"), *last)
        assert (extras(found.items), found.blocks) == ([{"annotations": [cited]}], [{"type": "text", "text": "Hi"}])


@pytest.mark.parametrize("streamed", ["", '{"a"', '{"a":1}', ":1}"])
def test_complete_arguments_make_up_for_lost_deltas(streamed):
    pieces = [added(call("")), event("function_call_arguments.delta", delta=streamed)]
    whole = event("function_call_arguments.done", arguments='{"a":1}')
    cut = recovered(CREATED, *pieces, whole)
    assert (marked(cut.items), cut.blocks[0]["input"]) == ([('{"a":1}', True)], '{"a":1}')
    (block,) = log(CREATED, *pieces, whole, response("completed"))
    assert block == {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}


def test_a_complete_call_that_is_then_incomplete_is_incomplete():
    whole = event("function_call_arguments.done", arguments="{}")
    partial = call("{}", status="incomplete")
    (block,) = log(CREATED, added(call("")), whole, done(partial), response("incomplete", partial))
    assert block == {"type": "tool_use", "id": "t1", "name": "f", "input": "{}", "incomplete": True}


def test_a_custom_tools_complete_text():
    custom = {"type": "custom_tool_call", "id": "c1", "call_id": "t1", "name": "run", "input": ""}
    events = [CREATED, added(custom), event("custom_tool_call_input.delta", delta="l")]
    (block,) = log(*events, event("custom_tool_call_input.done", input='ls "é"'), response("completed"))
    assert block["input"] == {"input": 'ls "é"'}


def test_reasoning_completed_part_by_part():
    parts = [event("reasoning_summary_text.done", summary_index=at, text=f"Part {at}.") for at in range(3)]
    lost = event("reasoning_summary_text.delta", summary_index=1, delta="rt 1")
    assert texts(run(CREATED, added(sealed()), parts[0], lost, parts[1], parts[2])) == ["Part 0.\n\nPart 1.\n\nPart 2."]
    # Without the first part the complete text is unknown.
    assert texts(run(CREATED, added(sealed()), lost, parts[1])) == ["rt 1"]
    items = run(CREATED, added(sealed()), lost, parts[1], done(sealed("A", "B")), response("completed"))
    assert marked(items) == [("A\n\nB", False)]


def test_complete_members_of_provider_tools_are_in_the_log():
    item = {"type": "code_interpreter_call", "id": "ci", "status": "in_progress", "code": ""}
    (block,) = log(CREATED, added(item), event("code_interpreter_call_code.done", item_id="ci", code="1+1"))
    assert block == item | {"code": "1+1"}


def test_a_call_whose_beginning_was_lost_waits_for_its_name():
    arguments = event("function_call_arguments.delta", delta='{"a":1}')
    items = run(CREATED, arguments, done(call('{"a":1}')))
    assert [(entry.item_id, entry.started.name) for entry in entries(items)] == [("t1", "f")]
    items = run(CREATED, arguments, added(call("")))
    assert [(entry.item_id, entry.text) for entry in entries(items)] == [("t1", '{"a":1}')]
    assert texts(run(CREATED, arguments)) == ['{"a":1}']


def test_an_item_without_a_place_is_reported_at_the_end():
    homeless = done(message("Hello", id="m7"), None)
    for last in ([], [response("completed")], [response("failed", error={"message": "Oh."})]):
        assert texts(run(CREATED, homeless, *last)) == ["Hello"]


def test_a_text_whose_response_is_complete_is_complete():
    assert marked(run(CREATED, delta("Hello"), response("completed"))) == [("Hello", False)]
    assert marked(run(CREATED, delta("Hello"), response("incomplete"))) == [("Hello", True)]


# -- refusals, provider-specific items, order -----------------------------------------------------------------------


def test_a_refusal_is_marked_text():
    refused = {"type": "message", "id": "m1", "content": [{"type": "refusal", "refusal": "No."}]}
    streamed = [CREATED, event("refusal.delta", content_index=0, delta="No.")]
    for events in (streamed, [*streamed, done(refused)], [CREATED, done(refused)], [answer(refused)]):
        found = recovered(*events)
        assert shown(found.items) == [("text", "No.")]
        assert extras(found.items) == [{"refusal": True}]
        assert found.blocks == [{"type": "text", "text": "No.", "refusal": True}]


@pytest.mark.parametrize("events", [[], [added({"type": "mcp_call", "id": "i"})]], ids=["promoted", "streamed"])
def test_provider_specific_items_end_with_all_their_members(events):
    item = {"type": "mcp_call", "id": "i", "status": "failed", "output": "o", "error": {"x": 1}}
    items = run(CREATED, *events, response("completed", item))
    assert [json.loads(bytes(one.raw)) for one in only(items, ItemCompleted)] == [item]


@pytest.mark.parametrize("odd", [None, 7, {"type": "tool_use", "id": "t"}, {"no": "type"}])
def test_an_item_that_looks_like_another_block_is_unknown(odd):
    (block,) = log(CREATED, response("completed", odd))
    assert block == {"type": "unknown", "came": odd if isinstance(odd, dict) else {"it": odd}}


def test_a_turn_in_the_log_is_in_the_order_of_its_items():
    events = [CREATED, added(call("", "a"), 1), added(call("", "b"), 0), done(call("{}", "a"), 1), delta("Hi", 2)]
    assert [block.get("id") for block in log(*events, done(call("{}", "b"), 0))] == ["b", "a", None]


def test_encrypted_reasoning_goes_into_the_log_and_not_on_the_screen():
    events = [CREATED, added(sealed()), added(message(""), 1), delta("Hi", 1), done(message("Hi"), 1), done(sealed())]
    for one in (events, [*events, response("completed", sealed(), message("Hi"))], [answer(sealed(), message("Hi"))]):
        found = recovered(*one)
        assert shown(found.items) == [("text", "Hi")]
        assert len(only(found.items, ItemStarted | ItemCompleted)) == 2
        assert [block["type"] for block in found.blocks] == ["redacted_thinking", "text"]
        asked = [user("Go."), said(*found.blocks), user("On.")]
        body = json.loads(normalize({"messages": asked, "model": "gpt-5"}, to="openai-responses").body)
        assert body["input"][1] == {"type": "reasoning", "summary": [], "encrypted_content": "sealed"}


def test_late_reasoning_text_is_shown():
    late = event("reasoning_summary_text.delta", summary_index=0, delta="Hm.")
    items = run(CREATED, added(sealed()), delta("Hi", 1), late, done(sealed("Hm.")))
    assert shown(items) == [("text", "Hi"), ("thinking", "Hm.")]


# -- failures -------------------------------------------------------------------------------------------------------

ERROR = {"type": "error", "code": "server_error", "message": "Oh."}
FAILED = response("failed", error={"code": "server_error", "message": "Oh."})


@pytest.mark.parametrize(
    ("events", "told"),
    [
        ([ERROR, FAILED], ["Oh."]),
        ([FAILED, ERROR], ["Oh."]),
        ([ERROR, response("failed", error=None)], ["Oh."]),
        ([ERROR, response("failed", error={"message": "Other."})], ["Oh.", "Other."]),
        ([ERROR, ERROR], ["Oh.", "Oh."]),
        ([ERROR, FAILED, response("created", id="r2"), ERROR, FAILED], ["Oh.", "Oh."]),
        ([FAILED, FAILED], ["Oh."]),
    ],
)
def test_one_failure_is_reported_once(events, told):
    assert errors(run(CREATED, delta("He"), *events)) == told


def test_a_failed_response_keeps_its_output_and_status():
    usage = {"input_tokens": 3, "output_tokens": 2}
    output = [message("Hello", status="completed"), call('{"a":', status="incomplete")]
    failed = response("failed", *output, error={"code": "e", "message": "Oh."}, usage=usage)
    for before in ([], [CREATED], [CREATED, delta("ello")], [CREATED, delta("He"), ERROR]):
        items = run(*before, failed)
        assert marked(items) == [("Hello", False), ('{"a":', True)]
        (stop,) = only(items, TurnStop)
        assert (stop.incomplete, stop.stop_reason, stop.usage) == (True, None, Usage(input_tokens=3, output_tokens=2))
    partial = response("failed", message("Hello", status="incomplete"), error={"message": "Oh."})
    assert marked(run(CREATED, delta("ello"), partial)) == [("Hello", True)]


# -- consecutive responses ------------------------------------------------------------------------------------------


def stream(id_, **members):
    return [
        response("created", id=id_),
        *[delta(words) | members for words in ("ha", "ha", "ho")],
        response("completed", id=id_),
    ]


def fed(events):
    return items_of("openai-responses", encoded(*events), sizes=[1] * len(events))


@pytest.mark.parametrize("members", [{}, {"item_id": ""}])
def test_numbers_restart_with_each_response(members):
    pieces = [*numbered(stream("r1", **members)), *numbered(stream("r2", **members))]
    assert texts(fed(pieces)) == ["hahaho", "hahaho"]


def test_an_item_id_reused_by_a_gateway_is_no_redelivery():
    one = [added(message("", id="m")), *[delta(words) | {"item_id": "m"} for words in ("ha", "ha")]]
    first, second = (
        numbered([response("created", id=name), *one, response("completed", id=name)]) for name in ("r1", "r2")
    )
    assert texts(fed([*first, *second])) == ["haha", "haha"]


def test_a_repeated_range_across_two_responses_changes_nothing():
    pieces = [*numbered(stream("r1", item_id="m1")), *numbered(stream("r2", item_id="m2")[:3])]
    clean = fed(pieces)
    for first in range(len(pieces)):
        for last in range(first, len(pieces)):
            assert fed([*pieces[:last], *pieces[first:]]) == clean, (first, last)


def test_a_stream_resumed_after_a_number_continues():
    pieces = numbered(stream("r1"))
    assert texts(fed([*pieces[:3], *pieces[2:]])) == ["hahaho"]


def test_padding_is_ignored():
    pieces, again = (
        [one | {"obfuscation": padding * at} for at, one in enumerate(numbered(stream("r1")))] for padding in "xy"
    )
    assert texts(fed([*pieces[:3], *again[1:]])) == ["hahaho"]
    first = [{"obfuscation": "x", "sequence_number": at} | one for at, one in enumerate(stream("r1"))]
    assert texts(fed([*first[:3], *first[1:]])) == ["hahaho"]


# -- whole answers --------------------------------------------------------------------------------------------------


def test_a_whole_answer_is_a_turn():
    items, turns = recovered(answer(sealed("Hm."), message("Hi"), call('{"a":1}'), usage={"output_tokens": 2**70}))
    assert [entry.item_type for entry in entries(items)] == ["thinking", "text", "tool_use"]
    assert {entry.origin for entry in entries(items)} == {"promoted"}
    assert [(turn.message_id, turn.model, turn.incomplete) for turn in turns] == [("r1", "gpt-5", False)]
    (stop,) = only(items, TurnStop)
    assert (stop.stop_reason, stop.usage) == ("completed", Usage(output_tokens=2**53 - 1))


@pytest.mark.parametrize(
    ("status", "details", "reason"),
    [
        ("incomplete", {"reason": "max_output_tokens"}, "max_output_tokens"),
        ("cancelled", None, "cancelled"),
        ("completed", None, "completed"),
    ],
)
def test_a_whole_answer_has_its_own_stop_reason(status, details, reason):
    items = run(answer(message("Hi"), status=status, incomplete_details=details))
    assert [(item.stop_reason, item.incomplete) for item in items if isinstance(item, TurnStop)] == [(reason, False)]


def test_a_whole_answer_without_a_status_has_no_reason():
    items = run({"object": "response.compaction", "id": "c1", "output": [message("Hi")], "usage": {"output_tokens": 2}})
    assert texts(items) == ["Hi"]
    assert [(item.stop_reason, item.incomplete) for item in only(items, TurnStop)] == [(None, False)]
    assert [item.usage for item in only(items, TurnDelta)] == [Usage(output_tokens=2)]


def test_a_failed_whole_answer_is_an_error():
    items = run(answer(status="failed", error={"code": "e", "message": "Oh."}))
    assert errors(items) == ["Oh."]
    assert only(items, AgentUnrecognized) == []


def test_a_polled_answer_is_reported_once():
    first, second = message("One", status="completed"), message("Two", id="m2")
    polls = [
        answer(status="queued"),
        answer(first, status="in_progress"),
        answer(first, second | {"status": "in_progress", "content": []}, status="in_progress"),
        answer(first, second),
        answer(first, second),
    ]
    items = run(*polls)
    assert texts(items) == ["One", "Two"]
    assert [item.incomplete for item in only(items, ItemCompleted)] == [False, False]
    assert len(only(items, TurnStop)) == 1


def test_a_whole_answer_replaces_a_cut_stream():
    items = run(CREATED, added(sealed("Hm.")), delta("He", 1), answer(message("Hello"), id="r2"))
    assert marked(items) == [("Hello", False)]


def test_other_members_of_a_response_are_extras_of_its_end():
    found = [{"title": "T", "url": "https://example.com"}]
    for one in (
        response("completed", message("Hi"), search_results=found, tools=[1], moderation=None),
        answer(message("Hi"), search_results=found),
    ):
        (stop,) = only(run(one), TurnStop)
        assert {name: json.loads(bytes(raw)) for name, raw in stop.extras.items()} == {"search_results": found}


def test_a_last_event_with_an_odd_member_is_still_the_last_event():
    odd = response("completed", message("Hello"), usage={"input_tokens": "many"}, model=["m"])
    items = run(CREATED, delta("He"), odd)
    assert (marked(items), stop_reasons(items)) == ([("Hello", False)], ["completed"])


def test_deltas_have_only_streamed_text():
    items = run(CREATED, delta("He"), TEXT_DONE, done(message("Hello")))
    assert [item.content for item in items if isinstance(item, ItemDelta)] == ["He"]
