"""Checks of look-alikes of Chat Completions that want their reasoning back."""

from __future__ import annotations

from typing import Any

from mock_provider.received import Received, listed, members
from mock_provider.sentences import RefusedError


def check_echo(request: Received) -> None:
    """Refuse calls without their reasoning: DeepSeek those of the current loop, Kimi all."""
    how = request.facts.wants_reasoning
    if not how or members(request.body.get("thinking")).get("type") == "disabled":
        return
    messages = [members(message) for message in listed(request.body.get("messages"))]
    begin = max((at for at, message in enumerate(messages) if message.get("role") == "user"), default=0)
    for at, message in enumerate(messages):
        if message.get("role") != "assistant" or not message.get("tool_calls"):
            continue
        if how == "exact" and at > begin and not _is_issued(request, message):
            raise RefusedError("deepseek")
        if how == "member" and "reasoning_content" not in message:
            raise RefusedError("kimi", index=at)


def _is_issued(request: Received, message: dict[str, Any]) -> bool:
    value = message.get("reasoning_content")
    return (request.party.platform, "reasoning", str(value)) in request.state.issued
