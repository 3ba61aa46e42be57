"""Events of the Responses API become items: places, whole items that confirm or promote, repeated sequence numbers."""

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
    response,
    run,
    text,
)
from stream_runs import entries, errors, extras, items_of, marked, only, stop_reasons, texts

from reknit.pipeline import normalize
from reknit.pipeline.streams.session import Recovery
from reknit.topics.items import AgentUnrecognized, ItemCompleted, ItemDelta, ItemRetracted, TurnStop, Usage

ADDED = added(message())
PART = event("content_part.added", output_index=0, content_index=0, part=text(""))
HELLO = [CREATED, ADDED, PART, delta("Hel"), delta("lo")]


def shown(items):
    return [(entry.item_type, entry.origin, entry.text) for entry in entries(items)]


def test_an_item_is_complete_when_it_is_done_and_the_turn_when_the_response_is():
    assert marked(run(*HELLO, done(message("Hello")))) == [("Hello", False)]
    items = run(*HELLO, done(message("Hello")), response("completed", message("Hello")))
    assert shown(items) == [("text", "stream", "Hello")]
    assert items[-1] == TurnStop(model="gpt-5", stop_reason="completed")
    assert len(only(items, ItemCompleted)) == 1


def test_a_partly_streamed_item_is_completed_and_an_unstreamed_one_is_promoted():
    whole = response("completed", message("Hello"), call('{"a": 1}'))
    items = run(*HELLO[:-1], whole)
    assert shown(items) == [("text", "stream", "Hello"), ("tool_use", "promoted", "")]
    assert bytes(entries(items)[1].input or b"") == b'{"a": 1}'
    items = run(whole)
    assert [entry.origin for entry in entries(items)] == ["promoted", "promoted"]
    assert stop_reasons(items) == ["completed"]


def test_without_a_done_event_nothing_is_complete():
    assert marked(run(*HELLO, event("output_text.done", text="Hello", content_index=0))) == [("Hello", True)]


def test_parts_of_a_message_are_separate_blocks():
    parts = [text("A"), {"type": "refusal", "refusal": "No."}, {"type": "output_audio", "data": "x"}]
    events = [CREATED, ADDED, delta("A"), event("refusal.delta", delta="No.", output_index=0, content_index=1)]
    items = run(*events, response("completed", message(*parts)))
    assert shown(items) == [("text", "stream", "A"), ("text", "stream", "No."), ("output_audio", "promoted", "")]


def test_parts_may_be_numbered_across_all_items():
    """Bedrock's second item begins with part 1 when it streams, and with part 0 when it is whole."""
    reasoning = {"type": "reasoning", "id": "x", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
    thought = event("reasoning_text.delta", content_index=0, delta="Hm.")
    part = event("content_part.added", 1, content_index=1, part=text(""))
    events = [CREATED, added(reasoning | {"content": []}), thought, done(reasoning), added(message(), 1), part]
    events += [delta("Two.", 1, 1), done(message("Two."), 1)]
    items = run(*events, response("completed", reasoning, message("Two.")))
    assert shown(items) == [("thinking", "stream", "Hm."), ("text", "stream", "Two.")]


def test_parts_of_reasoning_have_a_blank_line_between_them():
    begun = added({"type": "reasoning", "id": "x", "summary": []})
    deltas = [
        event("reasoning_summary_text.delta", summary_index=index, delta=words)
        for index, words in ((0, "On"), (0, "e."), (1, "Two."))
    ]
    summary = [{"type": "summary_text", "text": words} for words in ("One.", "Two.")]
    whole = {"type": "reasoning", "id": "x", "summary": summary, "encrypted_content": "sealed"}
    items = run(CREATED, begun, *deltas, done(whole))
    assert shown(items) == [("thinking", "stream", "One.\n\nTwo.")]
    issuer = {"provider": "openai-responses", "model": "gpt-5"}
    thinking, hi = log(CREATED, begun, *deltas, done(whole), response("completed", whole, message("Hi")))
    assert thinking == {"type": "thinking", "thinking": "One.\n\nTwo.", "signature": "sealed", "issuer": issuer}
    history = [user("Go."), said(thinking, hi), user("On.")]
    body = json.loads(normalize({"messages": history, "model": "gpt-5"}, to="openai-responses").body)
    assert body["input"][1] == {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "One.\n\nTwo."}],
        "encrypted_content": "sealed",
    }


def test_reasoning_without_text_is_encrypted():
    whole = {"type": "reasoning", "id": "x", "summary": [], "encrypted_content": "sealed"}
    issuer = {"provider": "openai-responses", "model": "gpt-5"}
    blocks = log(CREATED, response("completed", whole, message("Hi")))
    assert blocks[0] == {"type": "redacted_thinking", "data": "sealed", "issuer": issuer}


# -- calls --------------------------------------------------------------------------------------------------------

CALLING = [CREATED, added(call(""))]


def pieces_of(words):
    return [event("function_call_arguments.delta", delta=piece) for piece in words]


def test_a_call_streams_its_arguments():
    whole = call('{"a": 1.0}')
    items = run(*CALLING, *pieces_of('{"a": 1.0}'), done(whole), response("completed", whole))
    (entry,) = entries(items)
    assert (entry.item_id, entry.started.name, entry.text, entry.incomplete) == ("t1", "f", '{"a": 1.0}', False)
    assert log(response("completed", whole)) == [{"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1.0}}]


@pytest.mark.parametrize("streamed", [0, 3, 6])
def test_an_incomplete_call_is_never_completed(streamed):
    partial = call('{"a": 1', status="incomplete")
    before = [*CALLING, *pieces_of('{"a": 1'[:streamed])] if streamed else [CREATED]
    ending = response("incomplete", partial, incomplete_details={"reason": "max_output_tokens"})
    items = run(*before, done(partial), ending)
    assert (marked(items), stop_reasons(items)) == ([('{"a": 1', True)], ["max_output_tokens"])
    assert log(*before, ending) == [
        {"type": "tool_use", "id": "t1", "name": "f", "input": '{"a": 1', "incomplete": True}
    ]


def test_arguments_that_are_not_an_object_are_incomplete():
    for raw, incomplete in (("", False), ("{}", False), ("[1", True), ("7", True)):
        (entry,) = entries(run(CREATED, response("completed", call(raw))))
        assert entry.incomplete == incomplete


def test_a_custom_tools_text_is_an_object_of_one_member():
    whole = {"type": "custom_tool_call", "id": "c1", "call_id": "t1", "name": "run", "input": 'echo "é"\n'}
    begun = added(whole | {"input": ""})
    deltas = [event("custom_tool_call_input.delta", delta=piece) for piece in 'echo "é"\n']
    assert marked(run(CREATED, begun, *deltas)) == [('{"input":"echo \\"é\\"\\n', True)]
    assert log(CREATED, begun, *deltas, done(whole))[0]["input"] == {"input": 'echo "é"\n'}


def test_the_providers_own_tools_stay_unchanged():
    whole = {"type": "web_search_call", "id": "w1", "status": "completed", "action": {"query": "x"}}
    searching = event("web_search_call.searching", item_id="w1")
    begun = added(whole | {"status": "in_progress"})
    items = run(CREATED, begun, searching, done(whole))
    (entry,) = entries(items)
    assert (entry.item_type, entry.incomplete) == ("web_search_call", False)
    (told,) = only(items, ItemDelta)
    assert (told.delta_type, json.loads(bytes(told.raw))) == ("web_search_call.searching", searching)
    assert log(CREATED, begun, done(whole)) == [whole]


def test_annotations_belong_to_their_text():
    cited = text("Hi", annotations=[{"type": "url_citation", "url": "https://example.com"}])
    items = run(CREATED, response("completed", message(cited)))
    assert extras(items) == [{"annotations": cited["annotations"]}]


def test_members_without_a_place_in_the_history_are_extras():
    whole = [message("Hi", phase="commentary"), call("{}", id="f1", namespace="n", caller={"type": "program"})]
    items = run(CREATED, response("completed", *whole))
    assert extras(items) == [{"phase": "commentary"}, {"id": "f1", "namespace": "n", "caller": {"type": "program"}}]


# -- responses ----------------------------------------------------------------------------------------------------


def test_gateways_may_change_every_id():
    whole = response("completed", message("Hello", id="m9"), id="r9")
    items = run(*HELLO[:1], response("in_progress", id="r2"), *HELLO[1:], done(message("Hello", id="m8")), whole)
    assert shown(items) == [("text", "stream", "Hello")]
    assert len(only(items, TurnStop)) == 1


def test_another_response_replaces_an_unfinished_one_and_follows_a_finished_one():
    again = [response("created", id="r2"), *HELLO[1:], done(message("Hello")), response("completed", id="r2")]
    for first in (HELLO, [*HELLO, done(message("Hello"))]):
        items = run(*first, *again)
        assert texts(items) == ["Hello"]
        assert only(items, ItemRetracted) == [ItemRetracted(item_id="resp-block-0")]
    assert texts(run(*HELLO, response("completed", message("Hello")), *again)) == ["Hello", "Hello"]


def test_a_response_whose_beginning_was_lost_is_read():
    items = run(*HELLO[1:], response("completed", message("Hello")))
    assert shown(items) == [("text", "stream", "Hello")]
    items = run(response("in_progress"), delta("Hello"), done(message("Hello")), response("completed"))
    assert shown(items) == [("text", "stream", "Hello")]


def test_an_item_without_a_place_is_identified_by_its_id_or_comes_with_the_response():
    assert marked(run(*HELLO, done(message("Hello"), None))) == [("Hello", False)]
    assert texts(run(CREATED, done(message("Hello", id="m7"), None), response("completed", message("Hello")))) == [
        "Hello"
    ]


@pytest.mark.parametrize(
    ("error", "message_", "code"),
    [
        (response("failed", error={"code": "server_error", "message": "Oh."}), "Oh.", "server_error"),
        (response("failed"), "error", ""),
        ({"type": "error", "code": "rate_limit", "message": "Slow."}, "Slow.", "rate_limit"),
        ({"type": "error", "error": {"type": "x", "message": "Slow."}}, "Slow.", "x"),
    ],
)
def test_an_error_cuts_the_response(error, message_, code):
    items = run(*HELLO, error)
    assert (errors(items), marked(items)) == ([(message_, code)], [("Hello", True)])


def test_tokens_are_counted_without_the_cache():
    usage = {"input_tokens": 10, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 4}}
    (stop,) = only(run(*HELLO, response("completed", message("Hello"), usage=usage)), TurnStop)
    assert stop.usage == Usage(input_tokens=6, output_tokens=2, cache_read_input_tokens=4)


# -- redelivery ---------------------------------------------------------------------------------------------------


def test_any_range_of_numbered_events_may_be_repeated():
    pieces = encoded(*numbered([*HELLO, delta("lo"), done(message("Hellolo")), response("completed")]))
    clean = items_of("openai-responses", pieces)
    assert texts(clean) == ["Hellolo"]
    for first in range(len(pieces)):
        for last in range(first, len(pieces)):
            assert items_of("openai-responses", [*pieces[:last], *pieces[first:]]) == clean


def test_unnumbered_events_are_never_deduplicated():
    assert texts(run(*HELLO[:3], delta("ha"), delta("ha"))) == ["haha"]


def test_numbers_restart_with_each_run():
    pieces = encoded(*numbered(HELLO))
    recovery = Recovery("openai-responses")
    items = [item for run in ("a", "b") for piece in pieces for item in recovery.feed(piece, run)]
    assert texts([*items, *recovery.end_run("exit")]) == ["Hello", "Hello"]


# -- unknown and invalid events -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "odd",
    [
        {"type": "response.brand_new"},
        {"no": "type"},
        {"type": "response.output_text.delta", "output_index": "x", "delta": "y"},
        {"type": "response.output_text.delta", "output_index": -1, "delta": "y"},
        {"type": "response.created", "response": 7},
    ],
)
def test_unknown_events_are_passed_on_and_the_stream_continues(odd):
    items = run(*HELLO[:-1], odd, HELLO[-1])
    assert [json.loads(bytes(item.event)) for item in only(items, AgentUnrecognized)] == [odd]
    assert texts(items) == ["Hello"]


def test_an_item_with_a_member_of_a_wrong_type_stays_unchanged():
    odd = call("{}", name=["f"])
    items = run(CREATED, added(odd), done(odd))
    assert [(entry.item_type, json.loads(bytes(entry.started.raw))) for entry in entries(items)] == [("unknown", odd)]


def test_a_part_named_like_a_block_is_not_that_block():
    odd = {"type": "text", "words": "?"}
    (block,) = log(CREATED, response("completed", message(odd)))
    assert block == {"type": "unknown", "came": odd}


def test_a_keep_alive_is_ignored():
    assert run({"type": "keepalive", "sequence_number": 3}) == []
