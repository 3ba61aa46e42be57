"""Which schemas the providers compile for strict tools; another one is sent without ``strict``, and stays as it is.

Without strict mode the provider does not bind the model to the schema; every valid call stays valid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

_MAPS: Final = ("properties", "$defs", "definitions")
_LISTS: Final = ("anyOf", "allOf", "oneOf")
# What OpenAI does not compile (OAI-24).
_OUTSIDE: Final = frozenset({"allOf", "oneOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas"})
# What Claude's compiler does not take of numbers and lists (ANT-47).
_BOUNDS: Final = frozenset({"exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf", "maxItems"})
_MOST_UNIONS: Final = 16
MOST_STRICT: Final = 20
"""The strict tools of one request to Claude."""


def is_strict(value: Raw | None) -> bool:
    return value is not None and bytes(value) == b"true"


def openai_compiles(schema: Raw) -> bool:
    """Return True if each object is closed and requires all of its properties, within OpenAI's subset."""
    return all(_fits_openai(node) for node in _nodes(schema))


def claude_compiles(schema: Raw) -> bool:
    """Return True if each object is closed and nothing refers to itself, within Claude's subset."""
    several = 0
    for node in _nodes(schema):
        several += isinstance(node.get("type"), list) or "anyOf" in node
        if not _fits_claude(node) or several > _MOST_UNIONS:
            return False
    return True


def _fits_openai(node: Mapping[str, Any]) -> bool:
    properties = node.get("properties")
    if (node.get("type") == "object" or properties is not None) and node.get("additionalProperties") is not False:
        return False
    required = node.get("required")
    listed = required if isinstance(required, list) else ()
    if isinstance(properties, dict) and any(name not in listed for name in properties):
        return False
    return _OUTSIDE.isdisjoint(node) and not (node.get("type") == "array" and "items" not in node)


def _fits_claude(node: Mapping[str, Any]) -> bool:
    kind, least = node.get("type"), node.get("minItems")
    if kind == "object" and node.get("additionalProperties") is not False:
        return False
    # Definitions that refer to each other are rare, and only those without references are surely no circle.
    inside = node.get("$defs", node.get("definitions"))
    if isinstance(inside, dict) and any(b'"$ref"' in msgspec.json.encode(each) for each in inside.values()):
        return False
    return _BOUNDS.isdisjoint(node) and not (isinstance(least, int) and least > 1)


def _nodes(schema: Raw) -> Iterator[Mapping[str, Any]]:
    """Yield a schema and all schemas inside."""
    waiting: list[Any] = [msgspec.json.decode(schema)]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, dict):
            continue
        yield node
        waiting.append(node.get("items"))
        for key in _MAPS:
            waiting += node[key].values() if isinstance(node.get(key), dict) else ()
        for key in _LISTS:
            waiting += node[key] if isinstance(node.get(key), list) else ()
