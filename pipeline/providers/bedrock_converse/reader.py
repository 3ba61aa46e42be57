"""Bedrock's Converse shape: blocks without a type, named by their only key, and AgentCore's wrapper around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from reknit.pipeline.history.pieces import as_json
from reknit.pipeline.history.readers.canonical import READERS, string_turn
from reknit.pipeline.history.readers.fields import Fields, Notes, as_string, is_incomplete, read_input
from reknit.pipeline.history.readers.rawjson import starts_with
from reknit.pipeline.history.readers.strict import StrictReader, decoded, is_harmless, own_of
from reknit.pipeline.history.readers.tolerant import (
    INNER,
    ContentReader,
    Inner,
    Placed,
    Taker,
    block_or_none,
    block_reader,
    placed_turn,
    reader_of,
    typed_reader,
)
from reknit.pipeline.model import (
    Block,
    Document,
    Image,
    Issuer,
    RedactedThinking,
    Role,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Turn,
    Unknown,
)

ISSUER: Final = Issuer(provider="bedrock-converse")

_TEXT_TYPES: Final = {"txt": "text/plain", "md": "text/markdown", "csv": "text/csv", "html": "text/html"}
_OFFICE: Final = "application/vnd.openxmlformats-officedocument."
MEDIA_TYPES: Final = _TEXT_TYPES | {
    "pdf": "application/pdf",
    "doc": "application/msword",
    "xls": "application/vnd.ms-excel",
    "docx": f"{_OFFICE}wordprocessingml.document",
    "xlsx": f"{_OFFICE}spreadsheetml.sheet",
}
"""The media type of each document format of Converse."""


class _ToolUse(Struct, frozen=True, forbid_unknown_fields=True, rename="camel", gc=False):
    tool_use_id: str
    name: str
    input: Raw


class _Source(Struct, frozen=True, forbid_unknown_fields=True, rename="camel", gc=False):
    """The location of a medium: a union of which one member is set; only bytes have a canonical form."""

    bytes: str | None = None
    text: Raw | UnsetType = UNSET
    content: Raw | UnsetType = UNSET
    s3_location: Raw | UnsetType = UNSET


class _Medium(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    source: _Source
    format: str | None = None


class _Image(_Medium, frozen=True, gc=False):
    error: Raw | UnsetType = UNSET


class _Document(_Medium, frozen=True, gc=False):
    name: str | UnsetType = UNSET
    context: str | UnsetType = UNSET
    citations: Raw | UnsetType = UNSET


class _ReasoningText(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    text: str
    signature: str | UnsetType = UNSET


class _Reasoning(Struct, frozen=True, forbid_unknown_fields=True, rename="camel", gc=False):
    """Reasoning: a union, so that one member is set."""

    redacted_content: str | UnsetType = UNSET
    reasoning_text: _ReasoningText | UnsetType = UNSET


class _Part(Struct, frozen=True, forbid_unknown_fields=True, rename="camel", gc=False):
    """A part of a result: a union, so that one member is set."""

    text: str | UnsetType = UNSET
    json: Raw | UnsetType = UNSET
    image: _Image | UnsetType = UNSET
    document: Raw | UnsetType = UNSET
    video: Raw | UnsetType = UNSET
    search_result: Raw | UnsetType = UNSET


class _ToolResult(Struct, frozen=True, forbid_unknown_fields=True, rename="camel", gc=False):
    tool_use_id: str
    content: tuple[_Part, ...] | UnsetType = UNSET
    status: str | None = None


class _Member(Struct, frozen=True, forbid_unknown_fields=True, rename="camel", gc=False):
    """A content block: a union, so that one member is set."""

    text: str | UnsetType = UNSET
    tool_use: _ToolUse | UnsetType = UNSET
    tool_result: _ToolResult | UnsetType = UNSET
    reasoning_content: _Reasoning | UnsetType = UNSET
    image: _Image | UnsetType = UNSET
    document: Raw | UnsetType = UNSET
    video: Raw | UnsetType = UNSET
    audio: Raw | UnsetType = UNSET
    cache_point: Raw | UnsetType = UNSET
    guard_content: Raw | UnsetType = UNSET
    citations_content: Raw | UnsetType = UNSET
    search_result: Raw | UnsetType = UNSET
    tool_addition: Raw | UnsetType = UNSET
    tool_removal: Raw | UnsetType = UNSET


BLOCK_KEYS: Final = frozenset(_Member.__struct_encode_fields__)


class _Message(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, gc=False):
    role: Role
    content: str | tuple[_Member, ...]
    id: str | None = None


def _use(call: _ToolUse) -> ToolUse:
    return ToolUse(id=call.tool_use_id, name=call.name, input=call.input, incomplete=is_incomplete(call.input))


def _image(given: _Image) -> Image | None:
    source = None if given.format is None else _inline(f"image/{given.format}", given.source)
    if source is None:
        return None
    return Image(source=source, own=UNSET if given.error is UNSET else own_of(ISSUER.provider, error=given.error))


def _document(given: _Document) -> Document | None:
    media_type = MEDIA_TYPES.get(given.format or "")
    source = None if media_type is None else _inline(media_type, given.source)
    if source is None:
        return None
    return Document(source=source, title=given.name, context=given.context, citations=given.citations)


def _inline(media_type: str, source: _Source) -> Raw | None:
    if source.bytes is None or source != _Source(source.bytes):
        return None
    return as_json({"type": "base64", "media_type": media_type, "data": source.bytes})


def _thought(given: _Reasoning) -> Thinking | RedactedThinking | None:
    if given.redacted_content is not UNSET:
        return RedactedThinking(data=given.redacted_content, issuer=ISSUER)
    if given.reasoning_text is UNSET:
        return None
    return Thinking(thinking=given.reasoning_text.text, signature=given.reasoning_text.signature, issuer=ISSUER)


def _structured(data: Raw) -> Text:
    """JSON in a result is the text of it, which is what a model reads; an object is known for one."""
    return Text(text=bytes(data).decode(), structured=starts_with(data, b"{"))


def _whole(key: str, value: Raw) -> Unknown:
    """A member that the canonical form has no place for."""
    return Unknown(kind=key, raw=Raw(b'{"%b":%b}' % (key.encode(), bytes(value))))


def _turn_of(message: _Message, index: int) -> Turn | None:
    content = message.content
    if isinstance(content, str):
        return string_turn(message.role, content, index, message.id)
    given: Iterator[_Document] | None = None
    made: list[Block] = []
    for member in content:
        if member.document is UNSET:
            block = _block(member)
        else:
            if given is None:
                # Together, however many there are.
                raw = [each.document for each in content if type(each.document) is Raw]
                documents = decoded(_DOCUMENTS, b"[%b]" % b",".join(raw))
                if documents is None:
                    return None
                given = iter(documents)
            block = _rare_block(member, next(given))
        if block is None:
            return None
        made.append(block)
    return Turn(role=message.role, blocks=tuple(made), index=index, id=message.id)


def _block(member: _Member) -> Block | None:
    """Return the block of an object with one member, or None if it needs repair."""
    # Equal to one with this member alone: the quickest way to see that it is alone.
    if type(text := member.text) is str:
        return Text(text=text) if member == _Member(text) else None
    if type(call := member.tool_use) is _ToolUse:
        is_valid = member == _Member(tool_use=call) and starts_with(call.input, b"{") and is_harmless(call.input)
        return _use(call) if is_valid else None
    if type(result := member.tool_result) is _ToolResult:
        return _result(result) if member == _Member(tool_result=result) else None
    return _rare_block(member)


def _result(result: _ToolResult) -> ToolResult | None:
    is_error = result.status == "error"
    if not isinstance(result.content, tuple):
        # None, or what the tolerant reader made of it.
        return ToolResult(tool_use_id=result.tool_use_id, content=result.content, is_error=is_error)
    parts: list[Inner] = []
    for part in result.content:
        if type(text := part.text) is str:
            block: Block | None = Text(text=text) if part == _Part(text) else None
        elif type(data := part.json) is Raw:
            is_valid = part == _Part(json=data) and not starts_with(data, b"n") and is_harmless(data)
            block = _structured(data) if is_valid else None
        else:
            block = _rare_block(part)
        if not isinstance(block, INNER):
            return None
        parts.append(block)
    return ToolResult(tool_use_id=result.tool_use_id, content=parts, is_error=is_error)


def _rare_block(member: _Member | _Part, document: _Document | None = None) -> Block | None:
    """Return the block of any other object with one member, or None if it needs repair.

    Args:
        member: the member.
        document: the document in it, if that has been decoded.
    """
    keys = zip(member.__struct_fields__, member.__struct_encode_fields__, strict=True)
    found = [(key, value) for field, key in keys if (value := getattr(member, field)) is not UNSET]
    if len(found) != 1:
        return None
    key, value = found[0]
    if type(value) is Raw:
        if starts_with(value, b"n") or not is_harmless(value):
            return None
        if key != "document":
            return _whole(key, value)
        document = document or decoded(_DOCUMENT, value)
        return None if document is None else _document(document) or _whole(key, value)
    if type(value) is _Image:
        return None if type(value.error) is Raw and not is_harmless(value.error) else _image(value)
    is_union = UNSET in (value.redacted_content, value.reasoning_text)
    return _thought(value) if is_union else None


_DOCUMENT: Final = msgspec.json.Decoder(_Document)
_DOCUMENTS: Final = msgspec.json.Decoder(tuple[_Document, ...])
STRICT: Final = StrictReader(
    "bedrock-converse",
    _Message,
    _turn_of,
    lambda message: type(message.content) is tuple and bool(message.content),
    meant=("message_id", "type", *BLOCK_KEYS),
)


def repaired_turn(fields: Fields, index: int) -> Turn:
    message: Any = _read_message(fields)
    return placed_turn(message.role, message.content, index)


def _repaired(fields: Fields) -> list[Placed]:
    """One content block. One that has several members, as a union must not, is read as one block for each.

    Each member is read as it is declared; that one which does not fit is kept whole, no declaration says.
    """
    path = fields.path
    members = [key for key in fields.names() if key in BLOCK_KEYS]
    if "type" in fields:
        return _repair_typed(fields)
    if not members:
        # A member that is not known yet is the service's own.
        return [(Unknown(kind="", raw=Raw(fields.whole)), path)]
    placed: list[Placed] = []
    for key in members:
        member = fields.take(key)
        if member is not None:
            placed.append((_repaired_member(key, member, path, fields.notes), path))
    fields.drop_rest()
    return placed


def _repaired_member(key: str, value: Raw, path: str, notes: Notes) -> Block:
    """The block of one member; what the canonical form has no place for is kept whole."""
    if key == "text":
        return Text(text=as_string(value, f"{path}.text"))
    block: Block | None = None
    if key in _READERS and starts_with(value, b"{"):
        fields = Fields(value, f"{path}.{key}", notes)
        # A call or a result with a type is the service's own, not the client's.
        is_servers = key.startswith("tool") and "type" in fields
        block = None if is_servers else block_or_none(fields, _READERS[key])
    return block or _whole(key, value)


def _bytes(fields: Fields, key: str) -> str | None:
    """Bytes in base64, as JSON has them; Strands keeps them in an object that says so."""
    value = fields.peek(key)
    if value is None or not starts_with(value, b"{"):
        return fields.take_string(key)
    kept = Fields(value, fields.at(key), fields.notes)
    if not kept.take_flag("__bytes_encoded__"):
        return fields.take_string(key)
    fields.ignore(key)
    return kept.take_string("data")


def _placed_part(part: _Part, path: str) -> list[Placed] | None:
    result = _result(_ToolResult("", (part,)))
    return None if result is None else [(block, path) for block in result.content or () if isinstance(block, INNER)]


def _repaired_part(fields: Fields) -> list[Placed]:
    structured = fields.take("json")
    if structured is not None:
        fields.drop_rest()
        return [(_structured(structured), fields.path)]
    whole = Unknown(kind="", raw=Raw(fields.whole))
    return [(block if isinstance(block, INNER) else whole, path) for block, path in _repaired(fields)]


_PARTS: Final = ContentReader[_Part](_Part, _placed_part, _repaired_part)


_SPECIAL: Final[dict[str, Taker]] = {
    "input": lambda fields, name: read_input(fields.take(name), fields.at(name), fields.notes)[0],
    "bytes": _bytes,
    "redacted_content": _bytes,
}
_RESULT: Final[dict[str, Taker]] = {
    "content": lambda fields, name: [block for block, _ in _PARTS.read(fields, name)],
}
_READERS: Final[dict[str, Callable[[Fields], Block | None]]] = {
    "image": block_reader(_Image, _image, _SPECIAL),
    "document": block_reader(_Document, _document, _SPECIAL),
    "toolUse": block_reader(_ToolUse, _use, _SPECIAL),
    "toolResult": block_reader(_ToolResult, _result, _SPECIAL | _RESULT),
    "reasoningContent": block_reader(_Reasoning, _thought, _SPECIAL),
}
_repair_typed: Final = typed_reader(READERS)
_CONTENT: Final = ContentReader[_Member](
    _Member, lambda member, path: None if (block := _block(member)) is None else [(block, path)], _repaired
)
_read_message: Final = reader_of(_Message, {"role": Fields.take_string, "content": _CONTENT.read}, ("id",))
