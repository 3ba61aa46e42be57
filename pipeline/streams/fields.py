"""Members of a JSON object, read one by one: a member of the wrong type counts as absent, the others still serve."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Final, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from msgspec.structs import astuple
from msgspec.structs import fields as members_of

Fields: TypeAlias = dict[str, Raw]
# A block's place in its message. The bound is far beyond any message and keeps hostile numbers out of the state.
Index: TypeAlias = Annotated[int, Meta(ge=0, lt=2**31)]

# Token counts are reported up to this bound: beyond it JSON readers disagree on numbers, and state cannot hold them.
MOST_COUNTED: Final = 2**53 - 1

_string = msgspec.json.Decoder(str)
_number: msgspec.json.Decoder[int | float] = msgspec.json.Decoder(int | float)
_integer = msgspec.json.Decoder(int)
_index: msgspec.json.Decoder[int] = msgspec.json.Decoder(Index)
_object = msgspec.json.Decoder(dict[str, Raw])
_list = msgspec.json.Decoder(list[Raw])
_strings = msgspec.json.Decoder(list[str])
read_object = _object.decode

T = TypeVar("T")
S = TypeVar("S", bound=Struct)

_NULL = b"null"
# JSON values without content.
NOTHING: Final = frozenset({_NULL, b"[]", b"{}", b'""'})


class Counted(Struct, gc=False):
    """Counts of tokens, which a hostile or broken server may make larger than any state can hold: they are bounded."""

    def __post_init__(self) -> None:
        bound(self)


def bound(counts: Struct) -> None:
    """Limit a struct's integers to the reported range."""
    for name, value in zip(counts.__struct_fields__, astuple(counts), strict=True):
        if type(value) is int and not -MOST_COUNTED <= value <= MOST_COUNTED:
            setattr(counts, name, MOST_COUNTED if value > 0 else -MOST_COUNTED)


def with_plain_counts(fields: Fields) -> Fields:
    """The same members with counts of tokens as whole numbers, wherever they are of another kind; or without them."""
    found = dict(fields)
    for name, value in fields.items():
        inner = members(fields, name) if name in _HOLD_COUNTS else None
        if inner is not None:
            plain = _plain_counts(inner) if name in _COUNTS else with_plain_counts(inner)
            found[name] = value if plain == inner else Raw(msgspec.json.encode(plain))
    return found


_COUNTS: Final = frozenset({"usage", "usageMetadata"})
_HOLD_COUNTS: Final = _COUNTS | {"message", "response", "metadata"}


def counts(fields: Fields, name: str, kind: type[S]) -> S | None:
    """A member that is an object of token counts, as whole numbers; a count that is not a number counts as absent."""
    given_counts = members(fields, name)
    if given_counts is None:
        return None
    plain = _plain_counts(given_counts)
    found = {field.name: typed(plain, field.encode_name, field.type) for field in members_of(kind)}
    return kind(**{member: value for member, value in found.items() if value is not None})


def _plain_counts(counts: Fields) -> Fields:
    found: Fields = {}
    for name, value in counts.items():
        inner = members(counts, name)
        if inner is not None:
            found[name] = Raw(msgspec.json.encode(_plain_counts(inner)))
        elif (count := _token_count(bytes(value))) is not None:
            found[name] = count
    return found


def _token_count(raw: bytes) -> Raw | None:
    """A count as a whole number within bounds; None where it is no number at all."""
    if raw[:1] not in _NUMBERS:
        return None
    value = float(raw)
    if abs(value) > MOST_COUNTED:
        return Raw(b"%d" % (MOST_COUNTED if value > 0 else -MOST_COUNTED))
    return Raw(b"%d" % int(value))


_NUMBERS: Final = frozenset(bytes([byte]) for byte in b"-0123456789")


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
    return any(bytes(fields.get(name, b"")) == b"true" for name in names)


def number(fields: Fields, name: str) -> int | float | None:
    return _member(fields, name, _number)


def integer(fields: Fields, name: str) -> int | None:
    return _member(fields, name, _integer)


def index(fields: Fields, name: str) -> int | None:
    """A member that is a block's place."""
    return _member(fields, name, _index)


def members(fields: Fields, name: str) -> Fields | None:
    return _member(fields, name, _object)


def elements(fields: Fields, name: str) -> list[Raw] | None:
    return _member(fields, name, _list)


def strings(fields: Fields, name: str) -> tuple[str, ...] | None:
    found = _member(fields, name, _strings)
    return None if found is None else tuple(found)


def typed(fields: Fields, name: str, kind: type[T]) -> T | None:
    return _member(fields, name, msgspec.json.Decoder(kind))


def _member(fields: Fields, name: str, decoder: msgspec.json.Decoder[T]) -> T | None:
    try:
        return decoder.decode(fields[name])
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
    """Return the members that are not known and not null, or None if there are none."""
    left = {name: own(value) for name, value in fields.items() if name not in known and bytes(value) != _NULL}
    return left or UNSET


def telling(fields: Fields, known: Collection[str]) -> Fields:
    """The members that are not known and say something."""
    return {name: own(value) for name, value in fields.items() if name not in known and bytes(value) not in NOTHING}


def own(value: Raw) -> Raw:
    """The same JSON in memory of its own: a slice would keep the whole line alive."""
    return value.copy()


def escaped(text: str) -> str:
    """Return a text escaped as in a JSON string."""
    return msgspec.json.encode(text)[1:-1].decode()


def is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def in_order(raw: Raw) -> bytes:
    """JSON with the members of its objects in order; what cannot be put in order as it is."""
    try:
        return msgspec.json.encode(msgspec.json.decode(raw), order="deterministic")
    except (msgspec.DecodeError, RecursionError, OverflowError, ValueError):
        return bytes(raw)
