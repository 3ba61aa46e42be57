"""How often JSON is decoded to read one appended message: few times, also to mend it."""

import msgspec
import pytest
from counting import decodes

from pipeline.history.readers import read_message
from pipeline.testing.strategies import PNG

TEXT = {"type": "text", "text": "a"}
ODD = {"odd": 1}
CALL = {"id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ITEM = {"type": "function_call", "call_id": "t", "name": "f", "arguments": "{}"}


@pytest.mark.parametrize(
    ("message", "count"),
    [
        ({"role": "user", "content": "a"}, 1),
        ({"role": "assistant", "content": [TEXT, {"type": "tool_use", "id": "t", "name": "f", "input": {}}]}, 1),
        ({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [TEXT]}]}, 1),
        ({"role": "user", "content": [TEXT | ODD]}, 5),
        ({"role": "assistant", "content": None, "tool_calls": [CALL]}, 2),
        ({"role": "tool", "tool_call_id": "t", "content": "a"}, 1),
        ({"role": "tool", "tool_call_id": "t", "content": "a"} | ODD, 2),
        ({"role": "assistant", "content": None, "refusal": "a"}, 1),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}]}, 1),
        ({"role": "user", "content": [{"text": "a"}]}, 1),
        ({"role": "assistant", "content": [{"toolUse": {"toolUseId": "t", "name": "f", "input": {}}}]}, 1),
        ({"role": "user", "content": [{"image": {"format": "png", "source": {"bytes": PNG}}}]}, 1),
        ({"role": "user", "content": [{"text": "a"} | ODD]}, 5),
        ({"role": "user", "parts": [{"text": "a"}]}, 1),
        ({"role": "model", "parts": [{"functionCall": {"name": "f", "args": {}}, "thoughtSignature": "c2ln"}]}, 1),
        ({"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"result": "a"}}}]}, 1),
        ({"role": "user", "parts": [{"text": "a"} | ODD]}, 4),
        ({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]}, 1),
        (ITEM, 2),
        (ITEM | ODD, 5),
        ({"type": "function_call_output", "call_id": "t", "output": "a"}, 1),
        ({"type": "message", "role": "assistant", "content": "a"}, 1),
        ({"role": "user", "content": [TEXT] * 9}, 1),
        ({"role": "user", "content": [{"type": "input_text", "text": "a"}] * 9}, 1),
        ({"role": "assistant", "content": [{"text": "a"}] * 9}, 1),
        ({"role": "model", "parts": [{"text": "a"}, {"functionCall": {"name": "f", "args": {}}}] * 9}, 1),
        ({"role": "assistant", "content": "a", "reasoning_content": "b", "annotations": []}, 1),
    ],
)
def test_a_message_is_decoded_few_times(message, count):
    data = msgspec.json.encode(message)
    assert decodes(lambda: read_message(data, index=0)) == count


MANY = {
    "canonical": ("content", {"role": "user", "content": [TEXT] * 9}),
    "calls": (
        "content",
        {
            "role": "assistant",
            "content": [TEXT, {"type": "tool_use", "id": "t", "name": "f", "input": {"a": "\n"}}] * 9,
        },
    ),
    "results": (
        "content",
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "\n"}]}] * 9,
        },
    ),
    "chat": (
        "content",
        {"role": "user", "content": [TEXT, {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}}] * 9},
    ),
    "Responses": (
        "content",
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "\n"}] * 18},
    ),
    "Converse": (
        "content",
        {
            "role": "assistant",
            "content": [{"text": "\n"}, {"toolUse": {"toolUseId": "t", "name": "f", "input": {}}}] * 9,
        },
    ),
    "Converse's reasoning": (
        "content",
        {
            "role": "assistant",
            "content": [{"text": "a"}, {"reasoningContent": {"reasoningText": {"text": "a", "signature": "b"}}}] * 9,
        },
    ),
    "Converse's images": (
        "content",
        {"role": "user", "content": [{"text": "a"}, {"image": {"format": "png", "source": {"bytes": PNG}}}] * 9},
    ),
    "Converse's guarded text": (
        "content",
        {"role": "user", "content": [{"guardContent": {"text": {"text": "a"}}}, {"text": "a"}] * 9},
    ),
    "Gemini": (
        "parts",
        {"role": "model", "parts": [{"text": "\n"}, {"functionCall": {"name": "f", "args": {"a": 1}}}] * 9},
    ),
}


@pytest.mark.parametrize("name", MANY)
def test_how_many_blocks_a_message_has_does_not_count(name):
    key, message = MANY[name]
    blocks = message[key]

    def count(message):
        data = msgspec.json.encode(message)
        return decodes(lambda: read_message(data, index=0))

    assert count(message) == 1
    assert count(message | ODD) <= 6
    for blocks_of_one in (blocks, blocks * 2):
        mended = [*blocks_of_one]
        mended[4] = mended[4] | ODD
        assert count(message | {key: mended}) <= 12
