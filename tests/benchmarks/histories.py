"""A healthy history of any length, in the shapes that the sides read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Message = dict[str, Any]

_PROSE = "The build fails in the second step, since the cache key names a file that the first step has moved. "
_OUTPUT = "{:4d}  src/pipeline/worker.py  def process(self, records): return self.stage.process(records)\n"


def canonical(rounds: int) -> list[Message]:
    """Rounds of eight messages (a question, three calls with their results, an answer) and one more question."""
    made = [message for number in range(rounds) for message in one_round(number)]
    return [*made, {"role": "user", "content": [{"type": "text", "text": "Now answer in one line."}]}]


def one_round(number: int) -> Iterator[Message]:
    """Eight messages, the user's first and the assistant's last."""
    yield {"role": "user", "content": [{"type": "text", "text": f"{number}: {_PROSE * 3}"}]}
    for step in range(3):
        call = f"toolu_{number:020d}{step:04d}"
        use = {"type": "tool_use", "id": call, "name": "read_file", "input": {"path": f"src/{step}.py", "limit": 20}}
        yield {"role": "assistant", "content": [{"type": "text", "text": _PROSE}, use]}
        output = "".join(_OUTPUT.format(line) for line in range(8))
        yield {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call, "content": output}]}
    yield {"role": "assistant", "content": [{"type": "text", "text": _PROSE * 4}]}


def openai_chat(history: list[Message]) -> list[Message]:
    """The same history as OpenAI's chat shape has it, which is what LiteLLM reads."""
    return [_openai_message(message) for message in history]


def _openai_message(message: Message) -> Message:
    blocks = message["content"]
    if blocks[0]["type"] == "tool_result":
        return {"role": "tool", "tool_call_id": blocks[0]["tool_use_id"], "content": blocks[0]["content"]}
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    calls = [_openai_call(block) for block in blocks if block["type"] == "tool_use"]
    return {"role": message["role"], "content": text} | ({"tool_calls": calls} if calls else {})


def _openai_call(block: Message) -> Message:
    path, limit = block["input"]["path"], block["input"]["limit"]
    arguments = f'{{"path":"{path}","limit":{limit}}}'
    return {"id": block["id"], "type": "function", "function": {"name": block["name"], "arguments": arguments}}


def converse(history: list[Message]) -> list[Message]:
    """The same history as Bedrock's Converse has it, and agents that are built around it."""
    return [
        {"role": message["role"], "content": [_converse_block(b) for b in message["content"]]} for message in history
    ]


def _converse_block(block: Message) -> Message:
    if block["type"] == "tool_use":
        return {"toolUse": {"toolUseId": block["id"], "name": block["name"], "input": block["input"]}}
    if block["type"] == "tool_result":
        content = [{"text": block["content"]}]
        return {"toolResult": {"toolUseId": block["tool_use_id"], "status": "success", "content": content}}
    return {"text": block["text"]}
