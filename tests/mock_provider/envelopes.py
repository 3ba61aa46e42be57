"""The envelope of a refusal: that of its shape, and those of clouds and routers around it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from mock_provider.parties import Party
from mock_provider.sentences import Sentence

Error = dict[str, Any]
_GOOGLE: Final = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND"}
_BEDROCK: Final = "The model returned the following errors: "


def enveloped(party: Party, sentence: Sentence, request_id: str) -> Error:
    """Return a refusal as its party writes it."""
    if party.platform == "vertex" and party.shape == "messages":
        return vertex_string(_anthropic(sentence, f"req_vrtx_{request_id}"), sentence)
    if party.shape == "messages":
        return _anthropic(sentence, f"req_{request_id}")
    if party.shape == "converse":
        return {"message": _BEDROCK + sentence.words}
    if party.shape == "gemini":
        status = _GOOGLE.get(sentence.status, "INVALID_ARGUMENT")
        return {"error": {"code": sentence.status, "message": sentence.words, "status": status}}
    if party.platform == "vllm":
        error = {"message": sentence.words, "type": sentence.type, "param": sentence.param, "code": sentence.status}
        return {"object": "error", **error}
    if sentence.code == "":
        return {"error": {"message": sentence.words, "code": ""}}
    error = {"message": sentence.words, "type": sentence.type, "param": sentence.param, "code": sentence.code}
    return {"error": error}


def _anthropic(sentence: Sentence, request_id: str) -> Error:
    return {
        "type": "error",
        "error": {"type": sentence.type, "message": sentence.words},
        "request_id": request_id,
    }


def vertex_string(error: Error, sentence: Sentence) -> Error:
    """Google's envelope with another party's error as the JSON text of its message."""
    return {"error": {"code": sentence.status, "message": json.dumps(error), "status": "INVALID_ARGUMENT"}}


def _bedrock_prefix(_error: Error, sentence: Sentence) -> Error:
    return {"__type": "ValidationException", "message": "Validation error: " + _BEDROCK + sentence.words}


def _bedrock_json(error: Error, _sentence: Sentence) -> Error:
    return {"message": _BEDROCK + json.dumps(error)}


def _openrouter(error: Error, sentence: Sentence) -> Error:
    metadata = {"raw": json.dumps(error), "provider_name": "Upstream"}
    return {"error": {"message": "Provider returned error", "code": sentence.status, "metadata": metadata}}


def _litellm(error: Error, sentence: Sentence) -> Error:
    words = f"litellm.BadRequestError: AnthropicException - {json.dumps(error)}. Received Model Group=m\nFallbacks=None"
    return {"error": {"message": words, "type": None, "param": None, "code": str(sentence.status)}}


def _copilot(_error: Error, sentence: Sentence) -> Error:
    words = f"CAPIError: {sentence.status} {sentence.words}  (request_id: 1F2E:3D4C)"
    return {"error": {"message": words, "code": "invalid_request_body"}}


def _websocket(error: Error, sentence: Sentence) -> Error:
    return {"type": "error", "error": error.get("error", error), "status": sentence.status}


def _stream(error: Error, _sentence: Sentence) -> Error:
    """The data of an error event in a stream that began with HTTP 200; Responses wraps it in the response."""
    if "request_id" in error:
        return error
    return {"type": "response.failed", "response": {"status": "failed", "error": error.get("error", error)}}


WRAPPERS: Final[dict[str, Callable[[Error, Sentence], Error]]] = {
    "vertex-string": vertex_string,
    "bedrock-prefix": _bedrock_prefix,
    "bedrock-json": _bedrock_json,
    "openrouter": _openrouter,
    "litellm": _litellm,
    "copilot": _copilot,
    "websocket": _websocket,
    "stream": _stream,
}
