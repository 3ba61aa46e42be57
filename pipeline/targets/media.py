"""Images and documents as data in base64 under a media type that a target takes."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, structs

from pipeline.history.pieces import Book, Piece
from pipeline.model import Document, Image, Text
from pipeline.targets.images import Base64Source, Facts, inspect, with_media_type


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
