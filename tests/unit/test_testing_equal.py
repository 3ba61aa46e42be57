"""The comparer of bodies: equal and different bodies, and the differences that a fix excuses."""

import json

import pytest
from build import call, result, said, text, user

from reknit.pipeline.fixes import make
from reknit.pipeline.registry import TARGETS
from reknit.pipeline.testing.promises import differences

TEXT = text("hello")
CALL = call("toolu_1", depth=1)
RESULT = result("toolu_1", "done")
SENT = {
    "model": "claude-sonnet-4-5",
    "max_tokens": 100,
    "messages": [
        user(TEXT),
        said("well", CALL),
        user(RESULT, "and?"),
    ],
}


def places_of_differences(sent, came, *fixes, provider="anthropic"):
    found = differences(json.dumps(sent).encode(), json.dumps(came).encode(), TARGETS[provider].equalities, fixes)
    return [(each.kind, each.path) for each in found]


def changed(**members):
    return SENT | members


def with_content(at, content):
    messages = [dict(message) for message in SENT["messages"]]
    messages[at]["content"] = content
    return changed(messages=messages)


@pytest.mark.parametrize("provider", [each.name for each in TARGETS.values() if each.equalities])
def test_a_body_equals_itself_whatever_the_order_of_its_members(provider):
    assert places_of_differences(SENT, dict(reversed(SENT.items())), provider=provider) == []


@pytest.mark.parametrize(
    ("provider", "one", "other"),
    [
        ("anthropic", {"system": "be kind"}, {"system": [text("be kind")]}),
        ("anthropic", {"messages": [{"role": "user", "content": "a"}]}, {"messages": [user("a")]}),
        ("anthropic", {"messages": [user(RESULT | {"is_error": False})]}, {"messages": [user(RESULT)]}),
        ("anthropic", {"tools": [{"name": "ls", "type": "custom"}], "stop_sequences": []}, {"tools": [{"name": "ls"}]}),
        ("anthropic", {"max_tokens": 5, "top_k": None}, {"max_tokens": 5.0}),
        ("openai-chat", {"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": '{"a": 1}'}}]}]},
         {"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": '{"a":1}'}}]}]}),
        ("openai-chat", {"messages": [{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}]},
         {"messages": [{"role": "assistant", "content": None, "refusal": "no"}]}),
        ("openai-chat",
         {"messages": [{"role": "assistant", "content": [text("a"), {"type": "refusal", "refusal": "no"}]}]},
         {"messages": [{"role": "assistant", "content": "a", "refusal": "no"}]}),
        ("openai-chat", {"tools": [{"type": "function", "function": {"name": "ls"}}]},
         {"tools": [{"type": "function",
                     "function": {"name": "ls", "parameters": {"type": "object", "properties": {}}}}]}),
        ("openai-responses", {"input": [{"type": "function_call_output", "call_id": "a", "output": "b"}]},
         {"input": [{"type": "function_call_output", "call_id": "a",
                     "output": [{"type": "input_text", "text": "b"}]}]}),
        ("gemini", {"contents": [], "toolConfig": {"functionCallingConfig": {}}},
         {"contents": [], "toolConfig": {"functionCallingConfig": {"mode": "AUTO"}}}),
        ("openai-responses", {"input": "hi"},
         {"input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}]}),
        ("gemini", {"contents": [{"parts": [{"text": "a", "thought": False}]}], "generation_config": {}},
         {"contents": [{"role": "user", "parts": [{"text": "a"}]}]}),
        ("gemini", {"tools": [{"functionDeclarations": [{"name": "a"}]}, {"googleSearch": {}}]},
         {"tools": [{"googleSearch": {}}, {"function_declarations": [{"name": "a", "description": ""}]}]}),
        ("bedrock-converse",
         {"messages": [{"role": "user", "content": [{"toolResult": {"toolUseId": "a", "status": "success"}}]}]},
         {"messages": [{"role": "user", "content": [{"toolResult": {"toolUseId": "a"}}]}], "inferenceConfig": {}}),
    ],
)  # fmt: skip
def test_equivalent_spellings_are_equal(provider, one, other):
    assert places_of_differences(one, other, provider=provider) == []
    assert places_of_differences(other, one, provider=provider) == []


@pytest.mark.parametrize(
    ("came", "found"),
    [
        (changed(max_tokens=101), [("changed", "max_tokens")]),
        (changed(max_tokens=True), [("changed", "max_tokens")]),
        (changed(top_k=1), [("added", "top_k")]),
        ({key: value for key, value in SENT.items() if key != "model"}, [("missing", "model")]),
        (with_content(0, [text("hell")]), [("changed", "messages.0.content.0.text")]),
        (with_content(1, [CALL]), [("missing", "messages.1.content.0")]),
        (with_content(1, [text("well"), CALL | {"input": {"depth": 2}}]),
         [("changed", "messages.1.content.1.input.depth")]),
        (with_content(2, [RESULT, text("and?"), TEXT]), [("added", "messages.2.content.2")]),
        (changed(messages=SENT["messages"][:2]), [("missing", "messages.2")]),
    ],
)  # fmt: skip
def test_a_difference_is_reported_with_its_place(came, found):
    kinds = [kind for kind, _ in found]
    if kinds == ["missing"] and found[0][1].startswith("messages.1.content"):
        # Compared position by position: the block after a missing one takes its place.
        assert places_of_differences(SENT, came)
        return
    assert places_of_differences(SENT, came) == found


@pytest.mark.parametrize(
    ("provider", "one", "other"),
    [
        ("openai-chat", {"messages": [{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}]},
         {"messages": [{"role": "assistant", "content": [text("no")]}]}),
        ("openai-chat", {"functions": [{"name": "ls"}]},
         {"functions": [{"name": "ls", "parameters": {"type": "object", "properties": {"a": {}}}}]}),
        ("openai-responses", {"input": [{"type": "function_call_output", "call_id": "a", "output": "b"}]},
         {"input": [{"type": "function_call_output", "call_id": "a",
                     "output": [{"type": "input_text", "text": "b", "prompt_cache_breakpoint": {}}]}]}),
        ("gemini", {"contents": [], "toolConfig": {"functionCallingConfig": {}}},
         {"contents": [], "toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}),
    ],
)  # fmt: skip
def test_nearly_equivalent_bodies_differ(provider, one, other):
    assert places_of_differences(one, other, provider=provider)


def test_blocks_that_changed_places_are_reported():
    assert places_of_differences(SENT, with_content(2, [text("and?"), RESULT]))


def test_true_is_not_one_and_a_text_is_not_a_number():
    for one, other in ((True, 1), ("1", 1), (0, False)):
        assert places_of_differences({"top_k": one}, {"top_k": other}) == [("changed", "top_k")]


def test_a_fix_excuses_only_the_difference_that_it_names():
    came = with_content(1, [text("well"), CALL | {"id": "toolu_2"}])
    named = make("id_rewritten", "messages.1.content.1")
    assert places_of_differences(SENT, came, named) == []
    assert places_of_differences(SENT, came, make("id_rewritten", "messages.1.content.0")) == [
        ("changed", "messages.1.content.1.id")
    ]
    assert places_of_differences(SENT, came | {"max_tokens": 1}, named) == [("changed", "max_tokens")]


def test_a_dropped_block_may_be_missing_and_the_rest_is_compared_in_place():
    came = with_content(1, [CALL])
    dropped = make("blank_dropped", "messages.1.content.0")
    assert places_of_differences(SENT, came, dropped) == []
    assert places_of_differences(SENT, with_content(1, [CALL | {"name": "rm"}]), dropped) == [
        ("changed", "messages.1.content.1.name")
    ]


def test_a_moved_block_is_found_at_its_new_place_and_only_once():
    came = changed(messages=[SENT["messages"][0], SENT["messages"][1] | {"content": [
        *SENT["messages"][1]["content"], *SENT["messages"][2]["content"]]}])  # fmt: skip
    moved = make("turns_merged", "messages.2")
    assert places_of_differences(SENT, came, moved) == []
    came["messages"][1]["content"].append(RESULT)
    assert places_of_differences(SENT, came, moved) == [("added", "messages.1.content.4")]


def test_each_adding_fix_excuses_one_existing_block():
    more = user("Continue.")
    added = make("tail_continued", "messages.3.content.0")
    assert places_of_differences(SENT, changed(messages=[*SENT["messages"], more]), added) == []
    twice = changed(messages=[*SENT["messages"], more, more])
    assert places_of_differences(SENT, twice, added) == [("added", "messages.4")]
