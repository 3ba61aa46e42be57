"""A history at work: the machines that mend it, the part of it that is settled for each target, and its log.

A ``WorkingHistory`` only goes forward. Whatever goes back or changes what is given begins a new one from the log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

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
    Mended,
    SavedMachine,
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
from pipeline.targets.base import HealthyTurns, images_of, structure_of

# A segment is written when this much has settled: few enough for a small head, enough for few segments.
_SEGMENT_MESSAGES = 16
_SEGMENT_BYTES = 32 * 1024

# The lists that messages stand in, by which their fixes name them.
_ROOTS = frozenset({"messages", "input", "contents"})


class Mending:
    """One machine, what it has settled, and the parts of the targets whose models take the same structure."""

    def __init__(self, targets: Sequence[Target], setting: Setting, history: History) -> None:
        self.targets = tuple(targets)
        self.setting = setting
        self.history = history
        self.shared = Shared()
        self.calls: list[SettledCall] = []
        self.settled_bytes = 0
        self._open_parts()
        self.mark_packed(Slice())

    @property
    def parts(self) -> dict[str, SettledPart]:
        """What is settled for each target; with another head once there are more leading system messages."""
        if len(self.history.system) != self._system_rows:
            self._reopen_parts()
        return self._parts

    @property
    def names(self) -> list[str]:
        """The targets' names."""
        return [target.name for target in self.targets]

    def begin_history(self, turns: Sequence[Turn], stretches: Iterable[Stretch]) -> None:
        """Take the first turns: those of stretches that are known to be healthy in one go, the rest one by one."""
        at = 0
        for stretch in stretches:
            self.take_turns(turns[at : stretch.start])
            at, pairs = stretch.start, 0
            if not stretch.holds(self.history.policy):
                continue
            while not (stretch.opens or self.history.rests) and at < stretch.start + stretch.turns:
                # An earlier call still waits for its result, say.
                pairs += 1
                behind = stretch.start + stretch.counted[pairs][0]
                self.take_turns(turns[at:behind])
                at = behind
            left = stretch.without(pairs)
            if left.turns and self.history.ids.admits(left.ids):
                self._skip(turns[at : at + left.turns], left)
                at += left.turns
        self.take_turns(turns[at:])

    def take_turns(self, turns: Iterable[Turn]) -> list[Fix]:
        """Take more turns; the fixes that are now certain."""
        certain: list[Fix] = []
        history = self.history
        for turn in turns:
            certain += history.append(turn)
            self._settle_messages()
        return certain

    def _skip(self, turns: Sequence[Turn], stretch: Stretch) -> None:
        """Take the turns of a healthy stretch."""
        self.history.skip(stretch)
        self._settle_messages()
        messages = stretch.messages(turns)
        self.shared.ids += [message.id for message in messages]
        healthy = HealthyTurns(messages, stretch.names, frozenset(stretch.special))
        for part in self.parts.values():
            self.settled_bytes += part.settle_healthy(healthy)

    def _settle_messages(self) -> None:
        """Write for every target what the machine has settled."""
        shared = self.shared
        messages, fixes, gone, calls = self.history.take_settled()
        shared.fixes += fixes
        shared.gone += gone
        self.calls += calls
        if not messages:
            return
        parts = self.parts.values()
        for message in messages:
            shared.ids.append(message.id)
            for part in parts:
                self.settled_bytes += part.settle_message(message)

    def regain(self, slices: Sequence[Slice], saved: Head) -> None:
        """Take back what was saved, after the machine's history."""
        for gained in slices:
            mended = gained.mended(self.names[0])
            self.shared.ids += mended.ids
            self.shared.fixes += mended.fixes
            self.shared.gone += mended.gone
            for name, part in self.parts.items():
                part.regain(gained.tracks.get(name, SettledSlice()))
        for name, part in self.parts.items():
            part.resume(saved.tracks[name])
        self.mark_packed(saved.gained)
        self.calls = saved.gained.mended(self.names[0]).calls

    def mark_packed(self, behind: Slice) -> None:
        """Remember up to where segments hold what there is; ``behind`` is what none of them holds yet."""
        shared, mended = self.shared, behind.mended(self.names[0])
        self._packed_shared = (
            len(shared.ids) - len(mended.ids),
            len(shared.fixes) - len(mended.fixes),
            len(shared.gone) - len(mended.gone),
        )
        self.calls = []
        self._mark_parts_packed(behind)

    def _mark_parts_packed(self, behind: Slice) -> None:
        tracks = {name: behind.tracks.get(name, SettledSlice()) for name in self.parts}
        self._packed_parts = {name: part.size(tracks[name]) for name, part in self.parts.items()}
        self.settled_bytes = sum(len(chunk) for track in tracks.values() for chunk in track.chunks)

    @property
    def settled(self) -> int:
        """How many messages have settled since the last segment."""
        return len(self.shared.ids) - self._packed_shared[0]

    def gained(self) -> Mended:
        """What the machine has settled since the last segment."""
        ids, fixes, gone = self._packed_shared
        shared = self.shared
        return Mended(self.names, shared.ids[ids:], shared.fixes[fixes:], shared.gone[gone:], self.calls)

    def tracks(self) -> dict[str, SettledSlice]:
        """What each target's part has gained since the last segment."""
        return {name: part.since(self._packed_parts[name]) for name, part in self.parts.items()}

    def _open_parts(self) -> None:
        system = self.history.system
        self.shared.system = system
        self._system_rows = len(system)
        self._parts = {target.name: SettledPart(target, self.setting, system) for target in self.targets}

    def _reopen_parts(self) -> None:
        """Give the targets another head, for a leading system message; nothing has been settled yet."""
        resets = {name: part.reset for name, part in self._parts.items()}
        self._open_parts()
        for name, part in self.parts.items():
            part.reset = resets[name]
        self._mark_parts_packed(Slice())


class WorkingHistory:
    """One history and its requests. ``count`` is the number of messages that came in.

    Targets whose models take the same structure share a machine; most sessions have one.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        policy: Policy,
        setting: Setting,
        archive: Archive | None = None,
        mendings: Sequence[Mending] = (),
    ) -> None:
        self.targets = tuple(targets)
        self.policy = policy
        self.setting = setting
        self.archive = archive or Archive()
        self.count = 0
        self.mendings = mendings or [
            Mending(alike, setting, History(policy, structure, images_of(_writers(alike), setting.model)))
            for structure, alike in _alike(self.targets, lambda target: structure_of(target.writer, setting))
        ]

    @property
    def parts(self) -> dict[str, SettledPart]:
        """Each target's part, by name."""
        return {name: part for mending in self.mendings for name, part in mending.parts.items()}

    @property
    def waiting(self) -> bool:
        """Whether it is the model's turn, for one of the targets at least."""
        return any(mending.history.waiting for mending in self.mendings)

    @property
    def interrupted(self) -> bool:
        """Whether a call has no real result yet, for one of the targets at least."""
        return any(mending.history.interrupted for mending in self.mendings)

    @property
    def fixes(self) -> list[Fix]:
        """All structural fixes that are certain, each once."""
        return list(_each_once([mending.shared.fixes for mending in self.mendings]))

    def note_fixes(self, fixes: Sequence[Fix]) -> None:
        """Record what reading a message took."""
        if fixes:
            self.archive.log.append(list(fixes))
            for mending in self.mendings:
                mending.shared.fixes += fixes

    def begin_history(self, turns: Sequence[Turn], stretches: Sequence[Stretch]) -> None:
        """Take the first turns: those of stretches that are known to be healthy in one go, the rest one by one."""
        self.archive.log += turns
        for mending in self.mendings:
            mending.begin_history(turns, stretches)

    def take_turns(self, turns: Sequence[Turn]) -> list[Fix]:
        """Take more turns; the fixes that are now certain, each once."""
        self.archive.log += turns
        return _each_once([mending.take_turns(turns) for mending in self.mendings])

    def request(self, target: str) -> Normalized:
        """The request for one of the targets, as it stands."""
        mending = next(mending for mending in self.mendings if target in mending.parts)
        return make_request(mending.parts[target], mending.shared, mending.history)

    def again(self, entries: Iterable[LogEntry], count: int, reasons: dict[str, str]) -> WorkingHistory:
        """The same from a log, for a changed log or setting; ``reasons`` say by target why the prefix is given up."""
        work = WorkingHistory(self.targets, self.policy, self.setting, Archive(self.archive.next_segment))
        work.count = count
        for entry in entries:
            if isinstance(entry, Turn):
                work.take_turns((entry,))
            else:
                work.note_fixes(entry)
        for name, part in work.parts.items():
            part.reset = reasons.get(name, "")
        return work

    # State.

    def take_segments(self, *, flush: bool) -> list[tuple[int, bytes]]:
        """What has settled since the last segment, if it is enough for one or must go."""
        settled = max(mending.settled for mending in self.mendings)
        due = settled >= _SEGMENT_MESSAGES or sum(each.settled_bytes for each in self.mendings) >= _SEGMENT_BYTES
        if not (due or (flush and self.archive.log)):
            return []
        packed = self.archive.pack(self._gained())
        for mending in self.mendings:
            mending.mark_packed(Slice())
        return [packed]

    def head(self) -> bytes:
        """The rest of the state as a record."""
        first, *others = self.mendings
        return encode_head(
            Head(
                layout=LAYOUT,
                targets=[target.name for target in self.targets],
                policy=self.policy,
                setting=save_setting(self.setting),
                history=save_history(first.history),
                count=self.count,
                segments=self.archive.segments,
                next_segment=self.archive.next_segment,
                gained=self._gained(),
                tracks={name: SettledHead(part.state, part.marks, part.reset) for name, part in self.parts.items()},
                others=[SavedMachine(other.names, save_history(other.history)) for other in others],
            )
        )

    @classmethod
    def load(cls, head: bytes, segments: Iterable[bytes]) -> WorkingHistory:
        """The work that was saved; segments that its head does not name are ignored.

        What one machine mended and two would mend now goes on in both, each from where the one stood.

        Raises:
            InternalError: a segment is missing, or is not what was written.
        """
        saved = decode_head(head)
        setting, archive = load_setting(saved.setting), Archive()
        targets = [target_named(name) for name in saved.targets]
        slices = [*archive.unpack(saved, segments), saved.gained]
        mendings = []
        for (structure, _), alike in _alike(
            targets, lambda target: (structure_of(target.writer, setting), saved.machine(target.name)[0])
        ):
            name = alike[0].name
            calls = [call for gained in slices for call in gained.mended(name).calls]
            images = images_of(_writers(alike), setting.model)
            history = load_history(saved.machine(name)[1], saved.policy, structure, calls, images)
            mending = Mending(alike, setting, history)
            mending.regain(slices, saved)
            mendings.append(mending)
        work = cls(targets, saved.policy, setting, archive, mendings)
        work.count = saved.count
        return work

    def _gained(self) -> Slice:
        """What has come since the last segment."""
        first, *others = (mending.gained() for mending in self.mendings)
        return Slice(
            log=encode_log(self.archive.log),
            ids=first.ids,
            fixes=first.fixes,
            gone=first.gone,
            calls=first.calls,
            tracks={name: track for mending in self.mendings for name, track in mending.tracks().items()},
            others=others,
        )


_Fact = TypeVar("_Fact")


def _alike(targets: Iterable[Target], fact: Callable[[Target], _Fact]) -> list[tuple[_Fact, list[Target]]]:
    """The targets of which something is alike, together, in the order of their first ones."""
    found: dict[_Fact, list[Target]] = {}
    for target in targets:
        found.setdefault(fact(target), []).append(target)
    return list(found.items())


def _each_once(lists: Sequence[list[Fix]]) -> list[Fix]:
    """The fixes of several machines, those that more than one made once."""
    first, *others = lists
    if not others:
        return first
    found, known = list(first), Counter(first)
    for fixes in others:
        here = Counter[Fix]()
        for fix in fixes:
            here[fix] += 1
            if here[fix] > known[fix]:
                found.append(fix)
        known |= here
    return found


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
