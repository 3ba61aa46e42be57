"""The slow path: contents that the typed decode refuses, read tolerantly, every misfit named by its rule."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from pipeline.rules._shape import Hole, Misfit, Spot, fit
from pipeline.rules.base import Violation
from pipeline.rules.gemini import catalogue as rules
from pipeline.rules.gemini.wire import FREE, RENAMED, Content, Part, snake

_NUMBER = re.compile(r"\.(\d+)")
_KINDS = {
    "Input should be a valid string": "TYPE_STRING",
    "Input should be a valid boolean": "TYPE_BOOL",
    "Input should be a valid list": "TYPE_LIST",
}


def place(path: str) -> str:
    """Write a path as the API does: ``contents.0.functionCall`` is ``contents[0].function_call``."""
    return snake(_NUMBER.sub(r"[\1]", path))


def read_contents(values: Sequence[object], index: int) -> tuple[list[Content | None], list[Violation]]:
    """Make contents of JSON values, the first being number ``index``; None is one that could not be read."""
    found: list[Violation] = []
    return [_read_content(rename(value), f"contents.{at}", found) for at, value in enumerate(values, index)], found


def rename(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Give the fields of a content their names in camel case; a part that stands alone becomes a list, as there."""
    if isinstance(value, list):
        return [rename(item) for item in value]
    if not isinstance(value, dict):
        return value
    named = {RENAMED.get(name, name): inner for name, inner in value.items()}
    renamed = {name: inner if name in FREE else rename(inner) for name, inner in named.items()}
    if isinstance(renamed.get("parts"), dict):
        renamed["parts"] = [renamed["parts"]]
    return renamed


def _read_content(value: object, path: str, found: list[Violation]) -> Content | None:
    try:
        return msgspec.convert(value, Content)
    except (msgspec.ValidationError, UnicodeEncodeError):  # a lone surrogate
        return _fit_content(value, path, found)


def _fit_content(value: object, path: str, found: list[Violation]) -> Content | None:
    def report(spot: Spot, misfit: Misfit, words: str) -> None:
        above, _, name = spot.path.rpartition(".")
        if misfit == "extra":
            found.append(rules.UNKNOWN_NAME.broken(spot.path, at=place(above), name=name))
        elif name in ("args", "response"):
            found.append(rules.STRUCT.broken(spot.path, at=place(spot.path)))
        elif name == "role":
            found.append(rules.ROLE.broken(spot.path))
        else:
            found.append(rules.SHAPE.broken(spot.path, at=place(spot.path), kind=_KINDS.get(words, "an object")))

    spot = Spot(path, path)
    if not isinstance(value, dict) or not isinstance(value.get("parts"), list):
        content = fit(value, Content, spot, report)
        return content if isinstance(content, Content) else None
    content = fit({**value, "parts": None}, Content, spot, report)
    parts = [fit(part, Part, spot.field("parts").field(at), report) for at, part in enumerate(value["parts"])]
    role = content.role if isinstance(content, Content) else None
    # A part that could not be read was reported; an odd one in its place says nothing more.
    return Content(
        role, [_UNREAD if isinstance(part, Hole) else part for part in parts if isinstance(part, Hole | Part)]
    )


_UNREAD = Part(text="-")
