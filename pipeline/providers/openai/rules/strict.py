"""Schemas of strict mode, as both of OpenAI's APIs compile them: what they miss, in the compiler's words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

from reknit.pipeline.rules._fold import Walk
from reknit.pipeline.rules.base import Rule

MESSAGE: Final = "Invalid schema for {kind} '{name}': In context={context}, {words}"

_OPEN: Final = "'additionalProperties' is required to be supplied and to be false."
_OPTIONAL: Final = (
    "'required' is required to be supplied and to be an array including every key in properties. Missing '{key}'."
)
_NOT_PERMITTED: Final = ("allOf", "oneOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas")
_LISTS: Final = ("anyOf", "allOf", "oneOf")
_MAPS: Final = ("properties", "$defs", "definitions")

_Node: TypeAlias = tuple[tuple[str, ...], Any]


def judge_strict(walk: Walk, rule: Rule, path: str, schema: object, **named: object) -> None:
    """Report every part of a strict schema that the compiler refuses; ``named`` are the kind and name of its owner."""
    for context, words in _faults(schema):
        where = ".".join((path, *context))
        walk.refuse(rule, where, **named, context=_tuple(context), words=words)


def _faults(schema: object) -> Iterator[tuple[tuple[str, ...], str]]:
    waiting: list[_Node] = [((), schema)]
    while waiting:
        context, node = waiting.pop()
        if not isinstance(node, Mapping):
            continue
        if words := _fault(node):
            yield context, words
        waiting += reversed(list(_inside(context, node)))


def _fault(node: Mapping[str, Any]) -> str:
    properties = node.get("properties")
    kind = node.get("type")
    if (kind == "object" or isinstance(properties, Mapping)) and node.get("additionalProperties") is not False:
        return _OPEN
    if isinstance(properties, Mapping):
        required = node.get("required")
        listed = required if isinstance(required, list) else []
        missing = next((key for key in properties if key not in listed), None)
        if missing is not None:
            return _OPTIONAL.format(key=missing)
    if kind == "array" and "items" not in node:
        return "array schema missing items."
    refused = next((key for key in _NOT_PERMITTED if key in node), None)
    return f"'{refused}' is not permitted." if refused else ""


def _inside(context: tuple[str, ...], node: Mapping[str, Any]) -> Iterator[_Node]:
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


def _tuple(context: tuple[str, ...]) -> str:
    """Write a context as the compiler does, as a tuple of Python."""
    return repr(context)
