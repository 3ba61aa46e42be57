"""Values that several writers need: texts of arguments, sources of media, and the parts of results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Final

import msgspec
from msgspec import Raw

from reknit.pipeline.history.pieces import GEMINI
from reknit.pipeline.history.readers.fields import as_string
from reknit.pipeline.history.readers.rawjson import starts_with
from reknit.pipeline.model import Block, Document, Image, Issuer, Text, Thinking, ToolResult, ToolUse, Turn

UNKNOWN_TOOL: Final = "unknown"
"""The name of a tool whose call the history does not have."""


def as_text(given: Raw) -> str:
    """Return a call's input as the text of its JSON; the input of a call that was cut is such a text already."""
    return as_string(given, "") if starts_with(given, b'"') else bytes(given).decode()


def as_json_text(text: str) -> Raw:
    """Return a text as the JSON string in which a call has arguments that were cut."""
    return Raw(msgspec.json.encode(text))


def is_json(text: str) -> bool:
    """Return True if a text is whole JSON."""
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError:
        return False
    return True


def source_of(block: Image | Document) -> dict[str, Any]:
    """Return the members of a medium's source: ``type``, and ``media_type`` with ``data``, ``url`` or ``file_id``."""
    found = msgspec.json.decode(block.source)
    return found if isinstance(found, dict) else {}


def data_url(source: Mapping[str, Any]) -> str:
    """Return a source as one address: a data URL, or a URL on the web."""
    if source.get("type") == "base64":
        return f"data:{source.get('media_type', '')};base64,{source.get('data', '')}"
    return str(source.get("url", ""))


def is_seal(block: Block) -> bool:
    """Return True if a block is Gemini's signature of the block after it."""
    return (
        isinstance(block, Thinking)
        and not block.thinking
        and isinstance(block.issuer, Issuer)
        and block.issuer.provider == GEMINI
        and bool(block.signature)
    )


def is_value(result: ToolResult) -> bool:
    """Return True if a result is the JSON of a value that the tool returned as such."""
    content = result.content
    return isinstance(content, list) and len(content) == 1 and isinstance(content[0], Text) and content[0].structured


def only_text(result: ToolResult) -> str | None:
    """Return the text of a result that has no more than one, None for any other result."""
    content = result.content
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return content[0].text if len(content) == 1 and isinstance(content[0], Text) else None


def tool_names(turns: Sequence[Turn]) -> dict[str, str]:
    """Return the names of the called tools by the ids of their calls."""
    return {block.id: block.name for turn in turns for block in turn.blocks if isinstance(block, ToolUse)}


def by_issuer(blocks: Sequence[Block]) -> list[tuple[Issuer | None, list[Block]]]:
    """Return blocks in groups of one issuer each; a block without an issuer is of the group before it."""
    groups: list[tuple[Issuer | None, list[Block]]] = []
    for block in blocks:
        issuer = block.issuer if isinstance(block.issuer, Issuer) else None
        if not groups or (issuer is not None and groups[-1][0] not in (None, issuer)):
            groups.append((issuer, []))
        known, group = groups[-1]
        groups[-1] = known or issuer, [*group, block]
    return groups


def fresh_ids(turns: Sequence[Turn]) -> Iterator[str]:
    """Yield ids that no message has, for messages that must have one."""
    known = {turn.id for turn in turns}
    return (named for number in count(1) if (named := f"message-{number}") not in known)
