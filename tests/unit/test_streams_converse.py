"""Bedrock's ConverseStream: its events become items and the turn that is sent back to the service."""

import base64
import json

import msgspec
import pytest
import stream_runs
from build import call, result, said, thinking, user
from build import text as words
from stream_runs import extras, only, stop_reasons

from reknit.pipeline import normalize
from reknit.topics.items import AgentError, ItemCompleted, ItemDelta, SessionSystem, TurnDelta, TurnStop, Usage

START = {"messageStart": {"role": "assistant"}}
USAGE = {"metadata": {"usage": {"inputTokens": 5, "outputTokens": 2, "totalTokens": 7}, "metrics": {"latencyMs": 1}}}


def delta(index, **piece):
    return {"contentBlockDelta": {"contentBlockIndex": index, "delta": piece}}


def tool(index, tool_id, name="ls", **members):
    start = {"toolUse": {"toolUseId": tool_id, "name": name} | members}
    return {"contentBlockStart": {"contentBlockIndex": index, "start": start}}


def stop(index):
    return {"contentBlockStop": {"contentBlockIndex": index}}


def calling(index, tool_id, *pieces, **members):
    """A call in these pieces, and its stop."""
    return [tool(index, tool_id, **members), *(delta(index, toolUse={"input": one}) for one in pieces), stop(index)]


def end(reason="end_turn"):
    return {"messageStop": {"stopReason": reason}}


def fed(*events, reason="exit"):
    found = stream_runs.run("bedrock-converse", *events, end=reason)
    return found.items, found.view, found.contents


def pairs(view):
    return [(entry.item_type, entry.text, entry.incomplete) for entry in view.entries]


HELLO = [delta(0, text="Hel"), delta(0, text="lo"), stop(0)]
THOUGHT = [delta(0, reasoningContent={"text": "Hm."}), delta(0, reasoningContent={"signature": "c2ln"}), stop(0)]
COUNTED = Usage(input_tokens=5, output_tokens=2)


def test_texts_and_reasoning_begin_with_their_first_delta():
    sealed = [base64.b64encode(data).decode() for data in (b"one", b"two")]
    redacted = [*(delta(1, reasoningContent={"redactedContent": data}) for data in sealed), stop(1)]
    called = calling(2, "t1", '{"a":', "1}")
    items, view, (turn,) = fed(START, *THOUGHT, *redacted, *called, end("tool_use"), USAGE)
    assert pairs(view) == [("thinking", "Hm.", False), ("redacted_thinking", "", False), ("tool_use", '{"a":1}', False)]
    issuer = {"provider": "bedrock-converse"}
    assert turn == [
        thinking("Hm.", signature="c2ln", issuer=issuer),
        {"type": "redacted_thinking", "data": base64.b64encode(b"onetwo").decode(), "issuer": issuer},
        call("t1", a=1),
    ]
    assert only(items, TurnStop | TurnDelta) == [TurnStop(stop_reason="tool_use", usage=COUNTED)]


@pytest.mark.parametrize("last", [[end(), USAGE], [USAGE, end()]], ids=["reason first", "counts first"])
def test_a_message_ends_with_its_reason_and_its_counts_in_any_order(last):
    items, view, _ = fed(START, *HELLO, *last, START, *HELLO, *last)
    assert only(items, TurnStop) == [TurnStop(stop_reason="end_turn", usage=COUNTED)] * 2
    assert pairs(view) == [("text", "Hello", False)] * 2


def test_a_message_without_counts_is_complete():
    items, view, turns = fed(START, *HELLO, end(), START, *HELLO, end())
    assert (pairs(view), len(turns)) == ([("text", "Hello", False)] * 2, 2)
    assert [item.incomplete for item in only(items, TurnStop)] == [False, False]


def test_a_guardrail_is_a_stop_reason_and_its_trace_is_passed_on():
    traced = {"metadata": USAGE["metadata"] | {"trace": {"guardrail": {"action": "x"}}}}
    items, view, _ = fed(START, *HELLO, tool(1, "t1"), stop(1), end("guardrail_intervened"), traced)
    assert pairs(view) == [("text", "Hello", False), ("tool_use", "", True)]
    (trace,) = only(items, SessionSystem)
    assert (trace.subtype, json.loads(bytes(trace.event))) == ("trace", {"guardrail": {"action": "x"}})


@pytest.mark.parametrize(
    "event",
    [
        {"throttlingException": {"message": "slow down"}},
        {"error": {"type": "throttlingException", "message": "slow down"}},
    ],
)
def test_an_exception_in_the_stream_cuts_the_message(event):
    items, view, _ = fed(START, *HELLO[:2], event)
    assert AgentError(message="slow down", code="throttlingException", seq=0) in items
    assert [(entry.text, entry.reason) for entry in view.entries] == [("Hello", "throttlingException")]
    _, view, _ = fed(START, *HELLO[:2], event, START, *HELLO, end(), USAGE)
    assert (pairs(view), len(view.retracted)) == ([("text", "Hello", False)], 1)


def test_the_result_of_a_server_tool_is_kept_whole():
    start = {"toolResult": {"toolUseId": "s1", "type": "nova_result", "status": "success"}}
    content = [{"json": {"a": 1}}, {"text": "b"}]
    pieces = [*(delta(1, toolResult=[piece]) for piece in content), stop(1)]
    called = calling(0, "s1", "{}", name="nova", type="server_tool_use")
    begun = {"contentBlockStart": {"contentBlockIndex": 1, "start": start}}
    _, view, (turn,) = fed(START, *called, begun, *pieces, end(), USAGE)
    assert [entry.item_type for entry in view.entries] == ["server_tool_use", "toolResult"]
    assert turn[1] == {"toolResult": start["toolResult"] | {"content": content}}


def test_citations_are_extras_of_their_text():
    _, _, (turn,) = fed(START, delta(0, citation={"title": "t"}), *HELLO, end(), USAGE)
    assert turn == [words("Hello", citations=[{"title": "t"}])]


def test_deltas_of_another_kind_are_passed_on():
    items, view, _ = fed(START, delta(0, video={"a": 1}), delta(0, video={"a": 2}), stop(0), end(), USAGE)
    assert [entry.item_type for entry in view.entries] == ["video"]
    raws = [item.raw for item in items if isinstance(item, ItemDelta)]
    assert msgspec.json.encode(raws) == b'[{"video":{"a": 1}},{"video":{"a": 2}}]'


def test_a_call_without_its_start_has_the_items_id():
    _, view, (turn,) = fed(START, delta(0, toolUse={"input": "{}"}), stop(0), end("tool_use"), USAGE)
    assert turn == [{"type": "tool_use", "id": "bc-block-0", "name": "", "input": {}}]
    assert pairs(view) == [("tool_use", "{}", False)]


def test_a_cut_message_keeps_its_content():
    _, view, (turn,) = fed(START, *HELLO[:2], tool(1, "t1"), delta(1, toolUse={"input": '{"a'}))
    assert pairs(view) == [("text", "Hello", True), ("tool_use", '{"a', True)]
    assert turn[1] == {"type": "tool_use", "id": "t1", "name": "ls", "input": '{"a', "incomplete": True}


def test_redacted_reasoning_without_a_stop_is_kept():
    _, _, (turn,) = fed(START, delta(0, reasoningContent={"redactedContent": "b25l"}))
    assert turn[0]["data"] == "b25l"
    _, _, (turn,) = fed(START, delta(0, reasoningContent={"redactedContent": "*"}), stop(0), end(), USAGE)
    assert isinstance(turn[0]["data"], str)


@pytest.mark.parametrize("reason", ["end_turn", "stop_sequence", "tool_use"])
def test_texts_without_their_stop_are_complete_once_the_message_has_its_reason(reason):
    thought = delta(0, reasoningContent={"text": "Hm."})
    items, view, (turn,) = fed(START, thought, delta(1, text="Hi"), end(reason), USAGE)
    assert pairs(view) == [("thinking", "Hm.", False), ("text", "Hi", False)]
    assert [item.incomplete for item in only(items, TurnStop)] == [False]
    assert [block["type"] for block in turn] == ["thinking", "text"]


def test_without_its_stop_a_block_that_a_limit_may_have_cut_is_incomplete():
    _, view, _ = fed(START, delta(0, text="Hi"), end("max_tokens"), USAGE)
    assert pairs(view) == [("text", "Hi", True)]
    _, view, _ = fed(START, delta(0, text="Hi"), *calling(1, "t1", "{}")[:-1], end("tool_use"), USAGE)
    assert pairs(view) == [("text", "Hi", False), ("tool_use", "{}", True)]


def completed(items):
    raws = [item.raw for item in only(items, ItemCompleted)]
    return [None if raw is msgspec.UNSET else json.loads(bytes(raw)) for raw in raws]


def test_blocks_of_the_service_end_with_their_whole_json():
    def start(index, **block):
        return {"contentBlockStart": {"contentBlockIndex": index, "start": block}}

    one, two = (base64.b64encode(data).decode() for data in (b"one", b"two!"))
    found = {"toolUseId": "s1", "type": "nova_result", "status": "success"}
    events = [
        *calling(0, "s1", '{"q":1}', name="nova", type="server_tool_use"),
        *[start(1, toolResult=found), *(delta(1, toolResult=[{"text": words}]) for words in "ab"), stop(1)],
        *[start(2, image={"format": "png"}), delta(2, image={"source": {"bytes": one}})],
        *[delta(2, image={"source": {"bytes": two}}), stop(2)],
        *[delta(3, video={"tags": ["a"], "name": "x"}), delta(3, video={"tags": ["b"], "name": "y", "n": 1}), stop(3)],
        *[start(4, guardContent={"text": {"text": "g"}}), stop(4)],
    ]
    whole = [
        {"type": "server_tool_use", "id": "s1", "name": "nova", "input": {"q": 1}},
        {"toolResult": found | {"content": [{"text": "a"}, {"text": "b"}]}},
        {"image": {"format": "png", "source": {"bytes": base64.b64encode(b"onetwo!").decode()}}},
        {"video": {"tags": ["a", "b"], "name": "xy", "n": 1}},
        {"guardContent": {"text": {"text": "g"}}},
    ]
    items, _, (turn,) = fed(START, *events, end(), USAGE)
    assert (completed(items), turn) == (whole, whole)
    items, _, (turn,) = fed(START, *[event for event in events if "contentBlockStop" not in event], end(), USAGE)
    assert (completed(items), turn[1:]) == ([*whole[1:], None], whole[1:])


def test_a_replaced_block_keeps_its_content():
    events = [delta(0, video={"n": 1}), delta(0, text="A"), stop(0), delta(0, video={"n": 2}), tool(0, "t1"), stop(0)]
    items, view, _ = fed(START, *events, end(), USAGE)
    assert [entry.item_type for entry in view.entries] == ["video", "text", "video", "tool_use"]
    assert extras(items) == [{"video": {"n": 1}}, {"video": {"n": 2}}]


# -- answers that were not streamed ---------------------------------------------------------------------------------


CITED = [{"title": "Facts", "source": "https://facts.example", "location": {"web": {"url": "https://a.example"}}}]


def answer(*content, reason="end_turn", **members):
    told = {"output": {"message": {"role": "assistant", "content": list(content)}}, "metrics": {"latencyMs": 1}}
    return told | ({"stopReason": reason} if reason else {}) | {"usage": USAGE["metadata"]["usage"]} | members


CONTENT = [
    {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "c2ln"}}},
    {"reasoningContent": {"reasoningText": {"signature": "b25seQ=="}}},
    {"reasoningContent": {"redactedContent": "b3BhcXVl"}},
    {"text": "Hello"},
    {"citationsContent": {"content": [{"text": "So "}, {"text": "it is."}], "citations": CITED}},
    {"toolUse": {"toolUseId": "t1", "name": "mcp__git__log", "input": {"a": 1}}},
    {"toolUse": {"toolUseId": "s1", "name": "nova", "input": {}, "type": "server_tool_use"}},
    {"toolResult": {"toolUseId": "s1", "content": [{"json": {"a": 1}}]}},
    {"unheardOf": {"a": 1}},
    {"reasoningContent": {}},
]


def test_an_answer_that_was_not_streamed_is_promoted():
    items, view, (turn,) = fed(answer(*CONTENT, reason="tool_use"))
    issuer = {"issuer": {"provider": "bedrock-converse"}}
    assert turn == [
        thinking("Hm.", signature="c2ln") | issuer,
        thinking("", signature="b25seQ==") | issuer,
        {"type": "redacted_thinking", "data": "b3BhcXVl"} | issuer,
        words("Hello"),
        words("So it is.", citations=CITED),
        call("t1", "mcp__git__log", a=1),
        call("s1", "nova") | {"type": "server_tool_use"},
        *CONTENT[7:],
    ]
    without_words = ["tool_use", "server_tool_use", "toolResult", "unheardOf", "reasoningContent"]
    assert pairs(view) == [
        ("thinking", "Hm.", False),
        ("redacted_thinking", "", False),
        ("text", "Hello", False),
        ("text", "So it is.", False),
        *[(kind, "", False) for kind in without_words],
    ]
    assert {entry.origin for entry in view.entries} == {"promoted"}
    assert completed(items)[-3:] == CONTENT[7:]
    assert extras(items) == [{"citations": CITED}]
    assert only(items, TurnStop | TurnDelta) == [TurnStop(stop_reason="tool_use", usage=COUNTED)]


def test_a_whole_answer_has_only_its_own_stop_reason():
    items, view, _ = fed(answer({"text": "Hi"}, reason=None))
    assert pairs(view) == [("text", "Hi", False)]
    assert stop_reasons(items) == [None]
    items, view, _ = fed(answer({"text": "Hi"}, reason="max_tokens", trace={"guardrail": {"a": 1}}))
    assert pairs(view) == [("text", "Hi", False)]
    assert [item.subtype for item in only(items, SessionSystem)] == ["trace"]


def test_a_whole_answer_replaces_a_cut_stream():
    _, view, _ = fed(START, HELLO[0], answer({"text": "Hello"}), START, *HELLO, end(), USAGE)
    assert (pairs(view), len(view.retracted)) == ([("text", "Hello", False)] * 2, 1)


@pytest.mark.parametrize("content", ["Hi", None, [1], [{}], {"text": "Hi"}])
def test_an_answer_with_invalid_content_is_passed_on(content):
    odd = {"output": {"message": {"content": content}}, "stopReason": "end_turn"}
    _, view, _ = fed(odd)
    told = msgspec.json.encode([view.entries, view.unrecognized]).decode()
    assert json.dumps(content[0] if isinstance(content, list) else content) in told
    assert len(view.entries) + len(view.unrecognized) == 1


def test_the_next_request_repeats_the_turn_unchanged():
    _, _, (turn,) = fed(START, *THOUGHT, *calling(1, "tooluse_1", '{"a":1}'), end("tool_use"), USAGE)
    history = [user("go"), said(*turn), user(result("tooluse_1", "ok"))]
    tools = [{"name": "ls", "input_schema": {"type": "object"}}]
    model = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
    made = normalize({"messages": history, "tools": tools, "model": model}, to="bedrock-converse")
    assert (made.fixes, made.violations) == ([], [])
    assert json.loads(made.body or b"")["messages"][1]["content"] == [
        {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "c2ln"}}},
        {"toolUse": {"toolUseId": "tooluse_1", "name": "ls", "input": {"a": 1}}},
    ]


@pytest.mark.parametrize(
    "line",
    [
        b'{"unheardOf":{}}',
        b'{"contentBlockDelta":{"contentBlockIndex":-1,"delta":{"text":"x"}}}',
        b'{"messageStop":{}}',
        b"{}",
    ],
)
def test_unknown_events_are_passed_on(line):
    _, view, _ = fed(START, HELLO[0], line, *HELLO[1:], end(), USAGE)
    assert pairs(view) == [("text", "Hello", False)]
    assert len(view.unrecognized) == 1
