"""The strict readers give what the tolerant one gives, whatever there is to mend, down to the request."""

from __future__ import annotations

import copy
import json
from unittest.mock import patch

import msgspec
import pytest
from build import call, result, said, text, thinking, user
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import normalize
from pipeline.errors import InputError
from pipeline.history.readers import read, read_message
from pipeline.history.readers.strict import StrictReader
from pipeline.testing.strategies import PNG

DATA = f"data:image/png;base64,{PNG}"
BLANK = text("")
CANONICAL = [
    user(text("q", cache_control={"type": "ephemeral"})),
    said(thinking("hm", signature="c2ln"), call("t", "f", x=1.0)),
    user(result("t", [text("")])),
    {"type": "message", "id": "m", "role": "assistant", "content": "so"},
]
CHAT = [
    {"role": "developer", "content": "brief", "name": "n"},
    user({"type": "image_url", "image_url": {"url": DATA, "detail": "low"}}, name="n"),
    {
        "role": "assistant",
        "content": "",
        "reasoning_content": "hm",
        "reasoning": "hm",
        "annotations": [],
        "tool_calls": [{"id": "t", "index": 0, "function": {"name": "f", "arguments": '{"x": 1.0}'}}],
    },
    {"role": "tool", "tool_call_id": "t", "name": "f", "content": [text("r")]},
    {"role": "assistant", "content": None, "refusal": "no"},
    user({"type": "file", "file": {"file_id": "file-1", "filename": "a.pdf"}}),
    said({"type": "output_text", "text": "a", "annotations": [1]}),
]
CONVERSE = [
    user({"text": "q"}, {"image": {"format": "png", "source": {"bytes": PNG}}}),
    said(
        {"reasoningContent": {"reasoningText": {"text": "r", "signature": "s"}}},
        {"reasoningContent": {"redactedContent": "AA=="}},
        {"toolUse": {"toolUseId": "t", "name": "f", "input": {"a": [{"b": 1.0}]}}},
    ),
    user(
        {"toolResult": {"toolUseId": "t", "content": [{"json": {"b": 1.0}}, {"text": "a"}], "status": "error"}},
        {"document": {"format": "pdf", "name": "n", "source": {"bytes": "AAAA"}, "citations": {"enabled": True}}},
        {"guardContent": {"text": {"text": "g"}}},
        {"cachePoint": {"type": "default"}},
    ),
]
GEMINI = [
    {"role": role, "parts": parts}
    for role, *parts in (
        ("user", {"text": "q"}, {"inlineData": {"mimeType": "image/png", "data": PNG}}),
        (
            "model",
            {"text": "hm", "thought": True},
            {"functionCall": {"name": "f", "args": {"x": 1.0}}, "thoughtSignature": "c2ln"},
            {"functionCall": {"id": "a", "name": "g"}, "thoughtSignature": "skip_thought_signature_validator"},
        ),
        (
            "user",
            {"functionResponse": {"name": "f", "response": {"result": "one\n"}}},
            {"functionResponse": {"id": "a", "name": "g", "response": {"sum": 2.0}}},
        ),
        ("model", {"text": "", "thoughtSignature": "c2ln"}, {"fileData": {"fileUri": "gs://a/b.mp4"}}),
    )
]
RESPONSES = [
    {"type": "message", **user({"type": "input_text", "text": "q"}), "status": "completed"},
    user({"type": "input_image", "image_url": DATA, "detail": "high"}),
    user({"type": "input_file", "filename": "a.pdf", "file_id": "file-1"}),
    {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "a"}], "encrypted_content": "gAAA"},
    {"type": "function_call", "id": "fc", "call_id": "A", "name": "f", "arguments": '{"x":  1.0}', "status": "x"},
    {"type": "function_call_output", "call_id": "A", "output": [{"type": "input_text", "text": "2"}]},
    {"type": "custom_tool_call", "call_id": "B", "name": "sql", "input": "SELECT 1", "namespace": "n"},
    {"type": "custom_tool_call_output", "call_id": "B", "output": "1", "name": "sql"},
    {"type": "message", "id": "m", "phase": "final", **said({"type": "refusal", "refusal": ""})},
    {"role": "developer", "content": "and"},
]
HEALTHY = {
    "anthropic": ("messages", CANONICAL),
    "openai-chat": ("messages", CHAT),
    "bedrock-converse": ("messages", CONVERSE),
    "gemini": ("contents", GEMINI),
    "openai-responses": ("input", RESPONSES),
}
values = st.sampled_from([
    None, True, False, 7, 1.0, "", " ", "a", "A\\u00e9", "null", '{"a"', "[]", [], [None], ["a"], {}, {"a": 1},
    {"text": "a"}, [{"text": "a"}], [{"type": "text", "text": "a", "own": {"provider": "p"}}], {"url": "a"},
])  # fmt: skip
KEYS = (
    "role content type text id name input arguments parts tool_calls tool_call_id status own structured issuer odd "
    "cache_control thought thoughtSignature thought_signature detail message_id phase summary refusal is_error"
)
keys = st.sampled_from(KEYS.split())


def places(value, path=()):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


@st.composite
def perturbed(draw, messages):
    chosen = copy.deepcopy([each for each in messages if draw(st.booleans())])
    for _ in range(draw(st.integers(0, 2))):
        found = list(places(chosen))
        if not found:
            break
        *outer, last = draw(st.sampled_from(found))
        holder = chosen
        for key in outer:
            holder = holder[key]
        change = draw(st.sampled_from(["put", "without", "beside"]))
        if change == "put":
            holder[last] = copy.deepcopy(draw(values))
        elif change == "without":
            del holder[last]
        elif isinstance(holder, dict):
            holder[draw(keys)] = copy.deepcopy(draw(values))
    return chosen


def tolerantly():
    return patch.multiple(StrictReader, read_list=lambda *_: None, read_message=lambda *_: None)


def outcome(function, *arguments, **options):
    """What comes back, less what only the strict readers know; or the error."""
    try:
        value = function(*arguments, **options)
    except InputError as error:
        return error.code, str(error)
    if function is normalize:
        return value.unjudged, value.fixes, value.violations, value.ids, value.ledger
    return msgspec.structs.replace(value, stretches=()) if function is read else value


@pytest.mark.parametrize("shape", HEALTHY)
@settings(max_examples=100)
@given(data=st.data(), named=st.booleans(), bare=st.booleans())
def test_a_history_is_read_alike(shape, data, named, bare):
    root, messages = HEALTHY[shape]
    history = data.draw(perturbed(messages))
    source = shape if named else "auto"
    document = json.dumps(history if bare else {root: history, "model": "m"}).encode()
    asked = [
        (read, (document, source), {}),
        *((read_message, (json.dumps(each).encode(),), {"index": 3, "source": source}) for each in history),
    ]
    strictly = [outcome(function, *given, **options) for function, given, options in asked]
    with tolerantly():
        assert strictly == [outcome(function, *given, **options) for function, given, options in asked]


@pytest.mark.parametrize("shape", HEALTHY)
@settings(max_examples=30)
@given(data=st.data())
def test_both_readers_make_one_request(shape, data):
    root, messages = HEALTHY[shape]
    document = json.dumps({root: data.draw(perturbed(messages))}).encode()
    for target in (shape, "anthropic"):
        strictly = outcome(normalize, document, to=target)
        with tolerantly():
            assert strictly == outcome(normalize, document, to=target)


@pytest.mark.parametrize("shape", ["openai-chat", "openai-responses"])
def test_what_nests_too_deeply_beside_a_content_is_refused_where_it_is(shape):
    root, messages = HEALTHY[shape]
    member = {"openai-chat": "annotations", "openai-responses": "status"}[shape]
    deep = [*messages, {"role": "assistant", "content": "a", member: "DEEP"}]
    document = json.dumps({root: deep}).replace('"DEEP"', "[" * 520 + "]" * 520).encode()
    code, said = outcome(read, document)
    assert (code, f"{root}.{len(messages)}" in said) == ("nested_too_deeply", True)
