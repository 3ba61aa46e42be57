"""OpenTelemetry's GenAI messages, alone or in the attributes of a span.

The convention has no error flag, no signature and no redacted reasoning. An attribute's value may be the JSON of a
list, or a string of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from reknit.pipeline.errors import InputError
from reknit.pipeline.history.call_ids import NO_ID, made_id
from reknit.pipeline.history.frameworks import parts
from reknit.pipeline.history.frameworks.base import (
    Framed,
    Framework,
    Item,
    Members,
    Reading,
    finish,
    is_list,
    role_of,
    word,
)
from reknit.pipeline.history.readers.fields import Fields, as_list, as_object, as_string
from reknit.pipeline.history.readers.rawjson import starts_with
from reknit.pipeline.history.readers.tolerant import Placed, kind_named
from reknit.pipeline.model import Role, Text, ToolResult, ToolUse

_ROLES: Final[dict[str, Role]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "model": "assistant",
    "tool": "user",
}
_TEXTS: Final = frozenset({"text", "reasoning", "thinking"})
_OWN: Final = frozenset({"tool_call", "tool_call_response", "server_tool_call", "server_tool_call_response", "blob",
                         "uri"})  # fmt: skip
_OF_OTHERS: Final = frozenset({"id", "info", "author", "kind", "content"})
_MESSAGES: Final = ("gen_ai.input.messages", "gen_ai.output.messages")
_SYSTEM: Final = "gen_ai.system_instructions"
_SERVERS: Final = frozenset({"server_tool_call", "server_tool_call_response"})


def _decides(members: Members) -> bool:
    if word(members, "role") not in _ROLES or not is_list(members, "parts") or not _OF_OTHERS.isdisjoint(members):
        return False
    found = [as_object(each, "") for each in as_list(members["parts"], "") if starts_with(each, b"{")]
    return any(_is_own(each) for each in found)


def _is_own(part: Members) -> bool:
    kind = word(part, "type")
    return kind in _OWN or (kind in _TEXTS and "content" in part and "text" not in part)


def _fits(members: Members) -> bool:
    return word(members, "role") in _ROLES and is_list(members, "parts")


def _frame(members: Members) -> Framed | None:
    """The messages in the attributes of a span: the instructions, the input, then the output."""
    attributes = members
    if (inner := members.get("attributes")) is not None and starts_with(inner, b"{"):
        attributes = as_object(inner, "attributes")
    if not any(name.startswith("gen_ai.") for name in attributes):
        return None
    if not any(name in attributes for name in _MESSAGES):
        told = f"expected the attributes of a span with {' or '.join(_MESSAGES)}"
        raise InputError("no_messages", told)
    messages = [each for name in _MESSAGES if name in attributes for each in _listed(attributes[name], name)]
    system = None
    if _SYSTEM in attributes:
        texts = [as_object(each, _SYSTEM) for each in _listed(attributes[_SYSTEM], _SYSTEM)]
        system = _blocks_of([parts.value_text(each.get("content")) for each in texts])
    return Framed(
        messages=messages,
        system=system,
        provider=word(attributes, "gen_ai.provider.name") or word(attributes, "gen_ai.system"),
        model=word(attributes, "gen_ai.response.model") or word(attributes, "gen_ai.request.model") or None,
    )


def _blocks_of(texts: Sequence[str]) -> Raw | None:
    return Raw(msgspec.json.encode([{"type": "text", "text": text} for text in texts])) if texts else None


def _listed(value: Raw, name: str) -> list[Raw]:
    """Return a list that may be a string of its JSON."""
    if starts_with(value, b'"'):
        value = Raw(as_string(value, name).encode())
    return as_list(value, name)


def _read(reading: Reading, items: Sequence[Item]) -> None:
    for item in items:
        fields = item.fields
        role = role_of(fields, _ROLES)
        finish_reason = fields.take_text("finish_reason")
        value, path = fields.take("parts"), fields.at("parts")
        placed: list[Placed] = []
        for at, each in enumerate([] if value is None else as_list(value, path)):
            place = f"{path}.{at}"
            if starts_with(each, b"{"):
                placed += _part(reading, Fields(each, place, fields.notes))
            else:
                placed.append((Text(text=parts.value_text(each)), place))
        placed = _paired(reading, placed)
        if role == "assistant":
            is_cut = finish_reason == "error" and bool(placed) and isinstance(placed[-1][0], Text)
            said = [each for each in placed if not isinstance(each[0], ToolResult)]
            reading.add(role, said, item, incomplete=is_cut)
            reading.add("user", [each for each in placed if isinstance(each[0], ToolResult)], item)
        else:
            reading.add(role, placed, item)
        finish(fields, "name")


def _part(reading: Reading, fields: Fields) -> list[Placed]:
    kind, path = kind_named(fields), fields.path
    if kind in _TEXTS:
        if "content" not in fields:
            # The instrumentation left the content out. That is not an empty text.
            reading.leave_out(fields, kind)
            return []
        text = parts.value_text(fields.take("content"))
        issuer = parts.issuer_of(reading.provider, reading.model)
        placed: list[Placed] = [(Text(text=text) if kind == "text" else parts.thinking(text, "", issuer), path)]
    elif kind == "tool_call":
        name, called = fields.take_text("name"), parts.value_text(fields.take("id"))
        placed = [(parts.call(reading, called, name, fields.take("arguments"), fields.at("arguments")), path)]
    elif kind == "tool_call_response":
        placed = [(_response(reading, fields), path)]
    elif kind in _SERVERS:
        issuer = parts.issuer_of(reading.provider)
        placed = [(parts.native(fields, kind, issuer, is_known=True), path)]
        fields.clear()
    elif kind in ("blob", "uri", "file"):
        members = fields.members()
        block = parts.media(
            word(members, "mime_type"),
            data=word(members, "content") or word(members, "data"),
            url=word(members, "uri"),
            file_id=word(members, "file_id"),
            kind=word(members, "modality"),
        )
        placed = [parts.media_or_unknown(block, fields, kind)]
        fields.ignore("mime_type", "modality", "content", "data", "uri", "file_id")
    else:
        placed = [(parts.native(fields, kind), path)]
        fields.clear()
    finish(fields, "type")
    return placed


def _response(reading: Reading, fields: Fields) -> ToolResult:
    called, name = parts.value_text(fields.take("id")), fields.take_text("name")
    key = "response" if "response" in fields else "result"
    value, path = fields.take(key), fields.at(key)
    if not called:
        made = parts.id_made(reading, name)
        called = made if name else NO_ID
    if value is not None and starts_with(value, b"[") and _are_parts(value):
        blocks = parts.inner_blocks(value, path, fields.notes, lambda part: _part(reading, part))
        return parts.result(called, blocks)
    return parts.result(called, parts.value_text(value), is_value=True)


def _paired(reading: Reading, placed: Sequence[Placed]) -> list[Placed]:
    """Give each result without an id and a name the id of the first call without an id that waits for a result."""
    before = [block for turn in reading.turns for block in turn.blocks]
    waiting = [block.id for block in before if isinstance(block, ToolUse) and block.id == made_id(block.name)]
    for block in before:
        if isinstance(block, ToolResult) and block.tool_use_id in waiting:
            waiting.remove(block.tool_use_id)
    paired: list[Placed] = []
    for block, path in placed:
        if isinstance(block, ToolResult) and block.tool_use_id == NO_ID and waiting:
            paired.append((replace(block, tool_use_id=waiting.pop(0)), path))
        else:
            paired.append((block, path))
    return paired


def _are_parts(value: Raw) -> bool:
    """Return True if a list holds message parts, and is not a tool's own value."""
    items = as_list(value, "")
    return bool(items) and all(starts_with(each, b"{") and _is_part(as_object(each, "")) for each in items)


def _is_part(part: Members) -> bool:
    return _is_own(part) or (word(part, "type") == "file" and "file_id" in part)


FRAMEWORK: Final = Framework(
    name="otel-genai",
    title="OpenTelemetry GenAI",
    forms="messages, attributes of a span",
    tried="semantic-conventions-genai 0.1.0",
    decides=_decides,
    fits=_fits,
    read=_read,
    frame=_frame,
)
