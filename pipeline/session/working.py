"""A working history: the machines that repair it, its settled part for each target, and its log.

A ``WorkingHistory`` moves forward, and back to the end of a segment. An earlier point, or other arguments, need a new
one that is built from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from types import MappingProxyType
from typing import Any

from msgspec import UNSET, Struct, structs

from reknit.pipeline.fixes import Fix, name_where_not_shared
from reknit.pipeline.healing.memory import Memory
from reknit.pipeline.history import History
from reknit.pipeline.history.readers.message import UNDECIDED, Decided
from reknit.pipeline.history.valid_runs import ValidRun, turns_with_media
from reknit.pipeline.model import Turn, has_media
from reknit.pipeline.policy import Policy
from reknit.pipeline.providers.base import Target
from reknit.pipeline.registry import target_named
from reknit.pipeline.session.bindings import CHANGED, Change, End, PrefixBindings, common_messages
from reknit.pipeline.session.fit import SUMMARY, Cut, FitBounds, fit_for
from reknit.pipeline.session.media import MediaBounds, MediaStubs, limits_for
from reknit.pipeline.session.prefix import PrefixChange, reasons_by_target
from reknit.pipeline.session.repair import (
    RepairPoint,
    RequestVariant,
    StructureRepair,
    equal_variants,
    ids_written,
    structure_for,
    variants_of,
)
from reknit.pipeline.session.request import Normalized, choose_request, make_request
from reknit.pipeline.session.scaled import Scale, ScaledImages, ScaledMedia, scaled_in
from reknit.pipeline.session.settled import SettledPart
from reknit.pipeline.session.settled_state import SettledHead
from reknit.pipeline.session.state import (
    HEALING,
    LATE_RESULTS,
    LAYOUT,
    LOG_ONLY,
    Archive,
    LogEntry,
    OpenEnd,
    SavedMachine,
    SessionHead,
    Slice,
    decode_head,
    encode_head,
    encode_log,
    load_open_end,
    load_setting,
    save_history,
    save_setting,
)
from reknit.pipeline.session.tokens import CountTokens
from reknit.pipeline.targets import Setting
from reknit.pipeline.targets.bound import Void

# A segment is written when this much has settled: few enough for a small head, enough for few segments.
_SEGMENT_MESSAGES = 16
_SEGMENT_BYTES = 32 * 1024

# The lists of messages in a body; the paths of fixes begin with them.
_ROOTS = frozenset({"messages", "input", "contents"})


class HistoryPoint(Struct, frozen=True, gc=False):
    """A point of a working history.

    Attributes:
        end: the open end.
        decided: the shape that the messages decided.
        log: the number of entries of the log that no segment holds.
        repairs: the machines; a change of the prefix makes new ones.
        points: how far each machine was.
    """

    end: OpenEnd
    decided: Decided
    log: int
    repairs: Sequence[StructureRepair]
    points: Sequence[RepairPoint]


class WorkingHistory:
    """One history and its requests.

    ``count`` is the number of received messages, ``decided`` the shape that they decided for later ones.

    Targets whose models take the same structure share a machine; most sessions have one. A target with observed repairs
    has two: one makes all repairs, one does not make the observed ones.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        policy: Policy,
        setting: Setting,
        archive: Archive | None = None,
        repairs: Sequence[StructureRepair] = (),
        *,
        state_format: int = LATE_RESULTS,
        bounds: MediaBounds | None = None,
        fit: FitBounds | None = None,
        bindings: PrefixBindings | None = None,
    ) -> None:
        self.targets = tuple(targets)
        self.names = tuple(target.name for target in targets)
        self.policy = policy
        self.setting = setting
        self.state_format = state_format
        self.archive = archive or Archive()
        self.count = 0
        self.decided = UNDECIDED
        self.bounds = bounds or MediaBounds()
        self.fit = fit or fit_for(policy, setting)
        self.bindings = bindings or PrefixBindings()
        # The loaded memory of refusals; the session keeps it.
        self.loaded_memory: Memory = {}
        self._limits = {} if policy.media == "reject" else limits_for(self.names, setting)
        if policy.media != "shrink":
            self.bounds.scaled = None
        elif self.bounds.scaled is None:
            self.bounds.scaled = ScaledMedia(self.scaled_log)
        self.repairs = repairs or self._new_mendings()
        self._lend()

    def _lend(self) -> None:
        """Let the machines read the log, and what was answered, where it matters to them."""
        for repair in self.repairs:
            repair.history.log = self.archive.turns
            repair.history.answered = self.bindings.answered
            repair.history.keeps_answered |= self.bindings.keeps_answered
        self._tracked = {
            variant.target.name
            for repair in self.repairs
            if repair.history.structure.prefix_bound
            for variant in repair.variants
        }

    def _new_mendings(self) -> Sequence[StructureRepair]:
        policy, setting, void = self.policy, self.setting, self._void
        kept = _in_format(policy, self.state_format)
        return [
            StructureRepair(
                alike,
                setting,
                History(kept, structure, ids_written(alike, setting)),
                self.bounds.stubs,
                self.bounds.scaled,
                void=void,
            )
            for structure, alike in equal_variants(
                variants_of(self.targets, policy), lambda variant: structure_for(variant, setting, policy, void)
            )
        ]

    @property
    def _void(self) -> Mapping[str, Void] | None:
        """The reasoning that is void, as writers read it; None in formats that have no place for it."""
        return self.bindings.void if self.state_format >= LATE_RESULTS else None

    @property
    def parts(self) -> dict[str, SettledPart]:
        """Each variant's part, by name; the variant with all repairs has the target's name."""
        if len(self.repairs) == 1:
            return self.repairs[0].parts
        return {name: part for repair in self.repairs for name, part in repair.parts.items()}

    @property
    def waiting(self) -> bool:
        """True if it is the model's turn, for one of the targets at least."""
        return any(repair.history.waiting for repair in self.repairs if repair.makes_all)

    @property
    def interrupted(self) -> bool:
        """True if a call of the last exchange has no real result yet, for one of the targets at least."""
        return any(repair.history.interrupted for repair in self.repairs if repair.makes_all)

    @property
    def fixes(self) -> list[Fix]:
        """All structural fixes that are certain, each once."""
        return _reported_once([(repair, repair.shared.fixes) for repair in self.repairs])

    def note_fixes(self, fixes: Sequence[Fix]) -> None:
        """Record what reading a message took."""
        if fixes:
            self.archive.log.append(list(fixes))
            for repair in self.repairs:
                repair.shared.fixes += fixes

    def begin_history(self, turns: Sequence[Turn], valid_runs: Sequence[ValidRun], scale: Scale | None = None) -> None:
        """Take the first turns: valid runs of turns in one pass, the others one by one."""
        self._scale(turns, scale)
        # Limits weigh media and length. The scan for valid runs says which turns may have media.
        if self.fit.active or turns_with_media(turns, valid_runs):
            self._change_prefix(self._bound(turns), turns)
        if self.fit.touches or self.bindings.keeps_answered:
            self._take(turns)
            return
        self.archive.keep_history(turns)
        for repair in self.repairs:
            repair.begin_history(turns, valid_runs)

    def take_turns(self, turns: Sequence[Turn], scale: Scale | None = None) -> list[Fix]:
        """Take more turns; the fixes that are now certain, each once."""
        self._scale(turns, scale)
        cut = self.fit.cut
        self.bindings.note_turns(turns, self._tracked)
        self._change_prefix(self._bound(turns), turns)
        certain = [] if self.fit.cut == cut else self._fixes_of_cut(cut)
        return [*certain, *self._take(turns)]

    def _fixes_of_cut(self, old: Cut) -> list[Fix]:
        summaries = [fix for fix in self.fixes if fix.code == SUMMARY]
        return [*self.fit.since(old, self.archive.turns()), *summaries]

    def scaled_log(self) -> Iterator[ScaledImages]:
        """The scaled images of the log that is in use now."""
        return self.archive.scaled()

    def _scale(self, turns: Sequence[Turn], scale: Scale | None) -> None:
        """Add the scaled images of turns to the log."""
        media = self.bounds.scaled
        if media is None or scale is None or not self.bounds.is_on:
            return
        for turn in turns:
            if has_media(turn) and (images := scaled_in(turn, scale, media.known)):
                self.archive.log.append(ScaledImages(turn.index, images))
                media.known.update(images)

    def _take(self, turns: Sequence[Turn]) -> list[Fix]:
        self.archive.keep(turns)
        if self._tracked:
            self.bindings.note_reasoning(turns)
        return self._repair(turns)

    def _repair(self, turns: Sequence[Turn]) -> list[Fix]:
        """Repair and encode turns of the log."""
        if not self.fit.touches:
            return _reported_once([(repair, repair.take_turns(turns)) for repair in self.repairs])
        shown = [(turn, self.fit.shown(turn)) for turn in turns]
        summary = self.policy.summary
        return _reported_once([(repair, repair.take_shown(shown, summary)) for repair in self.repairs])

    def _bound(self, turns: Sequence[Turn]) -> list[PrefixChange]:
        """Decide what the limits leave out once these turns are taken, in the order of the log."""
        changes = self._bound_in_order(turns)
        for change in changes if self._tracked else ():
            self.bindings.note_change(change, self._tracked)
        return changes

    def _bound_in_order(self, turns: Sequence[Turn]) -> list[PrefixChange]:
        fit, archive = self.fit, self.archive
        if not fit.active:
            return self.bounds.take(turns, self._limits, archive.turns, archive.may_have_media)
        changes: list[PrefixChange] = []
        for at, turn in enumerate(turns):
            before = partial(self._before, turns, at)
            cut = fit.take(turn, before)
            if cut is not None:
                changes.append(cut)
                self.bounds.weigh_again()
            changes += self.bounds.take((turn,), self._limits, partial(self._kept, before), archive.may_have_media)
        return changes

    def _change_prefix(self, changes: Sequence[PrefixChange], turns: Sequence[Turn]) -> None:
        """Let the requests be what they are after some changes of their prefix, before these turns are taken.

        Every change of settled messages comes through here, in the order of the log, also of messages that no request
        has had yet: from message ``first`` on the prefix changed before message ``at``. Only those of messages before
        these turns make anything to do over.
        """
        reasons = reasons_by_target(changes, self.names, turns[0].index) if changes else {}
        if reasons:
            self._begin_again(reasons)

    def _begin_again(self, reasons: Mapping[str, str]) -> None:
        """Repair and encode the log again; ``reasons`` say by target why its prefix is new."""
        resets = {name: part.reset for name, part in self.parts.items()}
        self.bindings = self.bindings.loosened(self.parts)
        self.archive.log_only = len(self.archive.segments)
        self.repairs = self._new_mendings()
        self._lend()
        for entry in self.archive.entries():
            if isinstance(entry, Turn):
                self._repair((entry,))
            elif not isinstance(entry, ScaledImages):
                for repair in self.repairs:
                    repair.shared.fixes += entry
        for name, part in self.parts.items():
            part.reset = resets[name] or reasons.get(part.target.name, "")

    def _take_entries(self, entries: Iterable[LogEntry]) -> None:
        for entry in entries:
            if isinstance(entry, Turn):
                self._take((entry,))
            elif isinstance(entry, ScaledImages):
                self.archive.log.append(entry)
            else:
                self.note_fixes(entry)

    def _before(self, turns: Sequence[Turn], at: int) -> Iterator[Turn]:
        return chain(self.archive.turns(), islice(turns, at))

    def _kept(self, turns: Callable[[], Iterable[Turn]]) -> Iterator[Turn]:
        """The turns of a log that the cut leaves."""
        return (kept for turn in turns() if (kept := self.fit.kept(turn)) is not None)

    @property
    def tracked(self) -> list[str]:
        """The targets whose requests count as sent: their model's reasoning is bound to them."""
        return sorted(self._tracked)

    def request(self, target: str, *, is_sent: bool = True) -> Normalized:
        """Return the request for one of the targets; where its model's reasoning is bound to it, it counts as sent."""
        made = self._chosen(target)
        return self._sent(target, made) if is_sent and target in self._tracked else made

    def _chosen(self, target: str) -> Normalized:
        made = self._request(target)
        observed = self.policy.observed(target) if self.policy.mend else frozenset()
        if not observed:
            return made
        return choose_request(self._request(RequestVariant(target_named(target), observed).name), made, observed)

    def _sent(self, target: str, made: Normalized) -> Normalized:
        """Return a request without reasoning that was issued after something that has changed, and note it as sent."""
        first: int | None = None
        while (change := self._change(target, made)) is not None:
            self.bindings.add_void(target, change.start, self.count)
            if change.message is None or self.policy.reasoning == "keep":
                continue
            first = change.message if first is None else first
            for part in self.parts.values():
                if part.target.name == target:
                    part.reset = made.reset
            self._begin_again({target: CHANGED})
            made = self._chosen(target)
        if first is not None:
            made.note_void(first)
        if not made.rejected:
            variant = self._variant_of(made)
            self.bindings.note_request(target, variant, made.account)
        return made

    def _change(self, target: str, made: Normalized) -> Change | None:
        sent = self.bindings.sent.get(target)
        if sent is not None and sent.chunks and sent.variant != self._variant_of(made):
            self.bindings = self.bindings.loosened(self.parts)
            self._lend()
        return self.bindings.change(target, made.account)

    def _variant_of(self, made: Normalized) -> str:
        """The name of the variant whose settled part a request begins with."""
        return next(name for name, part in self.parts.items() if part is made.account.settled)

    def _request(self, name: str) -> Normalized:
        repair = self.repairs[0]
        if len(self.repairs) > 1:
            repair = next(repair for repair in self.repairs if name in repair.parts)
        return make_request(repair.parts[name], repair.shared, repair.history)

    def again(
        self,
        entries: Iterable[LogEntry],
        count: int,
        reasons: dict[str, str],
        decided: Decided,
        *,
        bindings: PrefixBindings,
        stubs: Mapping[str, MediaStubs] = MappingProxyType({}),
    ) -> WorkingHistory:
        """The same from a log, for a changed log or setting; ``reasons`` say by target why the prefix is given up.

        ``stubs`` are the media of the same log that are lines of text already, ``bindings`` are ``carried``.
        """
        work = WorkingHistory(
            self.targets,
            self.policy,
            self.setting,
            Archive(self.archive.next_segment),
            state_format=self.state_format,
            bounds=self.bounds.again(stubs),
            fit=self.fit.again(self.policy, self.setting),
            bindings=bindings,
        )
        return work.replay(entries, count, reasons, decided)

    def carried(self, entries: Iterable[LogEntry] | None = None) -> PrefixBindings:
        """Return what was sent and what is void, for the same log, or for another one as far as it is the same."""
        bindings = self.bindings.loosened(self.parts)
        if entries is not None and (bindings.sent or bindings.keeps_answered):
            bindings.cut(common_messages(self.archive.entries(), entries))
        if entries is not None and bindings.keeps_answered:
            bindings.void.clear()  # the new history proves what is void
        return bindings

    def back(self, count: int, reasons: dict[str, str]) -> WorkingHistory:
        """Return this history with only the first N messages; this object must not be used any more.

        The new one continues from the last segment that has no later message, so the cost is that of the removed part
        and of less than one segment.
        """
        decided = self.decided.before(count)
        least = self.archive.log_only
        # The last segments are those after the cut; before it, the history is read again.
        for segments in range(len(self.archive.segments) if self.fit.cut.at < count else least, least, -1):
            end = self.archive.open_end(segments)
            if end is None or end.count > count:
                continue
            if not all(repair.can_cut(segments - least, end) for repair in self.repairs):
                break
            before = {name: (part.chunks, part.rows) for name, part in self.parts.items()} if self._tracked else {}
            for repair in self.repairs:
                repair.cut(segments - least, end)
            self.bounds.cut(count)
            self.fit.back(count)
            self.bindings.cut_parts(before, self.parts)
            self.bindings.cut(count)
            self._lend()
            return self.replay(entries_before(self.archive.cut(segments), count), count, reasons, decided)
        stubs = {name: each.upto(count) for name, each in self.bounds.stubs.items()}
        bindings = self.carried()
        bindings.cut(count)
        return self.again(
            entries_before(self.archive.entries(), count), count, reasons, decided, bindings=bindings, stubs=stubs
        )

    def point(self) -> HistoryPoint | None:
        """Return this point of the history, for ``cut_at``; None where that could not be exact.

        Before anything settles, a system message changes the head. Later messages change what limits leave out.
        """
        if self.fit.active or self.bounds.stubs or not all(repair.shared.ids for repair in self.repairs):
            return None
        end = OpenEnd(**self._open_end())
        return HistoryPoint(
            end, self.decided, len(self.archive.log), self.repairs, [each.point() for each in self.repairs]
        )

    def cut_at(self, point: HistoryPoint) -> bool:
        """Go back to a point of this history since which no segment was written.

        Returns:
            False where the prefix has changed since then; the history is unchanged.
        """
        if point.repairs is not self.repairs or self.bounds.stubs:
            return False
        for repair, each in zip(self.repairs, point.points, strict=True):
            repair.cut_at(each, point.end)
        self.count, self.decided = point.end.count, point.decided
        self.archive.cut_log(point.log)
        self.bounds.cut(self.count)
        answered = dict(self.bindings.answered)
        self.bindings.cut(self.count)
        self.bindings.answered.update(answered)
        self._lend()
        return True

    def replay(
        self, entries: Iterable[LogEntry], count: int, reasons: dict[str, str], decided: Decided
    ) -> WorkingHistory:
        """Append turns from a log until there are N messages, which decided a shape."""
        self.count, self.decided = count, decided
        entries = list(entries)
        turns = [entry for entry in entries if isinstance(entry, Turn)]
        if self.bounds.scaled is not None:
            self.bounds.scaled.note(entry for entry in entries if isinstance(entry, ScaledImages))
        self._change_prefix(self._bound(turns), turns)
        self._take_entries(entries)
        for part in self.parts.values():
            part.reset = reasons.get(part.target.name, "")
        return self

    # Requests that another program sends.

    def take_answered(self, answered: Mapping[int, bool]) -> list[Fix]:
        """Repair the history by what was answered; return the fixes that are certain and were not before."""
        is_outdated = self.bindings.take_answered(answered, self.count)
        if not is_outdated:
            self._lend()
            return []
        known = set(self.fixes)
        self._begin_again(dict.fromkeys(self.names, CHANGED))
        return [fix for fix in self.fixes if fix not in known]

    def note_end(self, end: End) -> None:
        """Note that another program has sent the request of the history so far, and its end."""
        self.bindings.note_end(self.count, end)
        self._lend()

    # State.

    def take_segments(self, *, flush: bool) -> list[tuple[int, bytes]]:
        """Return what has settled since the last segment, if it fills one or ``flush`` is set."""
        settled = max(repair.settled for repair in self.repairs)
        due = settled >= _SEGMENT_MESSAGES or sum(each.settled_bytes for each in self.repairs) >= _SEGMENT_BYTES
        if not (due or (flush and self.archive.log)):
            return []
        earlier = self.archive.pack_log() if self.state_format >= LOG_ONLY else []
        packed = self.archive.pack(self._gained(), OpenEnd(**self._open_end()))
        for repair in self.repairs:
            repair.note_segment()
        return [*earlier, packed]

    def _open_end(self) -> dict[str, Any]:
        first, *others = self.repairs
        return {
            "count": self.count,
            "history": save_history(first.history),
            "tracks": {name: SettledHead(part.state, [*part.marks], part.reset) for name, part in self.parts.items()},
            "others": [SavedMachine(other.names, save_history(other.history)) for other in others],
        }

    def head(self, memory: Memory) -> bytes:
        """The rest of the state as a record; ``memory`` is what providers refused."""
        return encode_head(
            SessionHead(
                layout=LAYOUT,
                targets=[target.name for target in self.targets],
                policy=self.policy if self.state_format >= LATE_RESULTS else _in_old_words(self.policy),
                setting=save_setting(self.setting),
                segments=self.archive.segments,
                next_segment=self.archive.next_segment,
                log_only=self.archive.log_only or UNSET,
                shape=self.decided.shape,
                shape_since=self.decided.since,
                media=self.bounds.saved(),
                fit=self.fit.saved(),
                bound=self.bindings.saved(),
                keeps_answered=self.bindings.keeps_answered or UNSET,
                refused=memory if memory and self.state_format >= HEALING else UNSET,
                gained=self._gained(),
                **self._open_end(),
            )
        )

    @classmethod
    def load(
        cls,
        head: bytes,
        segments: Iterable[bytes],
        state_format: int = LATE_RESULTS,
        count_tokens: CountTokens | None = None,
    ) -> WorkingHistory:
        """Restore a saved working history; segments that its head does not name are ignored.

        If one machine repaired what two would repair now, both continue from its state.

        Raises:
            InternalError: a segment is missing, or has other content than was written.
        """
        saved = decode_head(head)
        setting, archive = load_setting(saved.setting), Archive()
        bounds = MediaBounds({} if saved.media is UNSET else saved.media, is_new=False)
        bindings = PrefixBindings(saved.bound or None, keeps_answered=saved.keeps_answered is True)
        void = bindings.void if state_format >= LATE_RESULTS else None
        if saved.policy.media == "shrink":
            bounds.scaled = ScaledMedia(archive.scaled)
        targets = [target_named(name) for name in saved.targets]
        slices = [*archive.unpack(saved, segments), saved.gained]
        repairs = []
        for (structure, _), alike in equal_variants(
            variants_of(targets, saved.policy),
            lambda variant: (
                structure_for(variant, setting, saved.policy, void),
                saved.machine(variant.name)[0],
            ),
        ):
            name = alike[0].name
            history = History(_in_format(saved.policy, state_format), structure, ids_written(alike, setting))
            for gained in slices:
                for call in gained.mended(name).calls:
                    history.ids.reload(call)
            load_open_end(saved.machine(name)[1], history)
            repair = StructureRepair(alike, setting, history, bounds.stubs, bounds.scaled, void=void)
            repair.regain(slices, saved)
            repairs.append(repair)
        fit = fit_for(saved.policy, setting, count_tokens, None if saved.fit is UNSET else saved.fit)
        if saved.fit is UNSET:
            fit.back(saved.count)  # the tokens of the log are not known
        work = cls(
            targets,
            saved.policy,
            setting,
            archive,
            repairs,
            state_format=state_format,
            bounds=bounds,
            fit=fit,
            bindings=bindings,
        )
        if bounds.scaled is not None:
            bounds.scaled.log = work.scaled_log
        work.count, work.decided = saved.count, Decided(saved.shape, saved.shape_since)
        work.loaded_memory = {} if saved.refused is UNSET else saved.refused
        return work

    def _gained(self) -> Slice:
        """Return what was gained since the last segment."""
        first, *others = (repair.gained() for repair in self.repairs)
        return Slice(
            log=encode_log(self.archive.log),
            ids=first.ids,
            fixes=first.fixes,
            dropped=first.dropped,
            calls=first.calls,
            tracks={name: track for repair in self.repairs for name, track in repair.tracks().items()},
            others=others,
        )


def _reported_once(made: Sequence[tuple[StructureRepair, list[Fix]]]) -> list[Fix]:
    """Return the fixes of machines that report: once if all of them made it, otherwise once for each target."""
    if len(made) == 1:
        return made[0][1] if made[0][0].reports else []
    telling = {variant.target.name: fixes for repair, fixes in made if repair.reports for variant in repair.variants}
    first, *others = name_where_not_shared(telling).values() or [()]
    return [*first, *(fix for fixes in others for fix in fixes if fix.target)]


def _in_format(policy: Policy, state_format: int) -> Policy:
    """Return the policy by which a history is repaired whose state is written in a format."""
    return policy if state_format >= LATE_RESULTS else structs.replace(policy, late_result="drop")


def _in_old_words(policy: Policy) -> Policy:
    """Return a policy that builds can read which know nothing of late results, media and the length of histories."""
    default = Policy()
    return structs.replace(
        policy,
        late_result=default.late_result,
        media=default.media,
        fit=default.fit,
        summary=default.summary,
        heal=default.heal,
    )


def entries_before(entries: Iterable[LogEntry], count: int) -> Iterator[LogEntry]:
    """The log of the first ``count`` messages; the fixes of reading name theirs in their paths."""
    for entry in entries:
        if isinstance(entry, (Turn, ScaledImages)):
            if entry.index < count:
                yield entry
        else:
            yield [fix for fix in entry if _message(fix) < count]


def _message(fix: Fix) -> int:
    place = fix.path.split(".")
    return int(place[1]) if len(place) > 1 and place[0] in _ROOTS and place[1].isdecimal() else -1
