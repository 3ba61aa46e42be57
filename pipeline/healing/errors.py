"""The provider's own sentence in an answer, under the envelopes of clouds, routers and SDKs.

Sources: error objects of the API references; lbjlaq/Antigravity-Manager#498 (Vertex), stacklok/mecatl#344 (OpenRouter),
openai/codex#8100 (LiteLLM), github/copilot-cli#3407 (Copilot), tinovyatkin/amazon-bedrock-copilot-chat#546 (Bedrock),
caozhiyuan/copilot-api#307 (an event in a stream).
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
from msgspec import Struct

# Envelopes within each other that are opened at most.
_LEVELS: Final = 6
# A Bedrock prefix, that of some of its clients, of LiteLLM (exception and provider) and of Copilot.
_PREFIX: Final = re.compile(
    r"^(?:The model returned the following errors: |Validation error: |litellm\.\w+: (?:\w+Exception - )?"
    r"|CAPIError: \d{3} )+"
)
# A member of a cut answer, up to the end of its text or of the answer.
_MEMBER: Final = re.compile(r'"(message|type|code|param|raw)"\s*:\s*"((?:[^"\\]|\\.)*)')
_SUFFIX: Final = re.compile(r"\s*\(request_id: [^)]*\)\s*$")


class Refusal(Struct, frozen=True):
    """The provider's statement about a request.

    Attributes:
        status: of the answer.
        sentence: the innermost message, without prefixes of others.
        type: the error's type, or "".
        code: its code, or "".
        param: the parameter that it names, or "".
    """

    status: int
    sentence: str
    type: str = ""
    code: str = ""
    param: str = ""


def read_error(status: int, error: bytes | str | dict[str, Any]) -> Refusal:
    """Return what an answer says. An answer that is no JSON is its own sentence."""
    value: object = error
    if isinstance(error, (bytes, str)):
        text = error.decode("utf-8", "replace") if isinstance(error, bytes) else error
        value = _event_in(text) or _object_in(text) or _cut_object(text) or {"message": text}
    found = Refusal(status, "")
    for _ in range(_LEVELS):
        if not isinstance(value, dict):
            break
        found = _read(value, found)
        inner = _inner(value, found)
        if inner is None:
            break
        value = inner
    return msgspec.structs.replace(found, sentence=_SUFFIX.sub("", _PREFIX.sub("", found.sentence)).strip())


def _read(value: dict[str, Any], outer: Refusal) -> Refusal:
    """Return what one level says; what it does not have stays that of the level around it."""
    level = _level(value)
    kind = level.get("type")
    return Refusal(
        outer.status,
        _text(level.get("message")) or outer.sentence,
        _text(kind) if kind != "error" else outer.type,
        _text(level.get("code")) or outer.code,
        _text(level.get("param")) or outer.param,
    )


def _level(value: dict[str, Any]) -> dict[str, Any]:
    """Return the error of an answer; an event of a failed response has it in the response."""
    response = value.get("response")
    error = (response if isinstance(response, dict) else value).get("error")
    return error if isinstance(error, dict) else value


def _inner(value: dict[str, Any], found: Refusal) -> object:
    """Return the answer of another party that this one quotes, or None."""
    level = _level(value)
    metadata = level.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    if isinstance(raw, str):
        return _object_in(raw) or _cut_object(raw) or {"message": raw}
    return _object_in(found.sentence) or _cut_object(found.sentence)


def _event_in(text: str) -> dict[str, Any] | None:
    """Return the last error among the server-sent events of an answer, or None."""
    events = (_object_in(line) for line in reversed(text.splitlines()) if line.startswith("data:"))
    return next((event for event in events if event is not None), None)


def _object_in(text: str) -> dict[str, Any] | None:
    """Return the JSON object in a sentence, if it is an error; it begins with the sentence's first brace."""
    begin = text.find("{")
    end = text.rfind("}")
    while 0 <= begin < end:
        try:
            value = msgspec.json.decode(text[begin : end + 1].encode())
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            end = text.rfind("}", begin, end)
            continue
        return value if isinstance(value, dict) and _is_error(value) else None
    return None


def _is_error(value: dict[str, Any]) -> bool:
    response = value.get("response")
    return "error" in value or "message" in value or (isinstance(response, dict) and bool(response.get("error")))


def _cut_object(text: str) -> dict[str, Any] | None:
    """Return the members of an answer that was cut off, or None if it has none: a log keeps only the beginning.

    The first of its members with a name decides; the last may be cut itself.
    """
    begin = text.find("{")
    if begin < 0 or _MEMBER.search(text, begin) is None:
        return None
    found: dict[str, Any] = {}
    for name, value in _MEMBER.findall(text, begin):
        found.setdefault(name, _unescaped(value))
    if "raw" in found:  # a router's, which quotes the provider
        found["metadata"] = {"raw": found.pop("raw")}
    return found if "message" in found or "metadata" in found else None


def _unescaped(text: str) -> str:
    try:
        return _text(msgspec.json.decode(f'"{text}"'.encode()))
    except (msgspec.DecodeError, UnicodeError):
        return text


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
