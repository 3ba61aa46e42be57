"""Schemas of strict mode, as both of OpenAI's APIs compile them: their faults, in the compiler's words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from reknit.pipeline.rules._fold import Walk
from reknit.pipeline.rules._schemas import placed_schemas
from reknit.pipeline.rules.base import Rule

MESSAGE: Final = "Invalid schema for {kind} '{name}': In context={context}, {words}"

_OPENAIS: Final = re.compile(r"$|(ft:)?(gpt-|chatgpt-|codex-|o\d)")
_OPEN: Final = "'additionalProperties' is required to be supplied and to be false."
_OPTIONAL: Final = (
    "'required' is required to be supplied and to be an array including every key in properties. Missing '{key}'."
)
_NOT_PERMITTED: Final = ("allOf", "oneOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas")


def is_compiled(model: str | None) -> bool:
    """Return True if OpenAI runs the model. No refusal is known of routers, which have models of other makers too."""
    return _OPENAIS.match((model or "").lower()) is not None


def judge_strict(walk: Walk, rule: Rule, path: str, schema: object, **named: object) -> None:
    """Report every part of a strict schema that the compiler refuses; ``named`` are the kind and name of its owner."""
    for context, node in placed_schemas(schema):
        if words := _fault(node):
            where = ".".join((path, *context))
            walk.refuse(rule, where, **named, context=_tuple(context), words=words)


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


def _tuple(context: tuple[str, ...]) -> str:
    """Write a context as the compiler does, as a tuple of Python."""
    return repr(context)
