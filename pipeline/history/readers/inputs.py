"""A call's input, in whichever form it was written, and the id of a call that came without one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Raw

from pipeline.history.readers.fields import Fields, Notes, as_string
from pipeline.history.readers.rawjson import MAX_NESTING, check_nesting, compact, may_nest_too_deeply, starts_with

_LIST: Final = msgspec.json.Decoder(list[Raw])
_STRING: Final = msgspec.json.Decoder(str)
EMPTY_OBJECT: Final = Raw(b"{}")
_RAW: Final = msgspec.json.Decoder(Raw)
_BLANK: Final = " \t\r\n"
_BRACE: Final = ord("{")
_ILLEGAL: Final = re.compile(r"[^a-zA-Z0-9_-]")


def arguments_object(arguments: str) -> Raw | None:
    """The JSON object that a string of arguments holds, as it was written there, or None if it holds none."""
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
        # What is no JSON by itself may be JSON beside others, whose values then begin and end elsewhere.
        if data[0] != _BRACE or (len(data) != len(each) and data != each.strip(_BLANK).encode()):
            return None
    return values


def inputs_of(arguments: Sequence[str]) -> list[Raw] | None:
    """The inputs in the arguments of healthy calls, or None."""
    for each in arguments:
        if len(each) > MAX_NESTING and may_nest_too_deeply(each.encode("utf-8", "replace")):
            return None
    return argument_objects(arguments)


def arguments_of(fields: Fields, name: str) -> Raw:
    """The input in a call's arguments, which are a string of JSON where they are as the shape has them."""
    return read_input(fields.take(name), fields.at(name), fields.notes, encoded=True)[0]


def read_input(value: Raw | None, path: str, notes: Notes, *, encoded: bool = False) -> tuple[Raw, bool]:
    """A call's input and whether it is incomplete.

    An object is taken as it is written, and so is an object inside a string of JSON: where ``encoded`` says that
    the shape writes inputs so, this is no mend. Missing, null and empty inputs are ``{}``. Any other whole value, such
    as the list that PHP writes for an empty object, stays for the repair to wrap. Any other string is what a model
    began and never finished: it is kept as a JSON string, marked incomplete, and never parsed and closed.
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
    """Whether an input that was read is one that a model began and never finished."""
    return starts_with(call_input, b'"') and is_cut(as_string(call_input, ""))


def is_cut(text: str) -> bool:
    """Whether a text that is no JSON may be the beginning of some; any other is free text, and whole."""
    return text.lstrip()[:1] in ("{", "[", '"')


def _whole_value(text: str) -> Raw | None:
    """The list, number or boolean that a string of JSON is; no stream that was cut off leaves one behind."""
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


def derived_id(name: str) -> str:
    """The id of a call that has none: the same for the call and its result, as both carry the tool's name."""
    return f"call_{_ILLEGAL.sub('_', name)}"
