"""One JSON object of unknown origin, taken apart key by key; keys that no reader takes are dropped with a fix.

This module also reads the one value that all shapes write in many forms: the input of a call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, KeysView, Mapping, Sequence
from typing import Final, TypeVar

import msgspec
from msgspec import Raw, structs

from reknit.pipeline import fixes, losses
from reknit.pipeline.errors import InputError
from reknit.pipeline.history.pieces import block_path, is_whole, tool_id
from reknit.pipeline.history.readers.rawjson import (
    MAX_NESTING,
    check_nesting,
    compact,
    kind_of,
    may_nest_too_deeply,
    starts_with,
    wrong_type,
)
from reknit.pipeline.model import Turn


class Notes:
    """The fixes of one reading, in order.

    ``reveal`` restores the text of the input, where masks replace lone surrogates in it. ``unknown`` has the types of
    blocks that the shape of a framework does not have, with their places.
    """

    __slots__ = ("_reveal", "fixes", "unknown")

    def __init__(self, reveal: Callable[[bytes], bytes] | None = None) -> None:
        self._reveal = reveal
        self.fixes: list[fixes.Fix] = []
        self.unknown: list[tuple[str, str]] = []

    def attempt(self) -> Notes:
        """Return notes for an attempt; the caller adds their ``fixes`` if the attempt succeeds."""
        return Notes(self._reveal)

    def add_fix(self, code: str, path: str, detail: str = "", *, before: bytes = b"", after: bytes = b"") -> None:
        """Record one fix of the catalogue; ``before`` and ``after`` are JSON as written."""
        if self._reveal is not None:
            path, detail = self._reveal(path.encode()).decode(), self._reveal(detail.encode()).decode()
            before, after = self._reveal(before), self._reveal(after)
        self.fixes.append(
            fixes.make(
                code,
                path,
                detail=detail,
                before=Raw(before) if before else None,
                after=Raw(after) if after else None,
            )
        )

    def add_unreadable_line(self, number: int, raw: bytes) -> None:
        """Record a line of a transcript that is left out; ``number`` counts from 0, as paths do."""
        self.add_fix("line_unreadable", f"lines.{number}", f"line {number + 1}, {len(raw)} bytes")

    def add_unusable_line(self, number: int, error: InputError) -> None:
        """Record a line of a transcript that is left out because something in it has no meaning as a message."""
        self.add_fix("line_unreadable", f"lines.{number}", f"line {number + 1}, {error.message} at {error.path}")

    def add_cut_line(self, number: int, raw: bytes, place: Sequence[str | int]) -> None:
        """Record a line that ends in the middle, and is read up to there."""
        where = f", cut in {'.'.join(map(str, place))}" if place else ""
        self.add_fix("line_cut", f"lines.{number}", f"line {number + 1}, {len(raw)} bytes{where}")

    def add_skipped_line(self, number: int, kind: str, raw: bytes) -> None:
        """Record a line of a type that is not known, with content that is left out."""
        what = f"line {number + 1}, unknown type {kind[:40]!r}, {len(raw)} bytes"
        self.add_fix("line_skipped", f"lines.{number}", what)

    def drop_members(self, members: Mapping[str, Raw], path: str) -> None:
        """Record members of an object that are left out, but for those that say nothing."""
        for key, value in members.items():
            if (data := bytes(value)) not in _NOTHING:
                place = f"{path}.{key}" if path else key
                if key == losses.MEMBER:
                    self._add_losses(data, place)
                self.add_fix("field_dropped", place, f"{key}: {kind_of(value)}", before=data)

    def _add_losses(self, transformations: bytes, path: str) -> None:
        """Record what the provider of an answer left out of its request."""
        for number, loss in enumerate(losses.losses_in(transformations)):
            where = f" at {loss.path}" if loss.path else ""
            self.add_fix(losses.CODE, f"{path}.{number}", f"{loss.reason}{where}")


def with_ids(made: list[fixes.Fix], turns: Iterable[Turn]) -> list[fixes.Fix]:
    """The fixes of one reading, those of a tool call or a result, or of something in one, with the call's id."""
    if not made:
        return made
    called = {
        _region(block_path(turn, at)): call
        for turn in turns
        for at, block in enumerate(turn.blocks)
        if (call := tool_id(block))
    }
    return [structs.replace(fix, id=_call_at(fix.path, called)) for fix in made] if called else made


def _region(path: str) -> str:
    """Return the region of a tool block in the input; a result that is a message's content is the whole row."""
    return path.removesuffix(".content") if is_whole(path) else path


def _call_at(path: str, called: dict[str, str]) -> str:
    while path not in called and path:
        path = path.rpartition(".")[0]
    return called.get(path, "")


_T = TypeVar("_T")

_OBJECT: Final = msgspec.json.Decoder(dict[str, Raw])
_LIST: Final = msgspec.json.Decoder(list[Raw])
_OBJECTS: Final = msgspec.json.Decoder(list[dict[str, Raw]])
_STRING: Final = msgspec.json.Decoder(str)
_STRINGS: Final = msgspec.json.Decoder(list[str])
_NOTHING: Final = (b"null", b'""', b"[]", b"{}")
# False itself, what is false in Python, and the word as a string.
_FALSE: Final = (b"false", b"", b"0", b"0.0", b"[]", b"{}")


def as_object(value: Raw | bytes, path: str) -> dict[str, Raw]:
    """The keys of an object; a key that is there twice has its last value, as JSON parsers do."""
    return _decode(_OBJECT, value, path, "an object")


def as_list(value: Raw | bytes, path: str) -> list[Raw]:
    return _decode(_LIST, value, path, "a list")


def as_string(value: Raw | bytes, path: str) -> str:
    data = bytes(value)
    if b"\\" not in data and starts_with(data, b'"'):
        # JSON that has been read before: nothing is left to decode.
        return data[1:-1].decode()
    return _decode(_STRING, value, path, "a string")


def as_strings(values: Sequence[bytes]) -> list[str]:
    """The texts of strings that are known to be JSON, in at most one decode."""
    if any(b"\\" in value for value in values):
        return _decode(_STRINGS, b"[%b]" % b",".join(values), "", "strings")
    return [value[1:-1].decode() for value in values]


def objects_in(value: Raw, path: str) -> list[dict[str, Raw] | None]:
    """The members of each item of a list, None for one that is no object; in one decode where all are objects."""
    try:
        return list(_OBJECTS.decode(value))
    except msgspec.ValidationError:
        items = as_list(value, path)
        objects = iter(_OBJECTS.decode(b"[%b]" % b",".join([item for item in items if starts_with(item, b"{")])))
        return [next(objects) if starts_with(item, b"{") else None for item in items]


def _decode(decoder: msgspec.json.Decoder[_T], value: Raw | bytes, path: str, expected: str) -> _T:
    try:
        return decoder.decode(value)
    except msgspec.ValidationError:
        raise wrong_type(path, expected, value) from None
    except msgspec.DecodeError as error:
        raise InputError("not_json", str(error), path=path) from None


def unknown_role(name: str, path: str, expected: str) -> InputError:
    return InputError("unknown_role", f"expected one of {expected}, found {name[:40]!r}", path=path)


class Fields:
    """The keys of one object. Each ``take`` removes a key; null is the same as not there.

    A value of another type than is asked for raises an `InputError`.

    Attributes:
        whole: the object as it is written.
        path: the object's place in the input.
        notes: where the fixes go.
    """

    __slots__ = ("_objects", "_rest", "notes", "path", "whole")

    def __init__(
        self, value: Raw | bytes, path: str, notes: Notes, *, members: Mapping[str, Raw] | None = None
    ) -> None:
        """``members`` are the object's where they have been decoded."""
        self.whole = value
        self.path = path
        self.notes = notes
        self._rest = as_object(value, path) if members is None else {**members}
        self._objects: dict[str, list[dict[str, Raw] | None]] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._rest and not starts_with(self._rest[key], b"n")

    def at(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def keys(self) -> KeysView[str]:
        """The keys that are still there, as a view: it changes with them."""
        return self._rest.keys()

    def names(self) -> list[str]:
        """The keys that are still there and not null, in their order."""
        return [key for key in self._rest if key in self]

    def members(self) -> dict[str, Raw]:
        """Everything that is still there, null as well."""
        return {**self._rest}

    def peek(self, key: str) -> Raw | None:
        """A value that stays."""
        value = self._rest.get(key)
        return None if value is None or starts_with(value, b"n") else value

    def objects(self, key: str) -> list[dict[str, Raw] | None]:
        """The members of each item of a list that stays, decoded once; none where it is no list."""
        if key not in self._objects:
            value = self.peek(key)
            is_list = value is not None and starts_with(value, b"[")
            self._objects[key] = objects_in(value, self.at(key)) if value is not None and is_list else []
        return self._objects[key]

    def take(self, key: str) -> Raw | None:
        value = self._rest.pop(key, None)
        return None if value is None or starts_with(value, b"n") else value

    def take_string(self, key: str) -> str | None:
        value = self.take(key)
        return None if value is None else as_string(value, self.at(key))

    def take_text(self, key: str) -> str:
        """A string; the empty one where it is missing, which the structure repair then sees to."""
        return self.take_string(key) or ""

    def take_flag(self, key: str) -> bool:
        """A boolean; false where it is missing. Other types count by their truth, as their writers mean it."""
        value = self.take(key)
        if value is None:
            return False
        data = bytes(value)
        if data not in (b"true", b"false"):
            self.notes.add_fix("flag_read", self.at(key), before=data)
        return data.strip(b'"').lower() not in _FALSE

    def take_object(self, key: str) -> Fields | None:
        value = self.take(key)
        return None if value is None else Fields(value, self.at(key), self.notes)

    def ignore(self, *keys: str) -> None:
        """Leave out keys that say nothing which is not said elsewhere."""
        for key in keys:
            self._rest.pop(key, None)

    def put(self, key: str, value: Raw) -> None:
        """Put back a value that was taken."""
        self._rest[key] = value

    def take_rest(self) -> dict[str, Raw]:
        """Return every member that was not taken and is not null."""
        rest = {key: self._rest[key] for key in self.names()}
        self._rest.clear()
        return rest

    def clear(self) -> None:
        """Leave every key to whoever has the whole of the object."""
        self._rest.clear()

    def drop_rest(self) -> None:
        """Record every key that was not taken."""
        self.notes.drop_members(self._rest, self.path)
        self._rest.clear()


EMPTY_OBJECT: Final = Raw(b"{}")
_RAW: Final = msgspec.json.Decoder(Raw)
_BLANK: Final = " \t\r\n"


def arguments_object(arguments: str) -> Raw | None:
    """Return the JSON object that a string of arguments holds, as written, or None if it holds none."""
    try:
        # A line break would break the lines that bodies are written in.
        value = _RAW.decode(compact(arguments.encode()) if "\n" in arguments or "\r" in arguments else arguments)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None
    return value if starts_with(value, b"{") else None


def argument_objects(given: Sequence[str]) -> list[Raw] | None:
    """The objects in the arguments of several calls, in one decode; None where any of them holds none."""
    if len(given) == 1:
        found = arguments_object(given[0])
        return None if found is None else [found]
    written = ",".join(given)
    try:
        if "\n" in written or "\r" in written:
            given = [compact(each.encode()).decode() for each in given]
            written = ",".join(given)
        values = _LIST.decode(f"[{written}]")
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None
    if len(values) != len(given):
        return None
    for at, value in enumerate(values):
        data, each = bytes(value), given[at]
        # Text that is not JSON by itself may be JSON together with others, whose values then have other bounds.
        if data[:1] != b"{" or (len(data) != len(each) and data != each.strip(_BLANK).encode()):
            return None
    return values


def inputs_of(arguments: Sequence[str]) -> list[Raw] | None:
    """The inputs in the arguments of valid calls, or None."""
    for each in arguments:
        if len(each) > MAX_NESTING and may_nest_too_deeply(each.encode("utf-8", "replace")):
            return None
    return argument_objects(arguments)


def arguments_of(fields: Fields, name: str) -> Raw:
    """The input in a call's arguments, which are a string of JSON where they are as the shape has them."""
    return read_input(fields.take(name), fields.at(name), fields.notes, encoded=True)[0]


def read_input(value: Raw | None, path: str, notes: Notes, *, encoded: bool = False) -> tuple[Raw, bool]:
    """Return a call's input and whether it is incomplete.

    An object is taken as written, and so is an object inside a string of JSON: if ``encoded`` says that the shape
    writes inputs in this way, this is not a repair. Missing, null and empty inputs are ``{}``. Any other whole value,
    such as the list that PHP writes for an empty object, is left for the repair to wrap. Any other string is one that a
    model did not finish: it is kept as a JSON string, marked incomplete, and never parsed or closed.
    """
    if value is None:
        notes.add_fix("field_missing", path, "{}")
        return EMPTY_OBJECT, False
    if starts_with(value, b"{"):
        return value, False
    if not starts_with(value, b'"'):
        return Raw(compact(bytes(value))), False
    text = _STRING.decode(value)
    if text.strip() in ("", "null"):
        notes.add_fix("field_missing", path, "{}")
        return EMPTY_OBJECT, False
    found = _nested_object(text, path)
    if found is None and (whole := _whole_value(text)) is not None:
        notes.add_fix("input_parsed", path, before=bytes(value), after=bytes(whole))
        return whole, False
    if found is None:
        return Raw(msgspec.json.encode(text)), is_cut(text)
    parsed, levels = found
    if levels > 1 or not encoded:
        notes.add_fix("input_parsed", path, before=bytes(value), after=bytes(parsed))
    return parsed, False


def is_incomplete(call_input: Raw) -> bool:
    """Return True if an input that was read is one that a model began and never finished."""
    return starts_with(call_input, b'"') and is_cut(as_string(call_input, ""))


def is_cut(text: str) -> bool:
    """Return True if a text that is no JSON may be the beginning of some; any other is free text, and whole."""
    return text.lstrip()[:1] in ("{", "[", '"')


def _whole_value(text: str) -> Raw | None:
    """Return the list, number or boolean in a string of JSON, or None; a stream that was cut never leaves one."""
    try:
        value = _RAW.decode(compact(text.encode()))
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None
    return None if starts_with(value, b'"') else value


def _nested_object(text: str, path: str) -> tuple[Raw, int] | None:
    """The object in a string of JSON, or in a string of JSON that is the JSON of a string."""
    for levels in (1, 2):
        check_nesting(text.encode(), path)
        found = arguments_object(text)
        if found is not None:
            return found, levels
        try:
            text = _STRING.decode(text)
        except (msgspec.DecodeError, UnicodeEncodeError):
            return None
    return None
