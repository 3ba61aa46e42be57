"""Images by their first bytes: format and size in pixels, from base64 text, without decoding the picture."""

from __future__ import annotations

import binascii
import struct

from msgspec import Struct

# Enough base64 for every fixed header (WebP's is the longest, 30 bytes), and a whole number of groups of four.
_HEAD = 64
# A JPEG's size comes after its metadata, which may be long; most have it within the first 48 KiB.
_JPEG_HEAD = 65_536
_JPEG_STANDALONE = {0x01, *range(0xD0, 0xD9)}
_JPEG_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}


class Picture(Struct, frozen=True):
    """Facts of the first bytes. ``media_type`` is None for an unknown format; a size of 0 was not found."""

    media_type: str | None
    width: int = 0
    height: int = 0


def look(data: str) -> Picture | None:
    """Read the header of a base64 image; None when the data is empty, not base64, or ends inside the header."""
    head = _decode(data[:_HEAD])
    if not head:
        return None
    try:
        if head.startswith(b"\x89PNG\r\n\x1a\n"):
            return Picture("image/png", *struct.unpack_from(">II", head, 16))
        if head.startswith((b"GIF87a", b"GIF89a")):
            return Picture("image/gif", *struct.unpack_from("<HH", head, 6))
        if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
            return _webp(head)
        if head.startswith(b"\xff\xd8\xff"):
            return _jpeg(data)
    except struct.error:
        return None
    return Picture(None)


def _decode(data: str) -> bytes:
    """Decode base64 text that may be cut anywhere; b"" where it is not base64."""
    whole = data if len(data) % 4 == 0 else data[: len(data) - len(data) % 4]
    try:
        return binascii.a2b_base64(whole, strict_mode=True)
    except ValueError:
        return b""


def _webp(head: bytes) -> Picture:
    kind = head[12:16]
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", head, 26)
        return Picture("image/webp", width & 0x3FFF, height & 0x3FFF)
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", head, 21)
        return Picture("image/webp", (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
    width, height = (int.from_bytes(head[at : at + 3], "little") + 1 for at in (24, 27))
    return Picture("image/webp", width, height)


def _jpeg(data: str) -> Picture:
    """Walk the segments up to the frame header; one that is not there leaves the size unknown."""
    found = _jpeg_size(_decode(data[:_JPEG_HEAD]))
    if found is None and len(data) > _JPEG_HEAD:
        found = _jpeg_size(_decode(data))
    return Picture("image/jpeg", *(found or (0, 0)))


def _jpeg_size(raw: bytes) -> tuple[int, int] | None:
    at = 2
    while at + 9 <= len(raw) and raw[at] == 0xFF:
        marker = raw[at + 1]
        if marker == 0xFF:  # fill byte
            at += 1
        elif marker in _JPEG_STANDALONE:
            at += 2
        elif marker in _JPEG_FRAMES:
            height, width = struct.unpack_from(">HH", raw, at + 5)
            return width, height
        else:
            at += 2 + int.from_bytes(raw[at + 2 : at + 4], "big")
    return None
