"""The provider's own sentence in an answer, under the envelopes of clouds, routers and SDKs.

Sources: error objects of the API references; lbjlaq/Antigravity-Manager#498 (Vertex), stacklok/mecatl#344 (OpenRouter),
openai/codex#8100 (LiteLLM), github/copilot-cli#3407 (Copilot), tinovyatkin/amazon-bedrock-copilot-chat#546 (Bedrock),
caozhiyuan/copilot-api#307 (an event in a stream).
"""

from __future__ import annotations

import ast
import json
import re
from itertools import islice
from typing import Any, Final

import msgspec
from msgspec import Struct

# Envelopes within each other that are opened at most.
_LEVELS: Final = 6
# Words of others before a sentence: of Bedrock and its clients (boto3), LiteLLM, Copilot, and of gateways and SDKs that
# write a name of an error, a status, or both ("HTTP 400: ", "Error code: 400 - ", "anthropic error: ").
_PREFIX: Final = re.compile(
    r"^(?:The model returned the following errors: |litellm\.\w+: (?:\w+Exception - )?|CAPIError: \d{3} "
    r"|An error occurred \(\w+\) when calling the \w+ operation(?: \([^)]{0,80}\))?: "
    r"|(?:[A-Za-z_.-]{1,40} ){0,4}(?:[A-Za-z_.]{0,80}(?:[Ee]rror|Exception|failed)|HTTP|[Ss]tatus|from provider)"
    r"(?: code)?(?::? \(?\d{3}\)?)?(?: Bad Request)?(?:: | - |, message: )"
    r"|\[?[45]\d\d\]?(?: Bad Request)?:? |(?i:anthropic|openai|google|gemini|bedrock|vertex|azure): )+"
)
# A member of a cut answer, up to the end of its text or of the answer.
_MEMBER: Final = re.compile(r'"(message|type|code|param|raw)"\s*:\s*"((?:[^"\\]|\\.)*)')
# Copilot and new-api name the request; the AWS SDK for Java names the service, too.
_SUFFIX: Final = re.compile(r"\s*\((?:request[_ ]id|Service): [^)]*\)\s*$")
# Members with the error of an answer, or with another party's answer: of Cloudflare (errors), FastAPI (detail), AWS
# Lambda (body) and routers.
_MEMBERS: Final = ("error", "errors", "detail", "body", "upstream")
# Longer texts are not read as literals of Python, and longer sentences end there: the facts are at the front.
_LONGEST: Final = 64 * 1024
# Events from the end of a stream that are read at most: an error ends it.
_MOST_EVENTS: Final = 1000
# The end of an object is where it ends, whatever follows it. Gateways copy line ends into strings.
_decoder: Final = json.JSONDecoder(strict=False)


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


def read_error(status: int, error: bytes | str | dict[str, Any] | list[Any]) -> Refusal:
    """Return the provider's statement in an answer. An answer that is no JSON is its own sentence."""
    value = _first(error)
    if isinstance(error, (bytes, str)):
        text = error.decode("utf-8", "replace") if isinstance(error, bytes) else error
        value = _event_in(text) or _opened(text) or {"message": text}
    found = Refusal(status, "")
    for _ in range(_LEVELS):
        if not isinstance(value, dict):
            break
        level = _level(value)
        found = _read(level, found)
        value = _inner(level, found)
    sentence = found.sentence[:_LONGEST].strip()
    return msgspec.structs.replace(found, sentence=_SUFFIX.sub("", _PREFIX.sub("", sentence)).strip())


def _read(level: dict[str, Any], outer: Refusal) -> Refusal:
    """Return what one level says; what it does not have stays that of the level around it."""
    kind = level.get("type")
    return Refusal(
        outer.status,
        _text(level.get("message")) or _text(level.get("Message")) or outer.sentence,
        _text(kind) if kind != "error" else outer.type,
        _text(level.get("code")) or outer.code,
        _text(level.get("param")) or outer.param,
    )


def _level(value: dict[str, Any]) -> dict[str, Any]:
    """Return the error of an answer; an event of a failed response has it in the response."""
    response = value.get("response")
    holder = response if isinstance(response, dict) else value
    for name in _MEMBERS:
        inner = _first(holder.get(name))
        if isinstance(inner, dict):
            return inner
        if isinstance(inner, str) and inner and not _text(value.get("message")):
            return {"message": inner}
    return value


def _inner(level: dict[str, Any], found: Refusal) -> object:
    """Return the answer of another party that an error quotes, or None."""
    metadata = level.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    for quoted in (raw, level.get("message"), *(_first(level.get(name)) for name in _MEMBERS)):
        if isinstance(quoted, dict):
            return quoted
    if isinstance(raw, str):
        return _opened(raw) or {"message": raw}
    return _opened(found.sentence)


def _first(value: object) -> object:
    """Return the first error of a list: Google answers a stream with a list."""
    return value[0] if isinstance(value, list) and value else value


def _opened(text: str) -> dict[str, Any] | None:
    """Return the error object in a text: JSON, a literal of Python as SDKs print it, or the beginning of JSON."""
    return _object_in(text) or _literal_in(text) or _cut_object(text)


def _literal_in(text: str) -> dict[str, Any] | None:
    begin, end = text.find("{"), text.rfind("}")
    is_bytes = begin > 1 and text[begin - 2 : begin] == "b'"
    if not 0 <= begin < end <= _LONGEST or not (is_bytes or text.startswith("{'", begin)):
        return None
    literal = text[begin : end + 1]
    try:
        # JSON within a literal of bytes (LiteLLM) has escaped apostrophes.
        value = _decoder.decode(literal.replace("\\'", "'")) if is_bytes else ast.literal_eval(literal)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
    return value if isinstance(value, dict) and _is_error(value) else None


def _event_in(text: str) -> dict[str, Any] | None:
    """Return the last error among the server-sent events of an answer, or None."""
    lines = (line for line in reversed(text.splitlines()) if line.startswith("data:"))
    events = map(_object_in, islice(lines, _MOST_EVENTS))
    return next((event for event in events if event is not None), None)


def _object_in(text: str) -> dict[str, Any] | None:
    """Return the first JSON object in a text, if it is an error."""
    for begin in dict.fromkeys((text.find("{"), text.find('{"'))):
        if begin < 0:
            continue
        try:
            value, _ = _decoder.raw_decode(text, begin)
        except (ValueError, RecursionError):
            continue
        return value if isinstance(value, dict) and _is_error(value) else None
    return None


def _is_error(value: dict[str, Any]) -> bool:
    response = value.get("response")
    return (
        "message" in value
        or any(name in value for name in _MEMBERS)
        or (isinstance(response, dict) and bool(response.get("error")))
    )


def _cut_object(text: str) -> dict[str, Any] | None:
    """Return the members of an answer that was cut off, or None if it has none: a log keeps only the beginning.

    The first of its members with a name decides; the last may be cut itself.
    """
    text = text[:_LONGEST]
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
