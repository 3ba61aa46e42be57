"""JSON as a provider's front door reads it: what is wrong with it, and how to read on where that is possible."""

from __future__ import annotations

import json
import re
from typing import NoReturn

from msgspec import Struct

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
    try:
        value: object = json.loads(text, parse_constant=_refuse)
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
