"""Images in base64 in a record, whatever the shape of its message."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

# How the base64 text of a PNG, a JPEG, a GIF and a WebP begins.
_BEGINNINGS: Final = ("iVBORw0KGgo", "/9j/", "R0lGOD", "UklGR")
# The same in JSON, where a solidus may be escaped.
_IN_JSON: Final = (*(each.encode() for each in _BEGINNINGS), rb"\/9j\/")


def images_in(value: bytes) -> Iterator[str]:
    """Yield the base64 text of each image in a record's JSON, in the order of its members."""
    if not any(beginning in value for beginning in _IN_JSON):
        return
    try:
        document = msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return  # whoever reads the record says what is wrong with it
    for text in _texts(document):
        data = text.rpartition(";base64,")[2] if text.startswith("data:") else text
        if data.startswith(_BEGINNINGS):
            yield data


def _texts(document: Any) -> Iterator[str]:  # noqa: ANN401  any JSON
    waiting = [document]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            waiting += reversed(value.values())
        elif isinstance(value, list):
            waiting += reversed(value)
