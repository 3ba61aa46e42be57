"""Errors of the gateway in the form of the provider: as the body of a response, and as the last event of a stream.

Sources: the error objects of the API references, and the behaviour of the SDKs after each event. An SDK reports the
event below as an error; after a clean end without it, most SDKs return half an answer without an error. Bedrock: the
exceptions of ``ConverseStream`` in botocore's service model, in frames of ``application/vnd.amazon.eventstream``.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final
from zlib import crc32

import msgspec

from reknit.pipeline.registry import shape_of

# Anthropic's error types by status: https://docs.anthropic.com/en/api/errors
_ANTHROPIC: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    503: "overloaded_error",
}
# google.rpc.Code by status.
_GOOGLE: Final = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    413: "INVALID_ARGUMENT",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_BEDROCK: Final = {
    401: "AccessDeniedException",
    403: "AccessDeniedException",
    404: "ResourceNotFoundException",
    503: "ServiceUnavailableException",
    504: "ModelTimeoutException",
}
_CALLER_ERRORS: Final = range(400, 500)
_HEADER_STRING: Final = 7  # the type of a header's value in an event stream frame
_SEQUENCE: Final = re.compile(rb'"sequence_number"\s*:\s*(\d+)')


class GatewayError(Exception):
    """The gateway answers by itself; ``message`` has no content of the request."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def error_body(target: str, status: int, message: str) -> tuple[bytes, dict[str, str]]:
    """Return the JSON body of an error and its additional headers.

    Args:
        target: of the request; "" for an unknown one, which gets OpenAI's form.
        status: of the response.
        message: for a person, without content of the request.
    """
    is_callers = status in _CALLER_ERRORS
    if target == "anthropic":
        kind = _ANTHROPIC.get(status, "invalid_request_error" if is_callers else "api_error")
        return _json({"type": "error", "error": {"type": kind, "message": message}}), {}
    if target == "gemini":
        kind = _GOOGLE.get(status, "INVALID_ARGUMENT" if is_callers else "UNAVAILABLE")
        return _json({"error": {"code": status, "message": message, "status": kind}}), {}
    if target == "bedrock-converse":
        kind = _BEDROCK.get(status, "ValidationException" if is_callers else "ModelErrorException")
        return _json({"message": message}), {"x-amzn-errortype": kind}
    kind = "invalid_request_error" if is_callers else "server_error"
    return _json({"error": {"message": message, "type": kind, "param": None, "code": None}}), {}


def error_event(
    target: str, message: str, first: bytes = b"", last: bytes = b"", *, is_in_frames: bool = False
) -> bytes:
    """Return the event that reports a stream that broke; b"" for a target whose streams have none.

    Args:
        target: of the request.
        message: for a person.
        first: the beginning of the stream, with its first event.
        last: the last bytes of the stream.
        is_in_frames: the stream is one of Bedrock's, whatever the frames hold.
    """
    write = _converse if is_in_frames else _EVENTS.get(shape_of(target))
    return b"" if write is None else write(message, first, last)


def _anthropic(message: str, _first: bytes, _last: bytes) -> bytes:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": message}}
    return b"event: error\ndata: " + _json(error) + b"\n\n"


def _chat(message: str, _first: bytes, _last: bytes) -> bytes:
    error = {"message": message, "type": "server_error", "param": None, "code": "upstream_closed"}
    return b"data: " + _json({"error": error}) + b"\n\n"


def _gemini(message: str, _first: bytes, _last: bytes) -> bytes:
    return b"data: " + _json({"error": {"code": 503, "message": message, "status": "UNAVAILABLE"}}) + b"\n\n"


def _responses(message: str, first: bytes, last: bytes) -> bytes:
    """Return ``response.failed`` with the response that the first event announced, and the next number."""
    numbers = _SEQUENCE.findall(last) or _SEQUENCE.findall(first)
    failed = {
        "type": "response.failed",
        "sequence_number": int(numbers[-1]) + 1 if numbers else 0,
        "response": {
            **_announced(first),
            "status": "failed",
            "error": {"code": "server_error", "message": message},
        },
    }
    return b"event: response.failed\ndata: " + _json(failed) + b"\n\n"


def _announced(first: bytes) -> dict[str, Any]:
    """Return the response object of the first event that has one; {} if none can be read."""
    for line in first.splitlines():
        if line.startswith(b"data:"):
            try:
                event = msgspec.json.decode(line[5:], type=dict[str, Any])
            except (msgspec.DecodeError, UnicodeDecodeError):
                return {}
            response = event.get("response")
            return response if isinstance(response, dict) else {}
    return {}


def _converse(message: str, _first: bytes, _last: bytes) -> bytes:
    headers = b"".join(
        bytes((len(name),)) + name.encode() + bytes((_HEADER_STRING,)) + struct.pack(">H", len(value)) + value.encode()
        for name, value in (
            (":exception-type", "modelStreamErrorException"),
            (":content-type", "application/json"),
            (":message-type", "exception"),
        )
    )
    payload = _json({"message": message})
    # Prelude (total length, length of headers), its CRC, headers, payload, CRC of all.
    prelude = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    frame = prelude + struct.pack(">I", crc32(prelude)) + headers + payload
    return frame + struct.pack(">I", crc32(frame))


_EVENTS: Final[Mapping[str, Callable[[str, bytes, bytes], bytes]]] = {
    "anthropic": _anthropic,
    "openai-chat": _chat,
    "openai-responses": _responses,
    "gemini": _gemini,
    "bedrock-converse": _converse,
}


def _json(value: object) -> bytes:
    return msgspec.json.encode(value)
