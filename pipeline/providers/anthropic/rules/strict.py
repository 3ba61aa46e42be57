"""Schemas that Claude's answers are bound to, as the provider compiles them, in the compiler's words.

Tools that are ``strict`` and the format of an answer have such schemas. Lengths of strings are taken (recorded on
Bedrock), although the documentation says that they are not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from reknit.pipeline.rules._schemas import placed_schemas

OPEN: Final = "For 'object' type, 'additionalProperties' must be explicitly set to false"
CIRCLE: Final = (
    "Invalid schema: Circular reference detected in schema definitions: {circle}. Self-referencing or "
    "mutually-referencing definitions are not supported."
)
MOST_TOOLS: Final = 20
MOST_UNIONS: Final = 16
MOST_OPTIONAL: Final = 23

_BOUNDS: Final[Mapping[str, tuple[str, ...]]] = {
    "array": ("maxItems",),
    "integer": ("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"),
    "number": ("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"),
}
_DEFINITIONS: Final = ("$defs", "definitions")


def schema_fault(schema: object) -> str:
    """Return the first refusal of the compiler; "" for a schema that it takes."""
    circle = _circle(schema)
    if circle:
        return CIRCLE.format(circle=" -> ".join(circle))
    return next(filter(None, (_fault(node) for node in nodes(schema))), "")


def unions(schema: object) -> int:
    """Return the number of parameters with several types."""
    return sum(isinstance(node.get("type"), list) or "anyOf" in node for node in nodes(schema))


def optional(schema: object) -> int:
    """Return the number of properties that are not required."""
    return sum(
        name not in (node["required"] if isinstance(node.get("required"), list) else ())
        for node in nodes(schema)
        if isinstance(node.get("properties"), Mapping)
        for name in node["properties"]
    )


def nodes(schema: object) -> Iterator[Mapping[str, Any]]:
    """Return a schema and all schemas inside, in the order of the text."""
    return (node for _, node in placed_schemas(schema))


def _fault(node: Mapping[str, Any]) -> str:
    kind = node.get("type")
    if not isinstance(kind, str):
        return ""
    if kind == "object" and node.get("additionalProperties") is not False:
        return OPEN
    refused = [name for name in _BOUNDS.get(kind, ()) if node.get(name) is not None]
    if refused:
        names = f"properties {', '.join(refused)} are" if len(refused) > 1 else f"property '{refused[0]}' is"
        return f"For '{kind}' type, {names} not supported"
    least = node.get("minItems")
    if kind == "array" and isinstance(least, int) and least > 1:
        return f"For 'array' type, 'minItems' values other than 0 or 1 are not supported (got: [{least}])"
    return ""


def _circle(schema: object) -> list[str]:
    """Return the names of definitions that lead back to the first of them; an empty list without such a circle."""
    if not isinstance(schema, Mapping):
        return []
    refers: dict[str, list[str]] = {}
    for key in _DEFINITIONS:
        if isinstance(schema.get(key), Mapping):
            refers |= {name: _references(inner) for name, inner in schema[key].items()}
    for name in refers:
        trail = _trail(name, refers)
        if trail:
            return trail
    return []


def _trail(start: str, refers: Mapping[str, list[str]]) -> list[str]:
    """Return the shortest way from a definition to itself."""
    came: dict[str, str] = {}
    waiting = [start]
    for name in waiting:
        for other in refers.get(name, ()):
            if other == start:
                way = [start, name] if name != start else [start]
                while way[-1] != start:
                    way.append(came[way[-1]])
                return [start, *reversed(way[1:-1] if len(way) > 1 else []), start]
            if other not in came and other in refers:
                came[other] = name
                waiting.append(other)
    return []


def _references(schema: object) -> list[str]:
    found = (node.get("$ref") for node in nodes(schema))
    return [name.rpartition("/")[2] for name in found if isinstance(name, str) and name.startswith("#/")]
