"""Clients that heal as programs did before: all reasoning goes after a refusal, and the request is sent once more."""

from __future__ import annotations

import json
from typing import Any

from mock_provider.body_agent import BodyAgent
from mock_provider.client_shapes import Entry
from mock_provider.received import listed, members

_REASONING = ("thinking", "redacted_thinking")
_SIGNED = ("thoughtSignature", "reasoning_content")


class StrippingAgent(BodyAgent):
    """A client that keeps what it left out: later requests do not have it."""

    def refused(self, status: int, error: Any, attempt: int) -> bytes | None:
        before = self.request()
        self._body[self._shape.turns] = without_reasoning(self._body[self._shape.turns])
        after = self.request()
        return None if after == before else after


class ForgetfulAgent(BodyAgent):
    """A client that sends one request without reasoning, and the next with all of it again."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._stripped: bytes | None = None

    def request(self) -> bytes:
        given, self._stripped = self._stripped, None
        return given or super().request()

    def refused(self, status: int, error: Any, attempt: int) -> bytes | None:
        before = super().request()
        body = {**self._body, self._shape.turns: without_reasoning(self._body[self._shape.turns])}
        after = json.dumps(body, ensure_ascii=False).encode()
        if after == before or self._was_stripped:
            return None
        self._stripped, self._was_stripped = after, True
        return after

    _was_stripped = False

    def say(self, *entries: Entry) -> None:
        self._was_stripped = False
        super().say(*entries)


def without_reasoning(entries: list[Entry]) -> list[Entry]:
    """Return a history without reasoning, signatures and ids of items."""
    kept = []
    for entry in entries:
        if entry.get("type") == "reasoning":
            continue
        left = {name: value for name, value in entry.items() if name not in ("id", *_SIGNED)}
        for name in ("content", "parts"):
            if isinstance(left.get(name), list):
                left[name] = [_unsigned(part) for part in left[name] if not is_reasoning(part)]
        kept.append(left)
    return kept


def _unsigned(part: Entry) -> Entry:
    return {name: value for name, value in part.items() if name not in _SIGNED}


def is_reasoning(part: Any) -> bool:
    return members(part).get("type") in (*_REASONING, "reasoning") or "reasoningContent" in members(part)


def reasoning_in(entries: list[Entry]) -> list[Entry]:
    """Return the reasoning of a history."""
    parts = [part for entry in entries for part in [entry, *listed(entry.get("content")), *listed(entry.get("parts"))]]
    return [part for part in parts if is_reasoning(part) or any(name in part for name in _SIGNED)]
