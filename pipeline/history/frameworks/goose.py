"""Goose's messages, alone or in a session: contents of MCP with Goose's own calls, results and questions.

Messages that the agent does not see are not sent: the originals of a compaction, and notices. Questions to a person are
no part of the conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Raw

from reknit.pipeline.history.frameworks import parts
from reknit.pipeline.history.frameworks.base import (
    Framed,
    Framework,
    Item,
    Members,
    Reading,
    finish,
    is_list,
    is_object,
    role_of,
    word,
)
from reknit.pipeline.history.pieces import GEMINI
from reknit.pipeline.history.readers.fields import Fields, as_list, as_object
from reknit.pipeline.history.readers.rawjson import starts_with
from reknit.pipeline.history.readers.tolerant import Placed, kind_named
from reknit.pipeline.model import Issuer, Role, Text, ToolResult

_ROLES: Final[dict[str, Role]] = {"system": "system", "user": "user", "assistant": "assistant"}
_KINDS: Final = frozenset(
    {"toolRequest", "toolConfirmationRequest", "actionRequired", "frontendToolRequest", "redactedThinking",
     "systemNotification"}
)  # fmt: skip
# Gemini's result of a call that it ran itself has the same type, without this member.
_RESULT: Final = ("toolResponse", "toolResult")
_QUESTIONS: Final = frozenset({"toolConfirmationRequest", "actionRequired", "systemNotification"})


def _decides(members: Members) -> bool:
    if word(members, "role") not in _ROLES or not is_list(members, "content"):
        return False
    if "created" in members and is_object(members, "metadata") and b'"agentVisible"' in bytes(members["metadata"]):
        return True
    listed = [as_object(each, "") for each in as_list(members["content"], "") if starts_with(each, b"{")]
    kind, member = _RESULT
    return any(word(each, "type") in _KINDS or (word(each, "type") == kind and member in each) for each in listed)


def _fits(members: Members) -> bool:
    return word(members, "role") in _ROLES and "created" in members


def _frame(members: Members) -> Framed | None:
    if not is_list(members, "conversation") or not {"working_dir", "provider_name", "model_config"} & members.keys():
        return None
    return Framed(messages=as_list(members["conversation"], "conversation"))


def _read(reading: Reading, items: Sequence[Item]) -> None:
    for item in items:
        fields = item.fields
        metadata = fields.take_object("metadata")
        if metadata is not None and bytes(metadata.peek("agentVisible") or b"") == b"false":
            reading.leave_out(fields, "hidden")
            continue
        role = role_of(fields, _ROLES)
        turn_id = fields.take_string("id")
        listed = _Parts(reading, _issuer(metadata))
        value, path = fields.take("content"), fields.at("content")
        placed: list[Placed] = []
        for at, each in enumerate([] if value is None else as_list(value, path)):
            if starts_with(each, b"{"):
                placed += listed.read(Fields(each, f"{path}.{at}", fields.notes))
        reading.add(role, placed, item, turn_id=turn_id)
        finish(fields, "created")


def _issuer(metadata: Fields | None) -> Issuer | None:
    inference = None if metadata is None else metadata.peek("inference")
    if inference is None or not starts_with(inference, b"{"):
        return None
    told = as_object(inference, "")
    return parts.issuer_of(word(told, "provider"), word(told, "resolvedModel") or word(told, "requestedModel"))


class _Parts:
    def __init__(self, reading: Reading, issuer: Issuer | None) -> None:
        self._reading = reading
        self._issuer = issuer

    def read(self, fields: Fields) -> list[Placed]:
        kind, path = kind_named(fields), fields.path
        fields.ignore("_meta")
        if kind in _QUESTIONS:
            self._reading.leave_out(fields, kind)
            return []
        placed: list[Placed]
        match kind:
            case "text":
                placed = [(Text(text=parts.value_text(fields.take("text"))), path)]
                fields.ignore("annotations")
            case "image":
                block = parts.media(fields.take_text("mimeType"), data=fields.take_text("data"), kind="image")
                placed = [parts.media_or_unknown(block, fields, kind)]
                fields.ignore("annotations")
            case "thinking":
                signature = fields.take_text("signature")
                placed = [
                    (parts.thinking(fields.take_text("thinking"), signature, self._issuer if signature else None), path)
                ]
            case "redactedThinking":
                placed = [(parts.redacted(fields.take_text("data"), self._issuer), path)]
            case "reasoning":
                placed = [(parts.thinking(fields.take_text("text"), "", None), path)]
            case "toolRequest" | "frontendToolRequest":
                placed = self._call(fields)
            case "toolResponse":
                placed = [self._result(fields)]
            case _:
                placed = [(parts.native(fields, kind), path)]
                fields.clear()
        finish(fields, "type")
        return placed

    def _call(self, fields: Fields) -> list[Placed]:
        called, path = fields.take_text("id"), fields.path
        outcome = fields.take_object("toolCall") or Fields(b"{}", path, fields.notes)
        metadata = fields.take_object("metadata")
        signature = fields.take_text("thoughtSignature")
        if metadata is not None:
            signature = metadata.take_text("thoughtSignature") or signature
        if signature and self._issuer is not None and self._issuer.provider != GEMINI:
            # The model that wrote this message does not read it.
            fields.notes.add_fix("field_dropped", fields.at("metadata"), "thoughtSignature")
            signature = ""
        if outcome.take_text("status") == "error" or "value" not in outcome:
            # The name and the arguments are lost; only the error of the parser is stored.
            outcome.drop_rest()
            return [(parts.cut_call(self._reading, called, "", ""), path)]
        value = outcome.take_object("value") or Fields(b"{}", path, fields.notes)
        name, arguments = value.take_text("name"), value.take("arguments")
        block = parts.call(self._reading, called, name, arguments, value.at("arguments"))
        finish(value, "_meta", "meta", "task")
        return parts.sealed(block, signature, path, None if self._issuer is None else self._issuer.model)

    def _result(self, fields: Fields) -> Placed:
        called, path = fields.take_text("id"), fields.path
        outcome = fields.take_object("toolResult") or Fields(b"{}", path, fields.notes)
        fields.ignore("metadata")
        if outcome.take_text("status") == "error":
            text = parts.value_text(outcome.take("error"))
            outcome.drop_rest()
            return parts.result(called, text, is_error=True), path
        value, place = outcome.take("value"), outcome.at("value")
        outcome.drop_rest()
        if value is not None and starts_with(value, b"["):
            return parts.result(called, parts.inner_blocks(value, place, fields.notes, self._inner)), path
        if value is None or not starts_with(value, b"{"):
            return parts.result(called, parts.value_text(value)), path
        return self._mcp_result(called, Fields(value, place, fields.notes)), path

    def _mcp_result(self, called: str, value: Fields) -> ToolResult:
        is_error = value.take_flag("isError")
        content = value.take("content") or Raw(b"[]")
        structured = value.take("structuredContent")
        finish(value, "_meta", "meta")
        blocks = parts.inner_blocks(content, value.at("content"), value.notes, self._inner)
        if not blocks and structured is not None:
            return parts.result(called, parts.value_text(structured), is_error=is_error, is_value=True)
        return parts.result(called, blocks, is_error=is_error)

    def _inner(self, fields: Fields) -> list[Placed]:
        """Return a content of a result; content that is not for the assistant is left out."""
        annotations = fields.take("annotations")
        if annotations is not None and starts_with(annotations, b"{"):
            audience = as_object(annotations, "").get("audience")
            if audience is not None and starts_with(audience, b"["):
                named = msgspec.json.decode(audience)
                if named and "assistant" not in named:
                    self._reading.leave_out(fields, "hidden")
                    return []
        return parts.mcp_part(fields)


FRAMEWORK: Final = Framework(
    name="goose",
    title="Goose",
    forms="messages, a session",
    tried="types of goose 865e4a03",
    decides=_decides,
    fits=_fits,
    read=_read,
    frame=_frame,
)
