"""Which shape a message or a document has, where nobody says so."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import Raw

from pipeline.history.readers import converse, openai_chat, openai_responses
from pipeline.history.readers.fields import Fields, as_list, as_object
from pipeline.history.readers.rawjson import starts_with

Shape: TypeAlias = Literal["anthropic", "openai-chat", "bedrock-converse", "claude-code", "openai-responses", "gemini"]

_CONVERSE_HEAD: Final = frozenset({"toolConfig", "inferenceConfig", "additionalModelRequestFields", "guardrailConfig"})
_TOOL_ROLES: Final = frozenset({b'"tool"', b'"function"'})
_CALL_KEYS: Final = frozenset({"tool_calls", "tool_call_id", "tool_call_ids", "function_call"})
_NULL: Final = Raw(b"null")
_BLOCKS: Final = msgspec.json.Decoder(list[dict[str, Raw]])
_OBJECT: Final = msgspec.json.Decoder(dict[str, Raw])
_LINES_SEEN: Final = 50
_TRANSCRIPT_KEYS: Final = frozenset({"uuid", "parentUuid", "sessionId", "leafUuid"})


def shape_of_message(fields: Fields, listed: Shape | None = None) -> Shape:
    """A message's shape: by the keys that only one shape has, else by its blocks, else canonical.

    In a list of which other messages tell that it is ``listed``, one that could be of that shape is.
    """
    shape = _told_shape(fields)
    if listed == "openai-responses":
        return shape if shape and (shape in ("gemini", "bedrock-converse") or _is_row(fields)) else listed
    if listed == "gemini" and shape is None and "content" not in fields:
        return listed
    return shape or "anthropic"


def _told_shape(fields: Fields) -> Shape | None:
    kind = fields.peek("type")
    if kind is not None and openai_responses.is_item(bytes(kind).strip(b'"').decode()):
        return "openai-responses"
    if "parts" in fields and "content" not in fields:
        return "gemini"
    shapes = list(dict.fromkeys(shape for block in _blocks_of(fields) if (shape := _shape_of_block(block))))
    is_message = kind is not None and bytes(kind) == b'"message"'
    if shapes == ["openai-responses"] or (is_message and ("status" in fields or "openai-chat" in shapes)):
        return "openai-responses"
    role = fields.peek("role")
    if _is_row(fields) or not openai_chat.MESSAGE_KEYS.isdisjoint(fields.names()):
        return "openai-chat"
    return "openai-chat" if role is not None and bytes(role) == b'"developer"' else next(iter(shapes), None)


def _is_row(fields: Fields) -> bool:
    """Whether a message has calls beside its content, or is a tool's result: OpenAI's chat has such."""
    role = fields.peek("role")
    return (role is not None and bytes(role) in _TOOL_ROLES) or not _CALL_KEYS.isdisjoint(fields.names())


def shape_of_results(fields: Fields) -> Shape | None:
    """The shape whose results a tool's row holds as blocks, as some write them; None for any other message."""
    role = fields.peek("role")
    for keys in _blocks_of(fields) if role is not None and bytes(role) in _TOOL_ROLES else ():
        if "toolResult" in keys:
            return "bedrock-converse"
        if bytes(keys.get("type", b"")) == b'"tool_result"':
            return "anthropic"
    return None


def _blocks_of(fields: Fields) -> list[dict[str, Raw]]:
    """The members of each block of a message's content that is an object."""
    content = fields.peek("content")
    if content is None or not starts_with(content, b"["):
        return []
    try:
        return _BLOCKS.decode(content)
    except msgspec.ValidationError:
        items = as_list(content, fields.at("content"))
        return [as_object(item, "") for item in items if starts_with(item, b"{")]


def shape_of_head(keys: dict[str, Raw]) -> Shape:
    """What a document tells by its keys beside the messages, where no message tells."""
    if not _CONVERSE_HEAD.isdisjoint(keys):
        return "bedrock-converse"
    if "functions" in keys or b'"function"' in bytes(keys.get("tools", b"")):
        return "openai-chat"
    return "anthropic"


def is_transcript(text: bytes) -> bool:
    """Whether these are the lines of a Claude Code transcript; it may begin with lines that carry no ids."""
    for line in text.split(b"\n", _LINES_SEEN)[:_LINES_SEEN]:
        try:
            keys = _OBJECT.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if is_transcript_line(keys):
            return True
    return False


def is_transcript_line(keys: dict[str, Raw]) -> bool:
    """Whether these are the keys of a transcript's line: a type, one of the transcript's ids, and no role."""
    return "type" in keys and "role" not in keys and not _TRANSCRIPT_KEYS.isdisjoint(keys)


def _shape_of_block(keys: dict[str, Raw]) -> Shape | None:
    """The one shape that a block belongs to, or None."""
    kind = keys.get("type", _NULL)
    if starts_with(kind, b"n"):
        return None if converse.BLOCK_KEYS.isdisjoint(keys) else "bedrock-converse"
    named = bytes(kind).strip(b'"').decode()
    if named == "input_file":
        return "openai-responses"
    is_mistrals = named == "thinking" and starts_with(keys.get("thinking", _NULL), b"[")
    return "openai-chat" if named in openai_chat.PART_KINDS or is_mistrals else None
