"""Every promise, for every target, over short histories whose messages hold any blocks in any order.

Most of their messages are refused by a provider as they are. Combinations of few blocks find what longer histories,
which are closer to real ones, do not. The same for Converse's own shape, whose cache points are blocks.
"""

import pytest
from build import image, result, text, thinking
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import SCALE, policies
from target_cases import TARGET_CASES

from reknit.pipeline.testing import Kit

CACHED = {"cache_control": {"type": "ephemeral"}}
ISSUERS = ("anthropic", "bedrock-converse", "deepseek", "gemini", "mistral", "openai-chat", "openai-responses")
PICTURE = image()
POINT = {"cachePoint": {"type": "default"}}
PROFILE = "arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/abcdefghijk2"


def call(call_id, **members):
    return {"type": "tool_use", "id": call_id, "name": "f", "input": {}} | members


BLOCKS = (
    *map(text, ("a", "b", "", "  ")),
    text("c") | CACHED,
    text("") | CACHED,
    {"type": "hologram", "depth": 3},
    *(thinking(words, signature=signature) for words in ("", "hm") for signature in ("", "c2ln")),
    *(thinking(words, issuer, signature="c2ln") for words in ("", "hm") for issuer in ISSUERS),
    {"type": "redacted_thinking", "data": "c2ln"},
    *map(call, "xyz"),
    call("x", name="g h"),
    call("x", name=""),
    call("y", input='{"a": 1}'),
    call("y", input="cut"),
    call("z") | CACHED,
    *(result(call_id, "r") for call_id in "xyz"),
    *(result("x", content) for content in ("", [], [text("")], [text("r"), PICTURE], [{"type": "hologram"}])),
    result("y", [text("r"), PICTURE], is_error=True),
    result("z", "r") | CACHED,
    PICTURE,
    *({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": said}} for said in ("", "d")),
    {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}},
    {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []},
    {"type": "compaction", "content": "z"},
    POINT,
)
OWN_BLOCKS = (
    *({"text": words} for words in ("a", "b", "", " ")),
    POINT,
    POINT,
    *({"reasoningContent": {"reasoningText": {"text": "hm", "signature": each}}} for each in ("AAAA", "c2ln")),
    {"reasoningContent": {"redactedContent": "AAAA"}},
    *({"toolUse": {"toolUseId": call_id, "name": "f", "input": {}}} for call_id in "xy"),
    *(
        {"toolResult": {"toolUseId": call_id, "content": content}}
        for call_id in "xy"
        for content in ([{"text": "r"}], [], [{"text": ""}], [{"text": "r"}, POINT], [{"json": {"a": 1}}])
    ),
    {"toolResult": {"toolUseId": "x", "content": [{"text": "no"}, POINT], "status": "error"}},
    {"image": {"format": "png", "source": {"bytes": PICTURE["source"]["data"]}}},
    {"guardContent": {"text": {"text": "g"}}},
    {"document": {"format": "txt", "name": "d", "source": {"bytes": "YQ=="}}},
)
contents = st.one_of(st.sampled_from(["", "a", " "]), st.lists(st.sampled_from(BLOCKS), max_size=3))
roles = st.sampled_from(["user", "assistant", "user", "assistant", "system"])
histories = st.lists(st.fixed_dictionaries({"role": roles, "content": contents}), min_size=1, max_size=5)
own_histories = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant"]), "content": st.lists(st.sampled_from(OWN_BLOCKS), max_size=4)}
    ),
    min_size=1,
    max_size=7,
)
OWN_MODELS = [
    *(case.model for case in TARGET_CASES if case.target == "bedrock-converse"),
    "anthropic.claude-3-haiku-20240307-v1:0",
    "us.anthropic.claude-opus-4-8",
    PROFILE,
]


def check(target, model, history, policy, source):
    # The system prompt of o1-mini becomes a message of the user's, which a second reading cannot tell from others.
    if model == "o1-mini" and policy.get("strip_tools"):
        policy = {**policy, "strip_tools": False}
    Kit(target, policy, setting={"model": model} if model else {}, source=source).check(history)


@pytest.mark.parametrize("target_case", TARGET_CASES, ids=str)
@settings(max_examples=60 * SCALE)
@given(history=histories, policy=policies)
def test_every_promise_holds_for_any_blocks_in_any_order(target_case, history, policy):
    check(target_case.target, target_case.model, history, policy, "anthropic")


@pytest.mark.parametrize("model", ["claude-opus-4-8", "claude-opus-4-5"])
@settings(max_examples=150 * SCALE)
@given(history=histories, policy=policies)
def test_every_promise_holds_for_models_with_messages_of_the_system_inside(model, history, policy):
    check("anthropic", model, history, policy, "anthropic")


@pytest.mark.parametrize("model", OWN_MODELS)
@settings(max_examples=100 * SCALE)
@given(history=own_histories, policy=policies)
def test_every_promise_holds_for_converses_own_blocks_in_any_order(model, history, policy):
    check("bedrock-converse", model, history, policy, "bedrock-converse")
