"""The Anthropic API's stream: its events become items and the turn that is sent back to the provider."""

import base64
import json

import msgspec
import pytest
import stream_runs
from anthropic_events import block, call, delta, end, hello, json_piece, start, stop, text
from build import call as tool_use
from build import result, said, thinking, user
from build import text as words
from stream_runs import extras, marked, only, shown, texts

from reknit.pipeline import normalize
from reknit.topics.items import AgentError, ItemCompleted, TurnDelta, TurnStop, Usage


def fed(*parts, reason="exit"):
    lines = b"".join(b"data: " + record + b"\n\n" for record in stream_runs.records(*parts))
    found = stream_runs.run("anthropic", lines, end=reason)
    return found.items, found.view, found.contents


def pairs(view):
    return [(entry.item_id, entry.text, entry.incomplete) for entry in view.entries]


def stops(items):
    return only(items, TurnStop)


THOUGHT = [
    block(0, "thinking", thinking="", signature=""),
    delta(0, "thinking_delta", thinking="Hm."),
    delta(0, "signature_delta", signature="c2ln"),
    stop(0),
]


# -- one message ----------------------------------------------------------------------------------------------------


def test_a_message_is_its_blocks_and_one_stop_with_all_metadata():
    usage = {"input_tokens": 7, "cache_read_input_tokens": 3, "output_tokens": 1}
    items, view, (turn,) = fed(start(usage=usage), hello(), end(usage={"output_tokens": 20}))
    assert pairs(view) == [("an-block-0", "Hello", False)]
    assert turn == [{"type": "text", "text": "Hello"}]
    counted = Usage(input_tokens=7, output_tokens=20, cache_read_input_tokens=3)
    assert stops(items) == [TurnStop(model="claude-sonnet-4-5", stop_reason="end_turn", usage=counted)]
    assert only(items, TurnDelta) == []


def test_interleaved_parallel_calls_are_distinguished_by_index():
    first, *of_first, first_stop = call(0, "t1", '{"a":', "1}", name="a")
    second, *of_second, second_stop = call(1, "t2", '{"b"', ":2}", name="mcp__git__log")
    pieces = [of_second[0], of_first[0], of_second[1], of_first[1]]
    _, view, (turn,) = fed(start(), first, second, pieces, second_stop, first_stop, end("tool_use"))
    assert pairs(view) == [("t1", '{"a":1}', False), ("t2", '{"b":2}', False)]
    assert turn == [tool_use("t1", "a", a=1), tool_use("t2", "mcp__git__log", b=2)]


def sealed(index, signature):
    """Encrypted reasoning without text, and its stop."""
    begun = block(index, "thinking", thinking="", signature="")
    return [begun, delta(index, "signature_delta", signature=signature), stop(index)]


def test_reasoning_is_kept_with_its_signature_and_its_issuer():
    redacted = [block(1, "redacted_thinking", data="b3BhcXVl"), stop(1)]
    _, _, (turn,) = fed(start(), THOUGHT, redacted, sealed(2, "b25seQ=="), call(3, "t1", "{}"), end("tool_use"))
    issuer = {"provider": "anthropic", "model": "claude-sonnet-4-5"}
    assert turn[:3] == [
        thinking("Hm.", signature="c2ln", issuer=issuer),
        {"type": "redacted_thinking", "data": "b3BhcXVl", "issuer": issuer},
        thinking("", signature="b25seQ==", issuer=issuer),
    ]


def test_citations_are_in_the_history_and_in_the_items_extras():
    cited = [delta(0, "citations_delta", citation={"cited_text": cited}) for cited in ("a", "b")]
    items, view, (turn,) = fed(start(), block(0, "text", text="", citations=[]), text(0, "x"), cited, stop(0), end())
    assert turn == [words("x", citations=[{"cited_text": "a"}, {"cited_text": "b"}])]
    assert extras(items) == [{"citations": turn[0]["citations"]}]
    assert pairs(view) == [("an-block-0", "x", False)]


def test_citations_of_a_start_and_of_its_deltas_add_up():
    begun = block(0, "text", text="x", citations=[{"cited_text": "a"}, {"cited_text": "b"}])
    more = delta(0, "citations_delta", citation={"cited_text": "c"})
    cited = [{"cited_text": one} for one in "abc"]
    for deltas, expected in (([more], cited), ([], cited[:2])):
        items, _, (turn,) = fed(start(), begun, *deltas, stop(0), end())
        assert turn == [words("x", citations=expected)]
        assert extras(items) == [{"citations": expected}]
    odd = block(0, "text", text="x", citations={"enabled": True})
    assert fed(start(), odd, stop(0), end())[2] == [[words("x", citations={"enabled": True})]]


def test_items_of_other_types_are_kept_and_end_with_their_whole_block():
    result = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [{"url": "https://x", "title": "X"}]}
    odd = [
        *[block(0, "server_tool_use", id="s1", name="web_search", input={}), json_piece(0, '{"q":"x"}'), stop(0)],
        *[{"type": "content_block_start", "index": 1, "content_block": result}, stop(1)],
        *[block(2, "compaction", content=None), delta(2, "compaction_delta", content="short"), stop(2)],
        *[block(3, "brand_new", text="A"), delta(3, "text_delta", text="B")],
        *[delta(3, "new_delta", new=1), delta(3, "new_delta", new=2), stop(3)],
        *[block(4, "brand_new_use", input={}), json_piece(4, '{"a":'), json_piece(4, "1}"), stop(4)],
        *[block(5, "mcp_tool_use", id="p1", name="echo", input={}, server_name="e"), stop(5)],
        *hello(6),
    ]
    items, view, (turn,) = fed(start(), odd, end())
    raws = [item.raw for item in items if isinstance(item, ItemCompleted)]
    assert [None if raw is msgspec.UNSET else json.loads(bytes(raw)) for raw in raws] == [*turn[:-1], None]
    assert turn[:-1] == [
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"q": "x"}},
        result,
        {"type": "compaction", "content": "short"},
        {"type": "brand_new", "text": "AB", "deltas": [{"type": "new_delta", "new": new} for new in (1, 2)]},
        {"type": "brand_new_use", "input": {"a": 1}},
        {"type": "mcp_tool_use", "id": "p1", "name": "echo", "input": {}, "server_name": "e"},
    ]
    assert [entry.item_type for entry in view.entries] == [kept["type"] for kept in turn]
    assert view.unrecognized == {}


def test_a_signature_alone_is_in_the_log_and_not_an_item():
    alone = sealed(0, "s")
    for events in ([*alone, *hello(1), *end()], [*alone[:2], *hello(1), *end()], alone[:2]):
        items, view, (turn,) = fed(start(), *events)
        assert turn[0]["signature"] == "s"
        named = {item.item_id for item in items if hasattr(item, "item_id")}
        # A block that may continue when the next block starts has its place on the screen.
        has_place = len(events) > 2 and events[2] != alone[2]
        assert ("an-block-0" in named) is has_place
        assert [entry.item_type for entry in view.entries] == ["thinking"] * has_place + ["text"] * (len(events) > 2)
    _, view, _ = fed(start(), *alone[:2], start("m2"), hello(), end())
    assert view.retracted == set()


def test_thinking_text_after_its_stop_is_not_lost():
    late = delta(0, "thinking_delta", thinking="Hm.")
    items, _, (turn,) = fed(start(), block(0, "thinking", thinking=""), stop(0), hello(1), late, end())
    assert shown(items) == [("text", "Hello"), ("thinking", "Hm.")]
    assert [kept["type"] for kept in turn] == ["text", "thinking"]


def test_thinking_with_more_than_a_signature_has_an_item():
    begun = block(0, "thinking", thinking="", signature="s", summary=[{"url": "https://x"}])
    items, view, _ = fed(start(), begun, stop(0), end())
    assert [entry.item_type for entry in view.entries] == ["thinking"]
    assert extras(items) == [{"summary": [{"url": "https://x"}]}]


def test_an_input_may_be_in_the_start_of_its_call():
    given = call(0, "t1", input={"a": 1}, caller={"type": "direct"})
    _, view, (turn,) = fed(start(), given, end("tool_use"))
    assert turn == [tool_use("t1", a=1) | {"caller": {"type": "direct"}}]
    assert pairs(view) == [("t1", '{"a": 1}', False)]
    _, view, _ = fed(start(), call(0, "t1", '{"b":', "2}", input={"a": 1}), end("tool_use"))
    assert pairs(view) == [("t1", '{"b":2}', False)]
    _, view, _ = fed(start(), call(0, "t1", input={"a": 1})[:1])
    assert pairs(view) == [("t1", '{"a":1}', True)]


def test_a_message_may_arrive_whole():
    content = [words("Hi"), tool_use("t1")]
    whole = start()["message"] | {"content": content, "stop_reason": "tool_use", "usage": {"output_tokens": 3}}
    items, view, (turn,) = fed(whole)
    assert turn == content
    assert [entry.item_id for entry in view.entries] == ["an-promoted-0", "t1"]
    assert {entry.origin for entry in view.entries} == {"promoted"}
    assert [(told.stop_reason, told.usage) for told in stops(items)] == [("tool_use", Usage(0, 3))]
    _, view, (turn,) = fed(start(content=content, stop_reason="tool_use"), {"type": "message_stop"})
    assert (turn, [entry.incomplete for entry in view.entries]) == (content, [False, False])


def test_reasoning_of_a_whole_answer_has_its_issuer_in_the_log_alone():
    sealed = {"type": "redacted_thinking", "data": "b3BhcXVl"}
    thought = {"type": "thinking", "thinking": "", "signature": "c2ln"}
    result = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []}
    items, view, (turn,) = fed(start()["message"] | {"content": [thought, sealed, result], "stop_reason": "end_turn"})
    issuer = {"issuer": {"provider": "anthropic", "model": "claude-sonnet-4-5"}}
    assert turn == [thought | issuer, sealed | issuer, result]
    assert [json.loads(bytes(entry.started.raw)) for entry in view.entries] == [sealed, result]
    raws = [item.raw for item in items if isinstance(item, ItemCompleted)]
    assert [raw is not msgspec.UNSET for raw in raws] == [False, True]


def test_a_fallback_names_the_next_model():
    fallback = block(0, "fallback", **{"from": {"model": "a"}, "to": {"model": "b"}})
    items, _, _ = fed(start(), fallback, stop(0), hello(1), end())
    assert stops(items)[0].model == "b"


# -- refusals, errors, cuts -----------------------------------------------------------------------------------------


def test_a_refusal_is_a_stop_reason_with_its_details():
    refused = {"type": "message_delta", "delta": {"stop_reason": "refusal", "stop_details": {"category": "x"}}}
    items, view, (turn,) = fed(start(), hello(), refused, {"type": "message_stop"})
    (told,) = stops(items)
    assert (told.stop_reason, told.incomplete, isinstance(told.extras, dict)) == ("refusal", False, True)
    assert pairs(view) == [("an-block-0", "Hello", False)]
    assert turn == [{"type": "text", "text": "Hello"}]


@pytest.mark.parametrize("pieces", [['{"a": "b'], []], ids=["inside the input", "before it"])
def test_a_call_cut_by_a_limit_stays_incomplete(pieces):
    _, view, (turn,) = fed(start(), call(0, "t1", *pieces), end("max_tokens"))
    assert pairs(view) == [("t1", "".join(pieces), True)]
    assert turn == [{"type": "tool_use", "id": "t1", "name": "ls", "input": "".join(pieces), "incomplete": True}]


def test_an_error_in_mid_stream_cuts_the_message_and_names_the_reason():
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    items, view, _ = fed(start(), hello()[:3], error)
    assert AgentError(message="Overloaded", code="overloaded_error", seq=0) in items
    (entry,) = view.entries
    assert (entry.text, entry.incomplete, entry.reason) == ("Hello", True, "overloaded_error")
    items, view, (turn,) = fed(start(), hello()[:3], error, start("m2"), hello(), end())
    assert (pairs(view), view.retracted) == ([("an-block-1", "Hello", False)], {"an-block-0"})
    assert turn == [{"type": "text", "text": "Hello"}]


def test_a_retry_replaces_unfinished_blocks_even_with_the_same_id():
    _, view, (turn,) = fed(start(), hello(), start(), hello(), call(1, "t1", "{}"), end("tool_use"))
    assert (pairs(view), view.retracted) == ([("an-block-1", "Hello", False), ("t1", "{}", False)], {"an-block-0"})
    assert [kept["type"] for kept in turn] == ["text", "tool_use"]


def test_a_repeated_call_gets_a_new_id():
    _, view, (turn,) = fed(start(), call(0, "t1", '{"a"'), start("m2"), call(0, "t1", "{}"), end("tool_use"))
    assert (pairs(view), view.retracted) == ([("t1~2", "{}", False)], {"t1"})
    assert turn[0]["id"] == "t1"


def test_messages_of_one_run_follow_one_another():
    items, view, turns = fed(start(), hello(), end(), start("m2"), hello(), end())
    assert pairs(view) == [("an-block-0", "Hello", False), ("an-block-1", "Hello", False)]
    assert (len(stops(items)), len(turns)) == (2, 2)


# -- lost and reordered events --------------------------------------------------------------------------------------


def test_a_message_whose_start_was_lost():
    _, view, (turn,) = fed(hello(), end())
    assert (pairs(view), turn) == ([("an-block-0", "Hello", False)], [{"type": "text", "text": "Hello"}])
    _, view, _ = fed(hello()[1:], end())
    assert pairs(view) == [("an-block-0", "Hello", False)]


def test_blocks_without_a_stop_are_incomplete():
    _, view, _ = fed(start(), hello()[:3], end())
    assert [(entry.text, entry.incomplete, entry.reason) for entry in view.entries] == [("Hello", True, "exit")]


def test_a_message_without_its_stop_is_complete_once_it_has_its_reason():
    items, view, _ = fed(start(), hello(), end()[:1])
    assert (pairs(view), stops(items)[0].incomplete) == ([("an-block-0", "Hello", False)], False)


def test_a_repeated_start_does_not_duplicate_its_block():
    opened = block(0, "text", text="")
    assert texts(fed(start(), opened, opened, text(0, "Hi"), stop(0), end())[0]) == ["Hi"]


def test_blocks_that_share_an_index_are_all_kept():
    _, view, (turn,) = fed(start(), hello(0), call(0, "t1", '{"a":1}'), end("tool_use"))
    assert pairs(view) == [("an-block-0", "Hello", False), ("t1", '{"a":1}', False)]
    assert len(turn) == 2


def test_text_after_the_stop_reason_is_not_lost():
    finish, done = end()
    items, _, _ = fed(start(), hello(), finish, text(0, " world"), block(1, "text", text="!"), stop(1), done)
    assert marked(items) == [("Hello", False), (" world", True), ("!", False)]


def test_deltas_of_unknown_blocks_are_passed_on():
    items, view, _ = fed(start(), delta(5, "citations_delta", citation={"x": 1}), hello(), end())
    kinds = [json.loads(msgspec.json.encode(seen.event)) for seen in view.unrecognized.values()]
    assert kinds == [{"type": "citations_delta", "citation": {"x": 1}}, {"x": 1}]
    assert pairs(view) == [("an-block-0", "Hello", False)]
    assert stops(items)[0].incomplete is False


# -- unknown events -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"data: not json\n\n", "non-JSON output"),
        (b"data: [1]\n\n", "not a JSON object"),
        (b'data: {"type":"unheard_of"}\n\n', "unknown or malformed event: unheard_of"),
        (
            b'data: {"type":"content_block_delta","index":-1,"delta":{}}\n\n',
            "unknown or malformed event: content_block",
        ),
        (
            b'data: {"type":"content_block_start","index":0,"content_block":1}\n\n',
            "unknown or malformed event: content",
        ),
        (b"data: " + b'{"a":' * 100_000 + b"\n\n", "nesting too deep"),
        (b"\xff\xfe\x00binary", "non-JSON output"),
        (b"\x00\x00\x00\x10binary noise here", "non-JSON output"),
    ],
)
def test_unknown_events_are_passed_on_and_the_message_continues(line, reason):
    lines = [f"data: {json.dumps(event)}\n\n".encode() for event in (start(), *hello(), *end())]
    view = stream_runs.run("anthropic", lines[:3], line, lines[3:]).view
    assert [entry.text for entry in view.entries] == ["Hello"]
    (seen,) = view.unrecognized.values()
    assert seen.reason.startswith(reason)


def test_lone_surrogates_and_broken_utf8_are_repaired():
    broken = [
        b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a\\ud83d"}}',
        b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"b\xf0\x9f"}}',
    ]
    odd = [
        b'{"type":"content_block_start","index":1,"content_block":{"type":"text","text":"c\\udc00"}}',
        b'{"type":"content_block_start","index":2,"content_block":{"type":"text","text":"d\xff","odd":1}}',
    ]
    view = stream_runs.run("anthropic", start(), hello()[0], broken, odd).view
    assert [entry.text for entry in view.entries] == ["a\ufffdb\ufffd", "c\ufffd", "d\ufffd"]


def test_a_line_of_ten_megabytes():
    _, view, _ = fed(start(), hello()[0], text(0, "x" * 10_000_000), stop(0), end())
    assert [len(entry.text) for entry in view.entries] == [10_000_000]


def test_chunks_of_an_invoke_body_as_json():
    bodies = [base64.b64encode(json.dumps(event).encode()).decode() for event in (start(), *hello(), *end())]
    wrapped = [{"chunk": {"bytes": body}} for body in bodies[:3]] + [{"bytes": body} for body in bodies[3:]]
    assert pairs(stream_runs.run("anthropic", wrapped).view) == [("an-block-0", "Hello", False)]


# -- the next request -----------------------------------------------------------------------------------------------


def test_the_next_request_repeats_the_turn_unchanged():
    _, _, (turn,) = fed(start(), THOUGHT, call(1, "toolu_1", '{"a":', "1}"), end("tool_use"))
    history = [user("go"), said(*turn), user(result("toolu_1", "ok"))]
    tool = {"name": "ls", "input_schema": {"type": "object"}}
    params = {"max_tokens": 3000, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    request = {"messages": history, "tools": [tool], "model": "claude-sonnet-4-5", "params": params}
    made = normalize(request, to="anthropic")
    assert (made.fixes, made.violations) == ([], [])
    sent = json.loads(made.body or b"")["messages"][1]["content"]
    assert sent == [thinking("Hm.", signature="c2ln"), tool_use("toolu_1", a=1)]


def test_a_cut_call_is_settled_by_policy_in_the_next_request():
    _, view, (turn,) = fed(start(), hello(), call(1, "t1", '{"a'))
    assert [entry.incomplete for entry in view.entries] == [True, True]
    made = normalize({"messages": [user("go"), said(*turn), user("?")], "model": "claude-sonnet-4-5"}, to="anthropic")
    assert json.loads(made.body or b"")["messages"][1]["content"] == [{"type": "text", "text": "Hello"}]
    (fix,) = made.fixes
    assert '{"a' in fix.detail
