"""Requests to Claude in one form: the blocks of a Converse request as those of a Messages request, place by place."""

from __future__ import annotations

from typing import Any

from mock_provider.received import Received, listed, members

REASONING = ("thinking", "redacted_thinking")


def messages_of(request: Received) -> list[dict[str, Any]]:
    """Return the messages with their content as a list of Messages blocks, in the places in which they were sent."""
    read = _from_converse if request.party.shape == "converse" else dict
    return [{**each, "content": [read(block) for block in content_of(each)]} for each in request.body["messages"]]


def content_of(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _from_converse(block: dict[str, Any]) -> dict[str, Any]:
    if "reasoningContent" in block:
        inner = block["reasoningContent"]
        if "redactedContent" in inner:
            return {"type": "redacted_thinking", "data": inner["redactedContent"]}
        text = members(inner.get("reasoningText"))
        signed = {"signature": text["signature"]} if "signature" in text else {}
        return {"type": "thinking", "thinking": text.get("text", ""), **signed}
    if "toolUse" in block:
        call = block["toolUse"]
        return {"type": "tool_use", "id": call["toolUseId"], "name": call["name"], "input": call["input"]}
    if "toolResult" in block:
        result = block["toolResult"]
        return {"type": "tool_result", "tool_use_id": result["toolUseId"], "content": result["content"]}
    return {"type": "text", "text": block["text"]} if "text" in block else {"type": next(iter(block)), **block}


def latest_answer(messages: list[dict[str, Any]]) -> int:
    """Return the index of the last message of the assistant, or -1."""
    return max((at for at, message in enumerate(messages) if message["role"] == "assistant"), default=-1)


def has_only_results(message: dict[str, Any]) -> bool:
    return bool(message["content"]) and all(block["type"] == "tool_result" for block in message["content"])


def thinking_of(request: Received) -> dict[str, Any]:
    """Return the parameter ``thinking``, wherever the shape has it."""
    body = request.body
    held = members(body.get("additionalModelRequestFields")) if request.party.shape == "converse" else body
    return members(held.get("thinking"))


def head_of(request: Received) -> list[object]:
    """Return what comes before the messages."""
    body = request.body
    return [body.get("system"), body.get("tools"), listed(members(body.get("toolConfig")).get("tools"))]
