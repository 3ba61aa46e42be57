"""Misfits: values that do not have their declared type, and images of another type than declared.

A rule set's fast path is msgspec's own typed decode. Only when that fails does ``fit`` walk the values, guided by the
same structs: it names every misfit and repairs what it can, so that the other rules still see the rest. Its messages
are pydantic's, as Anthropic's API sends them, and so are the paths: a tagged struct adds its tag. OpenAI's two APIs
have their own messages (``Misfits``), and write paths with brackets (``messages[1].content[0].type``), Reknit with
dots.
"""

from __future__ import annotations

import binascii
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Struct, inspect

from reknit.pipeline.rules._fold import Walk
from reknit.pipeline.rules.base import Rule

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


# Images by their first bytes: format and size in pixels, from base64 text, without decoding the picture.

# Enough base64 for every fixed header (WebP's is the longest, 30 bytes), and a whole number of groups of four.
_HEAD = 64
# A JPEG's size comes after its metadata, which may be long; most have it within the first 48 KiB.
_JPEG_HEAD = 65_536
_JPEG_STANDALONE = {0x01, *range(0xD0, 0xD9)}
_JPEG_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}


class Picture(Struct, frozen=True):
    """Facts of the first bytes. ``media_type`` is None for an unknown format; a size of 0 was not found."""

    media_type: str | None
    width: int = 0
    height: int = 0


def look(data: str) -> Picture | None:
    """Read the header of a base64 image; None when the data is empty, not base64, or ends inside the header."""
    head = _decode(data[:_HEAD])
    if not head:
        return None
    try:
        if head.startswith(b"\x89PNG\r\n\x1a\n"):
            return Picture("image/png", *struct.unpack_from(">II", head, 16))
        if head.startswith((b"GIF87a", b"GIF89a")):
            return Picture("image/gif", *struct.unpack_from("<HH", head, 6))
        if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
            return _webp(head)
        if head.startswith(b"\xff\xd8\xff"):
            return _jpeg(data)
    except struct.error:
        return None
    return Picture(None)


def _decode(data: str) -> bytes:
    """Decode base64 text that may be cut anywhere; b"" where it is not base64."""
    whole = data if len(data) % 4 == 0 else data[: len(data) - len(data) % 4]
    try:
        return binascii.a2b_base64(whole, strict_mode=True)
    except ValueError:
        return b""


def _webp(head: bytes) -> Picture:
    kind = head[12:16]
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", head, 26)
        return Picture("image/webp", width & 0x3FFF, height & 0x3FFF)
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", head, 21)
        return Picture("image/webp", (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
    width, height = (int.from_bytes(head[at : at + 3], "little") + 1 for at in (24, 27))
    return Picture("image/webp", width, height)


def _jpeg(data: str) -> Picture:
    """Walk the segments up to the frame header; one that is not there leaves the size unknown."""
    found = _jpeg_size(_decode(data[:_JPEG_HEAD]))
    if found is None and len(data) > _JPEG_HEAD:
        found = _jpeg_size(_decode(data))
    return Picture("image/jpeg", *(found or (0, 0)))


def _jpeg_size(raw: bytes) -> tuple[int, int] | None:
    at = 2
    while at + 9 <= len(raw) and raw[at] == 0xFF:
        marker = raw[at + 1]
        if marker == 0xFF:  # fill byte
            at += 1
        elif marker in _JPEG_STANDALONE:
            at += 2
        elif marker in _JPEG_FRAMES:
            height, width = struct.unpack_from(">HH", raw, at + 5)
            return width, height
        else:
            at += 2 + int.from_bytes(raw[at + 2 : at + 4], "big")
    return None


# In OpenAI's words.

legal_name = re.compile(r"[a-zA-Z0-9_-]+").fullmatch
_DATA_URL = re.compile(r"data:([^;,]*)[^,]*;base64,", re.IGNORECASE)
_IMAGES = frozenset({"image/png", "image/jpeg", "image/jpg", "image/gif", "image/webp"})

_KINDS: dict[type, str] = {
    type(None): "null",
    bool: "a boolean",
    int: "an integer",
    float: "a decimal",
    str: "a string",
    list: "an array",
    dict: "an object",
}
_ONE_OF = "Input should be '"
_WANTED = {
    "Input should be a valid string": "a string",
    "Input should be a valid boolean": "a boolean",
    "Input should be a valid list": "an array",
    "Input should be a valid dictionary": "an object",
}


def bracketed(path: str) -> str:
    return re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", path)


def kind(value: object) -> str:
    return _KINDS.get(type(value), "a value")


class Misfits(Struct, frozen=True, kw_only=True):
    """Reports the findings of the tolerant reader in one value of the body, in OpenAI's words.

    Attributes:
        walk: receives the violations.
        rules: the rule of each kind of misfit; kinds without one are not reported.
        supported: the values that the provider lists for a place in the structs (``content[]`` is an item of the list).
        wanted: the provider's words for the expected type of a place, if they are not the plain ones.
        own: rules of single places.
    """

    walk: Walk
    rules: dict[Misfit, Rule]
    supported: dict[str, str]
    wanted: dict[str, str]
    own: dict[tuple[str, Misfit], Rule]

    def fit(self, value: object, wire: object, path: str) -> object:
        """Read the ``value`` at ``path`` as the type ``wire``, reporting what does not fit."""

        def report(spot: Spot, misfit: Misfit, words: str) -> None:
            self._report(_value(value, spot.path[len(path) :]), spot, misfit, words)

        return fit(value, wire, Spot(path, path), report)

    def kind_of(self, tool: object, path: str) -> object:
        """The type that a tool says it is of; "" where it cannot, which is reported."""
        if not isinstance(tool, dict):
            self.walk.refuse(self.rules["type"], path, at=bracketed(path), wanted="an object", got=kind(tool))
        elif "type" not in tool:
            self.walk.refuse(self.rules["missing"], f"{path}.type", at=bracketed(f"{path}.type"))
        else:
            return tool["type"]
        return ""

    def _report(self, value: object, spot: Spot, misfit: Misfit, words: str) -> None:
        place = f"{spot.place}[]" if spot.path.rpartition(".")[2].isdecimal() else spot.place
        if misfit == "type" and isinstance(value, str) and words.startswith(_ONE_OF):
            misfit = "tag"
        rule = self.own.get((place, misfit)) or self.rules.get(misfit)
        if rule is None:
            return
        tagged = misfit == "tag" and isinstance(value, dict)
        where = f"{spot.path}.type" if tagged else spot.path
        fields: dict[str, Any] = {
            "value": value["type"] if tagged and isinstance(value, dict) else value,
            "supported": self.supported.get(place, ""),
            "wanted": self.wanted.get(place) or _WANTED.get(words, words),
            "got": kind(value),
        }
        self.walk.refuse(rule, where, at=bracketed(where), **fields)


def _value(root: object, path: str) -> object:
    node = root
    for name in path.split(".")[1:]:
        if isinstance(node, dict):
            node = node.get(name)
        elif isinstance(node, list) and name.isdecimal() and int(name) < len(node):
            node = node[int(name)]
        else:
            return None
    return node


def listing(names: Sequence[str]) -> str:
    """Write a list of values as the provider does: quoted, with a comma before the last word."""
    quoted = [f"'{name}'" for name in names]
    return f"{', '.join(quoted[:-1])}, and {quoted[-1]}" if len(quoted) > 2 else " and ".join(quoted)


def media_type(url: str) -> str:
    """Return the media type of a base64 data URL; "" if there is none."""
    found = _DATA_URL.match(url)
    return found[1].lower() if found else ""


def unsupported_image(url: str) -> bool:
    """Return the type of a data URL that is not png, jpeg, gif or webp, by its declared type or by its first bytes."""
    found = _DATA_URL.match(url)
    if found is None:
        return False
    picture = look(url[found.end() :])
    return found[1].lower() not in _IMAGES or (picture is not None and picture.media_type is None)
