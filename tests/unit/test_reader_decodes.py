"""How often JSON is decoded to read one appended message: twice at most where it is healthy, five times to mend it."""

import json

import msgspec
import pytest
from counting import decodes

from pipeline.history.readers import read_message
from pipeline.testing.strategies import PNG

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
    """The most decodes that one of these messages takes, whether its shape is named or not."""

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
def test_an_unknown_member_deep_within_takes_no_more_decodes_for_what_stands_beside_it(source, message, path):
    assert most([message(18)], source) == most([message(3)], source) <= 6
    _, fixes = read_message(msgspec.json.encode(message(3)), index=0)
    assert [(fix.code, fix.path) for fix in fixes] == [("field_dropped", path)]
