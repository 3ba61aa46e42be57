"""Repairs for look-alikes of Chat Completions that have rules of their own for reasoning."""

from __future__ import annotations

from reknit.pipeline.healing.body import RefusedBody
from reknit.pipeline.healing.errors import Refusal

Words = dict[str, str]


def disable_thinking(body: RefusedBody, _words: Words, _refusal: Refusal) -> None:
    """Switch thinking off: the reasoning that DeepSeek requires is not known."""
    if body.value.get("thinking") != {"type": "disabled"}:
        body.value["thinking"] = {"type": "disabled"}
        body.note("thinking", "disabled")


def disable_in_loop(body: RefusedBody, words: Words, refusal: Refusal) -> None:
    """Switch thinking off while the open tool loop has a call without its reasoning."""
    spoken = max((at for at, turn in enumerate(body.turns) if turn.get("role") == "user"), default=-1)
    loop = body.turns[spoken + 1 :]
    if any(turn.get("tool_calls") and not turn.get("reasoning_content") for turn in loop):
        disable_thinking(body, words, refusal)


def add_empty_reasoning(body: RefusedBody, _words: Words, _refusal: Refusal) -> None:
    """Add an empty ``reasoning_content`` to every message with calls: Kimi requires the member, not its text."""
    for at, turn in enumerate(body.turns):
        if turn.get("role") == "assistant" and turn.get("tool_calls") and "reasoning_content" not in turn:
            turn["reasoning_content"] = ""
            body.note(f"messages.{at}.reasoning_content", "empty")


def let_choose(body: RefusedBody, _words: Words, _refusal: Refusal) -> None:
    """Let the model choose its tool: DeepSeek forces none while it thinks."""
    if body.value.get("tool_choice") not in (None, "auto", "none"):
        body.value["tool_choice"] = "auto"
        body.note("tool_choice", "auto")
