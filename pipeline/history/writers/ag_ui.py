"""AG-UI's messages. Reasoning is a message of its own; ``encryptedValue`` names its provider, as in pydantic-ai."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from reknit.pipeline.history.pieces import GEMINI
from reknit.pipeline.history.writers.base import EVERY, PYDANTIC_AI_NAMES, Holds, Known, Members, Writer
from reknit.pipeline.history.writers.values import as_text, fresh_ids, is_seal, source_of
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
)

HOLDS: Final = Holds(
    items=True,
    ids=frozenset({"system", "user", "assistant", "result"}),
    signers=EVERY,
    issuers="all",
    seals="calls",
    media=frozenset({"user", "result"}),
)


def _write(turns: Sequence[Turn], known: Known) -> list[Members]:
    del known
    ids = fresh_ids(turns)
    messages: list[Members] = []
    for turn in turns:
        written = list(_messages(turn))
        for at, message in enumerate(written):
            # The id is that of the message's words and calls, where it has some.
            named = turn.id if at == _named(written) else None
            messages.append({"id": named or next(ids), **message})
    return messages


def _named(written: Sequence[Members]) -> int:
    return next((at for at, message in enumerate(written) if message["role"] != "reasoning"), 0)


def _messages(turn: Turn) -> Iterator[Members]:
    if turn.role == "assistant":
        yield from _of_assistant(turn.blocks)
        return
    said: list[Block] = []
    for block in (*turn.blocks, None):
        if block is not None and not isinstance(block, ToolResult):
            said.append(block)
            continue
        if said and turn.role == "system":
            yield from ({"role": "system", "content": each.text} for each in said if isinstance(each, Text))
        elif said:
            yield {"role": "user", "content": _content(said)}
        said = []
        if isinstance(block, ToolResult):
            yield _result(block)


def _of_assistant(blocks: Sequence[Block]) -> Iterator[Members]:
    """Yield a message for each text with the calls that follow it, and one for each piece of reasoning."""
    message: Members = {}
    seal = ""
    for block in blocks:
        if isinstance(block, (Thinking, RedactedThinking)):
            if is_seal(block):
                seal = str(getattr(block, "signature", ""))
                continue
            if message:
                yield message
            message = {}
            yield _reasoning(block)
        elif isinstance(block, Text):
            if message:
                yield message
            message = {"role": "assistant", "content": block.text}
            seal = ""
        elif isinstance(block, ToolUse):
            message = message or {"role": "assistant"}
            message.setdefault("toolCalls", []).append(_call(block, seal))
            seal = ""
    if message:
        yield message


def _call(block: ToolUse, seal: str) -> Members:
    function = {"name": block.name, "arguments": as_text(block.input)}
    members: Members = {"id": block.id, "type": "function", "function": function}
    return members | {"encryptedValue": _opaque(Issuer(provider=GEMINI), signature=seal)} if seal else members


def _opaque(issuer: Issuer, **members: str) -> str:
    provider = PYDANTIC_AI_NAMES.get(issuer.provider, issuer.provider)
    return msgspec.json.encode({**members, "provider_name": provider}).decode()


def _reasoning(block: Thinking | RedactedThinking) -> Members:
    message: Members = {"role": "reasoning", "content": ""}
    issuer = block.issuer
    if isinstance(block, RedactedThinking):
        assert isinstance(issuer, Issuer)  # noqa: S101  sealed reasoning has one here
        return message | {"encryptedValue": _opaque(issuer, id="redacted_thinking", signature=block.data)}
    message["content"] = block.thinking
    if isinstance(issuer, Issuer):
        signed = {"signature": block.signature} if block.signature else {}
        message["encryptedValue"] = _opaque(issuer, **signed)
    return message


def _result(block: ToolResult) -> Members:
    content: Any = block.content if isinstance(block.content, str) else _content(block.content or ())
    message: Members = {"role": "tool", "toolCallId": block.tool_use_id, "content": content}
    if not block.is_error:
        return message
    if isinstance(content, str) and content:
        return message | {"error": content}
    if isinstance(content, str):
        # An error's text would be that of the result.
        return message | {"encryptedValue": '{"pydantic_ai":{"outcome":"failed"}}'}
    return message | {"error": " ".join(part["text"] for part in content if part["type"] == "text") or "error"}


def _content(blocks: Sequence[Block]) -> str | list[Members]:
    if len(blocks) == 1 and isinstance(blocks[0], Text):
        return blocks[0].text
    return [_part(block) for block in blocks]


def _part(block: Block) -> Members:
    if isinstance(block, Text):
        return {"type": "text", "text": block.text}
    assert isinstance(block, (Image, Document))  # noqa: S101  blocks of other types were left out
    source = source_of(block)
    kind = "image" if isinstance(block, Image) else "document"
    if source["type"] == "base64":
        return {"type": kind, "source": {"type": "data", "value": source["data"], "mimeType": source["media_type"]}}
    form = "url" if source["type"] == "url" else "file"
    return {"type": kind, "source": {"type": form, "value": source.get("url") or source.get("file_id")}}


WRITER: Final = Writer(
    name="ag-ui", source="ag-ui", forms="messages", loads="`ag_ui.core.Message`", holds=HOLDS, write=_write
)
