"""The chunks of the AI SDK's UI message stream v1 that show one item."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from reknit.pipeline.screens.content import (
    CALLS,
    Event,
    arguments,
    blocks_of,
    decoded,
    fields_of,
    input_of,
    is_plain,
    is_web_address,
    plain_text,
    readable_text,
    tool_name,
    user_text,
)
from reknit.pipeline.screens.state import Block, Notice
from reknit.topics.items import AgentError, TurnResult

# A provider's stop reason as a finish reason. The clients fail with a value that they do not know.
FINISH_REASONS: Final = {
    "end_turn": "stop",
    "stop": "stop",
    "completed": "stop",
    "STOP": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "MAX_TOKENS": "length",
    "length": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool-calls",
    "tool_calls": "tool-calls",
    "refusal": "content-filter",
    "content_filter": "content-filter",
    "content_filtered": "content-filter",
    "guardrail_intervened": "content-filter",
    "SAFETY": "content-filter",
    "RECITATION": "content-filter",
    "BLOCKLIST": "content-filter",
    "PROHIBITED_CONTENT": "content-filter",
    "SPII": "content-filter",
}
# Without them the browser runs the call a second time.
_RUN_ELSEWHERE: Final = {"dynamic": True, "providerExecuted": True}


def facts(block: Block) -> Event:
    """Return what Reknit knows of an item, as the metadata of its part. Parts have no id of their own."""
    entry = block.entry
    found = {
        "itemId": block.id,
        "parent": entry.parent,
        "origin": "" if entry.origin == "stream" else entry.origin,
        "repeats": entry.repeats,
        "incomplete": entry.incomplete,
        "reason": entry.reason if entry.incomplete else "",
        "doubtful": entry.doubtful,
        "outside": entry.outside,
        "synthetic": entry.started.is_synthetic,
    }
    return {"providerMetadata": {"reknit": {name: value for name, value in found.items() if value}}}


def opening(block: Block) -> list[Event]:
    """Return the chunk that opens a streamed item."""
    if block.kind in CALLS:
        name = tool_name(block.entry.started)
        head = {"type": "tool-input-start", "toolCallId": block.id, "toolName": name}
        return [{**head, **_RUN_ELSEWHERE, **facts(block)}]
    kind = "reasoning-start" if block.kind == "thinking" else "text-start"
    return [{"type": kind, "id": block.id, **facts(block)}]


def content(block: Block, text: str) -> list[Event]:
    """Return the chunk that appends text to a streamed item."""
    if not text:
        return []
    if block.kind in CALLS:
        return [{"type": "tool-input-delta", "toolCallId": block.id, "inputTextDelta": text}]
    return [{"type": "reasoning-delta" if block.kind == "thinking" else "text-delta", "id": block.id, "delta": text}]


def closing(block: Block, unended: str = "") -> Iterator[Event]:
    """Yield the chunks that close a streamed item.

    Args:
        block: the item.
        unended: the reason why an item is closed whose end has not come.
    """
    if block.kind in CALLS:
        yield _call(block, unended)
        return
    yield {
        "type": "reasoning-end" if block.kind == "thinking" else "text-end",
        "id": block.id,
        **_ended(block, unended),
    }
    for number, citation in enumerate(block.citations):
        if isinstance(citation, dict) and is_web_address(citation.get("url")):
            title = {"title": citation["title"]} if isinstance(citation.get("title"), str) else {}
            source = {"type": "source-url", "sourceId": f"{block.id}:{number}", "url": citation["url"]}
            yield {**source, **title, **facts(block)}


def _ended(block: Block, unended: str) -> Event:
    metadata = facts(block)
    if unended and not block.entry.done:
        metadata["providerMetadata"]["reknit"] |= {"incomplete": True, "reason": unended}
    return metadata


def _call(block: Block, unended: str) -> Event:
    entry = block.entry
    head = {"toolCallId": block.id, "toolName": tool_name(entry.started), **_RUN_ELSEWHERE}
    if entry.incomplete or not entry.done:
        reason = (entry.reason if entry.incomplete else unended) or "incomplete"
        failed = {"type": "tool-input-error", **head, "input": arguments(entry), "errorText": reason}
        return {**failed, **_ended(block, unended)}
    return {"type": "tool-input-available", **head, "input": input_of(entry), **facts(block)}


def result(block: Block) -> list[Event]:
    """Return the chunk of a call's result, if it has one."""
    found = block.entry.result
    if found is None or block.kind not in CALLS:
        return []
    value = decoded(found.content)
    if found.is_error:
        text = readable_text(value) or "error"
        failed = {"type": "tool-output-error", "toolCallId": block.id, "errorText": text}
        # A failed result is text only in this protocol.
        return [{**failed, **_RUN_ELSEWHERE}, *([] if is_plain(value) else [late_result(block)])]
    output = plain_text(value) if is_plain(value) else found.content
    return [{"type": "tool-output-available", "toolCallId": block.id, "output": output, **_RUN_ELSEWHERE}]


def late_result(block: Block) -> Event:
    """Return a result as data: of a call in an earlier message, which no chunk can change, or with images."""
    found = block.entry.result
    value = None if found is None else decoded(found.content)
    output = plain_text(value) if is_plain(value) else blocks_of(value)
    data = {"toolCallId": block.id, "output": output, "isError": found is not None and found.is_error}
    return {"type": "data-reknit-result", "id": f"{block.id}:result", "data": data}


def provider_result(block: Block) -> Event:
    """Return the result of a call that the provider ran."""
    return {"type": "tool-output-available", "toolCallId": block.call, "output": block.raw, **_RUN_ELSEWHERE}


def data_part(block: Block) -> Event:
    """Return an item that the protocol has no form for."""
    if block.kind == "user_message":
        value = decoded(block.entry.started.content)
        text = block.entry.text if value is None else user_text(value)
        # The program's own prompts, and those to its sub-agents, are not the user's words.
        own = {"synthetic": block.entry.started.is_synthetic, "parent": block.entry.parent}
        data = {"text": text, **{name: given for name, given in own.items() if given}}
        return {"type": "data-reknit-user", "id": block.id, "data": data}
    return {"type": "data-reknit-block", "id": block.id, "data": {"type": block.kind, "raw": block.raw}}


def changed(block: Block, *, is_retracted: bool = False) -> Event:
    """Return the change of an item that the client cannot show in its place."""
    entry = block.entry
    data: Event = {"text": entry.text, "incomplete": entry.incomplete, "doubtful": entry.doubtful}
    data = {"retracted": True} if is_retracted else data
    return {"type": "data-reknit-changed", "id": block.id, "data": data}


def notice(key: str, item: Notice) -> Event:
    """Return a notice."""
    if isinstance(item, AgentError):
        data: Event = {"message": item.message, "willRetry": item.will_retry}
    else:
        data = fields_of(item)
    return {"type": "data-reknit-notice", "id": key, "data": data}


def result_text(key: str, item: TurnResult) -> list[Event]:
    """Return the text of a result that no item has."""
    text = {"type": "text-delta", "id": key, "delta": item.result}
    return [{"type": "text-start", "id": key}, text, {"type": "text-end", "id": key}]
