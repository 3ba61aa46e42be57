"""JSON as a provider's front door reads it: what is wrong with it, and what does not fit the wire structs.

The fast path of every rule set is msgspec's own typed decode. Only when that fails does this reader walk the values,
guided by the same structs: it names every misfit and mends what it can, so that the other rules still see the rest.
The words are pydantic's, as Anthropic's API sends them on, and the paths too: a tagged struct adds its tag.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Literal, NoReturn, TypeAlias, TypeVar

import msgspec
from msgspec import Struct, inspect

_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)


class BadJSON(Struct, frozen=True):
    """Why a text is not valid JSON. ``at`` counts characters from 0; ``fatal`` means that it could not be read."""

    reason: str
    at: int
    fatal: bool = True

    def place(self, text: str = "", before: int = 0) -> str:
        """Name the place as decoders do; ``before`` characters on the same line stand before ``text``."""
        line = text.count("\n", 0, self.at) + 1
        column = self.at - text.rfind("\n", 0, self.at) + (before if line == 1 else 0)
        return f"{self.reason}: line {line} column {column} (char {self.at + before})"


def read(text: str) -> tuple[object, BadJSON | None]:
    """Read JSON as far as that is possible: lone surrogates are kept, and named as what is wrong with the text."""
    if text.startswith("\ufeff"):
        return None, BadJSON("unexpected UTF-8 BOM (decode using utf-8-sig)", 0)
    try:
        value: object = _decode(text)
    except json.JSONDecodeError as error:
        return None, BadJSON(error.msg[:1].lower() + error.msg[1:], error.pos)
    except RecursionError:
        return None, BadJSON("recursion limit reached", 0)
    except ValueError as error:  # NaN, Infinity, an integer of more digits than Python converts
        return None, BadJSON(str(error), 0)
    return value, lone_surrogate(text)


def lone_surrogate(text: str) -> BadJSON | None:
    """Find the first escape that is half a surrogate pair; the words are those of the provider's decoder, orjson."""
    if "\\ud" not in text and "\\uD" not in text:
        return None
    high: re.Match[str] | None = None
    for escape in _ESCAPE.finditer(text):
        if high is not None and escape.start() != high.end():
            return _half("no low surrogate in string", high)
        unit = int(escape[1], 16) if escape[1] else 0
        is_low = 0xDC00 <= unit <= 0xDFFF
        if high is not None:
            if not is_low:
                reason = "invalid low surrogate in string" if escape[1] else "no low surrogate in string"
                return _half(reason, high)
            high = None
        elif is_low:
            return _half("invalid high surrogate in string", escape)
        elif 0xD800 <= unit <= 0xDBFF:
            high = escape
    return _half("no low surrogate in string", high) if high is not None else None


def surrogate_path(value: object, path: str = "") -> str:
    """Name the first place in document order that holds half a surrogate pair, in dots; "" where there is none."""
    left: list[tuple[str, object]] = [(path, value)]
    while left:
        at, item = left.pop()
        if isinstance(item, str):
            if not item.isascii() and any("\ud800" <= char <= "\udfff" for char in item):
                return at
        elif isinstance(item, dict):
            keys = [(f"{at}.{key}".lstrip("."), key) for key in item]
            values = [(f"{at}.{key}".lstrip("."), inner) for key, inner in item.items()]
            left += [pair for both in zip(reversed(values), reversed(keys), strict=True) for pair in both]
        elif isinstance(item, list):
            left += [(f"{at}.{place}".lstrip("."), inner) for place, inner in reversed([*enumerate(item)])]
    return ""


def _half(reason: str, escape: re.Match[str]) -> BadJSON:
    return BadJSON(reason, escape.start(), fatal=False)


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"unexpected character, expected a JSON value ({name})")


# ``json.loads`` would make a decoder each time that it is given a function.
_decode = json.JSONDecoder(parse_constant=_refuse).decode


Misfit: TypeAlias = Literal["missing", "extra", "type", "tag"]


class Spot(Struct, frozen=True):
    """A place in the body: ours, the provider's (with the tags), and where in the structs (``thinking.signature``)."""

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


class Hole(Struct, frozen=True):
    """Stands where a value could not be read at all; ``kind`` is the type it named, or ""."""

    kind: str = ""


def fit(value: object, wire: object, spot: Spot, report: Report) -> object:
    """Read ``value`` as the type ``wire``, reporting each misfit; a Hole stands where nothing could be made of it."""
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


def without_holes(items: Sequence[object], kind: type[T], stand_in: T) -> list[T]:
    """The items of a ``kind``; where one could not be read, the stand-in."""
    return [stand_in if isinstance(each, Hole) else each for each in items if isinstance(each, Hole | kind)]


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
    """Read an object as one of several structs, which their tag tells apart."""
    if options[0].tag is None:
        return _fit_fields(value, options[0], spot, report)
    if "type" not in value:
        report(spot.field("type"), "missing", "Field required")
        return Hole()
    tag = value["type"]
    chosen = next((option for option in options if option.tag == tag), None)
    if chosen is None:
        tags = ", ".join(repr(tag) for tag in sorted(str(option.tag) for option in options))
        report(spot, "tag", f"Input tag '{tag}' found using 'type' does not match any of the expected tags: {tags}")
        return Hole(tag if isinstance(tag, str) else "")
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
    if any(isinstance(part, Hole) for part in made.values()):
        return Hole(str(info.tag or ""))
    built: object = info.cls(**made)
    return built


def _options(info: inspect.Type) -> Sequence[inspect.Type]:
    return info.types if isinstance(info, inspect.UnionType) else (info,)


def _expected(options: Sequence[inspect.Type]) -> str:
    """Say what would have fitted, as pydantic does for the last of the alternatives."""
    match options[-1] if not isinstance(options[-1], inspect.NoneType) else options[0]:
        case inspect.StrType():
            return "Input should be a valid string"
        case inspect.BoolType():
            return "Input should be a valid boolean"
        case inspect.ListType():
            return "Input should be a valid list"
        case inspect.LiteralType(values=values):
            return f"Input should be {' or '.join(repr(value) for value in values)}"
    return "Input should be a valid dictionary"


def _stand_in(options: Sequence[inspect.Type]) -> object:
    """Give a harmless value for one that was reported already, or a Hole where none is harmless."""
    match options[0]:
        case inspect.StrType() if len(options) == 1:
            return "-"
        case inspect.StructType(cls=cls, tag=None, fields=()):
            return cls()
        case inspect.BoolType():
            return False
    return Hole()
