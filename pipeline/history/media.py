"""The data of images and documents, however a client has encoded it, in the base64 that providers take."""

from __future__ import annotations

import binascii
import re
from typing import Final

import msgspec
from msgspec import Raw, Struct

_DATA_URL: Final = re.compile(r"data:(?P<media_type>[^;,]*)(?:;[^;,]*)*;base64,", re.IGNORECASE)
_INLINE: Final = re.compile(r"data:([^;,]+);base64,(.+)", re.DOTALL)
_BLANKS: Final = " \t\r\n"
_SPACE: Final = re.compile(r"[ \t\r\n]+")
_PLAIN: Final = str.maketrans("-_", "+/")


class _Source(Struct, frozen=True, tag_field="type", tag="base64"):
    data: str
    media_type: str | None = None


_SOURCE: Final = msgspec.json.Decoder(_Source)


def with_plain_data(source: Raw) -> Raw | None:
    """A source in plain base64, where it has line breaks, a ``data:`` prefix, the URL-safe alphabet or no padding.

    The bytes stay the same. None where there is nothing to mend, or nothing that could be.
    """
    try:
        found = _SOURCE.decode(source)
    except msgspec.DecodeError:
        return None
    data, media_type = found.data, found.media_type
    prefix = _DATA_URL.match(data)
    if prefix is not None:
        data, media_type = data[prefix.end() :], media_type or prefix["media_type"]
    if any(blank in data for blank in _BLANKS):
        data = _SPACE.sub("", data)
    if "-" in data or "_" in data:
        data = data.translate(_PLAIN)
    if len(data) % 4 > 1:
        data += "=" * (4 - len(data) % 4)
    if data == found.data or not _decodes(data):
        return None
    keys = msgspec.json.decode(source, type=dict[str, Raw]) | {"data": Raw(msgspec.json.encode(data))}
    if media_type:
        keys["media_type"] = Raw(msgspec.json.encode(media_type))
    return Raw(msgspec.json.encode(keys))


def _decodes(data: str) -> bool:
    try:
        binascii.a2b_base64(data, strict_mode=True)
    except ValueError:
        return False
    return True


def url_source(url: str) -> dict[str, str] | None:
    """The source of a data URL or of one on the web; None for any other."""
    data = _INLINE.fullmatch(url)
    if data is not None:
        return {"type": "base64", "media_type": data[1], "data": data[2]}
    return {"type": "url", "url": url} if url.startswith(("http://", "https://")) else None
