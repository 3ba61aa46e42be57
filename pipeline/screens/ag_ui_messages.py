"""The messages of AG-UI 1.0 that show a session, and the events that give them to a client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from reknit.pipeline.screens.content import (
    CALLS,
    Event,
    arguments,
    blocks_of,
    compact,
    decoded,
    fields_of,
    is_image,
    is_plain,
    is_web_address,
    plain_text,
    readable_block,
    readable_text,
    tool_name,
)
from reknit.pipeline.screens.state import Block, Notice, ScreenState
from reknit.topics.items import AgentError, TurnResult

# The client fails with a frame of more than 10 Mi characters, and a snapshot is one frame.
LARGEST_SNAPSHOT: Final = 8 * 1024 * 1024
# Without it a client keeps its own activities when a snapshot has none.
_OWNS_ACTIVITIES: Final = {"@ag-ui/client": {"authoritativeActivityTypes": None}}
_CLEAR_ID: Final = "reknit-clear"


def facts_of(block: Block) -> dict[str, Any]:
    """Return what Reknit knows of an item and the protocol has no field for, without members that are empty."""
    entry = block.entry
    facts = {
        "incomplete": entry.incomplete,
        "reason": entry.reason if entry.incomplete else "",
        "doubtful": entry.doubtful,
        "repeats": entry.repeats,
        "origin": "" if entry.origin == "stream" else entry.origin,
        "synthetic": entry.started.is_synthetic,
        "outside": entry.outside,
        "citations": block.citations,
        "providerExecuted": block.kind in CALLS - {"tool_use"},
    }
    return {name: value for name, value in facts.items() if value}


def metadata(facts: dict[str, Any]) -> Event:
    """Return the metadata of an event or a message; nothing for no facts."""
    return {"metadata": {"reknit": facts}} if facts else {}


def tag(block: Block) -> Event:
    """Return the field by which an item belongs to a sub-agent."""
    return {"subagentRunId": block.entry.parent} if block.entry.parent else {}


def parts(content: object) -> str | list[Event]:
    """Return blocks as the content of a message: a text, or parts if there are other blocks, such as images."""
    return plain_text(content) if is_plain(content) else [_part(block) for block in blocks_of(content)]


def _part(block: Any) -> Event:  # noqa: ANN401  JSON
    source = block.get("source") if is_image(block) else None
    if isinstance(source, dict):
        if source.get("type") == "url" and is_web_address(source.get("url")):
            return {"type": "image", "source": {"type": "url", "value": source["url"]}}
        data, kind = source.get("data"), source.get("media_type")
        if isinstance(data, str) and isinstance(kind, str):
            return {"type": "image", "source": {"type": "data", "value": data, "mimeType": kind}}
    return {"type": "text", "text": readable_block(block)}


def user_content(block: Block) -> str | list[Event]:
    """Return the content of a user's message."""
    content = decoded(block.entry.started.content)
    return block.entry.text if content is None else parts(content)


def result_fields(block: Block) -> Event:
    """Return the fields that a call's result has as an event and as a message."""
    result = block.entry.result
    content = None if result is None else decoded(result.content)
    return {
        "toolCallId": block.id,
        "content": parts(content),
        **tag(block),
        **metadata({"isError": result is not None and result.is_error}),
    }


def provider_result(block: Block) -> Event:
    """Return the fields of the result of a call that the provider ran."""
    facts = {**facts_of(block), "providerExecuted": True}
    content = "" if block.raw is None else compact(block.raw)
    return {"toolCallId": block.call, "content": content, **metadata(facts)}


def activity(block: Block) -> Event:
    """Return a block that the protocol has no form for."""
    content = decoded(block.raw)
    return {
        "activityType": f"reknit.{block.kind}",
        "content": content if isinstance(content, dict) else {},
    }


def notice(item: Notice) -> Event:
    """Return a notice as an activity."""
    if isinstance(item, AgentError):
        content = {"message": item.message, "willRetry": item.will_retry, "code": item.code}
        return {"activityType": "reknit.agent_error", "content": content}
    fields = fields_of(item)
    kind = str(fields.pop("type")).replace("/", "_")
    return {"activityType": f"reknit.{kind}", "content": fields}


def result_text(key: str, item: TurnResult) -> Event:
    """Return the text of a result that no item has."""
    return {"id": key, "role": "assistant", "content": item.result or "", **metadata({"origin": "result"})}


def messages(state: ScreenState) -> list[Event]:
    """Return the whole session as messages; an open item has its text so far.

    Of a session that is too large for one frame these are the last messages.
    """
    groups = [_group(state, key) for key in state.order]
    left = LARGEST_SNAPSHOT
    for at in range(len(groups) - 1, -1, -1):
        left -= sum(len(msgspec.json.encode(message)) for message in groups[at])
        if left < 0:
            groups = groups[at + 1 :]
            break
    return [message for group in groups for message in group]


def _group(state: ScreenState, key: str) -> list[Event]:
    if key in state.notices:
        return [{"id": key, "role": "activity", **notice(state.notices[key])}]
    if key in state.results:
        return [result_text(key, state.results[key])]
    block = state.find(key)
    if block is None or (block.call in state.blocks and block.kind not in CALLS):
        return []  # the result of a call is in the group of the call
    if block.kind in CALLS:
        return list(_call(state, block))
    return [_message(block)]


def _message(block: Block) -> Event:
    roles = {"user_message": "user", "text": "assistant", "thinking": "reasoning"}
    if block.kind not in roles:
        return {"id": block.id, "role": "activity", **activity(block)}
    content = user_content(block) if block.kind == "user_message" else block.entry.text
    return {
        "id": block.id,
        "role": roles[block.kind],
        "content": content,
        **tag(block),
        **metadata(facts_of(block)),
    }


def _call(state: ScreenState, block: Block) -> Iterator[Event]:
    function = {"name": tool_name(block.entry.started), "arguments": arguments(block.entry)}
    call = {"id": block.id, "type": "function", "function": function, **metadata(facts_of(block))}
    yield {"id": block.id, "role": "assistant", "toolCalls": [call], **tag(block)}
    for key in block.answers:
        yield {"id": key, "role": "tool", **provider_result(state.blocks[key])}
    result = block.entry.result
    if result is not None:
        error = {"error": readable_text(decoded(result.content)) or "error"} if result.is_error else {}
        yield {"id": f"{block.id}:result", "role": "tool", **result_fields(block), **error}


def snapshot(shown: list[Event], gone_reasoning: Iterable[str] = ()) -> list[Event]:
    """Return the events after which a client has these messages.

    A snapshot without reasoning keeps the reasoning that the client has. So reasoning that is withdrawn is first made
    an activity, which the second snapshot owns and does not name.

    Args:
        shown: the messages.
        gone_reasoning: ids of reasoning that the client may have and that is withdrawn.
    """
    plain = {"type": "MESSAGES_SNAPSHOT", "messages": shown, "metadata": _OWNS_ACTIVITIES}
    gone = [
        {"id": each, "role": "activity", "activityType": "reknit.retracted", "content": {}} for each in gone_reasoning
    ]
    if not gone or any(message["role"] == "reasoning" for message in shown):
        return [plain]
    return [{**plain, "messages": [*shown, *gone]}, plain]


def clear() -> list[Event]:
    """Return the events that leave a client's list empty: a single reasoning message, and then not even that."""
    reasoning = {"id": _CLEAR_ID, "role": "reasoning", "content": ""}
    empty = {"id": _CLEAR_ID, "role": "activity", "activityType": "reknit.clear", "content": {}}
    return [*snapshot([reasoning]), *snapshot([empty])]


def disorders(shown: list[Event], posted: Iterable[tuple[str, str]]) -> bool:
    """Return True if one snapshot would leave a client with another order, or with withdrawn reasoning.

    A client keeps its messages in its order and appends the others.

    Args:
        shown: the messages.
        posted: id and role of each message that the client has. It names no activities.
    """
    wanted = [message["id"] for message in shown if message["role"] != "activity"]
    has_reasoning = any(message["role"] == "reasoning" for message in shown)
    ids = set(wanted)
    kept = [each for each, role in posted if each in ids or (role == "reasoning" and not has_reasoning)]
    have = set(kept)
    return [*kept, *(each for each in wanted if each not in have)] != wanted
