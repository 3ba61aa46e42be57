"""A history at work: the machine that mends it, the part of it that is settled for each target, and its log.

A ``WorkingHistory`` only goes forward. Whatever goes back or changes what is given begins a new one from the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pipeline.fixes import Fix
from pipeline.history.healthy import Stretch
from pipeline.history.ids import SettledCall
from pipeline.history.machine import History
from pipeline.model import Policy, Turn
from pipeline.registry import Target, target_named
from pipeline.session.request import Normalized, make_request
from pipeline.session.settled import SettledHead, SettledPart, SettledSlice, Shared
from pipeline.session.state import (
    LAYOUT,
    Archive,
    Head,
    LogEntry,
    Slice,
    decode_head,
    encode_head,
    encode_log,
    load_history,
    load_setting,
    save_history,
    save_setting,
)
from pipeline.targets import Setting, Writer
from pipeline.targets.base import Run, images_of

# A segment is written when this much has settled: few enough for a small head, enough for few segments.
_SEGMENT_MESSAGES = 16
_SEGMENT_BYTES = 32 * 1024

# The lists that messages stand in, by which their fixes name them.
_ROOTS = frozenset({"messages", "input", "contents"})


class WorkingHistory:
    """One history and its requests. ``count`` is the number of messages that came in."""

    def __init__(
        self, targets: Sequence[Target], policy: Policy, setting: Setting, archive: Archive | None = None
    ) -> None:
        self.targets = tuple(targets)
        self.policy = policy
        self.setting = setting
        self.archive = archive or Archive()
        self.count = 0
        self.history = History(policy, images_of(_writers(self.targets), setting.model))
        self.shared = Shared()
        self.calls: list[SettledCall] = []
        self._open_parts()
        self._mark_packed(Slice())

    def note(self, fixes: Sequence[Fix]) -> None:
        """Record what reading a message took."""
        if fixes:
            self.archive.log.append(list(fixes))
            self.shared.fixes += fixes

    def begin(self, turns: Sequence[Turn], stretches: Iterable[Stretch]) -> None:
        """Take the first turns: those of stretches that are known to be healthy in one go, the rest one by one."""
        at = 0
        for stretch in stretches:
            self.take(turns[at : stretch.start])
            at, pairs = stretch.start, 0
            if not stretch.holds(self.policy):
                continue
            while not (stretch.opens or self.history.rests) and at < stretch.start + stretch.turns:
                # An earlier call still waits for its result, say.
                self.take(turns[at : at + 2])
                at, pairs = at + 2, pairs + 1
            left = stretch.without(pairs)
            if left.turns and self.history.ids.admits(left.ids):
                self._skip(turns[at : at + left.turns], left)
                at += left.turns
        self.take(turns[at:])

    def take(self, turns: Iterable[Turn]) -> list[Fix]:
        """Take more turns; the fixes that are now certain."""
        certain: list[Fix] = []
        history = self.history
        for turn in turns:
            self.archive.log.append(turn)
            certain += history.append(turn)
            if len(history.system) != self._system_rows:
                self._reopen_parts()
            self._settle()
        return certain

    def _skip(self, turns: Sequence[Turn], stretch: Stretch) -> None:
        """Take the turns of a healthy stretch, each of which is one message."""
        self.history.skip(stretch)
        self._settle()
        self.archive.log += turns
        self.shared.ids += [turn.id for turn in turns]
        self._settled += len(turns)
        run = Run(turns, stretch.names, frozenset(stretch.special))
        for part in self.parts.values():
            self._settled_bytes += part.settle_run(run)

    def _settle(self) -> None:
        """Write for every target what the machine has settled."""
        shared = self.shared
        messages, fixes, gone, calls = self.history.take_settled()
        shared.fixes += fixes
        shared.gone += gone
        self.calls += calls
        for message in messages:
            shared.ids.append(message.id)
            self._settled += 1
            for part in self.parts.values():
                self._settled_bytes += part.settle(message)

    def request(self, target: str) -> Normalized:
        """The request for one of the targets, as it stands."""
        return make_request(self.parts[target], self.shared, self.history)

    def again(self, entries: Iterable[LogEntry], count: int, reasons: dict[str, str]) -> WorkingHistory:
        """The same from a log, for a changed log or setting; ``reasons`` say by target why the prefix is given up."""
        work = WorkingHistory(self.targets, self.policy, self.setting, Archive(self.archive.next_segment))
        work.count = count
        for entry in entries:
            if isinstance(entry, Turn):
                work.take((entry,))
            else:
                work.note(entry)
        for name, part in work.parts.items():
            part.reset = reasons.get(name, "")
        return work

    # State.

    def take_segments(self, *, flush: bool) -> list[tuple[int, bytes]]:
        """What has settled since the last segment, if it is enough for one or must go."""
        due = self._settled >= _SEGMENT_MESSAGES or self._settled_bytes >= _SEGMENT_BYTES
        if not (due or (flush and self.archive.log)):
            return []
        packed = self.archive.pack(self._gained())
        self.calls = []
        self._mark_packed(Slice())
        return [packed]

    def head(self) -> bytes:
        """The rest of the state as a record."""
        return encode_head(
            Head(
                layout=LAYOUT,
                targets=[target.name for target in self.targets],
                policy=self.policy,
                setting=save_setting(self.setting),
                history=save_history(self.history),
                count=self.count,
                segments=self.archive.segments,
                next_segment=self.archive.next_segment,
                gained=self._gained(),
                tracks={name: SettledHead(part.state, part.marks, part.reset) for name, part in self.parts.items()},
            )
        )

    @classmethod
    def load(cls, head: bytes, segments: Iterable[bytes]) -> WorkingHistory:
        """The work that was saved; segments that its head does not name are ignored.

        Raises:
            InternalError: a segment is missing, or is not what was written.
        """
        saved = decode_head(head)
        work = cls([target_named(name) for name in saved.targets], saved.policy, load_setting(saved.setting))
        work.count = saved.count
        slices = [*work.archive.unpack(saved, segments), saved.gained]
        work.resume(saved, slices)
        return work

    def resume(self, saved: Head, slices: Sequence[Slice]) -> None:
        """Take back what was saved."""
        calls = [call for gained in slices for call in gained.calls]
        images = images_of(_writers(self.targets), self.setting.model)
        self.history = load_history(saved.history, self.policy, calls, images)
        self._open_parts()
        for gained in slices:
            self.shared.ids += gained.ids
            self.shared.fixes += gained.fixes
            self.shared.gone += gained.gone
            for name, part in self.parts.items():
                part.regain(gained.tracks.get(name, SettledSlice()))
        for name, part in self.parts.items():
            part.resume(saved.tracks[name])
        self._mark_packed(saved.gained)
        self.calls = saved.gained.calls

    def _open_parts(self) -> None:
        system = self.history.system
        self.shared.system = system
        self._system_rows = len(system)
        self.parts = {target.name: SettledPart(target, self.setting, system) for target in self.targets}

    def _reopen_parts(self) -> None:
        """Give the targets another head, for a leading system message; nothing has been settled yet."""
        gained, resets = self._gained(), {name: part.reset for name, part in self.parts.items()}
        self._open_parts()
        for name, part in self.parts.items():
            part.reset = resets[name]
        gained.tracks = {}
        self._mark_packed(gained)

    def _mark_packed(self, behind: Slice) -> None:
        """Remember up to where segments hold what there is; ``behind`` is what none of them holds yet."""
        shared = self.shared
        self._packed_shared = (
            len(shared.ids) - len(behind.ids),
            len(shared.fixes) - len(behind.fixes),
            len(shared.gone) - len(behind.gone),
        )
        self._packed_parts = {
            name: part.size(behind.tracks.get(name, SettledSlice())) for name, part in self.parts.items()
        }
        self._settled = len(behind.ids)
        self._settled_bytes = sum(len(chunk) for part in behind.tracks.values() for chunk in part.chunks)

    def _gained(self) -> Slice:
        """What has come since the last segment."""
        ids, fixes, gone = self._packed_shared
        shared = self.shared
        return Slice(
            log=encode_log(self.archive.log),
            ids=shared.ids[ids:],
            fixes=shared.fixes[fixes:],
            gone=shared.gone[gone:],
            calls=self.calls,
            tracks={name: part.since(self._packed_parts[name]) for name, part in self.parts.items()},
        )


def entries_before(entries: Iterable[LogEntry], count: int) -> Iterator[LogEntry]:
    """The log of the first ``count`` messages; the fixes of reading name theirs in their paths."""
    for entry in entries:
        if isinstance(entry, Turn):
            if entry.index < count:
                yield entry
        else:
            yield [fix for fix in entry if _message(fix) < count]


def _message(fix: Fix) -> int:
    place = fix.path.split(".")
    return int(place[1]) if len(place) > 1 and place[0] in _ROOTS and place[1].isdecimal() else -1


def _writers(targets: Iterable[Target]) -> Iterator[Writer]:
    return (target.writer for target in targets)
