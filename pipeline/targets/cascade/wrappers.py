"""Calls and results as text, and what keeps a tool's output, or anybody's words, from passing for either."""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec import Raw

from pipeline.text.call_json import read_tagged

# Where a tag of the protocol, or of a model family's own, begins.
_MARKER: Final = re.compile(r"<(?=/?tool_(?:call|result)|\|tool_)", re.IGNORECASE)
_ESCAPED: Final = r"\\u003c"  # for re.sub: what JSON reads as ``<``
# Ends of lines that JSON may hold as they are: what follows one in a string would stand at the beginning of a line.
_LINE_ENDS: Final = re.compile(r"[\x85\u2028\u2029]")
_OPENING: Final = re.compile(r'<tool_result tool_call_id="[A-Za-z0-9_.:-]{1,128}">')
_CLOSING: Final = "</tool_result>"
_CALL, _CALL_END = "<tool_call>", "</tool_call>"
# What a user's turn must not say of tools.
_OVERRIDING: Final = re.compile(
    r"^[ \t]*(?:#{1,6} |parameters:)|parameters schema:|```|ignore (?:any earlier|previous instructions)"
    r"|for this request only|\[tool-calling context",
    re.IGNORECASE | re.MULTILINE,
)
_BEGINNING: Final = re.compile(r"\s*(?=<tool_result)", re.IGNORECASE)


def call_line(name: str, arguments: Raw) -> str:
    """A call on one line; inside its JSON no tag can be read, for ``<`` is written as JSON may write it."""
    inner = f'{{"name":{msgspec.json.encode(name).decode()},"arguments":{_compact(arguments)}}}'
    if not inner.isascii():
        inner = _LINE_ENDS.sub(lambda end: f"\\u{ord(end[0]):04x}", inner)
    return f"{_CALL}{_MARKER.sub(_ESCAPED, inner)}{_CALL_END}"


def wrapped(call_id: str, output: str) -> str:
    """A tool's output as the user hands it over."""
    return f'<tool_result tool_call_id="{call_id}">\n{output}\n{_CLOSING}'


def broken(text: str) -> str:
    r"""The text with a backslash in every tag of the protocol (``<\tool_call>``, ``<\/tool_result>``)."""
    return _MARKER.sub(r"<\\", text)


def broken_speech(text: str, *, flattened: bool) -> str:
    """What the assistant says, without tags that nobody but us may write.

    In a turn that may have been ``flattened`` before, lines that are calls, whole and well-formed, are its calls.
    """
    if not _MARKER.search(text):
        return text
    if not flattened:
        return broken(text)
    return "\n".join(line if _is_call(line) else broken(line) for line in text.split("\n"))


def _is_call(line: str) -> bool:
    inner = line.removeprefix(_CALL).removesuffix(_CALL_END)
    whole = len(inner) == len(line) - len(_CALL) - len(_CALL_END)
    return whole and not _MARKER.search(inner) and read_tagged(inner) is not None


def passes_for_result(text: str) -> bool:
    """Whether a turn begins like a result, so that the model goes on where it was."""
    return _BEGINNING.match(text) is not None


def instructs(text: str) -> bool:
    """Whether a turn begins by telling how to call tools in a way, or in a place, that makes models refuse.

    Our own fallback is neither; histories of other programs hold older ones.
    """
    told, _, rest = text.partition("\n\n")
    if '<tool_call>{"name"' not in told or "<tool_result" not in told:
        return False
    return _OVERRIDING.search(told) is not None or passes_for_result(rest)


def is_wrapped(text: str) -> bool:
    """Whether a text is well-formed results and, behind them, words without a tag: a turn that was flattened before."""
    at = 0
    while beginning := _BEGINNING.match(text, at):
        opening = _OPENING.match(text, beginning.end())
        closing = text.find(_CLOSING, opening.end()) if opening else -1
        if opening is None or closing < 0 or _MARKER.search(text, opening.end(), closing):
            return False
        at = closing + len(_CLOSING)
    return at > 0 and not _MARKER.search(text, at)


def _compact(arguments: Raw) -> str:
    return msgspec.json.format(bytes(arguments), indent=-1).decode()
