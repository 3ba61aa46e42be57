"""The OpenAI and vLLM rules folded step by step, in any grouping, say what the whole body says; states are values."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.rules import RULE_SETS, Violation, validate

PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
JUNK = [{}, None, 5, "x", {"type": "nope"}, {"type": ["text"]}, {"role": ["user"]}, {"k": "\ud83d"}]

ids = st.sampled_from(["a", "b", "c", "call_1", "abcDEF123", "x" * 70, ""])
names = st.sampled_from(["f", "a b", "", "n" * 65, "f<|x"])
texts = st.sampled_from(["", " ", "hi", "\ud83d", "é"])
arguments = st.sampled_from(["{}", "[]", "x", "", {"k": 1}])


def record(required: dict, **optional: st.SearchStrategy) -> st.SearchStrategy:
    return st.fixed_dictionaries(
        {key: value if isinstance(value, st.SearchStrategy) else st.just(value) for key, value in required.items()},
        optional=optional,
    )


chat_parts = st.one_of(
    record({"type": "text", "text": texts}),
    record({"type": "image_url", "image_url": st.sampled_from([PIXEL, {"url": "u"}, {"url": None}, 5])}),
    record({"type": "file", "file": st.sampled_from([{"file_id": "f"}, {"file_data": "d"}])}),
    record({"type": "input_audio", "input_audio": st.just({})}),
    st.sampled_from(JUNK),
)
chat_calls = st.one_of(
    record({"id": ids, "type": "function", "function": record({"name": names, "arguments": arguments})}),
    st.sampled_from([*JUNK, {"id": "a", "type": "custom", "custom": {"name": "f", "input": "x"}}]),
)
chat_content = st.one_of(texts, st.lists(chat_parts, max_size=3), st.none(), st.just({}))
chat_messages = st.one_of(
    record({"role": st.sampled_from(["user", "system", "developer", "function", "nobody"])}, content=chat_content),
    record(
        {"role": "assistant"},
        content=chat_content,
        tool_calls=st.one_of(st.none(), st.lists(chat_calls, max_size=3)),
        reasoning_content=texts,
        refusal=st.none(),
        prefix=st.booleans(),
    ),
    record({"role": "tool", "tool_call_id": ids, "content": chat_content}),
    record({"role": "tool", "tool_call_id": ids, "content": "done"}),
    st.sampled_from(JUNK),
)
item_ids = st.sampled_from([None, "fc_1", "rs_1", "msg_1", "x", 5])
parts = st.one_of(
    record({"type": st.sampled_from(["input_text", "output_text"]), "text": texts}, cache_control=st.none()),
    record({"type": "input_image", "image_url": st.sampled_from([PIXEL, "data:image/bmp;base64,Qk0=", None])}),
    record({"type": "input_file"}, file_data=st.sampled_from(["data:audio/mpeg;base64,aGk=", "", 5])),
    st.sampled_from(JUNK),
)
content = st.one_of(texts, st.lists(parts, max_size=3), st.none())
items = st.one_of(
    record({"role": st.sampled_from(["user", "assistant", "tool"]), "content": content}, id=item_ids),
    record({"type": "message", "role": st.sampled_from(["user", "assistant"]), "content": content}, id=item_ids),
    record({"type": "function_call", "call_id": ids, "name": names, "arguments": arguments}, id=item_ids),
    record({"type": "function_call_output", "call_id": ids, "output": content}, id=item_ids, extra=st.none()),
    record({"type": "custom_tool_call", "call_id": ids, "name": names, "input": texts}),
    record({"type": "custom_tool_call_output", "call_id": ids, "output": texts}),
    record({"type": "reasoning", "summary": st.just([])}, id=item_ids, encrypted_content=texts),
    record({"type": "item_reference", "id": st.sampled_from(["fc_1", "rs_1"])}),
    record({"type": "web_search_call", "id": item_ids, "action": st.just({})}),
    st.sampled_from(JUNK),
)
models = st.sampled_from(
    [
        "gpt-4o", "gpt-5-mini", "o1-mini", "deepseek-reasoner", "kimi-k2-thinking", "other", "gemma-3", "mixtral-8x7b",
        "mistral-small", "devstral", "Qwen3.5-9B", "llama-3.1", "gpt-oss-20b",
    ]
)  # fmt: skip
chat_heads = record(
    {},
    model=models,
    max_tokens=st.just(9),
    tools=st.sampled_from([[], [{"type": "function", "function": {"name": "f"}}], 5]),
    thinking=st.sampled_from([{"type": "enabled"}, {"type": "disabled"}, 5]),
    tool_choice=st.just("auto"),
    user=texts,
)
heads = record(
    {},
    model=models,
    store=st.booleans(),
    previous_response_id=st.just("resp_1"),
    tools=st.sampled_from([[], [{"type": "function", "name": "a b"}], 5]),
    instructions=texts,
)
BODIES = {
    "openai-chat": ("messages", chat_heads, st.lists(chat_messages, max_size=8)),
    "openai-responses": ("input", heads, st.lists(items, max_size=8)),
    "vllm": ("messages", chat_heads, st.lists(chat_messages, max_size=8)),
}
each_target = pytest.mark.parametrize("target", BODIES)


def encode(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def sort(found: list[Violation]) -> list[str]:
    return sorted(map(repr, found))


def step_all(rules, state, groups):
    found = []
    for group in groups:
        state, more = rules.step(state, b",".join(map(encode, group)))
        found += more
    return state, found


def split(listed: list, cuts: list[int]) -> list[list]:
    at = sorted({cut % (len(listed) + 1) for cut in cuts})
    return [listed[one:two] for one, two in zip([0, *at], [*at, len(listed)], strict=True)]


@each_target
@settings(max_examples=300)
@given(data=st.data())
def test_any_grouping_says_what_the_whole_body_says(target, data):
    key, head_of, list_of = BODIES[target]
    head, listed = data.draw(head_of), data.draw(list_of)
    cuts = data.draw(st.lists(st.integers(0, 8), max_size=4))
    rules = RULE_SETS[target]
    state, found = rules.start(encode(head))
    state, more = step_all(rules, state, split(listed, cuts))
    folded = found + more + rules.finish(state)
    assert sort(folded) == sort(validate(encode({**head, key: listed}), target))


@each_target
@settings(max_examples=100)
@given(data=st.data())
def test_a_state_can_be_stepped_from_twice(target, data):
    """Neither branch sees the other, and the state that both left from finishes as it would have before."""
    _, head_of, list_of = BODIES[target]
    head, trunk, left, right = data.draw(head_of), data.draw(list_of), data.draw(list_of), data.draw(list_of)
    rules = RULE_SETS[target]

    def alone(*groups):
        state, found = rules.start(encode(head))
        state, more = step_all(rules, state, groups)
        return sort(found + more + rules.finish(state))

    state, found = rules.start(encode(head))
    state, more = step_all(rules, state, [trunk])
    base, before = found + more, rules.finish(state)
    ends = [(branch, step_all(rules, state, [branch])) for branch in (left, right)]
    for branch, (end, added) in ends:
        assert sort(base + added + rules.finish(end)) == alone(trunk, branch)
    assert rules.finish(state) == before


@each_target
@settings(max_examples=100)
@given(data=st.data())
def test_nothing_raises_and_every_path_is_the_bodys(target, data):
    key, head_of, list_of = BODIES[target]
    body = {**data.draw(head_of), key: data.draw(list_of)}
    for violation in validate(encode(body), target):
        node: object = body
        *parents, _ = violation.path.split(".")
        for name in parents:
            node = node[int(name)] if isinstance(node, list) else node[name]
        assert isinstance(node, dict | list), violation


@each_target
def test_nothing_more_changes_nothing(target):
    rules = RULE_SETS[target]
    state, _ = rules.start(b"{}")
    assert rules.step(state, b" ") == (state, [])


@each_target
@pytest.mark.parametrize("broken", [b"{", b'{"role":', b"\xff", b"]", b'{"role":"user","content":"a"},,', b"NaN"])
def test_text_that_cannot_be_read_ends_the_fold(target, broken):
    rules = RULE_SETS[target]
    start, _ = rules.start(b"{}")
    state, found = rules.step(start, broken)
    assert [(violation.rule, violation.severity) for violation in found] == [(rules.not_json.id, "hard")]
    assert rules.step(state, b'{"role":"nobody"}') == (state, [])
    assert rules.finish(state) == []
    ended, found = rules.start(b"[]")
    assert [violation.rule for violation in found] == [rules.not_json.id]
    assert rules.finish(ended) == []
