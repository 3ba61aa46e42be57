"""The ids of tool calls: those that every provider takes, those that are made, and the table of a session's ids.

Ids are unique in the whole request, legal on every target, and rewritten injectively. A legal, unused id stays
unchanged. Any other gets a new one made from itself and a digest, so the same history gives the same ids, and
``call.1`` never takes the place of ``call_1``.
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
# Moonshot's own ids: `functions.read:0`.
_MARKED = re.compile(r"[a-zA-Z0-9_.:-]{1,64}").fullmatch
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]")
_ILLEGAL_RUN = re.compile(r"[^a-zA-Z0-9_-]+")
_STEM, _DIGEST = 48, 12


def is_legal(candidate: str) -> bool:
    """Return True if every provider takes an id."""
    return _LEGAL(candidate) is not None


def made_id(name: str) -> str:
    """The id of a call that came without one, and of its result, which names the tool too."""
    return f"call_{name}"


def derived_id(name: str) -> str:
    """As `made_id`, legal, for shapes in which calls and results have ids, where one has none."""
    return f"call_{_ILLEGAL.sub('_', name)}"


# The id of a result that names neither its call nor a tool.
NO_ID = ""


class SettledCall(Struct, frozen=True, array_like=True):
    """A call that will not change any more: its id in the input, in the output, and whether a real result came."""

    original: str
    final: str
    answered: bool


IdWriter: TypeAlias = Callable[[str], str]
"""How a target writes an id that is longer than it takes, or of another alphabet."""


class IdTable:
    """The tool ids of one session.

    ``id_writers`` are the functions by which its targets derive ids. Ids that would be equal after any of them are kept
    different, so a target may shorten each id independently and never gives two calls one id. ``again``: only the calls
    of one turn need different ids. ``marked``: ids may have dots and colons.
    """

    def __init__(self, id_writers: Sequence[IdWriter] = (), *, again: bool = False, marked: bool = False) -> None:
        self._again = again
        self._takes = _MARKED if marked else _LEGAL
        self._images = [(image, set[str]()) for image in id_writers]
        self._used: set[str] = set()
        self._rewritten: dict[str, int] = {}
        # The last settled call of each id; None for one that stays as it is, and is answered.
        self._settled: dict[str, SettledCall | None] = {}
        # Earlier calls of an id, where there were some.
        self._earlier: dict[str, list[SettledCall | None]] = {}

    def begin_turn(self) -> None:
        """Let the calls of a new turn of the assistant's have the ids of earlier ones, where they may."""
        if self._again:
            self._used.clear()
            for _, taken in self._images:
                taken.clear()

    def claim(self, original: str, *, taken: bool = False) -> str:
        """The output's id for a new call: the original where it can stay, else one that is made from it."""
        if not taken and self._takes(original) and self._is_free(original):
            self._take_id(original)
            return original
        count = before = self._rewritten.get(original, 0)
        while not self._is_free(final := _derive(original, count)):
            count += 1
        self._rewritten[original] = before + 1
        self._take_id(final)
        return final

    def admits(self, ids: Sequence[str]) -> bool:
        """Return True if legal ids that are different can all stay as they are, for each of the session's targets."""
        return self._used.isdisjoint(ids) and all(
            len(images := set(map(image, ids))) == len(ids) and taken.isdisjoint(images)
            for image, taken in self._images
        )

    def claim_answered(self, ids: Sequence[str]) -> None:
        """Take legal ids that are admitted, of calls that are answered."""
        self._used.update(ids)
        for image, taken in self._images:
            taken.update(map(image, ids))
        for each in self._settled.keys() & ids:
            self._earlier.setdefault(each, []).append(self._settled[each])
        self._settled.update(dict.fromkeys(ids))

    def settle_call(self, call: SettledCall) -> None:
        """Remember how a call ended, for results that come after it has been settled."""
        if call.original in self._settled:
            self._earlier.setdefault(call.original, []).append(self._settled[call.original])
        self._settled[call.original] = call

    def unsettle_call(self, call: SettledCall) -> None:
        """Take back the call that was settled last, as if it had never been made."""
        earlier = self._earlier.get(call.original)
        if earlier:
            self._settled[call.original] = earlier.pop()
        else:
            self._settled.pop(call.original, None)
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
        self.reload_open(call.original, call.final)
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
        """Return how the last settled call of this id ended; None if there is none."""
        if original not in self._settled:
            return None
        settled = self._settled[original]
        return settled is None or settled.answered

    def settled_as(self, original: str) -> str:
        """Return the id in the output of the last settled call of this id."""
        settled = self._settled.get(original)
        return original if settled is None else settled.final


def _derive(original: str, count: int) -> str:
    stem = _ILLEGAL_RUN.sub("_", original)[:_STEM] or "call"
    digest = hashlib.sha256(f"{count}:{original}".encode("utf-8", "replace")).hexdigest()[:_DIGEST]
    return f"{stem}-{digest}"
