"""With thinking enabled, the turn that the model goes on with begins with thinking: which turn that is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pipeline import validate

Block = dict[str, Any]
TOOLS = [{"name": "ls", "input_schema": {"type": "object"}}]
THINKING = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}


def text(words: str) -> Block:
    return {"type": "text", "text": words}


def call(call_id: str) -> Block:
    return {"type": "tool_use", "id": call_id, "name": "ls", "input": {}}


def user(*blocks: Block) -> Block:
    return {"role": "user", "content": [*blocks]}


def said(*blocks: Block) -> Block:
    return {"role": "assistant", "content": [*blocks]}


def result(call_id: str) -> Block:
    return user({"type": "tool_result", "tool_use_id": call_id, "content": "files"})


ASKED = user(text("a question"))


@pytest.mark.parametrize(
    ("messages", "paths"),
    [
        # An answer of an earlier question may be without.
        ([ASKED, said(text("old")), ASKED, said(THINKING, call("a")), result("a")], []),
        # Results keep the loop going, and its first answer is judged.
        ([ASKED, said(THINKING, call("a")), result("a"), said(call("b")), result("b")], []),
        ([ASKED, said(call("a")), result("a"), said(THINKING, call("b")), result("b")], ["messages.1.content.0"]),
        # A question ends it.
        ([ASKED, said(THINKING, text("old")), ASKED, said(call("a")), result("a")], ["messages.3.content.0"]),
        ([ASKED, said(text("old")), ASKED], []),
        # What the assistant has begun is gone on with too.
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
    assert [(found.rule, found.path) for found in validate(json.dumps(body).encode(), "anthropic")] == [
        ("ANT-23", path) for path in paths
    ]
