"""JSON as people and command lines like to read it: ``", "`` and ``": "`` between tokens.

Non-ASCII stays as it is, or is escaped for readers that cannot be trusted with it. Raw JSON is rewritten token by
token, so that a number keeps its digits and an object its order and its duplicates.
"""

from __future__ import annotations

import json
import re
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Final

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
