"""Decides whether the pipeline keeps up, as the header of every page shows it. Pure but for its clocks.

A look at the cluster finds the offsets of the worker's group in each partition of the inputs, the ends of these
partitions, and whether the group has members. A page evaluates the last look when it is rendered. A look that is too
old proves nothing, so no page shows a good state while no broker answers.

A partition has records waiting where the group's position is before its end. That is normal for a moment. The state is
good only if no record has waited longer than ``LATE_SECONDS`` and the group has members.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, TypeAlias

from msgspec import Struct, structs

from reknit.topics import INPUTS

# A look is made every two seconds and may take three: without a newer one for this long, none succeeded.
FRESH_SECONDS: Final = 6.0
# A record may wait this long. A transaction takes milliseconds, a rebalance of few workers some seconds.
LATE_SECONDS: Final = 5.0
# A partition with records waiting whose position has not moved for this long is stuck.
STUCK_SECONDS: Final = 30.0

Level: TypeAlias = Literal["good", "warn", "bad", "unknown"]
# A partition of an input: the contract's name of the topic, and the number.
Place: TypeAlias = tuple[str, int]


class Seen(Struct, frozen=True, kw_only=True):
    """One partition of an input as a look found it. Offsets are those of the input.

    Attributes:
        first: the first offset that the topic still holds.
        end: the offset after the last one, also of an open transaction.
        position: the worker's next offset as its group has committed it; None where it has committed none.
        has_records: whether a record is between position and end; None where that was not looked at. Without one only
            the ends of transactions are left, which no worker takes note of.
        oldest_ms: when the oldest of these was written, in milliseconds since 1970; None where that is not known.
    """

    first: int
    end: int
    position: int | None
    has_records: bool | None = None
    oldest_ms: int | None = None

    @property
    def next(self) -> int:
        """The offset at which a worker resumes: it skips offsets that the topic no longer holds."""
        return self.first if self.position is None else max(self.first, self.position)

    @property
    def waits(self) -> bool:
        return self.next < self.end and self.has_records is not False


class Look(Struct, frozen=True, kw_only=True):
    """The result of one look at the cluster.

    Attributes:
        partitions: the partitions of the inputs.
        is_at_work: whether the worker's group has members.
        newest: the times of the newest record by topic, of those that the index has; milliseconds since 1970.
    """

    partitions: Mapping[Place, Seen]
    is_at_work: bool
    newest: Mapping[str, int] = {}


class Loss(Struct, frozen=True, kw_only=True):
    """Offsets of an input that retention removed before they were processed; ``next`` is the first that is there."""

    topic: str
    partition: int
    first: int
    next: int
    seen_ms: int

    @property
    def offsets(self) -> int:
        return self.next - self.first


class Waiting(Struct, frozen=True, kw_only=True):
    """A partition as a page shows it.

    Attributes:
        topic: the contract's name.
        partition: the number.
        position: the worker's next offset, None where it has committed none.
        end: the offset after the last record.
        records: offsets that wait.
        seconds: for how long the oldest of them has waited.
        still_seconds: for how long the position has not moved while records waited.
    """

    topic: str
    partition: int
    position: int | None
    end: int
    records: int
    seconds: float
    still_seconds: float

    @property
    def is_stuck(self) -> bool:
        return self.still_seconds >= STUCK_SECONDS


class Status(Struct, frozen=True, kw_only=True):
    """The state that pages show.

    Attributes:
        level: how to show it; ``good`` only if the last look is recent and nothing waits for long.
        words: the state in a few words.
        partitions: the partitions that the last look found.
        losses: the losses of the last days, the newest first.
        is_at_work: whether the worker's group has members; None where that is not known.
        age_seconds: how old the last look is; None before the first.
        input_seconds: how long ago the newest record of an input was written; None where the index has none.
        output_seconds: the same of what the worker wrote: its outputs, and its state.
    """

    level: Level
    words: str
    partitions: Sequence[Waiting] = ()
    losses: Sequence[Loss] = ()
    is_at_work: bool | None = None
    age_seconds: float | None = None
    input_seconds: float | None = None
    output_seconds: float | None = None

    @property
    def waiting(self) -> int:
        """Records that wait, in all partitions."""
        return sum(partition.records for partition in self.partitions)

    @property
    def lost(self) -> int:
        return sum(loss.offsets for loss in self.losses)


class _Track:
    """One partition over all looks."""

    def __init__(self) -> None:
        self.seen: Seen | None = None
        self.moved_at = 0.0
        # When looks found which end, the oldest first, as far as the position has not reached it.
        self._ends: deque[tuple[float, int]] = deque()

    def note(self, seen: Seen, now: float) -> None:
        before = self.seen
        if before is None or not before.waits or before.position != seen.position:
            self.moved_at = now
        self.seen = seen
        if not seen.waits:
            self._ends.clear()
            return
        if not self._ends or self._ends[-1][1] != seen.end:
            self._ends.append((now, seen.end))
        while self._ends[0][1] <= seen.next:
            self._ends.popleft()

    def waiting(self, place: Place, now: float, now_ms: float) -> Waiting | None:
        """Return the partition's state now; None before its first look."""
        seen = self.seen
        if seen is None:
            return None
        records, seconds, still = 0, 0.0, 0.0
        if seen.waits:
            records, still = seen.end - seen.next, now - self.moved_at
            # The record's own time counts too: it may have waited before the first look.
            seconds = max(now - self._ends[0][0], 0.0 if seen.oldest_ms is None else (now_ms - seen.oldest_ms) / 1000)
        return Waiting(
            topic=place[0],
            partition=place[1],
            position=seen.position,
            end=seen.end,
            records=records,
            seconds=seconds,
            still_seconds=still,
        )


class Progress:
    """Takes looks and evaluates them for pages.

    Args:
        clock: seconds that never go back.
        now_ms: the time of day, in milliseconds since 1970.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], float] = lambda: time.time() * 1000,
    ) -> None:
        self._clock = clock
        self._now_ms = now_ms
        self._began: float | None = None
        self._looked_at: float | None = None
        self._look: Look | None = None
        self._tracks: dict[Place, _Track] = {}
        self._problem = ""
        self.losses: Sequence[Loss] = ()

    def begin(self) -> None:
        """Note that looks are made from now on. Before, pages say that nothing is known."""
        self._began = self._clock()

    def note(self, look: Look) -> None:
        """Take a look."""
        now = self._clock()
        self._looked_at, self._look, self._problem = now, look, ""
        self._tracks = {place: self._tracks.get(place) or _Track() for place in look.partitions}
        for place, seen in look.partitions.items():
            self._tracks[place].note(seen, now)

    def note_problem(self, words: str) -> None:
        """Take why a look failed, if a broker answered. Pages show it once the last look is too old."""
        self._problem = words

    def silence(self) -> float | None:
        """Return the seconds since the last look if it is too old, else None."""
        since = self._began if self._looked_at is None else self._looked_at
        age = 0.0 if since is None else self._clock() - since
        return age if age > FRESH_SECONDS else None

    def status(self) -> Status:
        """The state at this moment."""
        now, now_ms, look = self._clock(), self._now_ms(), self._look
        found = [track.waiting(place, now, now_ms) for place, track in sorted(self._tracks.items())]
        partitions = [partition for partition in found if partition is not None]
        newest = {} if look is None else look.newest
        known = Status(
            level="unknown",
            words="not known yet",
            partitions=partitions,
            losses=self.losses,
            is_at_work=None if look is None else look.is_at_work,
            age_seconds=None if self._looked_at is None else now - self._looked_at,
            input_seconds=self._age(newest, is_input=True),
            output_seconds=self._age(newest, is_input=False),
        )
        level, words = self._verdict(known)
        return structs.replace(known, level=level, words=words)

    def _age(self, newest: Mapping[str, int], *, is_input: bool) -> float | None:
        latest = max((ms for topic, ms in newest.items() if (topic in INPUTS) == is_input), default=None)
        return None if latest is None else max(0.0, (self._now_ms() - latest) / 1000)

    def _verdict(self, known: Status) -> tuple[Level, str]:
        silence = self.silence()
        if silence is not None and self._problem:
            return "unknown", self._problem
        if silence is not None:
            return "bad", f"no broker has answered for {silence:,.0f} s"
        if known.age_seconds is None:
            return known.level, known.words
        if not known.partitions:
            return "bad", "the input topics are missing"
        stuck = [partition for partition in known.partitions if partition.is_stuck]
        if not known.is_at_work:
            return ("bad", f"no worker: {_records(known.waiting)}") if known.waiting else ("bad", "no worker")
        if stuck:
            return "bad", _stuck(stuck)
        late = max((partition.seconds for partition in known.partitions if partition.records), default=0.0)
        if late > LATE_SECONDS:
            return "warn", f"{_records(known.waiting)}, the oldest for {late:,.0f} s"
        return "good", "keeps up"


def _records(count: int) -> str:
    return f"{count:,} record waits" if count == 1 else f"{count:,} records wait"


def _stuck(partitions: Sequence[Waiting]) -> str:
    first = max(partitions, key=lambda partition: partition.still_seconds)
    more = f" and {len(partitions) - 1} more" if len(partitions) > 1 else ""
    seconds, records = f"{first.still_seconds:,.0f} s", _records(sum(partition.records for partition in partitions))
    return f"partition {first.partition} of {first.topic}{more} stuck for {seconds}: {records}"
