"""pydantic-ai's ModelMessages, for `ModelMessagesTypeAdapter`. Bytes are in the URL-safe alphabet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw

from reknit.pipeline.history.pieces import ANTHROPIC
from reknit.pipeline.history.readers.rawjson import starts_with
from reknit.pipeline.history.writers.base import EVERY, PYDANTIC_AI_NAMES, Holds, Known, Members, Writer
from reknit.pipeline.history.writers.values import (
    UNKNOWN_TOOL,
    as_text,
    by_issuer,
    is_seal,
    is_value,
    only_text,
    source_of,
)
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

_URL_SAFE: Final = str.maketrans("+/", "-_")
_RESULT: Final = "_tool_result"
_SECONDS: Final = {"5m", "1h"}
HOLDS: Final = Holds(
    signers=EVERY,
    issuers="all",
    one_issuer=True,
    models="all",
    seals="all",
    reasoning_items="one",
    native=frozenset({ANTHROPIC}),
    native_forms=(frozenset({"type", "id", "name", "input"}), frozenset({"type", "tool_use_id", "content"})),
    cut_texts=True,
    cache="all",
    texts=False,
    media=frozenset({"user", "assistant", "result"}),
    sources=frozenset({"base64", "url"}),
    result_sources=frozenset({"base64", "url"}),
)


def _write(turns: Sequence[Turn], known: Known) -> list[Members]:
    messages: list[Members] = []
    for turn in turns:
        if turn.role == "assistant":
            messages += _responses(turn)
            continue
        parts = _request_parts(turn, known.names)
        before = messages[-1] if messages else None
        if before is not None and before["kind"] == "request" and before["parts"][-1]["part_kind"] == "system-prompt":
            before["parts"] += parts
        else:
            messages.append({"parts": parts, "kind": "request"})
    return messages


def _request_parts(turn: Turn, names: Mapping[str, str]) -> list[Members]:
    if turn.role == "system":
        return [
            {"content": block.text, "part_kind": "system-prompt"} for block in turn.blocks if isinstance(block, Text)
        ]
    parts: list[Members] = []
    said: list[Block] = []
    for block in (*turn.blocks, None):
        if block is not None and not isinstance(block, ToolResult):
            said.append(block)
            continue
        if said:
            parts.append({"content": _user_content(said), "part_kind": "user-prompt"})
            said = []
        if isinstance(block, ToolResult):
            parts.append(_tool_return(block, names))
    return parts


def _user_content(blocks: Sequence[Block]) -> str | list[Any]:
    content: list[Any] = []
    for block in blocks:
        if isinstance(block, Text):
            content.append(block.text)
        elif isinstance(block, (Image, Document)):
            content.append(_file(block))
        mark = getattr(block, "cache_control", UNSET)
        if isinstance(mark, Raw):
            ttl = msgspec.json.decode(mark).get("ttl")
            content.append({"kind": "cache-point", **({"ttl": ttl} if ttl in _SECONDS else {})})
    return content[0] if len(content) == 1 and isinstance(content[0], str) else content


def _tool_return(block: ToolResult, names: Mapping[str, str]) -> Members:
    text = only_text(block)
    content: Any = text
    if text is None and isinstance(block.content, list):
        content = [
            part.text if isinstance(part, Text) else _file(part) for part in block.content if not _is_other(part)
        ]
    elif text is not None and is_value(block) and text.startswith("{"):
        content = Raw(text.encode())
    return {
        "tool_name": names.get(block.tool_use_id, UNKNOWN_TOOL),
        "content": content,
        "tool_call_id": block.tool_use_id,
        "outcome": "failed" if block.is_error else "success",
        "part_kind": "tool-return",
    }


def _is_other(part: Block) -> bool:
    return not isinstance(part, (Text, Image, Document))


def _file(block: Any) -> Members:  # noqa: ANN401  an image or a document
    source = source_of(block)
    if source["type"] == "base64":
        data = str(source["data"]).translate(_URL_SAFE)
        return {"data": data, "media_type": source["media_type"], "kind": "binary"}
    return {"url": source["url"], "kind": "image-url" if isinstance(block, Image) else "document-url"}


def _responses(turn: Turn) -> list[Members]:
    found: list[Members] = []
    for issuer, blocks in by_issuer(turn.blocks):
        members: Members = {"parts": _response_parts(blocks)}
        if issuer is not None:
            members["provider_name"] = PYDANTIC_AI_NAMES.get(issuer.provider, issuer.provider)
            members |= {"model_name": issuer.model} if issuer.model is not None else {}
        found.append({**members, "kind": "response"})
    if turn.incomplete:
        found[-1]["state"] = "interrupted"
    return found


def _response_parts(blocks: Sequence[Block]) -> list[Members]:
    parts: list[Members] = []
    signature = ""
    for block in blocks:
        if isinstance(block, Thinking) and is_seal(block):
            signature = str(block.signature)
            continue
        part = _part(block)
        if signature:
            part["provider_details"] = {"thought_signature": signature}
            signature = ""
        parts.append(part)
    return parts


def _part(block: Block) -> Members:
    match block:
        case Text():
            return {"content": block.text, "part_kind": "text"}
        case Thinking() | RedactedThinking():
            return _thinking(block)
        case ToolUse():
            args: Any = block.input if not block.incomplete and starts_with(block.input, b"{") else as_text(block.input)
            return {"tool_name": block.name, "args": args, "tool_call_id": block.id, "part_kind": "tool-call"}
        case Image() | Document():
            return {"content": _file(block), "part_kind": "file"}
        case Unknown():
            return _native(msgspec.json.decode(block.raw, type=dict[str, Raw]), block.kind)
        case _:
            raise AssertionError(f"{type(block).__name__} is no part of a response")


def _native(members: Members, kind: str) -> Members:
    """Return the part for a call that Anthropic ran itself, or for its result."""
    part: Members = {"provider_name": ANTHROPIC}
    if "tool_use_id" in members:
        name, called, kind = kind.removesuffix(_RESULT), members["tool_use_id"], "builtin-tool-return"
        part["content"] = members["content"]
    else:
        name, called, kind = members["name"], members["id"], "builtin-tool-call"
        part["args"] = members["input"]
    return {**part, "tool_name": name, "tool_call_id": called, "part_kind": kind}


def _thinking(block: Thinking | RedactedThinking) -> Members:
    issuer = block.issuer
    members: Members = {"part_kind": "thinking"}
    if isinstance(issuer, Issuer):
        members["provider_name"] = PYDANTIC_AI_NAMES.get(issuer.provider, issuer.provider)
    text, signature = ("", block.data) if isinstance(block, RedactedThinking) else (block.thinking, block.signature)
    members["content"] = text
    if block.own is UNSET and isinstance(block, RedactedThinking):
        members["id"] = "redacted_thinking"
    if block.own is not UNSET and (named := block.own.members.get("id")) is not None:
        members["id"] = named
    if signature:
        members["signature"] = signature
    return members


WRITER: Final = Writer(
    name="pydantic-ai",
    source="pydantic-ai",
    forms="ModelMessages",
    loads="`ModelMessagesTypeAdapter`",
    holds=HOLDS,
    write=_write,
)
