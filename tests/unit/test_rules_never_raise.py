"""Whatever a body holds, the rules answer with violations."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import UnknownTargetError
from pipeline.rules import RULE_SETS, RULES, Violation, validate

TARGETS = sorted(RULE_SETS)
# Any words are a prompt; for the others a body is JSON.
JSON_TARGETS = [target for target in TARGETS if target not in ("codex-cli", "copilot-cli", "gemini-cli")]
KEYS = [
    "messages", "role", "content", "type", "text", "tool_use", "tool_result", "tool_use_id", "id", "name", "input",
    "source", "data", "media_type", "base64", "image", "document", "thinking", "signature", "system", "tools",
    "cache_control", "ephemeral", "ttl", "model", "max_tokens", "user", "assistant", "message", "server_tool_use",
    "input_schema", "tool_choice", "temperature", "budget_tokens", "enabled", "fallback", "from", "to",
    "contents", "parts", "functionCall", "function_call", "functionResponse", "args", "response", "inline_data",
    "mimeType", "thoughtSignature", "functionDeclarations", "generationConfig", "toolUse", "toolResult", "toolUseId",
    "json", "bytes", "toolConfig", "toolSpec", "inputSchema", "inferenceConfig", "modelId", "format",
]  # fmt: skip
leaves = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.sampled_from(KEYS))
values = st.recursive(
    leaves,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(KEYS), inner, max_size=6)),
    max_leaves=25,
)
objects = st.dictionaries(st.sampled_from(KEYS), values, max_size=8)
places = st.sampled_from(["messages", "contents", "input"])
bodies = st.one_of(
    objects,
    st.builds(lambda head, key, messages: {**head, key: messages}, objects, places, st.lists(objects, max_size=4)),
    st.builds(
        lambda key, role, inner, content: {key: [{"role": role, inner: content}]},
        places,
        values,
        st.sampled_from(["content", "parts"]),
        st.lists(objects),
    ),
)


def well_formed(found: list[Violation], target: str) -> None:
    for violation in found:
        assert RULES[violation.rule].target == target
        assert violation.severity in ("hard", "model", "soft")
        assert violation.message
        assert msgspec.json.decode(msgspec.json.encode(violation), type=Violation) == violation


@settings(max_examples=600)
@given(bodies, st.sampled_from(TARGETS))
def test_arbitrary_json(body, target):
    well_formed(validate(body, target), target)
    well_formed(validate(json.dumps(body), target), target)


@settings(max_examples=100)
@given(st.binary(max_size=40), st.text(max_size=40), st.sampled_from(TARGETS))
def test_arbitrary_bytes_and_text(data, text, target):
    assert validate(data, target) or target not in JSON_TARGETS
    well_formed(validate(data, target), target)
    well_formed(validate(text, target), target)


@pytest.mark.parametrize("target", JSON_TARGETS)
@pytest.mark.parametrize(
    "body",
    [
        b"", b" ", b"null", b"[]", b"5", b'"x"', b"{", b"[" * 5000, b'{"a":' * 5000 + b"1" + b"}" * 5000, b"\xff\xfe",
        b'{"messages":[{"role":"user","content":"\xed\xa0\x80"}]}', b'{"messages":NaN}', b"\x00",
        b'{"messages":[' + b"[" * 3000 + b"]" * 3000 + b"]}", b'{"max_tokens":1e999,"messages":[]}',
        b'{"messages":[],"max_tokens":' + b"9" * 5000 + b"}",
        *(b'{"%b":%b}' % (key, value) for key in (b"messages", b"contents", b"input") for value in (b"5", b"{}")),
        {"messages": {1, 2}}, {"messages": [object()]}, {1: 2}, {"x": float("nan")}, {"messages": "\ud800"},
    ],
)  # fmt: skip
def test_bodies_that_are_no_request(body, target):
    found = validate(body, target)
    assert [violation for violation in found if violation.severity == "hard"]
    well_formed(found, target)


def test_a_lone_surrogate_in_an_id_or_a_key_is_escaped_in_the_report():
    call = {"type": "tool_use", "id": "a\ud83d", "name": "f", "input": {}, "k\ud83d": 1}
    found = validate({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": [call]}]})
    well_formed(found, "anthropic")
    assert {violation.path for violation in found if violation.rule == "ANT-34"} == {r"messages.1.content.0.k\ud83d"}
    assert any(r"after: a\ud83d. Each" in violation.message for violation in found)


def test_every_path_leads_into_the_body():
    """A path names a value that is there, or a key that is missing from an object that is."""
    body = {
        "model": 5, "max_tokens": "x", "temperature": 2, "system": [{"type": "text", "text": ""}, 5],
        "tools": [{"name": "a b", "extra": 1}, 5],
        "messages": [
            {"role": "system", "content": "x"},
            {"role": "user", "content": [{"type": "text", "text": "", "z": 1}, {"type": "nope"}, None, {"text": "x"}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "a.b", "name": "", "input": []}]},
            {"role": "user", "content": [{"type": "tool_result", "content": [{"type": "image", "source": 5}]}]},
        ],
    }  # fmt: skip
    found = validate(body)
    assert len(found) > 15
    for violation in found:
        node: object = body
        *parents, _ = violation.path.split(".")
        for key in parents:
            node = node[int(key)] if isinstance(node, list) else node[key]
        assert isinstance(node, dict | list), violation


def test_an_unknown_target_is_the_callers_fault():
    with pytest.raises(UnknownTargetError, match=r"expected one of anthropic, .*vllm, got 'nowhere'"):
        validate(b"{}", "nowhere")
