"""The words that differ between two versions of a text, as a page marks them.

The work is bounded whatever the texts are: it is the greedy algorithm of Myers (An O(ND) Difference Algorithm, 1986)
up to a number of differences. ``difflib`` has no such bound: for texts of one repeated word it takes cubic time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Final, TypeAlias

# A text in pieces, each with whether it differs from the other version.
Pieces: TypeAlias = list[tuple[str, bool]]

# Beyond these numbers of words and differences, all between the first and the last difference counts as different.
_MOST_WORDS: Final = 2000
_MOST_DIFFERENCES: Final = 40
_WORD: Final = re.compile(r"\w+|\s+|[^\w\s]")


def changed_words(before: str, after: str) -> tuple[Pieces, Pieces] | None:
    """Return both texts in pieces; None for equal texts, and for those that have little in common."""
    old, new = _WORD.findall(before), _WORD.findall(after)
    begin = _common(old, new)
    end = _common(old[begin:][::-1], new[begin:][::-1])
    middle_old, middle_new = old[begin : len(old) - end], new[begin : len(new) - end]
    found = _differences(middle_old, middle_new)
    gone, added = found or ([True] * len(middle_old), [True] * len(middle_new))
    first, last = [False] * begin, [False] * end
    gone, added = [*first, *gone, *last], [*first, *added, *last]
    kept = sum(not differs and word[:1].isalnum() for word, differs in zip(old, gone, strict=True))
    if before == after or kept * 2 < min(sum(word[:1].isalnum() for word in side) for side in (old, new)):
        return None
    return _pieces(old, gone), _pieces(new, added)


def _common(old: Sequence[str], new: Sequence[str]) -> int:
    """Return the number of words that both begin with."""
    return next(
        (at for at, (one, other) in enumerate(zip(old, new, strict=False)) if one != other), min(len(old), len(new))
    )


def _pieces(words: Sequence[str], differs: Sequence[bool]) -> Pieces:
    grouped = groupby(zip(words, differs, strict=True), key=lambda pair: pair[1])
    return [("".join(word for word, _ in group), is_different) for is_different, group in grouped]


def _differences(old: Sequence[str], new: Sequence[str]) -> tuple[list[bool], list[bool]] | None:
    """Return which words of each side differ, as few as possible; None if there are too many words or differences."""
    if max(len(old), len(new)) > _MOST_WORDS:
        return None
    # The farthest position in the old text on each diagonal, after each number of differences.
    farthest, rounds = {1: 0}, []
    for count in range(_MOST_DIFFERENCES + 1):
        rounds.append(dict(farthest))
        for diagonal in range(-count, count + 1, 2):
            x = farthest[diagonal + 1] if _is_down(farthest, diagonal, count) else farthest[diagonal - 1] + 1
            while x < len(old) and x - diagonal < len(new) and old[x] == new[x - diagonal]:
                x += 1
            farthest[diagonal] = x
            if x >= len(old) and x - diagonal >= len(new):
                return _path(rounds, len(old), len(new))
    return None


def _is_down(farthest: dict[int, int], diagonal: int, count: int) -> bool:
    """Return True if the best path to a diagonal ends with an added word."""
    return diagonal == -count or (diagonal != count and farthest[diagonal - 1] < farthest[diagonal + 1])


def _path(rounds: Sequence[dict[int, int]], length_old: int, length_new: int) -> tuple[list[bool], list[bool]]:
    """Follow the path of the fewest differences from its end to its beginning."""
    gone, added = [False] * length_old, [False] * length_new
    diagonal = length_old - length_new
    for count in range(len(rounds) - 1, 0, -1):
        farthest = rounds[count]
        if _is_down(farthest, diagonal, count):
            diagonal += 1
            added[farthest[diagonal] - diagonal] = True
        else:
            diagonal -= 1
            gone[farthest[diagonal]] = True
    return gone, added
