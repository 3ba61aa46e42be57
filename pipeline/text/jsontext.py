"""JSON inside a text: its layout for people and command lines, the end of a value, and the call in it.

The layout has ``", "`` and ``": "`` between tokens. Non-ASCII stays unchanged, or is escaped for readers that damage
it. Raw JSON is rewritten token by token, so a number keeps its digits, and an object its order and its duplicates.

`JsonSpan` is not a parser. It detects early, piece by piece, in one pass and with two numbers of state, that something
is not JSON: it counts brackets, accepts outside of strings only characters of JSON, and inside of them no line break.
The rest is parsed: `read_tagged` and `read_bare` read calls as models write them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Final, Literal

import msgspec
from msgspec import Raw, Struct

from reknit.pipeline.history.readers.rawjson import find_mask

# Possessive, for a string may be a file of 50 MB.
_TOKEN: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[,:]|[ \t\r\n]++')
_FOREIGN: Final = re.compile(r"[^\x00-\x7f]++")
_SPACED: Final = {",": ", ", ":": ": "}


def quoted(text: str) -> str:
    """A JSON string; only quotes, backslashes and control characters are escaped."""
    return encode_basestring(text)


def ascii_quoted(text: str) -> str:
    """A JSON string in which everything but printable ASCII is escaped."""
    return encode_basestring_ascii(text)


def in_ascii(json_text: str) -> str:
    """Return the same JSON with every non-ASCII character escaped; they occur inside of strings only."""
    if json_text.isascii():
        return json_text
    return _FOREIGN.sub(lambda found: encode_basestring_ascii(found[0])[1:-1], json_text)


def spaced(raw: Raw | bytes) -> str:
    """Return JSON text with one space after each comma and colon, none elsewhere, and plain strings."""
    return _TOKEN.sub(_token, bytes(raw).decode())


def _token(match: re.Match[str]) -> str:
    token = match[0]
    if token[0] == '"':
        return encode_basestring(json.loads(token)) if "\\" in token else token
    return _SPACED.get(token, "")


MAX_DEPTH: Final = 500
"""How deep a value may nest; as for messages."""

# Possessive quantifiers throughout: no backtracking, so each character is read once.
_FLAT: Final = re.compile(r'(?:[\s,:0-9+\-.eEtrufalsn]++|"(?:[^"\\\x00-\x1f]++|\\[^\x00-\x1f])*+")*+')
_INSIDE: Final = re.compile(r'(?:[^"\\\x00-\x1f]++|\\[^\x00-\x1f])*+')


class JsonSpan:
    """One value that begins with a bracket. After ``closed`` or ``broken`` it starts again."""

    __slots__ = ("depth", "quote")

    def __init__(self, depth: int = 0, quote: str = "") -> None:
        self.depth = depth
        # Where the text ended: "" outside of strings, a quote in one, a backslash after an escape in one.
        self.quote = quote

    def scan(self, text: str, at: int) -> tuple[int, Literal["open", "closed", "broken"]]:
        """Continue at this position; return where the value ends, and how.

        ``closed``: the position after its last bracket. ``broken``: the position of a character that JSON cannot have
        there. ``open``: the end of the text.
        """
        end = len(text)
        while at < end:
            if self.quote:
                at = self._string(text, at)
                if at < end and self.quote:
                    return self._reset(at), "broken"
                continue
            found = _FLAT.match(text, at)
            at = found.end() if found else at
            if at == end:
                break
            character = text[at]
            if character == '"':
                self.quote = '"'
            elif character in "{[":
                self.depth += 1
            elif character in "}]":
                self.depth -= 1
            if (character not in '"{[}]') or self.depth > MAX_DEPTH:
                return self._reset(at), "broken"
            at += 1
            if not self.depth:
                return self._reset(at), "closed"
        return end, "open"

    def _string(self, text: str, at: int) -> int:
        """Pass over the rest of a string, its quote included; ``quote`` stays set where it does not end."""
        if self.quote == "\\":
            if text[at] < " ":
                return at
            self.quote = '"'
            at += 1
        found = _INSIDE.match(text, at)
        at = found.end() if found else at
        if at < len(text) and text[at] == '"':
            self.quote = ""
            return at + 1
        if at < len(text) and text[at] == "\\":  # at the end, or before what cannot be escaped
            self.quote = "\\"
            return at + 1
        return at

    def _reset(self, at: int) -> int:
        self.depth, self.quote = 0, ""
        return at


# The call that a value is: whom it calls, with which arguments.

_MEMBERS: Final = msgspec.json.Decoder(dict[str, Raw])
_CODE: Final = re.compile(r"\s*+([^\s()\"'{}\[\]<>]{1,256})\s*+\((.*)\)\s*\Z", re.DOTALL)
# Members that a call may have besides its name and arguments: some models number their calls.
_ASIDE: Final = {"id", "type"}


class ToolCall(Struct, frozen=True):
    """A call in the text. ``arguments`` is JSON text without white space between its tokens.

    A call has no id: the reader of the text numbers its calls, see `ToolCallParser.calls`.
    """

    name: str
    arguments: str


class Body(Struct, frozen=True):
    """A JSON object read as a call: the call, and its other members as JSON text."""

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
        # One argument without a name, unchanged: a text, or any other value.
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
