"""Tool ids: unique in the whole request, legal everywhere, rewritten injectively.

A legal id that nobody has used yet stays as it is. Any other gets a new one made from itself and a digest, so that the
same history gives the same ids, and so that ``call.1`` never takes the place of ``call_1``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

from msgspec import Struct

# The strictest alphabet and length among the targets: `^[a-zA-Z0-9_-]+$` (Anthropic), 1..64 (Bedrock, Responses).
LONGEST_ID = 64
_LEGAL = re.compile(r"[a-zA-Z0-9_-]{1,64}").fullmatch
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]+")
_STEM, _DIGEST = 48, 12


def is_legal(candidate: str) -> bool:
    """Whether every provider takes an id."""
    return _LEGAL(candidate) is not None


def made_id(name: str) -> str:
    """The id of a call that came without one, and of its result, which names the tool too."""
    return f"call_{name}"


# What a result has for an id that names neither its call nor a tool.
NAMELESS = ""


class SettledCall(Struct, frozen=True, array_like=True):
    """A call that will not change any more: its id in the input, in the output, and whether a real result came."""

    original: str
    final: str
    answered: bool


IdWriter: TypeAlias = Callable[[str], str]
"""How a target writes an id that is longer than it takes, or of another alphabet."""


class IdTable:
    """The tool ids of one session.

    ``id_writers`` are how its targets write ids of their own making: what two ids would be there is kept apart as well,
    so that a target may shorten each id by itself and never gives two calls one. ``again``: only the calls of one turn
    have to be told apart.
    """

    def __init__(self, id_writers: Sequence[IdWriter] = (), *, again: bool = False) -> None:
        self._again = again
        self._images = [(image, set[str]()) for image in id_writers]
        self._used: set[str] = set()
        self._rewritten: dict[str, int] = {}
        self._answered: dict[str, bool] = {}
        # How earlier calls of an id ended, where there were some.
        self._earlier: dict[str, list[bool]] = {}

    def begin_turn(self) -> None:
        """Let the calls of a new turn of the assistant's have the ids of earlier ones, where they may."""
        if self._again:
            self._used.clear()
            for _, taken in self._images:
                taken.clear()

    def claim(self, original: str, *, taken: bool = False) -> str:
        """The output's id for a new call: the original where it can stay, else one that is made from it."""
        if not taken and _LEGAL(original) and self._is_free(original):
            self._take_id(original)
            return original
        count = before = self._rewritten.get(original, 0)
        while not self._is_free(final := _derive(original, count)):
            count += 1
        self._rewritten[original] = before + 1
        self._take_id(final)
        return final

    def admits(self, ids: Sequence[str]) -> bool:
        """Whether legal ids that are different can all stay as they are, for each of the session's targets."""
        return self._used.isdisjoint(ids) and all(
            len(images := set(map(image, ids))) == len(ids) and taken.isdisjoint(images)
            for image, taken in self._images
        )

    def claim_answered(self, ids: Sequence[str]) -> None:
        """Take legal ids that are admitted, of calls that are answered."""
        self._used.update(ids)
        for image, taken in self._images:
            taken.update(map(image, ids))
        for each in self._answered.keys() & ids:
            self._earlier.setdefault(each, []).append(self._answered[each])
        self._answered.update(dict.fromkeys(ids, True))

    def settle_call(self, call: SettledCall) -> None:
        """Remember how a call ended, for results that come after it has been settled."""
        if call.original in self._answered:
            self._earlier.setdefault(call.original, []).append(self._answered[call.original])
        self._answered[call.original] = call.answered

    def unsettle_call(self, call: SettledCall) -> None:
        """Take back the call that was settled last, as if it had never been made."""
        earlier = self._earlier.get(call.original)
        if earlier:
            self._answered[call.original] = earlier.pop()
        else:
            self._answered.pop(call.original, None)
        self.take_back(call.original, call.final)

    def take_back(self, original: str, final: str) -> None:
        """Take back a call that has not been settled."""
        if final != original:
            self._rewritten[original] -= 1
        self._used.discard(final)
        for image, taken in self._images:
            taken.discard(image(final))

    def reload(self, call: SettledCall) -> None:
        """Take a call from saved state, in the order in which they were settled."""
        self._take_id(call.final)
        if call.final != call.original:
            self._rewritten[call.original] = self._rewritten.get(call.original, 0) + 1
        self.settle_call(call)

    def reload_open(self, original: str, final: str) -> None:
        """Take a call from saved state that is still open."""
        self._take_id(final)
        if final != original:
            self._rewritten[original] = self._rewritten.get(original, 0) + 1

    def _is_free(self, final: str) -> bool:
        return final not in self._used and all(image(final) not in taken for image, taken in self._images)

    def _take_id(self, final: str) -> None:
        self._used.add(final)
        for image, taken in self._images:
            taken.add(image(final))

    def answered(self, original: str) -> bool | None:
        """How the last settled call of this id ended; None where there was none."""
        return self._answered.get(original)


def _derive(original: str, count: int) -> str:
    stem = _ILLEGAL.sub("_", original)[:_STEM] or "call"
    digest = hashlib.sha256(f"{count}:{original}".encode("utf-8", "replace")).hexdigest()[:_DIGEST]
    return f"{stem}-{digest}"
