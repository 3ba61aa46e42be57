"""Refusals at the very edge of what they are about: the last code point, the last block, no contents at all."""

from __future__ import annotations

import json

import pytest
from build import png

from pipeline import validate


def broken(body, target):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return [(found.rule, found.path) for found in validate(data, target) if found.rule != "GEM-22"]


@pytest.mark.parametrize("escape", [rb"\ud800", rb"\uD800", rb"\udbff", rb"\udc00", rb"\udfff", rb"\uDFFF"])
def test_half_a_pair_is_found_and_its_place_is_named(escape):
    messages = (
        b'[{"role":"user","content":"q"},{"role":"assistant","content":"%s"},{"role":"user","content":"q"}]' % escape
    )
    body = b'{"model":"claude-sonnet-4-5","max_tokens":9,"messages":%s}' % messages
    assert broken(body, "anthropic") == [("ANT-32", "messages.1.content")]


@pytest.mark.parametrize("escape", [rb"\ud7ff", rb"\ue000", rb"\ud83d\ude00", rb"\uDBFF\uDFFF", rb"\ud800\udc00"])
def test_what_only_stands_beside_the_halves_is_text(escape):
    body = b'{"model":"claude-sonnet-4-5","max_tokens":9,"messages":[{"role":"user","content":"%s"}]}' % escape
    assert broken(body, "anthropic") == []


def test_thinking_at_the_end_of_a_turn_is_refused_also_before_a_system_turn():
    thinking = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": [thinking]},
        {"role": "system", "content": "s"},
        {"role": "user", "content": "q"},
    ]
    body = {"model": "claude-opus-4-8", "max_tokens": 9, "messages": messages}
    assert broken(body, "anthropic") == [("ANT-20", "messages.1")]


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        ({}, "GEM-05"),
        ({"contents": None}, "GEM-05"),
        ({"contents": []}, "GEM-05"),
        ({"contents": {}}, "GEM-16"),
        ({"contents": "q"}, "GEM-16"),
    ],
)
def test_no_contents_are_another_breach_than_contents_of_another_shape(body, rule):
    assert broken(body, "gemini") == [(rule, "contents")]


PICTURE = {"image": {"format": "png", "source": {"bytes": png()}}}
CONVERSE = {
    "messages": [
        {"role": "user", "content": [{"text": "q"}]},
        {"role": "assistant", "content": [{"toolUse": {"toolUseId": "a", "name": "f", "input": {}}}]},
        {"role": "user", "content": [{"toolResult": {"toolUseId": "a", "content": [{"text": "r"}, PICTURE]}}]},
    ],
    "toolConfig": {"tools": [{"toolSpec": {"name": "f", "inputSchema": {"json": {}}}}]},
}
CLAUDE = {"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "q"}]}
VERDICTS = {
    "a result of words and a picture": ("bedrock-converse", CONVERSE | {"modelId": "us.amazon.nova-2-lite-v1:0"}, []),
    "a system block of two kinds": (
        "bedrock-converse",
        CONVERSE | {"system": [{"text": "a", "cachePoint": {"type": "default"}}]},
        [
            (
                "BED-29 system.0: The SystemContentBlock object at system.0 must set one of the following keys: "
                "text, guardContent, cachePoint."
            )
        ],
    ),
    "a choice of tools that is a number": (
        "anthropic",
        CLAUDE | {"tool_choice": 5},
        ["ANT-35 tool_choice: tool_choice: Input should be a valid dictionary"],
    ),
    "a list of no tools": (
        "bedrock-converse",
        CONVERSE | {"toolConfig": {"tools": []}},
        [
            (
                "BED-34 toolConfig.tools: 1 validation error detected: Value '[]' at 'toolConfig.tools' failed to "
                "satisfy constraint: Member must have value of length greater than or equal to 1"
            )
        ],
    ),
    "a tool with a blank in its name": (
        "bedrock-converse",
        CONVERSE | {"toolConfig": {"tools": [{"toolSpec": {"name": "a b", "inputSchema": {"json": {}}}}]}},
        [
            (
                "BED-12 toolConfig.tools.0.toolSpec.name: 1 validation error detected: Value 'a b' at "
                "'toolConfig.tools.1.member.toolSpec.name' failed to satisfy constraint: Member must satisfy regular "
                "expression pattern: [a-zA-Z0-9_-]+"
            )
        ],
    ),
    "a tool with a number for a name": (
        "anthropic",
        CLAUDE | {"tools": [{"name": 5, "input_schema": {"type": "object"}}]},
        ["ANT-35 tools.0.name: tools.0.custom.name: Input should be a valid string"],
    ),
    "a tool without a name": (
        "anthropic",
        CLAUDE | {"tools": [{"input_schema": {"type": "object"}}]},
        ["ANT-35 tools.0.name: tools.0.custom.name: Field required"],
    ),
    "half a pair in a Python string": (
        "anthropic",
        json.dumps(CLAUDE).replace('"q"', '"\ud800"'),
        [
            (
                "ANT-32 : The request body is not valid JSON: str is not valid UTF-8: surrogates not allowed: "
                "line 1 column 1 (char 0)"
            )
        ],
    ),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_a_body_has_these_breaches_and_no_others_not_even_warnings(name):
    target, body, breaches = VERDICTS[name]
    model = body.get("modelId", "anthropic.claude-sonnet-4-5") if target == "bedrock-converse" else None
    assert [f"{found.rule} {found.path}: {found.message}" for found in validate(body, target, model)] == breaches


@pytest.mark.parametrize(
    ("model", "severities"), [("gemini-2.5-pro", []), ("gemini-3-pro", ["hard"]), ("gemini-9.9-pro", ["model"])]
)
def test_a_call_without_a_signature_is_judged_by_the_model_and_doubted_where_it_is_unknown(model, severities):
    contents = [
        {"role": "user", "parts": [{"text": "q"}]},
        {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {}}}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {}}}]},
    ]
    body = {"model": model, "contents": contents, "tools": [{"functionDeclarations": [{"name": "f"}]}]}
    found = [(found.rule, found.severity) for found in validate(body, "gemini")]
    assert found == [("GEM-04", severity) for severity in severities]
