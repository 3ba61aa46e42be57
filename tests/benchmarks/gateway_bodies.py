"""The requests that bench_gateway sends: histories of 25 kB with tools, whole and broken, in two shapes."""

import json
from random import Random

_WORDS = "the file test build fails because of an import that was moved into another module and the caller is as before"
_TOOL = {
    "name": "read_file",
    "description": "Read a file.",
    "input_schema": {
        "type": "object",
        "properties": {"path": {"type": "string"}, "limit": {"type": "integer"}},
        "required": ["path"],
    },
}
# Messages of a body of 25 kB, with 32 calls.
LENGTH = 97
# The number of messages of the first and the last body of a conversation; 26 kB on average.
_FIRST, _LAST = 75, 121


def _messages(length, seed):
    """Return a history whose texts depend on the seed: a question, two calls with their results, an answer."""
    chance = Random(seed)  # noqa: S311  the same words in every run
    words = _WORDS.split()

    def text(count):
        return {"type": "text", "text": " ".join(chance.choices(words, k=count))}

    made = []
    while len(made) < length:
        made.append({"role": "user", "content": [text(38)]})
        for _ in range(2):
            call = f"toolu_{len(made):04d}"
            given = {"path": f"src/{len(made)}.py", "limit": 200}
            use = {"type": "tool_use", "id": call, "name": "read_file", "input": given}
            made.append({"role": "assistant", "content": [text(10), use]})
            result = {"type": "tool_result", "tool_use_id": call, "content": text(42)["text"]}
            made.append({"role": "user", "content": [result]})
        made.append({"role": "assistant", "content": [text(24)]})
    return [*made[: length - 1], {"role": "user", "content": [text(12)]}]


def _broken(messages):
    """Return a history as a client leaves it after two interruptions: two calls have no result, one text is blank."""
    kept = [message for number, message in enumerate(messages) if number not in {8, 32}]
    kept[3]["content"].insert(0, {"type": "text", "text": ""})
    return kept


def _body(messages, **more):
    return _encoded({"model": "claude-sonnet-4-5", "max_tokens": 1024, "messages": messages, "tools": [_TOOL], **more})


def _encoded(body):
    return json.dumps(body, separators=(",", ":")).encode()


def whole(seed):
    """Return a body that needs no repair, of a conversation that no other seed has."""
    return _body(_messages(LENGTH, seed))


def streaming(seed):
    """Return a small body that asks for a stream."""
    return _body(_messages(1, seed), stream=True)


def conversation(seed):
    """Return the bodies of a conversation that needs repair, oldest first; each has two messages more."""
    return [_body(_broken_copy(each)) for each in _growing(seed)]


def moving_conversation(seed):
    """Return the same bodies with a cache breakpoint in each of the last two messages, as Claude Code has them."""
    return [_body([*each[:-2], *map(_marked, each[-2:])]) for each in map(_broken_copy, _growing(seed))]


def _broken_copy(messages):
    return _broken(json.loads(json.dumps(messages)))


def _marked(message):
    *before, last = message["content"]
    return {**message, "content": [*before, {**last, "cache_control": {"type": "ephemeral"}}]}


def chat_conversation(seed):
    """Return the bodies of a conversation in the shape of Chat Completions that needs no repair, oldest first."""
    return list(map(_chat_body, _growing(seed)))


def _growing(seed):
    messages = _messages(_LAST, seed)
    return [messages[: end + 1] for end in range(_FIRST, _LAST) if messages[end]["role"] == "user"]


def chat(seed):
    """Return the whole history in the shape of Chat Completions."""
    return _chat_body(_messages(LENGTH, seed))


def _chat_body(messages):
    made = []
    for message in messages:
        blocks = {block["type"]: block for block in message["content"]}
        if "tool_result" in blocks:
            found = blocks["tool_result"]
            made.append({"role": "tool", "tool_call_id": found["tool_use_id"], "content": found["content"]})
            continue
        turn = {"role": message["role"], "content": blocks["text"]["text"]}
        if "tool_use" in blocks:
            use = blocks["tool_use"]
            function = {"name": use["name"], "arguments": json.dumps(use["input"])}
            turn["tool_calls"] = [{"id": use["id"], "type": "function", "function": function}]
        made.append(turn)
    function = {"name": _TOOL["name"], "description": _TOOL["description"], "parameters": _TOOL["input_schema"]}
    return _encoded({"model": "gpt-4o", "messages": made, "tools": [{"type": "function", "function": function}]})
