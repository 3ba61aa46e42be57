"""Accepted answers: a turn of the assistant with fresh values, in each shape.

The user's text says how many calls an answer begins with: ``[2 calls]``. Then a text answers.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from mock_provider.claude_messages import messages_of
from mock_provider.gemini import part_digest
from mock_provider.parties import Shape
from mock_provider.prefix import prefix_of
from mock_provider.received import Received, listed, members, values_in
from mock_provider.state import Issued, Item, Stored
from mock_provider.thinking import content_digest
from mock_provider.values import Mint, digest_of
from msgspec import Struct

Answer = dict[str, Any]
_WANTED = re.compile(r"\[(\d+) calls?\]")


class Making(Struct, frozen=True):
    """The parts that an answer is made from: the request, its number in the session, and whether it is a call."""

    request: Received
    mint: Mint
    number: int
    calls: bool
    chained: list[dict[str, Any]]

    @property
    def words(self) -> str:
        return f"Answer {self.number}."

    @property
    def thought(self) -> str:
        return f"I think about step {self.number}."

    def made_id(self, prefix: str) -> str:
        parts = (self.request.connection,) if self.request.party.per_connection else ()
        return self.mint.made_id(prefix, self.number, *parts)

    def issue(self, kind: str, value: str, **more: Any) -> None:
        request = self.request
        issued = Issued(family=request.facts.family, boundary=request.boundary, order=self.number, **more)
        request.state.issue(request.party.platform, kind, value, issued)


def wants_call(request: Received) -> bool:
    """Return True if the user's last text asks for more calls than have results since."""
    name = {"responses": "input", "gemini": "contents"}.get(request.party.shape, "messages")
    results, wanted = 0, 0
    for turn in listed(request.body.get(name)):
        found = [int(number) for text in _texts(turn) for number in _WANTED.findall(text)]
        if found and _is_users(turn):
            wanted, results = found[-1], 0
        results += _results(turn)
    return results < wanted


def _is_users(turn: dict[str, Any]) -> bool:
    return turn.get("role") == "user"


def _texts(turn: dict[str, Any]) -> list[str]:
    content = turn.get("content")
    if isinstance(content, str):
        return [content]
    parts = [*listed(content), *listed(turn.get("parts"))]
    return [part["text"] for part in map(members, parts) if isinstance(part.get("text"), str)]


def _results(turn: dict[str, Any]) -> int:
    return sum(
        each.get("type") in ("tool_result", "function_call_output")
        or "toolResult" in each
        or "functionResponse" in each
        or each.get("role") == "tool"
        for each in values_in(turn)
    )


def _claude_blocks(making: Making) -> list[dict[str, Any]]:
    """Return reasoning with a signature, then a call or a text. Every fifth answer thinks in redacted form too."""
    request, turn = making.request, making.made_id("msg")
    prefix = prefix_of(request, messages_of(request)) if request.facts.prefix_bound else None
    blocks: list[dict[str, Any]] = [{"type": "thinking", "thinking": making.thought}]
    if making.number % 5 == 0:
        blocks.append({"type": "redacted_thinking"})
    for index, block in enumerate(blocks):
        value = making.mint.claude_signature(request.party.platform, request.facts.family, turn, index)
        block["signature" if block["type"] == "thinking" else "data"] = value
        before = prefix.add_reasoning(value) if prefix is not None else ""
        making.issue(block["type"], value, turn=turn, of=content_digest(block), prefix=before)
    values = [block.get("signature") or block["data"] for block in blocks]
    request.state.turns[turn] = [digest_of(value) for value in values]
    if making.calls:
        return [
            *blocks,
            {"type": "tool_use", "id": making.made_id("toolu"), "name": "read", "input": {"path": f"f{making.number}"}},
        ]
    return [*blocks, {"type": "text", "text": making.words}]


def _messages(making: Making) -> Answer:
    reason = "tool_use" if making.calls else "end_turn"
    more = {} if not making.request.dropped else {"input_transformations": _transformations(making.request)}
    return {
        "id": making.made_id("msg"),
        "type": "message",
        "role": "assistant",
        "model": making.request.party.model,
        "content": _claude_blocks(making),
        "stop_reason": reason,
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
        **more,
    }


def _transformations(request: Received) -> list[dict[str, str]]:
    return [{"type": "thinking_dropped", "path": path, "reason": why} for path, why in sorted(request.dropped.items())]


def _converse(making: Making) -> Answer:
    content = [_to_converse(block) for block in _claude_blocks(making)]
    return {
        "output": {"message": {"role": "assistant", "content": content}},
        "stopReason": "tool_use" if making.calls else "end_turn",
        "usage": {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2},
    }


def _to_converse(block: dict[str, Any]) -> dict[str, Any]:
    if block["type"] == "thinking":
        return {"reasoningContent": {"reasoningText": {"text": block["thinking"], "signature": block["signature"]}}}
    if block["type"] == "redacted_thinking":
        return {"reasoningContent": {"redactedContent": block["data"]}}
    if block["type"] == "tool_use":
        return {"toolUse": {"toolUseId": block["id"], "name": block["name"], "input": block["input"]}}
    return {"text": block["text"]}


def _responses(making: Making) -> Answer:
    """Return a reasoning item with encrypted content, then a call or a message; all are stored unless refused."""
    request = making.request
    stored = request.body.get("store") is not False and not request.facts.zero_retention
    reasoning_id = making.made_id("rs")
    value = making.mint.encrypted(request.boundary, reasoning_id, making.number)
    making.issue("encrypted", value, item=reasoning_id)
    reasoning: dict[str, Any] = {"type": "reasoning", "id": reasoning_id, "summary": []}
    if "reasoning.encrypted_content" in listed(request.body.get("include")):
        reasoning["encrypted_content"] = value
    output = [reasoning, _called(making) if making.calls else _said(making)]
    for item in output:
        follows = "" if item is reasoning else reasoning_id
        request.state.items[item["id"]] = Item(
            boundary=request.boundary, connection=request.connection, type=item["type"], stored=stored, follows=follows
        )
    response_id = making.made_id("resp")
    if stored:
        sent = [members(item) for item in listed(request.body.get("input"))]
        items = [*making.chained, *sent, *output]
        request.state.responses[response_id] = Stored(boundary=request.boundary, items=items)
    return {"id": response_id, "object": "response", "status": "completed", "output": output}


def _called(making: Making) -> dict[str, Any]:
    return {
        "type": "function_call",
        "id": making.made_id("fc"),
        "call_id": making.made_id("call"),
        "name": "read",
        "arguments": f'{{"path":"f{making.number}"}}',
        "status": "completed",
    }


def _said(making: Making) -> dict[str, Any]:
    text = {"type": "output_text", "text": making.words, "annotations": []}
    return {
        "type": "message",
        "id": making.made_id("msg"),
        "role": "assistant",
        "status": "completed",
        "content": [text],
    }


def _gemini(making: Making) -> Answer:
    request = making.request
    part: dict[str, Any] = {"text": making.words}
    if making.calls:
        part = {"functionCall": {"name": "read", "args": {"path": f"f{making.number}"}}}
    value = making.mint.gemini_signature(request.party.platform, request.boundary, making.number)
    making.issue("thought", value, of=part_digest(part))
    part["thoughtSignature"] = value
    content = {"role": "model", "parts": [part]}
    return {"candidates": [{"content": content, "finishReason": "STOP", "index": 0}]}


def _chat(making: Making) -> Answer:
    message: dict[str, Any] = {"role": "assistant", "content": None if making.calls else making.words}
    if making.request.facts.wants_reasoning:
        message["reasoning_content"] = making.thought
        making.issue("reasoning", making.thought)
    if making.calls:
        function = {"name": "read", "arguments": f'{{"path":"f{making.number}"}}'}
        message["tool_calls"] = [{"id": making.made_id("call"), "type": "function", "function": function}]
    reason = "tool_calls" if making.calls else "stop"
    return {"object": "chat.completion", "choices": [{"index": 0, "message": message, "finish_reason": reason}]}


ANSWERS: Final[dict[Shape, Callable[[Making], Answer]]] = {
    "messages": _messages,
    "converse": _converse,
    "responses": _responses,
    "gemini": _gemini,
    "chat": _chat,
}
