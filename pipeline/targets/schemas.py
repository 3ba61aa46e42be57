"""A tool's schema as one object schema without alternatives at its top level, which every provider takes.

Providers refuse combinators at the top level, and a top level that is not of type object. The rewritten schema accepts
each object that the given one accepts, and possibly more. Branches of ``anyOf`` and ``oneOf`` become one set of
properties, and a property is required if every branch requires it. ``allOf`` and references are merged. Branches that
accept no object are left out, because a call's input is an object. If the schema accepts no object at all, its values
are put into the member ``_raw``, in which a history holds an input that is not an object (``input_wrapped``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from typing import Any, Final

import msgspec
from msgspec import Struct

from reknit.pipeline.history.wrapped_inputs import WRAPPER

COMBINATORS: Final = frozenset({"anyOf", "oneOf", "allOf"})

_DEFINITIONS: Final = ("$defs", "definitions")
_REFERENCE: Final = "$ref"
# Members that hold one schema, a list of schemas, and schemas by name.
_ONE: Final = frozenset(
    {
        "additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not",
        "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties",
    }
)  # fmt: skip
_LISTS: Final = COMBINATORS | {"items", "prefixItems"}
_NAMED: Final = frozenset({"properties", "patternProperties", "dependentSchemas", "dependencies", *_DEFINITIONS})
# Members by which the place of a schema gets another meaning: references into it cannot be rewritten.
_PLACED: Final = frozenset({"$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef"})
# Members that do not restrict a value.
NOTES: Final = frozenset(
    {"$comment", "default", "deprecated", "description", "example", "examples", "readOnly", "title", "writeOnly"}
)
# Members whose meaning depends on others of the same schema, and which two schemas cannot share therefore.
_JOINT: Final = _ONE | _LISTS | _NAMED | {_REFERENCE, "maxContains", "minContains"}
# Members of the top level that are kept, before and after the merged ones.
_FIRST: Final = ("$schema", "$id", *sorted(NOTES), *_DEFINITIONS)
_LAST: Final = ("dependentRequired", "maxProperties", "minProperties", "patternProperties")
# A schema of references to references may have exponentially many branches.
_MOST_SCHEMAS: Final = 2000
_DEEPEST: Final = 50
_OLDER_DRAFTS: Final = ("draft-03", "draft-04", "draft-06", "draft-07")

_encode = msgspec.json.Encoder(order="deterministic").encode


class _Objects(Struct, frozen=True):
    """A set of objects: schemas of named properties, the required names, and the schema of all other properties.

    A schema that is True accepts any value, one that is False none.
    """

    properties: Mapping[str, Any] = {}
    required: tuple[str, ...] = ()
    others: Any = True

    def at(self, name: str) -> Any:  # noqa: ANN401  a schema
        return self.properties.get(name, self.others)


_ALL: Final = _Objects()


def is_plain(schema: Mapping[str, Any], refused: frozenset[str]) -> bool:
    """Return True if a schema is of type object and has none of the ``refused`` members at its top level."""
    return schema.get("type") == "object" and refused.isdisjoint(schema)


def is_untyped(schema: Mapping[str, Any], refused: frozenset[str] = COMBINATORS) -> bool:
    """Return True if a schema would be plain if its type were object, and accepts objects."""
    return refused.isdisjoint(schema) and _REFERENCE not in schema and _takes_objects(schema)


def accepts_objects(schema: Mapping[str, Any]) -> bool:
    """Return True if a schema accepts some object, or that is not sure."""
    return _Reader(schema).objects_of(schema, 0) is not None


def object_schema(schema: Mapping[str, Any], refused: frozenset[str] = COMBINATORS) -> dict[str, Any]:
    """A schema that is plain, and accepts every object that the given one accepts.

    If the given one accepts no object, the result accepts objects whose only member holds an accepted value.
    """
    placed = any(not _PLACED.isdisjoint(each) for each in (schema, *inner_schemas(schema)))
    if placed or any("$id" in each for each in inner_schemas(schema)):
        # References in it cannot be rewritten.
        return _names_of(schema, _Reader(schema).objects_of(schema, 0) or _Objects(required=(WRAPPER,)))
    root = _with_local_references(schema)
    found = _Reader(root).objects_of(root, 0)
    if found is None:
        return _wrapped(root)
    return {**root, "type": "object"} if is_untyped(schema, refused) else _written(root, found)


def _wrapped(root: Mapping[str, Any]) -> dict[str, Any]:
    outer = {name: root[name] for name in ("$schema", *_DEFINITIONS) if name in root}
    inner = _without(root, "$schema", "$id", *_DEFINITIONS)
    return {**outer, "type": "object", "properties": {WRAPPER: inner}, "required": [WRAPPER]}


def _is_older(root: Mapping[str, Any]) -> bool:
    """Return True for a draft in which the neighbours of a reference have no meaning."""
    return any(draft in str(root.get("$schema")) for draft in _OLDER_DRAFTS)


def _takes_objects(schema: Mapping[str, Any]) -> bool:
    types = schema.get("type")
    if isinstance(types, str) and types != "object":
        return False
    if isinstance(types, list) and "object" not in types:
        return False
    values = _values_of(schema)
    return values is None or any(isinstance(value, dict) for value in values)


def _values_of(schema: Mapping[str, Any]) -> list[Any] | None:
    """The values that a schema lists, if it does."""
    if "const" in schema:
        return [schema["const"]]
    listed = schema.get("enum")
    return listed if isinstance(listed, list) else None


class _Reader:
    """Reads the objects that the schemas of one document accept."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._older = _is_older(root)
        self._left = _MOST_SCHEMAS

    def objects_of(self, schema: Any, depth: int) -> _Objects | None:  # noqa: ANN401  any JSON
        """Return a set that holds all objects that the schema accepts; None if it accepts none."""
        self._left -= 1
        if schema is False:
            return None
        if not isinstance(schema, dict) or self._left < 0 or depth > _DEEPEST:
            return _ALL
        reference = schema.get(_REFERENCE)
        if isinstance(reference, str) and self._older:
            return self.objects_of(self._target(reference), depth + 1)  # its neighbours have no meaning there
        if not _takes_objects(schema):
            return None
        found: _Objects | None = _own_objects(schema)
        parts = [self._target(reference)] if isinstance(reference, str) else []
        parts += _listed(schema, "allOf")
        for part in parts:
            found = _in_both(found, self.objects_of(part, depth + 1))
        for key in ("anyOf", "oneOf"):
            branches = _listed(schema, key)
            if branches:
                found = _in_both(found, self._any_of(branches, depth))
        return found

    def _any_of(self, branches: list[Any], depth: int) -> _Objects | None:
        read = [self.objects_of(branch, depth + 1) for branch in branches]
        taking = [each for each in read if each is not None]
        return reduce(_in_either, taking) if taking else None

    def _target(self, reference: str) -> Any:  # noqa: ANN401  any JSON
        return _at_pointer(self._root, reference)


def _listed(schema: Mapping[str, Any], key: str) -> list[Any]:
    value = schema.get(key)
    return value if isinstance(value, list) else []


def _at_pointer(root: Any, reference: str) -> Any:  # noqa: ANN401  any JSON
    """The schema at a local reference; True, which restricts nothing, if it is missing."""
    if not reference.startswith("#"):
        return True
    node = root
    for part in reference[1:].split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and name in node:
            node = node[name]
        elif isinstance(node, list) and name.isdecimal() and name.isascii() and int(name) < len(node):
            node = node[int(name)]
        else:
            return True
    return node if reference[1:2] in ("", "/") else True


def _own_objects(schema: Mapping[str, Any]) -> _Objects:
    """The objects that a schema accepts by its own members, without its combinators and references."""
    properties = schema.get("properties")
    required = schema.get("required")
    others = schema.get("additionalProperties", True)
    if schema.get("patternProperties") or not isinstance(others, bool | dict):
        others = True
    return _Objects(
        {name: _normal(value) for name, value in properties.items()} if isinstance(properties, dict) else {},
        tuple(name for name in required if isinstance(name, str)) if isinstance(required, list) else (),
        _normal(others),
    )


def _normal(schema: Any) -> Any:  # noqa: ANN401  a schema
    return True if schema == {} or not isinstance(schema, bool | dict) else schema


def _in_both(one: _Objects | None, other: _Objects | None) -> _Objects | None:
    if one is None or other is None:
        return None
    names = [*one.properties, *(name for name in other.properties if name not in one.properties)]
    required = dict.fromkeys((*one.required, *other.required))
    found = _Objects(
        {name: _both(one.at(name), other.at(name)) for name in names},
        tuple(required),
        _both(one.others, other.others),
    )
    return None if any(found.at(name) is False for name in required) else found


def _in_either(one: _Objects, other: _Objects) -> _Objects:
    names = [*one.properties, *(name for name in other.properties if name not in one.properties)]
    return _Objects(
        {name: _either(one.at(name), other.at(name)) for name in names},
        tuple(name for name in one.required if name in other.required),
        one.others is True or other.others is True or _either(one.others, other.others),
    )


def _both(one: Any, other: Any) -> Any:  # noqa: ANN401  schemas
    """A schema of the values that two schemas accept."""
    if one is True or other is True:
        return other if one is True else one
    if one is False or other is False:
        return False
    if _same(one, other):
        return one
    shared = {name for name in one.keys() & other.keys() if not _same(one[name], other[name])}
    if shared <= NOTES and (_JOINT.isdisjoint(one) or _JOINT.isdisjoint(other)):
        return {**other, **one}
    parts = [part for each in (one, other) for part in (each["allOf"] if each.keys() == {"allOf"} else [each])]
    return {"allOf": _distinct(parts)}


def _either(one: Any, other: Any) -> Any:  # noqa: ANN401  schemas
    """A schema of the values that either of two schemas accepts.

    If one of them accepts any value, the other is still written: it says what the property is for.
    """
    if one is False or other is False:
        return other if one is False else one
    if one is True or other is True:
        said = other if one is True else one
        if said is True or said.keys() <= NOTES:
            return said
    listed = [] if one is True or other is True else _listed_values(one, other)
    if listed:
        return {**_without(one, "const", "enum"), "enum": listed}
    parts: list[Any] = []
    for each in (one, other):
        parts += each["anyOf"] if isinstance(each, dict) and each.keys() == {"anyOf"} else [each]
    parts = _distinct([{} if part is True else part for part in parts])
    if {} in parts:
        parts = [*(part for part in parts if part != {}), {}]
    return parts[0] if len(parts) == 1 else {"anyOf": parts}


def _listed_values(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[Any]:
    """The values of two schemas that list them and differ in nothing else; none of other schemas."""
    first, second = _values_of(one), _values_of(other)
    if first is None or second is None:
        return []
    bare = [_without(each, "const", "enum", *NOTES) for each in (one, other)]
    return _distinct([*first, *second]) if _same(*bare) else []


def _without(schema: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in schema.items() if name not in names}


def _same(one: Any, other: Any) -> bool:  # noqa: ANN401  any JSON
    """Return True for equal JSON; Python would take True for 1."""
    return _encode(one) == _encode(other)


def _distinct(values: list[Any]) -> list[Any]:
    return list({_encode(value): value for value in values}.values())


def _written(root: Mapping[str, Any], found: _Objects) -> dict[str, Any]:
    properties = {name: value for name, value in found.properties.items() if value is not False}
    for name in found.required:
        properties.setdefault(name, found.others)
    last = () if _REFERENCE in root and _is_older(root) else _LAST
    return {
        **{name: root[name] for name in _FIRST if name in root},
        "type": "object",
        "properties": {name: {} if value is True else value for name, value in properties.items()},
        **({"required": list(found.required)} if found.required else {}),
        **({} if found.others is True else {"additionalProperties": found.others}),
        **{name: root[name] for name in last if name in root},
    }


def _names_of(root: Mapping[str, Any], found: _Objects) -> dict[str, Any]:
    """The set with the names of its properties alone, which no reference is needed for."""
    names = dict.fromkeys((*(name for name, value in found.properties.items() if value is not False), *found.required))
    return {
        **{name: root[name] for name in ("$schema", *sorted(NOTES)) if name in root},
        "type": "object",
        "properties": {name: {} for name in names},
        **({"required": list(found.required)} if found.required else {}),
        **({"additionalProperties": False} if found.others is False else {}),
    }


def inner_schemas(schema: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401  any JSON
    """All schemas inside of one."""
    waiting = [schema]
    while waiting:
        for inner in _children(waiting.pop()):
            yield inner
            waiting.append(inner)


def _children(schema: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for key, value in schema.items():
        values: list[Any] = [value] if key in _ONE else []
        if key in _LISTS and isinstance(value, list):
            values = value
        elif key in _NAMED and isinstance(value, dict):
            values = list(value.values())
        yield from (each for each in values if isinstance(each, dict))


def _with_local_references(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema, with references to other places than definitions rewritten.

    Those places would no longer exist, so that a copy of the whole schema is put among the definitions.
    """
    references = (each.get(_REFERENCE) for each in (schema, *inner_schemas(schema)))
    if all(map(_is_kept, references)):
        return dict(schema)
    given = schema.get("$defs")
    definitions = given if isinstance(given, dict) else {}
    name = "root"
    while name in definitions:
        name += "_"
    moved = _redirected(schema, f"#/$defs/{name}")
    inner = _without(moved, "$schema", "$id", *_DEFINITIONS)
    return {**moved, "$defs": {**moved.get("$defs", {}), name: inner}}


def _is_kept(reference: Any) -> bool:  # noqa: ANN401  any JSON
    """Return True for a reference whose target stays, or that is not local."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return True
    return reference.startswith(tuple(f"#/{name}/" for name in _DEFINITIONS))


def _redirected(schema: Mapping[str, Any], base: str) -> dict[str, Any]:
    """A schema whose references to places other than definitions begin at ``base``."""

    def redirect(each: dict[str, Any]) -> dict[str, Any]:
        reference: Any = each.get(_REFERENCE)
        return each if _is_kept(reference) else {**each, _REFERENCE: base + reference[1:]}

    found: dict[str, Any] = rewritten(schema, redirect)
    return found


def rewritten(schema: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:  # noqa: ANN401  any JSON
    """A schema after a change of each schema in it, and then of itself."""
    if not isinstance(schema, dict):
        return schema
    out: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _LISTS and isinstance(value, list):
            out[key] = [rewritten(each, change) for each in value]
        elif key in _NAMED and isinstance(value, dict):
            out[key] = {name: rewritten(each, change) for name, each in value.items()}
        elif key in _ONE:
            out[key] = rewritten(value, change)
        else:
            out[key] = value
    return change(out)
