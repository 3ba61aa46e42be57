"""LangChain's messages as `messages_to_dict` writes them, for `messages_from_dict`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec import UNSET, Raw

from reknit.pipeline.history.pieces import CONVERSE
from reknit.pipeline.history.writers.base import EVERY, LANGCHAIN_NAMES, Holds, Known, Members, Writer
from reknit.pipeline.history.writers.values import as_text, by_issuer, is_seal, source_of
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

_TYPES: Final = {"system": "system", "user": "human", "assistant": "ai"}
_GEMINI_SIGNATURES: Final = "__gemini_function_call_thought_signatures__"
HOLDS: Final = Holds(
    ids=frozenset({"system", "user", "assistant", "result"}),
    signers=EVERY,
    issuers="all",
    one_issuer=True,
    models="all",
    seals="all",
    reasoning_items="all",
    native=EVERY,
    cut_calls="marked",
    objects=True,
    titles="some",
    result_titles=True,
)


def _write(turns: Sequence[Turn], known: Known) -> list[Members]:
    return [message for turn in turns for message in _messages(turn, known.names)]


def _messages(turn: Turn, names: Mapping[str, str]) -> list[Members]:
    if turn.role == "assistant":
        groups = by_issuer(turn.blocks)
        return [_answer(blocks, issuer, turn.id if at == 0 else None) for at, (issuer, blocks) in enumerate(groups)]
    found: list[Members] = []
    said: list[Block] = []
    named = turn.id
    for block in turn.blocks:
        if not isinstance(block, ToolResult):
            said.append(block)
            continue
        if said:
            found.append(_message(_TYPES[turn.role], _content(said), named))
            said, named = [], None
        found.append(_result(block, names, named))
        named = None
    return [*found, _message(_TYPES[turn.role], _content(said), named)] if said else found


def _message(kind: str, content: str | list[Members], named: str | None, **members: object) -> Members:
    common: Members = {"additional_kwargs": {}, "response_metadata": {}, "type": kind, "name": None, "id": named}
    return {"type": kind, "data": {"content": content, **common, **members}}


def _result(block: ToolResult, names: Mapping[str, str], named: str | None) -> Members:
    content = block.content if isinstance(block.content, str) else [_block(part) for part in block.content or ()]
    return _message(
        "tool",
        content,
        named,
        name=names.get(block.tool_use_id),
        tool_call_id=block.tool_use_id,
        artifact=None,
        status="error" if block.is_error else "success",
    )


def _answer(blocks: Sequence[Block], issuer: Issuer | None, named: str | None) -> Members:
    said: list[Block] = []
    calls: list[Members] = []
    cut: list[Members] = []
    signatures: dict[str, str] = {}
    last = _last_placed(blocks)
    for at, block in enumerate(blocks):
        follower = blocks[at + 1] if at + 1 < len(blocks) else None
        if isinstance(block, Thinking) and is_seal(block) and isinstance(follower, ToolUse):
            signatures[follower.id] = str(block.signature)
            continue
        if not isinstance(block, ToolUse):
            said.append(block)
            continue
        if block.incomplete:
            cut.append(
                {
                    "name": block.name,
                    "args": as_text(block.input),
                    "id": block.id,
                    "error": None,
                    "type": "invalid_tool_call",
                }
            )
        else:
            calls.append({"name": block.name, "args": block.input, "id": block.id, "type": "tool_call"})
        if at <= last:
            # The place of a call that other content follows.
            said.append(block)
    metadata: Members = {}
    if issuer is not None:
        metadata["model_provider"] = LANGCHAIN_NAMES.get(issuer.provider, issuer.provider)
        if issuer.model is not None:
            metadata["model_name"] = issuer.model
    return _message(
        "ai",
        _content(said),
        named,
        additional_kwargs={_GEMINI_SIGNATURES: signatures} if signatures else {},
        response_metadata=metadata,
        tool_calls=calls,
        invalid_tool_calls=cut,
    )


def _last_placed(blocks: Sequence[Block]) -> int:
    """Return the index of the last block whose place the content shows: whole calls and then cut ones follow it."""
    whole = [at for at, block in enumerate(blocks) if isinstance(block, ToolUse) and not block.incomplete]
    return max(
        (
            at
            for at, block in enumerate(blocks)
            if not is_seal(block)
            and (not isinstance(block, ToolUse) or (block.incomplete and at < max(whole, default=0)))
        ),
        default=-1,
    )


def _content(blocks: Sequence[Block]) -> str | list[Members]:
    if not blocks:
        return ""
    if len(blocks) == 1 and isinstance(blocks[0], Text):
        return blocks[0].text
    listed: list[Members] = []
    signature = ""
    for block in blocks:
        if isinstance(block, Thinking) and is_seal(block):
            signature = str(block.signature)
            continue
        members = _block(block)
        listed.append(members | {"extras": {"signature": signature}} if signature else members)
        signature = ""
    return listed


def _block(block: Block) -> Members:
    match block:
        case Text():
            return {"type": "text", "text": block.text}
        case Image() | Document():
            return _medium(block)
        case Thinking():
            return _thinking(block)
        case RedactedThinking():
            if block.own is not UNSET:
                return {"type": "reasoning", **block.own.members}
            if isinstance(block.issuer, Issuer) and block.issuer.provider == CONVERSE:
                return {"type": "reasoning_content", "reasoning_content": {"redacted_content": block.data}}
            return {"type": "redacted_thinking", "data": block.data}
        case ToolUse():
            if block.incomplete:
                return {"type": "invalid_tool_call", "name": block.name, "args": as_text(block.input), "id": block.id}
            return {"type": "tool_call", "name": block.name, "args": block.input, "id": block.id}
        case Unknown():
            return msgspec.json.decode(block.raw, type=dict[str, Raw])
        case ToolResult():
            raise AssertionError(f"{block.tool_use_id}: a result is a message")


def _thinking(block: Thinking) -> Members:
    if block.own is not UNSET:
        return {"type": "reasoning", **block.own.members}
    if not block.signature:
        return {"type": "reasoning", "reasoning": block.thinking}
    if isinstance(block.issuer, Issuer) and block.issuer.provider == CONVERSE:
        inner = {"text": block.thinking, "signature": block.signature}
        return {"type": "reasoning_content", "reasoning_content": inner}
    return {"type": "thinking", "thinking": block.thinking, "signature": block.signature}


def _medium(block: Image | Document) -> Members:
    source = source_of(block)
    kind = "image" if isinstance(block, Image) else "file"
    members: Members = {"type": kind}
    if source["type"] == "base64":
        members |= {"base64": source["data"], "mime_type": source["media_type"]}
    elif source["type"] == "url":
        members["url"] = source["url"]
    else:
        members["file_id"] = source["file_id"]
    title = block.title if isinstance(block, Document) and block.title else None
    return members | {"extras": {"filename": title}} if title else members


WRITER: Final = Writer(
    name="langchain",
    source="langchain",
    forms="`messages_to_dict`",
    loads="`messages_from_dict`",
    holds=HOLDS,
    write=_write,
)
