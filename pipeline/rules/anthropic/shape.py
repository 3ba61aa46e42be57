"""The slow path: messages that msgspec's typed decode refuses, read tolerantly, every misfit named by its rule."""

from __future__ import annotations

from msgspec.structs import replace

from pipeline.rules._shape import Misfit, Spot, fit
from pipeline.rules.anthropic import catalogue as rules
from pipeline.rules.anthropic.wire import Block, Message
from pipeline.rules.base import Rule, Violation

# Where a misfit has a rule of its own: place in the wire structs, and what is wrong there.
_OWN_RULES: dict[tuple[str, Misfit], Rule] = {
    ("role", "type"): rules.ROLE,
    ("tool_use.input", "type"): rules.CALL_INPUT,
    ("tool_result.tool_use_id", "missing"): rules.RESULT_ID,
    ("thinking.signature", "missing"): rules.SIGNATURE,
    ("thinking.thinking", "missing"): rules.THINKING_FIELD,
    ("thinking.cache_control", "extra"): rules.CACHED_THINKING,
}
_RULES: dict[Misfit, Rule] = {
    "missing": rules.SHAPE,
    "type": rules.SHAPE,
    "extra": rules.EXTRA_KEY,
    "tag": rules.BLOCK_TYPE,
}


def read_messages(values: list[object], index: int) -> tuple[list[Message | None], list[Violation]]:
    """Make messages of JSON values, the first being number ``index``; None is one that could not be read."""
    found: list[Violation] = []
    return [_read_message(value, at, found) for at, value in enumerate(values, index)], found


def _read_message(value: object, index: int, found: list[Violation]) -> Message | None:
    path = f"messages.{index}"
    if not isinstance(value, dict):
        found.append(rules.MESSAGE_SHAPE.broken(path))
        return None

    def report(spot: Spot, misfit: Misfit, words: str) -> None:
        rule = _OWN_RULES.get((spot.place, misfit), _RULES[misfit])
        found.append(rule.broken(spot.path, at=spot.at, words=words))

    content = value.get("content")
    if not isinstance(content, list):
        message = fit(value, Message, Spot(path, path), report)
        return message if isinstance(message, Message) else None
    message = fit({**value, "content": []}, Message, Spot(path, path), report)
    spots = (Spot(f"{path}.content.{at}", f"{path}.content.{at}") for at in range(len(content)))
    blocks = [fit(block, Block, spot, report) for block, spot in zip(content, spots, strict=True)]
    if not isinstance(message, Message):
        return None
    return replace(message, content=blocks)
