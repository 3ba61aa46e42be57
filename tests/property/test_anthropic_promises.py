"""What the Messages API's own shape promises beyond the others: what is kept is unchanged, and strings stay strings."""

import json

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import SCALE, healthy_histories, histories, policies

from pipeline import Session, normalize
from pipeline.testing import Kit


def encoded(messages):
    return msgspec.json.encode(messages)


@settings(max_examples=100 * SCALE)
@given(messages=histories, policy=policies)
def test_the_ledger_follows_the_body(messages, policy):
    done = normalize(encoded(messages), policy=policy)
    if done.body is None:
        return
    body = json.loads(done.body)
    outputs = [
        f"messages.{at}.content.{place}"
        for at, message in enumerate(body["messages"])
        for place in range(len(blocks_of(message)))
    ]
    assert [entry.output for entry in done.ledger if entry.output.startswith("messages")] == outputs
    assert len(done.ids) == len(body["messages"])


@settings(max_examples=200 * SCALE)
@given(messages=histories, policy=policies)
def test_what_is_kept_is_unchanged(messages, policy):
    done = normalize(encoded(messages), policy=policy)
    if done.body is None:
        return
    body = json.loads(done.body)["messages"]
    for entry in done.ledger:
        if entry.fate != "kept" or not entry.output.startswith("messages"):
            continue
        at, place = entry.output.removeprefix("messages.").split(".content.")
        out = blocks_of(body[int(at)])[int(place)]
        came = messages
        for step in entry.path.split(".")[1:]:
            came = came[int(step) if isinstance(came, list) else step]
        came = {"type": "text", "text": came} if isinstance(came, str) else came
        assert plain(out) == plain(came)


def blocks_of(message):
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def plain(block):
    """A block as everybody reads it: without breakpoints, the issuer, and a flag that says nothing."""
    if isinstance(block, list):
        return [plain(part) for part in block]
    if not isinstance(block, dict):
        return block
    ignored = {"cache_control", "issuer"}
    return {
        key: plain(value) if key == "content" else value
        for key, value in block.items()
        if key not in ignored and (key, value) != ("is_error", False)
    }


@st.composite
def with_strings(draw):
    """Healthy histories in which some of the texts are their messages' whole content."""
    messages = draw(healthy_histories())
    for message in messages:
        if [block["type"] for block in message["content"]] == ["text"] and draw(st.booleans()):
            message["content"] = message["content"][0]["text"]
    return messages


@settings(max_examples=100 * SCALE)
@given(messages=with_strings(), policy=policies)
def test_a_healthy_history_keeps_its_strings(messages, policy):
    kit = Kit("anthropic", policy | {"strip_tools": False})
    done = kit.healthy(messages)
    kit.incremental(messages)
    assert json.loads(done.body)["messages"] == messages


@settings(max_examples=100 * SCALE)
@given(messages=histories, cut=st.integers(0, 14), policy=policies)
def test_going_back_is_as_if_the_rest_had_never_come(messages, cut, policy):
    cut = min(cut, len(messages))
    session = Session(policy=policy)
    for message in messages:
        session.append(message)
    session.rewind(cut)
    assert session.request().body == normalize(encoded(messages[:cut]), policy=policy).body
    for message in messages[cut:]:
        session.append(message)
    assert session.request().body == normalize(encoded(messages), policy=policy).body
