"""Members of a JSON object, read one by one: a member of the wrong type counts as absent, the others still serve."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

Fields: TypeAlias = dict[str, Raw]
# A block's place in its message. The bound is far beyond any message and keeps hostile numbers out of the state.
Index: TypeAlias = Annotated[int, Meta(ge=0, lt=2**31)]

_string = msgspec.json.Decoder(str)
_number: msgspec.json.Decoder[int | float] = msgspec.json.Decoder(int | float)
_integer = msgspec.json.Decoder(int)
_index: msgspec.json.Decoder[int] = msgspec.json.Decoder(Index)
_object = msgspec.json.Decoder(dict[str, Raw])
_list = msgspec.json.Decoder(list[Raw])
_strings = msgspec.json.Decoder(list[str])

_NULL = b"null"


def text(fields: Fields, *names: str) -> str:
    """The first member of these that is a string with anything in it, or ``""``."""
    for name in names:
        raw = fields.get(name)
        if raw is not None:
            try:
                value = _string.decode(raw)
            except msgspec.DecodeError:
                continue
            if value:
                return value
    return ""


def flag(fields: Fields, *names: str) -> bool:
    """Whether one of these members is true."""
    return any(bytes(fields.get(name, b"")) == b"true" for name in names)


def number(fields: Fields, name: str) -> int | float | None:
    """A member that is a number."""
    try:
        return _number.decode(fields[name])
    except (KeyError, msgspec.DecodeError):
        return None


def integer(fields: Fields, name: str) -> int | None:
    """A member that is a whole number."""
    try:
        return _integer.decode(fields[name])
    except (KeyError, msgspec.DecodeError):
        return None


def index(fields: Fields, name: str) -> int | None:
    """A member that is a block's place."""
    try:
        return _index.decode(fields[name])
    except (KeyError, msgspec.DecodeError):
        return None


def members(fields: Fields, name: str) -> Fields | None:
    """A member that is an object, as its own members."""
    try:
        return _object.decode(fields[name])
    except (KeyError, msgspec.DecodeError):
        return None


def elements(fields: Fields, name: str) -> list[Raw] | None:
    """A member that is a list, as raw elements."""
    try:
        return _list.decode(fields[name])
    except (KeyError, msgspec.DecodeError):
        return None


def strings(fields: Fields, name: str) -> tuple[str, ...] | None:
    """A member that is a list of strings."""
    try:
        return tuple(_strings.decode(fields[name]))
    except (KeyError, msgspec.DecodeError):
        return None


def raw(fields: Fields, *names: str) -> Raw | UnsetType:
    """The first of these members that is there and not null, as raw JSON."""
    for name in names:
        found = given(fields.get(name, UNSET))
        if found is not UNSET:
            return found
    return UNSET


def given(value: Raw | UnsetType) -> Raw | UnsetType:
    """A member's raw JSON in memory of its own, where it is there and not null."""
    return UNSET if value is UNSET or bytes(value) == _NULL else own(value)


def others(fields: Fields, known: Collection[str]) -> dict[str, Raw] | UnsetType:
    """The members that are not known and not null, or nothing at all where there are none."""
    left = {name: own(value) for name, value in fields.items() if name not in known and bytes(value) != _NULL}
    return left or UNSET


def own(value: Raw) -> Raw:
    """The same JSON in memory of its own: a slice would keep the whole line alive."""
    return value.copy()
