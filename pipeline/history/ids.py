"""Tool ids: unique in the whole request, legal everywhere, rewritten injectively.

A legal id that nobody has used yet stays as it is. Any other gets a new one made from itself and a digest, so that the
same history gives the same ids, and so that ``call.1`` never takes the place of ``call_1``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from msgspec import Struct

# The strictest alphabet and length among the targets: `^[a-zA-Z0-9_-]+$` (Anthropic), 1..64 (Bedrock, Responses).
_LEGAL = re.compile(r"[a-zA-Z0-9_-]{1,64}").fullmatch
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]+")
_STEM, _DIGEST = 48, 12


def is_legal(candidate: str) -> bool:
    """Whether every provider takes an id."""
    return _LEGAL(candidate) is not None


class SettledCall(Struct, frozen=True, array_like=True):
    """A call that will not change any more: its id in the input, in the output, and whether a real result came."""

    original: str
    final: str
    answered: bool


class IdTable:
    """The tool ids of one session."""

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._rewritten: dict[str, int] = {}
        self._answered: dict[str, bool] = {}

    def claim(self, original: str) -> str:
        """The output's id for a new call: the original where it can stay, else one that is made from it."""
        if original not in self._used and _LEGAL(original):
            self._used.add(original)
            return original
        count = self._rewritten.get(original, 0)
        while (final := _derive(original, count)) in self._used:
            count += 1
        self._rewritten[original] = count + 1
        self._used.add(final)
        return final

    def claim_answered(self, ids: Sequence[str]) -> None:
        """Take ids that are known to be legal, unused and answered."""
        self._used.update(ids)
        self._answered.update(dict.fromkeys(ids, True))

    def settle(self, call: SettledCall) -> None:
        """Remember how a call ended, for results that come after it has been settled."""
        self._answered[call.original] = call.answered

    def reload(self, call: SettledCall) -> None:
        """Take a call from saved state, in the order in which they were settled."""
        self._used.add(call.final)
        if call.final != call.original:
            self._rewritten[call.original] = self._rewritten.get(call.original, 0) + 1
        self.settle(call)

    def reload_open(self, original: str, final: str) -> None:
        """Take a call from saved state that is still open."""
        self._used.add(final)
        if final != original:
            self._rewritten[original] = self._rewritten.get(original, 0) + 1

    def answered(self, original: str) -> bool | None:
        """How the last settled call of this id ended; None where there was none."""
        return self._answered.get(original)


def _derive(original: str, count: int) -> str:
    stem = _ILLEGAL.sub("_", original)[:_STEM] or "call"
    digest = hashlib.sha256(f"{count}:{original}".encode("utf-8", "replace")).hexdigest()[:_DIGEST]
    return f"{stem}-{digest}"
