"""What the filters of a text share: what they changed, and patterns that also know their own beginnings.

A filter sees a text piece by piece, and must hold back the end of what it has while that can still become a match, and
nothing more. ``re`` finds whole matches only, so a pattern is put together here from parts that each give two
expressions: one for the whole, and one for every proper prefix of it that ends where the text does (the empty one
included). Repetitions are bounded, so both take at most as many steps from one position as the longest match has
characters, times the alternatives.
"""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple, TypeAlias

from msgspec import Struct

from pipeline.fixes import digest

Kind: TypeAlias = Literal["path_redacted", "identity_renamed"]

# Text that a filter keeps may hold halves of surrogate pairs, which UTF-8 has no form for.
_SURROGATES: Final = "surrogatepass"


class Change(Struct, frozen=True):
    """One way in which a filter changed a text: what kind it is, the digest of what stood there, and what stands now.

    ``before`` is a digest because it may be what must not be shown.
    """

    kind: Kind
    before: str
    after: str


class Changes:
    """How often each change was made since they were last taken."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[Change, int] = {}

    def count_change(self, kind: Kind, before: str, after: str) -> None:
        change = Change(kind, digest(before.encode("utf-8", "backslashreplace").decode()), after)
        self._counts[change] = self._counts.get(change, 0) + 1

    def take_counts(self) -> dict[Change, int]:
        """The changes and how often each was made, in the order of their first time; they are counted anew."""
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
    """So many characters of a set, given as the inside of its brackets."""
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
