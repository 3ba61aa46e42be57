"""Converse's typed reader gives what the tolerant one gives, and leaves to it whatever needs mending."""

from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import normalize
from pipeline.errors import InputError
from pipeline.history.readers import converse, read, read_message
from pipeline.model import Issuer, Text, Thinking, ToolResult, ToolUse, Unknown

encode = msgspec.json.encode

texts = st.sampled_from(["a", "", " ", "é\n", "long " * 200, "Tool result missing"])
ids = st.sampled_from(["t1", "t2", "a.b", ""])
inputs = st.sampled_from(
    [{}, {"a": 1.0}, {"a": [{"b": "{" * 40}]}, [], None, "", '{"a":1}', '{"a"', {"deep": "[" * 600 + "]" * 600}]
)
sources = st.sampled_from([{"bytes": "AAAA"}, {"s3Location": {"uri": "s3://b"}}, {"bytes": None}, {}, None, "AAAA"])
media = st.fixed_dictionaries({"source": sources}, optional={"format": st.sampled_from(["png", "pdf", "rtf", 1, None])})
reasoning = st.sampled_from(
    [
        {"reasoningText": {"text": "r", "signature": "s"}},
        {"reasoningText": {"text": "r"}},
        {"redactedContent": "AA=="},
        {"reasoningText": {"text": "r"}, "redactedContent": "AA=="},
        {"reasoningText": {"text": "r", "more": 1}},
        {"reasoningText": "r"},
        {},
        None,
    ]
)
rare = st.one_of(
    st.fixed_dictionaries({"image": media}),
    st.fixed_dictionaries({"document": media}),
    st.fixed_dictionaries({"reasoningContent": reasoning}),
    st.sampled_from(
        [{"cachePoint": {"type": "default"}}, {"guardContent": {"text": {"text": "g"}}}, {"video": None}, {"audio": 1}]
    ),
)
parts = st.one_of(
    st.fixed_dictionaries({"text": texts}),
    st.fixed_dictionaries({"json": inputs}),
    st.fixed_dictionaries({"image": media}),
    st.sampled_from(["a", {}, {"text": None}, {"text": "a", "json": {}}, {"searchResult": {}}, {"other": 1}]),
)
calls = st.fixed_dictionaries(
    {"toolUseId": ids, "name": st.sampled_from(["f", ""]), "input": inputs},
    optional={"type": st.sampled_from([None, "server_tool_use"])},
)
results = st.fixed_dictionaries(
    {"toolUseId": ids},
    optional={
        "content": st.one_of(st.lists(parts, max_size=2), st.sampled_from([None, "a"])),
        "status": st.sampled_from(["success", "error", None, 1]),
        "more": st.just(1),
    },
)
members = st.one_of(
    st.fixed_dictionaries({"text": texts}),
    st.fixed_dictionaries({"toolUse": calls}),
    st.fixed_dictionaries({"toolResult": results}),
    st.builds(lambda text, call: {"text": text, "toolUse": call}, texts, calls),
    rare,
    st.builds(lambda one, key: one | {key: None}, rare, st.sampled_from(["text", "type", "toolUse", "x"])),
    st.sampled_from(["a", {"type": "text", "text": "a"}, {"text": None}, {}, 1]),
)
messages = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant", "system", "model", "tool"]),
        "content": st.one_of(st.lists(members, max_size=3), texts, st.none()),
    },
    optional={"id": st.sampled_from(["m1", None, 7]), "message_id": st.just("m2"), "created_at": st.just("now")},
)
heads = st.fixed_dictionaries(
    {},
    optional={
        "system": st.just([{"text": "be brief"}]),
        "inferenceConfig": st.just({"maxTokens": 5}),
        "toolConfig": st.just({"tools": [{"toolSpec": {"name": "f", "inputSchema": {"json": {"type": "object"}}}}]}),
        "modelId": st.just("amazon.nova-lite-v1:0"),
        "other": st.just(1),
    },
)


def tolerantly():
    """Without the typed reader."""
    return patch.multiple(converse, read_document=lambda *_: None, read_message=lambda *_: None)


def found(function, *arguments, **options):
    """What comes back, less what only the typed reader knows; or the error."""
    try:
        value = function(*arguments, **options)
    except InputError as error:
        return error.code, str(error)
    return msgspec.structs.replace(value, stretches=()) if function is read else value


@settings(max_examples=300)
@given(messages, st.sampled_from(["auto", "bedrock-converse"]))
def test_a_message_is_read_alike(message, source):
    fast = found(read_message, message, index=3, source=source)
    with tolerantly():
        assert fast == found(read_message, message, index=3, source=source)


@settings(max_examples=200)
@given(heads, st.lists(messages, max_size=4), st.sampled_from(["auto", "bedrock-converse"]))
def test_a_document_is_read_alike(head, listed, source):
    document = encode(head | {"messages": listed})
    fast = found(read, document, source)
    with tolerantly():
        assert fast == found(read, document, source)


def history(rounds, content):
    """A healthy history of calls whose results have this content."""
    made = [{"role": "user", "content": [{"text": "go"}]}]
    for at in range(rounds):
        call = {"toolUseId": f"t{at}", "name": "f", "input": {"at": at}}
        made.append({"role": "assistant", "content": [{"text": "so"}, {"toolUse": call}]})
        result = {"toolUseId": f"t{at}", "status": "success", "content": content}
        made.append({"role": "user", "content": [{"toolResult": result}]})
    return made


def test_a_healthy_history_begins_with_a_stretch():
    found = read(encode(history(4, [{"text": "out"}])))
    assert found.shape == "bedrock-converse"
    (stretch,) = found.stretches
    assert stretch.turns == 7
    assert stretch.ids == ["t0", "t1", "t2"]


@pytest.mark.parametrize(
    "content",
    [
        [{"text": "Tool result missing"}],
        [{"text": "a"}, {"text": " "}],
        [],
    ],
)
def test_a_result_that_needs_a_look_ends_the_stretch(content):
    (stretch,) = read(encode(history(4, content))).stretches
    assert (stretch.turns, stretch.ids) == (1, [])


@pytest.mark.parametrize("target", ["bedrock-converse", "anthropic", "openai-chat", "claude-cli"])
@pytest.mark.parametrize("content", [[{"text": "out"}], [{"text": "a"}, {"json": {"b": 1.0}}], [{"text": " "}]])
def test_both_readers_make_one_request(target, content):
    head = {"toolConfig": {"tools": [{"toolSpec": {"name": "f", "inputSchema": {"json": {"type": "object"}}}}]}}
    document = encode(head | {"messages": history(5, content)})
    fast = normalize(document, to=target)
    with tolerantly():
        slow = normalize(document, to=target)
    assert fast.unjudged == slow.unjudged
    assert (fast.fixes, fast.violations, fast.ids) == (slow.fixes, slow.violations, slow.ids)
    assert fast.ledger == slow.ledger


def test_rare_members_and_texts_are_no_detour():
    members = (
        b'[{"text":"a"},{"cachePoint":{"type":"default"}},{"reasoningContent":{"reasoningText":{"text":"r"}}},'
        b'{"toolUse":{"toolUseId":"t","name":"f","input":{"x": 1.0}}},{"toolResult":{"toolUseId":"t"}}]'
    )
    healthy = converse.read_message(b'{"role":"assistant","content":%b}' % members, 0, None)
    assert healthy is not None
    [turn] = healthy.turns
    assert turn.blocks == (
        Text(text="a"),
        Unknown(kind="cachePoint", raw=msgspec.Raw(b'{"cachePoint":{"type":"default"}}')),
        Thinking(thinking="r", issuer=Issuer(provider="bedrock-converse")),
        ToolUse(id="t", name="f", input=msgspec.Raw(b'{"x": 1.0}')),
        ToolResult(tool_use_id="t"),
    )


def test_another_shape_by_name_is_not_for_it():
    message = b'{"role":"user","content":[{"text":"a"}]}'
    assert converse.read_message(message, 0, "anthropic") is None
    assert converse.read_document(b"[%b]" % message, "openai-chat") is None
