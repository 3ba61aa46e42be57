"""Which schemas the providers compile for strict tools; another one is sent without ``strict``, and stays as it is.

Without strict mode the provider does not bind the model to the schema; every valid call stays valid.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from reknit.pipeline.targets.schemas import inner_schemas
from reknit.pipeline.targets.strict_schemas import is_complete_alone

# Keywords that OpenAI does not compile (OAI-24).
_OUTSIDE: Final = frozenset({"allOf", "oneOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas"})
# Keywords of numbers and lists that Claude's compiler refuses (ANT-47).
_BOUNDS: Final = frozenset({"exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf", "maxItems"})
# The parameters of several types in all strict schemas of a request (ANT-47c).
_MOST_UNIONS: Final = 16
# The strict tools of one request to Claude (ANT-47b).
_MOST_STRICT: Final = 20


def is_strict(value: Raw | None) -> bool:
    return value is not None and bytes(value) == b"true"


def openai_compiles(schema: Raw) -> bool:
    """Return True if each object is closed and requires all of its properties, within OpenAI's subset."""
    return all(_fits_openai(node) for node in _nodes(schema))


class StrictTools:
    """The strict tools of one request to Claude so far: together they have limits."""

    def __init__(self) -> None:
        self._tools = 0
        self._unions = 0

    def take(self, schema: Raw) -> bool:
        """Count one more strict tool, and return True, if its schema is compiled.

        Each of its objects is closed, nothing refers to itself, and all of it is in Claude's subset.
        """
        nodes = _nodes(schema)
        unions = self._unions + sum(isinstance(node.get("type"), list) or "anyOf" in node for node in nodes)
        if self._tools == _MOST_STRICT or unions > _MOST_UNIONS or not all(map(_fits_claude, nodes)):
            return False
        self._tools, self._unions = self._tools + 1, unions
        return True


def _fits_openai(node: Mapping[str, Any]) -> bool:
    lists_anything = node.get("type") == "array" and "items" not in node
    return is_complete_alone(node) and _OUTSIDE.isdisjoint(node) and not lists_anything


def _fits_claude(node: Mapping[str, Any]) -> bool:
    kind, least = node.get("type"), node.get("minItems")
    if kind == "object" and node.get("additionalProperties") is not False:
        return False
    # Definitions that refer to each other are rare, and only those without references are surely no circle.
    inside = node.get("$defs", node.get("definitions"))
    if isinstance(inside, dict) and any(b'"$ref"' in msgspec.json.encode(each) for each in inside.values()):
        return False
    return _BOUNDS.isdisjoint(node) and not (isinstance(least, int) and least > 1)


def _nodes(schema: Raw) -> list[dict[str, Any]]:
    """A schema and all schemas inside."""
    given: Any = msgspec.json.decode(schema)
    return [given, *inner_schemas(given)] if isinstance(given, dict) else []
