"""Compares the outputs of two sides for the same input: each session separately, with differences counted by kind.

Everything is without I/O: exact JSON (``values``), the outputs of one record (``outputs``), streams (``items``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from msgspec import Struct, field

from reknit.pipeline.diff.items import compare_items, compare_recorded
from reknit.pipeline.diff.outputs import (
    Change,
    How,
    Published,
    Repeats,
    Subject,
    compare_fixes,
    compare_letters,
    compare_repeats,
    compare_requests,
    texts,
)
from reknit.topics import AGENT_TURNS, DEAD_LETTERS, HISTORY_FIXES, PROVIDER_REQUESTS, SESSION_ITEMS
from reknit.topics import headers as names

# In the order in which differences are listed, with what is counted as compared.
_COMPARERS = (
    (PROVIDER_REQUESTS, "requests", compare_requests),
    (DEAD_LETTERS, "dead letters", compare_letters),
    (HISTORY_FIXES, "fixes", compare_fixes),
    (SESSION_ITEMS, "records of items", compare_items),
    (AGENT_TURNS, "recorded turns", compare_recorded),
)
COMPARED_TOPICS = tuple(topic for topic, _, _ in _COMPARERS)


class Compared(Struct, frozen=True, kw_only=True):
    """The findings of one session.

    Attributes:
        versions: the builds that wrote its requests and dead letters, by side.
        not_comparable: why it was not compared; the rest is then empty.
        counts: the number of each, on the side with more.
        repeats: the number of records that a side with at-least-once delivery published again, with equal id and bytes.
    """

    session: str
    versions: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    not_comparable: str = ""
    counts: dict[str, int] = {}
    repeats: int = 0
    changes: tuple[Change, ...] = ()

    @property
    def mixed(self) -> bool:
        """True if several versions wrote one of its sides, so that it is compared with no single one."""
        return any(len(versions) > 1 for versions in self.versions)


def compare_session(
    session: str,
    before: Iterable[Published],
    after: Iterable[Published],
    at_least_once: tuple[bool, bool] = (False, False),
) -> Compared:
    """Everything that differs between both sides of a session, whose records may come in any order of partitions.

    ``at_least_once`` says of each side whether its worker may publish a record again. Repeats of such a side are
    counted; any other difference in how often a record was published is a change.
    """
    sides = _by_topic(before), _by_topic(after)
    why = next(filter(None, map(_not_comparable, sides)), "")
    if why:
        return Compared(session=session, not_comparable=why)
    counts: dict[str, int] = {}
    changes: list[Change] = []
    repeats = Repeats(at_least_once[0]), Repeats(at_least_once[1])
    for topic, counted, compare in _COMPARERS:
        one, other = (side.get(topic, []) for side in sides)
        if one or other:
            counts[counted] = max(len(one), len(other))
            changes += compare(one, other, repeats)
    explained, unexplained = compare_repeats(*repeats)
    changes += unexplained
    return Compared(
        session=session,
        versions=(_versions(sides[0]), _versions(sides[1])),
        counts=counts,
        repeats=explained,
        changes=tuple(changes),
    )


def _by_topic(records: Iterable[Published]) -> dict[str, list[Published]]:
    found: dict[str, list[Published]] = {}
    for record in sorted(records, key=lambda record: (record.partition, record.offset)):
        found.setdefault(record.topic, []).append(record)
    return found


_VERSIONS = frozenset({names.REKNIT_VERSION, names.ERROR_VERSION})


def _versions(side: dict[str, list[Published]]) -> tuple[str, ...]:
    written = (header for records in side.values() for record in records for header in names.as_texts(record.headers))
    return tuple(sorted({version for name, version in written if name in _VERSIONS}))


LIMITED = "a limit of its tenant refused records, which depends on the tenant's other sessions"


def _not_comparable(side: dict[str, list[Published]]) -> str:
    """Why the records of a side say nothing about another side's, if they do not."""
    for record in side.get(DEAD_LETTERS, ()):
        said = texts(record)
        if names.ERROR_LIMIT in said:
            return LIMITED
        if said.get(names.ERROR_CODE) == "forgotten":
            return "forgotten"
    if any(names.CAUSE not in texts(record) for record in side.get(PROVIDER_REQUESTS, ())):
        return "requests of a version that did not name their cause"
    return ""


# The number of examples for each kind of difference, each of another session.
_EXAMPLES = 3


class Kind(Struct, kw_only=True):
    """One kind of difference: how often, in how many sessions, and the first of some sessions."""

    subject: Subject
    how: How
    label: str
    count: int = 0
    sessions: int = 0
    examples: list[tuple[str, Change]] = field(default_factory=list)


class Tally(Struct, kw_only=True):
    """The joint findings of some sessions."""

    sessions: int = 0
    differing: int = 0
    repeats: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    kinds: dict[tuple[str, str, str], Kind] = field(default_factory=dict)

    def add_session(self, compared: Compared) -> bool:
        """Count a session; whether it is an example of some kind."""
        is_example = False
        self.sessions += 1
        self.differing += bool(compared.changes)
        self.repeats += compared.repeats
        self.counts.update(compared.counts)
        seen: Counter[tuple[str, str, str]] = Counter()
        for change in compared.changes:
            name = (change.subject, change.how, change.label)
            kind = self.kinds.setdefault(name, Kind(subject=change.subject, how=change.how, label=change.label))
            kind.count += 1
            if not seen[name]:
                kind.sessions += 1
                if len(kind.examples) < _EXAMPLES:
                    kind.examples.append((compared.session, change))
                    is_example = True
            seen[name] += 1
        return is_example

    def ranked(self) -> list[Kind]:
        """Kinds by subject in the order of the comparison, the most frequent first."""
        order = {subject: at for at, subject in enumerate(_SUBJECTS)}
        return sorted(self.kinds.values(), key=lambda kind: (order[kind.subject], -kind.count, kind.how, kind.label))


_SUBJECTS: tuple[Subject, ...] = ("request", "rejection", "dead letter", "fix", "item", "recorded")


class Summary(Struct, kw_only=True):
    """The findings of the whole comparison.

    Attributes:
        plain: sessions that one version wrote on each side.
        mixed: sessions with a side that several versions wrote, listed separately.
        not_comparable: sessions, or the outputs of one of their inputs, that were not compared, by the reason.
        uncovered: the number of records that were left out because only one side can have them.
    """

    plain: Tally = field(default_factory=Tally)
    mixed: Tally = field(default_factory=Tally)
    not_comparable: dict[str, list[str]] = field(default_factory=dict)
    uncovered: int = 0

    def add_session(self, compared: Compared) -> bool:
        """Count a session; whether it is an example of some kind of difference."""
        if compared.not_comparable:
            self.leave_out(compared.session, compared.not_comparable)
            return False
        return (self.mixed if compared.mixed else self.plain).add_session(compared)

    def leave_out(self, session: str, why: str) -> None:
        self.not_comparable.setdefault(why, []).append(session)
