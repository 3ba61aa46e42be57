"""Neutralizes words that would make a program act, by one invisible character.

A target that takes one text puts the words of all parties into it, and its program acts on words: it reads the file
after an ``@``, thinks longer when asked, takes a line for the heading of another turn. A U+200B inside or before such
words prevents that, for programs and for models, and is invisible to people; removing the added ones restores the text.
The caller decides whose words to neutralize: the current user's own stay unchanged.

``explain/acts.jsonl`` lists the words that each program acts on, with sources.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from msgspec import Raw, Struct, structs

from reknit.pipeline.history.clean import SYSTEM_MARK
from reknit.pipeline.history.late import LATE, LATE_ERROR, LATE_RESULT
from reknit.pipeline.history.pieces import FixLog, TrackedBlock
from reknit.pipeline.history.result_text import ORPHAN_MARK
from reknit.pipeline.model import Text, ToolResult, ToolUse
from reknit.pipeline.text.jsontext import spaced

BREAK: Final = "\N{ZERO WIDTH SPACE}"
CODE: Final = "words_neutralised"
# Flags that are no plain numbers take longer to compare than a text to search.
_ANY_CASE: Final = int(re.IGNORECASE)


class Words(Struct, frozen=True):
    """Words that a program acts on, the pattern that finds them, and their neutralized form.

    ``sign`` occurs in every text that has them; in lower case where their case does not matter.
    """

    sign: str
    pattern: re.Pattern[str]
    broken: str = BREAK


# An ``@`` that begins a word: U+FEFF is white space to JavaScript. The sign comes first, for a search by it is quick.
MENTION: Final = Words("@", re.compile(r"@(?<![^\s\ufeff]@)"), f"{BREAK}@")
# An ``@`` anywhere, unless it is known that nothing follows: a U+200B before it would be a character.
ANY_MENTION: Final = Words("@", re.compile(r"@(?![ \t\n@])"), f"@{BREAK}")
# Claude Code: ``ultrathink`` sets a thinking budget up to 2.0 and adds a reminder since; ``ultracode`` adds one that
# opts the turn into orchestration (2.1.200).
KEYWORDS: Final = (
    Words("ultrat", re.compile(r"(?<=ultrat)(?=hink)", re.IGNORECASE)),
    Words("ultrac", re.compile(r"(?<=ultrac)(?=ode)", re.IGNORECASE)),
)
# A skill's name, or any name in front of a link to one; and a name in front of a link, which may be to a plugin.
SKILL: Final = Words("$", re.compile(r"\$(?=[\w:-])", re.ASCII), f"${BREAK}")
PLUGIN: Final = Words("[@", re.compile(r"(?<=\[)@(?=[\w:-])", re.ASCII), f"@{BREAK}")
# Characters that end a line for any reader, as for str.splitlines, and white space that ends none.
_ENDS: Final = r"\n\r\v\f\x1c-\x1e\x85\u2028\u2029"
_GAP: Final = r"[\t\x1f \xa0\u1680\u2000-\u200a\u202f\u205f\u3000\ufeff]"
# The first characters of headings and brackets.
_SIGNS: Final = "#["
# The repair's prefixes of other parties' words, by the fix that records them.
_MARKS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "system_inlined": SYSTEM_MARK,
        "system_block_as_text": SYSTEM_MARK,
        "result_orphan_text": ORPHAN_MARK,
        "result_late_text": ORPHAN_MARK,
        LATE: LATE_RESULT,
        "call_incomplete_text": "[Incomplete tool call: ",
        "document_as_text": "[Document",
    }
)


class Neutralizer:
    """The words to neutralize for one target.

    Args:
        lines: beginnings of the lines that the target writes: headings (``### User``), brackets (``[Tool result``), or
            plain words. White space within and before them does not matter, nor does case. A heading's title of one
            word counts at its own level, or at any level if it is the whole line: ``### Users`` is neutralized, ``#
            User guide`` is not; a title of several words counts at any level.
        words: other words to neutralize, anywhere in a text.
    """

    def __init__(self, lines: Iterable[str], words: Iterable[Words] = ()) -> None:
        self._breaks = tuple(words)
        lines = tuple(lines)
        # A look for what every such line has in it spares most texts the rest.
        self._signs = tuple(dict.fromkeys(line[0] for line in lines if line[0] in _SIGNS))
        self._words = tuple(max(line.lower().split(), key=len) for line in lines if line[0] not in _SIGNS)
        firsts = "".join(dict.fromkeys(map(re.escape, (line[0] for line in lines))))
        beginnings = "|".join(map(_pattern, lines))
        self._line = re.compile(rf"([{_ENDS}]{_GAP}*+)(?=[{firsts}])(?={beginnings})", re.IGNORECASE)

    def text(self, text: str) -> tuple[str, int]:
        """The text with what acts broken, and how many characters that took."""
        count = 0
        for words in self._breaks:
            if words.sign in (text.lower() if words.pattern.flags & _ANY_CASE else text):
                text, more = words.pattern.subn(words.broken, text)
                count += more
        if self._may_begin_like_ours(text):
            # The first line gets a line break too, so that a line always begins after one.
            broken, more = self._line.subn(rf"\1{BREAK}", f"\n{text}")
            text, count = (broken[1:], count + more) if more else (text, count)
        return text, count

    def _may_begin_like_ours(self, text: str) -> bool:
        for sign in self._signs:  # a generator costs more than the looks
            if sign in text:
                return True
        return bool(self._words) and any(map(text.lower().__contains__, self._words))

    def piece(self, piece: TrackedBlock, book: FixLog) -> TrackedBlock:
        """The piece with what acts in its words broken, which is recorded with the count."""
        match piece.block:
            case Text(text=text):
                mark = _MARKS.get(piece.code, "")
                mark = LATE_ERROR if piece.code == LATE and text.startswith(LATE_ERROR) else mark
                mark = mark if text.startswith(mark) else ""
                neutralized, count = self.text(text[len(mark) :])
                after: Any = structs.replace(piece.block, text=mark + neutralized) if count else None
            case ToolUse(name=name, input=given):
                neutralized, count = self.text(name)
                input_, more = self._json(given)
                count += more
                after = structs.replace(piece.block, name=neutralized, input=input_) if count else None
            case ToolResult(content=str() as text):
                neutralized, count = self.text(text)
                after = structs.replace(piece.block, content=neutralized) if count else None
            case ToolResult(content=list() as parts):
                found = [self.text(part.text) if isinstance(part, Text) else ("", 0) for part in parts]
                count = sum(more for _, more in found)
                quiet_parts = [
                    structs.replace(part, text=neutralized) if isinstance(part, Text) and more else part
                    for part, (neutralized, more) in zip(parts, found, strict=True)
                ]
                after = structs.replace(piece.block, content=quiet_parts) if count else None
            case _:
                after = None
        return piece if after is None else book.change(CODE, piece, after, detail=str(count))

    def _json(self, given: Raw) -> tuple[Raw, int]:
        """Return a call's input as the text shows it: escapes may hide a sign, and line ends may be raw."""
        data = bytes(given)
        plain = data.isascii() and b"\\u" not in data
        if plain and not any(words.sign.encode() in data.lower() for words in self._breaks):
            return given, 0
        neutralized, count = self.text(spaced(given))
        return (Raw(neutralized.encode()), count) if count else (given, 0)


def is_own(piece: TrackedBlock) -> bool:
    """Return True if a block of the current user's turn is the user's own words.

    A result, a system message, what a repair left over and a prompt that an agent program wrote are not.
    """
    return isinstance(piece.block, Text) and not (piece.system or piece.synthetic) and piece.fate != "flattened"


def _pattern(line: str) -> str:
    marks = line[: len(line) - len(line.lstrip("#["))]
    words = line[len(marks) :].split()
    title = f"{_GAP}++".join(map(re.escape, words))
    if not marks.startswith("#"):
        return re.escape(marks) + f"{_GAP}*+" + title
    anywhere = rf"\#{{1,6}}{_GAP}*+{title}"
    if len(words) > 1:
        return anywhere
    return rf"{re.escape(marks)}{_GAP}*+{title}|{anywhere}{_GAP}*+[:\#]*+{_GAP}*+(?:[{_ENDS}]|\Z)"
