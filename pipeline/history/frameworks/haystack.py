"""Haystack's ChatMessages, whose content parts each have one key and no type.

A result holds its whole call in ``origin``. It pairs the two if neither has an id.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Raw

from reknit.pipeline.history.call_ids import made_id
from reknit.pipeline.history.frameworks import parts
from reknit.pipeline.history.frameworks.base import Framework, Item, Members, Reading, finish, is_list, role_of, word
from reknit.pipeline.history.readers.fields import Fields, as_list, as_object
from reknit.pipeline.history.readers.rawjson import starts_with
from reknit.pipeline.history.readers.tolerant import Placed
from reknit.pipeline.model import Role, Text

_ROLES: Final[dict[str, Role]] = {"system": "system", "user": "user", "assistant": "assistant", "tool": "user"}
_KEYS: Final = frozenset({"text", "tool_call", "tool_call_result", "image", "file", "reasoning"})
# Before version 2.9.
_OLD: Final = ("_role", "_content", "_meta", "_name")
_DIGEST: Final = 8


def _decides(members: Members) -> bool:
    if {"_role", "_content"} <= members.keys():
        return True
    if not (word(members, "role") in _ROLES and is_list(members, "content") and {"meta", "name"} <= members.keys()):
        return False
    listed = as_list(members["content"], "")
    return all(starts_with(each, b"{") and _key(as_object(each, "")) for each in listed)


def _key(part: Members) -> str:
    """Return the key of a part with one key, else ``""``."""
    return next(iter(part)) if len(part) == 1 and next(iter(part)) in _KEYS else ""


def _read(reading: Reading, items: Sequence[Item]) -> None:
    for item in items:
        fields = item.fields
        for name in _OLD:
            if (value := fields.take(name)) is not None:
                fields.put(name.removeprefix("_"), value)
        role = role_of(fields, _ROLES)
        value, path = fields.take("content"), fields.at("content")
        placed: list[Placed] = []
        if value is not None and not starts_with(value, b"["):
            placed.append((Text(text=parts.value_text(value)), path))
        else:
            for at, each in enumerate([] if value is None else as_list(value, path)):
                placed += _part(reading, Fields(each, f"{path}.{at}", fields.notes))
        reading.add(role, placed, item)
        finish(fields, "meta", "name")


def _part(reading: Reading, fields: Fields) -> list[Placed]:
    key, path = _key(fields.members()), fields.path
    if key == "text":
        return [(Text(text=parts.value_text(fields.take("text"))), path)]
    inner = fields.take_object(key) if key else None
    if inner is None:
        return [(parts.native(fields, key), path)]
    placed: list[Placed]
    if key == "tool_call":
        called = inner.take_text("id") or _made_id(inner)
        name = inner.take_text("tool_name")
        placed = [(parts.call(reading, called, name, inner.take("arguments"), inner.at("arguments")), path)]
    elif key == "tool_call_result":
        placed = [_result(reading, inner, path)]
    elif key == "reasoning":
        placed = _reasoning(inner, path)
    else:
        members = inner.members()
        block = parts.media(
            word(members, "mime_type"),
            data=word(members, "base64_image") or word(members, "base64_data"),
            title=word(members, "filename") or None,
            kind="image" if key == "image" else "document",
        )
        found, _ = parts.media_or_unknown(block, inner, key)
        placed = [(found, path)]
        inner.ignore("base64_image", "base64_data", "mime_type", "filename", "detail", "validation")
    finish(inner, "extra", "meta")
    return placed


def _made_id(call: Fields) -> str:
    """Return the id of a call that has none. A result names its call by the tool and the arguments."""
    arguments = msgspec.json.decode(call.peek("arguments") or b"{}")
    digest = hashlib.sha256(msgspec.json.encode(arguments, order="sorted")).hexdigest()[:_DIGEST]
    return f"{made_id(word(call.members(), 'tool_name'))}_{digest}"


def _result(reading: Reading, inner: Fields, path: str) -> Placed:
    origin = inner.take_object("origin") or Fields(b"{}", inner.path, inner.notes)
    called = origin.take_text("id") or _made_id(origin)
    is_error = inner.take_flag("error")
    value, place = inner.take("result"), inner.at("result")
    if value is not None and starts_with(value, b"["):
        blocks = parts.inner_blocks(value, place, inner.notes, lambda part: _part(reading, part))
        return parts.result(called, blocks, is_error=is_error), path
    return parts.result(called, parts.value_text(value), is_error=is_error), path


def _reasoning(inner: Fields, path: str) -> list[Placed]:
    """Reasoning; Anthropic's integration keeps its signed and redacted pieces in ``extra``."""
    text = parts.value_text(inner.take("reasoning_text"))
    extra = inner.peek("extra")
    is_told = extra is not None and starts_with(extra, b"{")
    pieces = Fields(extra, "", inner.notes).objects("reasoning_contents") if is_told and extra else []
    placed: list[Placed] = []
    for piece in pieces:
        if piece is None or not _is_object(piece.get("reasoning_content")):
            continue
        content = as_object(piece["reasoning_content"], "")
        if _is_object(content.get("reasoning_text")):
            signed = as_object(content["reasoning_text"], "")
            placed.append((parts.thinking(word(signed, "text"), word(signed, "signature"), None), path))
        elif data := word(content, "redacted_thinking"):
            placed.append((parts.redacted(data, None), path))
    return placed or [(parts.thinking(text, "", None), path)]


def _is_object(value: Raw | None) -> bool:
    return value is not None and starts_with(value, b"{")


FRAMEWORK: Final = Framework(
    name="haystack",
    title="Haystack",
    forms="ChatMessage",
    tried="haystack-ai 3.4.0",
    decides=_decides,
    fits=_decides,
    read=_read,
)
