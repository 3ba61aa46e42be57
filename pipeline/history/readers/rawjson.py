r"""JSON text before its meaning: bytes from whatever the caller has, limits that no parser checks, and half surrogates.

Everything here runs in time linear in the input, and nothing recurses into it.

JSON may escape one half of a surrogate pair (``"\ud83d"``), which no Unicode string can hold: frameworks cut texts by
UTF-16 units, and the two halves end up in neighbouring parts. No parser lets them through, so each half is masked as
one private-use character that does not occur in the input. After parsing, a high half at the end of a text part and a
low half at the start of the next are the character that they were; any other half becomes U+FFFD.
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

from reknit.pipeline.errors import InputError

MAX_NESTING: Final = 500
"""The maximum depth of one message, or of one value besides the messages."""

_BOM: Final = b"\xef\xbb\xbf"
# A quoted string: plain runs and escapes in turn, so that no character is looked at twice.
_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_TOKEN: Final = re.compile(_STRING.pattern + rb"|[\[\]{}:,]", re.DOTALL)
# The names of the list of messages in the supported shapes.
_ROOTS: Final = ("messages", "input", "contents")
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_KINDS: Final = {ord("{"): "an object", ord("["): "a list", ord('"'): "a string", ord("n"): "null"}

# A whole pair or one half, after an even number of backslashes, which escape each other.
_ESCAPE: Final = re.compile(
    rb"(?<!\\)((?:\\\\)*+)\\u"
    rb"(?:[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|([dD][89a-fA-F][0-9a-fA-F]{2}))"
)
_FIRST: Final = 0xD800
_FIRST_LOW: Final = 0xDC00
_LAST: Final = 0xDFFF
# Private-use planes 15 and 16, in windows that hold one character for each surrogate.
_WINDOWS: Final = range(0xF0000, 0x110000, 0x800)
_REPLACEMENT: Final = "\ufffd".encode()


def kind_of(value: Raw | bytes) -> str:
    """Return a JSON value's type, in words for an error message."""
    first = memoryview(value)[0]
    if first in b"tf":
        return "a boolean"
    return _KINDS.get(first, "a number")


def starts_with(value: Raw | bytes, character: bytes) -> bool:
    """Return True if a JSON value begins with this character, which identifies its type."""
    return memoryview(value)[0] == character[0]


def wrong_type(path: str, expected: str, value: Raw | bytes) -> InputError:
    """The error for a value of another type than its place asks for."""
    return InputError("wrong_type", f"expected {expected}, found {kind_of(value)}", path=path)


def nesting_error(path: str = "") -> InputError:
    return InputError("nested_too_deeply", f"nests deeper than {MAX_NESTING} levels", path=path, rule="nesting")


def may_nest_too_deeply(value: Raw | bytes) -> bool:
    """Check a cheap necessary condition: text that is too short or has too few brackets cannot nest beyond the limit.

    It allows for the few levels around the value in its message.
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
    """Return the depth of nested brackets outside strings."""
    brackets = _STRING.sub(b"", data).translate(None, _NOT_BRACKETS)
    return max(accumulate(1 if bracket in b"[{" else -1 for bracket in brackets), default=0)


def deep_place(data: bytes, root: str) -> str:
    """Return the message or other key in which JSON text first nests beyond `MAX_NESTING`, or None.

    A scan, for text in which parsers would recurse too deeply. ``root`` is the name of a bare list of messages.
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
    """Return one line without insignificant white space, if there are line breaks; otherwise the bytes unchanged.

    A line break cannot occur inside a JSON string, and values are later written into bodies of one line.
    """
    return msgspec.json.format(data, indent=-1) if b"\n" in data or b"\r" in data else data


def to_bytes(data: object, path: str = "") -> bytes:
    """Return the input's JSON, without a byte order mark or white space around it.

    Raw surrogates in a string, which UTF-8 forbids, become escapes, which a `Mask` hides. ``path`` is the place of the
    input, if it is a single message.

    Raises:
        InputError: empty, or an object without a JSON form.
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
    """Return True if bytes are UTF-8, for places that a parser passes over."""
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


class Mask:
    """A window of private-use characters that replace the surrogates, one for one."""

    __slots__ = ("_escape", "_mark", "_offset")

    def __init__(self, start: int) -> None:
        self._offset = start - _FIRST
        # Windows are aligned: in UTF-8 they share two bytes, and the third takes 32 values.
        lead, third = chr(start).encode()[:2], chr(start).encode()[2]
        self._mark = re.compile(lead + rb"[\x%02x-\x%02x]." % (third, third + 31), re.DOTALL)
        high = _FIRST + ((start - 0x10000) >> 10)
        self._escape = re.compile(rb"\\u(?:%04x|%04x)" % (high, high + 1), re.IGNORECASE)

    def is_free_in(self, data: bytes) -> bool:
        """Return True if no character of the window is in this JSON text, raw or escaped."""
        return self._mark.search(data) is None and self._escape.search(data) is None

    def is_in(self, data: bytes) -> bool:
        return self._mark.search(data) is not None

    def hide(self, data: bytes) -> bytes:
        """Write each lone half in JSON text as its masking character."""

        def one(match: re.Match[bytes]) -> bytes:
            backslashes, half = match[1], match[2]
            return match[0] if half is None else backslashes + chr(self._offset + int(half, 16)).encode()

        return _ESCAPE.sub(one, data)

    def show(self, data: bytes) -> bytes:
        """Write each masked half in JSON text as its escape again: the undoing of `hide`."""
        return self._mark.sub(lambda match: b"\\u%04x" % (ord(match[0].decode()) - self._offset), data)

    def reveal(self, data: bytes) -> bytes:
        return self._mark.sub(_REPLACEMENT, data)

    def joined(self, first: str, second: str) -> str:
        """The character whose halves end ``first`` and start ``second``, or ``""``."""
        if not first or not second:
            return ""
        high, low = ord(first[-1]) - self._offset, ord(second[0]) - self._offset
        if _FIRST <= high < _FIRST_LOW <= low <= _LAST:
            return chr(0x10000 + ((high - _FIRST) << 10) + low - _FIRST_LOW)
        return ""


def without_halves(data: bytes) -> bytes:
    """JSON text with U+FFFD for each lone half."""
    return _ESCAPE.sub(lambda match: match[0] if match[2] is None else match[1] + _REPLACEMENT, data)


def find_mask(data: bytes) -> Mask | None:
    """Return a mask for the lone surrogates in JSON text; None if there are none.

    Raises:
        InputError: the text uses characters of every window, which no real text does.
    """
    if not any(match[2] for match in _ESCAPE.finditer(data)):
        return None
    for start in _WINDOWS:
        mask = Mask(start)
        if mask.is_free_in(data):
            return mask
    raise InputError("not_json", "lone surrogates among characters of every private-use window")
