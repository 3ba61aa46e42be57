"""A promise that does not hold.

How two things that should be the same are compared, and whether every block is accounted for, which is checked on the
outcome alone.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, TypeAlias

from pipeline.history.pieces import LedgerEntry, block_path
from pipeline.model import Turn
from pipeline.session import Normalized

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


def input_paths(turns: Sequence[Turn]) -> list[str]:
    return [block_path(turn, at) for turn in turns for at in range(len(turn.blocks))]


def check_ledger(done: Normalized, turns: Sequence[Turn], shown: int | None) -> None:
    """Each block of ``turns`` has one fate, each fate its fix, and each of ``shown`` output blocks a line.

    Raises:
        ConformanceError: what is not accounted for.
    """
    # Lines of what lies in a block (a result's image, a breakpoint) come beside the block's own, of which there is one.
    own = [entry for entry in done.ledger if entry.path and not _is_inner(entry.path)]
    differs = lists_differ((entry.path for entry in own), input_paths(turns))
    if differs:
        raise ConformanceError("accounted", done.target, "ledger", f"lines against input blocks: {differs}")
    # What is only observed has changed nothing, so it accounts for nothing.
    fixes = frozenset((fix.code, fix.path) for fix in done.fixes if not fix.observed)
    for entry in done.ledger:
        for fault in _faults(entry, fixes):
            raise ConformanceError("accounted", done.target, entry.path or entry.output, fault)
    if shown is None or done.body is None:
        return
    # Several input blocks may be joined into one output block, so places are counted, and not lines. The system slot is
    # no block of a message.
    outputs = {entry.output for entry in done.ledger if entry.output not in {"", "system"}}
    if len(outputs) != shown:
        raise ConformanceError(
            "accounted", done.target, "body", f"{shown} blocks, but {len(outputs)} have a line in the ledger"
        )


def check_marks(done: Normalized, messages: Sequence[Any], pattern: str) -> None:
    """What ``pattern`` finds in a block is in the body as well, or a fix names the block.

    Raises:
        ConformanceError: the first block that lost a mark without a fix.
    """
    if done.body is None:
        return
    # A ledger can be consistent and still be wrong about a block, so words that nothing else says are looked for.
    left = set(re.findall(pattern, done.body.decode()))
    named = {fix.path for fix in done.fixes if not fix.observed}
    for at, message in enumerate(messages):
        content = message.get("content")
        for place, block in enumerate(content if isinstance(content, list) else ()):
            path = f"messages.{at}.content.{place}"
            lost = set(re.findall(pattern, json.dumps(block))) - left
            if lost and path not in named:
                raise ConformanceError("accounted", done.target, path, f"lost {', '.join(sorted(lost))} without a fix")


def _is_inner(path: str) -> bool:
    """Whether a path leads into a block: ``messages.2.content.0.content.1``, ``messages.2.content.0.cache_control``."""
    return ".content." in path.partition(".content")[2] or path.endswith(".cache_control")


def _faults(entry: LedgerEntry, fixes: frozenset[tuple[str, str]]) -> Iterator[str]:
    # A block that came through as it was owes nobody a reason; every other fate is the doing of one fix.
    if (entry.fate == "kept") != (entry.code == ""):
        yield f"fate {entry.fate!r} with code {entry.code!r}"
    # What is in the body stands somewhere in it. What is not was dropped, and says so.
    if (entry.fate == "dropped") != (entry.output == ""):
        yield f"fate {entry.fate!r} with output {entry.output!r}"
    # What was synthesised may give way to what came later: then it is dropped, and has no place in the input either.
    if entry.path == "" and entry.fate not in {"synthesised", "dropped"}:
        yield f"fate {entry.fate!r} without a place in the input"
    if entry.fate == "synthesised" and entry.path:
        yield f"synthesised, but from {entry.path}"
    if entry.fate == "synthesised" and not any(code == entry.code for code, _ in fixes):
        yield f"synthesised by {entry.code!r}, of which there is no fix"
    if entry.fate not in {"kept", "synthesised"} and not _is_named(entry, fixes):
        yield f"{entry.fate} by {entry.code!r}, but no fix names it"


def _is_named(entry: LedgerEntry, fixes: frozenset[tuple[str, str]]) -> bool:
    # Reading names the very field that it mended; a block out of a result is named by the result's fix.
    return (entry.code, entry.path) in fixes or any(
        code == entry.code and _related(path, entry.path) for code, path in fixes
    )


def _related(one: str, other: str) -> bool:
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")
