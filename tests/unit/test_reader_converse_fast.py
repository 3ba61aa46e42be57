"""Converse's typed reader gives what the tolerant one gives, whatever there is to mend, down to the request."""

import json
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from request_bodies import converse_messages, record

from pipeline import normalize
from pipeline.errors import InputError
from pipeline.history.readers import converse, read, read_message


def encode(value):
    return json.dumps(value).encode()


inputs = st.sampled_from([{"a": 1.0}, {"a": [{"b": "{" * 40}]}, '{"a":1}', '{"a"', {"deep": "[" * 600 + "]" * 600}])
reasoning = st.sampled_from(
    [
        {"reasoningText": {"text": "r", "signature": "s"}},
        {"redactedContent": "AA=="},
        {"reasoningText": {"text": "r"}, "redactedContent": "AA=="},
        {"reasoningText": {"text": "r", "more": 1}},
        {"reasoningText": "r"},
        {},
        None,
    ]
)
PNG = {"image": {"format": "png", "source": {"bytes": "AAAA"}}}
DOCUMENT = {"format": "pdf", "name": "n", "source": {"bytes": "AAAA"}, "context": "c", "citations": {"enabled": True}}
parts = st.sampled_from([{"text": "out"}, {"text": " "}, {"json": {"b": 1.0}}, {"text": "a", "json": {}}, PNG, {}, "a"])
results = st.one_of(st.lists(parts, max_size=3), st.sampled_from([None, "a"]))
# What the rules have no word for, and the reader has.
members = st.one_of(
    record({"reasoningContent": reasoning}),
    record({"document": DOCUMENT}, more=st.just(1)),
    record({"toolUse": record({"toolUseId": "t1", "name": "f", "input": inputs})}),
    record({"toolUse": {"toolUseId": "t1", "name": "f", "input": {}}}, text=st.just("a")),
    record({"toolResult": record({"toolUseId": "t1", "content": results}, status=st.sampled_from(["error", None]))}),
    st.sampled_from(
        [{"guardContent": {"text": {"text": "g"}}}, {"video": None}, {"audio": 1}, {"text": "", "x": None}]
    ),
)
messages = st.one_of(
    converse_messages,
    st.lists(
        record(
            {"role": st.sampled_from(["user", "assistant", "model"]), "content": st.lists(members, max_size=3)},
            id=st.sampled_from(["m1", None, 7]),
            message_id=st.just("m2"),
            created_at=st.just("now"),
        ),
        max_size=4,
    ),
)
heads = record(
    system=st.just([{"text": "be brief"}]),
    inferenceConfig=st.just({"maxTokens": 5}),
    toolConfig=st.just({"tools": [{"toolSpec": {"name": "f", "inputSchema": {"json": {"type": "object"}}}}]}),
    modelId=st.just("amazon.nova-lite-v1:0"),
    other=st.just(1),
)
sources = st.sampled_from(["auto", "bedrock-converse"])


def tolerantly():
    """Without the typed reader."""
    return patch.multiple(converse, read_document=lambda *_: None, read_message=lambda *_: None)


def outcome(function, *arguments, **options):
    """What comes back, less what only the typed reader knows; or the error."""
    try:
        value = function(*arguments, **options)
    except InputError as error:
        return error.code, str(error)
    if function is normalize:
        return value.unjudged, value.fixes, value.violations, value.ids, value.ledger
    return msgspec.structs.replace(value, stretches=()) if function is read else value


@settings(max_examples=200)
@given(heads, messages, sources)
def test_a_history_is_read_alike(head, history, source):
    document = encode(head | {"messages": history})
    asked = [
        (read, (document, source), {}),
        *((read_message, (encode(message),), {"index": 3, "source": source}) for message in history),
    ]
    fast = [outcome(function, *given, **options) for function, given, options in asked]
    with tolerantly():
        assert fast == [outcome(function, *given, **options) for function, given, options in asked]


@pytest.mark.parametrize("target", ["bedrock-converse", "anthropic", "openai-chat", "claude-cli"])
@settings(max_examples=60)
@given(heads, messages)
def test_both_readers_make_one_request(target, head, history):
    document = encode(head | {"messages": history})
    fast = outcome(normalize, document, to=target)
    with tolerantly():
        assert fast == outcome(normalize, document, to=target)
