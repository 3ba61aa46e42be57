"""Gemini's and Converse's rules folded step by step say what the whole body says; nothing makes them raise."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.rules import RULE_SETS, RULES, Violation, validate

ids = st.sampled_from(["a", "b", "c", "x.y", "", "é"])
texts = st.sampled_from(["", " ", "hi", "\ud83d", "é"])
free = st.sampled_from([{}, {"k": "\ud83d"}, "{}", [1], None])
junk = st.sampled_from([{}, None, 5, {"nope": 1}, {"text": 1}, "x"])


def some(**fields: st.SearchStrategy) -> st.SearchStrategy:
    return st.fixed_dictionaries({}, optional=fields)


def either(name: str, other: str, value: st.SearchStrategy) -> st.SearchStrategy:
    return st.builds(lambda key, inner: {key: inner}, st.sampled_from([name, other]), value)


calls = some(name=ids, args=free, id=ids)
media_parts = st.lists(st.one_of(st.just({"inline_data": {"mime_type": "image/gif"}}), junk), max_size=2)
responses = some(name=ids, response=free, parts=media_parts)
signed = st.sampled_from([{}, {"thoughtSignature": "c2ln"}, {"thought_signature": ""}])
parts = st.one_of(
    st.builds(lambda text, more: {"text": text, **more}, texts, signed),
    st.builds(lambda call, more: {**call, **more}, either("functionCall", "function_call", calls), signed),
    either("functionResponse", "function_response", responses),
    either("inlineData", "inline_data", some(mimeType=texts, data=texts)),
    st.sampled_from([{"mediaResolution": {"level": "X"}, "text": "a"}, {"thought": True}, {"videoMetadata": {}}]),
    junk,
)
contents = st.lists(
    st.one_of(
        some(
            role=st.sampled_from(["user", "model", "user", "model", "function", None, 5]),
            parts=st.one_of(st.lists(parts, max_size=4), junk),
        ),
        junk,
    ),
    max_size=8,
)
gemini_heads = some(
    model=st.sampled_from(["models/gemini-3-pro", "gemini-2.5-flash", "other", 5]),
    tools=st.sampled_from([{"functionDeclarations": [{"name": "f"}]}, [{"functionDeclarations": [{}, 5]}, 5], 5]),
    generationConfig=st.sampled_from([{"responseMimeType": "application/json"}, None, 5]),
    system_instruction=st.sampled_from([{"parts": {"text": "\ud83d"}}, "x"]),
)

sources = some(bytes=texts, s3Location=free)
media = some(format=st.sampled_from(["png", "bmp"]), source=sources)
documents = some(name=ids, source=sources)
inner = st.one_of(some(text=texts, json=free, image=media, document=documents), junk)
results = st.builds(
    lambda whole, more: {**whole, **more},
    st.fixed_dictionaries({"toolUseId": ids, "content": st.lists(inner, max_size=2)}),
    some(status=st.sampled_from(["error", "x", 5]), type=st.just("t"), toolUseId=st.just(5)),
)
blocks = st.one_of(
    st.builds(lambda text: {"text": text}, texts),
    st.builds(
        lambda call: {"toolUse": call},
        some(toolUseId=ids, name=ids, input=free, type=st.just("server_tool_use")),
    ),
    st.builds(lambda call: {"toolUse": {"toolUseId": call, "name": "f", "input": {}}}, ids),
    st.builds(lambda result: {"toolResult": result}, results),
    st.builds(lambda call: {"toolResult": {"toolUseId": call, "content": []}}, ids),
    some(text=texts, image=media, video=media, document=documents),
    st.sampled_from([{"reasoningContent": {"reasoningText": {"text": "t"}}}, {"cachePoint": {}}]),
    junk,
)
messages = st.lists(
    st.one_of(
        some(
            role=st.sampled_from(["user", "assistant", "user", "assistant", "system", "tool", 5]),
            content=st.one_of(st.lists(blocks, max_size=4), junk),
        ),
        junk,
    ),
    max_size=8,
)
converse_heads = some(
    modelId=st.sampled_from(["us.anthropic.claude-sonnet-5", "amazon.nova-lite-v1:0", "meta.llama3", "x", 5]),
    toolConfig=st.sampled_from([{"tools": [{"toolSpec": {"name": "f"}}]}, {"tools": [5]}, {}, 5]),
    inferenceConfig=st.sampled_from([{"maxTokens": 0, "temperature": "x"}, None, 5]),
    system=st.sampled_from([[{"text": ""}, {}, 5], 5]),
    promptVariables=st.just({"a": {"text": "b"}}),
)

KEYS = {"gemini": "contents", "bedrock-converse": "messages"}
requests = st.one_of(
    st.tuples(st.just("gemini"), gemini_heads, contents, contents),
    st.tuples(st.just("bedrock-converse"), converse_heads, messages, messages),
)


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


def split(items: list, cuts: list[int]) -> list[list]:
    at = sorted({cut % (len(items) + 1) for cut in cuts})
    return [items[one:two] for one, two in zip([0, *at], [*at, len(items)], strict=True)]


@settings(max_examples=400, deadline=None)
@given(requests, st.lists(st.integers(0, 8), max_size=4))
def test_any_grouping_says_what_the_whole_body_says(request_, cuts):
    target, head, history, _ = request_
    rules = RULE_SETS[target]
    state, found = rules.start(encode(head))
    state, more = step_all(rules, state, split(history, cuts))
    folded = found + more + rules.finish(state)
    whole = validate(encode({**head, KEYS[target]: history}), target)
    assert sort(folded) == sort(whole)
    for violation in whole:
        assert RULES[violation.rule].target == target
        assert msgspec.json.decode(msgspec.json.encode(violation), type=Violation) == violation


@settings(max_examples=150, deadline=None)
@given(requests)
def test_a_state_can_be_stepped_from_twice(request_):
    """What one branch sees stays unknown to the other, and to the state that both left from."""
    target, head, left, right = request_
    rules = RULE_SETS[target]
    state, _ = rules.start(encode(head))
    before = rules.finish(state)
    first = step_all(rules, state, [left])
    step_all(rules, state, [right])
    again = step_all(rules, state, [left])
    assert sort(first[1] + rules.finish(first[0])) == sort(again[1] + rules.finish(again[0]))
    assert rules.finish(state) == before


@pytest.mark.parametrize("target", KEYS)
@pytest.mark.parametrize("broken", [b"{", b'{"role":', b"\xff", b"]", b'{"role":"user"},,', b"NaN", b"[" * 5000])
def test_text_that_cannot_be_read_ends_the_fold(target, broken):
    rules = RULE_SETS[target]
    start, _ = rules.start(b"{}")
    state, found = rules.step(start, broken)
    assert [violation.rule for violation in found] == [rules.not_json.id]
    assert rules.step(state, b'{"role":"nobody"}') == (state, [])
    assert rules.finish(state) == []


KEYWORDS = [
    "contents", "parts", "text", "functionCall", "function_call", "functionResponse", "name", "args", "response",
    "inline_data", "mimeType", "thoughtSignature", "tools", "functionDeclarations", "generationConfig", "role",
    "messages", "content", "toolUse", "toolResult", "toolUseId", "input", "json", "document", "source", "bytes",
    "toolConfig", "toolSpec", "inputSchema", "system", "inferenceConfig", "temperature", "modelId", "model", "format",
]  # fmt: skip
leaves = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.sampled_from(KEYWORDS))
values = st.recursive(
    leaves,
    lambda below: st.one_of(st.lists(below, max_size=4), st.dictionaries(st.sampled_from(KEYWORDS), below, max_size=6)),
    max_leaves=25,
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYWORDS), values, max_size=8), st.sampled_from([*KEYS, "copilot-cli"]))
def test_arbitrary_json(body, target):
    for found in (validate(body, target), validate(json.dumps(body), target)):
        assert all(RULES[violation.rule].target == target and violation.message for violation in found)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=40), st.sampled_from([*KEYS, "copilot-cli"]))
def test_arbitrary_bytes(data, target):
    found = validate(data, target)
    assert all(RULES[violation.rule].target == target for violation in found)
    assert found or target == "copilot-cli"


@pytest.mark.parametrize(
    ("target", "body"),
    [
        (target, body)
        for target, key in KEYS.items()
        for body in (
            b"", b"null", b"[]", b'"x"', b"{", b"[" * 5000, b'{"a":' * 5000 + b"1" + b"}" * 5000, b"\xff",
            b'{"%b":5}' % key.encode(), b'{"%b":{}}' % key.encode(), b'{"%b":null}' % key.encode(),
            b'{"%b":[' % key.encode() + b"[" * 3000 + b"]" * 3000 + b"]}", b'{"a":NaN}',
        )
    ],
)  # fmt: skip
def test_bodies_that_are_no_request(target, body):
    assert [violation for violation in validate(body, target) if violation.severity == "hard"]


def test_a_fork_does_not_learn_its_siblings_ids():
    rules = RULE_SETS["bedrock-converse"]
    start, _ = rules.start(b'{"toolConfig":{"tools":[{"cachePoint":{}}]}}', "anthropic.claude-sonnet-4-5")
    asked, _ = rules.step(start, b'{"role":"user","content":[{"text":"hi"}]}')
    call = b'{"role":"assistant","content":[{"toolUse":{"toolUseId":"a","name":"f","input":{}}}]}'
    result = b'{"role":"user","content":[{"toolResult":{"toolUseId":"a","content":[]}}]}'
    one, found_one = rules.step(asked, call + b"," + result)
    _, found_two = rules.step(asked, call)
    _, repeated = rules.step(one, call)
    assert found_one == found_two == []
    assert [violation.rule for violation in repeated] == ["BED-06b"]
    assert rules.finish(asked) == []
