"""Exchanges: an assistant turn with the results of its calls, and what the user said after them.

The open end of a history is a list of exchanges. They are plain data, so that a session's state is a copy of them. The
calls of an exchange are found by id, at once, however many there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from msgspec import UNSET, Struct, structs

from reknit.pipeline.history.call_ids import NO_ID, made_id
from reknit.pipeline.history.calls import Call, CallIndex, CallsWithId
from reknit.pipeline.history.pieces import FixLog, TrackedBlock, is_blank, is_foreign, is_native, is_point, is_row
from reknit.pipeline.model import Block, Issuer, RedactedThinking, Text, Thinking, ToolUse, Turn, Unknown
from reknit.pipeline.options import Structure

# The repairs of a call without a result.
_ANSWERING = frozenset({"result_synthesised", "call_unanswered"})


class Start(Struct, frozen=True, array_like=True):
    """The start of a separate message next to one of the same side: this turn, under this id."""

    turn: int
    id: str | None = None


class Exchange(Struct, omit_defaults=True, dict=True):
    """One exchange. The first of a history mostly has no assistant turn.

    ``number`` counts the assistant turn, ``user_number`` the user turn of its own that follows its results (0: none
    yet). ``sealed`` is set once the assistant turn has been settled. Where neighbours stay apart, ``assistant_starts``
    and ``user_starts`` say which turns begin a message, besides the first one of each side.
    """

    number: int
    assistant: list[TrackedBlock] = []
    calls: list[Call] = []
    results: list[TrackedBlock] = []
    user: list[TrackedBlock] = []
    assistant_id: str | None = None
    user_id: str | None = None
    user_number: int = 0
    sealed: bool = False
    assistant_starts: list[Start] = []
    user_starts: list[Start] = []

    def name_assistant(self, identity: str | None) -> None:
        """Give the last message of the assistant's the id of a turn that is part of it, if that has one."""
        if identity and self.assistant_starts:
            self.assistant_starts[-1] = Start(self.assistant_starts[-1].turn, identity)
        else:
            self.assistant_id = identity or self.assistant_id

    def name_user(self, identity: str | None) -> None:
        """Give the last message of the user's the id of a turn that is part of it, if that has one."""
        if identity and self.user_starts:
            self.user_starts[-1] = Start(self.user_starts[-1].turn, identity)
        else:
            self.user_id = identity or self.user_id

    def add_said(self, pieces: Sequence[TrackedBlock], turn: Turn, structure: Structure) -> bool:
        """Add what the user says in a turn; whether it is joined with what the user said before."""
        before, joined = self.user or self.results, False
        if before and before[-1].turn != turn.index:
            last, first = before[-1], pieces[0]
            # A text that says nothing may only be alone in its message.
            if (
                ("user" in structure.neighbours and all(map(is_blank, pieces)))
                or _may_follow(last, structure)
                or last.stays_system != first.stays_system
                or _is_apart(before, first, structure)
            ):
                self.user_starts.append(Start(turn.index))
            else:
                joined = bool(self.user) and not _is_unjoined(last, first, structure)
        self.user += pieces
        self.name_user(turn.id)
        return joined

    def add_result(self, call: Call, piece: TrackedBlock, structure: Structure, *, real: bool) -> None:
        """Add a call's result, or put it in the place of the one that was not real."""
        if call.result >= 0:
            self.results[call.result] = piece
        else:
            call.result = len(self.results)
            last = self.results[-1] if self.results else piece
            if piece.fate != "moved" and last.turn != piece.turn and _may_follow(last, structure):
                self.user_starts.append(Start(piece.turn))
            self.results.append(piece)
        call.real = real

    def join_calls(self, said: Sequence[TrackedBlock]) -> list[str]:
        """Merge the messages with calls if text joins the last one; return where the others began.

        Messages with calls stay separate only while none but the first has text.
        """
        if not (self.calls and self.assistant_starts and any(isinstance(piece.block, Text) for piece in said)):
            return []
        first = self.assistant[self.calls[0].at].turn
        joined = [start for start in self.assistant_starts if start.turn > first]
        self.assistant_starts = [start for start in self.assistant_starts if start.turn <= first]
        for start in joined:
            self.name_assistant(start.id)
        began = {piece.turn: piece.message for piece in self.assistant}
        return [began[start.turn] for start in joined]

    def stays_apart(self, said: Sequence[TrackedBlock], turn: Turn, structure: Structure) -> bool:
        """Return True if the assistant's next content, in a turn, is a message of its own next to the last one."""
        new = [piece for piece in said if not self.has_asked(piece.block, turn)] or said
        last = last_shown(self.assistant, structure)
        if (
            "assistant" not in structure.neighbours
            or is_reasoning(last)
            or is_paused_by(last, structure)
            or not any(can_be_alone(piece, structure) for piece in new)
            or not self._last_message_stays(structure)
        ):
            return False
        kinds = {type(piece.block) for piece in new}
        # Only a call is sure to stay: for anything else a target may put a text, which joins the calls before it.
        calls_only = structure.calls_apart and ToolUse in kinds and Text not in kinds
        if structure.flat or calls_only or not self.calls:
            return True
        called = self.assistant[self.calls[-1].at].turn
        return bool(self.assistant_starts) and called < self.assistant_starts[-1].turn

    def has_asked(self, block: Block, turn: Turn) -> bool:
        """Return True if a block of a turn is a call that only comes again; one whose id is made never does."""
        if not isinstance(block, ToolUse) or (turn.ids_made and block.id == made_id(block.name)):
            return False
        before = self.asked(block.id)
        return before is not None and before.holds(self.assistant, block)

    def leave_out(self, calls: Sequence[Call]) -> None:
        """Continue without some of the calls."""
        left_out = {call.at for call in calls}
        places = {at: new for new, at in enumerate(at for at in range(len(self.assistant)) if at not in left_out)}
        self.assistant = [self.assistant[at] for at in places]
        self.calls = [structs.replace(call, at=places[call.at]) for call in self.calls if call.at not in left_out]

    def join_user(self, later: Exchange, *, apart: bool) -> None:
        """Take over what the user says in a later exchange; ``apart`` keeps both sides' messages side by side."""
        if apart:
            self.user_starts += [Start(later.user[0].turn, later.user_id), *later.user_starts]
        else:
            self.user_id = later.user_id or self.user_id
        self.user += later.user
        self.user_number = self.user_number or later.user_number

    def asked(self, original: str, *, by_name: bool = False) -> CallsWithId | None:
        """The calls that came under an id, or, ``by_name``, else those of the tool that a made id names."""
        return self._index.find(self.assistant, original, by_name=by_name) if self.calls else None

    @property
    def _index(self) -> CallIndex:
        # Not a field, and so not part of the state: it is created for each list of calls, and updated as the list
        # grows.
        index: CallIndex | None = self.__dict__.get("index")
        if index is None or index.calls is not self.calls:
            index = self.__dict__["index"] = CallIndex(self.calls)
        return index

    def pass_on(self, call: Call) -> bool:
        """Give a result that named no call to the next call without one, as another names the call that it went to."""
        earlier = self.results[call.result]
        asked = self.asked(NO_ID, by_name=True)
        waiting = asked.waiting if asked is not None else None
        if not call.real or waiting is None or waiting.result >= 0:
            return False
        waiting.result, waiting.real, waiting.came = len(self.results), call.real, call.came
        rewritten = structs.replace(earlier.block, tool_use_id=self.tool_use(waiting).id)
        self.results.append(structs.replace(earlier, block=rewritten))
        return True

    def tool_use(self, call: Call) -> ToolUse:
        """A call's block, with the id that it has in the output."""
        return call.block(self.assistant)

    def lacking(self, structure: Structure) -> list[Call]:
        """Return the calls that need a result and have none."""
        if structure.unanswered and not self.results:
            return []
        if structure.observed and not structure.observed.isdisjoint(_ANSWERING):
            return []
        return [call for call in self.calls if call.result < 0]

    @property
    def answered(self) -> bool:
        """True if every call has a real result."""
        calls = self.calls
        # Most turns have one call. Without the index, one more turn takes 9 function calls less, of 335.
        return not calls or (calls[0].real and (len(calls) == 1 or self._index.answered))

    def was_answered_by(self, turn: Turn) -> bool:
        """Return True if the last thing that the user sent is a result, and came in this turn."""
        return bool(self.results) and not self.user and self.results[-1].turn == turn.index

    @property
    def has_unknown(self) -> bool:
        """True if the assistant turn has a block of a type that only its provider has."""
        return Unknown in [type(piece.block) for piece in self.assistant]

    @property
    def closed(self) -> bool:
        """True if the assistant turn is complete: the assistant's next content is a new turn."""
        return bool(self.user or self.results)

    def _last_message_stays(self, structure: Structure) -> bool:
        began = self.assistant_starts[-1].turn if self.assistant_starts else 0
        last = takewhile(lambda piece: piece.turn >= began, reversed(self.assistant))
        return any(can_be_alone(piece, structure) for piece in last)

    def firm(self, structure: Structure, *, unanswered_stay: bool) -> bool:
        """Return True if something of the assistant turn stays, whatever comes.

        A call without a result may be left out by policy; with a placeholder it stays.
        """
        if unanswered_stay:
            return self.stays(structure)
        loose = {call.at for call in self.calls if call.result < 0}
        return any(can_be_alone(piece, structure) and at not in loose for at, piece in enumerate(self.assistant))

    def stays(self, structure: Structure) -> bool:
        """Return True if any piece of the assistant turn can be a message alone. The answer is cached."""
        at: int = self.__dict__.get("looked_at", 0)
        while at < len(self.assistant) and not can_be_alone(self.assistant[at], structure):
            at += 1
        self.__dict__["looked_at"] = at
        return at < len(self.assistant)


def _may_follow(last: TrackedBlock, structure: Structure) -> bool:
    """True if the user's next message may stay one of its own; a shape that writes each result as one means no turn."""
    return "user" in structure.neighbours and not is_row(last)


def _is_apart(before: Sequence[TrackedBlock], first: TrackedBlock, structure: Structure) -> bool:
    """True if one of two system messages has members that the target takes, and that hold for that message alone."""
    if not first.stays_system:
        return False
    last = (piece for piece in before if piece.turn == before[-1].turn)
    return any(
        isinstance(piece.block, Unknown) or (piece.own is not UNSET and piece.own.provider == structure.own)
        for piece in (*last, first)
    )


def _is_unjoined(last: TrackedBlock, piece: TrackedBlock, structure: Structure) -> bool:
    """Return True if adjacent user pieces stay separate: a row, or an item of a flat list."""
    return is_row(last) or (structure.flat and (isinstance(last.block, Unknown) or isinstance(piece.block, Unknown)))


def call_of(exchanges: Sequence[Exchange], original: str, *, by_name: bool) -> tuple[Exchange, Call] | None:
    """The call that a result belongs to; ``by_name`` says that its id may have been made of the tool's name.

    A result that follows directly belongs to the last exchange if that has a call of its id; a displaced one to
    the latest open call of its id that still waits. Of several calls with one id, the first that waits. Where every
    open call of this id has its result, it is one more for the latest of them.
    """
    latest: tuple[Exchange, Call] | None = None
    for exchange in reversed(exchanges):
        asked = exchange.asked(original, by_name=by_name)
        if asked is None:
            continue
        open_call = asked.waiting
        if open_call is not None or exchange is exchanges[-1]:
            return exchange, open_call or asked.calls[0]
        latest = latest or (exchange, asked.calls[0])
    return latest


def waiting_call(exchanges: Sequence[Exchange], original: str, *, by_name: bool) -> tuple[Exchange, Call] | None:
    """The latest open call of an id without a real result; of several in one turn, the first."""
    for exchange in reversed(exchanges):
        asked = exchange.asked(original, by_name=by_name)
        if asked is not None and (call := asked.waiting) is not None:
            return exchange, call
    return None


def is_reasoning(piece: TrackedBlock) -> bool:
    """True if a piece is thinking, readable or not; an item of that type, which came among other blocks, is too."""
    block = piece.block
    return isinstance(block, (Thinking, RedactedThinking)) or (isinstance(block, Unknown) and block.kind == "reasoning")


def can_be_alone(piece: TrackedBlock, structure: Structure) -> bool:
    """Return True if a piece may be the whole content of an assistant message.

    Reasoning may only be if it is the target's own and the target accepts that. A block of another provider, or a
    breakpoint, has no content for the target.
    """
    if isinstance(piece.block, Unknown) and not is_reasoning(piece):
        return not (is_foreign(piece.block, structure.own) or is_point(piece.block))
    if not is_reasoning(piece) or "reasoning_alone" in structure.observed:
        return True
    issuer = piece.block.issuer
    return structure.reasoning_alone and issuer is not UNSET and issuer.provider == structure.own


def leave_out(pieces: Sequence[TrackedBlock], book: FixLog) -> None:
    """Record that an assistant message is removed, because none of its pieces may be a message alone."""
    for piece in pieces:
        if is_reasoning(piece):
            book.drop("reasoning_alone", piece)
        else:
            book.drop_unknown(piece)


def last_shown(pieces: Sequence[TrackedBlock], structure: Structure) -> TrackedBlock:
    """Return the last of an assistant's pieces that is no breakpoint and of a type that the target has.

    Without such a piece, return the last one.
    """
    return next((piece for piece in reversed(pieces) if not _is_lacked(piece.block, structure.own)), pieces[-1])


def _is_lacked(block: Block, own: str) -> bool:
    if is_point(block) or is_foreign(block, own):
        return True
    # For a block without an issuer, the type decides. A target that names no provider of its own decides in its writer.
    return isinstance(block, Unknown) and bool(own) and block.issuer is UNSET and not is_native(own, block.kind)


def is_paused_by(piece: TrackedBlock, structure: Structure) -> bool:
    """Return True if a piece is a call that the provider runs itself, after which the model continues its own turn."""
    return isinstance(piece.block, Unknown) and piece.block.kind in structure.paused_by


def continues(last: TrackedBlock, turn: Turn, pieces: list[TrackedBlock]) -> bool:
    """Return True if ``turn`` continues an assistant turn in the notation of its shape, so nothing is joined.

    Responses' items are the pieces of one turn, but a message directly after a message is a second one.
    """
    return turn.root == "input" and not (
        isinstance(last.block, Text) and last.turn != turn.index and bool(pieces) and isinstance(pieces[0].block, Text)
    )


def calls_last(pieces: list[TrackedBlock], changed: set[int], book: FixLog) -> list[TrackedBlock]:
    """Return an assistant turn's pieces with no text after a call (ANT-07b); ``changed`` gets the turns of moved calls.

    Reasoning and provider-run blocks keep their places relative to the texts, except for Gemini's signature of a call.
    """
    kinds = [type(piece.block) for piece in pieces]
    if ToolUse not in kinds or Text not in kinds[kinds.index(ToolUse) :] or not book.makes("call_moved"):
        return pieces
    last_text = len(kinds) - 1 - kinds[::-1].index(Text)
    early: list[int] = []
    for at in range(last_text):
        if kinds[at] is ToolUse:
            early += range(_sealed_from(pieces, at), at + 1)
    first = set(early)
    moved = [pieces[at] for at in range(last_text + 1) if at not in first]
    for at in early:
        piece = pieces[at]
        if kinds[at] is ToolUse and piece.code != "call_moved":
            piece = book.change("call_moved", piece)
            changed.add(piece.turn)
        moved.append(piece)
    return [*moved, *pieces[last_text + 1 :]]


def _sealed_from(pieces: Sequence[TrackedBlock], call: int) -> int:
    """Return the start of the reasoning whose signature Gemini puts on the call after it; otherwise the call."""
    for at in range(call - 1, -1, -1):
        block = pieces[at].block
        if not isinstance(block, Thinking) or not isinstance(block.issuer, Issuer) or block.issuer.provider != "gemini":
            break
        if block.signature:
            return at
    return call
