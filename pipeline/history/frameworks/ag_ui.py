"""AG-UI's messages, alone or in a ``RunAgentInput``.

Reasoning is a message of its own before the assistant's. No message names a provider, so a signature stays only where
its form proves one; pydantic-ai writes the provider into ``encryptedValue``, which is then the JSON of an object.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Raw

from reknit.pipeline.history.frameworks import parts
from reknit.pipeline.history.frameworks.base import (
    NULL,
    Framed,
    Framework,
    Item,
    Members,
    Reading,
    finish,
    is_list,
    is_object,
    is_string,
    role_of,
    word,
)
from reknit.pipeline.history.pieces import GEMINI
from reknit.pipeline.history.readers.canonical import PART
from reknit.pipeline.history.readers.fields import Fields, as_list, as_object
from reknit.pipeline.history.readers.rawjson import starts_with
from reknit.pipeline.history.readers.strict import decoded
from reknit.pipeline.history.readers.tolerant import Placed, kind_named
from reknit.pipeline.model import Role

_ROLES: Final[dict[str, Role]] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "developer": "system",
    "tool": "user",
    "reasoning": "assistant",
    "activity": "user",
}
_MEDIA: Final = frozenset({"image", "audio", "video", "document"})
_SOURCES: Final = frozenset({"data", "url", "file"})
_IGNORED: Final = ("name", "metadata")
_OBJECT: Final = msgspec.json.Decoder(dict[str, Raw])


def _decides(members: Members) -> bool:
    role = word(members, "role")
    if role not in _ROLES:
        return False
    if role == "activity":
        return "activityType" in members
    if role == "reasoning":
        return "content" in members and "type" not in members
    if is_list(members, "toolCalls") and "type" not in members:
        return True
    if (role == "tool" and is_string(members, "toolCallId")) or is_string(members, "encryptedValue"):
        return True
    return is_list(members, "content") and any(_is_own(each) for each in as_list(members["content"], ""))


def _is_own(part: Raw) -> bool:
    """Return True if a content part is of a form that only AG-UI has."""
    if not starts_with(part, b"{"):
        return False
    members = as_object(part, "")
    kind = word(members, "type")
    if kind == "binary":
        return "mimeType" in members
    if kind not in _MEDIA or not is_object(members, "source"):
        return False
    source = as_object(members["source"], "")
    return word(source, "type") in _SOURCES and "value" in source


def _fits(members: Members) -> bool:
    return word(members, "role") in _ROLES and "type" not in members and "parts" not in members


def _frame(members: Members) -> Framed | None:
    if not (is_list(members, "messages") and {"threadId", "runId"} <= members.keys()):
        return None
    dropped = {name: members[name] for name in ("state", "context", "forwardedProps", "resume") if name in members}
    return Framed(messages=as_list(members["messages"], "messages"), tools=members.get("tools"), dropped=dropped)


def _read(reading: Reading, items: Sequence[Item]) -> None:
    for item in items:
        fields = item.fields
        named = word(fields.members(), "role")
        if "subagentRunId" in fields:
            # Another agent's conversation.
            reading.leave_out(fields, "subagent")
            continue
        if named == "activity":
            reading.leave_out(fields, "activity")
            continue
        role = role_of(fields, _ROLES)
        turn_id = fields.take_string("id")
        if named == "tool":
            placed = _result(reading, fields)
        elif named == "reasoning":
            placed = _reasoning(fields)
        else:
            placed = _content(fields) + _calls(reading, fields)
        reading.add(role, placed, item, turn_id=turn_id)
        finish(fields, *_IGNORED)


def _opaque(value: str) -> Members | None:
    """The object that pydantic-ai writes into ``encryptedValue``; None for a signature."""
    return decoded(_OBJECT, value.encode()) if value.startswith("{") else None


def _reasoning(fields: Fields) -> list[Placed]:
    text, value = parts.value_text(fields.take("content")), fields.take_text("encryptedValue")
    if not text and not value:
        return []
    told = _opaque(value)
    if told is None:
        return [(parts.thinking(text, value, None), fields.at("content"))]
    issuer = parts.issuer_of(word(told, "provider_name"))
    signature, named = word(told, "signature"), word(told, "id")
    return parts.pydantic_ai_reasoning(text, signature, named, issuer, fields.at("content"))


def _calls(reading: Reading, fields: Fields) -> list[Placed]:
    value, path = fields.take("toolCalls"), fields.at("toolCalls")
    placed: list[Placed] = []
    for at, each in enumerate([] if value is None else as_list(value, path)):
        one = Fields(each, f"{path}.{at}", fields.notes)
        called = one.take_text("id")
        function = one.take_object("function") or Fields(b"{}", one.path, fields.notes)
        name, arguments = function.take_text("name"), function.take("arguments")
        block = parts.call(reading, called, name, arguments, function.at("arguments"))
        value_of_call = one.peek("encryptedValue")
        signature = ""
        if value_of_call is not None and (told := _opaque(parts.value_text(value_of_call))) is not None:
            one.ignore("encryptedValue")
            issuer = parts.issuer_of(word(told, "provider_name"))
            signature = word(told, "signature") if issuer is not None and issuer.provider == GEMINI else ""
        placed += parts.sealed(block, signature, one.path)
        function.drop_rest()
        # A signature of the call without an issuer: no provider takes it.
        finish(one, "type")
    return placed


def _result(reading: Reading, fields: Fields) -> list[Placed]:
    called = fields.take_text("toolCallId")
    error = parts.value_text(fields.take("error"))
    value, path = fields.take("content"), fields.at("content")
    told = _opaque(fields.take_text("encryptedValue")) or {}
    inner = as_object(told["pydantic_ai"], "") if is_object(told, "pydantic_ai") else {}
    is_error = bool(error) or word(inner, "outcome") in ("failed", "retried")
    called = called or parts.id_made(reading, "")
    if value is not None and starts_with(value, b"["):
        return [(parts.result(called, parts.inner_blocks(value, path, fields.notes, _part), is_error=is_error), path)]
    return [(parts.result(called, parts.value_text(value) or error, is_error=is_error), path)]


def _content(fields: Fields) -> list[Placed]:
    return parts.content_blocks(fields, "content", _part)


def _part(fields: Fields) -> list[Placed]:
    kind = kind_named(fields)
    if not _is_own(Raw(fields.whole)):
        placed = PART(fields)
        fields.drop_rest()
        return placed
    members = fields.members()
    source = as_object(members.get("source", NULL), "") if kind != "binary" else members
    form = word(source, "type")
    value = word(source, "value")
    block = parts.media(
        word(source, "mimeType"),
        data=word(source, "data") if kind == "binary" else value if form == "data" else "",
        url=word(source, "url") if kind == "binary" else value if form == "url" else "",
        file_id=word(source, "id") if kind == "binary" else value if form == "file" else "",
        title=word(members, "filename") or None,
        kind="" if kind == "binary" else kind,
    )
    placed_part = parts.media_or_unknown(block, fields, kind)
    finish(fields, "type", "source", "mimeType", "data", "url", "id", "filename", *_IGNORED)
    return [placed_part]


FRAMEWORK: Final = Framework(
    name="ag-ui",
    title="AG-UI",
    forms="messages, RunAgentInput",
    tried="ag-ui-protocol 1.0.0",
    decides=_decides,
    fits=_fits,
    read=_read,
    grows=True,
    frame=_frame,
)
