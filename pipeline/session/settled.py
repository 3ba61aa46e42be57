"""The settled part of a session: shared by all targets, and each target's part of the request.

All lists only grow, so a request is a view of their first N entries. A session that starts again creates new lists.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import Struct

from reknit.pipeline.fixes import Fix, make
from reknit.pipeline.history.pieces import FixLog, LedgerEntry, Message, TrackedBlock, message_of
from reknit.pipeline.providers.base import Target
from reknit.pipeline.rules.base import Violation
from reknit.pipeline.session import judged, stable_prefix
from reknit.pipeline.session.judged import JudgedChunks, JudgedExtent
from reknit.pipeline.session.media import MediaStubs, holds_stub, stubbed_message
from reknit.pipeline.session.scaled import ScaledMedia, scaled_message
from reknit.pipeline.session.settled_state import Mark, SettledHead, SettledSlice, Size
from reknit.pipeline.session.stable_prefix import PrefixExtent, StablePrefix
from reknit.pipeline.targets import (
    Ending,
    Setting,
    first_given,
)
from reknit.pipeline.targets.limits import NO_LIMITS, limits_of
from reknit.pipeline.targets.valid_run import Origins, RunMessages, expanded, valid_run_encoder


class Shared:
    """The parts that a session's targets share: message ids, and the structure's fixes and losses."""

    def __init__(self) -> None:
        self.ids: list[str | None] = []
        self.fixes: list[Fix] = []
        self.dropped: list[LedgerEntry] = []
        self.system: list[TrackedBlock] = []


class Milestone(Struct, frozen=True, gc=False):
    """The extent to which a part was hashed, measured and judged at a segment. A rewind continues from there.

    ``segments`` and ``chunks`` are the numbers of segments and chunks at that time.
    """

    segments: int
    chunks: int
    prefix: PrefixExtent
    judged: JudgedExtent


_START = Milestone(0, 0, stable_prefix.BEGINNING, judged.BEGINNING)


class SettledPart:
    """The settled messages in the bytes of one target, their breakpoints, and how far they were hashed and judged."""

    def __init__(
        self,
        target: Target,
        setting: Setting,
        system: Sequence[TrackedBlock],
        stubs: Mapping[str, MediaStubs] = MappingProxyType({}),
        scaled: ScaledMedia | None = None,
    ) -> None:
        self.target = target
        self._stubs = stubs  # by target; they grow
        self._scaled = scaled if scaled is not None and limits_of(target.name, setting.model) != NO_LIMITS else None
        self._limits = limits_of(target.name, setting.model)
        self.dialect = target.writer.prepare(setting, system)
        self._encode_valid_run = valid_run_encoder(self.dialect)
        self.model: str | None = getattr(self.dialect, "judged_as", setting.model)
        self.state: Any = self.dialect.state
        self.chunks: list[bytes] = []
        self.rows: list[Origins] = []
        self.fixes: list[Fix] = list(self.dialect.fixes)
        self.dropped: list[LedgerEntry] = []
        self.marks: list[Mark] = []
        self.reset = ""
        self._prefix = StablePrefix(self.dialect.prefix, self.dialect.separator)
        self._judged = JudgedChunks(target.rules, self.model, self.dialect.separator)
        self._milestones: list[Milestone] = []

    def settle_message(self, message: Message) -> int:
        """Write a message permanently; return its bytes."""
        (message,), fixes = self.with_stubs([message])
        part = self.dialect.encode(message, self.state)
        self.state = part.state
        self.rows.append(part.rows)
        self.fixes += [*fixes, *part.fixes]
        self.dropped += part.dropped
        if not part.data:
            return 0
        if part.marks:
            self.marks.append(Mark(len(self.chunks), part.marked, part.marks, *first_given(part.rows, message)))
            self._retire_marks()
        self.chunks.append(part.data)
        return len(part.data)

    def with_stubs(self, messages: Sequence[Message]) -> tuple[Sequence[Message], list[Fix]]:
        """Return messages with scaled images, or lines of text, for media beyond the target's limits, and the fixes."""
        stubs, scaled = self._stubs.get(self.target.name), self._scaled
        if not stubs and scaled is None:
            return messages, []
        book = FixLog(self.target.name)
        if stubs:
            messages = [stubbed_message(message, stubs, book) for message in messages]
        if scaled is not None:
            messages = [scaled_message(message, scaled, self._limits, book) for message in messages]
        return messages, book.fixes

    def settle_valid_run(self, run: RunMessages) -> int:
        """Write the messages of a valid run permanently, in one pass for as many as the target takes unchanged."""
        encode, turns = None if self._scaled is not None else self._encode_valid_run, run.turns
        stubs = self._stubs.get(self.target.name)
        stops = [at for at, turn in enumerate(turns) if holds_stub(turn, stubs)] if stubs else []
        stops.append(len(turns))
        length, at = 0, 0
        while at < len(turns):
            stop = stops[bisect_left(stops, at)]
            written = encode(run, range(at, stop), self.state) if encode is not None and at < stop else None
            if written is None:
                length += self.settle_message(message_of(turns[at]))
                at += 1
                continue
            self.state = written.state
            self.chunks.append(written.data)
            self.rows += written.origins or turns[at : written.end]
            self.fixes += written.fixes
            self.dropped += written.dropped
            length += len(written.data)
            at = written.end
            if at < stop:
                # It needs a change, so that part ended there.
                length += self.settle_message(message_of(turns[at]))
                at += 1
        return length

    def active(self, ending: Ending) -> tuple[Mark, ...]:
        """The settled breakpoints that fit after those of the open messages; the newest ones."""
        if not self.marks:
            return ()
        room = self.dialect.marks_left - sum(part.marks for part in ending.parts)
        active: list[Mark] = []
        for mark in reversed(self.marks):
            room -= mark.count
            if room < 0:
                break
            active.append(mark)
        return tuple(reversed(active))

    def judge(self, parts: Iterable[bytes], head: bytes | None = None) -> list[Violation]:
        """Return the violations of a body that ends with ``parts``; its settled part has been judged before.

        ``head`` replaces the dialect's own.
        """
        return self._judged.judge(self.chunks, parts, self.dialect.head if head is None else head)

    def judge_text(self, opening: bytes, ending: bytes, whole: Callable[[], bytes]) -> list[Violation]:
        """Return the violations of a text: of its ends only, if the rules allow all settled chunks."""
        length = self._prefix.chunks_length(self.chunks, self._unmarked())
        return self._judged.judge_text(self.chunks, length, opening, ending, whole)

    def stable_prefix_bytes(self) -> int:
        """Return the number of bytes, prefix included, that no later request changes."""
        return self._prefix.length(self.chunks, self._unmarked())

    def digest(self, settled: int, rest: Iterable[bytes], active: Sequence[Mark], suffix: bytes) -> str | None:
        """Return the digest of a body over the first ``settled`` chunks; None where the session has moved past them."""
        if settled != len(self.chunks):
            return None
        return self._prefix.digest(self.chunks, self._unmarked(), rest, active, suffix)

    # State.

    def note_milestone(self, segments: int) -> None:
        """Remember how far it is; of those before, fewer the older they are, so that as many as it takes to halve."""
        milestone = Milestone(segments, len(self.chunks), self._prefix.extent(), self._judged.extent())
        # From wherever a rewind ends, the nearest one is then about as far away as what the rewind cuts is long.
        near = [each for each in self._milestones if segments - each.segments < 2 * (each.segments & -each.segments)]
        self._milestones = [*near, milestone]

    def cut(self, size: Size, saved: SettledHead, segments: int) -> None:
        """Restore the part at N segments.

        Requests share the lists, so a copy of the part with copied lists is cut.
        """
        self._shorten(size)
        self.resume(saved)
        chunks, *_ = size
        before, was_sent = self._judged.extent(), self._prefix.is_hashed()
        self._milestones = [each for each in self._milestones if each.segments <= segments and each.chunks <= chunks]
        nearest = self._milestones[-1] if self._milestones else _START
        self._prefix, self._judged = self._prefix.at(nearest.prefix), self._judged.at(nearest.judged)
        if (before.chunks or was_sent) and nearest.segments != segments:
            # The next request would hash these chunks anyway. Hashing them now lets another rewind to this point start
            # here.
            stable = self._unmarked()
            self._prefix.advance(self.chunks, stable)
            self._prefix.length(self.chunks, stable)
            self._judged.judge_again(self.chunks, before)
            self.note_milestone(segments)

    def milestone(self) -> Milestone:
        """Return how far it is, with all settled chunks judged; a text is judged as a whole."""
        if not self.target.is_text:
            self._judged.advance(self.chunks, self.dialect.head)
        return Milestone(0, len(self.chunks), self._prefix.extent(), self._judged.extent())

    def cut_at(self, milestone: Milestone, size: Size, saved: SettledHead) -> None:
        """Restore the part at a milestone, as ``cut`` does at a segment."""
        self._shorten(size)
        self.state, self.marks, self.reset = saved.state, list(saved.marks), saved.reset
        self._prefix, self._judged = self._prefix.at(milestone.prefix), self._judged.at(milestone.judged)

    def _shorten(self, size: Size) -> None:
        chunks, rows, fixes, dropped = size
        self.chunks, self.rows = self.chunks[:chunks], self.rows[:rows]
        self.fixes, self.dropped = self.fixes[:fixes], self.dropped[:dropped]

    def size(self, earlier: SettledSlice) -> Size:
        """Return the size of the part without ``earlier``."""
        return (
            len(self.chunks) - len(earlier.chunks),
            len(self.rows) - len(earlier.rows),
            len(self.fixes) - len(earlier.fixes),
            len(self.dropped) - len(earlier.dropped),
        )

    def since(self, size: Size) -> SettledSlice:
        """Return what the part has gained since that size."""
        chunks, rows, fixes, dropped = size
        return SettledSlice(
            self.chunks[chunks:],
            [expanded(row) for row in self.rows[rows:]],
            self.fixes[fixes:],
            self.dropped[dropped:],
        )

    def regain(self, gained: SettledSlice) -> None:
        """Take back what a slice holds."""
        self.chunks += gained.chunks
        self.rows += gained.rows
        self.fixes += gained.fixes
        self.dropped += gained.dropped

    def resume(self, head: SettledHead) -> None:
        """Continue from a saved head after all slices are restored."""
        self.state = msgspec.convert(head.state, type(self.dialect.state))
        self.marks = list(head.marks)
        self.reset = head.reset

    def _unmarked(self) -> int:
        """Return the number of chunks before the first breakpoint that may still be removed."""
        return self.marks[0].at if self.marks else len(self.chunks)

    def _retire_marks(self) -> None:
        """Give up the oldest breakpoints that no later request can have room for."""
        excess = sum(mark.count for mark in self.marks) - self.dialect.marks_left
        while excess > 0:
            mark = self.marks.pop(0)
            excess -= mark.count
            self.fixes.append(make("cache_control_dropped", mark.path, target=self.target.name, tool_id=mark.tool_id))
