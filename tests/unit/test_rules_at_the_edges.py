"""Refusals at the very edge of what they are about: the last code point, the last block, no contents at all."""

from __future__ import annotations

import json

import pytest

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
