"""JSON as people and command lines like to read it: ``", "`` and ``": "`` between tokens, non-ASCII as it is.

Raw JSON is rewritten token by token, so that a number keeps its digits and an object its order and its duplicates.
"""

from __future__ import annotations

import json
import re
from json.encoder import encode_basestring
from typing import Final

from msgspec import Raw

# Possessive, for a string may be a file of 50 MB.
_TOKEN: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[,:]|[ \t\r\n]++')
_SPACED: Final = {",": ", ", ":": ": "}


def quoted(text: str) -> str:
    """A JSON string; only quotes, backslashes and control characters are escaped."""
    return encode_basestring(text)


def spaced(raw: Raw | bytes) -> str:
    """JSON text with one space behind each comma and colon, none elsewhere, and plain strings."""
    return _TOKEN.sub(_token, bytes(raw).decode())


def _token(match: re.Match[str]) -> str:
    token = match[0]
    if token[0] == '"':
        return encode_basestring(json.loads(token)) if "\\" in token else token
    return _SPACED.get(token, "")
