"""What an image's own bytes say of it: its media type, its size, its sides in pixels.

Only the first bytes are decoded, so a look at a five-megabyte image costs no more than one at an icon.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec import Raw, Struct

# The types that Anthropic, Bedrock and OpenAI take.
MEDIA_TYPES: Final = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})

_MAGIC: Final[Mapping[bytes, str]] = MappingProxyType(
    {
        b"\x89PNG\r\n\x1a\n": "image/png",
        b"\xff\xd8\xff": "image/jpeg",
        b"GIF87a": "image/gif",
        b"GIF89a": "image/gif",
    }
)
# The brands of the container that phones write, at the beginning of its first box.
_HEIF: Final[Mapping[bytes, str]] = MappingProxyType(
    dict.fromkeys((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx"), "image/heic")
    | dict.fromkeys((b"mif1", b"msf1"), "image/heif")
    | {b"avif": "image/avif"}
)
_MARKUP_LOOK: Final = 64  # bytes
# Enough for the frame header of most JPEG files behind their EXIF data; a multiple of four base64 characters.
_LOOK: Final = 64 * 1024


class Base64Source(Struct, frozen=True, tag_field="type", tag="base64"):
    """The source of an image that is part of the request."""

    data: str
    media_type: str = ""


class Facts(Struct, frozen=True):
    """An image as its bytes have it. ``sniffed`` is ``""`` and the sides are 0 where the bytes do not tell.

    ``broken`` are images that are empty, not base64, or end within their header.
    """

    declared: str
    sniffed: str
    encoded_bytes: int
    broken: bool = False
    width: int = 0
    height: int = 0

    @property
    def media_type(self) -> str:
        """What the bytes say, else what was declared."""
        return self.sniffed or self.declared

    def fault(self, taken: Callable[[str], bool], most_bytes: int | None = None) -> str:
        """Why a target cannot take the image, "" where it can."""
        if self.broken:
            return "its data cannot be read"
        if not taken(self.media_type):
            return f"media type {self.media_type or 'missing'}"
        if most_bytes is not None and self.encoded_bytes > most_bytes:
            return f"{self.encoded_bytes} bytes, at most {most_bytes}"
        return ""

    @property
    def longest_side(self) -> int:
        """The longer side in pixels, 0 where it is not known."""
        return max(self.width, self.height)


_SOURCE: Final = msgspec.json.Decoder(Base64Source)


def inspect(source: Raw) -> Facts | None:
    """The facts of an inline image; None for a reference to one that lies elsewhere, or for no image at all."""
    try:
        found = _SOURCE.decode(source)
    except msgspec.DecodeError:
        return None
    look = found.data[:_LOOK]
    try:
        head = binascii.a2b_base64(look[: len(look) // 4 * 4], strict_mode=True)
    except ValueError:
        head = b""
    sniffed = _sniff(head)
    if len(head) < _HEADERS.get(sniffed, 1):
        return Facts(found.media_type, sniffed, len(found.data), broken=True)
    width, height = _SIDES[sniffed](head) if sniffed in _SIDES else (0, 0)
    return Facts(found.media_type, sniffed, len(found.data), width=width, height=height)


def with_media_type(source: Raw, media_type: str) -> Raw:
    """The same source under another media type; its other keys stay."""
    keys = msgspec.json.decode(source, type=dict[str, Raw])
    keys["media_type"] = Raw(msgspec.json.encode(media_type))
    return Raw(msgspec.json.encode(keys))


def _sniff(head: bytes) -> str:
    for magic, media_type in _MAGIC.items():
        if head.startswith(magic):
            return media_type
    if head[:5] == b"%PDF-":
        return "application/pdf"
    # What a server sends where it was asked for an image: a drawing as text, or a page.
    text = head[:_MARKUP_LOOK].removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if text.startswith((b"<!doctype html", b"<html")):
        return "text/html"
    if text.startswith((b"<svg", b"<?xml", b"<!doctype svg")):
        return "image/svg+xml"
    if head[4:8] == b"ftyp" and head[8:12] in _HEIF:
        return _HEIF[head[8:12]]
    return "image/webp" if head[:4] == b"RIFF" and head[8:12] == b"WEBP" else ""


def _png(head: bytes) -> tuple[int, int]:
    return int.from_bytes(head[16:20]), int.from_bytes(head[20:24])


def _gif(head: bytes) -> tuple[int, int]:
    return int.from_bytes(head[6:8], "little"), int.from_bytes(head[8:10], "little")


def _jpeg(head: bytes) -> tuple[int, int]:
    """Walk the segments to the first frame header (SOF0 to SOF15, without DHT, JPG and DAC)."""
    at = 2
    while at + 9 <= len(head) and head[at] == 0xFF:
        marker = head[at + 1]
        if marker == 0xFF or 0xD0 <= marker <= 0xD8:  # fill, or a marker without a segment
            at += 1 if marker == 0xFF else 2
            continue
        if 0xC0 <= marker <= 0xCF and marker not in {0xC4, 0xC8, 0xCC}:
            return int.from_bytes(head[at + 7 : at + 9]), int.from_bytes(head[at + 5 : at + 7])
        at += 2 + int.from_bytes(head[at + 2 : at + 4])
    return 0, 0


def _webp(head: bytes) -> tuple[int, int]:
    match head[12:16]:
        case b"VP8X":
            return 1 + int.from_bytes(head[24:27], "little"), 1 + int.from_bytes(head[27:30], "little")
        case b"VP8L":
            bits = int.from_bytes(head[21:25], "little")
            return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
        case b"VP8 ":
            wide, high = int.from_bytes(head[26:28], "little"), int.from_bytes(head[28:30], "little")
            return wide & 0x3FFF, high & 0x3FFF
        case _:
            return 0, 0


_SIDES: Final = MappingProxyType({"image/png": _png, "image/gif": _gif, "image/jpeg": _jpeg, "image/webp": _webp})
# How many bytes hold the sides.
_HEADERS: Final = MappingProxyType({"image/png": 24, "image/gif": 10, "image/webp": 30})
