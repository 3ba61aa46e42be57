"""A promise that does not hold, and how two things that should be the same are compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

Promise: TypeAlias = Literal[
    "valid", "accounted", "idempotent", "incremental", "settled", "folded", "healthy", "repeatable", "expected"
]

# How much of a text is shown around the place where it differs.
_SHOWN = 40


class ConformanceError(AssertionError):
    """A promise does not hold for a history.

    Attributes:
        promise: which one.
        target: for which target.
        where: the place: a path in the history or the body, a number of bytes, a message.
        what: what was found, and what was to be found.
    """

    def __init__(self, promise: Promise, target: str, where: str, what: str) -> None:
        super().__init__(promise, target, where, what)
        self.promise = promise
        self.target = target
        self.where = where
        self.what = what

    def __str__(self) -> str:
        """Read as ``promise, target, where: what``."""
        place = f", {self.where}" if self.where else ""
        return f"{self.promise}, {self.target}{place}: {self.what}"


def bytes_differ(found: bytes | None, wanted: bytes | None) -> str:
    """Where two bodies part, or ``""`` where they are the same; None is a body that was refused."""
    if found == wanted:
        return ""
    if found is None or wanted is None:
        return f"{_body(found)}, expected {_body(wanted)}"
    pairs = enumerate(zip(found, wanted, strict=False))
    at = next((at for at, (one, other) in pairs if one != other), min(len(found), len(wanted)))
    start = max(0, at - _SHOWN // 2)
    return f"byte {at}: {found[start : at + _SHOWN]!r}, expected {wanted[start : at + _SHOWN]!r}"


def _body(body: bytes | None) -> str:
    return "the body was refused" if body is None else f"a body of {len(body)} bytes"


def values_differ(found: Any, wanted: Any, path: str = "") -> tuple[str, str] | None:  # noqa: ANN401  any JSON
    """The first place where two JSON values differ, with what is there; None where they are equal.

    ``1``, ``1.0`` and ``true`` are three values; the order of keys is none.
    """
    if type(found) is not type(wanted):
        return path, f"{found!r}, expected {wanted!r}"
    if isinstance(found, dict):
        for key in [*wanted, *(key for key in found if key not in wanted)]:
            if key not in found or key not in wanted:
                return _joined(path, key), "missing" if key not in found else f"{found[key]!r}, expected nothing"
            differs = values_differ(found[key], wanted[key], _joined(path, key))
            if differs:
                return differs
        return None
    if isinstance(found, list):
        for at, (one, other) in enumerate(zip(found, wanted, strict=False)):
            differs = values_differ(one, other, _joined(path, str(at)))
            if differs:
                return differs
        if len(found) != len(wanted):
            return path, f"{len(found)} elements, expected {len(wanted)}"
        return None
    return None if found == wanted else (path, f"{found!r}, expected {wanted!r}")


def _joined(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def lists_differ(found: Iterable[object], wanted: Iterable[object]) -> str:
    """What one list has and the other has not, whatever their order; ``""`` where they hold the same."""
    have, want = Counter(map(repr, found)), Counter(map(repr, wanted))
    more, less = sorted((have - want).elements()), sorted((want - have).elements())
    return "; ".join(f"{word} {', '.join(some)}" for word, some in (("unexpected", more), ("missing", less)) if some)
