"""Shared parts of the text filters: changes, patterns with known prefixes, and the distinction of prose and code.

A filter sees a text piece by piece. It must hold back the end of the text while that can still become a match, and
nothing more. ``re`` finds whole matches only, so a pattern is composed here of parts that each give two expressions:
one for the whole, and one for every proper prefix of it that ends where the text does (the empty one included).
Repetitions are bounded, so from one position both take at most as many steps as the longest match has characters, times
the alternatives.

Some filters do not change fenced code and JSON. Fences are Markdown's: three or more backticks or tildes at the
beginning of a line, up to a line of as many; backticks that close in their own line are not fences. JSON begins with
``{"`` or ``["`` and continues like JSON (`JsonSpan`).
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final, Literal, NamedTuple, TypeAlias

from msgspec import Struct

from reknit.pipeline.fixes import digest
from reknit.pipeline.text.jsontext import JsonSpan

Kind: TypeAlias = Literal["path_redacted", "identity_renamed"]

# Text that a filter keeps may hold halves of surrogate pairs, which UTF-8 has no form for.
_SURROGATES: Final = "surrogatepass"


class Change(Struct, frozen=True):
    """One kind of change that a filter made: its kind, the digest of the replaced text, and the new text.

    ``before`` is a digest because the replaced text may be secret.
    """

    kind: Kind
    before: str
    after: str


class Changes:
    """Return the number of changes of each kind since the last call."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[Change, int] = {}

    def count_change(self, kind: Kind, before: str, after: str) -> None:
        change = Change(kind, digest(before.encode("utf-8", "backslashreplace").decode()), after)
        self._counts[change] = self._counts.get(change, 0) + 1

    def take_counts(self) -> dict[Change, int]:
        """Return the changes and their counts, in the order of their first occurrence, and reset the counts."""
        counts, self._counts = self._counts, {}
        return counts

    def save(self) -> list[tuple[Change, int]]:
        return list(self._counts.items())

    def load(self, saved: list[tuple[Change, int]]) -> None:
        self._counts = dict(saved)


def pack(text: str) -> bytes:
    return text.encode("utf-8", _SURROGATES)


def unpack(data: bytes) -> str:
    return data.decode("utf-8", _SURROGATES)


class Part(NamedTuple):
    """A piece of a pattern: the expression of all of it, that of its beginnings, and its greatest length."""

    whole: str
    prefix: str
    longest: int


def literal(text: str) -> Part:
    prefix = r"\Z"
    for character in reversed(text[:-1]):
        prefix = rf"(?:\Z|{re.escape(character)}{prefix})"
    return Part(re.escape(text), prefix, len(text))


def run(characters: str, least: int, most: int) -> Part:
    """Return the part for N characters of a set, given as the content of its brackets."""
    return Part(f"[{characters}]{{{least},{most}}}", rf"[{characters}]{{0,{most - 1}}}\Z", most)


def either(*parts: Part) -> Part:
    return Part(
        f"(?:{'|'.join(part.whole for part in parts)})",
        f"(?:{'|'.join(part.prefix for part in parts)})",
        max(part.longest for part in parts),
    )


def maybe(part: Part) -> Part:
    return Part(f"(?:{part.whole})?", part.prefix, part.longest)


def sequence(*parts: Part) -> Part:
    prefix = parts[-1].prefix
    for part in reversed(parts[:-1]):
        prefix = f"(?:{part.prefix}|{part.whole}{prefix})"
    return Part("".join(part.whole for part in parts), prefix, sum(part.longest for part in parts))


# Where a text is prose, and where it is code or JSON.

_OPENER: Final = re.compile(r"[{\[`~](?:(?<=[{\[])\s{0,64}\"|(?<=`)``|(?<=~)~~)")
# Every opener has one of these.
_SPECIAL: Final = re.compile(r"[{\[`~]")
_LINE_BEGINS: Final = re.compile(r"(?<=\n) {0,3}\Z")
_LONGEST_FENCE: Final = 16
_FENCE: Final = re.compile(r"`{3,16}|~{3,16}")
_MAY_BE_FENCE: Final = re.compile(r"(?<=\n) {0,3}(?:`{1,2}|~{1,2})\Z")
# Where the line of an opening fence ends, and the backtick that proves it to be none.
_INFO_ENDS: Final = {"`": re.compile(r"[`\n]"), "~": re.compile(r"\n")}
_MOST_BLANKS: Final = 64


class Span(Struct):
    """A range of text of one kind, and whether it is prose."""

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
    """Distinguishes prose from code and JSON; its state is the position in them."""

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
        """Yield the kinds of the text from here on, as far as they are certain: up to its end if it is the last piece.

        Before ``at``, ``text`` has the last characters of the previous piece (a line break before the first).
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
        """Return where the prose from here ends; the state has the kind of the text after it."""
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
        """Return where the end of the text begins that may still open code or JSON; its length if there is none."""
        tail = text[max(at, len(text) - _MOST_BLANKS - 1) :]
        solid = tail.rstrip()
        if solid[-1:] in {"{", "["} and solid:
            return len(text) - len(tail) + len(solid) - 1
        found = _MAY_BE_FENCE.search(text, max(0, len(text) - 6))
        return max(at, found.start()) if found else len(text)

    def _other(self, text: str, at: int, *, last: bool) -> int:
        """Return the end of the code or JSON that begins here."""
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
    """Return the pattern of the line that ends code, and of its prefixes."""
    mark = re.escape(fence[0])
    most = rf"{mark}{{{_LONGEST_FENCE}}}"
    fewer = rf"|{mark}{{{len(fence)},{_LONGEST_FENCE - 1}}}(?=\s)" if len(fence) < _LONGEST_FENCE else ""
    return re.compile(rf"\n {{0,3}}(?:{most}{fewer})"), re.compile(rf"\n {{0,3}}{mark}{{0,{_LONGEST_FENCE - 1}}}\Z")
