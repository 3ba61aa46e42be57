"""The schemas inside of a schema, as the compilers of providers walk through them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

Context: TypeAlias = tuple[str, ...]

_MAPS: Final = ("properties", "$defs", "definitions")
_LISTS: Final = ("anyOf", "allOf", "oneOf")


def placed_schemas(schema: object) -> Iterator[tuple[Context, Mapping[str, Any]]]:
    """Yield a schema and all schemas inside, in the order of the text, each with the keys that lead to it."""
    waiting: list[tuple[Context, object]] = [((), schema)]
    while waiting:
        context, node = waiting.pop()
        if isinstance(node, Mapping):
            yield context, node
            waiting += reversed(list(_inside(context, node)))


def _inside(context: Context, node: Mapping[str, Any]) -> Iterator[tuple[Context, object]]:
    for key in _MAPS:
        inner = node.get(key)
        if isinstance(inner, Mapping):
            yield from (((*context, key, name), value) for name, value in inner.items())
    if "items" in node:
        yield (*context, "items"), node["items"]
    for key in _LISTS:
        listed = node.get(key)
        if isinstance(listed, list):
            yield from (((*context, key, str(at)), value) for at, value in enumerate(listed))
