"""Images and documents: the facts in their bytes, and the conversion for a target.

A target takes data in base64, under media types of its own. Only an image's first and last bytes are decoded, unless
these do not show whether it is whole.

One policy holds for all targets: data that can be repaired without a loss was repaired by the reader; an image under
the wrong media type gets its own; a line of text replaces media that no provider could read: data that are not base64
or are cut off, bytes of another kind than the block's, and an address that is not a URL.
"""

from __future__ import annotations

import base64
import binascii
import string
from collections.abc import Callable, Container, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, structs

from reknit.pipeline.history.pieces import FixLog, TrackedBlock
from reknit.pipeline.history.readers.strict import decoded
from reknit.pipeline.model import Document, Image, Text
from reknit.pipeline.targets.limits import NO_LIMITS, MediaLimits

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
_ALPHABET: Final = f"{string.ascii_letters}{string.digits}+/".encode()
_PDF: Final = "application/pdf"
_MARKUP_LOOK: Final = 64  # bytes
# Enough for the kind, and the size of all kinds but JPEG; multiples of four base64 characters.
_LOOK: Final = 128
# Enough for the frame header of most JPEG files after their EXIF data.
_JPEG_LOOK: Final = 64 * 1024


class Base64Source(Struct, frozen=True, tag_field="type", tag="base64"):
    data: str
    media_type: str = ""


class Facts(Struct, frozen=True):
    """An image's properties by its bytes. ``sniffed`` is ``""`` and the sides are 0 if they are unknown.

    ``unreadable`` are images that are empty or not base64, ``cut`` those whose end is missing, ``headless`` those whose
    header is incomplete.
    """

    declared: str
    sniffed: str
    encoded_bytes: int
    unreadable: bool = False
    headless: bool = False
    cut: bool = False
    width: int = 0
    height: int = 0

    @property
    def media_type(self) -> str:
        """The type by the bytes, else the declared one."""
        return self.sniffed or self.declared

    def fault(self, taken: Callable[[str], bool], limits: MediaLimits = NO_LIMITS) -> str:
        """Why a target cannot take the image, "" where it can."""
        if self.unreadable or self.headless:
            return "its data cannot be read"
        if not taken(self.media_type):
            return f"media type {self.media_type or 'missing'}"
        if self.cut:
            return "its data is cut off"
        if 0 < limits.image_bytes < self.encoded_bytes:
            return f"{self.encoded_bytes} bytes, at most {limits.image_bytes}"
        if 0 < limits.side < self.longest_side:
            return f"{self.width} x {self.height} pixels, at most {limits.side}"
        return ""

    @property
    def longest_side(self) -> int:
        return max(self.width, self.height)


_SOURCE: Final = msgspec.json.Decoder(Base64Source)


def inspect(source: Raw) -> Facts | None:
    """The facts of an inline image; None for a reference to one that lies elsewhere, or for no image at all."""
    found = decoded(_SOURCE, source)
    if found is None:
        return None
    data = found.data
    if not data or not decodes(data):
        return Facts(found.media_type, "", len(data), unreadable=True)
    head = binascii.a2b_base64(data[:_LOOK])
    sniffed = _sniff(head)
    if sniffed == "image/jpeg":
        head = binascii.a2b_base64(data[:_JPEG_LOOK])
    if len(head) < _HEADERS.get(sniffed, 1):
        return Facts(found.media_type, sniffed, len(data), headless=True)
    width, height = _SIDES[sniffed](head) if sniffed in _SIDES else (0, 0)
    cut = sniffed in _SIDES and not _is_whole(sniffed, data, head)
    return Facts(found.media_type, sniffed, len(data), cut=cut, width=width, height=height)


def with_media_type(source: Raw, media_type: str) -> Raw:
    keys = msgspec.json.decode(source, type=dict[str, Raw])
    keys["media_type"] = Raw(msgspec.json.encode(media_type))
    return Raw(msgspec.json.encode(keys))


def _sniff(head: bytes) -> str:
    for magic, media_type in _MAGIC.items():
        if head.startswith(magic):
            return media_type
    if head[:5] == b"%PDF-":
        return _PDF
    # The usual answers of a server in place of an image: a drawing as text, or a page.
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


# Frame headers of JPEG: SOF0 to SOF15, without DHT, JPG and DAC; and the start of a scan, which its data follow.
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SCAN: Final = frozenset({0xDA})


def _segment(image: bytes, markers: frozenset[int]) -> int:
    """Return the position of a JPEG's first segment with one of the ``markers``; -1 if there is none."""
    at = 2
    while at + 9 <= len(image) and image[at] == 0xFF:
        marker = image[at + 1]
        if marker in markers:
            return at
        if marker == 0xFF or 0xD0 <= marker <= 0xD8:  # fill, or a marker without a segment
            at += 1 if marker == 0xFF else 2
        else:
            at += 2 + int.from_bytes(image[at + 2 : at + 4])
    return -1


def _jpeg(head: bytes) -> tuple[int, int]:
    at = _segment(head, _FRAMES)
    return (0, 0) if at < 0 else (int.from_bytes(head[at + 7 : at + 9]), int.from_bytes(head[at + 5 : at + 7]))


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


# The chunk that ends a PNG, the marker that ends a JPEG, and the bytes that end a GIF after its last block.
_END: Final = MappingProxyType({"image/png": b"IEND", "image/jpeg": b"\xff\xd9", "image/gif": b"\0;"})
_TAIL: Final = 64  # characters of base64; more than an end takes
# A picture of one block is whole without its end: the smallest JPEG that is known goes without.
_ONE_BLOCK: Final = 8  # pixels


def _is_whole(kind: str, data: str, head: bytes) -> bool:
    """Return True if an image's end is present; bytes after it do not matter."""
    if kind == "image/webp":
        length = len(data) // 4 * 3 - data[-2:].count("=")
        return 8 + int.from_bytes(head[4:8], "little") <= length
    end = _END[kind]
    if end in binascii.a2b_base64(data[-_TAIL:]):
        return True
    image = binascii.a2b_base64(data)
    if kind != "image/jpeg":
        return end in image
    scan = _segment(image, _SCAN)
    return scan >= 0 and (end in image[scan:] or 0 < max(_jpeg(image)) <= _ONE_BLOCK)


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
    url: Annotated[str, Meta(pattern=r"(?i)^https?://\S")]


class _Uploaded(Struct, frozen=True, tag_field="type", tag="file"):
    file_id: str


_INLINE: msgspec.json.Decoder[Base64Source | _TextSource] = msgspec.json.Decoder(Base64Source | _TextSource)


# The sources that Anthropic and services with its blocks take; an image's bytes determine its media type.
_OF_IMAGES: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Base64Source | _Linked | _Uploaded)
_OF_DOCUMENTS: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_Inline | _Text | _Content | _Linked | _Uploaded)


def has_source(block: Image | Document) -> bool:
    """Return True if a source is one that Anthropic could read, as far as that shows without its bytes."""
    decoder = _OF_IMAGES if isinstance(block, Image) else _OF_DOCUMENTS
    return decoded(decoder, block.source) is not None


def with_source(piece: TrackedBlock, book: FixLog) -> TrackedBlock:
    """The piece, or a line of text for an image or a document that Anthropic could not read."""
    block = piece.block
    if not isinstance(block, (Image, Document)) or not (fault := source_fault(block)):
        return piece
    code, what = ("image_stubbed", "Image") if isinstance(block, Image) else ("document_stubbed", "Document")
    return _stubbed(code, what, piece, book, fault, mark=block.cache_control)


def source_fault(block: Image | Document) -> str:
    """Return why Anthropic could not read an image or a document, "" if it can.

    An icon of a few bytes gives no reason, because its bytes are not sufficient.
    """
    if not has_source(block):
        return "its source cannot be read"
    if isinstance(block, Document):
        return document_fault(block.source)
    facts = inspect(block.source)
    return "" if facts is None or facts.headless else facts.fault(MEDIA_TYPES.__contains__)


def document_fault(source: Raw) -> str:
    """Return why no provider could read a document's data, "" if one can, or if it has no data."""
    found = decoded(_SOURCE, source)
    if found is None:
        return ""
    if not found.data or not decodes(found.data):
        return "its data cannot be read"
    sniffed = _sniff(binascii.a2b_base64(found.data[:_LOOK]))
    # A page or a drawing is text, and so may a document be.
    other = sniffed not in ("", _PDF) if found.media_type == _PDF else sniffed in _SIDES
    return f"its data is {sniffed}" if other else ""


def inline(source: Raw) -> Base64Source | None:
    """A source's data in base64, a text's too; None where it lies elsewhere."""
    found = decoded(_INLINE, source)
    if isinstance(found, _TextSource):
        return Base64Source(base64.b64encode(found.data.encode()).decode(), found.media_type)
    return found


def fit_image(
    piece: TrackedBlock, image: Image, book: FixLog, *, taken: Container[str], limits: MediaLimits
) -> TrackedBlock:
    """An image whose type is ``taken`` and whose size is within the ``limits``; else a line of text."""
    facts = inspect(image.source)
    if facts is None:
        return _stubbed("image_stubbed", "Image", piece, book, "it is not part of the request")
    fault = facts.fault(taken.__contains__, limits)
    return stubbed_image(piece, book, fault) if fault else with_own_type(piece, image, facts, book)


def image_stays(image: Image, taken: Container[str], limits: MediaLimits) -> bool:
    """Return True if ``fit_image`` would return an image unchanged."""
    facts = inspect(image.source)
    return facts is not None and facts.media_type == facts.declared and not facts.fault(taken.__contains__, limits)


def with_own_type(piece: TrackedBlock, image: Image, facts: Facts, book: FixLog) -> TrackedBlock:
    if facts.media_type == facts.declared:
        return piece
    corrected = structs.replace(image, source=with_media_type(image.source, facts.media_type))
    return book.change("image_type_corrected", piece, corrected, detail=facts.media_type)


def stubbed_image(piece: TrackedBlock, book: FixLog, fault: str, *, mark: Raw | UnsetType = UNSET) -> TrackedBlock:
    return _stubbed("image_stubbed", "Image", piece, book, fault, mark=mark)


def fit_document(
    piece: TrackedBlock, document: Document, book: FixLog, *, taken: Callable[[str], bool]
) -> TrackedBlock:
    """A document that holds data of a type that is ``taken``; else a line of text."""
    source = inline(document.source)
    if source is None:
        fault = "it is not part of the request"
    else:
        fault = document_fault(document.source)
        if not fault and not source.data:
            fault = "its data cannot be read"
        if not fault and not taken(source.media_type):
            fault = f"media type {source.media_type or 'missing'}"
    if not fault:
        return piece
    return _stubbed("document_stubbed", "Document", piece, book, fault)


def _stubbed(
    code: str, what: str, piece: TrackedBlock, book: FixLog, fault: str, *, mark: Raw | UnsetType = UNSET
) -> TrackedBlock:
    return book.change(code, piece, Text(text=f"[{what} left out: {fault}]", cache_control=mark), detail=fault)


def decodes(data: str) -> bool:
    """Return True if the whole text is base64, without decoding it."""
    padding = len(data) - len(data.rstrip("="))
    if len(data) % 4 or padding > 2 or not data.isascii():
        return False
    return not data[: len(data) - padding].encode().translate(None, _ALPHABET)
