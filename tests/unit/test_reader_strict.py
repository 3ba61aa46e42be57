"""The strict readers give the tolerant reader's result for any defect, including the final request."""

from __future__ import annotations

import copy
import json
from unittest.mock import patch

import msgspec
import pytest
from build import call, result, said, text, thinking, user
from hypothesis import given, settings
from hypothesis import strategies as st
from work_counter import decodes

from reknit.pipeline import normalize
from reknit.pipeline.errors import InputError
from reknit.pipeline.history.readers.shapes import read, read_message
from reknit.pipeline.history.readers.strict import StrictReader
from reknit.pipeline.testing.strategies import PNG

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
VALID = {
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
    """Return the result without members that only the strict readers set, or the error."""
    try:
        value = function(*arguments, **options)
    except InputError as error:
        return error.code, str(error)
    if function is normalize:
        return value.unjudged, value.fixes, value.violations, value.ids, value.ledger
    return msgspec.structs.replace(value, valid_runs=(), reader=None) if function is read else value


@pytest.mark.parametrize("shape", VALID)
@settings(max_examples=100)
@given(data=st.data(), named=st.booleans(), bare=st.booleans())
def test_a_history_is_read_alike(shape, data, named, bare):
    root, messages = VALID[shape]
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


@pytest.mark.parametrize("shape", VALID)
@settings(max_examples=30)
@given(data=st.data())
def test_both_readers_make_one_request(shape, data):
    root, messages = VALID[shape]
    document = json.dumps({root: data.draw(perturbed(messages))}).encode()
    for target in (shape, "anthropic"):
        strictly = outcome(normalize, document, to=target)
        with tolerantly():
            assert strictly == outcome(normalize, document, to=target)


@pytest.mark.parametrize("shape", ["openai-chat", "openai-responses"])
def test_deep_nesting_next_to_a_content_is_rejected_at_its_place(shape):
    root, messages = VALID[shape]
    member = {"openai-chat": "annotations", "openai-responses": "status"}[shape]
    deep = [*messages, {"role": "assistant", "content": "a", member: "DEEP"}]
    document = json.dumps({root: deep}).replace('"DEEP"', "[" * 520 + "]" * 520).encode()
    code, said = outcome(read, document)
    assert (code, f"{root}.{len(messages)}" in said) == ("nested_too_deeply", True)


# Number of JSON decodes to read one appended message: at most two if it is valid, five to repair it.


SAID = 'a\n"b"'
INPUT = {"a": SAID}
TEXT = {"type": "text", "text": SAID}
INPUT_TEXT = {"type": "input_text", "text": SAID}
CALL = {"id": "t", "type": "function", "function": {"name": "f", "arguments": json.dumps(INPUT)}}
CUSTOM = {"id": "t", "type": "custom", "custom": {"name": "f", "input": SAID}}
CALLS = [CALL, CALL | {"id": "u"}]
ADDRESS = {"url": "https://a.example/b.png", "detail": "low"}
FUNCTION = {"name": "f", "args": INPUT}
SIGNED = {"reasoningContent": {"reasoningText": {"text": SAID, "signature": "b"}}}

# Messages by their shape, with the list that has the blocks of each, if it has one.
MESSAGES = {
    "anthropic": [
        ("", {"role": "user", "content": SAID}),
        ("content", {"role": "user", "content": [TEXT]}),
        ("content", {"role": "assistant", "content": [TEXT, {"type": "thinking", "thinking": SAID, "signature": "s"}]}),
        ("content", {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": INPUT}]}),
        ("content", {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [TEXT]}]}),
        ("content", {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": SAID}]}),
        ("content", {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "u"}}]}),
    ],
    "openai-chat": [
        ("", {"role": "tool", "tool_call_id": "t", "content": SAID}),
        ("", {"role": "tool", "tool_call_ids": ["t"], "content": SAID}),
        ("", {"role": "assistant", "content": SAID, "reasoning_content": SAID, "annotations": []}),
        ("", {"role": "assistant", "content": None, "refusal": SAID}),
        ("", {"role": "tool", "tool_call_id": "t", "content": SAID, "is_error": True}),
        ("tool_calls", {"role": "assistant", "content": None, "tool_calls": [CUSTOM]}),
        ("content", {"role": "tool", "tool_call_id": "t", "content": [TEXT]}),
        ("content", {"role": "user", "content": [TEXT, {"type": "image_url", "image_url": ADDRESS}]}),
        ("content", {"role": "assistant", "content": [{"type": "refusal", "refusal": SAID}]}),
        ("content", {"role": "assistant", "content": [TEXT], "tool_calls": CALLS}),
        ("tool_calls", {"role": "assistant", "content": None, "tool_calls": [CALL]}),
        ("tool_calls", {"role": "assistant", "content": [TEXT], "tool_calls": CALLS}),
    ],
    "openai-responses": [
        ("", {"type": "function_call", "call_id": "t", "name": "f", "arguments": json.dumps(INPUT)}),
        ("", {"type": "custom_tool_call", "call_id": "t", "name": "f", "input": SAID}),
        ("", {"type": "function_call_output", "call_id": "t", "output": SAID}),
        ("", {"type": "message", "role": "assistant", "content": SAID}),
        ("", {"type": "shell_call", "call_id": "t", "status": "completed", "action": {"commands": [SAID]}}),
        ("", {"type": "reasoning", "id": "r", "summary": [TEXT, TEXT], "encrypted_content": "gAAA"}),
        ("", {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": SAID}]}),
        ("content", {"type": "message", "role": "user", "content": [INPUT_TEXT]}),
        ("content", {"type": "message", "role": "user", "content": [{"type": "input_file", "file_id": "file-1"}]}),
        ("output", {"type": "function_call_output", "call_id": "t", "output": [INPUT_TEXT]}),
    ],
    "bedrock-converse": [
        ("content", {"role": "user", "content": [{"text": SAID}]}),
        ("content", {"role": "assistant", "content": [{"toolUse": {"toolUseId": "t", "name": "f", "input": INPUT}}]}),
        ("content", {"role": "user", "content": [{"toolResult": {"toolUseId": "t", "content": [{"text": SAID}]}}]}),
        ("content", {"role": "assistant", "content": [{"text": SAID}, SIGNED]}),
        ("content", {"role": "user", "content": [{"image": {"format": "png", "source": {"bytes": PNG}}}]}),
        ("content", {"role": "user", "content": [{"guardContent": {"text": {"text": SAID}}}, {"text": SAID}]}),
        ("content", {"role": "user", "content": [{"text": SAID}, {"cachePoint": {"type": "default"}}]}),
        ("content", {"role": "user", "content": [{"document": {"format": "pdf", "source": {"bytes": "JVBERi0x"}}}]}),
    ],
    "gemini": [
        ("parts", {"role": "user", "parts": [{"text": SAID}]}),
        ("parts", {"role": "model", "parts": [{"functionCall": FUNCTION, "thoughtSignature": "c2ln"}]}),
        ("parts", {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"sum": SAID}}}]}),
        ("parts", {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"result": SAID}}}]}),
        ("parts", {"role": "user", "parts": [{"inlineData": {"mimeType": "image/png", "data": PNG}}]}),
        ("parts", {"role": "user", "parts": [{"fileData": {"fileUri": "gs://a_b/c.mp4"}}]}),
    ],
}  # fmt: skip
CASES = [
    pytest.param(source, *each, id=f"{source}-{at}")
    for source, messages in MESSAGES.items()
    for at, each in enumerate(messages)
]


def most(messages, source):
    """Return the most decodes that one of these messages takes, with its shape named or not."""

    def count(data, named):
        return decodes(lambda: read_message(data, index=0, source=named))

    return max(count(msgspec.json.encode(message), named) for message in messages for named in ("auto", source))


@pytest.mark.parametrize(("source", "key", "message"), CASES)
def test_a_message_is_decoded_few_times_however_many_blocks_it_has(source, key, message):
    longer = [message | {key: message[key] * times} for times in (1, 2, 9, 18)] if key else [message]
    assert most(longer, source) <= 2
    assert most([each | {"odd": odd} for each in longer for odd in (1, SAID)], source) <= 5
    with_odd_blocks = [
        each | {key: [*each[key][:at], each[key][at] | {"odd": 1}, *each[key][at + 1 :]]}
        for each in (longer if key else ())
        for at in {0, len(each[key]) // 2, len(each[key]) - 1}
    ]
    assert not key or most(with_odd_blocks, source) <= 5


def converse_result(times):
    result = {"toolUseId": "t", "content": [{"text": SAID}] * times + [{"text": SAID, "odd": 1}]}
    return {"role": "user", "content": [{"toolResult": result}]}


def chat_calls(times):
    odd = CALL | {"id": "v", "function": CALL["function"] | {"odd": 1}}
    return {"role": "assistant", "content": None, "tool_calls": [CALL] * times + [odd]}


def gemini_calls(times):
    return {"role": "model", "parts": [{"functionCall": FUNCTION}] * times + [{"functionCall": FUNCTION | {"odd": 1}}]}


@pytest.mark.parametrize(
    ("source", "message", "path"),
    [
        ("bedrock-converse", converse_result, "messages.0.content.0.toolResult.content.3.odd"),
        ("openai-chat", chat_calls, "messages.0.tool_calls.3.function.odd"),
        ("gemini", gemini_calls, "contents.0.parts.3.functionCall.odd"),
    ],
)
def test_a_deeply_nested_unknown_member_takes_no_more_decodes(source, message, path):
    assert most([message(18)], source) == most([message(3)], source) <= 6
    _, fixes = read_message(msgspec.json.encode(message(3)), index=0)
    assert [(fix.code, fix.path) for fix in fixes] == [("field_dropped", path)]


@pytest.mark.parametrize(
    ("source", "message"),
    [(source, messages[source == "openai-responses"][1]) for source, messages in MESSAGES.items()],
    ids=MESSAGES,
)
def test_a_valid_history_takes_no_more_decodes_however_long_it_is(source, message):
    def count(times):
        document = json.dumps({VALID[source][0]: [message] * times}).encode()
        return decodes(lambda: read(document, source))

    assert count(9) == count(2) <= 2
