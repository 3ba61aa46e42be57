"""Images and documents as data in base64 under a media type that a target takes."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable

import msgspec
from msgspec import UNSET, Raw, Struct, structs

from pipeline.history.pieces import Book, Piece
from pipeline.model import Document, Image, Text
from pipeline.targets.images import Base64Source, inspect, with_media_type


class _TextSource(Struct, frozen=True, tag_field="type", tag="text"):
    data: str
    media_type: str = "text/plain"


_INLINE: msgspec.json.Decoder[Base64Source | _TextSource] = msgspec.json.Decoder(Base64Source | _TextSource)


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
    media_type = facts.sniffed or facts.declared
    if facts.broken or not _is_base64(image.source):
        fault = "its data cannot be read"
    elif not taken(media_type):
        fault = f"media type {media_type or 'missing'}"
    elif facts.encoded_bytes > most_bytes:
        fault = f"{facts.encoded_bytes} bytes, at most {most_bytes}"
    elif media_type == facts.declared:
        return piece
    else:
        corrected = structs.replace(image, source=with_media_type(image.source, media_type))
        return book.change("image_type_corrected", piece, corrected, detail=media_type)
    return _stubbed("image_stubbed", "Image", piece, book, fault)


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


def _stubbed(code: str, what: str, piece: Piece, book: Book, fault: str) -> Piece:
    return book.change(code, piece, Text(text=f"[{what} left out: {fault}]", cache_control=UNSET), detail=fault)


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
