"""The slow path: messages that msgspec's typed decode refuses, read tolerantly, every misfit named by its rule."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.rules._openai import Misfits, bracketed, kind, listing
from pipeline.rules._shape import Spot, fit
from pipeline.rules.base import Violation
from pipeline.rules.openai_chat import catalogue as rules
from pipeline.rules.openai_chat.wire import PARTS, ROLES, Message

_SUPPORTED = {
    "role": listing(ROLES),
    "content[]": listing(PARTS),
    "tool_calls[]": listing(("function", "custom")),
}
_WANTED = {
    "content": "one of a string or array of objects",
    "image_url.image_url.url": "a base64-encoded data URL",
}


def read_messages(values: Sequence[object], index: int) -> tuple[list[Message | None], list[Violation]]:
    """Make messages of JSON values, the first being number ``index``; None is one that could not be read."""
    found: list[Violation] = []
    misfits = Misfits(
        found,
        missing=rules.MISSING,
        wrong_type=rules.SHAPE,
        unsupported=rules.KIND,
        extra=None,
        supported=_SUPPORTED,
        wanted=_WANTED,
        own={("role", "tag"): rules.ROLE, ("function.function.arguments", "type"): rules.ARGUMENTS},
    )
    return [_read_message(value, at, misfits) for at, value in enumerate(values, index)], found


def _read_message(value: object, index: int, misfits: Misfits) -> Message | None:
    path = f"messages.{index}"
    if not isinstance(value, dict):
        shape = rules.SHAPE.broken(path, at=bracketed(path), wanted="an object", got=kind(value))
        misfits.found.append(shape)
        return None
    message = fit(value, Message, Spot(path, path), misfits.at(value, path))
    return message if isinstance(message, Message) else None
