"""JSON text before its meaning: bytes from whatever the caller has, and limits that no parser checks for us.

Everything here runs in time linear in the input, and nothing recurses into it.
"""

from __future__ import annotations

import base64
import json
import math
import re
from itertools import accumulate
from typing import Any, Final, NoReturn

import msgspec
from msgspec import Raw

from pipeline.errors import InputError

MAX_NESTING: Final = 500
"""How deep one message, or one value beside the messages, may nest."""

_BOM: Final = b"\xef\xbb\xbf"
# A quoted string: plain runs and escapes in turn, so that no character is looked at twice.
_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_TOKEN: Final = re.compile(_STRING.pattern + rb"|[\[\]{}:,]", re.DOTALL)
# What the list of messages is called in the shapes that are read.
_ROOTS: Final = ("messages", "input", "contents")
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_KINDS: Final = {ord("{"): "an object", ord("["): "a list", ord('"'): "a string", ord("n"): "null"}


def kind_of(value: Raw | bytes) -> str:
    """What a JSON value is, in words for an error message."""
    first = memoryview(value)[0]
    if first in b"tf":
        return "a boolean"
    return _KINDS.get(first, "a number")


def starts_with(value: Raw | bytes, character: bytes) -> bool:
    """Whether a JSON value begins with this character, which tells its type."""
    return memoryview(value)[0] == character[0]


def wrong_type(path: str, expected: str, value: Raw | bytes) -> InputError:
    """The error for a value of another type than its place asks for."""
    return InputError("wrong_type", f"expected {expected}, found {kind_of(value)}", path=path)


def nesting_error(path: str = "") -> InputError:
    return InputError("nested_too_deeply", f"nests deeper than {MAX_NESTING} levels", path=path, rule="nesting")


def may_nest_too_deeply(value: Raw | bytes) -> bool:
    """A cheap necessary condition: too short or too few brackets cannot nest beyond the limit.

    It leaves room for the few levels that stand around the value in its message.
    """
    view = memoryview(value)
    if len(view) <= MAX_NESTING:
        return False
    data = bytes(view)
    return data.count(b"{") + data.count(b"[") > MAX_NESTING - 20


def check_nesting(value: Raw | bytes, path: str) -> None:
    """Refuse a value that nests deeper than `MAX_NESTING`.

    Raises:
        InputError: code ``nested_too_deeply``.
    """
    if may_nest_too_deeply(value) and depth_of(bytes(value)) > MAX_NESTING:
        raise nesting_error(path)


def depth_of(data: bytes) -> int:
    """How many brackets are open at the deepest place, strings apart."""
    brackets = _STRING.sub(b"", data).translate(None, _NOT_BRACKETS)
    return max(accumulate(1 if bracket in b"[{" else -1 for bracket in brackets), default=0)


def deep_place(data: bytes, root: str) -> str:
    """The message, or the key beside the messages, in which JSON text first nests beyond `MAX_NESTING`, if any does.

    A scan, for text that parsers recurse in too deeply. ``root`` is what a bare list of messages is called.
    """
    open_at: list[str | int] = []
    string = b""
    for found in _TOKEN.finditer(data):
        token = found[0]
        if token in (b"{", b"["):
            open_at.append("" if token == b"{" else 0)
            if len(open_at) > MAX_NESTING:
                return _place_of(open_at[0], open_at[1], root)
        elif token in (b"}", b"]"):
            del open_at[-1:]
        elif token == b"," and open_at and isinstance(open_at[-1], int):
            open_at[-1] += 1
        elif token == b":" and open_at:
            open_at[-1] = string[1:-1].decode("utf-8", "replace")
        else:
            string = token
    return ""


def _place_of(first: str | int, second: str | int, root: str) -> str:
    """A message or a key, by the index or key in the outermost value and in the one in that."""
    if isinstance(first, int):
        return f"{root}.{first}"
    if first in _ROOTS:
        return f"{first}.{second}" if isinstance(second, int) else first
    # A message by itself, or wrapped as a transcript's lines are, whose places are other ones.
    return {"content": f"{root}.0", "parts": f"{root}.0", "message": ""}.get(first, first)


def compact(data: bytes) -> bytes:
    """One line without insignificant white space, if there are line breaks; otherwise the bytes as they are.

    A line break cannot stand inside a JSON string, and values are later written into bodies of one line.
    """
    return msgspec.json.format(data, indent=-1) if b"\n" in data or b"\r" in data else data


def to_bytes(data: object, path: str = "") -> bytes:
    """The input's JSON, without a byte order mark or white space around it.

    Surrogates that stand raw in a string, which UTF-8 forbids, become escapes; `surrogates` sees to those. ``path`` is
    where the input stands, if it is a single message.

    Raises:
        InputError: empty, or an object that JSON has no form for.
    """
    if isinstance(data, str):
        data = data.encode("utf-8", "backslashreplace")
    elif isinstance(data, (bytearray, memoryview)):
        data = bytes(data)
    if not isinstance(data, bytes):
        return _encode(data, path)
    data = data.removeprefix(_BOM).strip(b" \t\r\n")
    if not data:
        raise InputError("empty", "the input is empty")
    return data


def is_utf8(data: bytes) -> bool:
    """Whether bytes are UTF-8, for places that a parser passes over."""
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def to_utf8(data: bytes) -> bytes:
    """Bytes as UTF-8: surrogates that were written as if they were characters become escapes.

    Raises:
        InputError: code ``not_utf8``.
    """
    if is_utf8(data):
        return data
    try:
        return data.decode("utf-8", "surrogatepass").encode("utf-8", "backslashreplace")
    except UnicodeDecodeError as error:
        message = f"the input is not UTF-8: {error.reason} at byte {error.start}"
        raise InputError("not_utf8", message) from None


def _encode(value: object, path: str) -> bytes:
    try:
        data = msgspec.json.encode(value)
    except RecursionError:
        raise nesting_error(path or _deep_message(value)) from None
    except UnicodeEncodeError:
        return _encode_with_surrogates(value, path)
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        _refuse(error)
    # NaN and the infinities are written as null: look for them only where there is a null.
    if b"null" in data:
        _refuse_non_finite(value)
    return data


def _deep_message(value: object) -> str:
    """The first message of a history that nests too deeply to be encoded, ``""`` where that is not known."""
    messages, root = value, "messages"
    if isinstance(value, dict):
        root = next((root for root in _ROOTS if root in value), "")
        messages = value.get(root)
    for at, message in enumerate(messages if isinstance(messages, list) else ()):
        try:
            msgspec.json.encode(message)
        except RecursionError:
            return f"{root}.{at}"
        except (TypeError, ValueError, msgspec.MsgspecError):
            continue  # half a surrogate pair, say: the nesting is what was asked for
    return ""


def _encode_with_surrogates(value: object, path: str) -> bytes:
    """Write as msgspec does (but for the exponents of floats), and half a surrogate pair as an escape."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=_bytes_as_base64)
    except RecursionError:
        raise nesting_error(path or _deep_message(value)) from None
    except (TypeError, ValueError) as error:
        _refuse(error)
    return text.encode("utf-8", "backslashreplace")


def _bytes_as_base64(value: object) -> str:
    """Write bytes as msgspec does; boto3 has them in images and documents."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _refuse(error: Exception) -> NoReturn:
    raise InputError("not_json", f"the input has no form in JSON: {error}") from None


def _refuse_non_finite(value: object) -> None:
    waiting: list[Any] = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            waiting.extend(item.values())
        elif isinstance(item, (list, tuple, set, frozenset)):
            waiting.extend(item)
        elif isinstance(item, float) and not math.isfinite(item):
            raise InputError("not_json", f"the input has no form in JSON: {item}")
