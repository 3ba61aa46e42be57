"""With thinking enabled, the turn that the model goes on with begins with thinking: which turn that is."""

from __future__ import annotations

import json

import pytest
from build import answered, call, said, text, user

from pipeline import validate

TOOLS = [{"name": "ls", "input_schema": {"type": "object"}}]
THINKING = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}


ASKED = user(text("a question"))


@pytest.mark.parametrize(
    ("messages", "paths"),
    [
        # An answer of an earlier question may be without.
        ([ASKED, said(text("old")), ASKED, said(THINKING, call("a")), answered("a")], []),
        # Results keep the loop going, and its first answer is judged.
        ([ASKED, said(THINKING, call("a")), answered("a"), said(call("b")), answered("b")], []),
        ([ASKED, said(call("a")), answered("a"), said(THINKING, call("b")), answered("b")], ["messages.1.content.0"]),
        # A question ends it.
        ([ASKED, said(THINKING, text("old")), ASKED, said(call("a")), answered("a")], ["messages.3.content.0"]),
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
