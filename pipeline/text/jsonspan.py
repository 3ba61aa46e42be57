"""Where a JSON value ends, found piece by piece: brackets are counted, strings passed over.

This is no parser. It tells soon, in one pass and with two numbers of state, that something is not JSON: outside of
strings only what JSON can have there is let through, and inside of them no line break. What is left is for a parser.
"""

from __future__ import annotations

import re
from typing import Final, Literal

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
