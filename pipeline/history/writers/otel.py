"""OpenTelemetry's GenAI messages. The convention has no signatures, no error flag of results and no message ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Raw

from reknit.pipeline.history.readers.rawjson import starts_with
from reknit.pipeline.history.writers.base import Holds, Known, Members, Writer
from reknit.pipeline.history.writers.values import as_text, is_value, only_text, source_of
from reknit.pipeline.model import Block, Document, Image, Text, Thinking, ToolResult, ToolUse, Turn

HOLDS: Final = Holds(errors="", cut_texts=True)


def _write(turns: Sequence[Turn], known: Known) -> list[Members]:
    del known
    messages: list[Members] = []
    for turn in turns:
        first = len(messages)
        for block in turn.blocks:
            role = "tool" if isinstance(block, ToolResult) else turn.role
            if len(messages) == first or messages[-1]["role"] != role:
                messages.append({"role": role, "parts": []})
            messages[-1]["parts"].append(_part(block))
        if turn.incomplete:
            messages[-1]["finish_reason"] = "error"
    return messages


def _part(block: Block) -> Members:
    match block:
        case Text():
            return {"type": "text", "content": block.text}
        case Thinking():
            return {"type": "reasoning", "content": block.thinking}
        case Image() | Document():
            return _medium(block)
        case ToolUse():
            given: Any = as_text(block.input) if starts_with(block.input, b'"') else block.input
            return {"type": "tool_call", "id": block.id, "name": block.name, "arguments": given}
        case ToolResult():
            return {"type": "tool_call_response", "id": block.tool_use_id, "response": _response(block)}
        case _:
            raise AssertionError(f"{type(block).__name__} is no part of a message")


def _response(block: ToolResult) -> Any:  # noqa: ANN401  a text, a list of parts, or a value
    text = only_text(block)
    if text is None and isinstance(block.content, list):
        return [_part(part) for part in block.content]
    return Raw((text or "").encode()) if is_value(block) else text


def _medium(block: Image | Document) -> Members:
    source = source_of(block)
    modality = "image" if isinstance(block, Image) else "document"
    if source["type"] == "base64":
        return {"type": "blob", "mime_type": source["media_type"], "modality": modality, "content": source["data"]}
    if source["type"] == "url":
        return {"type": "uri", "mime_type": None, "modality": modality, "uri": source["url"]}
    # opentelemetry-util-genai requires the member, also where the type is not known.
    return {"type": "file", "mime_type": None, "modality": modality, "file_id": source["file_id"]}


WRITER: Final = Writer(
    name="otel-genai",
    source="otel-genai",
    forms="messages of `gen_ai.input.messages`",
    loads="the convention's JSON schemas",
    holds=HOLDS,
    write=_write,
)
