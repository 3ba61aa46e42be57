"""Where a text is prose, and where it is fenced code or JSON, told piece by piece.

Fences are Markdown's: three or more backticks or tildes at the beginning of a line, up to a line of as many; backticks
that close in their own line are none. JSON is what begins with ``{"`` or ``["`` and goes on like JSON (`JsonSpan`).
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from msgspec import Struct

from pipeline.text.jsontext import JsonSpan

_OPENER: Final = re.compile(r"[{\[`~](?:(?<=[{\[])\s{0,64}\"|(?<=`)``|(?<=~)~~)")
# What every opener has one of.
_SPECIAL: Final = re.compile(r"[{\[`~]")
_LINE_BEGINS: Final = re.compile(r"(?<=\n) {0,3}\Z")
_LONGEST_FENCE: Final = 16
_FENCE: Final = re.compile(r"`{3,16}|~{3,16}")
_MAY_BE_FENCE: Final = re.compile(r"(?<=\n) {0,3}(?:`{1,2}|~{1,2})\Z")
# Where the line of an opening fence ends, and the backtick that proves it to be none.
_INFO_ENDS: Final = {"`": re.compile(r"[`\n]"), "~": re.compile(r"\n")}
_MOST_BLANKS: Final = 64


class Span(Struct):
    """A stretch of text of one kind, and whether it is prose."""

    begin: int
    end: int
    prose: bool


class SavedContexts(Struct, array_like=True):
    """Contexts as state; ``depth`` is -1 outside of JSON."""

    fence: str
    info: bool
    depth: int
    quote: str


class Contexts:
    """Tells prose from code and JSON; its state is where in them the text is."""

    __slots__ = ("fence", "info", "json")

    def __init__(self) -> None:
        self.fence = ""  # the fence that opened the code that the text is in
        self.info = False  # in the line of an opening fence, which may still turn out to be none
        self.json: JsonSpan | None = None

    def save(self) -> SavedContexts:
        depth, quote = (self.json.depth, self.json.quote) if self.json else (-1, "")
        return SavedContexts(self.fence, self.info, depth, quote)

    @classmethod
    def load(cls, saved: SavedContexts) -> Contexts:
        """The contexts that ``save`` described."""
        contexts = cls()
        contexts.fence, contexts.info = saved.fence, saved.info
        contexts.json = JsonSpan(saved.depth, saved.quote) if saved.depth >= 0 else None
        return contexts

    def split(self, text: str, at: int, *, last: bool) -> list[Span]:
        """Tell what the text is from here on, as far as it is certain: up to its end where it is the last.

        ``text`` has, before ``at``, the last characters of what came before (a line break before the first).
        """
        if not self.fence and self.json is None and not _SPECIAL.search(text, at):
            return [Span(at, len(text), prose=True)]
        spans: list[Span] = []
        before = None
        while at < len(text) and before != (before := (at, self.fence, self.info, self.json)):
            prose = not (self.fence or self.json)
            end = self._prose(text, at, last=last) if prose else self._other(text, at, last=last)
            if end > at:
                spans.append(Span(at, end, prose))
            at = end
        return spans

    def _prose(self, text: str, at: int, *, last: bool) -> int:
        """Where the prose from here ends; what follows is told by the state."""
        begin = at
        while found := _OPENER.search(text, begin):
            if found[0][-1] == '"':
                self.json = JsonSpan()
                return found.start()
            line = _LINE_BEGINS.search(text, max(0, found.start() - 3), found.start())
            fence = _FENCE.match(text, found.start())
            begin = fence.end() if fence else found.end()
            if line and fence:
                if begin == len(text) and not last and len(fence[0]) < _LONGEST_FENCE:
                    return max(at, line.start())
                self.fence, self.info = fence[0], True
                return begin
        return len(text) if last else self._undecided(text, max(at, begin))

    def _undecided(self, text: str, at: int) -> int:
        """Where the end of the text begins that may still open code or JSON; its length where there is none."""
        tail = text[max(at, len(text) - _MOST_BLANKS - 1) :]
        solid = tail.rstrip()
        if solid[-1:] in {"{", "["} and solid:
            return len(text) - len(tail) + len(solid) - 1
        found = _MAY_BE_FENCE.search(text, max(0, len(text) - 6))
        return max(at, found.start()) if found else len(text)

    def _other(self, text: str, at: int, *, last: bool) -> int:
        """Where the code or JSON from here ends."""
        if self.json:
            end, outcome = self.json.scan(text, at)
            if outcome != "open":
                self.json = None
            return end
        if self.info:
            found = _INFO_ENDS[self.fence[0]].search(text, at)
            if not found:
                return len(text)
            self.info = False
            if found[0] == "`":
                self.fence = ""
            return found.start()
        closes, may_close = _closing(self.fence)
        found = closes.search(text, at)
        if found:
            self.fence = ""
            return found.end()
        held = None if last else may_close.search(text, max(at, len(text) - _LONGEST_FENCE - 4))
        return held.start() if held else len(text)


@cache
def _closing(fence: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """The line that ends code: as many of the same at least, and a blank behind. And what may become one."""
    mark = re.escape(fence[0])
    most = rf"{mark}{{{_LONGEST_FENCE}}}"
    fewer = rf"|{mark}{{{len(fence)},{_LONGEST_FENCE - 1}}}(?=\s)" if len(fence) < _LONGEST_FENCE else ""
    return re.compile(rf"\n {{0,3}}(?:{most}{fewer})"), re.compile(rf"\n {{0,3}}{mark}{{0,{_LONGEST_FENCE - 1}}}\Z")
