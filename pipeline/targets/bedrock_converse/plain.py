"""Plain turns as Converse's JSON in one go: text, calls, and results that are text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec
from msgspec import Raw, Struct

from pipeline.model import Text, ToolResult, ToolUse, Turn


class _Said(Struct, frozen=True, gc=False):
    text: str


class _Use(Struct, frozen=True, gc=False, rename="camel"):
    tool_use_id: str
    name: str
    input: Raw


class _Called(Struct, frozen=True, gc=False, rename="camel"):
    tool_use: _Use


class _Result(Struct, frozen=True, gc=False, rename="camel"):
    tool_use_id: str
    content: list[_Said]
    status: str


class _Answered(Struct, frozen=True, gc=False, rename="camel"):
    tool_result: _Result


_Member: TypeAlias = _Said | _Called | _Answered


class _Message(Struct, frozen=True, gc=False):
    role: str
    content: list[_Member]


_encode = msgspec.json.Encoder().encode


def written_plain(turns: Sequence[Turn]) -> bytes | None:
    """The messages of plain turns, joined by commas; None if a block of them is not written as it is."""
    messages: list[_Message] = []
    for turn in turns:
        content: list[_Member] = []
        for block in turn.blocks:
            if type(block) is Text:
                content.append(_Said(block.text))
            elif type(block) is ToolUse:
                content.append(_Called(_Use(block.id, block.name, block.input)))
            elif type(block) is ToolResult:
                parts = _parts(block.content)
                if parts is None or (block.is_error and not parts):
                    return None
                content.append(_Answered(_Result(block.tool_use_id, parts, "error" if block.is_error else "success")))
            else:
                return None
        messages.append(_Message(turn.role, content))
    return _encode(messages)[1:-1]


def _parts(content: object) -> list[_Said] | None:
    """A result's text, or its texts; None where it has anything else."""
    if type(content) is str:
        return [_Said(content)] if content and not content.isspace() else []
    if type(content) is not list:
        return None
    parts = []
    for part in content:
        if type(part) is not Text:
            return None
        parts.append(_Said(part.text))
    return parts
