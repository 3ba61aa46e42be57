"""The words of a message: its texts, whatever shape it has. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import Raw

# Code points of a record that a search looks at. What is behind them is found by no word: an index of everything would
# be as large as the topics.
WORDS = 8000

# Members of a message that nobody reads: what a machine gave them, and pictures.
_MUTE_NAMES = """
    type role id data signature encrypted_content thought_signature thoughtSignature media_type mimeType mime_type
    format cache_control tool_use_id tool_call_id toolUseId call_id status detail issuer index
"""
_MUTE: Final = frozenset(_MUTE_NAMES.split())
_decode = msgspec.json.Decoder().decode
_MOST_LEAVES = 2000


def text_of(raw: bytes | Raw, limit: int = WORDS) -> str:
    """The words of JSON, in whatever shape a message has: its texts in order, without what nobody reads."""
    try:
        found = _decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        found = _tolerantly(bytes(raw))
    texts, size = [], 0
    for text in _texts(found):
        texts.append(text)
        size += len(text)
        if size >= limit or len(texts) >= _MOST_LEAVES:
            break
    return "\n".join(texts)[:limit]


def _tolerantly(raw: bytes) -> object:
    try:
        return json.loads(json.dumps(json.loads(raw), ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return raw.decode("utf-8", "replace")


def _texts(found: object) -> Iterator[str]:
    # A stack and not recursion: foreign JSON may be nested as deeply as its sender likes.
    rest = [found]
    while rest:
        match rest.pop():
            case str(text):
                if text.strip():
                    yield text
            case list(parts):
                rest += reversed(parts)
            case dict(members):
                rest += [part for name, part in reversed(members.items()) if name not in _MUTE]
