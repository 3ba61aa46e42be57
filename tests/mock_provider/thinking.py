"""Checks of Claude's reasoning: signatures, the blocks of the latest answer, and tool loops."""

from __future__ import annotations

from typing import Any

from mock_provider.claude_messages import REASONING, has_only_results, latest_answer, thinking_of
from mock_provider.received import Received
from mock_provider.sentences import RefusedError
from mock_provider.state import Issued
from mock_provider.values import digest_of


def value_of(block: dict[str, Any]) -> str:
    return block["data"] if block["type"] == "redacted_thinking" else block.get("signature", "")


def content_digest(block: dict[str, Any]) -> str:
    return digest_of(block.get("thinking", ""))


def issued_for(request: Received, block: dict[str, Any]) -> Issued | None:
    """Return what was issued with this value for these words on this platform, or None."""
    found = request.state.issued.get((request.party.platform, block["type"], value_of(block)))
    return found if found is not None and found.of == content_digest(block) else None


def check_thinking(request: Received, messages: list[dict[str, Any]]) -> None:
    """Refuse the first block that differs from the issued one."""
    latest = latest_answer(messages)
    for at, message in enumerate(messages):
        for place, block in enumerate(message["content"]):
            if block["type"] in REASONING:
                _check_block(request, block, f"messages.{at}.content.{place}")
        if at == latest:
            _check_latest(request, message["content"], at)
    _check_loop(request, messages, latest)


def _check_block(request: Received, block: dict[str, Any], path: str) -> None:
    if block["type"] == "thinking" and not block.get("signature"):
        raise RefusedError("unsigned", at=path)
    found = issued_for(request, block)
    if found is not None and found.family != request.facts.family and request.facts.prefix_bound:
        request.dropped[path] = "model_binding_mismatch"
        return
    if found is None or found.family != request.facts.family:
        name = "signature" if block["type"] == "thinking" else "redacted"
        raise RefusedError(name, value_of(block), at=path)


def _check_latest(request: Received, content: list[dict[str, Any]], at: int) -> None:
    """Refuse a latest answer that has some of its reasoning, and not all of it in its order."""
    blocks = [(place, block) for place, block in enumerate(content) if block["type"] in REASONING]
    found = [(place, issued) for place, block in blocks if (issued := issued_for(request, block)) is not None]
    if not found:
        return
    sent = [digest_of(value_of(block)) for _, block in blocks]
    wanted = request.state.turns[found[0][1].turn]
    if sent == wanted:
        return
    differs = next((at for at, (one, other) in enumerate(zip(sent, wanted, strict=False)) if one != other), len(wanted))
    place = blocks[min(differs, len(blocks) - 1)][0]
    raise RefusedError("modified", value_of(content[place]), at=f"messages.{at}.content.{place}")


def _check_loop(request: Received, messages: list[dict[str, Any]], latest: int) -> None:
    if not request.facts.loop_begins_with_thinking or thinking_of(request).get("type") != "enabled" or latest < 0:
        return
    content = messages[latest]["content"]
    if has_only_results(messages[-1]) and content and content[0]["type"] not in REASONING:
        raise RefusedError("bare_loop", at=f"messages.{latest}.content.0", kind=content[0]["type"])
