"""The slow path: items that msgspec's typed decode refuses, read tolerantly, every misfit named by its rule.

A message without its ``type`` takes this path as well: the decode cannot tell it from the other items.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.rules._openai import Misfits, bracketed, kind, listing
from pipeline.rules._shape import Hole, Spot, fit
from pipeline.rules.base import Violation
from pipeline.rules.openai_responses import catalogue as rules
from pipeline.rules.openai_responses.wire import KINDS, PARTS, ROLES, Item

_OUTPUT_PARTS = listing(("input_text", "input_image", "input_file"))
_SUPPORTED = {
    "[]": listing(tuple(KINDS.values())),
    "message.role": listing(ROLES),
    "message.content[]": listing(PARTS),
    "function_call_output.output[]": _OUTPUT_PARTS,
    "custom_tool_call_output.output[]": _OUTPUT_PARTS,
}
_CONTENT = "one of an array of objects or string"
_WANTED = {
    "message.content": _CONTENT,
    "function_call_output.output": _CONTENT,
    "custom_tool_call_output.output": _CONTENT,
}


def read_items(values: Sequence[object], index: int) -> tuple[list[Item | None], list[Violation]]:
    """Make items of JSON values, the first being number ``index``; None is one that could not be read."""
    found: list[Violation] = []
    misfits = Misfits(
        found,
        missing=rules.MISSING,
        wrong_type=rules.SHAPE,
        unsupported=rules.PART,
        extra=rules.EXTRA_KEY,
        supported=_SUPPORTED,
        wanted=_WANTED,
        own={("message.role", "tag"): rules.ROLE, ("[]", "tag"): rules.KIND},
    )
    return [_read_item(value, at, misfits) for at, value in enumerate(values, index)], found


def _read_item(value: object, index: int, misfits: Misfits) -> Item | None:
    path = f"input.{index}"
    if not isinstance(value, dict):
        shape = rules.SHAPE.broken(path, at=bracketed(path), wanted="an object", got=kind(value))
        misfits.found.append(shape)
        return None
    if "type" not in value:
        value = {"type": "message", **value}
    item = fit(value, Item, Spot(path, path), misfits.at(value, path))
    return None if isinstance(item, Hole) else item  # type: ignore[return-value]  # fit makes what it was asked for
