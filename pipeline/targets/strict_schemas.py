"""Schemas of answers, and of tools whose calls follow them strictly: providers take a part of JSON Schema for these."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from reknit.pipeline.targets.schemas import NOTES, inner_schemas, rewritten


def closed(schema: Any) -> Any:  # noqa: ANN401  any JSON
    """A schema whose objects have no other properties than the named ones, as schemas of answers must."""

    def close(each: dict[str, Any]) -> dict[str, Any]:
        is_object = each.get("type") == "object" or "properties" in each
        return {**each, "additionalProperties": False} if is_object else each

    return rewritten(schema, close)


def is_open(schema: Any) -> bool:  # noqa: ANN401  any JSON
    """Return True if a schema says of an object that it may have other properties than the named ones."""
    schemas = [schema, *inner_schemas(schema)] if isinstance(schema, dict) else []
    return any(each.get("additionalProperties", False) is not False for each in schemas)


def without_members(schema: Any, names: Collection[str]) -> tuple[Any, list[str]]:  # noqa: ANN401  any JSON
    """A schema without some members, and those that it had."""
    found: set[str] = set()

    def drop(each: dict[str, Any]) -> dict[str, Any]:
        found.update(name for name in each if name in names)
        return {name: value for name, value in each.items() if name not in names}

    return rewritten(schema, drop), sorted(found)


def without_limits(schema: Any) -> Any:  # noqa: ANN401  any JSON
    """A schema without the limits on lists and numbers that Claude refuses in the schema of an answer."""

    def drop(each: dict[str, Any]) -> dict[str, Any]:
        least = {"minItems"} if each.get("minItems", 0) not in (0, 1) else set()
        gone = {"maxItems", "multipleOf"} | least
        return {name: value for name, value in each.items() if name not in gone}

    return rewritten(schema, drop)


def is_strict(schema: Any) -> bool:  # noqa: ANN401  any JSON
    """Return True if each object of a schema is closed and requires all of its properties, as OpenAI's strict mode."""
    if not isinstance(schema, dict):
        return False
    each_schema = [schema, *inner_schemas(schema)]
    return all(_is_strict_alone(each) for each in each_schema)


_IN_STRICT: Final = NOTES - {"default", "example", "examples"} | {
    "$defs", "$ref", "$schema", "additionalProperties", "anyOf", "const", "definitions", "enum", "items", "properties",
    "required", "type",
}  # fmt: skip


def _is_strict_alone(schema: Mapping[str, Any]) -> bool:
    if not schema.keys() <= _IN_STRICT or not ({"type", "anyOf", "$ref", "const", "enum"} & schema.keys()):
        return False
    return is_complete_alone(schema)


def is_complete(schema: Any) -> bool:  # noqa: ANN401  any JSON
    """Return True if each object of a schema is closed and requires all of its properties."""
    return isinstance(schema, dict) and all(is_complete_alone(each) for each in (schema, *inner_schemas(schema)))


def is_complete_alone(schema: Mapping[str, Any]) -> bool:
    """Return True if a schema is of no object, or of one that is closed and requires all of its properties."""
    properties, required = schema.get("properties"), schema.get("required", [])
    if schema.get("type") != "object" and not isinstance(properties, dict):
        return True
    named = properties if isinstance(properties, dict) else ()
    is_closed = schema.get("additionalProperties") is False
    return is_closed and isinstance(required, list) and all(name in required for name in named)
