"""Reasoning that is bound to all that came before it: system prompt, tools, messages, and earlier reasoning."""

from __future__ import annotations

from typing import Any

from mock_provider.claude_messages import REASONING, head_of, thinking_of
from mock_provider.received import Received
from mock_provider.sentences import RefusedError
from mock_provider.thinking import issued_for, value_of
from mock_provider.values import digest_of


def unmarked(value: Any) -> Any:
    """Return a value without cache breakpoints and without reasoning."""
    if isinstance(value, list):
        return [unmarked(each) for each in value if not _is_left_out(each)]
    if isinstance(value, dict):
        return {name: unmarked(each) for name, each in value.items() if name != "cache_control"}
    return value


def _is_left_out(value: object) -> bool:
    return isinstance(value, dict) and ("cachePoint" in value or value.get("type") in REASONING)


class Prefix:
    """The digest of what came so far: a head and messages, then reasoning by reasoning."""

    def __init__(self, head: list[object]) -> None:
        self._head = head
        self._before: list[object] = []
        self._reasoning: list[str] = []

    def add_reasoning(self, value: str) -> str:
        """Return the digest of what comes before this reasoning, and add it."""
        found = digest_of([unmarked(self._head), self._before, self._reasoning])
        self._reasoning.append(digest_of(value))
        return found

    def add_message(self, message: dict[str, Any]) -> None:
        self._before.append([message["role"], unmarked(message["content"])])


def prefix_of(request: Received, messages: list[dict[str, Any]]) -> Prefix:
    """Return the prefix of the next answer."""
    prefix = Prefix(head_of(request))
    for at, message in enumerate(messages):
        for place, block in enumerate(message["content"]):
            if block["type"] in REASONING and f"messages.{at}.content.{place}" not in request.dropped:
                prefix.add_reasoning(value_of(block))
        prefix.add_message(message)
    return prefix


def check_prefix(request: Received, messages: list[dict[str, Any]]) -> None:
    """Refuse, or leave out, reasoning from the first block on that follows something else than it was issued after."""
    if not request.facts.prefix_bound:
        return
    binding = thinking_of(request).get("block_binding")
    if binding is not None and request.wording != "block_binding":
        raise RefusedError("block_binding")
    prefix = Prefix(head_of(request))
    is_broken = False
    for at, message in enumerate(messages):
        for place, block in enumerate(message["content"]):
            path = f"messages.{at}.content.{place}"
            if block["type"] not in REASONING or path in request.dropped:
                continue
            issued = issued_for(request, block)
            is_broken = is_broken or issued is None or prefix.add_reasoning(value_of(block)) != issued.prefix
            if is_broken and binding is None:
                raise RefusedError("prefix", value_of(block), at=path)
            if is_broken:
                request.dropped[path] = "prefix_binding_mismatch"
        prefix.add_message(message)
