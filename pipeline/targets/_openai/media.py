"""Images and documents as the parts of a user's message.

What a provider refuses is replaced by a line of text that says so. A document of plain text becomes text, under its
title; its context, where it has one, goes before it.
"""

from __future__ import annotations

import re
from typing import Any, Final, Protocol

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, structs

from pipeline.history.pieces import Book, Piece
from pipeline.model import Document, Image, Text
from pipeline.targets.media import MEDIA_TYPES, document_fault, inspect

_DATA_URL: Final = re.compile(r"data:([^;,]+);base64,(.+)", re.DOTALL)


class Parts(Protocol):
    """How an API writes the parts of a user's message. None is for what it has no part for."""

    def text(self, text: Text) -> Any:  # noqa: ANN401  a part, ready to encode
        """Plain text."""

    def image(self, url: str, detail: Raw | UnsetType = UNSET) -> Any:  # noqa: ANN401  a part
        """An image by its URL, or as a data URL."""

    def uploaded_image(self, file_id: str, detail: Raw | UnsetType = UNSET) -> Any:  # noqa: ANN401  a part
        """An image that was uploaded before."""

    def takes(self, media_type: str) -> bool:
        """Whether a document of this type may be part of the request."""

    def file(self, name: str, url: str) -> Any:  # noqa: ANN401  a part
        """A document as a data URL."""

    def uploaded_file(self, file_id: str) -> Any:  # noqa: ANN401  a part
        """A document that was uploaded before."""

    def linked_file(self, url: str) -> Any:  # noqa: ANN401  a part
        """A document that lies elsewhere."""


class Shown(Struct, frozen=True):
    """A block as it is sent: the piece with what became of it, and its parts."""

    piece: Piece
    parts: list[Any]
    # Whether it has become text, which may stand in a tool's result.
    is_text: bool = False


class _Source(Struct, frozen=True):
    """A source of any kind, as far as it can be used."""

    type: str = ""
    media_type: str = ""
    data: str = ""
    url: str = ""
    file_id: str = ""
    content: str | list[Any] = ""


def show_image(piece: Piece, image: Image, parts: Parts, book: Book) -> Shown:
    """An image as a part, or the line of text that takes its place."""
    source = _read(image.source)
    detail = UNSET if image.own is UNSET else image.own.members.get("detail", UNSET)
    part: Any = None
    fault = "it cannot be taken from where it is"
    if source.type == "file":
        part = parts.uploaded_image(source.file_id, detail) if source.file_id else None
    elif source.url.startswith(("https://", "http://")):
        part = parts.image(source.url, detail)
    elif source.data:
        media_type, fault = _image_type(source)
        if not fault:
            if media_type != source.media_type:
                after = Image(source=Raw(msgspec.json.encode(structs.replace(source, media_type=media_type))))
                piece = book.change("image_type_corrected", piece, after, detail=media_type)
            part = parts.image(f"data:{media_type};base64,{source.data}", detail)
    if part is not None:
        return Shown(piece, [part])
    stub = Text(text=f"[Image left out: {fault}]")
    return Shown(book.change("image_stubbed", piece, stub, detail=fault), [parts.text(stub)], is_text=True)


def _image_type(source: _Source) -> tuple[str, str]:
    """The media type of an inline image, and why it cannot be sent."""
    encoded = {"type": "base64", "data": source.data, "media_type": source.media_type}
    facts = inspect(Raw(msgspec.json.encode(encoded)))
    if facts is None:
        return "", "its data cannot be read"
    return facts.media_type, facts.fault(MEDIA_TYPES.__contains__)


def show_document(piece: Piece, document: Document, parts: Parts, book: Book) -> Shown:
    """A document as a part, as text, or the line of text that takes its place."""
    source = _read(document.source)
    title = document.title if isinstance(document.title, str) else ""
    context = document.context if isinstance(document.context, str) else ""
    text = _plain_text(source)
    if text is not None:
        head = f"[Document: {title}]" if title else "[Document]"
        flat = "\n".join(line for line in (head, context, text) if line)
        after = book.change("document_as_text", piece, Text(text=flat))
        return Shown(after, [parts.text(Text(text=flat))], is_text=True)
    part = _file_part(source, title, parts)
    if part is None:
        fault = source.media_type or source.type or "no source"
        stub = Text(text=f"[Document left out: {title or fault}]")
        return Shown(book.change("document_stubbed", piece, stub, detail=fault), [parts.text(stub)], is_text=True)
    lost = [name for name, gone in (("title", title and not source.data), ("citations", _cited(document))) if gone]
    if lost:
        piece = book.change("document_notes_dropped", piece, detail=", ".join(lost))
    about = [parts.text(Text(text=f"[About the document: {context}]"))] if context else []
    return Shown(piece, [*about, part])


def _cited(document: Document) -> bool:
    return document.citations is not UNSET and bytes(document.citations) != b"null"


def _file_part(source: _Source, title: str, parts: Parts) -> Any:  # noqa: ANN401  a part, or None
    if source.type == "file":
        return parts.uploaded_file(source.file_id) if source.file_id else None
    if source.url.startswith(("https://", "http://")):
        return parts.linked_file(source.url)
    if source.data and parts.takes(source.media_type) and not document_fault(Raw(msgspec.json.encode(source))):
        return parts.file(title or "document.pdf", f"data:{source.media_type};base64,{source.data}")
    return None


def _plain_text(source: _Source) -> str | None:
    """The text of a document that is made of text."""
    if source.type == "text":
        return source.data
    if source.type != "content":
        return None
    if isinstance(source.content, str):
        return source.content
    texts = [part.get("text") for part in source.content if isinstance(part, dict)]
    whole = len(texts) == len(source.content) and all(isinstance(text, str) for text in texts)
    return "\n".join(str(text) for text in texts) if whole else None


def _read(source: Raw) -> _Source:
    """A source; one that is a data URL is inline as well, and one that makes no sense is empty."""
    try:
        found = msgspec.json.decode(source, type=_Source)
    except msgspec.DecodeError:
        return _Source()
    data = _DATA_URL.fullmatch(found.url)
    return _Source(type="base64", media_type=data[1], data=data[2]) if data else found
