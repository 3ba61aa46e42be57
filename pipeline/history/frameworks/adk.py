"""Events of Google's Agent Development Kit, alone or in a session; their contents are Gemini's.

Both spellings of members occur, and bytes are in the URL-safe alphabet. A partial event is a fragment of a later one.
Events that a rewind removes are left out, and a compaction's summary takes the place of the events between its
times. Questions of the framework to a person look like calls, and ADK does not send them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

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
    is_string,
    word,
)
from reknit.pipeline.history.pieces import GEMINI
from reknit.pipeline.history.readers.fields import Fields, as_list, as_object
from reknit.pipeline.history.readers.rawjson import starts_with
from reknit.pipeline.history.readers.tolerant import Placed
from reknit.pipeline.model import Block, Issuer, Role, Text, Thinking, ToolResult, Unknown
from reknit.pipeline.providers.gemini.reader import Parts

_QUESTIONS: Final = frozenset({"adk_request_confirmation", "adk_request_credential", "adk_request_input"})
_CALLS: Final = ("functionCall", "function_call", "functionResponse", "function_response")
_TRANSCRIPTIONS: Final = ("inputTranscription", "input_transcription", "outputTranscription", "output_transcription")
_SIGNATURES: Final = ("thoughtSignature", "thought_signature")
_BLOBS: Final = ("inlineData", "inline_data")
_HOLDERS: Final = ("functionResponse", "function_response")
_IGNORED: Final = (
    "author", "invocationId", "invocation_id", "id", "timestamp", "partial", "turnComplete", "turn_complete",
    "modelVersion", "model_version", "usageMetadata", "usage_metadata", "finishReason", "finish_reason",
    "longRunningToolIds", "long_running_tool_ids", "nodeInfo", "node_info", "interrupted", "avgLogprobs",
    "avg_logprobs", "logprobsResult", "logprobs_result", "cacheMetadata", "cache_metadata", "branch",
    "isolationScope", "isolation_scope", "interactionId", "interaction_id",
)  # fmt: skip


def _either(members: Members, camel: str, snake: str) -> Raw | None:
    return members.get(camel, members.get(snake))


def _decides(members: Members) -> bool:
    named = _either(members, "invocationId", "invocation_id")
    return is_string(members, "author") and named is not None and not {"role", "message"} & members.keys()


def _fits(members: Members) -> bool:
    return is_string(members, "author") and "role" not in members


def _frame(members: Members) -> Framed | None:
    app = _either(members, "appName", "app_name")
    user = _either(members, "userId", "user_id")
    if not is_list(members, "events") or (app is None and user is None):
        return None
    events = as_list(members["events"], "events")
    if events and not all(starts_with(each, b"{") for each in events):
        return None
    dropped = {"state": members["state"]} if is_object(members, "state") else {}
    return Framed(messages=events, dropped=dropped)


def _actions(fields: Fields) -> Members:
    value = fields.peek("actions")
    return as_object(value, fields.at("actions")) if value is not None and starts_with(value, b"{") else {}


def _read(reading: Reading, items: Sequence[Item]) -> None:
    kept = _kept(reading, items)
    summaries = _summaries(kept)
    for item in kept:
        fields = item.fields
        if bytes(fields.peek("partial") or b"") == b"true":
            _leave_partial(reading, item, kept)
            continue
        if any(start <= _time(fields) <= end for start, end, at, _ in summaries if at != item.index):
            reading.leave_out(fields, "compacted")
            continue
        content, path = fields.take("content"), fields.at("content")
        for _, _, at, summary in summaries:
            if at == item.index:
                content, path = summary, fields.at("actions.compaction.compactedContent")
        _read_content(reading, item, content, path)
        _drop_actions(fields)
        finish(fields, *_IGNORED)


def _kept(reading: Reading, items: Sequence[Item]) -> list[Item]:
    """Return the events that no later rewind removes."""
    kept: list[Item] = []
    at = len(items) - 1
    while at >= 0:
        item = items[at]
        actions = _actions(item.fields)
        value = _either(actions, "rewindBeforeInvocationId", "rewind_before_invocation_id")
        target = "" if value is None or not starts_with(value, b'"') else msgspec.json.decode(value, type=str)
        first = next((i for i, each in enumerate(items[:at]) if target and _invocation(each.fields) == target), None)
        if first is not None:
            for each in items[first : at + 1]:
                reading.leave_out(each.fields, "rewound")
            at = first - 1
            continue
        kept.append(item)
        at -= 1
    return kept[::-1]


def _invocation(fields: Fields) -> str:
    members = fields.members()
    return word(members, "invocationId") or word(members, "invocation_id")


def _time(fields: Fields) -> float:
    return _number(fields.peek("timestamp"))


def _number(value: Raw | None) -> float:
    try:
        return 0.0 if value is None else msgspec.json.decode(value, type=float)
    except msgspec.MsgspecError:
        return 0.0


def _summaries(items: Sequence[Item]) -> list[tuple[float, float, int, Raw]]:
    """Return the compacted spans of time, the index of each summary's event, and the summary."""
    found: list[tuple[float, float, int, Raw]] = []
    for item in items:
        actions = _actions(item.fields)
        if not is_object(actions, "compaction"):
            continue
        inner = as_object(actions["compaction"], item.fields.at("actions.compaction"))
        content = _either(inner, "compactedContent", "compacted_content")
        if content is None or not starts_with(content, b"{"):
            continue
        start = _number(_either(inner, "startTimestamp", "start_timestamp"))
        end = _number(_either(inner, "endTimestamp", "end_timestamp"))
        found.append((start, end, item.index, content))
    return found


def _leave_partial(reading: Reading, item: Item, items: Sequence[Item]) -> None:
    """Leave out a fragment of a later event; it is recorded as lost only if that event is missing."""
    named = item.fields.peek("author"), _invocation(item.fields)
    followed = any(
        each.index > item.index
        and bytes(each.fields.peek("partial") or b"") != b"true"
        and "content" in each.fields
        and (each.fields.peek("author"), _invocation(each.fields)) == named
        for each in items
    )
    if followed:
        reading.skipped["partial"] += 1
        item.fields.clear()
    else:
        reading.leave_out(item.fields, "partial")


def _drop_actions(fields: Fields) -> None:
    """Record the actions that have content. Most events have all of them, empty."""
    actions = fields.take_object("actions")
    if actions is not None:
        actions.ignore("compaction")
        actions.drop_rest()


def _read_content(reading: Reading, item: Item, content: Raw | None, path: str) -> None:
    fields = item.fields
    has_content = content is not None and starts_with(content, b"{")
    if not has_content and fields.keys().isdisjoint(_TRANSCRIPTIONS):
        return
    inner = Fields(content if has_content and content else b"{}", path, fields.notes)
    model = word(fields.members(), "modelVersion") or word(fields.members(), "model_version") or None
    # Models of other providers run through LiteLLM, whose names begin with the provider's.
    provider, _, base = (model or "").rpartition("/")
    issuer = parts.issuer_of(provider.rpartition("/")[2], base) if provider else Issuer(provider=GEMINI, model=model)
    named = inner.take_text("role")
    is_users = word(fields.members(), "author") == "user" or named in ("user", "function")
    role: Role = "user" if is_users else "assistant"
    value, place = inner.take("parts"), inner.at("parts")
    listed = [] if value is None else as_list(value, place)
    reader = Parts()
    placed: list[Placed] = []
    for at, each in enumerate(listed):
        if not starts_with(each, b"{"):
            continue
        part = _part(each, f"{place}.{at}", fields)
        if _asks(part):
            reading.leave_out(part, "question")
            continue
        placed += [(_issued(block, issuer), where) for block, where in reader.read(part)]
    inner.drop_rest()
    placed = _transcribed(fields, placed)
    reading.ids_made = reader.ids_made
    turn_id = word(fields.members(), "id") or None
    if role == "assistant" and any(isinstance(block, ToolResult) for block, _ in placed):
        reading.add_steps(placed, item, turn_id=turn_id)
    else:
        reading.add(role, placed, item, turn_id=turn_id)


def _transcribed(fields: Fields, placed: Sequence[Placed]) -> list[Placed]:
    """Return the blocks of an event with the transcription in place of its sound, as in sessions of live models."""
    heard = [block for block, _ in placed if isinstance(block, Unknown) and block.kind == "inlineData"]
    if placed and len(heard) < len(placed):
        return list(placed)
    for name in _TRANSCRIPTIONS:
        value = fields.peek(name)
        text = word(as_object(value, fields.at(name)), "text") if value is not None and starts_with(value, b"{") else ""
        if text:
            fields.ignore(name)
            return [(Text(text=text), fields.at(name))]
    return list(placed)


def _issued(block: Block, issuer: Issuer | None) -> Block:
    """Add the model to a block of Gemini's: signatures and thoughts are valid only with the model that wrote them."""
    return replace(block, issuer=issuer) if isinstance(block, Thinking) and issuer is not None else block


def _asks(part: Fields) -> bool:
    """Return True if a part is the framework's question to a person, or its answer."""
    for name in _CALLS:
        value = part.peek(name)
        if value is not None and starts_with(value, b"{"):
            return word(as_object(value, part.at(name)), "name") in _QUESTIONS
    return False


def _part(value: Raw, path: str, fields: Fields) -> Fields:
    """Return a part with its base64 in the standard alphabet."""
    members = as_object(value, path)
    changed = _standard(members)
    if changed == members:
        return Fields(value, path, fields.notes, members=members)
    return Fields(Raw(msgspec.json.encode(changed)), path, fields.notes, members=changed)


def _standard(members: Members) -> dict[str, Raw]:
    changed = {**members}
    for name in _SIGNATURES:
        if is_string(changed, name):
            changed[name] = Raw(msgspec.json.encode(parts.standard_base64(word(changed, name))))
    for name in _BLOBS:
        if is_object(changed, name):
            blob = as_object(changed[name], "")
            if is_string(blob, "data"):
                blob["data"] = Raw(msgspec.json.encode(parts.standard_base64(word(blob, "data"))))
                changed[name] = Raw(msgspec.json.encode(blob))
    for name in _HOLDERS:
        if is_object(changed, name) and is_list(response := as_object(changed[name], ""), "parts"):
            listed = as_list(response["parts"], "")
            response["parts"] = Raw(
                msgspec.json.encode(
                    [_standard(as_object(each, "")) if starts_with(each, b"{") else each for each in listed]
                )
            )
            changed[name] = Raw(msgspec.json.encode(response))
    return changed


FRAMEWORK: Final = Framework(
    name="adk-events",
    title="Google ADK",
    forms="events, a session",
    tried="google-adk 2.13.0",
    decides=_decides,
    fits=_fits,
    read=_read,
    grows=True,
    frame=_frame,
)
