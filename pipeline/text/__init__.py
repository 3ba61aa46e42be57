"""Histories and tool calls as text: flattening for targets that take one prompt, and tools in text.

The filters of a planner's output process it piece by piece: redaction, identity and tool calls.

This module shows text to people: invisible characters are named.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

# All that may be unseen by a reader, or change the order in which others are seen. Printable ASCII, line feeds and tabs
# never are, nor is the wide space of East Asian texts.
_CANDIDATE = re.compile("[^\n\t -~\u3000]")
# Control, format, unassigned, private and surrogate characters; separators of lines and paragraphs, wide spaces.
_CATEGORIES = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"})
# Blank although they count as letters or marks: fillers of Hangul, the grapheme joiner, Braille's blank, selectors.
_BLANK = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")


def _is_invisible(character: str) -> bool:
    return unicodedata.category(character) in _CATEGORIES or _BLANK.match(character) is not None


def split_invisible(text: str) -> Iterator[tuple[str, bool]]:
    """A text in pieces, each with whether it is a single invisible character."""
    begin = 0
    for found in _CANDIDATE.finditer(text):
        if _is_invisible(found[0]):
            if found.start() > begin:
                yield text[begin : found.start()], False
            yield found[0], True
            begin = found.end()
    if begin < len(text):
        yield text[begin:], False


def code_point(character: str) -> str:
    return f"U+{ord(character):04X}"


def visible(text: str) -> str:
    """Return the text for a terminal: invisible characters are named, so they can neither hide nor act."""
    return "".join(f"⟦{code_point(piece)}⟧" if hidden else piece for piece, hidden in split_invisible(text))
