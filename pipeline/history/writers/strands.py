"""Session messages of Strands: Converse's messages with their numbers, and bytes in an object that says so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Raw

from reknit.pipeline.history.pieces import CONVERSE
from reknit.pipeline.history.writers.base import Holds, Known, Members, Writer
from reknit.pipeline.history.writers.values import is_value, only_text, source_of
from reknit.pipeline.model import Block, Document, Image, RedactedThinking, Text, Thinking, ToolResult, ToolUse, Turn
from reknit.pipeline.providers.bedrock_converse.wire import FORMATS

HOLDS: Final = Holds(
    system=False,
    thinkers=frozenset({CONVERSE}),
    signers=frozenset({CONVERSE}),
    issuers="all",
    cut_calls="",
    objects=True,
    sources=frozenset({"base64"}),
    result_sources=frozenset({"base64"}),
    titles="all",
    result_titles=True,
)


def _write(turns: Sequence[Turn], known: Known) -> list[Members]:
    del known
    return [
        {
            "message": {"role": turn.role, "content": [_block(block) for block in turn.blocks]},
            "message_id": number,
            "redact_message": None,
        }
        for number, turn in enumerate(turns)
    ]


def _block(block: Block) -> Members:
    match block:
        case Text():
            return {"text": block.text}
        case Image() | Document():
            return _medium(block)
        case Thinking():
            signed = {"signature": block.signature} if block.signature else {}
            return {"reasoningContent": {"reasoningText": {"text": block.thinking, **signed}}}
        case RedactedThinking():
            return {"reasoningContent": {"redactedContent": _bytes(block.data)}}
        case ToolUse():
            return {"toolUse": {"toolUseId": block.id, "name": block.name, "input": block.input}}
        case ToolResult():
            return {"toolResult": _result(block)}
        case _:
            raise AssertionError(f"{type(block).__name__} is no block of Converse")


def _result(block: ToolResult) -> Members:
    text = only_text(block)
    content: list[Members]
    if text is None and isinstance(block.content, list):
        content = [_block(part) for part in block.content]
    else:
        content = [{"json": Raw((text or "").encode())} if is_value(block) else {"text": text}]
    status = "error" if block.is_error else "success"
    return {"toolUseId": block.tool_use_id, "status": status, "content": content}


def _bytes(data: str) -> Members:
    return {"__bytes_encoded__": True, "data": data}


def _medium(block: Image | Document) -> Members:
    source = source_of(block)
    media_type, data = str(source["media_type"]), {"source": {"bytes": _bytes(source["data"])}}
    if isinstance(block, Image):
        return {"image": {"format": media_type.partition("/")[2], **data}}
    return {"document": {"format": FORMATS.get(media_type, media_type.partition("/")[2]), "name": block.title, **data}}


WRITER: Final = Writer(
    name="strands",
    source="bedrock-converse",
    forms="session messages",
    loads="`SessionMessage.from_dict`",
    holds=HOLDS,
    write=_write,
)
