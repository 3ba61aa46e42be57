"""Which shape a message or a document has, where nobody says so."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import Raw

from pipeline.history.readers import converse, openai_chat, openai_responses
from pipeline.history.readers.fields import Fields, Notes, as_list
from pipeline.history.readers.rawjson import starts_with

Shape: TypeAlias = Literal["anthropic", "openai-chat", "bedrock-converse", "claude-code", "openai-responses", "gemini"]

_CONVERSE_HEAD: Final = frozenset({"toolConfig", "inferenceConfig", "additionalModelRequestFields", "guardrailConfig"})
_OPENAI_ROLES: Final = frozenset({b'"tool"', b'"function"', b'"developer"'})
_OBJECT: Final = msgspec.json.Decoder(dict[str, Raw])
_LINES_SEEN: Final = 50
_TRANSCRIPT_KEYS: Final = frozenset({"uuid", "parentUuid", "sessionId", "leafUuid"})


def shape_of_message(fields: Fields) -> Shape:
    """A message's shape: by the keys that only one shape has, else by its blocks, else canonical."""
    kind = fields.peek("type")
    if kind is not None and openai_responses.is_item(bytes(kind).strip(b'"').decode()):
        return "openai-responses"
    if "parts" in fields and "content" not in fields:
        return "gemini"
    if not openai_chat.MESSAGE_KEYS.isdisjoint(fields.names()):
        return "openai-chat"
    role = fields.peek("role")
    if role is not None and bytes(role) in _OPENAI_ROLES:
        return "openai-chat"
    content = fields.peek("content")
    if content is not None and starts_with(content, b"["):
        for item in as_list(content, fields.at("content")):
            shape = _shape_of_block(item)
            if shape is not None:
                return shape
    return "anthropic"


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


def _shape_of_block(value: Raw) -> Shape | None:
    """The one shape that a block belongs to, or None."""
    if not starts_with(value, b"{"):
        return None
    fields = Fields(value, "", Notes())
    kind = fields.peek("type")
    if kind is not None:
        named = bytes(kind).strip(b'"').decode()
        thinking = fields.peek("thinking")
        is_mistrals = named == "thinking" and thinking is not None and starts_with(thinking, b"[")
        return "openai-chat" if named in openai_chat.PART_KINDS or is_mistrals else None
    return None if converse.BLOCK_KEYS.isdisjoint(fields.names()) else "bedrock-converse"
