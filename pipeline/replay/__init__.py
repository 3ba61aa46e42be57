"""The plan of a replay, which is settled before it begins, and the stage that executes it.

A replay processes a pipeline's inputs again, into topics of its own (``replays``) or files (``folder``), and its
outputs are compared with others (``sides``, ``reading``). Its plan is a value: equal in every process that takes part,
and stored with the outputs, so that a comparison knows what they cover. A range selects outputs by the records that
they are made from. Earlier records of the same sessions are processed as well, from the session's first record, and
their outputs are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import groupby
from typing import Literal, TypeAlias

from msgspec import Struct

from reknit.pipeline.errors import ReknitError
from reknit.pipeline.stages.base import Record, Result, Stage
from reknit.pipeline.stages.kept import marker_digest
from reknit.topics import PROVIDER_EVENTS
from reknit.topics import headers as names

# Each input, and in the order of its partitions.
Offsets: TypeAlias = dict[str, list[int]]
# From the first offset to the one after the last.
Stretch: TypeAlias = tuple[int, int]

_PATTERN = frozenset("*?[")
# The number of sessions for which the match of the patterns is cached: matching costs more than a record.
_REMEMBERED = 10_000


class Place(Struct, frozen=True, order=True):
    """Records of one partition of an input, the last included."""

    topic: str
    partition: int
    first: int
    last: int


class Selection(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The requested outputs: of these sessions, made from records of this time or of these places.

    ``sessions`` are ids, or patterns with ``*``, ``?`` and ``[…]``. Times are those of records, in milliseconds since
    the epoch; ``until`` is exclusive. ``dead_letters`` selects only sessions that have one.
    """

    sessions: tuple[str, ...] = ()
    since: int | None = None
    until: int | None = None
    offsets: tuple[Place, ...] = ()
    dead_letters: bool = False

    def has_range(self) -> bool:
        return self.since is not None or self.until is not None or bool(self.offsets)

    def names(self, session: str) -> bool:
        """Return True if it is one of the sessions that were asked for."""
        return not self.sessions or any(
            session == each or (not _PATTERN.isdisjoint(each) and fnmatchcase(session, each)) for each in self.sessions
        )


class Uncompared(Struct, frozen=True, order=True):
    """A session that a replay of an input (contract name) does not cover.

    ``expired``: the input begins after its first record. ``limited``: its tenant's limits refused records of it, which
    depends on sessions that a replay may leave out.
    """

    session: str
    topic: str
    why: Literal["expired", "limited"]


class Plan(Struct, frozen=True, kw_only=True):
    """A replay, as settled at its start.

    Args:
        id: its name.
        version: of the build that settled it.
        created: when, in milliseconds since the epoch; 0 in a dry run, whose files depend on the log alone.
        source_prefix: that of the inputs.
        partitions: the number of partitions of each topic.
        starts: the first offset of each partition of the inputs.
        ends: the last stable offset of each; records from there on are not read.
        selection: the requested outputs.
        ranges: the records that outputs are made from, by input and partition; None: all.
        chosen: the sessions that are processed, each with the runs of events that have records in the range (None is
            the run without a name); None: all sessions.
        uncompared: sessions that are not processed, by input.
        forgotten: digests of sessions that were forgotten; they are not processed either.
        bases: of an input that was re-created and accepted, the bases of its offsets by partition
            (``reknit.topics.positions``); they are part of the ids of requests.
    """

    id: str
    version: str
    created: int
    source_prefix: str
    partitions: int
    starts: Offsets
    ends: Offsets
    selection: Selection = Selection()
    ranges: dict[str, list[list[Stretch]]] | None = None
    chosen: dict[str, list[str | None]] | None = None
    uncompared: list[Uncompared] = []
    forgotten: list[str] = []
    bases: Offsets = {}

    def covers(self, topic: str, partition: int, offset: int) -> bool:
        """Return True if outputs that a record of an input leads to are outputs of the replay, if its session is."""
        if self.ranges is None:
            return offset < self.ends[topic][partition]
        return any(first <= offset < behind for first, behind in self.ranges[topic][partition])

    def covers_run(self, session: str, run: str | None) -> bool:
        """Return True if the items of a run are outputs of the replay, whole."""
        runs = None if self.chosen is None else self.chosen.get(session, [])
        return self.ranges is None or runs is None or None in runs or run in runs

    def takes(self, session: str) -> bool:
        """Return True if a session is processed, where it is not among those that cannot be compared."""
        return (
            (self.chosen is None or session in self.chosen)
            and self.selection.names(session)
            and not self.forgets(session.encode())
        )

    def forgets(self, session: bytes) -> bool:
        """Return True if the session was forgotten when the replay began."""
        return bool(self.forgotten) and digest_of(session) in self.forgotten

    def takes_everything(self) -> bool:
        return self.selection == Selection() and not (self.uncompared or self.forgotten)


def digest_of(session: bytes) -> str:
    """Return the name by which a plan lists a forgotten session."""
    return marker_digest(session).hex()


class PlannedStage:
    """A stage that processes the records of a plan, and drops outputs outside of its range."""

    def __init__(self, stage: Stage, plan: Plan) -> None:
        self.topic = stage.topic
        self.state_topic = stage.state_topic
        self.keep_in, self.use_format, self.restore = stage.keep_in, stage.use_format, stage.restore
        self.committed, self.levels = stage.committed, stage.levels
        self.due_record, self.drop_due, self.has_room = stage.due_record, stage.drop_due, stage.has_room
        self.released_at, self.scales = stage.released_at, stage.scales
        self._stage = stage
        self._plan = plan
        self._skipped = {each.session for each in plan.uncompared if each.topic == stage.topic}
        self._takes = lru_cache(_REMEMBERED)(self._takes_session)

    def process(self, records: Sequence[Record]) -> Result:
        result = Result()
        for is_shown, some in groupby(filter(self._is_taken, records), self._is_shown):
            _add(result, self._stage.process(list(some)), outputs=is_shown)
        return result

    def refuse(self, record: Record, error: ReknitError) -> Result:
        result = Result()
        _add(result, self._stage.refuse(record, error), outputs=self._is_shown(record))
        return result

    def _is_taken(self, record: Record) -> bool:
        if not record.key:  # of no session, and a dead letter
            return not self._plan.selection.sessions and self._plan.covers(self.topic, record.partition, record.offset)
        return self._takes(record.key)

    def _takes_session(self, key: bytes) -> bool:
        session = key.decode("utf-8", "replace")
        return session not in self._skipped and self._plan.takes(session)

    def _is_shown(self, record: Record) -> bool:
        if self._plan.covers(self.topic, record.partition, record.offset):
            return True
        if self.topic != PROVIDER_EVENTS or not record.key:
            return False
        # Without a name a record belongs to the run under way, whichever that is.
        run = names.find_text(record.headers, names.RUN)
        return run is None or self._plan.covers_run(record.key.decode("utf-8", "replace"), run)


def _add(result: Result, made: Result, *, outputs: bool) -> None:
    if outputs:
        result.outputs += made.outputs
        _count(result.tally, made.tally)
    result.changes |= made.changes


def _count(tally: dict[tuple[str, ...], float], more: Mapping[tuple[str, ...], float]) -> None:
    for key, amount in more.items():
        tally[key] = tally.get(key, 0) + amount
