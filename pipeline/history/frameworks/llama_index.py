"""LlamaIndex's ChatMessages: blocks of a ``block_type``, alone or in a chat store.

A result names its call in ``additional_kwargs``, or it names only its tool. No message names a provider. A file that a
block names by its path is never read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Raw

from reknit.pipeline.errors import InputError
from reknit.pipeline.history.frameworks import parts
from reknit.pipeline.history.frameworks.base import (
    NULL,
    Framed,
    Framework,
    Item,
    Members,
    Reading,
    cached,
    finish,
    is_list,
    is_object,
    role_of,
    word,
)
from reknit.pipeline.history.readers.fields import Fields, as_list, as_object
from reknit.pipeline.history.readers.rawjson import starts_with
from reknit.pipeline.history.readers.tolerant import Placed, inner_only
from reknit.pipeline.model import Role, Text

_ROLES: Final[dict[str, Role]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "chatbot": "assistant",
    "model": "assistant",
    "tool": "user",
    "function": "user",
}
_MEDIA: Final = frozenset({"image", "document", "audio", "video"})
_OF_MEDIA: Final = ("detail", "format", "fps", "image_mimetype", "document_mimetype", "video_mimetype", "title", "url",
                    "image", "data", "audio", "video")  # fmt: skip


def _decides(members: Members) -> bool:
    if word(members, "role") not in _ROLES:
        return False
    if is_list(members, "blocks"):
        blocks = as_list(members["blocks"], "")
        return "additional_kwargs" in members or any(b'"block_type"' in bytes(each) for each in blocks)
    # Before version 0.12, the content was a string.
    return "content" in members and is_object(members, "additional_kwargs") and "type" not in members


def _frame(members: Members) -> Framed | None:
    """The messages of a chat store.

    Raises:
        InputError: the store has several conversations.
    """
    if not is_object(members, "store") or "messages" in members:
        return None
    store = as_object(members["store"], "store")
    if not store or not all(starts_with(each, b"[") for each in store.values()):
        return None
    if len(store) > 1:
        names = ", ".join(repr(name) for name in list(store)[:5])
        raise InputError(
            "no_messages", f"the store has several conversations ({names}): give the list of one", path="store"
        )
    ((key, messages),) = store.items()
    return Framed(messages=as_list(messages, f"store.{key}"))


def _read(reading: Reading, items: Sequence[Item]) -> None:
    for item in items:
        fields = item.fields
        named = word(fields.members(), "role").lower()
        role = role_of(fields, _ROLES)
        extra = fields.take_object("additional_kwargs") or Fields(b"{}", fields.at("additional_kwargs"), fields.notes)
        blocks = _blocks(reading, fields)
        if named in ("tool", "function"):
            called, name = extra.take_text("tool_call_id"), extra.take_text("name")
            is_error = extra.take_flag("is_error")
            inner = inner_only(blocks, fields.notes)
            text = inner[0].text if len(inner) == 1 and isinstance(inner[0], Text) else None
            block = parts.result(
                called or parts.id_made(reading, name), inner if text is None else text, is_error=is_error
            )
            blocks = [(block, fields.at("content"))]
        elif role == "assistant":
            blocks += _old_calls(reading, extra)
        extra.drop_rest()
        reading.add(role, blocks, item)
        finish(fields, "class_name")


def _old_calls(reading: Reading, extra: Fields) -> list[Placed]:
    """Return calls in OpenAI's form, which preceded the block for calls."""
    value, path = extra.take("tool_calls"), extra.at("tool_calls")
    placed: list[Placed] = []
    for at, each in enumerate([] if value is None else as_list(value, path)):
        one = Fields(each, f"{path}.{at}", extra.notes)
        function = one.take_object("function") or Fields(b"{}", one.path, one.notes)
        name, arguments = function.take_text("name"), function.take("arguments")
        block = parts.call(reading, one.take_text("id"), name, arguments, function.at("arguments"))
        placed.append((block, one.path))
        finish(one, "type", "index")
    return placed


def _blocks(reading: Reading, fields: Fields) -> list[Placed]:
    placed: list[Placed] = []
    if (text := fields.take("content")) is not None and not starts_with(text, b"["):
        placed.append((Text(text=parts.value_text(text)), fields.at("content")))
    value, path = fields.take("blocks"), fields.at("blocks")
    for at, each in enumerate([] if value is None else as_list(value, path)):
        place = f"{path}.{at}"
        if starts_with(each, b"{"):
            _add_block(reading, placed, Fields(each, place, fields.notes))
        else:
            placed.append((Text(text=parts.value_text(each)), place))
    return placed


def _add_block(reading: Reading, placed: list[Placed], fields: Fields) -> None:
    kind, path = fields.take_text("block_type"), fields.path
    if kind == "text":
        placed.append((Text(text=parts.value_text(fields.take("text"))), path))
    elif kind in _MEDIA:
        members = fields.members()
        block = parts.media(
            word(members, f"{kind}_mimetype"),
            data=word(members, "image") or word(members, "data"),
            url=word(members, "url"),
            title=word(members, "title") or None,
            kind=kind,
        )
        placed.append(parts.media_or_unknown(block, fields, kind))
        fields.ignore(*_OF_MEDIA)
    elif kind == "cache":
        mark = fields.take("cache_control") or NULL
        if placed and starts_with(mark, b"{"):
            block_before, where = placed[-1]
            placed[-1] = cached(block_before, Raw(bytes(mark))), where
    elif kind == "thinking":
        told = fields.take_object("additional_information")
        signature = "" if told is None else told.take_text("signature")
        placed.append((parts.thinking(parts.value_text(fields.take("content")), signature, None), path))
        fields.ignore("num_tokens")
    elif kind == "tool_call":
        name = fields.take_text("tool_name")
        called = fields.take_text("tool_call_id")
        block_of_call = parts.call(reading, called, name, fields.take("tool_kwargs"), fields.at("tool_kwargs"))
        placed.append((block_of_call, path))
    else:
        placed.append((parts.native(fields, kind), path))
        fields.clear()
    finish(fields)


FRAMEWORK: Final = Framework(
    name="llama-index",
    title="LlamaIndex",
    forms="ChatMessage, SimpleChatStore",
    tried="llama-index-core 0.14.25",
    decides=_decides,
    fits=_decides,
    read=_read,
    frame=_frame,
)
