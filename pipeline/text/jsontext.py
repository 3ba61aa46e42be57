"""JSON inside a text: written as people and command lines like to read it, and where a value ends.

Written, it has ``", "`` and ``": "`` between tokens. Non-ASCII stays as it is, or is escaped for readers that cannot be
trusted with it. Raw JSON is rewritten token by token, so that a number keeps its digits and an object its order and its
duplicates.

`JsonSpan` is no parser. It tells soon, piece by piece, in one pass and with two numbers of state, that something is not
JSON: brackets are counted, outside of strings only what JSON can have there is let through, and inside of them no line
break. What is left is for a parser.
"""

from __future__ import annotations

import json
import re
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Final, Literal

from msgspec import Raw

# Possessive, for a string may be a file of 50 MB.
_TOKEN: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[,:]|[ \t\r\n]++')
_FOREIGN: Final = re.compile(r"[^\x00-\x7f]++")
_SPACED: Final = {",": ", ", ":": ": "}


def quoted(text: str) -> str:
    """A JSON string; only quotes, backslashes and control characters are escaped."""
    return encode_basestring(text)


def ascii_quoted(text: str) -> str:
    """A JSON string in which everything but printable ASCII is escaped."""
    return encode_basestring_ascii(text)


def in_ascii(json_text: str) -> str:
    """The same JSON with every non-ASCII character escaped; they stand inside of strings only."""
    if json_text.isascii():
        return json_text
    return _FOREIGN.sub(lambda found: encode_basestring_ascii(found[0])[1:-1], json_text)


def spaced(raw: Raw | bytes) -> str:
    """JSON text with one space behind each comma and colon, none elsewhere, and plain strings."""
    return _TOKEN.sub(_token, bytes(raw).decode())


def _token(match: re.Match[str]) -> str:
    token = match[0]
    if token[0] == '"':
        return encode_basestring(json.loads(token)) if "\\" in token else token
    return _SPACED.get(token, "")


MAX_DEPTH: Final = 500
"""How deep a value may nest; as for messages."""

# Possessive throughout: what one alternative took is never given back, so each character is looked at once.
_FLAT: Final = re.compile(r'(?:[\s,:0-9+\-.eEtrufalsn]++|"(?:[^"\\\x00-\x1f]++|\\[^\x00-\x1f])*+")*+')
_INSIDE: Final = re.compile(r'(?:[^"\\\x00-\x1f]++|\\[^\x00-\x1f])*+')


class JsonSpan:
    """One value that begins with a bracket. After ``closed`` or ``broken`` it begins anew."""

    __slots__ = ("depth", "quote")

    def __init__(self, depth: int = 0, quote: str = "") -> None:
        self.depth = depth
        # Where the text ended: "" outside of strings, a quote in one, a backslash behind that in one.
        self.quote = quote

    def scan(self, text: str, at: int) -> tuple[int, Literal["open", "closed", "broken"]]:
        """Go on at this place; return where the value ends, and how.

        ``closed``: the place behind its last bracket. ``broken``: the place of what no JSON has there. ``open``: the
        end of the text.
        """
        end = len(text)
        while at < end:
            if self.quote:
                at = self._string(text, at)
                if at < end and self.quote:
                    return self._reset(at), "broken"
                continue
            found = _FLAT.match(text, at)
            at = found.end() if found else at
            if at == end:
                break
            character = text[at]
            if character == '"':
                self.quote = '"'
            elif character in "{[":
                self.depth += 1
            elif character in "}]":
                self.depth -= 1
            if (character not in '"{[}]') or self.depth > MAX_DEPTH:
                return self._reset(at), "broken"
            at += 1
            if not self.depth:
                return self._reset(at), "closed"
        return end, "open"

    def _string(self, text: str, at: int) -> int:
        """Pass over the rest of a string, its quote included; ``quote`` stays set where it does not end."""
        if self.quote == "\\":
            if text[at] < " ":
                return at
            self.quote = '"'
            at += 1
        found = _INSIDE.match(text, at)
        at = found.end() if found else at
        if at < len(text) and text[at] == '"':
            self.quote = ""
            return at + 1
        if at < len(text) and text[at] == "\\":  # at the end, or before what cannot be escaped
            self.quote = "\\"
            return at + 1
        return at

    def _reset(self, at: int) -> int:
        self.depth, self.quote = 0, ""
        return at
