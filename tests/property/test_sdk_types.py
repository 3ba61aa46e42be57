"""What we write is what the providers' own client libraries would let one send."""

import json

import pytest
from asked import ASKED, Asked
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import vectors
from sdk_types import fault
from strategies import SCALE, healthy_histories, issued, policies

from pipeline import normalize
from pipeline.testing import broken_histories

JSON_BODIES = [asked for asked in ASKED if asked.provider.shape not in {None, "auto"}]
TARGETS = sorted({asked.target for asked in JSON_BODIES})
TOOLS = [
    {"name": "read", "description": "Read a file.", "input_schema": {"type": "object", "properties": {}}},
    {"name": "mcp.server/read file", "input_schema": {"type": "object", "properties": {"a": {"type": "string"}}}},
]
SETTING = {
    "system": "Be brief.",
    "tools": TOOLS,
    "params": {"max_tokens": 64, "temperature": 1, "stop_sequences": ["x"]},
}

CALLED = [
    {"role": "user", "content": "Read."},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_01", "name": "read", "input": {"path": "a"}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_01", "content": "Hello."}]},
]


def written(messages, target, model, **setting):
    document = {"messages": messages, **setting} | ({"model": model} if model else {})
    return normalize(json.dumps(document).encode(), to=target).body


@pytest.mark.parametrize(("target", "model"), JSON_BODIES)
@pytest.mark.parametrize("vector", vectors("broken_histories"), ids=lambda vector: vector["name"])
def test_a_mended_history_has_the_types_of_the_client_library(vector, target, model):
    assert fault(target, written(vector["messages"], target, model), model) == ""


@pytest.mark.parametrize(("target", "model"), JSON_BODIES)
def test_the_histories_of_the_kit_have_the_types_of_the_client_library(target, model):
    for sample in broken_histories():
        document = sample.history if isinstance(sample.history, dict) else {"messages": sample.history}
        done = normalize(json.dumps({**document, **({"model": model} if model else {})}).encode(), to=target)
        assert done.body is None or fault(target, done.body, model) == "", sample.name


@pytest.mark.parametrize(("target", "model"), JSON_BODIES)
@settings(max_examples=65 * SCALE)
@given(data=st.data(), policy=policies, own=st.booleans())
def test_any_history_has_the_types_of_the_client_library(target, model, data, policy, own):
    document = data.draw(Asked(target, model).documents)
    if own:
        document["messages"] = issued(document["messages"], target)
    body = normalize(json.dumps(document), to=target, policy=policy).body
    assert body is None or fault(target, body, model) == ""


@pytest.mark.parametrize(("target", "model"), JSON_BODIES)
@settings(max_examples=20 * SCALE)
@given(messages=healthy_histories())
def test_system_tools_and_parameters_have_the_types_of_the_client_library(target, model, messages):
    assert fault(target, written(messages, target, model, **SETTING), model) == ""


def changed(body, *, key, value):
    """The body with its first message (or item, or content) changed."""
    body = json.loads(body)
    first = body[next(name for name in ("messages", "input", "contents") if name in body)][0]
    first[key] = value
    return json.dumps(body).encode()


@pytest.mark.parametrize("target", TARGETS)
def test_the_oracle_refuses_unknown_keys_and_wrong_types(target):
    body = written([{"role": "user", "content": "hello"}], target, None)
    inner = "parts" if target == "gemini" else "content"
    assert fault(target, body) == ""
    assert fault(target, changed(body, key="colour", value="red"))
    assert fault(target, changed(body, key="role", value=7))
    assert fault(target, changed(body, key=inner, value=7))
    assert fault(target, changed(body, key=inner, value=[{"text": 7}]))
    assert fault(target, changed(body, key=inner, value=[{"type": "hologram", "text": "x", "depth": 3}]))
    assert fault(target, json.dumps({**json.loads(body), "colour": "red"}).encode())


def test_a_block_deep_inside_is_checked_too():
    for target in ("anthropic", "openai-chat", "openai-responses", "gemini", "bedrock-converse"):
        body = written(CALLED, target, None)
        assert fault(target, body) == ""
        assert b'"path"' in body or b'\\"path\\"' in body
        inside = {"gemini": b'"name"', "bedrock-converse": b'"toolUseId"'}.get(target, b'"type"')
        assert fault(target, body.replace(inside, b'"colour"')), target
