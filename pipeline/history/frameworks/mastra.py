"""Mastra's stored messages, whose ``content`` has the parts of the AI SDK's UIMessages of version 4.

The parts count; the other members of the content repeat them. Messages of the first version have ModelMessage parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from reknit.pipeline.history.frameworks import ai_sdk_model, parts
from reknit.pipeline.history.frameworks.ai_sdk_ui import UIParts
from reknit.pipeline.history.frameworks.base import Framework, Item, Members, Reading, finish, is_object, role_of, word
from reknit.pipeline.history.readers.fields import Fields, as_list, as_object
from reknit.pipeline.history.readers.rawjson import starts_with
from reknit.pipeline.history.readers.tolerant import kind_named
from reknit.pipeline.model import Role, Text

_ROLES: Final[dict[str, Role]] = {"system": "system", "user": "user", "assistant": "assistant", "tool": "user"}
_TYPES: Final = frozenset({"text", "tool-call", "tool-result"})
_OF_ROWS: Final = ("createdAt", "threadId", "resourceId", "type", "toolCallIds", "toolCallArgs", "toolNames")
_REPEATED: Final = ("format", "content", "toolInvocations", "reasoning", "experimental_attachments", "annotations",
                    "metadata", "providerMetadata")  # fmt: skip


def _decides(members: Members) -> bool:
    if is_object(members, "content") and "role" in members:
        return as_object(members["content"], "").keys() >= {"format", "parts"}
    return word(members, "type") in _TYPES and {"threadId", "role", "content"} <= members.keys()


def _read(reading: Reading, items: Sequence[Item]) -> None:
    for item in items:
        fields = item.fields
        if word(fields.members(), "role") == "signal":
            # A notice of the framework.
            reading.leave_out(fields, "signal")
            continue
        inner = fields.peek("content")
        if inner is None or not starts_with(inner, b"{"):
            fields.ignore(*_OF_ROWS)
            ai_sdk_model.FRAMEWORK.read(reading, [item])
            continue
        role = role_of(fields, _ROLES)
        turn_id = fields.take_string("id")
        content = fields.take_object("content") or Fields(b"{}", fields.at("content"), fields.notes)
        value, path = content.take("parts"), content.at("parts")
        listed = UIParts(reading, item, role, turn_id)
        for at, each in enumerate([] if value is None else as_list(value, path)):
            place = f"{path}.{at}"
            if not starts_with(each, b"{"):
                listed.add((Text(text=parts.value_text(each)), place))
                continue
            part = Fields(each, place, fields.notes)
            part.ignore("createdAt")
            if kind_named(part) == "error":
                reading.leave_out(part, "error")
                continue
            listed.read(part)
        listed.end()
        finish(content, *_REPEATED)
        finish(fields, *_OF_ROWS)


FRAMEWORK: Final = Framework(
    name="mastra",
    title="Mastra",
    forms="stored messages",
    tried="@mastra/core 1.71.0",
    decides=_decides,
    fits=_decides,
    read=_read,
)
