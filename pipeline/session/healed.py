"""A request as earlier refusals of its target require it: without what its provider revoked.

The request is changed in the target's own bytes, after everything else. A session whose requests were never refused
does not come here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Final, TypeAlias

import msgspec
from msgspec import structs

from reknit.pipeline.errors import InputError
from reknit.pipeline.fixes import Fix, digest
from reknit.pipeline.healing.body import Change, JsonObject, RefusedBody, items_in
from reknit.pipeline.healing.later import is_lossless, later_of
from reknit.pipeline.healing.memory import Noted, TargetMemory, apply_memory
from reknit.pipeline.history.pieces import LedgerEntry
from reknit.pipeline.registry import target_named
from reknit.pipeline.rules.base import Violation
from reknit.pipeline.session.request import Body, Normalized

HEALED: Final = "healed"
"""The prefix reset of the first request without what was revoked."""

Renormalize: TypeAlias = Callable[[bytes], Normalized]


class HealedBody(Body):
    """The bytes of a healed request, which has no settled chunks of its own."""

    def __init__(self, whole: bytes) -> None:
        self.active = ()
        self.open_data = [whole]
        self._healed = whole

    @property
    def ends(self) -> tuple[bytes, bytes]:
        return self._healed, b""

    @property
    def parts(self) -> list[bytes]:
        return self.open_data

    @cached_property
    def whole(self) -> bytes:
        return self._healed

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self._healed).hexdigest()


class HealedRequest(Normalized):
    """A request without what its target's provider revoked.

    ``made`` is the request as the history has it, and ``then`` its repair, where the rules ask for one after that.
    """

    def __init__(
        self,
        made: Normalized,
        body: RefusedBody,
        changes: Sequence[tuple[Change, Noted]],
        violations: list[Violation],
        then: Normalized | None,
    ) -> None:
        whole = msgspec.json.encode(body.value) if then is None else then.unjudged
        self.target = made.target
        self.violations = violations
        self.prefix_bytes = 0 if then is not None else _stable_bytes(made, body, changes, whole)
        self.reset = made.reset
        self.prefix_reset = made.prefix_reset
        self.judged_as = made.judged_as
        self.watched = made.watched
        self._is_text = False
        self._reporting = made.reporting
        self._body, self._account = HealedBody(whole), made.account
        self._made_of, self._refused, self._changes, self._then = made, body, changes, then

    @cached_property
    def open_fixes(self) -> list[Fix]:
        """The repairs of the open end, then those that refusals asked for, wherever they are."""
        paths = _InputPaths(self._made_of.ledger)
        healed = [_fix(self.target, change, noted, paths) for change, noted in self._changes]
        after = [] if self._then is None else self._then.fixes
        now = _InputPaths(self.ledger)
        repaired = [structs.replace(fix, target=self.target, path=now.find(fix.path)) for fix in after]
        return [*self._account.open_fixes, *healed, *repaired]

    @cached_property
    def ids(self) -> list[str | None]:
        """The ids of the messages that are still there."""
        ids, name = self._account.ids, self._refused.turns_name
        moves = self._refused.moves()
        kept = [ids[at] for at in range(len(ids)) if f"{name}.{at}" in moves]
        if self._then is None:
            return kept
        return [kept[at] if at < len(kept) else None for at in range(len(self._then.ids))]

    @cached_property
    def ledger(self) -> list[LedgerEntry]:
        """The outcome of every block, after healing."""
        moves, places = self._refused.moves(), self._refused.places
        codes = {change.path: f"healed_{noted.row}" for change, noted in reversed(self._changes)}
        entries = [_moved(entry, moves, places, codes) for entry in self._account.ledger]
        if self._then is None:
            return entries
        repaired = {entry.path: entry for entry in self._then.ledger}
        return [_repaired(entry, repaired) for entry in entries]


class _InputPaths:
    """The places of a history's blocks, by their places in a body."""

    def __init__(self, ledger: Sequence[LedgerEntry]) -> None:
        self._paths = {entry.output: entry.path for entry in reversed(ledger) if entry.output}

    def find(self, place: str) -> str:
        """Return the place in the history of a place in the body; the same without such a place."""
        steps = place.split(".")
        for end in range(len(steps), 1, -1):
            within = ".".join(steps[:end])
            if within in self._paths:
                return self._paths[within]
            inner = next((output for output in self._paths if output.startswith(f"{within}.")), None)
            if inner is not None:
                return self._paths[inner]
        return place


def _stable_bytes(made: Normalized, body: RefusedBody, changes: Sequence[tuple[Change, Noted]], whole: bytes) -> int:
    """Return how many bytes of a healed body the next one starts with: those of the same settled messages."""
    if not made.prefix_bytes or any(_is_passing(change, noted) for change, noted in changes):
        return 0
    name = body.turns_name
    settled = len(items_in((decoded_body(made.unjudged[: made.prefix_bytes] + _END) or {}).get(name)))
    moves = body.moves()
    kept = sum(f"{name}.{at}" in moves for at in range(settled))
    start = msgspec.json.encode(body.value | {name: body.turns[:kept]}).removesuffix(_END)
    return len(start) if whole.startswith(start) else 0


# The list of messages is the last member of every body that is healed.
_END: Final = b"]}"


def _is_passing(change: Change, noted: Noted) -> bool:
    """Return True if a change may not be made in the next request, or at another place."""
    later = later_of(noted.row)
    return later.is_relative or (change.path.endswith("thinking") and later.again is None)


def _fix(target: str, change: Change, noted: Noted, paths: _InputPaths) -> Fix:
    request = f" (request {noted.request_id})" if noted.request_id else ""
    return Fix(
        code=f"healed_{noted.row}",
        path=paths.find(change.path),
        lossless=is_lossless(noted.row),
        target=target,
        detail=f"{change.action}: {noted.sentence}{request}",
        before="" if change.revoked is None else change.revoked.digest.hex()[:16],
        after="" if change.revoked is None or not change.revoked.put else digest(change.revoked.put),
    )


def _moved(
    entry: LedgerEntry, moves: Mapping[str, str], places: frozenset[str], codes: Mapping[str, str]
) -> LedgerEntry:
    """Return the outcome of a block after healing; ``codes`` are the changes by their places."""
    steps = entry.output.split(".")
    outer = [".".join(steps[:end]) for end in range(len(steps), 1, -1)]
    code = next((codes[place] for place in outer if place in codes), "")
    within = next((place for place in outer if place in places), None)
    if within is None:
        return entry
    if within not in moves:
        return LedgerEntry(entry.path, "dropped", "", code or entry.code)
    output = moves[within] + entry.output[len(within) :]
    if code and entry.fate == "kept":
        return LedgerEntry(entry.path, "rewritten", output, code)
    return structs.replace(entry, output=output)


def _repaired(entry: LedgerEntry, repaired: Mapping[str, LedgerEntry]) -> LedgerEntry:
    """Return the outcome of a block after a further repair."""
    found = repaired.get(entry.output) or repaired.get(entry.output.removesuffix(".0"))
    if found is None or not entry.output:
        return entry
    fate, code = (found.fate, found.code) if found.fate != "kept" else (entry.fate, entry.code)
    return LedgerEntry(entry.path, fate, found.output, code)


def heal_request(
    made: Normalized, memory: TargetMemory, model: str, tail_rules: frozenset[str], renormalize: Renormalize
) -> Normalized:
    """Return a request without what was revoked; the same one if it has nothing of it.

    Args:
        made: the request as the history has it.
        memory: of its target.
        model: that it names, or that the session names.
        tail_rules: the rules whose violations stay as they are: they look only at the end.
        renormalize: repairs a body that breaks a rule once something is left out.
    """
    value = decoded_body(made.unjudged)
    if value is None:
        return made
    body = RefusedBody(made.target, value, model)
    changes = apply_memory(body, memory, model)
    if not changes:
        return made
    violations = _judged(msgspec.json.encode(body.value), made, tail_rules)
    if not _hard(violations) - _hard(made.violations):
        return HealedRequest(made, body, changes, violations, None)
    try:
        then = renormalize(msgspec.json.encode(body.value))
    except InputError:
        return made  # nothing is left of it
    if then.rejected and not made.rejected:
        return made  # its provider may refuse it, and the rules certainly do not allow it without what was revoked
    return HealedRequest(made, body, changes, then.violations, then)


# Levels of nesting that are copied within Python's limit of recursion, with room for the callers.
_DEEPEST: Final = 200


def decoded_body(body: bytes) -> JsonObject | None:
    """Return a body as JSON; None where it has numbers or a depth that cannot be written again."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return value if isinstance(value, dict) and not _is_deep(value) else None


def _is_deep(value: object) -> bool:
    level: list[object] = [value]
    for _ in range(_DEEPEST):
        inner: list[object] = []
        for each in level:
            inner += each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
        if not inner:
            return False
        level = inner
    return True


def _judged(body: bytes, made: Normalized, tail_rules: frozenset[str]) -> list[Violation]:
    found = target_named(made.target).rules.validate(body, made.judged_as)
    ends = [violation for violation in made.violations if violation.rule in tail_rules]
    return [*(violation for violation in found if violation.rule not in tail_rules), *ends]


def _hard(violations: Sequence[Violation]) -> set[str]:
    return {violation.rule for violation in violations if violation.severity == "hard"}
