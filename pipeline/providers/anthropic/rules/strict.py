"""The schemas that Claude takes for strict tools and for answers: its compiler knows a part of JSON Schema."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

STRICT_TOOLS = 20
UNIONS = 16

_ONE = ("items", "additionalProperties", "not", "contains")
_LISTS = ("anyOf", "allOf", "oneOf", "prefixItems")
_NAMED = ("properties", "$defs", "definitions", "patternProperties")
_DEFINITIONS = ("#/$defs/", "#/definitions/")


def fault_in(schema: dict[str, Any]) -> str:
    """Say why the compiler refuses the schema of a tool, in the provider's words; nothing if no fault is known."""
    return limit_in(schema) or _circle(schema)


def limit_in(schema: dict[str, Any]) -> str:
    """Say which limit of a schema the compiler refuses."""
    least: list[int] = []
    for each in _schemas_in(schema):
        kind = each.get("type")
        if "maxItems" in each:
            return "For 'array' type, property 'maxItems' is not supported"
        if "multipleOf" in each and isinstance(kind, str):
            return f"For '{kind}' type, property 'multipleOf' is not supported"
        if isinstance(each.get("minItems"), int) and each["minItems"] not in (0, 1):
            least.append(each["minItems"])
    if not least:
        return ""
    return f"For 'array' type, 'minItems' values other than 0 or 1 are not supported (got: {sorted(set(least))})"


def _circle(schema: dict[str, Any]) -> str:
    circle = _circle_in(schema)
    if not circle:
        return ""
    return (
        f"Invalid schema: Circular reference detected in schema definitions: {' -> '.join(circle)}. "
        "Self-referencing or mutually-referencing definitions are not supported."
    )


def unions_in(schema: dict[str, Any]) -> int:
    """The number of parameters with more than one type."""
    return sum("anyOf" in each or isinstance(each.get("type"), list) for each in _schemas_in(schema))


def _schemas_in(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    waiting = [schema]
    while waiting:
        each = waiting.pop()
        yield each
        waiting += [each[key] for key in _ONE if isinstance(each.get(key), dict)]
        for key in _LISTS:
            listed = each.get(key)
            waiting += [value for value in listed if isinstance(value, dict)] if isinstance(listed, list) else []
        for key in _NAMED:
            named = each.get(key)
            waiting += [value for value in named.values() if isinstance(value, dict)] if isinstance(named, dict) else []


def _circle_in(schema: dict[str, Any]) -> list[str]:
    """The names of definitions that lead back to the first of them; none if no definition does."""
    definitions: dict[str, Any] = {}
    for key in ("$defs", "definitions"):
        definitions |= schema[key] if isinstance(schema.get(key), dict) else {}
    leads = {name: list(_names_in(value)) for name, value in definitions.items() if isinstance(value, dict)}
    for name in leads:
        waiting, seen = [[name]], {name}
        while waiting:
            way = waiting.pop()
            for following in leads.get(way[-1], ()):
                if following == name:
                    return [*way, name]
                if following not in seen:
                    seen.add(following)
                    waiting.append([*way, following])
    return []


def _names_in(schema: dict[str, Any]) -> Iterator[str]:
    for each in _schemas_in(schema):
        reference = each.get("$ref")
        if isinstance(reference, str) and reference.startswith(_DEFINITIONS):
            yield reference.split("/")[2]
