"""Items of OpenAI's Responses, and the parts of their messages, as the Agents SDK and Codex store them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw

from reknit.pipeline.history.pieces import RESPONSES, native_type
from reknit.pipeline.history.writers.base import Members
from reknit.pipeline.history.writers.values import as_text, data_url, source_of
from reknit.pipeline.model import (
    Block,
    Document,
    Image,
    RedactedThinking,
    Role,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Turn,
    Unknown,
)
from reknit.pipeline.providers.openai_responses.writer.items import call_item

_CUSTOM_OUTPUT: Final = "custom_tool_call_output"


def items_of(
    turn: Turn,
    message: Callable[[Role, Sequence[Block], Mapping[str, Raw]], Members],
    reasoning: Callable[[Thinking | RedactedThinking], Members],
) -> Iterator[Members]:
    """Yield the items of a turn.

    Args:
        turn: one that has nothing which the shape has no place for.
        message: writes a message of a role with these blocks and own members.
        reasoning: writes reasoning.
    """
    own: Mapping[str, Raw] = turn.own.members if turn.own is not UNSET else {}
    said: list[Block] = []
    for block in (*turn.blocks, None):
        if isinstance(block, (Text, Image, Document)):
            said.append(block)
            continue
        if said:
            yield message(turn.role, said, own)
            said, own = [], {}
        match block:
            case Thinking() | RedactedThinking():
                yield reasoning(block)
            case ToolUse():
                yield _call(block)
            case ToolResult():
                yield _output(block)
            case Unknown():
                yield msgspec.json.decode(block.raw, type=dict[str, Raw])


def output_part(block: Text) -> Members:
    if block.refusal:
        return {"type": "refusal", "refusal": block.text}
    return {"type": "output_text", "text": block.text, "annotations": []}


def input_part(block: Block) -> Members:
    if isinstance(block, Text):
        return {"type": "input_text", "text": block.text}
    assert isinstance(block, (Image, Document))  # noqa: S101  blocks of other types were left out
    source = source_of(block)
    if isinstance(block, Image):
        place = {"file_id": source["file_id"]} if source["type"] == "file" else {"image_url": data_url(source)}
        return {"type": "input_image", "detail": "auto", **place}
    if source["type"] == "file":
        return {"type": "input_file", "file_id": source["file_id"]}
    if source["type"] == "url":
        return {"type": "input_file", "file_url": source["url"]}
    return {"type": "input_file", "file_data": data_url(source), "filename": block.title}


def _call(block: ToolUse) -> Members:
    if block.own is not UNSET and block.own.kind:
        return call_item(block)
    own = block.own.members if block.own is not UNSET else {}
    return {"type": "function_call", "call_id": block.id, "name": block.name, "arguments": as_text(block.input), **own}


def _output(block: ToolResult) -> Members:
    content: Any = block.content
    if isinstance(content, list):
        content = [input_part(part) for part in content]
    own = block.own.members if block.own is not UNSET else {}
    kind = block.own.kind if block.own is not UNSET else ""
    if kind and kind != _CUSTOM_OUTPUT:
        return {"type": kind, native_type(RESPONSES, kind).answers: block.tool_use_id, **own}
    return {"type": kind or "function_call_output", "call_id": block.tool_use_id, "output": content, **own}
