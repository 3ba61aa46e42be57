"""The fast path for Converse's own shape: one typed decode, then a look at each block.

Texts, calls and results are decoded; members that are rarer stay raw, and the tolerant reader makes their blocks. What
does not fit, or would take a fix, is not mended here: the functions return None, and the message is read tolerantly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from pipeline.errors import InputError
from pipeline.history.readers.anthropic import INNER, Inner
from pipeline.history.readers.converse import member_block
from pipeline.history.readers.notes import Notes
from pipeline.history.readers.rawjson import starts_with
from pipeline.history.readers.typed import (
    Healthy,
    WholeDocument,
    decoded,
    is_harmless,
    messages_of,
    stretch_of,
    string_blocks,
)
from pipeline.model import Block, Role, Text, ToolResult, ToolUse, Turn

_SHAPES: Final = (None, "bedrock-converse")


class _ToolUse(Struct, frozen=True, forbid_unknown_fields=True, rename="camel", gc=False):
    tool_use_id: str
    name: str
    input: Raw


class _Part(Struct, frozen=True, forbid_unknown_fields=True, rename="camel", gc=False):
    """A part of a result: a union, so that one member is set."""

    text: str | UnsetType = UNSET
    json: Raw | UnsetType = UNSET
    image: Raw | UnsetType = UNSET
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
    reasoning_content: Raw | UnsetType = UNSET
    image: Raw | UnsetType = UNSET
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


_DOCUMENT: Final = msgspec.json.Decoder(WholeDocument[_Message])
_LIST: Final = msgspec.json.Decoder(tuple[_Message, ...])
_MESSAGE: Final = msgspec.json.Decoder(_Message)


def read_document(text: bytes, shape: str | None) -> Healthy | None:
    """A document or list of which every message is healthy and has Converse's shape, or None."""
    found = messages_of(_LIST, _DOCUMENT, text) if shape in _SHAPES else None
    if found is None:
        return None
    messages, keys = found
    turns = _turns(messages)
    if turns is None:
        return None
    shown = any(type(message.content) is tuple and message.content for message in messages)
    return Healthy(turns, keys, "bedrock-converse" if shown else "anthropic", stretch_of(turns)[0])


def read_message(value: Raw | bytes, index: int, shape: str | None) -> Healthy | None:
    """One message if it is healthy and has Converse's shape, or None."""
    message = decoded(_MESSAGE, value) if shape in _SHAPES else None
    turns = None if message is None else _turns((message,), index)
    return None if turns is None else Healthy(turns, {}, "bedrock-converse")


def _turns(messages: Sequence[_Message], first: int = 0) -> list[Turn] | None:
    """The turns of these messages, numbered from ``first``, or None where any needs mending."""
    turns: list[Turn] = []
    for index, message in enumerate(messages, first):
        content = message.content
        if isinstance(content, str):
            blocks, paths = string_blocks(content, index)
            turns.append(Turn(role=message.role, blocks=blocks, index=index, id=message.id, paths=paths))
            continue
        made: list[Block] = []
        for member in content:
            # Equal to one with this member alone: the quickest way to see that it is alone.
            text = member.text
            block = Text(text=text) if type(text) is str and member == _Member(text) else _block(member)
            if block is None:
                return None
            made.append(block)
        turns.append(Turn(role=message.role, blocks=tuple(made), index=index, id=message.id))
    return turns


def _block(member: _Member) -> Block | None:
    """The block of a member that is not text and stands alone, or None where it needs mending."""
    if member.text is not UNSET:
        return None
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
    return Text(text=whole.decode()) if whole != b"null" and is_harmless(whole) else None


def _rare_block(member: _Member | _Part) -> Block | None:
    """The block of a raw member, as the tolerant reader makes it, if it stands alone and takes no fix."""
    keys = zip(member.__struct_fields__, member.__struct_encode_fields__, strict=True)
    found = [(key, value) for field, key in keys if (value := getattr(member, field)) is not UNSET]
    if len(found) != 1:
        return None
    key, value = found[0]
    if starts_with(value, b"n") or not is_harmless(bytes(value)):
        return None
    notes = Notes()
    try:
        block = member_block(key, value, "", notes)
    except InputError:
        return None
    return None if notes.fixes else block
