"""Patterns that also know their own beginnings, for filters that see a text piece by piece.

A filter must hold back the end of what it has while that can still become a match, and nothing more. ``re`` finds
whole matches only, so a pattern is put together here from parts that each give two expressions: one for the whole,
and one for every proper prefix of it that ends where the text does (the empty one included). Repetitions are bounded,
so both take at most as many steps from one position as the longest match has characters, times the alternatives.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Part(NamedTuple):
    """A piece of a pattern: the expression of all of it, that of its beginnings, and its greatest length."""

    whole: str
    prefix: str
    longest: int


def literal(text: str) -> Part:
    """This text and no other."""
    prefix = r"\Z"
    for character in reversed(text[:-1]):
        prefix = rf"(?:\Z|{re.escape(character)}{prefix})"
    return Part(re.escape(text), prefix, len(text))


def run(characters: str, least: int, most: int) -> Part:
    """So many characters of a set, given as the inside of its brackets."""
    return Part(f"[{characters}]{{{least},{most}}}", rf"[{characters}]{{0,{most - 1}}}\Z", most)


def either(*parts: Part) -> Part:
    """One of several parts; the first that matches."""
    return Part(
        f"(?:{'|'.join(part.whole for part in parts)})",
        f"(?:{'|'.join(part.prefix for part in parts)})",
        max(part.longest for part in parts),
    )


def maybe(part: Part) -> Part:
    """A part that may be missing."""
    return Part(f"(?:{part.whole})?", part.prefix, part.longest)


def sequence(*parts: Part) -> Part:
    """One part after the other."""
    prefix = parts[-1].prefix
    for part in reversed(parts[:-1]):
        prefix = f"(?:{part.prefix}|{part.whole}{prefix})"
    return Part("".join(part.whole for part in parts), prefix, sum(part.longest for part in parts))
