"""The strict tools that Claude takes: their schemas are compiled, and together they have limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from reknit.pipeline.targets.schemas import inner_schemas

# `The maximum number of strict tools supported is 20` (ANT-47b), `limit: 16 parameters with unions` (ANT-47c).
_TOOLS: Final = 20
_UNIONS: Final = 16


class StrictTools:
    """The strict tools of one request so far."""

    def __init__(self) -> None:
        self._tools = 0
        self._unions = 0

    def take(self, schema: Any) -> bool:  # noqa: ANN401  any JSON
        """Return True if one more strict tool of this schema is taken (ANT-47)."""
        if not isinstance(schema, dict):
            return True
        schemas = [schema, *inner_schemas(schema)]
        unions = sum("anyOf" in each or isinstance(each.get("type"), list) for each in schemas)
        within = self._tools < _TOOLS and self._unions + unions <= _UNIONS
        if not within or any(map(_is_limited, schemas)) or _has_circle(schema):
            return False
        self._tools += 1
        self._unions += unions
        return True


def _is_limited(schema: Mapping[str, Any]) -> bool:
    return "maxItems" in schema or "multipleOf" in schema or schema.get("minItems", 0) not in (0, 1)


def _has_circle(schema: Mapping[str, Any]) -> bool:
    """Return True if a definition leads back to itself."""
    named: dict[str, Any] = {}
    for key in ("$defs", "definitions"):
        named |= schema[key] if isinstance(schema.get(key), dict) else {}
    leads = {name: set(_named_in(value)) for name, value in named.items() if isinstance(value, dict)}
    # A definition that leads to none, or only to such ones, is in no circle.
    while ends := [name for name, others in leads.items() if not others & leads.keys()]:
        for name in ends:
            del leads[name]
    return bool(leads)


def _named_in(schema: dict[str, Any]) -> Iterator[str]:
    for each in (schema, *inner_schemas(schema)):
        reference = each.get("$ref")
        if isinstance(reference, str) and reference.startswith(("#/$defs/", "#/definitions/")):
            yield reference.split("/")[2]
