"""Semantic Kernel's chat history, as its Python version writes it: messages of items with a ``content_type``.

Results have no error flag. The name of a call combines those of its plugin and function.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from reknit.pipeline.history.frameworks import parts
from reknit.pipeline.history.frameworks.base import Framework, Item, Members, Reading, finish, is_list, role_of, word
from reknit.pipeline.history.readers.fields import Fields, as_list
from reknit.pipeline.history.readers.rawjson import starts_with
from reknit.pipeline.history.readers.tolerant import Placed
from reknit.pipeline.model import Role, Text

_ROLES: Final[dict[str, Role]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "user",
}
_IGNORED: Final = ("content_type", "metadata", "ai_model_id", "finish_reason", "encoding", "name", "status")
_OF_ITEMS: Final = ("metadata", "ai_model_id", "encoding", "function_name", "plugin_name", "index", "call_id", "status",
                    "uri", "data_uri", "mime_type", "file_id", "data_format")  # fmt: skip


def _decides(members: Members) -> bool:
    return word(members, "content_type") == "message" and is_list(members, "items") and "role" in members


def _read(reading: Reading, items: Sequence[Item]) -> None:
    for item in items:
        fields = item.fields
        role = role_of(fields, _ROLES)
        value, path = fields.take("items"), fields.at("items")
        placed: list[Placed] = []
        for at, each in enumerate([] if value is None else as_list(value, path)):
            place = f"{path}.{at}"
            if starts_with(each, b"{"):
                placed += _item(reading, Fields(each, place, fields.notes))
            else:
                placed.append((Text(text=parts.value_text(each)), place))
        reading.add(role, placed, item)
        finish(fields, *_IGNORED)


def _item(reading: Reading, fields: Fields) -> list[Placed]:
    kind, path = fields.take_text("content_type"), fields.path
    members = fields.members()
    placed: Placed
    if kind == "text":
        placed = Text(text=parts.value_text(fields.take("text"))), path
    elif kind == "reasoning":
        told = fields.take_object("metadata")
        signature = "" if told is None else told.take_text("signature")
        placed = parts.thinking(parts.value_text(fields.take("text")), signature, None), path
    elif kind == "function_call":
        name = fields.take_text("name") or word(members, "function_name")
        called = word(members, "call_id") or word(members, "id")
        placed = parts.call(reading, called, name, fields.take("arguments"), fields.at("arguments")), path
        fields.ignore("id")
    elif kind == "function_result":
        name = fields.take_text("name") or word(members, "function_name")
        called = word(members, "call_id") or word(members, "id") or parts.id_made(reading, name)
        placed = parts.result(called, parts.value_text(fields.take("result")), is_value=True), path
        fields.ignore("id")
    elif kind in ("image", "audio", "binary", "file_reference"):
        block = parts.media(
            word(members, "mime_type"),
            url=word(members, "data_uri") or word(members, "uri"),
            file_id=word(members, "file_id"),
            kind=kind if kind in ("image", "audio") else "document",
        )
        placed = parts.media_or_unknown(block, fields, kind)
    elif kind == "annotation":
        reading.leave_out(fields, kind)
        return []
    else:
        placed = parts.native(fields, kind), path
        fields.clear()
    finish(fields, *_OF_ITEMS)
    return [placed]


FRAMEWORK: Final = Framework(
    name="semantic-kernel",
    title="Semantic Kernel",
    forms="ChatHistory of Python",
    tried="semantic-kernel 1.45.0",
    decides=_decides,
    fits=_decides,
    read=_read,
)
