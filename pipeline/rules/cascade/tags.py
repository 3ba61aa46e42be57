"""The protocol's tags in a user's turn: where they may stand, and what a line of instructions may hold."""

from __future__ import annotations

import re

from pipeline.rules.base import Violation
from pipeline.rules.cascade import catalogue as rules

_TAG = re.compile(r"</?tool_(?:call|result)|<\|tool_", re.IGNORECASE)
_BLOCK = re.compile(r'\s*<tool_result tool_call_id="[A-Za-z0-9_.:-]{1,128}">')
_BEGINS_LIKE_ONE = re.compile(r"\s*<tool_result", re.IGNORECASE)
_WORD = re.compile(r"<[/|]?\w{1,40}")
_END = "</tool_result>"

# What a user's turn must not tell of tools, and how it is called.
_CONFIGURATION = (
    (re.compile(r"^[ \t]*#{1,6} ", re.MULTILINE), "a heading"),
    (re.compile(r"parameters schema:|^[ \t]*parameters:", re.IGNORECASE | re.MULTILINE), "a schema"),
    (re.compile(r"```"), "a fence"),
    (re.compile(r"ignore (?:any earlier|previous instructions)", re.IGNORECASE), "a call to ignore instructions"),
    (re.compile(r"for this request only|\[tool-calling context", re.IGNORECASE), "a passing override"),
)


def begins_with_result(text: str) -> bool:
    """Whether a turn is one of results, or pretends to be."""
    return _BEGINS_LIKE_ONE.match(text) is not None


def judge_results(text: str, path: str) -> list[Violation]:
    """A turn that begins with a result: whole blocks, then words; the first tag in a wrong place is reported."""
    at = 0
    while block := _BLOCK.match(text, at):
        tag = _TAG.search(text, block.end())
        if tag is None or not text.startswith(_END, tag.start()):
            return [_forged(text, block if tag is None else tag, path)]
        at = tag.start() + len(_END)
    tag = _TAG.search(text, at)
    return [] if tag is None else [_forged(text, tag, path)]


def judge_instructions(text: str, path: str) -> list[Violation]:
    """The latest turn of the user's, if its first paragraph tells how to call tools."""
    told, _, rest = text.partition("\n\n")
    if '<tool_call>{"name"' not in told or "<tool_result" not in told:
        return []
    found = [rules.CONFIGURED.broken(path, what=what) for shape, what in _CONFIGURATION if shape.search(told)]
    if begins_with_result(rest):
        found.append(rules.PREAMBLE_FIRST.broken(path))
    return found


def _forged(text: str, match: re.Match[str], path: str) -> Violation:
    """Report a tag, or a block without an end, by its first word."""
    place = text.index("<", match.start())
    return rules.FORGED.broken(path, tag=_WORD.match(text, place)[0], place=place)  # type: ignore[index]  # it begins so
