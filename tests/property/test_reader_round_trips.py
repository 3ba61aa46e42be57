"""A request for a provider is a history in its own shape: read again and mended again, it is the same without a fix."""

from __future__ import annotations

import json
import os

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import healthy_histories, histories, policies

from pipeline import Session, normalize

# More examples for a long run: REKNIT_EXAMPLES=10.
SCALE = int(os.environ.get("REKNIT_EXAMPLES", "1"))
ASKED = [
    ("openai-responses", None),
    ("openai-responses", "gpt-5-mini"),
    ("gemini", None),
    ("gemini", "gemini-2.5-flash"),
    ("gemini", "gemini-3-pro-preview"),
]
ROOTS = {"openai-responses": "input", "gemini": "contents"}
REASONING = [
    {"type": "thinking", "thinking": "hm", "signature": "Z0FB", "issuer": {"provider": "openai-responses"}},
    {"type": "thinking", "thinking": "", "signature": "Z0FB", "issuer": {"provider": "openai-responses"}},
    {"type": "redacted_thinking", "data": "Z0FB", "issuer": {"provider": "openai-responses"}},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "a"}], "encrypted_content": "Z0FB"},
    {"type": "thinking", "thinking": "hm", "issuer": {"provider": "gemini"}},
    {"type": "thinking", "thinking": "hm", "signature": "c2ln", "issuer": {"provider": "gemini"}},
    {"type": "thinking", "thinking": "", "signature": "c2ln", "issuer": {"provider": "gemini"}},
]  # fmt: skip


@st.composite
def reasoned(draw):
    """Histories with reasoning of these two providers among what the assistant says."""
    history = []
    for message in draw(histories):
        content = message["content"]
        if message["role"] == "assistant" and isinstance(content, list):
            at = draw(st.integers(0, len(content)))
            more = draw(st.lists(st.sampled_from(REASONING), max_size=2))
            message = message | {"content": [*content[:at], *more, *content[at:]]}  # noqa: PLW2901  a changed copy
        history.append(message)
    return history


def document(messages, model, system=None):
    given = {"messages": messages, "model": model, "system": system}
    return msgspec.json.encode({key: value for key, value in given.items() if value is not None})


def read_again(body, model, **asked):
    """The body, with the model beside it where it does not name one itself."""
    keys = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    return normalize(msgspec.json.encode(keys | ({} if model is None else {"model": model})), **asked)


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize(("target", "model"), ASKED)
@settings(max_examples=120 * SCALE)
@given(messages=st.one_of(histories, reasoned()), policy=policies)
def test_mending_twice_changes_nothing_and_reports_nothing(target, model, messages, policy, named):
    once = normalize(document(messages, model, "Be brief." if named else None), to=target, policy=policy)
    if once.body is None:
        return
    twice = read_again(once.body, model, to=target, policy=policy, source=target if named else "auto")
    assert twice.fixes == []
    assert twice.body == once.body


@pytest.mark.parametrize(("target", "model"), ASKED)
@settings(max_examples=80 * SCALE)
@given(messages=st.one_of(histories, reasoned()), policy=policies)
def test_a_request_taken_item_by_item_is_the_request(target, model, messages, policy):
    once = normalize(document(messages, model), to=target, policy=policy)
    if once.body is None:
        return
    session = Session((target,), policy, model=model)
    items = msgspec.json.decode(once.body, type=dict[str, msgspec.Raw])[ROOTS[target]]
    for item in msgspec.json.decode(items, type=list[msgspec.Raw]):
        session.append(bytes(item), source=target)
    step = session.request()
    assert json.loads(step.unjudged)[ROOTS[target]] == json.loads(once.body)[ROOTS[target]]
    assert step.fixes == []


@pytest.mark.parametrize(("target", "model"), ASKED)
@settings(max_examples=80 * SCALE)
@given(messages=healthy_histories())
def test_a_healthy_history_survives_the_way_there_and_back(target, model, messages):
    there = normalize(document(messages, model), to=target)
    back = read_again(there.body, model, to="anthropic", policy={"tail": "keep"})
    found = json.loads(back.body)["messages"]
    if target == "gemini" and model != "gemini-3-pro-preview":
        # Ids are not sent to these models; what comes back has others, in the same places.
        assert renumbered(found) == renumbered(messages)
    else:
        assert [bare(message) for message in found] == messages
    assert {fix.code for fix in back.fixes} <= {"thinking_foreign"}


def bare(message):
    """A message in blocks: where a text is a whole content on the way, it comes back as a string."""
    content = message["content"]
    return {
        "role": message["role"],
        "content": [{"type": "text", "text": content}] if isinstance(content, str) else content,
    }


def renumbered(messages):
    """The messages with the calls numbered in their order."""
    numbers: dict[str, int] = {}
    changed = []
    for message in messages:
        blocks = []
        for block in bare(message)["content"]:
            key = {"tool_use": "id", "tool_result": "tool_use_id"}.get(block["type"])
            blocks.append(block if key is None else block | {key: numbers.setdefault(block[key], len(numbers))})
        changed.append({"role": message["role"], "content": blocks})
    return changed
