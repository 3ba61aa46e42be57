"""An API that a plan scripts: it answers agent programs request by request, and aborts as the plan says.

A step of a plan has ``blocks`` of content (``text``, ``reasoning``, ``call``, ``search``; reasoning and calls may have
a ``signature``) and the fault of the answer, after N events: ``drop_after`` (the connection closes inside the body),
``eof_after`` (the body ends), ``rst_after`` (TCP reset), ``stall_after`` (nothing follows), ``failed_after``,
``error_after`` (the API reports it). ``stop`` is another stop reason, ``status`` a refusal, ``reset`` a connection that
is reset immediately, ``gap`` milliseconds between events.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from collections.abc import Callable, Iterator
from socket import SO_LINGER, SOL_SOCKET
from typing import Any, Final

USAGE: Final = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
# A step that stalls does so for longer than any run may take.
STALL: Final = 3600

Step = dict[str, Any]
# The events of a step, which is the answer to the request of this number.
Answer = Callable[[Step, int], Iterator[dict[str, Any]]]


def responses_events(step: Step, turn: int) -> Iterator[dict[str, Any]]:
    head = {"id": f"resp_{turn}", "object": "response", "created_at": 1, "model": "gpt-5.1-codex"}
    yield {"type": "response.created", "response": head | {"status": "in_progress", "output": []}}
    output = []
    for at, block in enumerate(step.get("blocks", ())):
        begun, whole, deltas = _item(block, f"{turn}_{at}")
        yield {"type": "response.output_item.added", "output_index": at, "item": begun}
        yield from ({"output_index": at, "item_id": whole["id"], **delta} for delta in deltas)
        yield {"type": "response.output_item.done", "output_index": at, "item": whole}
        output.append(whole)
    tokens = USAGE | {
        "input_tokens_details": {"cached_tokens": 2},
        "output_tokens_details": {"reasoning_tokens": 1},
    }
    ended: dict[str, Any] = head | {"status": "completed", "output": output, "usage": tokens}
    if step.get("stop") == "incomplete":
        ended |= {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
        yield {"type": "response.incomplete", "response": ended}
    else:
        yield {"type": "response.completed", "response": ended}


def _item(block: dict[str, Any], number: str) -> tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]:
    """An output item as it begins, as it ends, and its deltas."""
    match block["type"]:
        case "call":
            call = {"id": f"fc_{number}", "type": "function_call", "name": block["name"], "call_id": block["id"]}
            if "namespace" in block:
                call["namespace"] = block["namespace"]
            arguments = json.dumps(block["args"])
            deltas = [
                {"type": "response.function_call_arguments.delta", "delta": part} for part in text_pieces(arguments)
            ]
            return call | {"arguments": ""}, call | {"arguments": arguments, "status": "completed"}, deltas
        case "reasoning":
            item = {"id": f"rs_{number}", "type": "reasoning"}
            if "signature" in block:
                item["encrypted_content"] = block["signature"]
            summary = [{"type": "summary_text", "text": block["text"]}]
            kind = {"type": "response.reasoning_summary_text.delta", "summary_index": 0}
            return (
                item | {"summary": []},
                item | {"summary": summary},
                [kind | {"delta": p} for p in text_pieces(block["text"])],
            )
        case "search":
            item = {"id": f"ws_{number}", "type": "web_search_call", "status": "completed"}
            return item | {"status": "in_progress"}, item | {"action": {"type": "search", "query": block["query"]}}, []
        case _:
            item = {"id": f"msg_{number}", "type": "message", "role": "assistant"}
            content = [{"type": "output_text", "text": block["text"], "annotations": []}]
            kind = {"type": "response.output_text.delta", "content_index": 0}
            deltas = [kind | {"delta": part} for part in text_pieces(block["text"])]
            return item | {"content": []}, item | {"content": content, "status": "completed"}, deltas


def gemini_events(step: Step, turn: int) -> Iterator[dict[str, Any]]:
    counts = {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15}
    head = {"responseId": f"resp_{turn}", "modelVersion": "gemini-2.5-flash"}
    for block in step.get("blocks", ()):
        parts: list[dict[str, Any]] = [{"text": part} for part in text_pieces(block.get("text", ""))]
        if block["type"] == "reasoning":
            parts = [part | {"thought": True} for part in parts]
        if block["type"] == "call":
            named = {"id": block["id"]} if block.get("id") else {}
            signed = {"thoughtSignature": block["signature"]} if "signature" in block else {}
            parts = [{"functionCall": {"name": block["name"], "args": block["args"], **named}, **signed}]
        for part in parts:
            yield head | {"candidates": [{"index": 0, "content": {"role": "model", "parts": [part]}}]}
    reason = {
        "index": 0,
        "content": {"role": "model", "parts": [{"text": ""}]},
        "finishReason": step.get("stop", "STOP"),
    }
    yield head | {"candidates": [reason], "usageMetadata": counts}


def text_pieces(text: str) -> list[str]:
    return [text[at : at + 8] for at in range(0, len(text), 8)]


# The API.


class Api:
    """Answers request after request by the steps of a plan, over plain sockets, so that it can break any of them."""

    def __init__(self, answer: Answer, refusal: Callable[[Step], dict[str, Any]], steps: list[Step]) -> None:
        self._events_of = answer
        self._refusal = refusal
        self._steps = steps
        self.taken = 0
        self.bodies: list[Any] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while await self._answer(reader, writer):
                pass
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; False where the connection is over."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = next((line.split(":")[1] for line in head.splitlines() if line.startswith("content-length:")), "0")
        body = await reader.readexactly(int(length))
        line = head.splitlines()[0]
        if "streamgeneratecontent" not in line and not line.startswith("post /v1/responses "):
            await _reply(writer, 200 if ":counttokens" in line else 404, {"totalTokens": 1})
            return True
        step = self._steps[min(self.taken, len(self._steps) - 1)]
        self.taken += 1
        self.bodies.append(json.loads(body))
        if step.get("reset"):
            return _reset(writer)
        if "status" in step:
            await _reply(writer, step["status"], self._refusal(step))
            return True
        return await self._stream(step, writer)

    async def _stream(self, step: Step, writer: asyncio.StreamWriter) -> bool:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        ends = {name: step[f"{name}_after"] for name in _ENDS if f"{name}_after" in step}
        way, most = next(iter(ends.items()), ("", None))
        for sent, event in enumerate(self._events_of(step, self.taken - 1)):
            if sent == most:
                return await _ENDS[way](writer)
            await _send(writer, event)
            await asyncio.sleep(step.get("gap", 5) / 1000)
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


async def _send(writer: asyncio.StreamWriter, event: dict[str, Any]) -> None:
    name = f"event: {event['type']}\n" if "type" in event else ""
    data = f"{name}data: {json.dumps(event, ensure_ascii=False)}\n\n".encode()
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))
    await writer.drain()


async def _reply(writer: asyncio.StreamWriter, status: int, body: dict[str, Any]) -> None:
    data = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} Scripted\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> bool:
    writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    return False


async def _end_by_drop(_writer: asyncio.StreamWriter) -> bool:
    return False


async def _end_by_eof(writer: asyncio.StreamWriter) -> bool:
    writer.write(b"0\r\n\r\n")
    await writer.drain()
    return True


async def _end_by_reset(writer: asyncio.StreamWriter) -> bool:
    return _reset(writer)


async def _end_by_stall(_writer: asyncio.StreamWriter) -> bool:
    await asyncio.sleep(STALL)
    return False


async def _end_by_failure(writer: asyncio.StreamWriter) -> bool:
    error = {"code": "server_error", "message": "Boom"}
    await _send(writer, {"type": "response.failed", "response": {"id": "r", "status": "failed", "error": error}})
    return await _end_by_eof(writer)


async def _end_by_error(writer: asyncio.StreamWriter) -> bool:
    error = {"code": 500, "status": "INTERNAL", "message": "Boom"}
    await _send(writer, {"type": "error", "error": error, "message": "Boom", "code": "server_error"})
    return await _end_by_eof(writer)


_ENDS: Final = {
    "drop": _end_by_drop,
    "eof": _end_by_eof,
    "rst": _end_by_reset,
    "stall": _end_by_stall,
    "failed": _end_by_failure,
    "error": _end_by_error,
}
