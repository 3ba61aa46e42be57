"""An API on the loopback that judges every request before it answers, as the providers do.

A request that breaks a rule of its provider is refused with the provider's sentence. The rules are those of
``reknit.validate``; the judge also knows the signatures that it issued, and refuses all others.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Collection, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

from reknit.pipeline.targets.limits import limits_of
from reknit.pipeline.validation import validate

sys.path.insert(0, str(Path(__file__).parents[1] / "record"))
from scripted_api import gemini_events, responses_events, text_pieces

# Signatures in the providers' own forms, so that the repair takes them for theirs.
SIGNATURES: Final = {
    "anthropic": "EqQBCkYIBxgCKkDjudge" + "A" * 80,
    "openai-responses": "gAAAAABo" + "y" * 120,
    "gemini": "CiQB" + "z" * 60,
}
# The count of a Gemini turn's responses. The Gemini CLI sends each response twice when it resumes (0.61.0), in every
# session with tools. So the judge compares the calls with the calls that have a response.
_COUNTS: Final = ("GEM-03", "GEM-03b")
_SIGNED: Final = {
    "anthropic": ("signature", "{}: Invalid `signature` in `thinking` block"),
    "openai-responses": ("encrypted_content", "The encrypted content {} could not be verified."),
    "gemini": ("thoughtSignature", "Corrupted thought signature."),
}
_TEXT_ONLY: Final = [{"type": "text", "text": "Fine."}]

Step = dict[str, Any]


class Asked(NamedTuple):
    """A request of a program: its body, and the sentence that refused it, or ""."""

    body: Any
    refusal: str


def half_call(call: dict[str, Any], kind: str, target: str) -> Step:
    """Return a step whose stream breaks inside the arguments of a call.

    Gemini sends a call in one event, so its arguments can only be cut inside an event.
    """
    return {"blocks": [call], "cut": kind, "inside": kind == "reset" or target == "gemini"}


class Judge:
    """Answers by a script, step by step, what it does not refuse.

    A step has ``blocks`` of content. With ``revokes``, no signature is valid after it. With ``refuses``, a parameter
    and a sentence, requests with that parameter are refused after it. With ``cut``, its stream breaks in the middle:
    the connection is aborted (``reset``), or the body ends as if it were whole (``end``). With ``inside``, the stream
    breaks in the middle of an event.

    Attributes:
        asked: the requests of the conversation in order. Programs' other requests (titles, quotas) have no tools.
        issued: the signatures of the provider, with its own one.
    """

    def __init__(self, port: int) -> None:
        self.asked: list[Asked] = []
        self.issued = set(SIGNATURES.values())
        self._steps: list[Step] = []
        self._refused: tuple[str, str] | None = None
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"judge": self})
        self._server = _Server(("127.0.0.1", port), handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def begin(self, *steps: Step) -> None:
        """Take a new script, and forget the requests so far."""
        with self._lock:
            self.asked, self._steps, self._refused = [], list(steps), None

    def decide(self, target: str, model: str | None, data: bytes) -> tuple[str, Step]:
        """Return the refusal of a request, or "" and the step that answers it."""
        body = json.loads(data)
        refusal = refusal_of(target, model, data, body, self.issued)
        if not refusal and self._refused and self._refused[0] in body:
            refusal = self._refused[1]
        if not body.get("tools"):
            return refusal, {"blocks": _TEXT_ONLY}
        with self._lock:
            self.asked.append(Asked(body, refusal))
            if refusal or not self._steps:
                return refusal, {"blocks": _TEXT_ONLY}
            step = self._steps.pop(0)
            if step.get("revokes"):
                self.issued = set()
            self._refused = step.get("refuses", self._refused)
            return "", step


def refusal_of(target: str, model: str | None, data: bytes, body: Any, issued: Collection[str]) -> str:
    """Return the provider's sentence for a request that it refuses, or ""."""
    most = limits_of(target, model).body_bytes
    if most and len(data) > most:
        return f"Request payload size exceeds the limit: {most} bytes."
    for violation in validate(data, target, model):
        is_count = violation.rule in _COUNTS
        if _has_open_call(body) if is_count else violation.severity == "hard":
            return violation.message
    if target not in _SIGNED:
        return ""
    member, sentence = _SIGNED[target]
    foreign = next((found for found in _values(body, member) if found not in issued), None)
    return "" if foreign is None else sentence.format(_named(target, body, foreign))


def _named(target: str, body: Any, foreign: str) -> str:
    """Return how a provider names a value: by its place, or by its beginning and its end."""
    if target == "anthropic":
        for at, message in enumerate(body["messages"]):
            for place, block in enumerate(message["content"] if isinstance(message["content"], list) else ()):
                if block.get("signature") == foreign:
                    return f"messages.{at}.content.{place}"
    return f"{foreign[:4]}...{foreign[-4:]}"


def _has_open_call(body: Any) -> bool:
    """Return True if a Gemini call is not answered in the content that follows it, or a response has no call."""
    called: set[str] = set()
    for content in body["contents"]:
        parts = content["parts"]
        answered = {part["functionResponse"].get("id", "") for part in parts if "functionResponse" in part}
        if called != answered:
            return True
        called = {part["functionCall"].get("id", "") for part in parts if "functionCall" in part}
    return bool(called)


def _values(value: Any, member: str) -> Iterator[str]:
    """Yield the values of a member, at any depth."""
    if isinstance(value, dict):
        for name, each in value.items():
            if name == member and isinstance(each, str) and each not in ("", "skip_thought_signature_validator"):
                yield each
            else:
                yield from _values(each, member)
    elif isinstance(value, list):
        for each in value:
            yield from _values(each, member)


# Answers.


def anthropic_events(step: Step, turn: int) -> Iterator[dict[str, Any]]:
    usage = {"input_tokens": 10, "output_tokens": 1}
    head = {"id": f"msg_{turn:024d}", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5-20250929"}
    rest = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    yield {"type": "message_start", "message": head | rest}
    for at, block in enumerate(step["blocks"]):
        begun, deltas = _anthropic_block(block)
        yield {"type": "content_block_start", "index": at, "content_block": begun}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": at, "delta": delta}
        yield {"type": "content_block_stop", "index": at}
    reason = "tool_use" if any(block["type"] == "call" for block in step["blocks"]) else "end_turn"
    yield {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage}
    yield {"type": "message_stop"}


def _anthropic_block(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    if block["type"] == "call":
        begun = {"type": "tool_use", "id": block["id"], "name": block["name"], "input": {}}
        pieces = text_pieces(json.dumps(block["args"]))
        return begun, [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    if block["type"] == "reasoning":
        said = {"type": "thinking_delta", "thinking": block["text"]}
        signed = {"type": "signature_delta", "signature": block["signature"]}
        return {"type": "thinking", "thinking": "", "signature": ""}, [said, signed]
    return {"type": "text", "text": ""}, [{"type": "text_delta", "text": block["text"]}]


def chat_events(step: Step, turn: int) -> Iterator[dict[str, Any]]:
    """Yield the chunks of Chat Completions."""
    head = {"id": f"chatcmpl-{turn}", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4.1"}

    def chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        return head | {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}

    yield chunk({"role": "assistant", "content": ""})
    calls = 0
    for block in step["blocks"]:
        if block["type"] != "call":
            yield from (chunk({"content": piece}) for piece in text_pieces(block["text"]))
            continue
        named = {"id": block["id"], "type": "function", "function": {"name": block["name"], "arguments": ""}}
        yield chunk({"tool_calls": [{"index": calls, **named}]})
        for piece in text_pieces(json.dumps(block["args"])):
            yield chunk({"tool_calls": [{"index": calls, "function": {"arguments": piece}}]})
        calls += 1
    yield chunk({}, "tool_calls" if calls else "stop")
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    yield head | {"choices": [], "usage": usage}


_EVENTS: Final = {
    "anthropic": anthropic_events,
    "openai-chat": chat_events,
    "openai-responses": responses_events,
    "gemini": gemini_events,
}


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report errors but those of a program that closed its connection."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    judge: ClassVar[Judge]
    turns: ClassVar[list[None]] = []

    def do_POST(self) -> None:
        data = self._body()
        path = self.path.partition("?")[0]
        if path == "/v1/messages":
            self._answer("anthropic", json.loads(data).get("model"), data)
        elif path == "/v1/chat/completions":
            self._answer("openai-chat", json.loads(data).get("model"), data)
        elif path == "/v1/responses":
            self._answer("openai-responses", json.loads(data).get("model"), data)
        elif "enerateContent" in path:
            self._answer("gemini", path.rpartition("/")[2].partition(":")[0], data)
        else:
            self._reply(200, {"totalTokens": 1, "input_tokens": 1})

    def do_GET(self) -> None:
        self._reply(404, {"error": {"type": "not_found_error", "message": "not here"}})

    do_HEAD = do_GET  # noqa: N815  the name is that of the HTTP method

    def log_message(self, *_arguments: object) -> None:
        """Write no log."""

    def _body(self) -> bytes:
        if "content-length" in self.headers:
            return self.rfile.read(int(self.headers["content-length"]))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(self, target: str, model: str | None, data: bytes) -> None:
        refusal, step = self.judge.decide(target, model, data)
        if refusal:
            code = {"code": 400, "status": "INVALID_ARGUMENT"} if target == "gemini" else {"code": None}
            kind = {"type": "invalid_request_error"}
            self._reply(400, {"type": "error", "error": {**kind, **code, "message": refusal}})
            return
        self.turns.append(None)
        events = list(_EVENTS[target](step, len(self.turns)))
        if target == "anthropic" and not json.loads(data).get("stream"):
            self._reply(200, _whole(step, events[0]["message"]))
            return
        if target == "gemini" and "stream" not in self.path:
            self._reply(200, _joined(events))
            return
        frames = (
            (f"event: {event['type']}\n" if "type" in event else "") + f"data: {json.dumps(event)}\n\n"
            for event in events
        )
        written = "".join(frames).encode() + (b"data: [DONE]\n\n" if target == "openai-chat" else b"")
        if "cut" in step:
            middle = len(written) // 2
            end = middle if step.get("inside") else written.index(b"\n\n", middle) + 2
            self._cut(written, end, step["cut"])
        else:
            self._send(200, "text/event-stream", written)

    def _cut(self, data: bytes, end: int, kind: str) -> None:
        """Send a stream up to a place in it."""
        half = data[:end]
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(half if kind == "end" else data)))
        self.end_headers()
        self.wfile.write(half)
        self.close_connection = kind != "end"

    def _reply(self, status: int, body: dict[str, Any]) -> None:
        self._send(status, "application/json", json.dumps(body).encode())

    def _send(self, status: int, kind: str, data: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _whole(step: Step, head: dict[str, Any]) -> dict[str, Any]:
    """Return a step's texts and calls as one answer of Anthropic."""
    content = []
    for block in step["blocks"]:
        if block["type"] == "call":
            content.append({"type": "tool_use", "id": block["id"], "name": block["name"], "input": block["args"]})
        elif block["type"] == "text":
            content.append({"type": "text", "text": block["text"]})
    reason = "tool_use" if any(block["type"] == "tool_use" for block in content) else "end_turn"
    return head | {"content": content, "stop_reason": reason}


def _joined(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the events of a Gemini stream as one answer."""
    parts = [part for event in events for part in event["candidates"][0]["content"]["parts"]]
    last = events[-1]
    candidate = last["candidates"][0] | {"content": {"role": "model", "parts": parts}}
    return last | {"candidates": [candidate]}
