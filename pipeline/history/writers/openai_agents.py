"""Session items of the OpenAI Agents SDK: items of Responses, with reasoning of other models in ``provider_data``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw

from reknit.pipeline.history.pieces import RESPONSES, native_type
from reknit.pipeline.history.writers.base import EVERY, LITELLM_NAMES, Holds, Members, Writer
from reknit.pipeline.history.writers.values import as_text, data_url, source_of
from reknit.pipeline.model import (
    Block,
    Document,
    Image,
    Issuer,
    RedactedThinking,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Turn,
    Unknown,
)
from reknit.pipeline.providers.openai_responses.writer.items import call_item

_FAKE: Final = "__fake_id__"
_CUSTOM_OUTPUT: Final = "custom_tool_call_output"
HOLDS: Final = Holds(
    items=True,
    signers=EVERY,
    issuers="all",
    models="plain",
    reasoning_items="all",
    native=frozenset({RESPONSES}),
    own=frozenset({RESPONSES}),
    errors="",
    media=frozenset({"user", "result"}),
    titles="all",
    result_titles=True,
    typed=False,
)


def _write(turns: Sequence[Turn], names: Mapping[str, str]) -> list[Members]:
    del names
    return [item for turn in turns for item in _items(turn)]


def _items(turn: Turn) -> Iterator[Members]:
    said: list[Block] = []
    for block in (*turn.blocks, None):
        if isinstance(block, (Text, Image, Document)):
            said.append(block)
            continue
        if said:
            yield _message(turn, said)
        said = []
        match block:
            case Thinking() | RedactedThinking():
                yield _reasoning(block)
            case ToolUse():
                yield _call(block)
            case ToolResult():
                yield _output(block)
            case Unknown():
                yield msgspec.json.decode(block.raw, type=dict[str, Raw])


def _message(turn: Turn, blocks: Sequence[Block]) -> Members:
    if turn.role != "assistant":
        texts = [_input_part(block) for block in blocks]
        alone = blocks[0].text if len(blocks) == 1 and isinstance(blocks[0], Text) else None
        return {"role": turn.role, "content": texts if alone is None else alone}
    own = turn.own.members if turn.own is not UNSET else {}
    content = [_output_part(block) for block in blocks if isinstance(block, Text)]
    # The SDK knows an answer by its id, and writes this one for models that have none.
    return {"id": _FAKE, "status": "completed", **own, "type": "message", "role": "assistant", "content": content}


def _output_part(block: Text) -> Members:
    if block.refusal:
        return {"type": "refusal", "refusal": block.text}
    return {"type": "output_text", "text": block.text, "annotations": []}


def _input_part(block: Block) -> Members:
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
        content = [_input_part(part) for part in content]
    own = block.own.members if block.own is not UNSET else {}
    kind = block.own.kind if block.own is not UNSET else ""
    if kind and kind != _CUSTOM_OUTPUT:
        return {"type": kind, native_type(RESPONSES, kind).answers: block.tool_use_id, **own}
    return {"type": kind or "function_call_output", "call_id": block.tool_use_id, "output": content, **own}


def _reasoning(block: Thinking | RedactedThinking) -> Members:
    if block.own is not UNSET:
        return {"type": block.own.kind, **block.own.members}
    issuer = block.issuer
    data: Members = {}
    if isinstance(issuer, Issuer):
        data["model"] = f"{LITELLM_NAMES.get(issuer.provider, issuer.provider)}/{issuer.model or ''}"
    if isinstance(block, RedactedThinking):
        data["thinking_blocks"] = [{"type": "redacted_thinking", "data": block.data}]
        return {"type": "reasoning", "id": _FAKE, "summary": [], "provider_data": data}
    if block.signature:
        given = {"type": "thinking", "thinking": block.thinking, "signature": block.signature}
        data["thinking_blocks"] = [given]
    text = {"type": "reasoning_text", "text": block.thinking}
    return {"type": "reasoning", "id": _FAKE, "summary": [], "content": [text], "provider_data": data}


WRITER: Final = Writer(
    name="openai-agents",
    source="openai-agents",
    forms="session items",
    loads="`Session.add_items`",
    holds=HOLDS,
    write=_write,
)
