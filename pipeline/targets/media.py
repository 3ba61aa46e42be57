"""Images and documents: what their own bytes say of them, and how they become what a target takes.

A target takes data in base64, under media types of its own. Only an image's first bytes are decoded, so a look at a
five-megabyte image costs no more than one at an icon.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, structs

from pipeline.history.pieces import Book, Piece
from pipeline.model import Document, Image, Text

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


class _TextSource(Struct, frozen=True, tag_field="type", tag="text"):
    data: str
    media_type: str = "text/plain"


class _Inline(Struct, frozen=True, tag_field="type", tag="base64"):
    data: str
    media_type: str


class _Text(Struct, frozen=True, tag_field="type", tag="text"):
    data: str
    media_type: str


class _Content(Struct, frozen=True, tag_field="type", tag="content"):
    content: str | list[Any]


class _Linked(Struct, frozen=True, tag_field="type", tag="url"):
    url: str


class _Uploaded(Struct, frozen=True, tag_field="type", tag="file"):
    file_id: str


_INLINE: msgspec.json.Decoder[Base64Source | _TextSource] = msgspec.json.Decoder(Base64Source | _TextSource)


# What Anthropic and those who pass its blocks on take; an image's media type can be told from its bytes.
_OF_IMAGES: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Base64Source | _Linked | _Uploaded)
_OF_DOCUMENTS: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_Inline | _Text | _Content | _Linked | _Uploaded)


def has_source(block: Image | Document) -> bool:
    """Whether a source is one that Anthropic could read."""
    try:
        (_OF_IMAGES if isinstance(block, Image) else _OF_DOCUMENTS).decode(block.source)
    except msgspec.DecodeError:
        return False
    return True


def with_source(piece: Piece, book: Book) -> Piece:
    """The piece, or a line of text for an image or a document whose source is none that Anthropic could read."""
    block = piece.block
    if not isinstance(block, (Image, Document)) or has_source(block):
        return piece
    code, what = ("image_stubbed", "Image") if isinstance(block, Image) else ("document_stubbed", "Document")
    return _stubbed(code, what, piece, book, "its source cannot be read", mark=block.cache_control)


def inline(source: Raw) -> Base64Source | None:
    """A source's data in base64, a text's too; None where it lies elsewhere."""
    try:
        found = _INLINE.decode(source)
    except msgspec.DecodeError:
        return None
    if isinstance(found, _TextSource):
        return Base64Source(base64.b64encode(found.data.encode()).decode(), found.media_type)
    return found


def fit_image(piece: Piece, image: Image, book: Book, *, taken: Callable[[str], bool], most_bytes: int) -> Piece:
    """An image whose type is ``taken`` and whose base64 text is at most ``most_bytes`` long; else a line of text."""
    facts = inspect(image.source)
    if facts is None:
        return _stubbed("image_stubbed", "Image", piece, book, "it is not part of the request")
    fault = facts.fault(taken, most_bytes)
    if not facts.broken and not _is_base64(image.source):
        fault = "its data cannot be read"
    return stubbed_image(piece, book, fault) if fault else with_own_type(piece, image, facts, book)


def with_own_type(piece: Piece, image: Image, facts: Facts, book: Book) -> Piece:
    """The image under the media type that its bytes have."""
    if facts.media_type == facts.declared:
        return piece
    corrected = structs.replace(image, source=with_media_type(image.source, facts.media_type))
    return book.change("image_type_corrected", piece, corrected, detail=facts.media_type)


def stubbed_image(piece: Piece, book: Book, fault: str, *, mark: Raw | UnsetType = UNSET) -> Piece:
    """The line of text that stands for an image."""
    return _stubbed("image_stubbed", "Image", piece, book, fault, mark=mark)


def fit_document(piece: Piece, document: Document, book: Book, *, taken: Callable[[str], bool]) -> Piece:
    """A document that holds data of a type that is ``taken``; else a line of text."""
    source = inline(document.source)
    if source is None:
        fault = "it is not part of the request"
    elif not source.data or not _is_base64(document.source):
        fault = "its data cannot be read"
    elif not taken(source.media_type):
        fault = f"media type {source.media_type or 'missing'}"
    else:
        return piece
    return _stubbed("document_stubbed", "Document", piece, book, fault)


def _stubbed(code: str, what: str, piece: Piece, book: Book, fault: str, *, mark: Raw | UnsetType = UNSET) -> Piece:
    return book.change(code, piece, Text(text=f"[{what} left out: {fault}]", cache_control=mark), detail=fault)


def decodes(data: str) -> bool:
    """Whether text is base64 to its end."""
    try:
        binascii.a2b_base64(data, strict_mode=True)
    except ValueError:
        return False
    return True


def _is_base64(source: Raw) -> bool:
    found = inline(source)
    return found is not None and decodes(found.data)
