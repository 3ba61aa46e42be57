"""Calls and parts of messages in OpenAI's form; images and documents as such parts.

A part that a provider refuses is replaced by a line of text. A document of plain text becomes text, under its title;
its context, if it has one, precedes it.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, structs

from reknit.pipeline.history.pieces import FixLog, TrackedBlock
from reknit.pipeline.model import Document, Image, Own, Text
from reknit.pipeline.options import NO_EXTRAS, Parts
from reknit.pipeline.targets.media import MEDIA_TYPES, document_fault, inspect

UNNAMED: Final = "document.pdf"
"""The name of a document without a title, where the API requires one."""
_LINKS: Final = ("https://", "http://")
_DATA_URL: Final = re.compile(r"data:([^;,]+);base64,(.+)", re.DOTALL)


def own_members(own: Own | UnsetType) -> dict[str, Raw]:
    """The members of a block or message that only its provider has."""
    return {} if own is UNSET else own.members


class _Source(Struct, frozen=True):
    """A source of any kind, as far as it can be used."""

    type: str = ""
    media_type: str = ""
    data: str = ""
    url: str = ""
    file_id: str = ""
    content: str | list[Any] = ""


def image_part(image: Image, parts: Parts) -> Any:  # noqa: ANN401  a part
    """Return an image as a part, by its source; None if the API has none for it."""
    source, extras = _read(image.source), own_members(image.own)
    if source.type == "file":
        return parts.uploaded_image(source.file_id, extras) if source.file_id else None
    if source.url.startswith(_LINKS):
        return parts.image(source.url, extras)
    return parts.image(f"data:{source.media_type};base64,{source.data}", extras) if source.data else None


def fitted_image(piece: TrackedBlock, image: Image, parts: Parts, book: FixLog, *, takes: bool) -> TrackedBlock:
    """An image that the model ``takes`` and the API has a part for, or the line of text that takes its place."""
    source = _read(image.source)
    if not takes:
        fault = "the model takes no images"
    elif source.type == "file" or source.url.startswith(_LINKS) or not source.data:
        fault = "" if image_part(image, parts) is not None else "it cannot be taken from where it is"
    else:
        media_type, fault = _image_type(source)
        if not fault and media_type != source.media_type and book.makes("image_type_corrected"):
            typed = Raw(msgspec.json.encode(structs.replace(source, media_type=media_type)))
            piece = book.change("image_type_corrected", piece, Image(source=typed), detail=media_type)
            return structs.replace(piece, block=structs.replace(image, source=typed))
    if not fault:
        return piece
    return book.change("image_stubbed", piece, Text(text=f"[Image left out: {fault}]"), detail=fault)


def _image_type(source: _Source) -> tuple[str, str]:
    encoded = {"type": "base64", "data": source.data, "media_type": source.media_type}
    facts = inspect(Raw(msgspec.json.encode(encoded)))
    if facts is None:
        return "", "its data cannot be read"
    return facts.media_type, facts.fault(MEDIA_TYPES.__contains__)


def document_parts(document: Document, parts: Parts) -> list[Any]:
    """Return a document as a part, after the text about it; nothing if the API has no part for it."""
    part = _file_part(_read(document.source), _said(document.title), parts, own_members(document.own))
    context = _said(document.context)
    about = [parts.text(Text(text=f"[About the document: {context}]"))] if context else []
    return [] if part is None else [*about, part]


def fitted_document(piece: TrackedBlock, document: Document, parts: Parts, book: FixLog) -> TrackedBlock:
    """A document that the API has a part for, its text, or the line of text that takes its place."""
    source, title = _read(document.source), _said(document.title)
    text = _plain_text(source)
    if text is not None:
        return _as_text(piece, document, text, book)
    if document_fault(Raw(msgspec.json.encode(source))) or not document_parts(document, parts):
        text = _decoded_text(source)
        if text is not None:
            return _as_text(piece, document, text, book)
        fault = source.media_type or source.type or "no source"
        stub = Text(text=f"[Document left out: {title or fault}]")
        return book.change("document_stubbed", piece, stub, detail=fault)
    lost = [
        name for name, dropped in (("title", title and not source.data), ("citations", _cited(document))) if dropped
    ]
    return book.change("document_notes_dropped", piece, detail=", ".join(lost)) if lost else piece


def document_as_text(piece: TrackedBlock, document: Document, book: FixLog) -> TrackedBlock:
    """The text of a document of plain text, after its title and its context; any other document as it is."""
    source = _read(document.source)
    text = _plain_text(source)
    text = _decoded_text(source) if text is None else text
    return piece if text is None else _as_text(piece, document, text, book)


def _as_text(piece: TrackedBlock, document: Document, text: str, book: FixLog) -> TrackedBlock:
    title = _said(document.title)
    head = f"[Document: {title}]" if title else "[Document]"
    flat = "\n".join(line for line in (head, _said(document.context), text) if line)
    return book.change("document_as_text", piece, Text(text=flat))


def _said(note: object) -> str:
    return note if isinstance(note, str) else ""


def _cited(document: Document) -> bool:
    return document.citations is not UNSET and bytes(document.citations) != b"null"


def _file_part(source: _Source, title: str, parts: Parts, extras: Mapping[str, Raw]) -> Any:  # noqa: ANN401  a part, or None
    if source.type == "file":
        return parts.uploaded_file(source.file_id, extras) if source.file_id else None
    if source.url.startswith(_LINKS):
        return parts.linked_file(source.url, extras)
    if source.data and parts.takes(source.media_type):
        return parts.file(title, f"data:{source.media_type};base64,{source.data}", extras)
    return None


def _plain_text(source: _Source) -> str | None:
    if source.type == "text":
        return source.data
    if source.type != "content":
        return None
    if isinstance(source.content, str):
        return source.content
    texts = [part.get("text") for part in source.content if isinstance(part, dict)]
    whole = len(texts) == len(source.content) and all(isinstance(text, str) for text in texts)
    return "\n".join(str(text) for text in texts) if whole else None


def _decoded_text(source: _Source) -> str | None:
    """The text of data of a text type; None where they are no text, or no data."""
    if not (source.data and source.media_type.startswith("text/")):
        return None
    try:
        return binascii.a2b_base64(source.data, strict_mode=True).decode()
    except ValueError:
        return None


def _read(source: Raw) -> _Source:
    """A source; one that is a data URL is inline as well, and one that makes no sense is empty."""
    try:
        found = msgspec.json.decode(source, type=_Source)
    except msgspec.DecodeError:
        return _Source()
    data = _DATA_URL.fullmatch(found.url)
    return _Source(type="base64", media_type=data[1], data=data[2]) if data else found


def call(call_id: str, name: str, arguments: Raw) -> dict[str, Any]:
    """A call of a function; its arguments are the JSON text of an object."""
    function = {"name": name, "arguments": bytes(arguments).decode().strip()}
    return {"type": "function", "id": call_id, "function": function}


def custom_call(call_id: str, name: str, given: Raw) -> dict[str, Any]:
    """A call of a tool that takes free text."""
    return {"type": "custom", "id": call_id, "custom": {"name": name, **msgspec.json.decode(given)}}


class _Text(Struct, frozen=True, tag_field="type", tag="text"):
    text: str


class ServedParts(Parts):
    """The parts that servers of open models take: text and images."""

    def text(self, text: Text) -> Any:  # noqa: ANN401  a part, ready to encode
        return _Text(text.text)

    def image(self, url: str, extras: Mapping[str, Raw] = NO_EXTRAS) -> Any:  # noqa: ANN401  a part
        detail = {"detail": extras["detail"]} if "detail" in extras else {}
        others = {name: value for name, value in extras.items() if name != "detail"}
        return {"type": "image_url", "image_url": {"url": url, **detail}, **others}


class ChatParts(ServedParts):
    members = MappingProxyType(
        {
            Text: frozenset({"prompt_cache_breakpoint"}),
            Image: frozenset({"detail", "prompt_cache_breakpoint"}),
            Document: frozenset({"prompt_cache_breakpoint"}),
        }
    )

    def text(self, text: Text) -> Any:  # noqa: ANN401  a part, ready to encode
        return super().text(text) if text.own is UNSET else {"type": "text", "text": text.text, **own_members(text.own)}

    def file(self, name: str, url: str, extras: Mapping[str, Raw] = NO_EXTRAS) -> Any:  # noqa: ANN401  a part
        return {"type": "file", "file": {"filename": name or UNNAMED, "file_data": url}, **extras}

    def uploaded_file(self, file_id: str, extras: Mapping[str, Raw] = NO_EXTRAS) -> Any:  # noqa: ANN401  a part
        return {"type": "file", "file": {"file_id": file_id}, **extras}


encode = msgspec.json.Encoder().encode
