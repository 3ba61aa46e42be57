"""The JSON of a tool call, as models write it into text: what it calls, with which arguments."""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Final

import msgspec
from msgspec import Raw, Struct

from pipeline.history.readers.surrogates import find_mask

_MEMBERS: Final = msgspec.json.Decoder(dict[str, Raw])
_CODE: Final = re.compile(r"\s*+([^\s()\"'{}\[\]<>]{1,256})\s*+\((.*)\)\s*\Z", re.DOTALL)
# What a call may have beside its name and arguments without being something else: some models number their calls.
_ASIDE: Final = {"id", "type"}


class ToolCall(Struct, frozen=True):
    """A call that the text makes. ``arguments`` is JSON text without white space between its tokens.

    A call has no id: who reads the text numbers its calls, see `ToolCallParser.calls`.
    """

    name: str
    arguments: str


class Body(Struct, frozen=True):
    """What a JSON object says as a call: the call, and its members that are no part of one, as JSON text."""

    call: ToolCall
    aside: str = ""


def read_tagged(text: str) -> Body | None:
    """The call inside of a ``<tool_call>`` tag: an object with a name; None for anything else.

    Arguments that are a text which holds JSON are that JSON; those that are missing, null or an empty text are none.
    """
    members = _members(text)
    name = _text(members.get("name"))
    if not name:
        return None
    aside = {key: value for key, value in members.items() if key not in {"name", "arguments"}}
    return Body(
        ToolCall(name, _arguments(members.get("arguments"))),
        msgspec.json.encode(aside).decode() if aside else "",
    )


def read_bare(text: str, tools: Container[str] | None) -> Body | None:
    """The call that an object without a tag is: name and arguments and nothing foreign, the name one of the tools'.

    Or ``{"tool_code": "name(arguments)"}``. None for anything else: JSON in a text is mostly no call.
    """
    members = _members(text)
    body = _code(members) if "tool_code" in members else None
    if body is None and "arguments" in members and members.keys() <= {"name", "arguments"} | _ASIDE:
        body = read_tagged(text)
        if body and body.call.arguments[0] != "{":
            return None
    return body if body and (tools is None or body.call.name in tools) else None


def _code(members: dict[str, Raw]) -> Body | None:
    found = _CODE.match(_text(members["tool_code"]))
    if not found or len(members) != 1:
        return None
    given = found[2].strip()
    if _is_json(given, "{"):
        arguments = _compact(given)
    elif not given:
        arguments = "{}"
    else:
        # One argument without a name, as the source has it: a text, or whatever stands there.
        value = Raw(_encoded(given)) if _is_json(given, '"') else given
        arguments = _compact(msgspec.json.encode({"input": value}))
    return Body(ToolCall(found[1], arguments))


def _arguments(raw: Raw | None) -> str:
    if raw is None or bytes(raw) == b"null":
        return "{}"
    text = _text(raw)
    if bytes(raw)[:1] != b'"':
        return _compact(bytes(raw))
    if not text.strip():
        return "{}"
    return text if _is_json(text, "{[") else _compact(bytes(raw))


def _members(text: str) -> dict[str, Raw]:
    try:
        return _MEMBERS.decode(_encoded(text))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {}


def _text(raw: Raw | None) -> str:
    """The text that a JSON value is; empty where it is no text, or one that Unicode cannot hold."""
    try:
        return msgspec.json.decode(raw, type=str) if raw is not None else ""
    except (msgspec.DecodeError, UnicodeError):
        return ""


def _is_json(text: str, beginnings: str) -> bool:
    if text[:1] not in set(beginnings):
        return False
    try:
        msgspec.json.decode(_encoded(text), type=Raw)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
    return True


def _compact(data: str | bytes) -> str:
    return msgspec.json.format(_encoded(data) if isinstance(data, str) else data, indent=-1).decode()


def _encoded(text: str) -> bytes:
    """JSON text as UTF-8. Half a surrogate pair, raw or escaped, becomes U+FFFD: no parser would take it."""
    data = text.encode("utf-8", "backslashreplace")
    mask = find_mask(data) if b"\\u" in data else None
    return mask.reveal(mask.hide(data)) if mask else data
