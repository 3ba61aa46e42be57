"""Events of the Copilot CLI (``events.jsonl``): one line for each event. Few events belong to the conversation.

Reasoning of any form is bound to the session at Copilot's API, so its issuer is Copilot. Events of
subagents belong to other conversations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from reknit.pipeline.history.frameworks import parts
from reknit.pipeline.history.frameworks.base import (
    Framework,
    Item,
    Members,
    Reading,
    finish,
    is_object,
    is_string,
    word,
)
from reknit.pipeline.history.readers.fields import Fields, as_list, as_object
from reknit.pipeline.history.readers.rawjson import starts_with
from reknit.pipeline.history.readers.tolerant import Placed
from reknit.pipeline.model import Issuer, Text

_PROVIDER: Final = "copilot"
_OF_DATA: Final = (
    "messageId", "model", "interactionId", "turnId", "transformedContent", "source", "agentMode", "chunkIndex",
    "chunkCount", "phase", "outputTokens", "reasoningText", "requestId", "toolTelemetry", "success", "isUserRequested",
    "role", "name", "metadata", "encryptedContent", "reasoningOpaque", "reasoningBlocks", "toolName", "mcpServerName",
)  # fmt: skip
_CLEARED: Final = "session.context_cleared"


def _decides(members: Members) -> bool:
    if not is_object(members, "data") or not {"id", "timestamp", "parentId"} <= members.keys():
        return False
    return is_string(members, "type") and "role" not in members and "uuid" not in members


def _read(reading: Reading, items: Sequence[Item]) -> None:
    places: dict[str, int] = {}
    for item in items:
        fields = item.fields
        kind, event_id = word(fields.members(), "type"), word(fields.members(), "id")
        data = fields.take_object("data") or Fields(b"{}", fields.at("data"), fields.notes)
        places[event_id] = len(reading.turns)
        if "agentId" in data or "parentToolCallId" in data:
            reading.leave_out(data, "subagent")
        elif bytes(fields.peek("ephemeral") or b"") == b"true":
            reading.skipped[kind] += 1
        else:
            _read_event(reading, data, item, kind, places)


def _read_event(reading: Reading, data: Fields, item: Item, kind: str, places: dict[str, int]) -> None:
    turn_id = word(item.fields.members(), "id") or None
    if kind == "system.message":
        placed: list[Placed] = _text(data, "content")
        reading.add("system", placed, item, turn_id=turn_id)
    elif kind == "user.message":
        reading.add("user", _text(data, "content") + _attachments(reading, data), item, turn_id=turn_id)
    elif kind == "assistant.message":
        reading.add("assistant", _answer(reading, data), item, turn_id=word(data.members(), "messageId") or turn_id)
    elif kind == "tool.execution_complete":
        if bytes(data.peek("isUserRequested") or b"") == b"true":
            # The person ran the tool, so this result has no call.
            reading.leave_out(data, kind)
            return
        reading.add("user", [_result(data)], item, turn_id=turn_id)
    elif kind == "session.compaction_complete" and "summaryContent" in data:
        reading.turns[:] = [turn for turn in reading.turns if turn.role == "system"]
        reading.add("user", _text(data, "summaryContent"), item, synthetic=True)
        data.clear()
    elif kind == "session.snapshot_rewind":
        first = places.get(word(data.members(), "upToEventId"))
        if first is not None:
            del reading.turns[first:]
        reading.leave_out(data, kind)
        return
    elif kind == _CLEARED:
        reading.turns[:] = [turn for turn in reading.turns if turn.role == "system"]
        reading.leave_out(data, kind)
        return
    else:
        reading.skipped[kind] += 1
        data.clear()
    finish(data, *_OF_DATA)


def _text(data: Fields, key: str) -> list[Placed]:
    text = parts.value_text(data.take(key))
    return [(Text(text=text), data.at(key))] if text else []


def _attachments(reading: Reading, data: Fields) -> list[Placed]:
    value, path = data.take("attachments"), data.at("attachments")
    placed: list[Placed] = []
    for at, each in enumerate([] if value is None else as_list(value, path)):
        one = Fields(each, f"{path}.{at}", data.notes)
        members = one.members()
        if "data" not in one:
            # A path: its file is never read.
            reading.leave_out(one, word(members, "type") or "attachment")
            continue
        found = parts.media(
            word(members, "mimeType"), data=word(members, "data"), title=word(members, "displayName") or None
        )
        placed.append(parts.media_or_unknown(found, one, word(members, "type")))
    return placed


def _answer(reading: Reading, data: Fields) -> list[Placed]:
    members = data.members()
    issuer = Issuer(provider=_PROVIDER, model=word(members, "model") or None)
    placed: list[Placed] = []
    if is_object(members, "reasoningBlocks"):
        inner = Fields(members["reasoningBlocks"], data.at("reasoningBlocks"), data.notes)
        placed += parts.thinking_blocks(inner, "blocks", issuer)
    elif text := word(members, "reasoningText"):
        signature = word(members, "reasoningOpaque") or word(members, "encryptedContent")
        placed.append((parts.thinking(text, signature, issuer), data.at("reasoningText")))
    placed += _text(data, "content")
    value, path = data.take("toolRequests"), data.at("toolRequests")
    for at, each in enumerate([] if value is None else as_list(value, path)):
        one = Fields(each, f"{path}.{at}", data.notes)
        name, called = one.take_text("name"), one.take_text("toolCallId")
        placed.append((parts.call(reading, called, name, one.take("arguments"), one.at("arguments")), one.path))
        finish(one, "type", "toolTitle", "mcpServerName", "intentionSummary")
    return placed


def _result(data: Fields) -> Placed:
    called, path = data.take_text("toolCallId"), data.at("result")
    failed = bytes(data.peek("success") or b"") == b"false"
    error = data.take("error")
    found = data.take_object("result")
    if found is None:
        told = as_object(error, "") if error is not None and starts_with(error, b"{") else {}
        return parts.result(called, parts.value_text(told.get("message", error)), is_error=failed), path
    found.ignore("detailedContent", "binaryResultsForLlm")
    text, contents = parts.value_text(found.take("content")), found.take("contents")
    found.drop_rest()
    if contents is None or not starts_with(contents, b"["):
        return parts.result(called, text, is_error=failed), path
    blocks = parts.inner_blocks(contents, f"{path}.contents", data.notes, parts.mcp_part)
    return parts.result(called, blocks or text, is_error=failed), path


FRAMEWORK: Final = Framework(
    name="copilot-events",
    title="Copilot CLI",
    forms="`events.jsonl`",
    tried="types of @github/copilot-sdk 1.0.14",
    decides=_decides,
    fits=_decides,
    read=_read,
    lines=True,
)
