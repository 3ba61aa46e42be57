"""A promise that does not hold, and how things that should be the same are compared.

Bytes, values and lists; every block's line in the ledger, which is checked on the outcome alone; and two bodies of one
provider, under the excuses of fixes.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from reknit.pipeline.fixes import FIXES, Fix
from reknit.pipeline.history.pieces import LedgerEntry, block_path
from reknit.pipeline.model import Turn
from reknit.pipeline.rules.equalities import Equality, Node, plain, read_body
from reknit.pipeline.session import Normalized

Promise: TypeAlias = Literal[
    "valid", "accounted", "idempotent", "incremental", "settled", "folded", "healthy", "repeatable", "expected"
]

# How much of a text is shown around the place where it differs.
_SHOWN = 40


class ConformanceError(AssertionError):
    """A history for which a promise does not hold.

    Attributes:
        promise: the promise.
        target: the target.
        where: the place: a path in the history or the body, a number of bytes, a message.
        what: the found and the expected value.
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
    """Return the path of the first difference of two bodies, or ``""`` if they are equal; None is a refused body."""
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
    """Return the first place where two JSON values differ, with both values; None if they are equal.

    ``1``, ``1.0`` and ``true`` are different; the order of keys does not matter.
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
    """Return the difference of two lists in any order; ``""`` if they hold the same."""
    have, want = Counter(map(repr, found)), Counter(map(repr, wanted))
    more, less = sorted((have - want).elements()), sorted((want - have).elements())
    return "; ".join(f"{word} {', '.join(some)}" for word, some in (("unexpected", more), ("missing", less)) if some)


def input_paths(turns: Sequence[Turn]) -> list[str]:
    return [block_path(turn, at) for turn in turns for at in range(len(turn.blocks))]


def check_ledger(done: Normalized, turns: Sequence[Turn], shown: int | None) -> None:
    """Check that each block of ``turns`` has one outcome, each outcome a fix, and each of ``shown`` a line.

    Raises:
        ConformanceError: the block or outcome without one.
    """
    # Parts of a block (a result's image, a breakpoint) have lines in addition to the block's own, of which there is
    # one.
    own = [entry for entry in done.ledger if entry.path and not _is_inner(entry.path)]
    differs = lists_differ((entry.path for entry in own), input_paths(turns))
    if differs:
        raise ConformanceError("accounted", done.target, "ledger", f"lines against input blocks: {differs}")
    # An observed repair has changed nothing, so it accounts for nothing.
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
    """Check that each match of ``pattern`` in a block is in the body, or that a fix names the block.

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
    """True if a path leads into a block: ``messages.2.content.0.content.1``, ``messages.2.content.0.cache_control``."""
    return ".content." in path.partition(".content")[2] or path.endswith(".cache_control")


def _faults(entry: LedgerEntry, fixes: frozenset[tuple[str, str]]) -> Iterator[str]:
    # An unchanged block needs no reason; every other outcome results from one fix.
    if (entry.fate == "kept") != (entry.code == ""):
        yield f"fate {entry.fate!r} with code {entry.code!r}"
    # A block in the body has a place in it. Any other was dropped, and its line says so.
    if (entry.fate == "dropped") != (entry.output == ""):
        yield f"fate {entry.fate!r} with output {entry.output!r}"
    # A later result may replace a synthesised one: then it is dropped, and has no place in the input either.
    if entry.path == "" and entry.fate not in {"synthesised", "dropped"}:
        yield f"fate {entry.fate!r} without a place in the input"
    if entry.fate == "synthesised" and entry.path:
        yield f"synthesised, but from {entry.path}"
    if entry.fate == "synthesised" and not any(code == entry.code for code, _ in fixes):
        yield f"synthesised by {entry.code!r}, of which there is no fix"
    if entry.fate not in {"kept", "synthesised"} and not _is_named(entry, fixes):
        yield f"{entry.fate} by {entry.code!r}, but no fix names it"


def _is_named(entry: LedgerEntry, fixes: frozenset[tuple[str, str]]) -> bool:
    # A reader's fix names the exact field; the result's fix names a block out of a result.
    return (entry.code, entry.path) in fixes or any(
        code == entry.code and _related(path, entry.path) for code, path in fixes
    )


def _related(one: str, other: str) -> bool:
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")


# Compares a request before and after: the comparer behind the promise *harmless*.
#
# Two bodies of one provider are equal if they are the same JSON, members unordered, after a published list of
# equalities (``reknit.pipeline.rules.equalities``), compared by position. A fix excuses a difference at its path only:
# a dropped block may be missing, a changed one may differ, a moved one may be at another position, and an added one may
# be present. The comparer knows nothing of the targets, so that each cross-checks the other.

# How much of a value a difference quotes.
_QUOTED = 200


class Difference(Struct, frozen=True):
    """One place where two bodies differ; ``before`` and ``after`` are excerpts of the JSON, ``""`` if absent.

    ``path`` is the place in the input request; for an addition, in the output.
    """

    path: str
    kind: Literal["missing", "added", "changed"]
    before: str
    after: str


def differences(
    sent: bytes, came: bytes, equalities: Sequence[Equality], fixes: Iterable[Fix] = ()
) -> list[Difference]:
    """Return the differences of ``came`` from ``sent`` that no fix names, under a target's equalities.

    Raises:
        msgspec.DecodeError: one of the bodies is not JSON.
    """
    before, after = read_body(sent, equalities), read_body(came, equalities)
    return _Comparison(before, fixes).of(before, after)


class _Comparison:
    """Compares under the excuses of some fixes.

    ``_moved`` holds what stood at excused places and has not been found yet, ``_added`` how many things fixes added.
    """

    def __init__(self, before: Node, fixes: Iterable[Fix]) -> None:
        fixes = list(fixes)
        self._added = sum(FIXES[fix.code].fate == "synthesised" for fix in fixes)
        self._excused = {fix.path for fix in fixes}
        self._moved: list[Any] = [value for node in self._excused_in(before) for value in _movable(node)]

    def of(self, before: Node, after: Node) -> list[Difference]:
        if self._is_excused(before):
            # It stayed in its place, whatever its changes, so it is not elsewhere too.
            for value in _movable(before):
                if value in self._moved:
                    self._moved.remove(value)
            return []
        if isinstance(before.value, dict) and isinstance(after.value, dict):
            return self._of_members(before.value, after.value)
        if isinstance(before.value, list) and isinstance(after.value, list):
            return self._of_elements(before.value, after.value)
        if _are_same(before.value, after.value):
            return []
        return [Difference(before.path, "changed", _excerpt(before), _excerpt(after))]

    def _of_members(self, before: dict[str, Node], after: dict[str, Node]) -> list[Difference]:
        found = []
        for name in before.keys() | after.keys():
            if name not in after:
                found += self._missing(before[name])
            elif name not in before:
                found += self._extra(after[name])
            else:
                found += self.of(before[name], after[name])
        return found

    def _of_elements(self, before: list[Node], after: list[Node]) -> list[Difference]:
        found: list[Difference] = []
        at, to = 0, 0
        while at < len(before) and to < len(after):
            differ = self._trial(before[at], after[to])
            after_dropped = self._after_dropped(before, at, after[to], len(after) - to) if differ else None
            if after_dropped is not None:
                at = after_dropped
            elif differ and self._is_addition(before[at], after, to):
                found += self._extra(after[to])
                to += 1
            else:
                found += self.of(before[at], after[to])
                at, to = at + 1, to + 1
        for node in before[at:]:
            found += self._missing(node)
        for node in after[to:]:
            found += self._extra(node)
        return found

    def _after_dropped(self, before: list[Node], at: int, after: Node, left: int) -> int | None:
        """Return the first element after excused ones that equals the output element, or None."""
        if self._is_excused(before[at]) and len(before) - at > left:
            return at + 1
        for after_dropped in range(at, len(before)):
            if after_dropped > at and not self._trial(before[after_dropped], after):
                return after_dropped
            if not self._is_excused(before[after_dropped]):
                return None
        return None

    def _is_addition(self, before: Node, after: list[Node], to: int) -> bool:
        """Return True if an output element is an addition that fixes explain, and the next ones continue unchanged."""
        for after_dropped in range(to, len(after)):
            if after_dropped > to and not self._trial(before, after[after_dropped]):
                return True
            if not (self._added or plain(after[after_dropped]) in self._moved):
                return False
        return False

    def _trial(self, before: Node, after: Node) -> bool:
        """Return True if two values differ, without spending an excuse."""
        if self._is_excused(before):
            return bool(plain(before) != plain(after))
        saved = self._added, list(self._moved)
        differ = bool(self.of(before, after))
        self._added, self._moved = saved
        return differ

    def _missing(self, node: Node) -> list[Difference]:
        if self._is_excused(node):
            return []
        if self._holds_excused(node):
            return [difference for member in _members(node) for difference in self._missing(member)]
        return [Difference(node.path, "missing", _excerpt(node), "")]

    def _extra(self, node: Node) -> list[Difference]:
        value = plain(node)
        if value in self._moved:
            self._moved.remove(value)
            return []
        if self._added:
            self._added -= 1
            return []
        return [Difference(node.path, "added", "", _excerpt(node))]

    def _is_excused(self, node: Node) -> bool:
        parts = node.path.split(".")
        return any(".".join(parts[:end]) in self._excused for end in range(1, len(parts) + 1))

    def _holds_excused(self, node: Node) -> bool:
        return any(path.startswith(f"{node.path}.") for path in self._excused)

    def _excused_in(self, node: Node) -> Iterator[Node]:
        if self._is_excused(node):
            yield node
            return
        for member in _members(node):
            yield from self._excused_in(member)


def _members(node: Node) -> Iterable[Node]:
    if isinstance(node.value, dict):
        return node.value.values()
    return node.value if isinstance(node.value, list) else ()


def _movable(node: Node) -> Iterator[Any]:
    """Return the parts of a node that may be found elsewhere: it as a whole, and the structures in it one by one."""
    yield plain(node)
    for member in _members(node):
        if isinstance(member.value, (dict, list)):
            yield from _movable(member)


def _are_same(before: object, after: object) -> bool:
    """Return True if two scalars are the same JSON: 1 is 1.0, but neither is true."""
    numbers = isinstance(before, (int, float)) and isinstance(after, (int, float))
    return before == after and (type(before) is type(after) or (numbers and not {bool} & {type(before), type(after)}))


def _excerpt(node: Node) -> str:
    text = json.dumps(plain(node), ensure_ascii=False)
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED]}…"
