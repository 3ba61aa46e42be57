"""The JSON of Converse's content blocks, read into canonical blocks and written from them.

A block has no type. It is an object with one key, which names it: a union with one member set. The structs are those of
the service's own model, by its names. The order of their fields is the order of the members in a request. Each function
that reads one is followed by the function that writes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from reknit.pipeline import model
from reknit.pipeline.history.pieces import CONVERSE, as_json
from reknit.pipeline.history.readers.fields import is_incomplete
from reknit.pipeline.history.readers.rawjson import starts_with
from reknit.pipeline.history.readers.strict import decoded, is_harmless, own_of
from reknit.pipeline.history.readers.tolerant import INNER, Inner
from reknit.pipeline.targets.media import inline

JSON: TypeAlias = dict[str, Any]
"""An object with one key, to be encoded. It costs half of a ``Member``, which has all keys."""

ISSUER: Final = model.Issuer(provider=CONVERSE)

_TEXT_TYPES: Final = {"txt": "text/plain", "md": "text/markdown", "csv": "text/csv", "html": "text/html"}
_OFFICE: Final = "application/vnd.openxmlformats-officedocument."
MEDIA_TYPES: Final[Mapping[str, str]] = MappingProxyType(
    _TEXT_TYPES
    | {
        "pdf": "application/pdf",
        "doc": "application/msword",
        "xls": "application/vnd.ms-excel",
        "docx": f"{_OFFICE}wordprocessingml.document",
        "xlsx": f"{_OFFICE}spreadsheetml.sheet",
    }
)
"""The media type of each document format of Converse."""
FORMATS: Final[Mapping[str, str]] = MappingProxyType({media_type: name for name, media_type in MEDIA_TYPES.items()})


class _Wire(Struct, frozen=True, forbid_unknown_fields=True, rename="camel", omit_defaults=True, gc=False):
    """A reader takes no other members, and a writer leaves out those that are not set."""


class Source(_Wire, frozen=True, gc=False):
    """The location of a medium: a union. Only bytes have a canonical form."""

    bytes: str | None = None
    text: Raw | UnsetType = UNSET
    content: Raw | UnsetType = UNSET
    s3_location: Raw | UnsetType = UNSET


class Image(_Wire, frozen=True, kw_only=True, gc=False):
    format: str | None = None
    source: Source
    error: Raw | UnsetType = UNSET


class Document(_Wire, frozen=True, kw_only=True, gc=False):
    name: str | UnsetType = UNSET
    format: str | None = None
    source: Source
    context: str | UnsetType = UNSET
    citations: Raw | UnsetType = UNSET


class ReasoningText(_Wire, frozen=True, gc=False):
    text: str
    signature: str | UnsetType = UNSET


class Reasoning(_Wire, frozen=True, gc=False):
    """A union."""

    redacted_content: str | UnsetType = UNSET
    reasoning_text: ReasoningText | UnsetType = UNSET


class ToolUse(_Wire, frozen=True, gc=False):
    tool_use_id: str
    name: str
    input: Raw


class Part(_Wire, frozen=True, gc=False):
    """A part of a result: a union."""

    text: str | UnsetType = UNSET
    json: Raw | UnsetType = UNSET
    image: Image | UnsetType = UNSET
    document: Raw | UnsetType = UNSET
    video: Raw | UnsetType = UNSET
    search_result: Raw | UnsetType = UNSET


class ToolResult(_Wire, frozen=True, gc=False):
    tool_use_id: str
    content: tuple[Part, ...] | UnsetType = UNSET
    status: str | None = None


class Member(_Wire, frozen=True, gc=False):
    """A content block: a union."""

    text: str | UnsetType = UNSET
    tool_use: ToolUse | UnsetType = UNSET
    tool_result: ToolResult | UnsetType = UNSET
    reasoning_content: Reasoning | UnsetType = UNSET
    image: Image | UnsetType = UNSET
    document: Raw | UnsetType = UNSET
    video: Raw | UnsetType = UNSET
    audio: Raw | UnsetType = UNSET
    cache_point: Raw | UnsetType = UNSET
    guard_content: Raw | UnsetType = UNSET
    citations_content: Raw | UnsetType = UNSET
    search_result: Raw | UnsetType = UNSET
    tool_addition: Raw | UnsetType = UNSET
    tool_removal: Raw | UnsetType = UNSET


class Message(_Wire, frozen=True, gc=False):
    """A message. Some agents keep the id of an answer in it, which no request has."""

    role: model.Role
    content: str | tuple[Member, ...]
    id: str | None = None


BLOCK_KEYS: Final = frozenset(Member.__struct_encode_fields__)
DOCUMENT: Final = msgspec.json.Decoder(Document)
DOCUMENTS: Final = msgspec.json.Decoder(tuple[Document, ...])


def written_message(role: model.Role, blocks: Iterable[model.Block]) -> Message:
    """Return the message to encode, of blocks that have been fitted or that need no fitting."""
    return Message(role, tuple([_WRITERS[type(block)](block) for block in blocks]))


def read(member: Member, document: Document | None = None) -> model.Block | None:
    """Return the block of an object with one member, or None if it needs repair.

    Args:
        member: the object.
        document: the document in it, if that has been decoded.
    """
    # Equal to one with this member alone: the quickest way to see that it is alone.
    if type(text := member.text) is str:
        return model.Text(text=text) if member == Member(text) else None
    if type(call := member.tool_use) is ToolUse:
        is_valid = member == Member(tool_use=call) and starts_with(call.input, b"{") and is_harmless(call.input)
        return read_call(call) if is_valid else None
    if type(result := member.tool_result) is ToolResult:
        return read_result(result) if member == Member(tool_result=result) else None
    return _read_rare(member, document)


def written(block: model.Block) -> Any:  # noqa: ANN401  JSON
    """Return the object to encode for a block that has been fitted, or that needs no fitting."""
    return _WRITERS[type(block)](block)


def _written_text(block: model.Text) -> JSON:
    return {"text": block.text}


def read_call(call: ToolUse) -> model.ToolUse:
    cut = is_incomplete(call.input)
    return model.ToolUse(id=call.tool_use_id, name=call.name, input=call.input, incomplete=cut)


def _written_call(block: model.ToolUse) -> JSON:
    return {"toolUse": ToolUse(block.id, block.name, block.input)}


def read_result(result: ToolResult) -> model.ToolResult | None:
    is_error = result.status == "error"
    if not isinstance(result.content, tuple):
        # None, or what the tolerant reader made of it.
        return model.ToolResult(tool_use_id=result.tool_use_id, content=result.content, is_error=is_error)
    parts: list[Inner] = []
    for part in result.content:
        if type(text := part.text) is str:
            block: model.Block | None = model.Text(text=text) if part == Part(text) else None
        elif type(data := part.json) is Raw:
            is_valid = part == Part(json=data) and not starts_with(data, b"n") and is_harmless(data)
            block = read_structured(data) if is_valid else None
        else:
            block = _read_rare(part)
        if not isinstance(block, INNER):
            return None
        parts.append(block)
    return model.ToolResult(tool_use_id=result.tool_use_id, content=parts, is_error=is_error)


def _written_result(block: model.ToolResult) -> JSON:
    status = "error" if block.is_error else "success"
    return {"toolResult": ToolResult(block.tool_use_id, written_parts(block), status)}


def written_parts(result: model.ToolResult) -> tuple[Any, ...]:
    """Return the parts of a result to encode; a blank string has no part."""
    content = result.content
    if isinstance(content, str):
        return () if not content or content.isspace() else ({"text": content},)
    return tuple([_written_structured(part) or written(part) for part in content or ()])


def is_empty_error(block: model.Block) -> bool:
    """Return True if a block is an error result that says nothing (BED-14)."""
    return type(block) is model.ToolResult and block.is_error and not written_parts(block)


def read_structured(data: Raw) -> model.Text:
    """JSON in a result is the text of it, which is what a model reads; an object is known for one."""
    return model.Text(text=bytes(data).decode(), structured=starts_with(data, b"{"))


def _written_structured(part: model.Block) -> JSON | None:
    """Return Converse's form of a part that a tool returned as an object; None for other parts."""
    if not isinstance(part, model.Text) or not part.structured:
        return None
    data = part.text.encode("utf-8", "replace")
    try:
        msgspec.json.decode(data, type=dict[str, Raw])
    except msgspec.DecodeError:
        return None
    return {"json": Raw(data)}


def read_image(given: Image) -> model.Image | None:
    source = None if given.format is None else _read_source(f"image/{given.format}", given.source)
    if source is None:
        return None
    return model.Image(source=source, own=UNSET if given.error is UNSET else own_of(CONVERSE, error=given.error))


def _written_image(block: model.Image) -> JSON:
    media_type, source = _written_source(block)
    error = UNSET if block.own is UNSET else block.own.members.get("error", UNSET)
    return {"image": Image(format=media_type.removeprefix("image/"), source=source, error=error)}


def read_document(given: Document) -> model.Document | None:
    media_type = MEDIA_TYPES.get(given.format or "")
    source = None if media_type is None else _read_source(media_type, given.source)
    if source is None:
        return None
    return model.Document(source=source, title=given.name, context=given.context, citations=given.citations)


def _written_document(block: model.Document) -> JSON:
    media_type, source = _written_source(block)
    context = UNSET if block.context is None else block.context
    made = Document(
        name=block.title or UNSET,
        format=FORMATS[media_type],
        source=source,
        context=context,
        citations=block.citations,
    )
    return {"document": made}


def _read_source(media_type: str, source: Source) -> Raw | None:
    if source.bytes is None or source != Source(source.bytes):
        return None
    return as_json({"type": "base64", "media_type": media_type, "data": source.bytes})


def _written_source(block: model.Image | model.Document) -> tuple[str, Source]:
    data = inline(block.source)
    assert data is not None  # noqa: S101  other sources became text when the block was fitted
    return data.media_type, Source(data.data)


def read_reasoning(given: Reasoning) -> model.Thinking | model.RedactedThinking | None:
    if given.redacted_content is not UNSET:
        return model.RedactedThinking(data=given.redacted_content, issuer=ISSUER)
    if given.reasoning_text is UNSET:
        return None
    text = given.reasoning_text
    return model.Thinking(thinking=text.text, signature=text.signature, issuer=ISSUER)


def _written_thinking(block: model.Thinking) -> JSON:
    return {"reasoningContent": Reasoning(UNSET, ReasoningText(block.thinking, block.signature or UNSET))}


def _written_redacted(block: model.RedactedThinking) -> JSON:
    return {"reasoningContent": Reasoning(block.data)}


def read_whole(key: str, value: Raw) -> model.Unknown:
    """Return the block of a member that the canonical form has no place for."""
    return model.Unknown(kind=key, raw=Raw(b'{"%b":%b}' % (key.encode(), bytes(value))))


def _written_whole(block: model.Unknown) -> Raw:
    return block.raw


def _read_rare(member: Member | Part, document: Document | None = None) -> model.Block | None:
    """Return the block of any other object with one member, or None if it needs repair."""
    keys = zip(member.__struct_fields__, member.__struct_encode_fields__, strict=True)
    found = [(key, value) for field, key in keys if (value := getattr(member, field)) is not UNSET]
    if len(found) != 1:
        return None
    key, value = found[0]
    if type(value) is Raw:
        if starts_with(value, b"n") or not is_harmless(value):
            return None
        if key != "document":
            return read_whole(key, value)
        document = document or decoded(DOCUMENT, value)
        return None if document is None else read_document(document) or read_whole(key, value)
    if type(value) is Image:
        return None if type(value.error) is Raw and not is_harmless(value.error) else read_image(value)
    is_union = UNSET in (value.redacted_content, value.reasoning_text)
    return read_reasoning(value) if is_union else None


_WRITERS: Final[dict[type, Any]] = {
    model.Text: _written_text,
    model.ToolUse: _written_call,
    model.ToolResult: _written_result,
    model.Image: _written_image,
    model.Document: _written_document,
    model.Thinking: _written_thinking,
    model.RedactedThinking: _written_redacted,
    model.Unknown: _written_whole,
}
