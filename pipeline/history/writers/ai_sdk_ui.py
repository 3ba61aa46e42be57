"""UIMessages of Vercel's AI SDK, for `useChat` and `convertToModelMessages`: a call and its result are one part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Raw

from reknit.pipeline.history.readers.rawjson import starts_with
from reknit.pipeline.history.writers.ai_sdk import file_url, reasoning_parts, seal_options
from reknit.pipeline.history.writers.base import EVERY, Holds, Known, Members, Writer
from reknit.pipeline.history.writers.values import as_text, fresh_ids, is_seal, is_value, only_text, source_of
from reknit.pipeline.model import Block, Document, Image, RedactedThinking, Text, Thinking, ToolResult, ToolUse, Turn

_OPTIONS: Final = "providerMetadata"
_CALL_OPTIONS: Final = "callProviderMetadata"
HOLDS: Final = Holds(
    ids=frozenset({"system", "user", "assistant"}),
    signers=EVERY,
    issuers="signed",
    seals="all",
    reasoning_items="named",
    cut_calls="marked",
    cut_texts=True,
    titles="some",
    sources=frozenset({"base64", "url"}),
    result_sources=frozenset({"base64"}),
    results_at_calls=True,
)


def _write(turns: Sequence[Turn], known: Known) -> list[Members]:
    del known
    ids = fresh_ids(turns)
    messages: list[Members] = []
    for turn in turns:
        if turn.role == "user" and all(isinstance(block, ToolResult) for block in turn.blocks):
            _answer(messages[-1]["parts"], turn.blocks)
            continue
        parts = _parts(turn)
        before = messages[-1] if messages else None
        if turn.role == "assistant":
            parts.insert(0, {"type": "step-start"})
            if before is not None and before["role"] == "assistant" and turn.id is None:
                before["parts"] += parts
                continue
        messages.append({"id": turn.id or next(ids), "role": turn.role, "parts": parts})
    return messages


def _parts(turn: Turn) -> list[Members]:
    parts: list[Members] = []
    seal = ""
    for block in turn.blocks:
        if isinstance(block, Thinking) and is_seal(block):
            seal = str(block.signature)
            continue
        if isinstance(block, (Thinking, RedactedThinking)):
            parts += [{**part, "state": "done"} for part in reasoning_parts(block, _OPTIONS)]
            continue
        part = _part(block)
        if seal:
            part[_CALL_OPTIONS if isinstance(block, ToolUse) else _OPTIONS] = seal_options(seal)
            seal = ""
        parts.append(part)
    if turn.incomplete:
        parts[-1]["state"] = "streaming"
    return parts


def _part(block: Block) -> Members:
    match block:
        case Text():
            return {"type": "text", "text": block.text, "state": "done"}
        case Image() | Document():
            return file_url(block)
        case ToolUse():
            members: Members = {"type": f"tool-{block.name}", "toolCallId": block.id}
            if block.incomplete:
                return {**members, "state": "input-streaming", "rawInput": as_text(block.input)}
            given: Any = as_text(block.input) if starts_with(block.input, b'"') else block.input
            return {**members, "state": "input-available", "input": given}
        case _:
            raise AssertionError(f"{type(block).__name__} is no part of a message")


def _answer(parts: Sequence[Members], results: Sequence[Block]) -> None:
    """Add results to the parts of their calls; of several calls with an id the last one is meant."""
    for block in results:
        assert isinstance(block, ToolResult)  # noqa: S101  the caller knows
        part = next(each for each in reversed(parts) if each.get("toolCallId") == block.tool_use_id)
        part |= _output(block)


def _output(block: ToolResult) -> Members:
    text = only_text(block)
    if text is None and isinstance(block.content, list):
        # The form of MCP's results has blocks, and an error flag of its own.
        flag = {"isError": True} if block.is_error else {}
        content = [_content(part) for part in block.content]
        return {"state": "output-available", "output": {"content": content, **flag}}
    if block.is_error:
        return {"state": "output-error", "errorText": text}
    return {"state": "output-available", "output": Raw((text or "").encode()) if is_value(block) else text}


def _content(part: Block) -> Members:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    assert isinstance(part, (Image, Document))  # noqa: S101  blocks of other types were left out
    source = source_of(part)
    if isinstance(part, Image):
        return {"type": "image", "data": source["data"], "mimeType": source["media_type"]}
    blob = {"uri": "file:///document", "mimeType": source["media_type"], "blob": source["data"]}
    return {"type": "resource", "resource": blob}


WRITER: Final = Writer(
    name="ai-sdk-ui",
    source="ai-sdk-ui",
    forms="UIMessage",
    loads="`validateUIMessages`",
    holds=HOLDS,
    write=_write,
)
