"""The slow path: messages that the typed decode refuses, read tolerantly, every misfit named by its rule."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pipeline.rules._shape import Hole, Misfit, Spot, fit
from pipeline.rules.base import Violation
from pipeline.rules.bedrock_converse import catalogue as rules
from pipeline.rules.bedrock_converse.catalogue import member
from pipeline.rules.bedrock_converse.wire import Anything, Block, Message

# Stands where a block could not be read and was reported; it breaks no rule of its own.
_UNREAD = Block(cachePoint=Anything())


def read_messages(values: Sequence[object], index: int) -> tuple[list[Message | None], list[Violation]]:
    """Make messages of JSON values, the first being number ``index``; None is one that could not be read."""
    found: list[Violation] = []
    return [_read_message(value, f"messages.{at}", found) for at, value in enumerate(values, index)], found


def _read_message(value: object, path: str, found: list[Violation]) -> Message | None:
    try:
        return msgspec.convert(value, Message)
    except (msgspec.ValidationError, UnicodeEncodeError):  # a lone surrogate
        return _fit_message(value, path, found)


def _fit_message(value: object, path: str, found: list[Violation]) -> Message | None:
    def report(spot: Spot, misfit: Misfit, words: str) -> None:
        name = spot.path.rpartition(".")[2]
        if misfit == "extra":
            found.append(rules.EXTRA.broken(spot.path))
        elif misfit == "missing":
            found.append(rules.MISSING.broken(spot.path, at=member(spot.path)))
        elif name in ("input", "json"):
            found.append(rules.NOT_OBJECT.broken(spot.path))
        else:
            found.append(rules.SHAPE.broken(spot.path, words=words))

    spot = Spot(path, path)
    if not isinstance(value, dict) or not isinstance(value.get("content"), list):
        message = fit(value, Message, spot, report)
        return message if isinstance(message, Message) else None
    message = fit({**value, "content": []}, Message, spot, report)
    blocks = [fit(block, Block, spot.field("content").field(at), report) for at, block in enumerate(value["content"])]
    if not isinstance(message, Message):
        return None
    content = [_UNREAD if isinstance(block, Hole) else block for block in blocks if isinstance(block, Hole | Block)]
    return Message(message.role, content)
