"""A provider on the loopback address that answers like the APIs of Anthropic, OpenAI and Gemini.

A request that breaks a hard rule is refused in the provider's words and envelope.
"""

import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import provider_answers
from mock_provider.envelopes import enveloped
from mock_provider.parties import Party
from mock_provider.sentences import Sentence

import reknit
from reknit.pipeline.serve.endpoints import endpoint_of

SAID = "Hello."
MESSAGE = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
    "stop_sequence": None, "content": [{"type": "text", "text": SAID}],
    "usage": {"input_tokens": 1, "output_tokens": 1},
}  # fmt: skip
COMPLETION = {
    "id": "c", "object": "chat.completion", "created": 1, "model": "m",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": SAID}}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}  # fmt: skip
RESPONSE = {
    "id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": "completed", "tools": [],
    "tool_choice": "auto", "parallel_tool_calls": True,
    "output": [{"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
                "content": [{"type": "output_text", "text": SAID, "annotations": []}]}],
}  # fmt: skip
CONTENT = {
    "candidates": [{"content": {"role": "model", "parts": [{"text": SAID}]}, "finishReason": "STOP"}],
    "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2},
}  # fmt: skip
ANSWERS = {"anthropic": MESSAGE, "openai-chat": COMPLETION, "openai-responses": RESPONSE, "gemini": CONTENT}
SHAPES = {"anthropic": "messages", "openai-chat": "chat", "openai-responses": "responses", "gemini": "gemini"}
PLATFORMS = {"anthropic": "direct", "gemini": "aistudio"}


class Handler(BaseHTTPRequestHandler):
    """Answers requests; one to an API that this provider does not have is recorded and gets an empty object."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.bodies.append(body)
        endpoint = endpoint_of(self.path.partition("?")[0])
        if endpoint is None or endpoint.target not in ANSWERS:
            self.send(200, b"{}")
        elif self.server.refuses and (refusal := refused(body, endpoint)) is not None:
            self.send(400, refusal)
        elif endpoint.target == "anthropic" and json.loads(body).get("stream"):
            self.send(200, b"".join(provider_answers.anthropic_text()), "text/event-stream")
        else:
            self.send(200, json.dumps(ANSWERS[endpoint.target]).encode())

    def send(self, status, data, content_type="application/json"):
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


def refused(body, endpoint):
    """Return the refusal of a request that breaks a hard rule, None for any other request."""
    target, model = endpoint.target, endpoint.model or json.loads(body).get("model", "m")
    hard = [found for found in reknit.validate(body, target, model) if found.severity == "hard"]
    if not hard:
        return None
    party = Party(
        name="loopback",
        shape=SHAPES[target],
        target=target,
        platform=PLATFORMS.get(target, "openai"),
        model=model,
    )
    return json.dumps(enveloped(party, Sentence(words=hard[0].message), "000001")).encode()


@contextmanager
def provider(*, refuses=True):
    """Yield the URL of a provider, and the list of the bodies that it received."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.bodies, server.refuses = [], refuses
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", server.bodies
        finally:
            server.shutdown()
            thread.join()
