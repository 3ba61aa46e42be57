"""What a text filter changed, for fix records and metrics, and its text as state."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

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

    def add(self, kind: Kind, before: str, after: str) -> None:
        """Count one change of this text into that."""
        change = Change(kind, digest(before.encode("utf-8", "backslashreplace").decode()), after)
        self._counts[change] = self._counts.get(change, 0) + 1

    def take(self) -> dict[Change, int]:
        """The changes and how often each was made, in the order of their first time; they are counted anew."""
        counts, self._counts = self._counts, {}
        return counts

    def save(self) -> list[tuple[Change, int]]:
        """The counts as a value."""
        return list(self._counts.items())

    def load(self, saved: list[tuple[Change, int]]) -> None:
        """Go on from what ``save`` gave."""
        self._counts = dict(saved)


def pack(text: str) -> bytes:
    """Text as state."""
    return text.encode("utf-8", _SURROGATES)


def unpack(data: bytes) -> str:
    """The text that ``pack`` made state of."""
    return data.decode("utf-8", _SURROGATES)
