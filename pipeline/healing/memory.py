"""The memory of a session about its refusals, by target, and its effect on a request.

Values that were revoked are digests: a later request leaves them out wherever they are. Facts of a model or a
connection are rows of the table with what the sentence named: their repairs run again for each later request. So the
next request of the target is written correctly the first time, and a healed history stays the same from its beginning.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from msgspec import Struct, structs

from reknit.pipeline.healing.body import Change, RefusedBody, Revoked
from reknit.pipeline.healing.claude import drop_unbound
from reknit.pipeline.healing.errors import Refusal
from reknit.pipeline.healing.later import drop_revoked, later_of
from reknit.pipeline.healing.table import Healing as Row

# A session has few values that one provider refuses. The oldest are forgotten, and are then refused once more.
_MOST_VALUES: Final = 10_000
_LONGEST_SENTENCE: Final = 300


class Healing(Struct, frozen=True):
    """One healing of a request: the row that it is by, what its sentence names, the refusal and the request's id."""

    row: Row
    words: dict[str, str]
    refusal: Refusal
    request_id: str

    @property
    def names_place(self) -> bool:
        """False for a sentence without the place that its row can read."""
        return "path" in self.words or "(?P<path>" not in self.row.pattern.pattern


class Noted(Struct, frozen=True, array_like=True):
    """One healing: the row, the provider's words, and the id of the refused request, if it is known."""

    row: str
    sentence: str
    request_id: str = ""


class Value(Struct, frozen=True, array_like=True):
    """One revoked value (``Revoked``), and the number of its healing."""

    kind: str
    digest: bytes
    healing: int
    put: str = ""


class Fact(Struct, frozen=True, array_like=True):
    """The words of a sentence, the model that it is about (None: all of the target), and the number of its healing.

    ``is_new``: the user has not spoken since.
    """

    healing: int
    words: dict[str, str]
    param: str
    model: str | None
    is_new: bool = True


class TargetMemory(Struct, frozen=True, array_like=True):
    """The memory of one target.

    Attributes:
        healings: all of them, in their order.
        values: the revoked values.
        facts: in the order in which they were learned.
        count: the healings since the user spoke last.
        retried: the digest of a request that was refused for a cause that may pass by itself, and the report of it.
        pending: one of ``waiting``, in the state of versions that kept only the last one.
        waiting: the id of the request that each healing led to, and the row of the healing, until its outcome is
            known. The id is empty after a late refusal, until the next request is published, which is the healed one.
    """

    healings: tuple[Noted, ...] = ()
    values: tuple[Value, ...] = ()
    facts: tuple[Fact, ...] = ()
    count: int = 0
    retried: tuple[str, str] = ("", "")
    pending: tuple[str, str] = ("", "")
    waiting: tuple[tuple[str, str], ...] = ()

    @property
    def outcomes(self) -> tuple[tuple[str, str], ...]:
        """All healings whose outcome is not known."""
        return (self.pending, *self.waiting) if self.pending[1] else self.waiting

    def with_outcomes(self, waiting: Iterable[tuple[str, str]]) -> TargetMemory:
        return structs.replace(self, pending=("", ""), waiting=tuple(waiting))

    def with_healing(self, made: Healing, body: RefusedBody, own: int) -> TargetMemory:
        """Return the memory after one more healing.

        Args:
            made: the healing.
            body: of the refused request, changed; the first changes are those of the row, the others follow from them.
            own: the number of the row's own changes.
        """
        later, number = later_of(made.row.name), len(self.healings)
        remembered = body.changes if later.has_values else body.changes[own:]
        values = {(value.kind, value.digest): value for value in self.values}
        for change in remembered:
            if change.revoked is not None:
                revoked: Revoked = change.revoked
                known = (revoked.kind, revoked.digest)
                values[known] = Value(revoked.kind, revoked.digest, number, revoked.put)
        fact = Fact(number, made.words, made.refusal.param, None if later.is_of_target else body.model)
        facts = self.facts if later.again is None else (*self.facts, fact)
        return structs.replace(
            self,
            healings=(*self.healings, Noted(made.row.name, made.refusal.sentence[:_LONGEST_SENTENCE], made.request_id)),
            values=tuple(values.values())[-_MOST_VALUES:],
            facts=facts,
            count=self.count + 1,
            retried=("", ""),
        )

    def is_whole(self) -> bool:
        """Return True if its parts refer to its healings only."""
        numbers = {value.healing for value in self.values} | {fact.healing for fact in self.facts}
        return self.count >= 0 and numbers <= set(range(len(self.healings)))

    def spoken(self) -> TargetMemory:
        """Return the memory once the user speaks, with another count."""
        facts = tuple(structs.replace(fact, is_new=False) if fact.is_new else fact for fact in self.facts)
        return structs.replace(self, facts=facts, count=0, retried=("", ""))


NO_MEMORY: Final = TargetMemory()
Memory: TypeAlias = dict[str, TargetMemory]
"""The memory of a session, by target; empty if no request of it was ever refused."""


def apply_memory(body: RefusedBody, memory: TargetMemory, model: str) -> list[tuple[Change, Noted]]:
    """Change a request as earlier refusals require; return the changes, each with the healing that it is due to."""
    known = {(value.kind, value.digest): value for value in memory.values}
    made: list[tuple[Change, Noted]] = []
    if known:
        drop_revoked(body, {key: value.put for key, value in known.items()})
        last = memory.healings[-1]
        for change in body.changes:
            if change.revoked is not None:
                value = known.get((change.revoked.kind, change.revoked.digest))
                last = memory.healings[value.healing] if value is not None else last
            made.append((change, last))
    for fact in memory.facts:
        later = later_of(memory.healings[fact.healing].row)
        again = later.at_first or later.again if fact.is_new else later.again
        if again is None or fact.model not in (None, model):
            continue
        again(body, fact.words, Refusal(0, "", param=fact.param))
        made += [(change, memory.healings[fact.healing]) for change in body.changes[len(made) :]]
    return made


def try_repairs(body: RefusedBody, made: Healing, *, is_widest: bool) -> int:
    """Repair a refused request; return the number of changes of the row itself.

    A sentence may name a place outside of the request. Then the repair goes by kind.

    Args:
        body: of the request.
        made: the healing; without the word ``path``, the repair goes by kind.
        is_widest: narrower repairs were refused, so the widest applies.
    """
    row, later = made.row, later_of(made.row.name)
    repairs = [row.repair if made.names_place else None, later.by_kind, later.widest]
    if is_widest:
        repairs.reverse()
    for repair in repairs:
        if repair is not None and not body.changes:
            repair(body, made.words, made.refusal)
    own = len(body.changes)
    if own:
        drop_unbound(body)
    return own


def is_widest(memory: TargetMemory, row: Row, limit: int) -> bool:
    """Return True if a row was healed since the count began, and another narrow repair would be one too many.

    A provider names one block of reasoning at a time. Once it has named two, its keys, platform or organisation have
    probably changed, and all the others would follow one by one (can1357/oh-my-pi#12006).
    """
    recent = memory.healings[len(memory.healings) - memory.count :] if memory.count else ()
    is_last = memory.count == limit - 1
    return any(noted.row == row.name for noted in recent) and (is_last or row.loss == "reasoning")
