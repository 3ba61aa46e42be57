"""The promises over arbitrary histories for OpenAI's APIs and the servers that speak like them."""

from __future__ import annotations

import json
import os

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import healthy_histories, policies
from strategies import histories as canonical_histories

from pipeline import Session, normalize
from pipeline.registry import TARGETS
from pipeline.testing import Kit

# More examples for a long run: REKNIT_EXAMPLES=10.
SCALE = int(os.environ.get("REKNIT_EXAMPLES", "1"))

# A model of each family that is written for differently.
CHATS = [
    ("openai-chat", None),
    ("openai-chat", "gpt-5-mini"),
    ("openai-chat", "o1-mini"),
    ("openai-chat", "deepseek-reasoner"),
    ("openai-chat", "kimi-k2-thinking"),
    ("vllm", None),
    ("vllm", "mistralai/Mistral-7B-Instruct-v0.3"),
    ("vllm", "mistral-small"),
    ("vllm", "mistralai/Devstral-Small-2507"),
    ("vllm", "meta-llama/Llama-3.1-8B-Instruct"),
    ("vllm", "google/gemma-3-27b-it"),
    ("vllm", "Qwen/Qwen3.5-9B"),
]
MODELS = [*CHATS, ("openai-responses", None), ("openai-responses", "gpt-5-mini")]
TARGETS_HERE = sorted({target for target, _ in MODELS})

REASONING = [
    {"type": "thinking", "thinking": "hm", "issuer": {"provider": "openai-chat"}},
    {"type": "thinking", "thinking": " ", "issuer": {"provider": "openai-chat", "model": "deepseek-reasoner"}},
    {"type": "thinking", "thinking": "hm", "signature": "gAAA", "issuer": {"provider": "openai-responses"}},
    {"type": "redacted_thinking", "data": "gAAA", "issuer": {"provider": "openai-responses", "model": "gpt-5-mini"}},
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"},
    {"type": "reasoning", "id": "rs_2", "summary": []},
]


@st.composite
def reasoned(draw):
    """Histories with reasoning of these providers among what the assistant says."""
    history = []
    for message in draw(canonical_histories):
        content = message["content"]
        if message["role"] == "assistant" and isinstance(content, list) and draw(st.booleans()):
            at = draw(st.integers(0, len(content)))
            more = draw(st.lists(st.sampled_from(REASONING), max_size=2))
            message = message | {"content": [*content[:at], *more, *content[at:]]}  # noqa: PLW2901  a changed copy
        history.append(message)
    return history


histories = st.one_of(canonical_histories, reasoned())
prompts = st.sampled_from([None, None, "Be brief."])


def document(messages, model, system=None):
    given = {"messages": messages, "model": model, "system": system}
    return msgspec.json.encode({key: value for key, value in given.items() if value is not None})


def kit(target, model, policy, system=None, **options):
    setting = {"model": model, "system": system}
    return Kit(target, policy, setting={key: value for key, value in setting.items() if value is not None}, **options)


def listed(body):
    """The messages or items of a body."""
    return body["input"] if "input" in body else body["messages"]


@pytest.mark.parametrize(("target", "model"), MODELS)
@settings(max_examples=60 * SCALE)
@given(messages=histories, policy=policies, system=prompts)
def test_what_comes_out_is_valid(target, model, messages, policy, system):
    done = kit(target, model, policy, system).valid(messages)
    hard = {violation.rule for violation in done.violations if violation.severity == "hard"}
    if done.body is None:
        # The only thing that may be wrong is what the policy was asked not to mend.
        assert policy["tail"] == "reject"
        assert hard <= {"OAI-06", "VLM-OAI-06", "VLM-04", "VLM-09", "RSP-18", "OAI-22", "RSP-23"}
    else:
        assert hard == set()


@pytest.mark.parametrize(("target", "model"), MODELS)
@settings(max_examples=60 * SCALE)
@given(messages=histories, policy=policies)
def test_each_input_block_has_one_fate(target, model, messages, policy):
    kit(target, model, policy).accounted(messages)


def shown_blocks(body):
    """How many texts, media, calls, results and reasoning items a body shows, the system prompt left out."""
    count = 0
    for message in listed(body):
        content = message.get("content")
        if message.get("role") != "system" and message.get("type") != "reasoning":
            is_one = isinstance(content, str) or message.get("role") == "tool" or "call_id" in message
            count += 1 if is_one else len(content or ())
        count += len(message.get("tool_calls", ())) + (message.get("type") == "reasoning")
    return count


@pytest.mark.parametrize("target", TARGETS_HERE)
@settings(max_examples=150 * SCALE)
@given(messages=histories, policy=policies)
def test_each_block_that_is_sent_is_in_the_ledger(target, messages, policy):
    # Reasoning has no place of its own in a chat's message.
    kit(target, None, policy | {"reasoning": "strip"}, blocks=shown_blocks).accounted(messages)


@pytest.mark.parametrize(("target", "model"), MODELS)
@settings(max_examples=60 * SCALE)
@given(messages=histories, policy=policies, system=prompts)
def test_mending_twice_changes_nothing_and_reports_nothing(target, model, messages, policy, system):
    promises = kit(target, model, policy, system)
    once = promises.normalize(messages)
    # A prefix has no place in a history, and a system prompt that became the user's is the user's.
    if once.body is not None and b'"prefix":true' not in once.body and model != "o1-mini":
        promises.idempotent(messages)


@pytest.mark.parametrize(("target", "model"), MODELS)
@settings(max_examples=40 * SCALE)
@given(messages=histories, policy=policies)
def test_whole_and_turn_by_turn_are_the_same_and_what_is_settled_stays(target, model, messages, policy):
    kit(target, model, policy).incremental(messages)


@pytest.mark.parametrize("model", [None, "meta-llama/Llama-3.1-8B-Instruct", "mistral-7b"])
@settings(max_examples=60 * SCALE)
@given(messages=histories, policy=policies, data=st.data())
def test_a_session_goes_on_from_its_records(model, messages, policy, data):
    session = Session(TARGETS_HERE, policy, model=model)
    segments = []
    for message in messages:
        session.append(message)
        if data.draw(st.booleans()):
            segments += session.take_segments(flush=data.draw(st.booleans()))
            session = Session.load(session.head(), [record for _, record in segments])
    for target in TARGETS_HERE:
        resumed, whole = session.request(target), normalize(document(messages, model), to=target, policy=policy)
        assert resumed.body == whole.body
        assert sorted(resumed.ledger, key=repr) == sorted(whole.ledger, key=repr)


@pytest.mark.parametrize("target", TARGETS_HERE)
@settings(max_examples=100 * SCALE)
@given(messages=histories, policy=policies)
def test_rules_step_by_step_are_the_rules_over_the_whole_body(target, messages, policy):
    kit(target, None, policy, "Be brief.").folded(messages)


@pytest.mark.parametrize("target", TARGETS_HERE)
@settings(max_examples=100 * SCALE)
@given(messages=healthy_histories(), policy=policies)
def test_a_healthy_history_has_no_fix(target, messages, policy):
    done = kit(target, None, policy | {"strip_tools": False}).healthy(messages)
    texts = [block["text"] for message in messages for block in message["content"] if block["type"] == "text"]
    body = json.loads(done.body)
    said = [part for message in listed(body) if message.get("role") in {"user", "assistant"} for part in parts(message)]
    assert said == texts
    if target != "openai-responses":
        again = normalize(done.body, to="anthropic", policy={"tail": "keep"}, source="openai-chat")
        assert [with_blocks(message) for message in json.loads(again.body)["messages"]] == messages


def with_blocks(message):
    """The message with a list for its content; a single text is a string in a chat, and stays one."""
    content = message["content"]
    return {**message, "content": [{"type": "text", "text": content}] if isinstance(content, str) else content}


def parts(message):
    content = message.get("content")
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in content or ()]


def test_every_target_here_is_registered():
    assert set(TARGETS_HERE) <= TARGETS.keys()
