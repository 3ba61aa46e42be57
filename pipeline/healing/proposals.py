"""Rows that the table could have: unknown sentences of refusals, grouped by their shape.

The shape of a sentence is the sentence without its places, names, numbers and quotations. A person decides the repair.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from reknit.pipeline.healing.errors import read_error
from reknit.pipeline.healing.table import HEALINGS, IN_SESSIONS, row_for

_LONGEST: Final = 300
# Parts of a sentence that differ between requests, with the pattern that finds each. The first that fits counts.
_PARTS: Final = (
    ("path", re.compile(r"\b(?:messages|contents|input|tools|system)(?=[\w.\[\]]*\d)(?:[.\[]\w+\]?)+"), r"[\w.\[\]]+"),
    ("name", re.compile(r"https?://[^\s'\"]+[^\s'\".,]"), r"\S+"),
    ("", re.compile(r"'[^']*'"), r"'[^']*'"),
    ("", re.compile(r'"[^"]*"'), r'"[^"]*"'),
    ("name", re.compile(r"\b[A-Za-z]+[-_][\w-]*\d[\w-]*"), r"[\w-]+"),
    ("", re.compile(r"\b[0-9a-f]{12,}\b"), r"[0-9a-f]+"),
    ("", re.compile(r"\d+"), r"\d+"),
)
_ANY: Final = re.compile("|".join(f"(?P<part{at}>{part.pattern})" for at, (_, part, _) in enumerate(_PARTS)))


class Sentence(Struct, frozen=True):
    """An unknown refusal: the target, the provider's words, and where the refusal is."""

    target: str
    words: str
    place: str


class Proposal(Struct, frozen=True):
    """A row that the table could have.

    Attributes:
        targets: that wrote the sentence.
        pattern: finds it; what repairs use are named groups.
        refusals: the number of refusals.
        example: one sentence.
        place: of the first refusal.
    """

    targets: tuple[str, ...]
    pattern: str
    refusals: int
    example: str
    place: str

    def row(self) -> str:
        """Return the row as it would be in the table; a person adds its name, repair and loss."""
        targets = ", ".join(f'"{target}"' for target in self.targets)
        return "\n".join((
            f"# {self.refusals}x, such as {self.example!r} ({self.place})",
            "_row(",
            '    "NAME",',
            f"    frozenset({{{targets}}}),",
            f"    {_literal(self.pattern)},",
            "    REPAIR,",
            '    loss="LOSS",',
            '    source="",',
            "),",
        ))  # fmt: skip


def propose(sentences: Iterable[Sentence]) -> list[Proposal]:
    """Group sentences that no row has by their shape, the most frequent first."""
    found: dict[str, list[Sentence]] = {}
    for each in sentences:
        refusal = read_error(0, each.words)
        if row_for(each.target, refusal, (*IN_SESSIONS, *HEALINGS)) is None and refusal.sentence:
            words = refusal.sentence.replace("`", "")[:_LONGEST]
            found.setdefault(pattern_of(words), []).append(Sentence(each.target, words, each.place))
    proposals = [
        Proposal(tuple(sorted({each.target for each in group})), pattern, len(group), group[0].words, group[0].place)
        for pattern, group in found.items()
    ]
    return sorted(proposals, key=lambda proposal: (-proposal.refusals, proposal.pattern))


def pattern_of(words: str) -> str:
    """Return a regular expression for a sentence and all others of its shape; each name is a group once."""
    pieces, end, named = ["^"], 0, set[str]()
    for found in _ANY.finditer(words):
        at = next(number for number in range(len(_PARTS)) if found[f"part{number}"] is not None)
        name, _, pattern = _PARTS[at]
        pieces.append(_escaped(words[end : found.start()]))
        pieces.append(f"(?P<{name}>{pattern})" if name and name not in named else pattern)
        named.add(name)
        end = found.end()
    return "".join([*pieces, _escaped(words[end:])])


def _escaped(text: str) -> str:
    """Return a pattern for a text, without escapes that it does not need."""
    return re.sub(r"([.^$*+?{}\[\]\\|()])", r"\\\1", text).replace("\n", r"\n").replace("\r", r"\r")


def _literal(pattern: str) -> str:
    """Return a raw string of Python, if there is one."""
    for quote in ('"', "'"):
        if quote not in pattern and pattern.isprintable():
            return f"r{quote}{pattern}{quote}"
    return repr(pattern)
