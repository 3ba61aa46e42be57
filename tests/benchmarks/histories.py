"""A healthy history of any length, in the shapes that the sides read."""

import base64
import json
import zlib
from copy import deepcopy
from typing import Any

Message = dict[str, Any]

_PROSE = "The build fails in the second step, since the cache key names a file that the first step has moved. "


def _chunk(name, data):
    return len(data).to_bytes(4) + name + data + zlib.crc32(name + data).to_bytes(4)


_HEADER = (1024).to_bytes(4) + (768).to_bytes(4) + b"\x08\x02\0\0\0"
_PNG = b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", _HEADER) + _chunk(b"IDAT", bytes(1500)) + _chunk(b"IEND", b"")
_SCREENSHOT = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(_PNG).decode()}
_SEALED = "gAAAAAB" + "c2lnbmVk" * 40
_OUTPUT = "{:4d}  src/pipeline/worker.py  def process(self, records): return self.stage.process(records)\n"


def canonical(rounds):
    """Rounds of eight messages (a question, three calls with their results, an answer) and one more question."""
    made = [message for number in range(rounds) for message in one_round(number)]
    return [*made, {"role": "user", "content": [{"type": "text", "text": "Now answer in one line."}]}]


def one_round(number):
    """Eight messages, the user's first and the assistant's last."""
    yield {"role": "user", "content": [{"type": "text", "text": f"{number}: {_PROSE * 3}"}]}
    for step in range(3):
        call = f"toolu_{number:020d}{step:04d}"
        use = {"type": "tool_use", "id": call, "name": "read_file", "input": {"path": f"src/{step}.py", "limit": 20}}
        yield {"role": "assistant", "content": [{"type": "text", "text": _PROSE}, use]}
        output = "".join(_OUTPUT.format(line) for line in range(8))
        yield {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call, "content": output}]}
    yield {"role": "assistant", "content": [{"type": "text", "text": _PROSE * 4}]}


def with_thinking(history):
    """Signed thinking before every answer."""
    for message in history[1::2]:
        message["content"].insert(0, {"type": "thinking", "thinking": _PROSE, "signature": "c2lnbmVk" * 40})


def with_images(history):
    for message in history[::8]:
        message["content"].append({"type": "image", "source": _SCREENSHOT})


def with_blanks(history):
    """An answer in each round that begins with a blank text, as streams produce them."""
    for message in history[3::8]:
        message["content"].insert(0, {"type": "text", "text": ""})


def with_parallel_calls(history):
    """One step of each round asks three things at once, and has three results in one turn."""
    for asked, answered in zip(history[1:-1:8], history[2::8], strict=True):
        call, (result,) = asked["content"][-1], answered["content"]
        for number in (1, 2):
            other = f"{call['id']}_{number}"
            asked["content"].append(call | {"id": other})
            answered["content"].append(result | {"tool_use_id": other})


def with_cache_marks(history):
    """A breakpoint at each end of a round and at the last question, as agents leave them that never take one off."""
    for message in history[::8]:
        message["content"][-1]["cache_control"] = {"type": "ephemeral"}


def with_long_results(history):
    for message in history:
        for block in message["content"]:
            if block["type"] == "tool_result":
                block["content"] *= 10


def with_all_members(history):
    """Answers as Anthropic's client library writes them, with members that have no value."""
    for message in history[1::2]:
        for block in message["content"]:
            block.update({"citations": None} if block["type"] == "text" else {"caller": {"type": "direct"}})


KINDS = {
    "thinking": with_thinking,
    "images": with_images,
    "blanks": with_blanks,
    "parallel calls": with_parallel_calls,
    "cache marks": with_cache_marks,
    "long results": with_long_results,
    "all members": with_all_members,
}
"""Kinds of rich histories, by name."""


def of_kind(history, kind):
    made = deepcopy(history)
    KINDS[kind](made)
    return made


def issued(history, provider):
    """The same history with its thinking issued by a provider, which is the only one that takes it back."""
    made = deepcopy(history)
    for message in made:
        for block in message["content"]:
            if block["type"] == "thinking":
                block["issuer"] = {"provider": provider}
    return made


def responses_items(history):
    """The same history as items of Responses, with ids, and with encrypted reasoning before each answer."""
    items = []

    def answered(kind, prefix, **members):
        items.append({"type": kind, "id": f"{prefix}_{len(items):030d}"} | members)

    for message in history:
        for block in message["content"]:
            if block["type"] == "tool_use":
                arguments = json.dumps(block["input"])
                members = {"call_id": block["id"], "name": block["name"], "arguments": arguments}
                answered("function_call", "fc", status="completed", **members)
            elif block["type"] == "tool_result":
                call, output = block["tool_use_id"], block["content"]
                items.append({"type": "function_call_output", "call_id": call, "output": output})
            elif message["role"] == "user":
                said = [{"type": "input_text", "text": block["text"]}]
                items.append({"type": "message", "role": "user", "content": said})
            else:
                answered("reasoning", "rs", summary=[], encrypted_content=_SEALED)
                said = [{"type": "output_text", "text": block["text"], "annotations": []}]
                answered("message", "msg", status="completed", role="assistant", content=said)
    return items


def gemini_contents(history):
    """The same history as contents of Gemini, without ids of calls."""
    names = {block["id"]: block["name"] for message in history for block in message["content"] if "input" in block}

    def part(block):
        if block["type"] == "tool_use":
            return {"functionCall": {"name": block["name"], "args": block["input"]}}
        if block["type"] == "tool_result":
            response = {"result": block["content"]}
            return {"functionResponse": {"name": names[block["tool_use_id"]], "response": response}}
        return {"text": block["text"]}

    roles = {"user": "user", "assistant": "model"}
    return [{"role": roles[message["role"]], "parts": list(map(part, message["content"]))} for message in history]


def openai_chat(history):
    """The same history as OpenAI's chat shape has it, which is what LiteLLM reads."""
    return [_openai_message(message) for message in history]


def _openai_message(message):
    blocks = message["content"]
    if blocks[0]["type"] == "tool_result":
        return {"role": "tool", "tool_call_id": blocks[0]["tool_use_id"], "content": blocks[0]["content"]}
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    calls = [_openai_call(block) for block in blocks if block["type"] == "tool_use"]
    return {"role": message["role"], "content": text} | ({"tool_calls": calls} if calls else {})


def _openai_call(block):
    path, limit = block["input"]["path"], block["input"]["limit"]
    arguments = f'{{"path":"{path}","limit":{limit}}}'
    return {"id": block["id"], "type": "function", "function": {"name": block["name"], "arguments": arguments}}


def converse(history):
    """The same history as Bedrock's Converse has it, and agents that are built around it."""
    return [
        {"role": message["role"], "content": [_converse_block(b) for b in message["content"]]} for message in history
    ]


def _converse_block(block):
    if block["type"] == "tool_use":
        return {"toolUse": {"toolUseId": block["id"], "name": block["name"], "input": block["input"]}}
    if block["type"] == "tool_result":
        content = [{"text": block["content"]}]
        return {"toolResult": {"toolUseId": block["tool_use_id"], "status": "success", "content": content}}
    return {"text": block["text"]}
