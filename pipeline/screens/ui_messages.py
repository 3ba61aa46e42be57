"""The messages of a session as the AI SDK stores them (``UIMessage``); a client loads them before it resumes.

The stream of a session carries one answer. Earlier answers and the user's messages are loaded as a list.
"""

from __future__ import annotations

from collections.abc import Iterable

from reknit.pipeline.screens.content import Event, blocks_of, decoded, is_image, is_plain, plain_text, readable_block
from reknit.pipeline.screens.state import Block


def assistant_message(key: str, chunks: Iterable[Event], finish: Event | None) -> Event:
    """Return an answer as a message.

    Args:
        key: the id of the message.
        chunks: the chunks that show its parts, each part once.
        finish: its last chunk, if it is over.
    """
    parts: dict[tuple[str, str], Event] = {}
    for chunk in chunks:
        _apply(parts, chunk)
    message: Event = {"id": key, "role": "assistant", "parts": list(parts.values())}
    if finish is not None and "messageMetadata" in finish:
        message["metadata"] = finish["messageMetadata"]
    return message


def _apply(parts: dict[tuple[str, str], Event], chunk: Event) -> None:
    kind, _, act = str(chunk["type"]).rpartition("-")
    if kind in {"text", "reasoning"}:
        # The client gives a part of reasoning the id of the chunks, and a text none.
        own = {"id": chunk["id"]} if kind == "reasoning" else {}
        part = parts.setdefault((kind, chunk["id"]), {"type": kind, **own, "text": "", "state": "streaming"})
        part["text"] += chunk.get("delta", "")
        part["state"] = "done" if act == "end" else "streaming"
        if "providerMetadata" in chunk:
            part["providerMetadata"] = chunk["providerMetadata"]
    elif "toolCallId" in chunk:
        _apply_call(parts, chunk)
    else:
        parts[chunk["type"], str(chunk.get("id", chunk.get("sourceId")))] = chunk


def _apply_call(parts: dict[tuple[str, str], Event], chunk: Event) -> None:
    part = parts.setdefault(("call", chunk["toolCallId"]), {"type": "dynamic-tool", "toolCallId": chunk["toolCallId"]})
    match chunk["type"]:
        case "tool-input-start":
            part |= {"toolName": chunk["toolName"], "state": "input-streaming", "input": ""}
            part |= {"providerExecuted": True, "callProviderMetadata": chunk["providerMetadata"]}
        case "tool-input-delta":
            part["input"] += chunk["inputTextDelta"]
        case "tool-input-available":
            part |= {"state": "input-available", "input": chunk["input"]}
        case "tool-input-error":
            part |= {"state": "output-error", "input": chunk["input"], "errorText": chunk["errorText"]}
            part["resultProviderMetadata"] = chunk["providerMetadata"]
        case "tool-output-available":
            part.pop("errorText", None)
            part |= {"state": "output-available", "output": chunk["output"]}
        case "tool-output-error":
            part.pop("output", None)
            part |= {"state": "output-error", "errorText": chunk["errorText"]}


def user_message(block: Block) -> Event:
    """Return a user's message."""
    content = decoded(block.entry.started.content)
    blocks = blocks_of(block.entry.text if content is None else content)
    if is_plain(content) and content is not None:
        blocks = [{"type": "text", "text": plain_text(content)}]
    return {"id": block.id, "role": "user", "parts": [_user_part(each) for each in blocks]}


def _user_part(block: object) -> Event:
    source = block.get("source") if is_image(block) and isinstance(block, dict) else None
    if isinstance(source, dict) and isinstance(source.get("data"), str) and isinstance(source.get("media_type"), str):
        kind = source["media_type"]
        return {"type": "file", "mediaType": kind, "url": f"data:{kind};base64,{source['data']}"}
    return {"type": "text", "text": readable_block(block)}
