"""Misfits: values that do not have their declared type.

A rule set's fast path is msgspec's own typed decode. Only when that fails does ``fit`` walk the values, guided by the
same structs: it names every misfit and repairs what it can, so that the other rules still see the rest. Its messages
are pydantic's, as Anthropic's API sends them, and so are the paths: a tagged struct adds its tag. OpenAI's two APIs
have their own messages (``reknit.pipeline.providers.openai.rules``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Struct, inspect

Misfit: TypeAlias = Literal["missing", "extra", "type", "tag"]


class Spot(Struct, frozen=True):
    """A place in the body: Reknit's path, the provider's (with tags), and the place in the structs."""

    path: str
    at: str
    place: str = ""

    def field(self, name: str | int) -> Spot:
        """Go to a field, or to an item of a list, which has its list's place."""
        place = self.place if isinstance(name, int) else f"{self.place}.{name}" if self.place else name
        return Spot(f"{self.path}.{name}", f"{self.at}.{name}", place)

    def tagged(self, tag: str) -> Spot:
        return Spot(self.path, f"{self.at}.{tag}", tag)


Report: TypeAlias = Callable[[Spot, Misfit, str], None]


T = TypeVar("T")


class Anything(Struct, frozen=True, gc=False):
    """Any JSON object; its keys are skipped."""


class Unreadable(Struct, frozen=True):
    """Replaces a value that could not be read at all."""


def fit(value: object, wire: object, spot: Spot, report: Report) -> object:
    """Read ``value`` as the type ``wire``, reporting each misfit; an unreadable one becomes ``Unreadable``."""
    return _fit(value, _info(wire), spot, report)


def fit_with_items(
    value: object, wire: object, spot: Spot, report: Report, *, field: str, item: object
) -> tuple[object, list[Any] | None]:
    """Read an object, then each ``item`` of the list in its ``field``, so that one that does not fit costs no other.

    Returns the object with an empty list, and the items; None for these where the field holds no list.
    """
    listed = value.get(field) if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(listed, list):
        return fit(value, wire, spot, report), None
    whole = fit({**value, field: []}, wire, spot, report)
    return whole, [fit(each, item, spot.field(field).field(at), report) for at, each in enumerate(listed)]


def without_unreadable(items: Sequence[object], kind: type[T], stand_in: T) -> list[T]:
    """Return the items of a ``kind``, with the stand-in for those that could not be read."""
    return [stand_in if isinstance(each, Unreadable) else each for each in items if isinstance(each, Unreadable | kind)]


@cache
def _info(wire: object) -> inspect.Type:
    return inspect.type_info(wire)


def _fit(value: object, info: inspect.Type, spot: Spot, report: Report) -> object:
    options = _options(info)
    structs = [option for option in options if isinstance(option, inspect.StructType)]
    if isinstance(value, dict) and structs:
        return _fit_struct(value, structs, spot, report)
    for option in options:
        if isinstance(option, inspect.RawType):
            return _SOME_JSON
        if isinstance(option, inspect.ListType) and isinstance(value, list):
            return [_fit(item, option.item_type, spot.field(at), report) for at, item in enumerate(value)]
        if _is(value, option):
            return value
    report(spot, "type", _expected(options))
    return _stand_in(options)


_SOME_JSON = msgspec.Raw(b"null")


def _is(value: object, option: inspect.Type) -> bool:
    match option:
        case inspect.NoneType():
            return value is None
        case inspect.StrType():
            return isinstance(value, str)
        case inspect.BoolType():
            return isinstance(value, bool)
        case inspect.LiteralType(values=values):
            return isinstance(value, str) and value in values
    return False


def _fit_struct(
    value: Mapping[str, object], options: Sequence[inspect.StructType], spot: Spot, report: Report
) -> object:
    """Read an object as one of several structs, which its tag distinguishes."""
    if options[0].tag is None:
        return _fit_fields(value, options[0], spot, report)
    if "type" not in value:
        report(spot.field("type"), "missing", "Field required")
        return Unreadable()
    tag = value["type"]
    chosen = next((option for option in options if option.tag == tag), None)
    if chosen is None:
        tags = ", ".join(repr(tag) for tag in sorted(str(option.tag) for option in options))
        report(spot, "tag", f"Input tag '{tag}' found using 'type' does not match any of the expected tags: {tags}")
        return Unreadable()
    return _fit_fields(value, chosen, spot.tagged(str(chosen.tag)), report)


def _fit_fields(value: Mapping[str, object], info: inspect.StructType, spot: Spot, report: Report) -> object:
    made: dict[str, object] = {}
    for field in info.fields:
        name = field.encode_name
        if name in value:
            made[field.name] = _fit(value[name], field.type, spot.field(name), report)
        elif field.required:
            report(spot.field(name), "missing", "Field required")
            made[field.name] = _stand_in(_options(field.type))
    if info.forbid_unknown_fields:
        known = {field.encode_name for field in info.fields} | ({"type"} if info.tag is not None else set())
        for name in value:
            if name not in known:
                report(spot.field(name), "extra", "Extra inputs are not permitted")
    if any(isinstance(part, Unreadable) for part in made.values()):
        return Unreadable()
    built: object = info.cls(**made)
    return built


def _options(info: inspect.Type) -> Sequence[inspect.Type]:
    return info.types if isinstance(info, inspect.UnionType) else (info,)


_NAMES: dict[type, str] = {inspect.StrType: "string", inspect.BoolType: "boolean", inspect.ListType: "list"}


def _expected(options: Sequence[inspect.Type]) -> str:
    """Say what would have fitted, as pydantic does for the last of the alternatives."""
    wanted = options[-1] if not isinstance(options[-1], inspect.NoneType) else options[0]
    if isinstance(wanted, inspect.LiteralType):
        return f"Input should be {' or '.join(map(repr, wanted.values))}"
    return f"Input should be a valid {_NAMES.get(type(wanted), 'dictionary')}"


def _stand_in(options: Sequence[inspect.Type]) -> object:
    """Give a harmless value for one that was reported already, or a Unreadable where none is harmless."""
    match options[0]:
        case inspect.StrType() if len(options) == 1:
            return "-"
        case inspect.StructType(cls=cls, tag=None, fields=()):
            return cls()
        case inspect.BoolType():
            return False
    return Unreadable()
