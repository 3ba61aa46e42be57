"""Bedrock's Converse shape: blocks without a type, named by their only key, and AgentCore's wrapper around it.

Healthy messages are read first, by one typed decode and a look at each block: texts, calls and results are decoded;
members that are rarer stay raw, and the tolerant reader makes their blocks. What does not fit, or would take a fix, is
not mended by that: its functions return None, and the message is read tolerantly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from pipeline.errors import InputError
from pipeline.history.readers.anthropic import INNER, Inner, mend_fields, read_content, string_turn
from pipeline.history.readers.fields import Fields, Notes, as_list, as_string, read_input
from pipeline.history.readers.rawjson import starts_with, wrong_type
from pipeline.history.readers.typed import Placed, StrictParts, StrictReader, is_harmless
from pipeline.model import (
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

BLOCK_KEYS: Final = frozenset(
    {
        "text",
        "image",
        "document",
        "video",
        "audio",
        "toolUse",
        "toolResult",
        "guardContent",
        "cachePoint",
        "reasoningContent",
        "citationsContent",
        "searchResult",
    }
)
"""The members of Converse's content block union."""

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


def read(fields: Fields, notes: Notes) -> list[Placed]:
    """The blocks of one message."""
    return read_content(fields.take("content"), fields.at("content"), notes, read_member, _MEMBERS)


def read_member(value: Raw, path: str, notes: Notes) -> list[Placed]:
    """One content block. One that has several members, as a union must not, is read as one block for each."""
    fields = Fields(value, path, notes)
    members = [key for key in fields.names() if key in BLOCK_KEYS]
    if "type" in fields:
        return mend_fields(fields, value)
    if not members:
        # A member that is not known yet is the service's own.
        return [(Unknown(kind="", raw=value), path)]
    placed: list[Placed] = []
    for key in members:
        member = fields.take(key)
        if member is not None:
            placed.append((member_block(key, member, path, notes), path))
    fields.drop_rest()
    return placed


def member_block(key: str, value: Raw, path: str, notes: Notes) -> Block:
    """The block of one member; what the canonical form has no place for is kept whole."""
    if key == "text":
        return Text(text=as_string(value, f"{path}.text"))
    reader = _READERS.get(key)
    attempt = notes.attempt()
    if reader is not None and starts_with(value, b"{"):
        fields = Fields(value, f"{path}.{key}", attempt)
        block = reader(fields)
        if block is not None:
            fields.drop_rest()
            notes.fixes += attempt.fixes
            return block
    return Unknown(kind=key, raw=Raw(b'{"%s":%s}' % (key.encode(), bytes(value))))


def _image(fields: Fields) -> Image | None:
    """Bytes become a base64 source; an image in S3 has no canonical form."""
    data = _source_bytes(fields)
    image_format = fields.take_string("format")
    if data is None or image_format is None:
        return None
    return _inline(image_format, data)


def _inline(image_format: str, data: str) -> Image:
    source = {"type": "base64", "media_type": f"image/{image_format}", "data": data}
    return Image(source=Raw(msgspec.json.encode(source)))


def _document(fields: Fields) -> Document | None:
    data = _source_bytes(fields)
    media_type = MEDIA_TYPES.get(fields.take_string("format") or "")
    if data is None or media_type is None:
        return None
    title, context = fields.take_string("name"), fields.take_string("context")
    citations = fields.take("citations")
    source = {"type": "base64", "media_type": media_type, "data": data}
    return Document(
        source=Raw(msgspec.json.encode(source)),
        title=UNSET if title is None else title,
        context=UNSET if context is None else context,
        citations=UNSET if citations is None else citations,
    )


def _source_bytes(fields: Fields) -> str | None:
    source = fields.take_object("source")
    if source is None or source.names() != ["bytes"]:
        return None
    return _bytes(source, "bytes")


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


def _tool_use(fields: Fields) -> ToolUse | None:
    """A call; one with a type of its own (a server's tool) has its result in the same turn and is none of ours."""
    if "type" in fields:
        return None
    call_input, incomplete = read_input(fields.take("input"), fields.at("input"), fields.notes)
    return ToolUse(
        id=fields.take_text("toolUseId"),
        name=fields.take_text("name"),
        input=call_input,
        incomplete=incomplete,
    )


def _tool_result(fields: Fields) -> ToolResult | None:
    if "type" in fields:
        return None
    status = fields.take_string("status")
    content = fields.take("content")
    path = fields.at("content")
    parts: list[Inner] = []
    if content is not None:
        for i, item in enumerate(as_list(content, path)):
            parts += _result_parts(item, f"{path}.{i}", fields.notes)
    return ToolResult(
        tool_use_id=fields.take_text("toolUseId"),
        content=UNSET if content is None else parts,
        is_error=status == "error",
    )


def _result_parts(value: Raw, path: str, notes: Notes) -> list[Inner]:
    """The parts of a result; JSON becomes the text of it, which is what a model reads; an object is known for one."""
    if not starts_with(value, b"{"):
        raise wrong_type(path, "a part of a tool result", value)
    fields = Fields(value, path, notes)
    structured = fields.take("json")
    if structured is not None:
        fields.drop_rest()
        return [Text(text=bytes(structured).decode(), structured=starts_with(structured, b"{"))]
    parts: list[Inner] = []
    for block, _ in read_member(value, path, notes):
        parts.append(block if isinstance(block, INNER) else Unknown(kind="", raw=value))
    return parts


def _reasoning(fields: Fields) -> Thinking | RedactedThinking | None:
    redacted = _bytes(fields, "redactedContent")
    if redacted is not None:
        return RedactedThinking(data=redacted, issuer=ISSUER)
    inner = fields.take_object("reasoningText")
    if inner is None:
        return None
    text, signature = inner.take_text("text"), inner.take_string("signature")
    inner.drop_rest()
    return Thinking(thinking=text, signature=UNSET if signature is None else signature, issuer=ISSUER)


_READERS: Final[dict[str, Callable[[Fields], Block | None]]] = {
    "image": _image,
    "document": _document,
    "toolUse": _tool_use,
    "toolResult": _tool_result,
    "reasoningContent": _reasoning,
}


class _ToolUse(Struct, frozen=True, forbid_unknown_fields=True, rename="camel", gc=False):
    tool_use_id: str
    name: str
    input: Raw


class _Bytes(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    bytes: str


class _Image(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    format: str
    source: _Bytes


class _ReasoningText(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    text: str
    signature: str | UnsetType = UNSET


class _Reasoning(Struct, frozen=True, forbid_unknown_fields=True, rename="camel", gc=False):
    """Reasoning: a union, so that one member is set."""

    reasoning_text: _ReasoningText | UnsetType = UNSET
    redacted_content: str | UnsetType = UNSET


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


class _Message(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, gc=False):
    role: Role
    content: str | tuple[_Member, ...]
    id: str | None = None


def _turn_of(message: _Message, index: int) -> Turn | None:
    content = message.content
    if isinstance(content, str):
        return string_turn(message.role, content, index, message.id)
    made: list[Block] = []
    for member in content:
        block = _block(member)
        if block is None:
            return None
        made.append(block)
    return Turn(role=message.role, blocks=tuple(made), index=index, id=message.id)


STRICT: Final = StrictReader(
    "bedrock-converse",
    _Message,
    _turn_of,
    lambda message: type(message.content) is tuple and bool(message.content),
    meant=("message_id", "type"),
)


def _block(member: _Member) -> Block | None:
    """The block of a member that stands alone, or None where it needs mending."""
    # Equal to one with this member alone: the quickest way to see that it is alone.
    if type(text := member.text) is str:
        return Text(text=text) if member == _Member(text) else None
    if type(call := member.tool_use) is _ToolUse:
        if member != _Member(tool_use=call) or not starts_with(call.input, b"{") or not is_harmless(bytes(call.input)):
            return None
        return ToolUse(id=call.tool_use_id, name=call.name, input=call.input)
    if type(result := member.tool_result) is _ToolResult:
        return _result(result) if member == _Member(tool_result=result) else None
    return _rare_block(member)


def _result(result: _ToolResult) -> ToolResult | None:
    is_error = result.status == "error"
    if type(result.content) is not tuple:
        return ToolResult(tool_use_id=result.tool_use_id, is_error=is_error)
    parts: list[Inner] = []
    for part in result.content:
        if type(text := part.text) is str:
            block: Block | None = Text(text=text) if part == _Part(text) else None
        elif type(data := part.json) is Raw:
            block = _structured(data) if part == _Part(json=data) else None
        else:
            block = _rare_block(part)
        if not isinstance(block, INNER):
            return None
        parts.append(block)
    return ToolResult(tool_use_id=result.tool_use_id, content=parts, is_error=is_error)


def _structured(data: Raw) -> Text | None:
    """JSON in a result is the text of it."""
    whole = bytes(data)
    if whole == b"null" or not is_harmless(whole):
        return None
    return Text(text=whole.decode(), structured=starts_with(data, b"{"))


def _thought(given: _Reasoning) -> Thinking | RedactedThinking | None:
    if type(data := given.redacted_content) is str:
        return RedactedThinking(data=data, issuer=ISSUER) if given == _Reasoning(redacted_content=data) else None
    if type(said := given.reasoning_text) is _ReasoningText:
        return Thinking(thinking=said.text, signature=said.signature, issuer=ISSUER)
    return None


def _rare_block(member: _Member | _Part) -> Block | None:
    """The block of a raw member, as the tolerant reader makes it, if it stands alone and takes no fix."""
    keys = zip(member.__struct_fields__, member.__struct_encode_fields__, strict=True)
    found = [(key, value) for field, key in keys if (value := getattr(member, field)) is not UNSET]
    if len(found) != 1:
        return None
    key, value = found[0]
    if type(value) is _Image:
        return _inline(value.format, value.source.bytes)
    if type(value) is _Reasoning:
        return _thought(value)
    if starts_with(value, b"n") or not is_harmless(bytes(value)):
        return None
    notes = Notes()
    try:
        block = member_block(key, value, "", notes)
    except InputError:
        return None
    return None if notes.fixes else block


_MEMBERS: Final = StrictParts(
    msgspec.json.Decoder(tuple[_Member, ...]),
    lambda member, path: None if (block := _block(member)) is None else [(block, path)],
)
