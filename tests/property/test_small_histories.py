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


THOUGHT_PART = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
SPOKEN_PARTS = ([text("a")], [{"type": "refusal", "refusal": "no"}], [THOUGHT_PART], [THOUGHT_PART, text("a")])
PARTS = (
    {"type": "text", "text": "a"},
    {"type": "text", "text": ""},
    {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
    {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
)
chat_calls = st.builds(
    lambda call_id, arguments: {"id": call_id, "type": "function", "function": {"name": "f", "arguments": arguments}},
    st.sampled_from("xyz"),
    st.sampled_from(["{}", '{"a": 1}', "cut", ""]),
)
chat_histories = st.lists(
    st.one_of(
        st.fixed_dictionaries(
            {
                "role": st.just("user"),
                "content": st.one_of(st.sampled_from(["a", "", None]), st.lists(st.sampled_from(PARTS), max_size=2)),
            },
            optional={"name": st.just("ann")},
        ),
        st.fixed_dictionaries(
            {
                "role": st.just("assistant"),
                "content": st.sampled_from([None, "", "a", *SPOKEN_PARTS]),
            },
            optional={
                "tool_calls": st.lists(chat_calls, min_size=1, max_size=2),
                "reasoning_content": st.sampled_from(["hm", ""]),
                "refusal": st.just("no"),
                "prefix": st.sampled_from([True]),
                "name": st.just("bot"),
            },
        ),
        st.builds(
            lambda call_id, content: {"role": "tool", "tool_call_id": call_id, "content": content},
            st.sampled_from("xyz"),
            st.sampled_from(["r", "", None]),
        ),
        st.sampled_from([{"role": role, "content": words} for role in ("system", "developer") for words in ("s", "")]),
    ),
    min_size=1,
    max_size=6,
)
ITEMS = (
    *({"role": "user", "content": content} for content in ("a", "", [], [{"type": "input_text", "text": ""}])),
    *(
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": words}], "id": name}
        for words in ("a", "")
        for name in ("msg_1", "msg_2")
    ),
    *(
        {"type": "function_call", "call_id": call_id, "name": "f", "arguments": arguments}
        for call_id in "xy"
        for arguments in ("{}", "cut")
    ),
    *({"type": "function_call_output", "call_id": call_id, "output": "r"} for call_id in "xy"),
    *({"type": "reasoning", "id": f"rs_{at}", "summary": [], "encrypted_content": "gAAAA"} for at in (1, 2)),
    {"type": "reasoning", "id": "rs_3", "summary": [{"type": "summary_text", "text": "hm"}]},
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}},
    {"type": "item_reference", "id": "rs_1"},
    {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAA"},
    {"role": "developer", "content": "s"},
)
HOSTED = {"web_search_call", "compaction"}


def repeats_hosted_items(history):
    """Whether an item of the provider's comes twice, which is rejected (tests/property/test_repeated_items.py)."""
    names = [item["id"] for item in history["input"] if item.get("type") in HOSTED]
    return len(names) > len(set(names))


item_histories = (
    st.lists(st.sampled_from(ITEMS), min_size=1, max_size=6)
    .map(lambda items: {"input": items})
    .filter(lambda history: not repeats_hosted_items(history))
)


def assert_promises(target, model, history, policy, source):
    # The system prompt of o1-mini becomes a message of the user's, and a second reading joins it with the next one.
    if model == "o1-mini" and policy.get("strip_tools"):
        policy = {**policy, "strip_tools": False}
    Kit(target, policy, setting={"model": model} if model else {}, source=source).check(history)


@pytest.mark.parametrize("target_case", TARGET_CASES, ids=str)
@settings(max_examples=60 * SCALE)
@given(history=histories, policy=policies)
def test_every_promise_holds_for_any_blocks_in_any_order(target_case, history, policy):
    assert_promises(target_case.target, target_case.model, history, policy, "anthropic")


@pytest.mark.parametrize("model", ["claude-opus-4-8", "claude-opus-4-5"])
@settings(max_examples=150 * SCALE)
@given(history=histories, policy=policies)
def test_every_promise_holds_for_models_with_messages_of_the_system_inside(model, history, policy):
    assert_promises("anthropic", model, history, policy, "anthropic")


@pytest.mark.parametrize("model", OWN_MODELS)
@settings(max_examples=100 * SCALE)
@given(history=own_histories, policy=policies)
def test_every_promise_holds_for_converses_own_blocks_in_any_order(model, history, policy):
    assert_promises("bedrock-converse", model, history, policy, "bedrock-converse")


@pytest.mark.parametrize("target_case", TARGET_CASES, ids=str)
@settings(max_examples=40 * SCALE)
@given(policy=policies, data=st.data())
def test_a_request_in_a_shape_of_openais_is_valid_and_accounted_for(target_case, policy, data):
    source, histories = data.draw(
        st.sampled_from([("openai-chat", chat_histories), ("openai-responses", item_histories)])
    )
    setting = {"model": target_case.model} if target_case.model else {}
    kit, history = Kit(target_case.target, policy, setting=setting, source=source), data.draw(histories)
    kit.valid(history)
    kit.accounted(history)
    kit.incremental(history)
