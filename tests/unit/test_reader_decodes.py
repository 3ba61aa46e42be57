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
        ({"role": "user", "content": [{"image": {"format": "png", "source": {"bytes": PNG}}}]}, 2),
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
