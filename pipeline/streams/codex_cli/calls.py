"""Codex's items that are calls: the call, and its result, in words that all sources share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct

from pipeline.streams import fields as read
from pipeline.streams.anthropic.wire import text_block
from pipeline.streams.events import ToolResult, UserMessage, WholeBlock
from pipeline.streams.fields import Fields

_FAILED: Final = frozenset({"failed", "declined"})
# Of the MCP's own blocks, those that the canonical form has.
_TEXT, _IMAGE = "text", "image"


class Call(Struct, frozen=True):
    """How items of one type say their call: the members of its input, and how its result is read.

    ``known_late``: while the call runs, its input is not known yet.
    """

    input: tuple[str, ...]
    content: Callable[[Fields], list[Raw]]
    known_late: bool = False

    def block(self, item: Fields, tool_id: str) -> WholeBlock:
        name, given = _named(item), self._input(item)
        raw = msgspec.json.encode({"type": "tool_use", "id": tool_id, "name": name, "input": given})
        return WholeBlock(kind="tool_use", raw=Raw(raw), tool_id=tool_id, name=name, input=given)

    def result(self, item: Fields, tool_id: str) -> UserMessage:
        content = Raw(b"[%b]" % b",".join(map(bytes, self.content(item))))
        failed = read.text(item, "status") in _FAILED or read.members(item, "error") is not None
        block = {"type": "tool_result", "tool_use_id": tool_id, "content": content}
        raw = Raw(msgspec.json.encode(block | {"is_error": True} if failed else block))
        result = ToolResult(tool_id=tool_id, content=content, block=raw, is_error=failed)
        whole = read.raw(item, "result")
        return UserMessage(results=(result,), tool_result=whole, extras=read.others(item, _SAID.union(self.input)))

    def _input(self, item: Fields) -> Raw:
        if self.input == ("arguments",):
            given = read.raw(item, "arguments")
            return Raw(b"{}") if given is UNSET else given
        return Raw(msgspec.json.encode({name: item[name] for name in self.input if name in item}))


def _named(item: Fields) -> str:
    kind = read.text(item, "type")
    if kind == "mcp_tool_call":
        return f"mcp__{read.text(item, 'server')}__{read.text(item, 'tool')}"
    return read.text(item, "tool") or kind


def _text(words: str) -> Raw:
    return text_block(Raw(msgspec.json.encode(words)))


def _output(item: Fields) -> list[Raw]:
    return [_text(read.text(item, "aggregated_output"))]


def _status(item: Fields) -> list[Raw]:
    """The word for how it went, which is all that Codex tells of such calls."""
    return [_text(read.text(item, "status") or "completed")]


def _states(item: Fields) -> list[Raw]:
    states = read.raw(item, "agents_states")
    return _status(item) if states is UNSET or bytes(states) in read.NOTHING else [_text(bytes(states).decode())]


def _mcp(item: Fields) -> list[Raw]:
    error, result = read.members(item, "error"), read.members(item, "result") or {}
    if error is not None:
        return [_text(read.text(error, "message") or "failed")]
    # Where there is structured content, Codex sends the model that alone.
    structured = read.raw(result, "structured_content")
    if structured is not UNSET:
        return [_text(bytes(structured).decode())]
    return [_mcp_block(raw) for raw in read.elements(result, "content") or ()] or [_text("")]


def _mcp_block(raw: Raw) -> Raw:
    block = read.members({"block": raw}, "block") or {}
    kind, data = read.text(block, "type"), read.text(block, "data")
    if kind == _TEXT:
        return _text(read.text(block, "text"))
    if kind == _IMAGE and data:
        source = {"type": "base64", "media_type": read.text(block, "mimeType"), "data": data}
        return Raw(msgspec.json.encode({"type": "image", "source": source}))
    return _text(bytes(raw).decode())


CALLS: Final[dict[str, Call]] = {
    "command_execution": Call(("command",), _output),
    "file_change": Call(("changes",), _status),
    "mcp_tool_call": Call(("arguments",), _mcp),
    "collab_tool_call": Call(("prompt", "sender_thread_id"), _states),
    "web_search": Call(("query", "action"), _status, known_late=True),
    "todo_list": Call(("items",), _status),
}
# What a result's content or the call's name has already said; what else stands in an item tells how the call went.
_SAID: Final = frozenset({"id", "type", "aggregated_output", "agents_states", "server", "tool", "result", "error"})
