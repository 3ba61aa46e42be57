"""Complete messages of the Messages API and their blocks: typed where they are plain, else member by member."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from pipeline.streams import fields as read
from pipeline.streams.events import CALLS, REASONING, TEXTS, WholeBlock
from pipeline.streams.fields import Fields
from topics.items import Usage


class Message(Struct, gc=False):
    """What is read of a message: its content as raw blocks, and members that may be empty."""

    content: list[Raw] = []
    id: str | None = None
    model: str | None = None
    usage: Usage | UnsetType | None = UNSET


class _Text(Struct, tag_field="type", tag="text", forbid_unknown_fields=True, gc=False):
    text: str = ""


class _Thinking(Struct, tag_field="type", tag="thinking", forbid_unknown_fields=True, gc=False):
    thinking: str = ""
    text: str = ""
    signature: Raw | UnsetType = UNSET


class _Call(Struct, tag_field="type", tag="tool_use", forbid_unknown_fields=True, gc=False):
    id: Annotated[str, Meta(min_length=1)]
    name: str = ""
    input: Raw | UnsetType = UNSET


_message = msgspec.json.Decoder(Message)
_plain_block: msgspec.json.Decoder[_Text | _Thinking | _Call] = msgspec.json.Decoder(_Text | _Thinking | _Call)
_usage = msgspec.json.Decoder(Usage)

# Types of blocks, calls apart, that have a place of their own in items.
WORDS: Final = TEXTS | REASONING

# The members of a block that have a place of their own in items; others are extras.
_BLOCK: dict[str, frozenset[str]] = {
    "text": frozenset({"type", "text"}),
    "thinking": frozenset({"type", "thinking", "text", "signature"}),
    "redacted_thinking": frozenset({"type", "data"}),
    **dict.fromkeys(CALLS, frozenset({"type", "id", "name", "input"})),
}


def read_message(fields: Fields) -> Message | None:
    """The member ``message`` of a line; None where it is not an object, or its content is not content."""
    try:
        return _message.decode(fields["message"])
    except (KeyError, msgspec.DecodeError):
        message = read.members(fields, "message")
    content = None if message is None else _content(message)
    if message is None or content is None:
        return None
    return Message(content, read.text(message, "id"), read.text(message, "model"), usage(message, "usage"))


def _content(message: Fields) -> list[Raw] | None:
    """A message's content as raw blocks; a string is one text block, null none."""
    content = message.get("content")
    if content is None or bytes(content) == b"null":
        return []
    if bytes(content).startswith(b'"'):
        return [text_block(content)]
    return read.elements(message, "content")


def text_block(string: Raw) -> Raw:
    """A text block around a raw JSON string."""
    return Raw(b'{"type":"text","text":' + bytes(string) + b"}")


def whole_block(raw: Raw) -> WholeBlock:
    """A content block of a complete message. What is not an object, or of an unknown type, stays opaque."""
    try:
        plain = _plain_block.decode(raw)
    except msgspec.DecodeError:
        return _unusual_block(raw)
    raw = read.own(raw)
    if isinstance(plain, _Text):
        return WholeBlock(kind="text", raw=raw, text=plain.text)
    if isinstance(plain, _Thinking):
        return WholeBlock(kind="thinking", raw=raw, text=plain.thinking or plain.text)
    return WholeBlock(kind="tool_use", raw=raw, tool_id=plain.id, name=plain.name, input=read.given(plain.input))


def _unusual_block(raw: Raw) -> WholeBlock:
    block = read.members({"block": raw}, "block") or {}
    kind = read.text(block, "type")
    raw = read.own(raw)
    if kind in WORDS:
        keys = ("thinking", "text") if kind == "thinking" else ("text",)
        return WholeBlock(kind=kind, raw=raw, text=read.text(block, *keys), extras=read.others(block, _BLOCK[kind]))
    tool_id = read.text(block, "id")
    if kind in CALLS and tool_id:
        return WholeBlock(
            kind=kind,
            raw=raw,
            tool_id=tool_id,
            name=read.text(block, "name"),
            input=read.raw(block, "input"),
            extras=read.others(block, _BLOCK[kind]),
        )
    return WholeBlock(kind=kind or "unknown", raw=raw, opaque=True)


def usage(fields: Fields, name: str) -> Usage | UnsetType:
    """Token counts; a count that is not a number leaves the whole out."""
    try:
        return _usage.decode(fields[name])
    except (KeyError, msgspec.DecodeError):
        return UNSET
