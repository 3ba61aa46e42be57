"""One repair machine of a session: its settled part, in the encoding of each target that takes the same structure.

A target has one request variant, and a second one where a policy only observes some repairs. The second variant does
not make them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from types import MappingProxyType
from typing import TypeVar

from msgspec import Struct, structs

from reknit.pipeline.fixes import Fix
from reknit.pipeline.history import History
from reknit.pipeline.history.call_ids import IdWriter, SettledCall
from reknit.pipeline.history.never_answered import KnownTurns
from reknit.pipeline.history.valid_runs import ValidRun
from reknit.pipeline.model import Turn
from reknit.pipeline.options import Structure
from reknit.pipeline.policy import Policy
from reknit.pipeline.providers.base import Target
from reknit.pipeline.session.fit import EXCEEDED, SUMMARY, Shown
from reknit.pipeline.session.media import MediaStubs
from reknit.pipeline.session.scaled import ScaledMedia
from reknit.pipeline.session.settled import Milestone, SettledPart, Shared
from reknit.pipeline.session.settled_state import SettledSlice, Size
from reknit.pipeline.session.state import Mended, OpenEnd, SessionHead, Slice, load_open_end
from reknit.pipeline.targets import Setting, images_of, structure_of
from reknit.pipeline.targets.bound import Void
from reknit.pipeline.targets.valid_run import RunMessages

_Fact = TypeVar("_Fact")


class RequestVariant(Struct, frozen=True):
    """One variant of a target's requests: with all repairs, or without those that a policy only observes.

    ``tried``: the target also has the variant without observed repairs, whose requests are sent where they are valid.
    """

    target: Target
    observed: frozenset[str] = frozenset()
    tried: bool = False

    @property
    def name(self) -> str:
        """The variant's name in a session's state."""
        return f"{self.target.name} unmended" if self.observed else self.target.name

    def setting(self, setting: Setting, policy: Policy, void: Mapping[str, Void] | None) -> Setting:
        """A session's setting for the variant, with what writers need of its policy and its state."""
        return structs.replace(
            setting,
            observed=self.observed or setting.observed,
            endpoints=policy.endpoints,
            reasoning=policy.reasoning,
            void=void,
        )


class RepairPoint(Struct, frozen=True, gc=False):
    """How far a machine and its parts were at one time.

    Attributes:
        shared: the size of what the parts share.
        parts: the size of each part.
        milestones: of each part.
        last_answered: of the machine's history.
    """

    shared: Size
    parts: dict[str, Size]
    milestones: dict[str, Milestone]
    last_answered: int


class StructureRepair:
    """One machine, what it has settled, and the parts of the variants whose models take the same structure."""

    def __init__(
        self,
        variants: Sequence[RequestVariant],
        setting: Setting,
        history: History,
        stubs: Mapping[str, MediaStubs] = MappingProxyType({}),
        scaled: ScaledMedia | None = None,
        *,
        void: Mapping[str, Void] | None = None,
    ) -> None:
        self.variants = tuple(variants)
        self._stubs, self._scaled = stubs, scaled
        # Each request of a target that observes repairs reports which of them were made.
        self.reports = not all(variant.tried for variant in variants)
        self.setting = variants[0].setting(setting, history.policy, void)
        self.history = history
        self.shared = Shared()
        self.calls: list[SettledCall] = []
        self.settled_bytes = 0
        self._open_parts()
        self._sizes: list[tuple[Size, dict[str, Size]]] = []  # with each segment
        self.mark_packed(Slice())

    @property
    def parts(self) -> dict[str, SettledPart]:
        """The settled part of each variant. More leading system messages give it another head."""
        if len(self.history.system) != self._system_rows:
            self._reopen_parts()
        return self._parts

    @property
    def makes_all(self) -> bool:
        """True if all repairs are made."""
        return not self.setting.observed

    @property
    def names(self) -> list[str]:
        return [variant.name for variant in self.variants]

    def begin_history(self, turns: Sequence[Turn], valid_runs: Iterable[ValidRun]) -> None:
        """Take the first turns: valid runs of turns in one pass, the others one by one."""
        policy, observed = self.history.policy, self.history.structure.observed
        holding = [valid_run for valid_run in valid_runs if valid_run.holds(policy, observed)]
        self.history.known_turns = KnownTurns(turns, holding)
        at = 0
        for valid_run in holding:
            self.take_turns(turns[at : valid_run.start])
            at, pairs = valid_run.start, 0
            end = at + valid_run.turns
            while at < end and not (valid_run.opens or self.history.settles_within(valid_run, pairs)):
                # An earlier call waits for its result longer than the rest of the run is, say.
                pairs += 1
                behind = valid_run.start + valid_run.counted[pairs][0]
                self.take_turns(turns[at:behind])
                at = behind
            left = valid_run.without(pairs)
            if left.turns and self.history.ids.admits(left.ids):
                self._skip(turns[at : at + left.turns], left)
                at += left.turns
        self.take_turns(turns[at:])
        self.history.known_turns = None

    def take_turns(self, turns: Iterable[Turn]) -> list[Fix]:
        """Take more turns; the fixes that are now certain."""
        certain: list[Fix] = []
        history = self.history
        for turn in turns:
            certain += history.append(turn)
        self._settle_messages()
        return certain

    def take_shown(self, turns: Iterable[tuple[Turn, Shown]], summary: str) -> list[Fix]:
        """Take turns of which requests leave something out; the fixes that are now certain."""
        certain: list[Fix] = []
        for turn, shown in turns:
            self.shared.fixes += shown.fixes
            self.shared.dropped += shown.dropped
            certain += [fix for fix in shown.fixes if fix.code == EXCEEDED]
            if shown.turn is None:
                self.history.leave_out(turn)
                self._settle_messages()
                continue
            certain += self.take_turns((shown.turn,))
            if shown.summary:
                fix = self.history.insert(summary, SUMMARY, first=shown.summary == "before")
                self.shared.fixes.append(fix)
        return certain

    def _skip(self, turns: Sequence[Turn], valid_run: ValidRun) -> None:
        """Take the turns of a run that is valid as is."""
        messages = self.history.skip(valid_run, turns)
        self._settle_messages()
        self.shared.ids += [message.id for message in messages]
        run = RunMessages(messages, valid_run.names, frozenset(valid_run.special), frozenset(valid_run.thoughts))
        for part in self.parts.values():
            self.settled_bytes += part.settle_valid_run(run)

    def _settle_messages(self) -> None:
        """Write for every target what the machine has settled."""
        shared = self.shared
        messages, fixes, dropped, calls = self.history.take_settled()
        shared.fixes += fixes
        shared.dropped += dropped
        self.calls += calls
        if not messages:
            return
        parts = self.parts.values()
        for message in messages:
            shared.ids.append(message.id)
            for part in parts:
                self.settled_bytes += part.settle_message(message)

    def regain(self, slices: Sequence[Slice], saved: SessionHead) -> None:
        """Take back what was saved, after the machine's history."""
        for gained in slices:
            self._sizes.append(self._size())
            mended = gained.mended(self.names[0])
            self.shared.ids += mended.ids
            self.shared.fixes += mended.fixes
            self.shared.dropped += mended.dropped
            self.calls += mended.calls
            for name, part in self.parts.items():
                part.regain(gained.tracks.get(name, SettledSlice()))
        for name, part in self.parts.items():
            part.resume(saved.tracks[name])
        self.mark_packed(saved.gained)
        del self._sizes[:1]

    def mark_packed(self, behind: Slice) -> None:
        """Store how far segments hold the settled part; ``behind`` is the rest."""
        shared, mended = self.shared, behind.mended(self.names[0])
        self._packed_shared = (
            len(shared.ids) - len(mended.ids),
            len(shared.fixes) - len(mended.fixes),
            len(shared.dropped) - len(mended.dropped),
            len(self.calls) - len(mended.calls),
        )
        self._mark_parts_packed(behind)

    def _mark_parts_packed(self, behind: Slice) -> None:
        tracks = {name: behind.tracks.get(name, SettledSlice()) for name in self.parts}
        self._packed_parts = {name: part.size(tracks[name]) for name, part in self.parts.items()}
        self.settled_bytes = sum(len(chunk) for track in tracks.values() for chunk in track.chunks)

    def note_segment(self) -> None:
        """Store the current sizes once segments hold everything."""
        self.mark_packed(Slice())
        self._sizes.append(self._size())
        for part in self.parts.values():
            part.note_milestone(len(self._sizes))

    def _size(self) -> tuple[Size, dict[str, Size]]:
        shared = self.shared
        settled = (len(shared.ids), len(shared.fixes), len(shared.dropped), len(self.calls))
        return settled, {name: part.size(SettledSlice()) for name, part in self.parts.items()}

    def cut(self, segments: int, saved: OpenEnd) -> None:
        """Restore the state after N segments, of those that hold more than the log."""
        shared, sizes = self._sizes[segments - 1]
        self._shorten(shared, saved)
        del self._sizes[segments:]
        for name, part in self._parts.items():
            part.cut(sizes[name], saved.tracks[name], segments)
        self.mark_packed(Slice())

    def point(self) -> RepairPoint:
        """Return how far the machine and its parts are."""
        milestones = {name: part.milestone() for name, part in self.parts.items()}
        return RepairPoint(*self._size(), milestones, self.history.last_answered)

    def cut_at(self, point: RepairPoint, saved: OpenEnd) -> None:
        """Restore the state at a point; no segment has been written since it."""
        self._shorten(point.shared, saved)
        self.history.last_answered = point.last_answered
        for name, part in self._parts.items():
            part.cut_at(point.milestones[name], point.parts[name], saved.tracks[name])

    def _shorten(self, shared_size: Size, saved: OpenEnd) -> None:
        """Restore the history and what the parts share, and let the parts be copies, to be cut."""
        ids, log, answered, parts = self.history.ids, self.history.log, self.history.answered, self.parts
        id_count, fix_count, dropped_count, call_count = shared_size
        for exchange in self.history.exchanges:
            for call in exchange.calls if not exchange.sealed else ():
                ids.take_back(call.original, exchange.tool_use(call).id)
        for settled in reversed(self.calls[call_count:]):
            ids.unsettle_call(settled)
        self.history = History(self.history.policy, self.history.structure)
        self.history.ids, self.history.log, self.history.answered = ids, log, answered
        load_open_end(saved.machine(self.names[0])[1], self.history)
        # Requests that were made read the lists, so these are copies, of pointers.
        shared, self.shared = self.shared, Shared()
        self.shared.ids, self.shared.fixes = shared.ids[:id_count], shared.fixes[:fix_count]
        self.shared.dropped, self.shared.system = shared.dropped[:dropped_count], self.history.system
        del self.calls[call_count:]
        self._parts = {name: copy(part) for name, part in parts.items()}

    def can_cut(self, segments: int, saved: OpenEnd) -> bool:
        """Return True if the parts can continue from there.

        Before anything settles, a system message changes their head.
        """
        (settled, *_), _ = self._sizes[segments - 1]
        return settled > 0 and saved.tracks.keys() >= self.parts.keys()

    @property
    def settled(self) -> int:
        """The number of messages settled since the last segment."""
        return len(self.shared.ids) - self._packed_shared[0]

    def gained(self) -> Mended:
        """Return the part that has settled since the last segment."""
        ids, fixes, dropped, calls = self._packed_shared
        shared = self.shared
        return Mended(self.names, shared.ids[ids:], shared.fixes[fixes:], shared.dropped[dropped:], self.calls[calls:])

    def tracks(self) -> dict[str, SettledSlice]:
        """Return what each variant's part has gained since the last segment."""
        return {name: part.since(self._packed_parts[name]) for name, part in self.parts.items()}

    def _open_parts(self) -> None:
        system = self.history.system
        self.shared.system = system
        self._system_rows = len(system)
        self._parts = {
            variant.name: SettledPart(variant.target, self.setting, system, self._stubs, self._scaled)
            for variant in self.variants
        }

    def _reopen_parts(self) -> None:
        """Give the targets another head, for a leading system message; nothing has been settled yet."""
        resets = {name: part.reset for name, part in self._parts.items()}
        self._open_parts()
        for name, part in self.parts.items():
            part.reset = resets[name]
        self._mark_parts_packed(Slice())


def variants_of(targets: Iterable[Target], policy: Policy) -> list[RequestVariant]:
    """Return the variants of a session's targets; those with all repairs first."""
    named = [(target, policy.observed(target.name)) for target in targets]
    variants = [RequestVariant(target, tried=bool(observed)) for target, observed in named]
    return [*variants, *(RequestVariant(target, observed) for target, observed in named if observed)]


def structure_for(
    variant: RequestVariant, setting: Setting, policy: Policy, void: Mapping[str, Void] | None
) -> Structure:
    """Return the structure that a variant allows. Variants that observe other repairs have different ones."""
    return structure_of(variant.target.writer, variant.setting(setting, policy, void))


def equal_variants(
    variants: Iterable[RequestVariant], fact: Callable[[RequestVariant], _Fact]
) -> list[tuple[_Fact, list[RequestVariant]]]:
    """Group variants by a key, in the order of their first members."""
    found: dict[_Fact, list[RequestVariant]] = {}
    for variant in variants:
        found.setdefault(fact(variant), []).append(variant)
    return list(found.items())


def ids_written(variants: Iterable[RequestVariant], setting: Setting) -> list[IdWriter]:
    """The ways in which the variants' targets write ids, each once."""
    return images_of((variant.target.writer for variant in variants), setting.model)
