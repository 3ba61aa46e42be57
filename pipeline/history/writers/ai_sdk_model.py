"""ModelMessages of Vercel's AI SDK, for `modelMessageSchema`, `generateText` and `streamText`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Raw

from reknit.pipeline.history.readers.rawjson import starts_with
from reknit.pipeline.history.writers.ai_sdk import media_type_of, reasoning_parts, seal_options
from reknit.pipeline.history.writers.base import EVERY, Holds, Known, Members, Writer
from reknit.pipeline.history.writers.values import (
    UNKNOWN_TOOL,
    as_text,
    is_seal,
    is_value,
    only_text,
    source_of,
)
from reknit.pipeline.model import Block, Document, Image, RedactedThinking, Text, Thinking, ToolResult, ToolUse, Turn

_OPTIONS: Final = "providerOptions"
HOLDS: Final = Holds(
    signers=EVERY,
    issuers="signed",
    seals="all",
    reasoning_items="named",
    errors="text",
    titles="some",
    sources=frozenset({"base64", "url"}),
    result_sources=frozenset({"base64", "url"}),
)


def _write(turns: Sequence[Turn], known: Known) -> list[Members]:
    return [message for turn in turns for message in _messages(turn, known.names)]


def _messages(turn: Turn, names: Mapping[str, str]) -> list[Members]:
    if turn.role == "system":
        return [{"role": "system", "content": block.text} for block in turn.blocks if isinstance(block, Text)]
    if turn.role == "assistant":
        return [{"role": "assistant", "content": _parts(turn.blocks)}]
    messages: list[Members] = []
    for block in turn.blocks:
        role = "tool" if isinstance(block, ToolResult) else "user"
        part = _result(block, names) if isinstance(block, ToolResult) else _part(block)
        if not messages or messages[-1]["role"] != role:
            messages.append({"role": role, "content": []})
        messages[-1]["content"].append(part)
    return messages


def _parts(blocks: Sequence[Block]) -> list[Members]:
    parts: list[Members] = []
    options: Members = {}
    for block in blocks:
        if isinstance(block, Thinking) and is_seal(block):
            options = {_OPTIONS: seal_options(str(block.signature))}
        elif isinstance(block, (Thinking, RedactedThinking)):
            parts += reasoning_parts(block, _OPTIONS)
        else:
            parts.append(_part(block, of_assistant=True) | options)
            options = {}
    return parts


def _part(block: Block, *, of_assistant: bool = False) -> Members:
    match block:
        case Text():
            return {"type": "text", "text": block.text}
        case Image() if not of_assistant:
            source = source_of(block)
            typed = {"mediaType": source["media_type"]} if source["type"] == "base64" else {}
            return {"type": "image", "image": source.get("data") or source.get("url"), **typed}
        case Image() | Document():
            source = source_of(block)
            titled = {"filename": block.title} if isinstance(block, Document) and block.title else {}
            data = source.get("data") or source.get("url")
            return {"type": "file", "data": data, "mediaType": media_type_of(block), **titled}
        case ToolUse():
            given: Any = as_text(block.input) if starts_with(block.input, b'"') else block.input
            return {"type": "tool-call", "toolCallId": block.id, "toolName": block.name, "input": given}
        case _:
            raise AssertionError(f"{type(block).__name__} is no part of a message")


def _result(block: ToolResult, names: Mapping[str, str]) -> Members:
    return {
        "type": "tool-result",
        "toolCallId": block.tool_use_id,
        "toolName": names.get(block.tool_use_id, UNKNOWN_TOOL),
        "output": _output(block),
    }


def _output(block: ToolResult) -> Members:
    text = only_text(block)
    if text is None and isinstance(block.content, list):
        return {"type": "content", "value": [_output_part(part) for part in block.content]}
    if block.is_error:
        return {"type": "error-text", "value": text}
    if is_value(block):
        return {"type": "json", "value": Raw((text or "").encode())}
    return {"type": "text", "value": text}


def _output_part(part: Block) -> Members:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    assert isinstance(part, (Image, Document))  # noqa: S101  blocks of other types were left out
    source = source_of(part)
    if source["type"] == "base64":
        return {"type": "media", "data": source["data"], "mediaType": source["media_type"]}
    return {"type": "image-url" if isinstance(part, Image) else "file-url", "url": source["url"]}


WRITER: Final = Writer(
    name="ai-sdk-model",
    source="ai-sdk-model",
    forms="ModelMessage",
    loads="`modelMessageSchema`",
    holds=HOLDS,
    write=_write,
)
