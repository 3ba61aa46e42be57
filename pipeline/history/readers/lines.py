"""The lines of a program's own file: their encoding, and the lines of unknown types that would be missed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Raw

from reknit.pipeline.errors import InputError
from reknit.pipeline.history.readers.rawjson import is_utf8, starts_with, to_utf8

# The members in which programs keep the words of a message, and those in which they keep a message.
_WORDS: Final = ("content", "text", "parts", "prompt", "output", "message", "encrypted_content")
_WRAPPERS: Final = ("message", "payload", "data", "item", "attachment", "event")
# A message may be in a wrapper, and a wrapper in another.
_DEPTH: Final = 3
_NOTHING: Final = (b"null", b'""', b"[]", b"{}")
_OBJECT: Final = msgspec.json.Decoder(dict[str, Raw])
_STRING: Final = msgspec.json.Decoder(str)


def utf8_lines(text: bytes) -> bytes:
    """Return text whose lines are UTF-8; a line that cannot be is unchanged, for `numbered_lines` to pass over."""
    try:
        return to_utf8(text)
    except InputError:
        return b"\n".join(_utf8_line(line) for line in text.split(b"\n"))


def _utf8_line(line: bytes) -> bytes:
    try:
        return to_utf8(line)
    except InputError:
        return line


def as_items(text: bytes) -> list[Raw]:
    """Return the lines of a file as the items of a JSON list; one that is no object is the string of its text.

    A line that is not UTF-8 is blank from the first byte that is not: the line cannot be read with the rest either.
    """
    return [_as_item(line) for line in text.split(b"\n")]


def _as_item(line: bytes) -> Raw:
    if members_of(line) is not None and b"\r" not in line:
        return Raw(line)
    return Raw(msgspec.json.encode(utf8_prefix(line).ljust(len(line)).decode()))


def utf8_prefix(data: bytes) -> bytes:
    """Return the bytes before the first that are not UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return data[: error.start]
    return data


def from_items(items: Sequence[Raw]) -> bytes:
    """Return the file that `as_items` made a list of."""
    return b"\n".join(_as_line(item) for item in items)


def _as_line(item: Raw) -> bytes:
    return _STRING.decode(item).replace("\n", " ").encode() if starts_with(item, b'"') else bytes(item)


def numbered_lines(text: bytes) -> Iterator[tuple[int, bytes, bool]]:
    """Yield the lines that are not blank, numbered from 0, and True for the last of them.

    Bytes of zero before a line are no part of it: a crash of the system leaves them in place of what was not written.
    """
    lines = text.rstrip().split(b"\n")
    for number, raw in enumerate(lines):
        if raw.strip():
            yield number, raw.lstrip(b"\0") or raw, number == len(lines) - 1


def members_of(raw: bytes | Raw) -> dict[str, Raw] | None:
    """Return the members of a line that is the JSON of an object in UTF-8, or None."""
    try:
        return _OBJECT.decode(raw) if is_utf8(bytes(raw)) else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def holds_content(members: Mapping[str, Raw], depth: int = _DEPTH) -> bool:
    """Return True if an object, or a message in it, has words, parts of a message, or results."""
    for name, value in members.items():
        if name in _WRAPPERS and starts_with(value, b"{") and depth:
            if holds_content(members_of(value) or {}, depth - 1):
                return True
        elif name in _WORDS and bytes(value) not in _NOTHING and not value_is_blank(value):
            return True
    return False


def value_is_blank(value: Raw) -> bool:
    """Return True if a value is a string of nothing but white space, a number, or true or false."""
    data = bytes(value)
    return data[:1] in b"-0123456789tf" or (data[:1] == b'"' and not data.strip(b'"').strip())
