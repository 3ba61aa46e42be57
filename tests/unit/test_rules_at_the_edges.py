"""Rules at their exact boundaries: half a surrogate pair, and the turn that the model continues."""

from __future__ import annotations

import json

import pytest
from build import answered, call, said, text, thinking, user

from reknit.pipeline import validate


def broken(body):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return [(found.rule, found.path) for found in validate(data, "anthropic")]


@pytest.mark.parametrize("escape", [rb"\ud800", rb"\uD800", rb"\udbff", rb"\udc00", rb"\udfff", rb"\uDFFF"])
def test_half_a_pair_is_found_and_its_place_is_named(escape):
    messages = (
        b'[{"role":"user","content":"q"},{"role":"assistant","content":"%s"},{"role":"user","content":"q"}]' % escape
    )
    body = b'{"model":"claude-sonnet-4-5","max_tokens":9,"messages":%s}' % messages
    assert broken(body) == [("ANT-32", "messages.1.content")]


@pytest.mark.parametrize("escape", [rb"\ud7ff", rb"\ue000", rb"\ud83d\ude00", rb"\uDBFF\uDFFF", rb"\ud800\udc00"])
def test_characters_next_to_the_surrogate_range_are_text(escape):
    body = b'{"model":"claude-sonnet-4-5","max_tokens":9,"messages":[{"role":"user","content":"%s"}]}' % escape
    assert broken(body) == []


TOOLS = [{"name": "ls", "input_schema": {"type": "object"}}]
THINKING = thinking(signature="c2ln")
ASKED = user(text("a question"))


@pytest.mark.parametrize(
    ("messages", "paths"),
    [
        # An answer of an earlier question may lack it.
        ([ASKED, said(text("old")), ASKED, said(THINKING, call("a")), answered("a")], []),
        # Results continue the loop, and its first answer is judged.
        ([ASKED, said(THINKING, call("a")), answered("a"), said(call("b")), answered("b")], []),
        ([ASKED, said(call("a")), answered("a"), said(THINKING, call("b")), answered("b")], ["messages.1.content.0"]),
        # A question ends it.
        ([ASKED, said(THINKING, text("old")), ASKED, said(call("a")), answered("a")], ["messages.3.content.0"]),
        ([ASKED, said(text("old")), ASKED], []),
        # An answer that the assistant has begun is continued too.
        ([ASKED, said(text("The answer"))], ["messages.1.content.0"]),
        ([ASKED, said(THINKING, text("The answer"))], []),
    ],
)
def test_the_first_answer_since_the_last_question_begins_with_thinking(messages, paths):
    body = {
        "model": "claude-sonnet-4-5",
        "max_tokens": 4000,
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "tools": TOOLS,
        "messages": messages,
    }
    assert broken(body) == [("ANT-23", path) for path in paths]
