"""What only the end of a request shows: the last message, and counts over all of it."""

from __future__ import annotations

from msgspec import UNSET

from pipeline.rules.anthropic import catalogue as rules
from pipeline.rules.anthropic.images import IMAGE_TOO_WIDE, MANY_IMAGES
from pipeline.rules.anthropic.state import State
from pipeline.rules.anthropic.turns import Turns, first_kind
from pipeline.rules.anthropic.wire import Message, RedactedThinking, Text, Thinking
from pipeline.rules.base import Severity, Violation

_THINKING_KINDS = ("thinking", "redacted_thinking")


def judge_end(state: State) -> list[Violation]:
    """Judge the end of the messages and the counts; the state stays as it is."""
    found: list[Violation] = []
    last, markers = state.last, state.head.markers + state.markers
    if not state.index:
        found.append(rules.NO_MESSAGES.broken("messages"))
    Turns(state, found).close(last, state.last_at)
    if last is not None and last.role == "assistant" and last.content is not UNSET:
        _judge_final_assistant(state, last, found)
    _judge_loop(state, found)
    if state.tool_blocks and not state.head.tools:
        found.append(rules.NO_TOOLS.broken("tools"))
    if markers > rules.MARKERS:
        found.append(rules.TOO_MANY_MARKERS.broken("", count=markers))
    if state.images > MANY_IMAGES:
        found.extend(IMAGE_TOO_WIDE.broken(path, at=at) for path, at in state.wide)
    return found


def _judge_final_assistant(state: State, last: Message, found: list[Violation]) -> None:
    """Judge a request that ends with the assistant's words, for the model to go on from."""
    path = f"messages.{state.last_at}"
    takes = state.head.family.prefill
    # A server tool's call that still waits for its result is a paused turn, which every model goes on with.
    if not takes and not state.run.servers:
        found.append(rules.PREFILL.broken(path, "model" if takes is None else "hard"))
    content, text = last.content, ""
    if isinstance(content, str):
        text = content
    elif isinstance(content, list):
        text = content[-1].text if content and isinstance(content[-1], Text) else ""
        if state.head.thinking in ("", "disabled"):
            found.extend(
                rules.THINKING_OFF.broken(f"{path}.content.{at}")
                for at, block in enumerate(content)
                if isinstance(block, Thinking | RedactedThinking)
            )
    if text[-1:].isspace():
        found.append(rules.TRAILING_SPACE.broken(f"{path}.content"))


def _judge_loop(state: State, found: list[Violation]) -> None:
    """With thinking enabled, the assistant turn that the model goes on with starts with thinking."""
    run = state.run
    going_on = run.role == "assistant" or (run.role == "user" and run.results)
    required = state.head.family.thinking_first
    if state.head.thinking != "enabled" or not going_on or run.loop is None or required is False:
        return
    index, message = run.loop
    kind = first_kind(message)
    if kind not in _THINKING_KINDS:
        severity: Severity = "model" if required is None else "hard"
        path = f"messages.{index}.content.0"
        found.append(rules.THINKING_FIRST.broken(path, severity, at=f"{path}.type", kind=kind))
