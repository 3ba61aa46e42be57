"""Gemini's tools and the choice among them, in terms that the other shapes share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from pipeline.history.readers.fields import as_list, as_object
from pipeline.history.readers.rawjson import starts_with

_DECLARATIONS: Final = ("functionDeclarations", "function_declarations")
_SCHEMAS: Final = ("parametersJsonSchema", "parameters_json_schema")
_TYPES: Final = frozenset({"STRING", "NUMBER", "INTEGER", "BOOLEAN", "ARRAY", "OBJECT", "NULL"})
# Limits that the API writes as text, because they are 64-bit integers.
_COUNTS: Final = frozenset({"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"})
_CHOICES: Final = {"AUTO": "auto", "ANY": "any", "NONE": "none"}


def declares_functions(value: Raw) -> bool:
    """Whether a value is one entry of ``tools`` by itself, which the API takes for a list of one."""
    return starts_with(value, b"{") and not as_object(value, "tools").keys().isdisjoint(_DECLARATIONS)


def single_tools(item: Raw, path: str) -> Iterator[tuple[Raw, str]]:
    """The tools in one entry of ``tools``, with their places: each declared function, then what else it holds."""
    if not starts_with(item, b"{"):
        yield item, path
        return
    keys = {key: value for key, value in as_object(item, path).items() if not starts_with(value, b"n")}
    for name in _DECLARATIONS:
        if name not in keys:
            continue
        declared = as_list(keys.pop(name), f"{path}.{name}")
        for at, declaration in enumerate(declared):
            place = f"{path}.{name}.{at}"
            yield Raw(msgspec.json.encode(_function(as_object(declaration, place)))), place
        if not keys:
            return
        item = Raw(msgspec.json.encode(keys))
    yield item, path


def choice_of(config: Raw) -> Raw | None:
    """A ``toolConfig`` as a tool choice; None for one that says more than the other shapes can."""
    try:
        calling = msgspec.json.decode(config, type=_Config).calling
    except msgspec.ValidationError:
        return None
    kind = _CHOICES.get(calling.mode.upper())
    if kind is None:
        return None
    if not calling.names:
        return Raw(msgspec.json.encode({"type": kind}))
    if kind != "any" or len(calling.names) > 1:
        return None
    return Raw(msgspec.json.encode({"type": "tool", "name": calling.names[0]}))


class _Calling(Struct, frozen=True, forbid_unknown_fields=True):
    mode: str = "AUTO"
    names: list[str] = msgspec.field(default_factory=list, name="allowedFunctionNames")


class _Config(Struct, frozen=True, forbid_unknown_fields=True):
    calling: _Calling = msgspec.field(name="functionCallingConfig")


def _function(keys: dict[str, Raw]) -> dict[str, Any]:
    """A declaration with its schema, in whichever of the two dialects, as JSON Schema."""
    found: dict[str, Any] = {key: value for key, value in keys.items() if key not in _SCHEMAS}
    for name in _SCHEMAS:
        if name in keys:
            found["parameters"] = keys[name]
    if "parameters" in found and found["parameters"] is keys.get("parameters"):
        found["parameters"] = _json_schema(msgspec.json.decode(keys["parameters"]))
    return found


def _json_schema(schema: Any) -> Any:  # noqa: ANN401  any JSON
    """A schema of the API's own dialect, which has its types in capitals, as JSON Schema."""
    if isinstance(schema, list):
        return [_json_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    out: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties" and isinstance(value, dict):
            out[key] = {name: _json_schema(inner) for name, inner in value.items()}
        elif key in {"items", "anyOf", "prefixItems", "additionalProperties"}:
            out[key] = _json_schema(value)
        elif key == "type" and isinstance(value, str) and value in _TYPES:
            out[key] = value.lower()
        elif key in _COUNTS and isinstance(value, str) and value.isdecimal():
            out[key] = int(value)
        else:
            out[key] = value
    if out.get("nullable") is True and isinstance(out.get("type"), str):
        del out["nullable"]
        out["type"] = [out["type"], "null"]
    return out
