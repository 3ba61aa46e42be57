"""Whether a request came out with the meaning that it went in with: the comparer behind the promise *harmless*.

Two bodies of one provider are equal if they are the same JSON, members unordered, after a published list of equalities
(``pipeline.rules.equalities``), compared position by position. A fix excuses what stands at the path that it names,
and nothing else: what was dropped there may be missing, what was changed there may differ, what was moved from there
may stand elsewhere, and each thing that a fix added may be there.

Nothing of the targets is imported here, so that one can convict the other.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

from msgspec import Struct

from pipeline.fixes import FIXES, Fix
from pipeline.rules.equalities import Equality, Node, plain, read_body

# How much of a value a difference quotes.
_QUOTED = 200


class Difference(Struct, frozen=True):
    """One place where two bodies differ; ``before`` and ``after`` are excerpts of the JSON, ``""`` where there is none.

    ``path`` is the place in the request that went in; of what was added, in the one that came out.
    """

    path: str
    kind: Literal["missing", "added", "changed"]
    before: str
    after: str


def differences(
    sent: bytes, came: bytes, equalities: Sequence[Equality], fixes: Iterable[Fix] = ()
) -> list[Difference]:
    """What ``came`` says otherwise than ``sent`` although no fix names it, under a target's equalities.

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
            # It stayed in its place, whatever became of it there, so it is not elsewhere too.
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
            behind = self._behind_dropped(before, at, after[to], len(after) - to) if differ else None
            if behind is not None:
                at = behind
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

    def _behind_dropped(self, before: list[Node], at: int, after: Node, left: int) -> int | None:
        """The first element behind some that fixes excuse which is what came out here, if there is one."""
        if self._is_excused(before[at]) and len(before) - at > left:
            return at + 1
        for behind in range(at, len(before)):
            if behind > at and not self._trial(before[behind], after):
                return behind
            if not self._is_excused(before[behind]):
                return None
        return None

    def _is_addition(self, before: Node, after: list[Node], to: int) -> bool:
        """Whether an element that came out is one more, which fixes explain, and the next ones go on as they were."""
        for behind in range(to, len(after)):
            if behind > to and not self._trial(before, after[behind]):
                return True
            if not (self._added or plain(after[behind]) in self._moved):
                return False
        return False

    def _trial(self, before: Node, after: Node) -> bool:
        """Whether two values differ, without spending an excuse."""
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
    """What may be found elsewhere of a node: it as a whole, and the structures in it one by one."""
    yield plain(node)
    for member in _members(node):
        if isinstance(member.value, (dict, list)):
            yield from _movable(member)


def _are_same(before: object, after: object) -> bool:
    """Whether two scalars are the same JSON: 1 is 1.0, but neither is true."""
    numbers = isinstance(before, (int, float)) and isinstance(after, (int, float))
    return before == after and (type(before) is type(after) or (numbers and not {bool} & {type(before), type(after)}))


def _excerpt(node: Node) -> str:
    text = json.dumps(plain(node), ensure_ascii=False)
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED]}…"
