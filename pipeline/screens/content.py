"""Contents of items in the forms that both protocols share: texts, names of tools, arguments, images, citations."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Raw

from reknit.topics.items import Item, ItemStarted
from reknit.topics.reducer import Entry

# An event of a protocol, before it is encoded.
Event: TypeAlias = dict[str, Any]

CALLS: Final = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})
STREAMED: Final = CALLS | {"text", "thinking"}
# A page renders addresses as links and pictures; with another scheme a link could run a script.
_SCHEMES: Final = ("https://", "http://")


def decoded(value: object) -> Any:  # noqa: ANN401  JSON
    """Return JSON that a record carries as a value; None if it carries none."""
    if not isinstance(value, Raw):
        return None
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return None


def fields_of(item: Item) -> Event:
    """Return the fields of a record, without the members that Reknit does not know."""
    fields: Event = msgspec.json.decode(msgspec.json.encode(item))
    fields.pop("extras", None)
    return fields


def compact(value: Raw) -> str:
    """Return JSON without spaces between its tokens; numbers and names are not changed."""
    try:
        return msgspec.json.format(bytes(value), indent=-1).decode()
    except (msgspec.DecodeError, RecursionError):
        return bytes(value).decode("utf-8", "replace")


def blocks_of(content: object) -> list[Any]:
    """Return the blocks of a content: a list, or a text, which is one block."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content if isinstance(content, list) else []


def text_of(block: object) -> str | None:
    """Return the text of a text block; None for any other block."""
    if isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str):
        return str(block["text"])
    return None


def plain_text(content: object) -> str:
    """Return the texts of a content, without its other blocks."""
    return "".join(text for block in blocks_of(content) if (text := text_of(block)) is not None)


def readable_text(content: object) -> str:
    """Return the texts of a content, with the JSON of blocks that are neither text nor image."""
    return "".join(readable_block(block) for block in blocks_of(content) if not is_image(block))


def user_text(content: object) -> str:
    """Return the user's words: a content of texts as one text, the blocks of others as lines, without images."""
    if is_plain(content):
        return plain_text(content)
    return "\n".join(readable_block(block) for block in blocks_of(content) if not is_image(block))


def readable_block(block: object) -> str:
    """Return the text of a block, or its JSON."""
    text = text_of(block)
    return msgspec.json.encode(block).decode() if text is None else text


def is_image(block: object) -> bool:
    """Return True for a block that is an image."""
    return isinstance(block, dict) and block.get("type") == "image"


def is_plain(content: object) -> bool:
    """Return True if a content has text only."""
    return all(text_of(block) is not None for block in blocks_of(content))


def is_web_address(value: object) -> bool:
    """Return True for an address that a page may render as a link or a picture."""
    return isinstance(value, str) and value.lower().startswith(_SCHEMES)


def tool_name(started: ItemStarted) -> str:
    """Return the name of a tool as the program has it: ``mcp__github__search``."""
    if started.tool_source:
        return f"{started.tool_source}__{started.tool_server}__{started.name}"
    return started.name


def arguments(entry: Entry) -> str:
    """Return the JSON of a call's input: as it streamed, unless a record carried another input."""
    if entry.input is None or (entry.text and decoded(Raw(entry.text.encode())) == decoded(entry.input)):
        return entry.text
    return compact(entry.input)


def input_of(entry: Entry) -> Raw | str:
    """Return a call's input as JSON, or as text where it is not JSON."""
    if entry.input is not None:
        return entry.input
    raw = Raw((entry.text or "{}").encode())
    try:
        msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return entry.text
    return raw


def call_of(raw: Raw | None) -> str:
    """Return the id of the call that a block answers, if it is the result of a call that the provider ran."""
    block = decoded(raw)
    if not isinstance(block, dict):
        return ""
    places = (("tool_use_id",), ("toolResult", "toolUseId"), ("codeExecutionResult", "id"))
    for names in places:
        value: Any = block
        for name in names:
            value = value.get(name) if isinstance(value, dict) else None
        if isinstance(value, str) and value:
            return value
    return ""
