"""OpenCode's messages: ``info`` and ``parts`` of its first store, and the typed messages of its second.

A tool part is a call with its result. OpenCode does not send hidden texts, nor the parts for undoing changes,
nor an assistant message that ended with an error, unless the user aborted it with more than reasoning in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from reknit.pipeline.errors import InputError
from reknit.pipeline.history.frameworks import parts
from reknit.pipeline.history.frameworks.ai_sdk import Reasoning, file_part, options, output_part, signature_of_gemini
from reknit.pipeline.history.frameworks.base import (
    Framed,
    Framework,
    Item,
    Members,
    Reading,
    finish,
    is_list,
    is_object,
    word,
)
from reknit.pipeline.history.readers.fields import Fields, as_list, as_object
from reknit.pipeline.history.readers.rawjson import starts_with
from reknit.pipeline.history.readers.tolerant import Inner, Placed, inner_only, kind_named
from reknit.pipeline.model import Text, ToolResult, ToolUse

# Texts that OpenCode writes in place of an old output, an interrupted compaction's question and a user's command.
_CLEARED: Final = "[Old tool result content cleared]"
_COMPACTION: Final = "What did we do so far?"
_SUBTASK: Final = "The following tool was executed by the user"
_SILENT: Final = frozenset({"step-start", "step-finish", "snapshot", "agent", "retry"})
_EXPANDED: Final = frozenset({"text/plain", "application/x-directory"})
_TYPES: Final = frozenset(
    {"user", "assistant", "system", "synthetic", "shell", "compaction", "agent-switched", "model-switched"}
)
_OF_OTHERS: Final = frozenset({"uuid", "message", "role", "data", "parentId"})
_IGNORED: Final = ("id", "sessionID", "messageID", "type", "time", "metadata")


def _decides(members: Members) -> bool:
    if is_object(members, "info") and is_list(members, "parts"):
        info = as_object(members["info"], "info")
        return "sessionID" in info and "role" in info
    if word(members, "type") not in _TYPES or not is_object(members, "time") or not _OF_OTHERS.isdisjoint(members):
        return False
    return "created" in as_object(members["time"], "time")


def _fits(members: Members) -> bool:
    return _decides(members)


def _frame(members: Members) -> Framed | None:
    """The messages of ``opencode export``.

    Raises:
        InputError: a session's description without its messages.
    """
    if is_object(members, "info") and is_list(members, "messages"):
        messages = as_list(members["messages"], "messages")
        # Other programs have an ``info`` next to messages of another shape.
        are_own = all(starts_with(each, b"{") and _decides(as_object(each, "messages")) for each in messages)
        return Framed(messages=messages) if are_own else None
    if {"projectID", "version", "time"} <= members.keys() and "messages" not in members:
        told = "the description of an OpenCode session has no messages; export the session with opencode export"
        raise InputError("no_messages", told)
    return None


def _read(reading: Reading, items: Sequence[Item]) -> None:
    for item in items:
        fields = item.fields
        if "info" in fields:
            _read_first(reading, fields, item)
        else:
            _read_second(reading, fields, item)


def _read_first(reading: Reading, fields: Fields, item: Item) -> None:
    info = fields.take_object("info") or Fields(b"{}", fields.at("info"), fields.notes)
    told = info.members()
    role, model = word(told, "role"), word(told, "modelID")
    value, path = fields.take("parts"), fields.at("parts")
    values = [] if value is None else as_list(value, path)
    listed = [Fields(each, f"{path}.{at}", fields.notes) for at, each in enumerate(values) if starts_with(each, b"{")]
    if role == "assistant" and _is_unsent(told, listed):
        reading.leave_out(item.fields, "failed")
        for part in listed:
            reading.leave_out(part, kind_named(part))
        return
    if role not in ("user", "assistant"):
        raise InputError("unknown_role", f"expected user or assistant, found {role[:40]!r}", path=info.at("role"))
    turn_id = word(told, "id") or None
    if role == "user":
        if text := word(told, "system"):
            reading.add("system", [(Text(text=text), info.at("system"))], item)
        for synthetic, placed in _users(reading, listed):
            reading.add("user", placed, item, turn_id=turn_id, synthetic=synthetic)
            turn_id = None
    else:
        placed = []
        reasoning = Reasoning(model, word(told, "providerID"))
        for part in listed:
            _add_part(reading, placed, part, reasoning, model)
        reading.add_steps(placed, item, turn_id=turn_id, incomplete="error" in told)
    fields.drop_rest()


def _is_unsent(told: Members, listed: Sequence[Fields]) -> bool:
    if not is_object(told, "error"):
        return False
    if word(as_object(told["error"], ""), "name") != "MessageAbortedError":
        return True
    return all(kind_named(part) in ("reasoning", *_SILENT) for part in listed)


def _users(reading: Reading, listed: Sequence[Fields]) -> list[tuple[bool, list[Placed]]]:
    """Return the blocks of a user's message; blocks by the program are separate if there are no others."""
    placed: list[Placed] = []
    typed = False
    for part in listed:
        kind = kind_named(part)
        if kind == "compaction":
            placed.append((Text(text=_COMPACTION), part.path))
            part.clear()
        elif kind == "subtask":
            placed.append((Text(text=_SUBTASK), part.path))
            finish(part, *_IGNORED)
        else:
            typed = typed or bytes(part.peek("synthetic") or b"") != b"true"
            _add_part(reading, placed, part, Reasoning(), "")
    return [(not typed, placed)] if placed else []


def _add_part(reading: Reading, placed: list[Placed], part: Fields, reasoning: Reasoning, model: str) -> None:
    kind, path = kind_named(part), part.path
    if kind in _SILENT:
        reading.skipped[kind] += 1
        part.clear()
        return
    match kind:
        case "text":
            if bytes(part.peek("ignored") or b"") == b"true":
                reading.leave_out(part, "ignored")
                return
            given = options(part)
            text = Text(text=parts.value_text(part.take("text")))
            part.ignore("synthetic", "ignored")
            placed += parts.sealed(text, signature_of_gemini(given), path, model or None)
        case "reasoning":
            given = options(part)
            reasoning.add(placed, parts.value_text(part.take("text")), given, path)
        case "file":
            if word(part.members(), "mime") in _EXPANDED and not word(part.members(), "url").startswith("data:"):
                # Its text is in a synthetic part of the same message.
                reading.leave_out(part, "file")
                return
            part.ignore("source", "sessionID", "messageID")
            placed += file_part(part)
        case "tool":
            placed += _tool(reading, part, model)
        case "patch":
            reading.leave_out(part, kind)
        case _:
            placed.append((parts.native(part, kind), path))
            part.clear()
    finish(part, *_IGNORED)


def _tool(reading: Reading, part: Fields, model: str) -> list[Placed]:
    """Return a call, and the result in its state."""
    name = part.take_text("tool") or part.take_text("name")
    called = part.take_text("callID") or part.take_text("id") or parts.id_made(reading, name)
    state = part.take_object("state") or Fields(b"{}", part.at("state"), part.notes)
    given = options(part)
    part.ignore("provider", "executed")
    status, arguments, raw = state.take_text("status"), state.take("input"), state.take("raw")
    block: ToolUse
    if status == "pending" and (raw is not None or (arguments is not None and starts_with(arguments, b'"'))):
        block = parts.cut_call(reading, called, name, parts.value_text(raw if raw is not None else arguments))
    else:
        block = parts.call(reading, called, name, arguments, state.at("input"))
    placed = parts.sealed(block, signature_of_gemini(given), part.path, model or None)
    if status in ("completed", "error"):
        placed.append((_outcome(called, status, state), state.path))
    state.ignore("status", "title", "time", "metadata", "structured", "content", "result", "outputPaths")
    state.drop_rest()
    return placed


def _outcome(called: str, status: str, state: Fields) -> ToolResult:
    time = state.peek("time")
    if time is not None and starts_with(time, b"{") and "compacted" in as_object(time, ""):
        before = state.take("output")
        state.ignore("attachments")
        state.notes.add_fix("field_dropped", state.at("output"), "output", before=bytes(before or b""))
        return parts.result(called, _CLEARED)
    metadata = state.peek("metadata")
    told = as_object(metadata, "") if metadata is not None and starts_with(metadata, b"{") else {}
    output, error = state.take("output"), state.take("error")
    if status == "error" and bytes(told.get("interrupted", b"")) == b"true" and "output" in told:
        # The output of an interrupted tool is its result, not the error.
        return parts.result(called, parts.value_text(told["output"]))
    blocks: list[Inner] = []
    content = state.peek("content")
    if content is not None and starts_with(content, b"["):
        blocks += parts.inner_blocks(content, state.at("content"), state.notes, output_part)
    if status == "error":
        if error is not None and starts_with(error, b"{"):
            error = as_object(error, "").get("message", error)
        return parts.result(
            called, [*blocks, Text(text=parts.value_text(error))] if blocks else parts.value_text(error), is_error=True
        )
    attachments = state.take("attachments")
    listed = [] if attachments is None else as_list(attachments, state.at("attachments"))
    for at, each in enumerate(listed):
        attached = Fields(each, f"{state.at('attachments')}.{at}", state.notes)
        attached.ignore("id", "sessionID", "messageID", "source")
        blocks += inner_only(file_part(attached), state.notes)
    text = parts.value_text(output)
    if not blocks:
        return parts.result(called, text)
    return parts.result(called, [*([Text(text=text)] if text else []), *blocks])


def _read_second(reading: Reading, fields: Fields, item: Item) -> None:
    kind, turn_id = fields.take_text("type"), fields.take_string("id")
    if kind == "assistant":
        told = fields.take_object("model")
        model = word(told.members(), "id") if told is not None else ""
        provider = word(told.members(), "providerID") if told is not None else ""
        value, path = fields.take("content"), fields.at("content")
        placed: list[Placed] = []
        reasoning = Reasoning(model, provider)
        for at, each in enumerate([] if value is None else as_list(value, path)):
            if starts_with(each, b"{"):
                _add_part(reading, placed, Fields(each, f"{path}.{at}", fields.notes), reasoning, model)
        reading.add_steps(placed, item, turn_id=turn_id, incomplete="error" in fields)
        finish(fields, "time", "agent", "cost", "tokens", "finish", "snapshot", "metadata")
        return
    if kind in ("user", "synthetic", "system"):
        placed = _texts(fields, "text")
        files = fields.take("files")
        for at, each in enumerate([] if files is None else as_list(files, fields.at("files"))):
            attached = Fields(each, f"{fields.at('files')}.{at}", fields.notes)
            attached.ignore("source", "description")
            placed += file_part(attached)
        if kind == "system":
            reading.add("system", placed, item, turn_id=turn_id)
        else:
            reading.add("user", placed, item, turn_id=turn_id, synthetic=kind == "synthetic")
    elif kind == "compaction":
        placed = _texts(fields, "summary") + _texts(fields, "recent")
        reading.add("user", placed, item, turn_id=turn_id, synthetic=True)
    else:
        reading.leave_out(fields, kind)
    finish(fields, "time", "agent", "agents", "reason", "sessionID", "metadata")


def _texts(fields: Fields, name: str) -> list[Placed]:
    text = parts.value_text(fields.take(name))
    return [(Text(text=text), fields.at(name))] if text else []


FRAMEWORK: Final = Framework(
    name="opencode",
    title="OpenCode",
    forms="messages of both stores, `opencode export`",
    tried="types of @opencode-ai/sdk 1.19.3",
    decides=_decides,
    fits=_fits,
    read=_read,
    frame=_frame,
)
