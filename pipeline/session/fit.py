"""The part of a long history that requests leave out: policy ``fit``.

A history above N tokens is cut to N/2 in one step, by whole exchanges, oldest first. Half of N makes cuts rare, and
with them changes of the prefix. An exchange is a user's turn, or an assistant's turn with the results of its calls. If
the first exchange that stays is an assistant's, the user's turn that it belongs to stays too, so that a history begins
with a user's turn and the last user turn always stays. The last exchange stays in any case.

The cut is computed turn by turn in the order of the log. It is a function of the log and the settings, so a history
that is read whole, turn by turn, or from records is cut alike, and a rewind to a point before a cut restores it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final, Literal

from msgspec import UNSET, Struct, UnsetType, structs

from reknit.pipeline.fixes import Fix, make
from reknit.pipeline.history.pieces import LedgerEntry, block_path
from reknit.pipeline.history.served import RESULTS, ids_of
from reknit.pipeline.model import Block, Document, Image, Text, ToolResult, ToolUse, Turn, Unknown
from reknit.pipeline.policy import Policy
from reknit.pipeline.session.prefix import PrefixChange
from reknit.pipeline.session.tokens import CountTokens, TokenEstimate
from reknit.pipeline.targets import Setting

CUT: Final = "exchange_cut"
SUMMARY: Final = "summary_inserted"
EXCEEDED: Final = "fit_exceeded"
BEYOND_FIT: Final = "fit"
"""The prefix reset of a request after a cut."""


class Cut(Struct, frozen=True, array_like=True):
    """A cut: messages before ``start`` are left out, but for the user's message ``owner`` (-1: none).

    ``at`` is the message whose arrival made it; -1 where nothing is cut.
    """

    start: int = 0
    owner: int = -1
    at: int = -1


NO_CUT: Final = Cut()


class SavedFit(Struct, array_like=True):
    """The cut in force as a session's state has it.

    ``tokens`` are those of a request. ``exceeded`` are the user's messages that stay and are above the limit, each with
    the message with which they were. ``spoken`` is the first message in which the user says something (-1: none yet).
    """

    cut: Cut
    tokens: int
    exceeded: list[tuple[int, int]]
    spoken: int


class Shown(Struct, frozen=True, gc=False):
    """A turn of the log as requests have it: ``turn`` is what stays (None: nothing), with what is left out.

    ``summary`` says where the summary of what was cut is inserted, if there is one.
    """

    turn: Turn | None
    fixes: Sequence[Fix] = ()
    dropped: Sequence[LedgerEntry] = ()
    summary: Literal["", "before", "after"] = ""


class _Weighed(Struct, frozen=True, gc=False):
    """A turn that requests have, in tokens; ``said`` are those of what the user says in it, -1 for nothing.

    ``begins``: an exchange begins with it, the user's own if it ``is_users``. ``is_models``: it is the assistant's.
    ``opens`` and ``answers`` are ids of calls.
    """

    index: int
    tokens: int
    said: int
    begins: bool
    is_users: bool = False
    is_models: bool = False
    opens: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()


class FitBounds:
    """The cut of one session's history. ``limit`` is N; 0 cuts nothing. ``head`` are the tokens of system and tools."""

    def __init__(
        self, limit: int, estimate: TokenEstimate, head: int, policy: Policy, saved: SavedFit | None = None
    ) -> None:
        self._limit, self._estimate, self._head = limit, estimate, head
        self._window, self._summary = policy.open_exchanges, policy.summary
        self.is_on = True
        self._last_shown = -1
        self.cut = NO_CUT if saved is None else saved.cut
        self._tokens = head if saved is None else saved.tokens
        self._exceeded = [] if saved is None else saved.exceeded
        self._spoken = -1 if saved is None else saved.spoken
        # The turns that requests have; None where they have to be read from the log first.
        self._turns: list[_Weighed] | None = [] if saved is None else None

    def again(self, policy: Policy, setting: Setting) -> FitBounds:
        """Return the bounds of a log that is read again, under a policy and a setting."""
        bounds = fit_for(policy, setting, self._estimate.count)
        bounds.is_on = self.is_on
        return bounds

    @property
    def active(self) -> bool:
        """True if the policy sets a limit that is kept."""
        return self.is_on and self._limit > 0

    @property
    def touches(self) -> bool:
        """True if requests differ from the log, or if a turn has a fix."""
        return self.cut.at >= 0 or bool(self._exceeded)

    def take(self, turn: Turn, earlier: Callable[[], Iterable[Turn]]) -> PrefixChange | None:
        """Take a turn, in the order of the log; return the cut that it made, if any."""
        if not self.active:
            return None
        if self._turns is None:
            tokens = self._estimate.of_blocks(turn.blocks)
            if self._tokens >= 0 and self._tokens + tokens <= self._limit:
                self._tokens += tokens
                self._note_spoken(turn)
                return None
            self._read(earlier())
        self._add(turn)
        first = self._step(turn.index) if self._tokens > self._limit else -1
        return PrefixChange("", first, turn.index, BEYOND_FIT) if first >= 0 else None

    def back(self, count: int) -> None:
        """Continue from the first ``count`` messages, which come after the cut."""
        self._turns, self._tokens = None, -1
        self._spoken = self._spoken if self._spoken < count else -1
        self._exceeded = [each for each in self._exceeded if each[1] < count]

    def saved(self) -> SavedFit | UnsetType:
        """Return the state, if the policy sets a limit."""
        if not self.active:
            return UNSET
        return SavedFit(self.cut, self._tokens, self._exceeded, self._spoken)

    # What requests have of the log.

    def shown(self, turn: Turn) -> Shown:
        """Return what requests have of the next turn of the log."""
        shown = self._under(turn, self.cut)
        is_new, self._last_shown = turn.index != self._last_shown, turn.index
        spoke = [index for index, at in self._exceeded if is_new and at == turn.index]
        if spoke:
            fixes = [make(EXCEEDED, f"{turn.root}.{index}") for index in spoke]
            shown = structs.replace(shown, fixes=[*shown.fixes, *fixes])
        if self._summary and self.cut.at >= 0 and says(turn):
            if turn.index == self.cut.owner:
                return structs.replace(shown, summary="after")
            if self.cut.owner < 0 and turn.index == self.cut.start:
                return structs.replace(shown, summary="before")
        return shown

    def kept(self, turn: Turn) -> Turn | None:
        """Return what the cut leaves of a turn."""
        return self._under(turn, self.cut).turn

    def since(self, old: Cut, turns: Iterable[Turn]) -> list[Fix]:
        """Return the fixes of what the cut leaves out of the log and an ``old`` one did not."""
        found: list[Fix] = []
        for turn in turns:
            if turn.index >= self.cut.start:
                break
            fixes = self._under(turn, self.cut).fixes
            if fixes and fixes != self._under(turn, old).fixes:
                found += fixes
        return found

    def _under(self, turn: Turn, cut: Cut) -> Shown:
        if turn.index >= cut.start or self._leads(turn):
            return Shown(turn)
        if turn.index == cut.owner and says(turn):
            paths = [block_path(turn, at) for at, block in enumerate(turn.blocks) if isinstance(block, ToolResult)]
            return Shown(_said(turn), [make(CUT, path) for path in paths], _dropped(paths))
        paths = [block_path(turn, at) for at in range(len(turn.blocks))]
        return Shown(None, [make(CUT, turn.place)] if paths else (), _dropped(paths))

    def _leads(self, turn: Turn) -> bool:
        return turn.role == "system" and (self._spoken < 0 or turn.index < self._spoken)

    # The steps.

    def _note_spoken(self, turn: Turn) -> None:
        if self._spoken < 0 and says(turn):
            self._spoken = turn.index

    def _read(self, turns: Iterable[Turn]) -> None:
        """Weigh the turns of the log that requests have."""
        self._turns, self._tokens = [], self._head
        for turn in turns:
            kept = self.kept(turn)
            if kept is not None:
                self._add(kept)

    def _add(self, turn: Turn) -> None:
        assert self._turns is not None  # noqa: S101  its caller has read them
        self._note_spoken(turn)
        tokens = self._estimate.of_blocks(turn.blocks)
        self._tokens += tokens
        if not self._leads(turn):
            self._turns.append(self._weighed(turn, tokens, self._turns[-1] if self._turns else None))

    def _weighed(self, turn: Turn, tokens: int, last: _Weighed | None) -> _Weighed:
        is_new = last is None or turn.index > last.index
        answers = _answered(turn)
        if turn.role == "assistant":
            begins = is_new and not answers and (last is None or not last.is_models)
            return _Weighed(turn.index, tokens, -1, begins, is_models=True, opens=_opened(turn), answers=answers)
        if not says(turn):
            return _Weighed(turn.index, tokens, -1, begins=False, answers=answers)
        said = _said(turn)
        if said is turn:
            return _Weighed(turn.index, tokens, tokens, begins=is_new, is_users=True, answers=answers)
        return _Weighed(turn.index, tokens, self._estimate.of_blocks(said.blocks), begins=False, answers=answers)

    def _step(self, at: int) -> int:
        """Cut to half of the limit, or as near as whole exchanges go.

        Returns the first message that is left out, -1 where nothing can be.
        """
        turns = self._turns or []
        chosen: tuple[int, list[_Weighed], int] | None = None
        for found in self._cuts(turns):
            chosen = found
            if found[2] <= self._limit // 2:
                break
        first = -1
        if chosen is not None:
            place, owner, self._tokens = chosen
            start = turns[place].index
            self.cut = Cut(start, owner[0].index if owner else -1, at)
            first = next((turn.index for turn in turns[:place] if turn.index != self.cut.owner), self.cut.owner)
            self._turns = [*owner, *turns[place:]]
            self._exceeded = [each for each in self._exceeded if each[0] >= start or each[0] == self.cut.owner]
        if self._tokens > self._limit:
            self._note_exceeded(at)
        return first

    def _note_exceeded(self, at: int) -> None:
        spoke = next((turn.index for turn in reversed(self._turns or []) if turn.said >= 0), -1)
        if spoke >= 0 and all(index != spoke for index, _ in self._exceeded):
            self._exceeded = [*self._exceeded, (spoke, at)]

    def _cuts(self, turns: Sequence[_Weighed]) -> Iterator[tuple[int, list[_Weighed], int]]:
        """Yield the possible cuts, the smallest first.

        Each is the place of the first turn that stays, the user's turn that stays before it, and the tokens left.
        """
        lead = self._tokens - sum(turn.tokens for turn in turns)
        left = list(accumulate((turn.tokens for turn in reversed(turns)), initial=0))[::-1]
        number, closed, owner = -1, _bound(turns, self._window), list[_Weighed]()
        for place, turn in enumerate(turns):
            number += turn.begins
            if turn.begins and place and number not in closed:
                if turn.is_users:
                    yield place, [], lead + left[place]
                elif owner and not (turns[place - 1].is_users and turns[place - 1].index == owner[0].index):
                    # Directly after the user's turn it would be the cut before that.
                    yield place, owner, lead + sum(each.said for each in owner) + left[place]
            if turn.said >= 0:
                is_more = bool(owner) and owner[0].index == turn.index
                owner = [*owner, _alone(turn, begins=False)] if is_more else [_alone(turn, begins=True)]


def fit_for(
    policy: Policy, setting: Setting, count: CountTokens | None = None, saved: SavedFit | None = None
) -> FitBounds:
    """Return the bounds for a policy and a setting."""
    estimate = TokenEstimate(setting.model, count)
    limit = 0 if policy.fit == "off" else policy.fit
    head = estimate.of_head(setting) if limit else 0
    return FitBounds(limit, estimate, head, policy, saved)


def says(turn: Turn) -> bool:
    """Return True if the user says something in a turn, besides results."""
    return turn.role == "user" and any(
        isinstance(block, (Image, Document)) or (isinstance(block, Text) and bool(block.text.strip()))
        for block in turn.blocks
    )


def _said(turn: Turn) -> Turn:
    """What the user says in a turn, without results."""
    if not any(isinstance(block, ToolResult) for block in turn.blocks):
        return turn
    kept = [(block, block_path(turn, at)) for at, block in enumerate(turn.blocks) if not isinstance(block, ToolResult)]
    return structs.replace(turn, blocks=tuple(block for block, _ in kept), paths=tuple(path for _, path in kept))


def _dropped(paths: Iterable[str]) -> list[LedgerEntry]:
    return [LedgerEntry(path, "dropped", code=CUT) for path in paths]


def _alone(turn: _Weighed, *, begins: bool) -> _Weighed:
    """A user's turn that stays without what it answers."""
    return structs.replace(turn, tokens=turn.said, begins=begins, is_users=True, answers=())


def _opened(turn: Turn) -> tuple[str, ...]:
    """The ids of the calls of a turn, in order; of those that the provider runs too."""
    return tuple(found for block in turn.blocks if (found := _opens(block)) is not None)


def _opens(block: Block) -> str | None:
    if isinstance(block, ToolUse):
        return block.id
    if isinstance(block, Unknown) and block.kind in {"server_tool_use", "mcp_tool_use"}:
        return ids_of(block).id
    return None


def _answered(turn: Turn) -> tuple[str, ...]:
    """The ids that the results of a turn name, but for those of the provider's own calls of the same turn."""
    own = set(_opened(turn))
    found = []
    for block in turn.blocks:
        if isinstance(block, ToolResult):
            found.append(block.tool_use_id)
        elif isinstance(block, Unknown) and block.kind in RESULTS and ids_of(block).tool_use_id not in own:
            found.append(ids_of(block).tool_use_id)
    return tuple(found)


def _bound(turns: Sequence[_Weighed], window: int) -> set[int]:
    """Return the numbers of the exchanges that no cut may begin with, because a call before them is answered in them.

    So are those after a call that still waits. After ``window`` exchanges a call does not wait any more.
    """
    closed: set[int] = set()
    waiting: dict[str, int] = {}
    number = asked = -1
    for turn in turns:
        number += turn.begins
        for name in turn.answers:
            # A result that names no known call belongs to the calls of the last assistant turn.
            since = waiting.pop(name, asked)
            if since >= 0 and number - since < max(window, 1):
                closed.update(range(since + 1, number + 1))
        if turn.opens:
            asked = number
            waiting.update(dict.fromkeys(turn.opens, number))
    for since in waiting.values():
        if number - since < max(window, 1):
            closed.update(range(since + 1, number + 1))
    return closed
