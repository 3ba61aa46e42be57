"""AutoGen's messages: those of a model's context (autogen-core), and the events of a team (autogen-agentchat).

In a team, the source ``user`` is the user, and every other source is an agent. A summary message repeats the events
before it, and its text is the agent's answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from reknit.pipeline.errors import InputError
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
    word,
)
from reknit.pipeline.history.readers.fields import Fields, as_list, as_object
from reknit.pipeline.history.readers.rawjson import starts_with
from reknit.pipeline.history.readers.tolerant import Placed
from reknit.pipeline.model import Text, ToolResult, ToolUse

_CORE: Final = frozenset({"SystemMessage", "UserMessage", "AssistantMessage", "FunctionExecutionResultMessage"})
_CHAT: Final = frozenset(
    {"TextMessage", "MultiModalMessage", "StopMessage", "HandoffMessage", "ToolCallSummaryMessage", "ThoughtEvent",
     "ToolCallRequestEvent", "ToolCallExecutionEvent", "CodeGenerationEvent", "CodeExecutionEvent"}
)  # fmt: skip
# Fragments of later messages, questions to a person, and the team's own decisions.
_SKIPPED: Final = frozenset(
    {"ModelClientStreamingChunkEvent", "UserInputRequestedEvent", "MemoryQueryEvent", "SelectSpeakerEvent",
     "SelectorEvent"}
)  # fmt: skip
_IGNORED: Final = ("type", "source", "models_usage", "metadata", "created_at", "id", "tool_calls", "results", "target",
                   "format_string", "retry_attempt", "result")  # fmt: skip
_STRUCTURED: Final = "StructuredMessage"


def _is_chat(kind: str) -> bool:
    return kind in _CHAT or kind in _SKIPPED or kind.startswith(_STRUCTURED)


def _decides(members: Members) -> bool:
    kind = word(members, "type")
    if "role" in members or "content" not in members or "data" in members:
        return False
    if kind in _CORE:
        return "additional_kwargs" not in members
    return _is_chat(kind) and "source" in members


def _frame(members: Members) -> Framed | None:
    """The messages of an agent's state."""
    if is_object(members, "llm_context"):
        context = as_object(members["llm_context"], "llm_context")
        if is_list(context, "messages"):
            return Framed(messages=as_list(context["messages"], "llm_context.messages"))
    return None


def _read(reading: Reading, items: Sequence[Item]) -> None:
    seen: set[str] = set()
    for item in items:
        fields = item.fields
        kind = word(fields.members(), "type")
        if kind in _SKIPPED:
            reading.leave_out(fields, kind)
            continue
        if kind not in _CORE and not _is_chat(kind):
            told = f"expected the type of an AutoGen message, found {kind[:40]!r}"
            raise InputError("unknown_role", told, path=fields.at("type"))
        if kind in _CORE:
            _read_core(reading, fields, item, kind)
        else:
            _read_chat(reading, fields, item, kind, seen)
        finish(fields, *_IGNORED)


def _read_core(reading: Reading, fields: Fields, item: Item, kind: str) -> None:
    if kind == "FunctionExecutionResultMessage":
        reading.add("user", _results(reading, fields), item)
    elif kind == "AssistantMessage":
        thought, path = parts.value_text(fields.take("thought")), fields.at("thought")
        calls = _calls(reading, fields)
        if not calls:
            # Next to a text a thought is reasoning, next to calls it is the text that came with them.
            said: list[Placed] = [(parts.thinking(thought, "", None), path)] if thought else []
            reading.add("assistant", said + _content(fields), item)
        else:
            reading.add("assistant", [*([(Text(text=thought), path)] if thought else []), *calls], item)
    else:
        reading.add("system" if kind == "SystemMessage" else "user", _content(fields), item)


def _read_chat(reading: Reading, fields: Fields, item: Item, kind: str, seen: set[str]) -> None:
    turn_id = word(fields.members(), "id") or None
    role = "user" if word(fields.members(), "source") == "user" else "assistant"
    if kind == "ToolCallRequestEvent":
        calls = _calls(reading, fields)
        seen.update(block.id for block, _ in calls if isinstance(block, ToolUse))
        reading.add("assistant", calls, item, turn_id=turn_id)
    elif kind == "ToolCallExecutionEvent":
        results = _results(reading, fields)
        seen.update(block.tool_use_id for block, _ in results if isinstance(block, ToolResult))
        reading.add("user", results, item, turn_id=turn_id)
    elif kind == "ToolCallSummaryMessage":
        calls = [each for each in _calls(reading, fields, "tool_calls") if _id(each) not in seen]
        reading.add("assistant", calls, item)
        reading.add("user", [each for each in _results(reading, fields, "results") if _id(each) not in seen], item)
        reading.add("assistant", _content(fields), item, turn_id=turn_id)
    else:
        reading.add("user" if role == "user" else "assistant", _content(fields), item, turn_id=turn_id)


def _id(placed: Placed) -> str:
    block = placed[0]
    return block.id if isinstance(block, ToolUse) else block.tool_use_id if isinstance(block, ToolResult) else ""


def _calls(reading: Reading, fields: Fields, key: str = "content") -> list[Placed]:
    value, path = fields.peek(key), fields.at(key)
    if value is None or not starts_with(value, b"["):
        return []
    placed: list[Placed] = []
    for at, each in enumerate(as_list(value, path)):
        if not starts_with(each, b"{"):
            continue
        one = Fields(each, f"{path}.{at}", fields.notes)
        if "name" not in one or "arguments" not in one:
            continue
        name, called = one.take_text("name"), one.take_text("id")
        placed.append((parts.call(reading, called, name, one.take("arguments"), one.at("arguments")), one.path))
        one.drop_rest()
    if placed:
        fields.ignore(key)
    return placed


def _results(reading: Reading, fields: Fields, key: str = "content") -> list[Placed]:
    value, path = fields.take(key), fields.at(key)
    placed: list[Placed] = []
    for at, each in enumerate([] if value is None else as_list(value, path)):
        one = Fields(each, f"{path}.{at}", fields.notes)
        name, called = one.take_text("name"), one.take_text("call_id")
        is_error = one.take_flag("is_error")
        text = parts.value_text(one.take("content"))
        placed.append((parts.result(called or parts.id_made(reading, name), text, is_error=is_error), one.path))
        one.drop_rest()
    return placed


def _content(fields: Fields) -> list[Placed]:
    """Return blocks for a text, for texts and images, or for a structured message, whose object becomes its JSON."""
    value, path = fields.take("content"), fields.at("content")
    if value is None:
        return []
    if not starts_with(value, b"["):
        text = parts.value_text(value)
        return [(Text(text=text), path)] if text else []
    placed: list[Placed] = []
    for at, each in enumerate(as_list(value, path)):
        place = f"{path}.{at}"
        if starts_with(each, b"{") and "data" in (members := as_object(each, place)):
            # All images are PNGs.
            block = parts.media("image/png", data=word(members, "data"))
            placed.append(parts.media_or_unknown(block, Fields(each, place, fields.notes), "image"))
        else:
            placed.append((Text(text=parts.value_text(each)), place))
    return placed


FRAMEWORK: Final = Framework(
    name="autogen",
    title="AutoGen",
    forms="messages of a model context, agent state, events of a team",
    tried="autogen-core and autogen-agentchat 0.7.5",
    decides=_decides,
    fits=_decides,
    read=_read,
    frame=_frame,
)
