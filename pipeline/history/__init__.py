"""Structure repair: turns one history into the form that a provider accepts, and records each change.

Theory of operation. The history is a list of exchanges. Only its end is open; everything before has been settled, that
is, returned as finished messages, and never changes again. An incoming turn is first cleaned by itself (``clean``),
then its blocks are added to the open exchanges: the assistant's content joins the last exchange or begins a new one, a
result is added to its call in any of the open exchanges, and other user content joins the last exchange's user turn.
Adjacent turns of one role thereby merge, also if blocks between them were dropped. If the target takes adjacent
messages of one role, the exchange stores which turns begin a message. The machine finds deviations; the ``Structure``
decides what is repaired.

After each turn, everything before the earlier of these is settled: the last turn, which may still grow, and the first
exchange with a call that has no real result yet, if it is among the last ``policy.open_exchanges``. A request renders
the open exchanges as if nothing followed (``open_messages``), without changing them. A whole history is repaired by the
same steps, so both ways give the same result. In a whole history, an exchange whose results never come settles as soon
as an assistant turn follows it (``never_answered``), and only its fixes wait.

More results of one call, and results of calls that have settled without one, are late (``policy.late_result``). A
result is shown once an assistant turn follows it. One that is not shown yet may be replaced, so its exchange does not
settle before. A late result that becomes user text is held until every call of the last exchange has its result, or the
user has spoken over the open one; a request shows it after the last turn.

Where a model's reasoning is bound to what was sent before it (``Structure.prefix_bound``), an assistant turn settles
everything before it: the model has answered the repairs of the open end too. ``answered`` names the assistant turns
that followed a request whose end a later turn would change, and whether that end was ``CONTINUE``. With
``keeps_answered``, these turns settle what is before them for every model, and no other turns do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from msgspec import structs

from reknit.pipeline.fixes import Fix, digest, make
from reknit.pipeline.history.call_ids import NO_ID, IdTable, IdWriter, SettledCall, made_id
from reknit.pipeline.history.calls import Call
from reknit.pipeline.history.clean import clean, structure_under, system_pieces
from reknit.pipeline.history.exchanges import (
    Exchange,
    Start,
    call_of,
    can_be_alone,
    continues,
    leave_out,
    waiting_call,
)
from reknit.pipeline.history.late import EarlierCalls, Log, digest_of, has_seen, late_pieces, result_digest
from reknit.pipeline.history.never_answered import EarlyFixes, KnownTurns
from reknit.pipeline.history.pieces import (
    REFERENCE,
    FixLog,
    LedgerEntry,
    Message,
    TrackedBlock,
    block_path,
    is_blank,
    is_foreign,
    is_point,
    message_of,
    tool_id,
)
from reknit.pipeline.history.placeholders import is_placeholder
from reknit.pipeline.history.render import (
    CONTINUE,
    LEAD,
    OpenEnd,
    Rendered,
    assistant_messages,
    count_assistant_messages,
    place_of_result,
    placeholders,
    render_open,
    user_messages,
)
from reknit.pipeline.history.result_text import orphan_pieces, same_content
from reknit.pipeline.history.served import in_flight, is_called_by_code
from reknit.pipeline.history.valid_runs import ValidRun
from reknit.pipeline.model import Block, RenamedTurn, Text, ToolResult, ToolUse, Turn, Unknown
from reknit.pipeline.options import STRICT, Structure
from reknit.pipeline.policy import Policy

# Past this many, the turns that have been settled are taken out of ``History.changed``.
_MANY_CHANGED = 64


class History:
    """A history under repair. ``messages`` counts those that are settled; ``id_writers`` are for its ``IdTable``."""

    def __init__(
        self, policy: Policy | None = None, structure: Structure = STRICT, id_writers: Sequence[IdWriter] = ()
    ) -> None:
        self.policy = policy or Policy()
        self.structure = structure_under(self.policy, structure)
        # Results may come in messages of their own, so the last exchange waits until something else has been said.
        self._patience = max(self.policy.open_exchanges, 1)
        self.ids = IdTable(id_writers, again=structure.ids_again, marked=structure.marked_ids)
        self.exchanges: list[Exchange] = []
        self.system: list[TrackedBlock] = []
        self.messages = self.turns = self.number = 0
        self.changed: set[int] = set()
        self.user_spoke_last = False
        # The ids of the last assistant turn's calls that were cut off: none of them is a call any more.
        self.cut: set[str] = set()
        self.referred = False  # to an item that the provider stores, and may be a call
        self.last_item = ""  # the digest of the last turn, if it was an item with an id
        # Late results as user text that wait for their turn, and the number of the last assistant turn.
        self.held: list[TrackedBlock] = []
        self.spoken_at = 0
        # Where the turns before are read from, to know what results a settled call has; set by the owner.
        self.log: Log | None = None
        self._earlier_calls: EarlierCalls | None = None
        # By the index of the message; set by the owner, as the log is.
        self.answered: Mapping[int, bool] = MappingProxyType({})
        self.keeps_answered = structure.prefix_bound
        # The number of the last exchange that an answered request had.
        self.last_answered = -1
        # Set by the owner while it takes a whole history.
        self.known_turns: KnownTurns | None = None
        # The fixes of exchanges that settled early, and of those after them, the oldest first; they are not due yet.
        self._early: list[EarlyFixes] = []
        self._book = FixLog(observed=self.structure.observed)
        self._settled: list[Message] = []
        self._calls: list[SettledCall] = []

    def append(self, turn: Turn) -> list[Fix]:
        """Take the next turn; the fixes that are now certain."""
        self.turns += 1
        book, before = self._book, len(self._book.fixes)
        if self._comes_again(turn):
            for at, block in enumerate(turn.blocks):
                book.drop("item_repeated", TrackedBlock(block, turn.index, block_path(turn, at)))
            return book.fixes[before:]
        if turn.role == "assistant" and self.policy.late_result == "replace":
            self.spoken_at = self.turns
        if self.keeps_answered:
            self._keep_answered(turn)
        if turn.role == "system":
            self._system(turn)
        else:
            for role, pieces in clean(turn, self.policy, self.structure, book, self.changed):
                if role == "assistant":
                    self._assistant(turn, pieces)
                else:
                    self._user(turn, pieces)
            if turn.role == "assistant":
                self.user_spoke_last = False
                self.cut = {block.id for block in turn.blocks if isinstance(block, ToolUse) and block.incomplete}
        if self._earlier_calls is not None:
            self._earlier_calls.add(turn)
        self._settle_exchanges()
        if self._early and self._early[0].due <= self.number:
            self._release_early(book)
        return book.fixes[before:]

    def leave_out(self, turn: Turn) -> None:
        """Count a turn that requests leave out. A result of one of its calls that comes later is a late one."""
        self.turns += 1
        self.last_item = ""
        if turn.role == "assistant":
            self.ids.begin_turn()
        for block in turn.blocks:
            # An id that the reader made of a tool's name stands for no single call.
            if isinstance(block, ToolUse) and block.id not in {NO_ID, made_id(block.name) if turn.ids_made else NO_ID}:
                call = SettledCall(block.id, self.ids.claim(block.id), answered=False)
                self._calls.append(call)
                self.ids.settle_call(call)

    def insert(self, text: str, code: str, *, first: bool) -> Fix:
        """Insert a text into the last user turn, before or after what the user says; return its fix."""
        said = self._last_for_user().user
        at = 0 if first else len(said)
        turn = said[-1].turn if said else -1
        said.insert(at, TrackedBlock(Text(text=text), turn, "", fate="synthesised", code=code))
        return make(code, f"messages.{self.messages}.content.{at}")

    def settles_within(self, valid_run: ValidRun, pairs: int) -> bool:
        """Return True if all that is open settles while a valid run is taken, in the same way whatever the run holds.

        ``pairs`` are the first pairs of the run, which have been taken.
        """
        if not self.exchanges or not self.exchanges[-1].closed or self.held:
            return False
        # The fixes of blank texts would be among those of the calls that get no result.
        if valid_run.blanks and self._early:
            return False
        if self._rests:
            return True
        if valid_run.blanks or self.structure.prefix_bound:
            return False
        number = self.number + valid_run.number - valid_run.counted[pairs][1]
        return all(self._settles_by(exchange, number) for exchange in self.exchanges)

    def _settles_by(self, exchange: Exchange, number: int) -> bool:
        """Return True if an exchange settles while ``number`` is reached, in the same way whatever comes."""
        if exchange.has_unknown or not (exchange is self.exchanges[0] or self._firm(exchange)):
            return False
        return (
            exchange.sealed or exchange.answered or self._is_old(exchange, number) or self._is_never_answered(exchange)
        )

    def skip(self, valid_run: ValidRun, turns: Sequence[Turn]) -> Sequence[Turn]:
        """Continue after a valid run of turns, as if these turns had been taken and settled one by one.

        The run opens the history or all that is open settles within it, and the table of ids admits its ids. Return its
        messages, without blank texts.
        """
        messages, blanks = valid_run.messages(turns), valid_run.blanks
        # A turn is cleaned before the exchange that it follows settles.
        cleaned = blanks[:1] == [0]
        messages = self._without_blanks(messages, blanks[:cleaned])
        self.turns += valid_run.turns
        self.number += valid_run.number
        self._settle_before(Exchange(number=self.number + 1))
        self._release_early(self._book)
        self.number += 1
        messages = self._without_blanks(messages, blanks[cleaned:])
        # An assistant's turn follows a user's, so none is the one before it once more.
        self.last_item = ""
        if self._earlier_calls is not None:
            for turn in turns:
                self._earlier_calls.add(turn)
        self.messages += len(messages)
        if valid_run.made:
            messages = self._with_ids(messages)
        self.ids.claim_answered(valid_run.ids)
        self.ids.begin_turn()
        self._calls += [SettledCall(each, each, answered=True) for each in valid_run.ids]
        return messages

    def _with_ids(self, messages: Sequence[Turn]) -> Sequence[Turn]:
        """Give calls that came without ids, and their results, the ids that repair makes; the calls are settled."""
        named: list[Turn] = []
        finals: list[str] = []
        for message in messages:
            if message.role == "assistant":
                self.ids.begin_turn()
                finals = [self._settle_unnamed(block.id) for block in message.blocks if isinstance(block, ToolUse)]
            named.append(_renamed(message, finals) if finals else message)
        return named

    def _settle_unnamed(self, original: str) -> str:
        """Settle an answered call that came without an id; return the id that repair makes."""
        final = self.ids.claim(original, taken=self.ids.answered(original) is not None)
        settled = SettledCall(original, final, answered=True)
        self.ids.settle_call(settled)
        self._calls.append(settled)
        return final

    def _settle_before(self, following: Exchange) -> None:
        """Settle everything that is open; the assistant turn that comes next is the ``following`` exchange's."""
        if self.exchanges and not self._rests:
            self.spoken_at = self.turns
            self.exchanges.append(following)
            self._settle_exchanges()
            del self.exchanges[-1]
        book = self._book
        if self._early:
            self._book = self._early[-1].book
        for exchange in self.exchanges:
            self._emit_user(exchange)
        self._book = book
        self.exchanges = [following]

    @property
    def _rests(self) -> bool:
        """True if only the user turn of one exchange is not settled."""
        return len(self.exchanges) == 1 and self.exchanges[0].sealed

    def _without_blanks(self, messages: Sequence[Turn], places: Sequence[int]) -> Sequence[Turn]:
        """Drop the blank texts of the messages in these places; return all messages."""
        if not places:
            return messages
        kept = list(messages)
        for at in places:
            turn = messages[at]
            said: list[TrackedBlock] = []
            for piece in message_of(turn).pieces:
                if is_blank(piece):
                    self._book.drop("blank_dropped", piece)
                else:
                    said.append(piece)
            blocks, paths = tuple(piece.block for piece in said), tuple(piece.path for piece in said)
            kept[at] = structs.replace(turn, blocks=blocks, paths=paths)
        return kept

    @property
    def waiting(self) -> bool:
        """True if the user's turn is the last, and each call has a real result or the user spoke over the open one."""
        if not self.user_spoke_last or not self.exchanges:
            return False
        said = [piece for piece in self.exchanges[-1].user if not (piece.system or piece.fate == "moved")]
        return not all(map(is_blank, said)) or all(exchange.answered for exchange in self.exchanges)

    @property
    def interrupted(self) -> bool:
        """True if a call of the last exchange has no real result yet; one before it was settled by what came since."""
        return bool(self.exchanges) and not self.exchanges[-1].answered

    @property
    def end_may_change(self) -> bool:
        """True if a request shows repairs after the last assistant turn that the next one would undo or move."""
        return bool(self.held) or (bool(self.exchanges) and bool(self.exchanges[-1].lacking(self.structure)))

    @property
    def is_open(self) -> bool:
        """True if a later turn may change what a request shows now, other than by following it."""
        return bool(self.held) or not all(exchange.sealed and exchange.answered for exchange in self.exchanges)

    def open_messages(self, tail: str | None = None) -> Rendered:
        """The open exchanges as messages, as if nothing more came; ``tail`` instead of the policy's."""
        drops = self.policy.missing_result == "drop"
        exchanges = [*self.exchanges[:-1], self._with_held(self.exchanges[-1])] if self.held else self.exchanges
        end = OpenEnd(exchanges, self.changed, self.messages, drops, self.structure)
        return render_open(end, tail or self.policy.tail)

    def take_settled(self) -> tuple[list[Message], list[Fix], list[LedgerEntry], list[SettledCall]]:
        """Return what is certain since the last call: messages, fixes, entries of removed blocks, calls."""
        taken = self._settled, self._book.fixes, self._book.dropped, self._calls
        self._settled, self._book, self._calls = [], FixLog(observed=self.structure.observed), []
        return taken

    # Input.

    def _comes_again(self, turn: Turn) -> bool:
        """Return True if an item of Responses is the one before it once more, by its id and all that it holds.

        Calls and results have an order of their own. Without an id it may be meant twice.
        """
        earlier, self.last_item = self.last_item, ""
        if (
            turn.root != "input"
            or turn.id is None
            or not turn.blocks
            or isinstance(turn.blocks[0], ToolUse | ToolResult)
        ):
            return False
        self.last_item = digest(structs.replace(turn, index=0, paths=None, recorded=False))
        return self.last_item == earlier and self._book.makes("item_repeated")

    def _system(self, turn: Turn) -> None:
        leading = not self.exchanges
        pieces = system_pieces(turn, self.structure, self._book, leading=leading)
        if leading:
            self.system += pieces
        elif pieces:
            self._take_said(turn, pieces, self._last_for_user())
            self.user_spoke_last = False

    def _assistant(self, turn: Turn, pieces: list[TrackedBlock]) -> None:
        if not (self.exchanges or self.structure.assistant_first) and not self._lead(pieces):
            for piece in pieces:
                self._book.drop("leading_dropped", piece)
            return
        if not self.exchanges or self.exchanges[-1].closed:
            self.number += 1
            self.exchanges.append(Exchange(number=self.number))
            self.ids.begin_turn()
        exchange = self.exchanges[-1]
        held = len(exchange.assistant)
        # A turn from which a block of the user's was moved comes in two parts, which are one message.
        begins = held > 0 and exchange.assistant[-1].turn != turn.index
        begins = begins and not continues(exchange.assistant[-1], turn, pieces)
        apart = begins and (exchange.stays_apart(pieces, turn, self.structure) or not self._book.makes("turns_merged"))
        if held and not apart and self._book.makes("turns_merged"):
            # An item that continues the last message joins it too, and text in it joins the messages with calls.
            joined = [] if self.structure.flat else exchange.join_calls(pieces)
            for place in [*joined, turn.place] if begins else joined:
                self._book.note_fix("turns_merged", place)
        for piece in pieces:
            self._add_assistant_piece(exchange, piece, turn)
        if not apart:
            exchange.name_assistant(turn.id)
        elif len(exchange.assistant) > held:  # no message begins with calls that only come again
            exchange.assistant_starts.append(Start(turn.index, turn.id))

    def _lead(self, pieces: Sequence[TrackedBlock]) -> bool:
        """Put a user turn before what the assistant says first, where the structure has it and it will stay."""
        says = any(can_be_alone(piece, self.structure) and not is_blank(piece) for piece in pieces)
        if not (self.structure.leads and says and self._book.makes("lead_inserted")):
            return False
        self._book.note_fix("lead_inserted", f"messages.{self.messages}.content.0")
        lead = TrackedBlock(Text(text=LEAD), -1, "", fate="synthesised", code="lead_inserted")
        self._last_for_user().user.append(lead)
        return True

    def _add_assistant_piece(self, exchange: Exchange, piece: TrackedBlock, turn: Turn) -> None:
        call = piece.block
        if isinstance(call, ToolUse):
            if exchange.has_asked(call, turn):
                self._book.drop("call_repeated", piece)
                self.changed.add(piece.turn)
                return
            # A generated id identifies a call in all turns.
            made = turn.ids_made and call.id == made_id(call.name)
            again = made and (call_of(self.exchanges, call.id, by_name=False) or self.ids.answered(call.id)) is not None
            final = self.ids.claim(call.id, taken=again)
            exchange.calls.append(Call(at=len(exchange.assistant), original=call.id))
            if final != call.id:
                piece = self._under_id(final, piece, structs.replace(call, id=final), made=made)
        elif isinstance(call, Unknown) and call.kind == REFERENCE:
            self.referred = True
        exchange.assistant.append(piece)

    def _under_id(self, final: str, piece: TrackedBlock, block: Block, *, made: bool) -> TrackedBlock:
        """A piece whose block has its final id now; where the input has none, one is ``made`` and none rewritten."""
        if made:
            return structs.replace(piece, block=block, came_as=piece.tool_id)
        return self._book.change("id_rewritten", piece, block, detail=final)

    def _user(self, turn: Turn, pieces: list[TrackedBlock]) -> None:
        if isinstance(pieces[0].block, Unknown) and all(is_foreign(each.block, self.structure.own) for each in pieces):
            # The message has no content that the target accepts.
            for piece in pieces:
                self._book.drop_unknown(piece)
            self.user_spoke_last = True
            return
        said: list[TrackedBlock] = []
        for piece in pieces:
            if isinstance(piece.block, ToolResult):
                if not self._result(turn, piece, piece.block, spoken=bool(said)):
                    said += self._orphan(piece, piece.block)
                    # The agent has answered it all the same, and waits for the model.
                    self.user_spoke_last = self.user_spoke_last or piece.block.tool_use_id in self.cut
            elif not said and is_point(piece.block) and self.exchanges and self.exchanges[-1].was_answered_by(turn):
                # It stays after the result that it ends; more results may follow.
                self.exchanges[-1].results.append(piece)
            else:
                said.append(piece)
        said = self._take_held(turn, said)
        if said:
            self._take_said(turn, said, self._last_for_user())
            self.user_spoke_last = True

    def _last_for_user(self) -> Exchange:
        """The exchange that the next user content belongs to."""
        last = self.exchanges[-1] if self.exchanges else None
        if last and last.assistant and not (last.closed or last.stays(self.structure)):
            # It was not firm, so the exchange before it is still there, if there was one.
            leave_out(self.exchanges.pop().assistant, self._book)
        if not self.exchanges:
            self.number += 1
            self.exchanges.append(Exchange(number=self.number, user_number=self.number, sealed=True))
        return self.exchanges[-1]

    def _take_said(self, turn: Turn, pieces: list[TrackedBlock], exchange: Exchange) -> None:
        if not exchange.user_number:
            self.number += 1
            exchange.user_number = self.number
        if exchange.add_said(pieces, turn, self.structure):
            self._book.note_fix("turns_merged", turn.place)

    def _result(self, turn: Turn, piece: TrackedBlock, result: ToolResult, *, spoken: bool) -> bool:
        """Add a result to its call; return False if no call takes it."""
        found = call_of(self.exchanges, result.tool_use_id, by_name=turn.ids_made)
        if found is None:
            return False
        exchange, call = found
        takes_late = self.policy.late_result != "drop" and result.tool_use_id != NO_ID
        if call.real and takes_late:
            # The call has its result. An earlier one under this id may still wait for one.
            alike = exchange.asked(result.tool_use_id, by_name=turn.ids_made)
            elsewhere = waiting_call(self.exchanges, result.tool_use_id, by_name=turn.ids_made)
            repeated = alike is not None and has_seen(alike, exchange.results, result_digest(result))
            if elsewhere is not None and not repeated:
                exchange, call = elsewhere
        use = exchange.tool_use(call)
        real = not is_placeholder(result, use.name, call.original)
        if call.result >= 0:
            earlier = exchange.results[call.result]
            if real and earlier.came_as == NO_ID != result.tool_use_id:
                if not exchange.pass_on(call):
                    self._book.drop("result_orphan", earlier)
            elif call.real and real and takes_late:
                return self._late(turn, piece, result, exchange, spoken=spoken)
            elif call.real or not real:
                same = "result_repeated" if same_content(piece, earlier) else "result_duplicate"
                self._book.drop(same if real else "placeholder_dropped", piece)
                return True
            else:
                self._give_way(earlier, call)
        if exchange is not self.exchanges[-1] or exchange.user or spoken:
            piece = self._book.change("result_moved", piece)
        if use.id != result.tool_use_id:
            made = turn.ids_made and result.tool_use_id in {made_id(use.name), NO_ID}
            piece = self._under_id(use.id, piece, structs.replace(result, tool_use_id=use.id), made=made)
        exchange.add_result(call, piece, self.structure, real=real)
        if self.policy.late_result == "replace":
            call.came = self.turns
        if exchange is self.exchanges[-1]:
            exchange.name_user(turn.id)
        self.user_spoke_last = True
        return True

    # What the model has answered.

    def _keep_answered(self, turn: Turn) -> None:
        """Before a turn, settle what an assistant turn has answered: as it was sent, where that is known.

        State of before format 3 may have exchanges open that an assistant turn follows.
        """
        continued = self.answered.get(turn.index) if turn.role == "assistant" else None
        if continued is not None and self.exchanges:
            self.last_answered = self.exchanges[-1].number
        self._settle_exchanges()
        if continued is None or not self.exchanges:
            return
        *before, last = self.exchanges
        if not (last.sealed or last.stays(self.structure)) or not all(each.sealed for each in before):
            return
        for exchange in before:
            self._emit_user(exchange)
        self.exchanges = [last]
        if self.held:
            last.add_said(self.held, Turn(role="user", blocks=(), index=self.held[0].turn), self.structure)
            self.held = []
        if last.sealed:
            self._fill(last, last.lacking(self.structure), self.messages)
        else:
            self._give_up(last)
        if continued:
            self._continue(last)

    def _continue(self, last: Exchange) -> None:
        """Put the user turn after an exchange with which a request ended."""
        before = self.messages if last.sealed else self.messages + count_assistant_messages(last)
        self._book.note_fix("tail_continued", f"messages.{before}.content.0")
        last.user.append(TrackedBlock(Text(text=CONTINUE), -1, "", fate="synthesised", code="tail_continued"))

    # Results that come late.

    def _late(self, turn: Turn, piece: TrackedBlock, result: ToolResult, exchange: Exchange, *, spoken: bool) -> bool:
        """Take one more real result of a call in an open exchange, which has one; the latest call of its id."""
        alike = exchange.asked(result.tool_use_id, by_name=turn.ids_made)
        assert alike is not None  # noqa: S101  the call was found by this id
        came = result_digest(result)
        if has_seen(alike, exchange.results, came):
            self._book.drop("result_repeated", piece)
            return True
        alike.seen.add(came)
        call = alike.calls[-1]
        use = exchange.tool_use(call)
        if self.policy.late_result == "turn" or call.came < self.spoken_at:
            call.seen.append(came)
            self.held += late_pieces(piece, result, use.name, use.id, self._book)
            return True
        earlier = exchange.results[call.result]
        self._book.drop("result_replaced", earlier)
        call.seen.append(digest_of(earlier))
        if exchange is not self.exchanges[-1] or exchange.user or spoken:
            piece = self._book.change("result_moved", piece)
        if use.id != result.tool_use_id:
            made = turn.ids_made and result.tool_use_id in {made_id(use.name), NO_ID}
            piece = self._under_id(use.id, piece, structs.replace(result, tool_use_id=use.id), made=made)
        # It has the earlier one's place among the messages too.
        exchange.results[call.result] = structs.replace(piece, turn=earlier.turn)
        if exchange is self.exchanges[-1]:
            exchange.name_user(turn.id)
        self.user_spoke_last = True
        return True

    def _late_of_settled(self, piece: TrackedBlock, result: ToolResult) -> None:
        """Take a result of a call that has settled."""
        if self._earlier_calls is None:
            self._earlier_calls = EarlierCalls(self.log, self.turns - 1)
        call = self._earlier_calls.find(result.tool_use_id)
        if is_placeholder(result, call.name, result.tool_use_id):
            self._book.drop("placeholder_dropped", piece)
            return
        came = result_digest(result)
        if came in call.seen:
            self._book.drop("result_repeated", piece)
            return
        call.seen.add(came)
        self.held += late_pieces(piece, result, call.name, self.ids.settled_as(result.tool_use_id), self._book)

    def _take_held(self, turn: Turn, said: list[TrackedBlock]) -> list[TrackedBlock]:
        """The content of a user turn, after the late results that waited for it if no call is open any more.

        A call is open until its result is there, or the user has spoken over it, or an assistant turn came.
        """
        if not self.held:
            return said
        last = self.exchanges[-1] if self.exchanges else None
        if last is not None and not last.answered:
            over = [*(piece for piece in last.user if not piece.system), *said]
            if all(map(is_blank, over)):
                return said
        held, self.held = self.held, []
        return [*(structs.replace(piece, turn=turn.index) for piece in held), *said]

    def _with_held(self, last: Exchange) -> Exchange:
        """The last exchange as a request shows it, with the late results that wait."""
        shown = structs.replace(last, user=[*last.user], user_starts=[*last.user_starts])
        shown.add_said(self.held, Turn(role="user", blocks=(), index=self.held[0].turn), self.structure)
        return shown

    def _give_way(self, earlier: TrackedBlock, call: Call) -> None:
        """Remove a placeholder in favour of a real result. Reknit's own placeholder is in the first open user turn."""
        if earlier.fate == "synthesised":
            number, at = place_of_result(self.exchanges[0], call.result)
            place = f"messages.{self.messages + number}.content.{at}"
            self._book.note_fix("placeholder_dropped", place, tool_id=call.original)
        else:
            self._book.drop("placeholder_dropped", earlier)

    def _orphan(self, piece: TrackedBlock, result: ToolResult) -> list[TrackedBlock]:
        answered = self.ids.answered(result.tool_use_id)
        if answered is None and self.structure.calls_elsewhere in {"always", "referred" if self.referred else ""}:
            return [piece]
        code = "result_duplicate" if answered else "result_orphan" if answered is None else "result_late"
        code += "_text" if self.policy.orphan_result == "text" and not answered else ""
        if answered is not None and self.policy.late_result != "drop":
            self._late_of_settled(piece, result)
            return []
        if not self._book.makes(code):
            return [piece]
        if code.endswith("_text"):
            return orphan_pieces(piece, result, code, self._book)
        self._book.drop(code, piece)
        return []

    def _settle_exchanges(self) -> None:
        """Settle what can be; the fixes of what settles early, and of what follows it, are not due yet."""
        book = self._book
        if self._early:
            self._book = self._early[-1].book
        while self.exchanges:
            first = self.exchanges[0]
            if not first.sealed and not self._seal(first):
                break
            if len(self.exchanges) == 1:
                break
            second = self.exchanges[1]
            if not self._firm(second):
                if not (second.closed and self._expired(second)):
                    break
                if not self._give_up(second):
                    continue
            if self._may_be_replaced(first):
                break
            self._emit_user(first)
            del self.exchanges[0]
        self._book = book

    def _release_early(self, book: FixLog) -> None:
        """Move the fixes that are due now into a book."""
        while self._early and self._early[0].due <= self.number:
            early = self._early.pop(0).book
            book.fixes += early.fixes
            book.dropped += early.dropped

    def _firm(self, exchange: Exchange) -> bool:
        goes = self.policy.missing_result == "drop" and self._book.makes("call_unanswered")
        return exchange.firm(self.structure, unanswered_stay=self.structure.unanswered or not goes)

    def _may_be_replaced(self, exchange: Exchange) -> bool:
        """Return True if a result of an exchange is not shown yet: it came after the last assistant turn."""
        if self.policy.late_result != "replace":
            return False
        return any(call.real and call.came >= self.spoken_at for call in exchange.calls)

    def _seal(self, exchange: Exchange) -> bool:
        """Settle the first exchange's assistant turn if it can be; its user turn may still grow."""
        if not exchange.closed:
            return False
        if not exchange.answered:
            if not self._expired(exchange):
                return False
            if not (self._is_old(exchange, self.number) or self._is_sent(exchange)):
                self._book = FixLog(observed=self.structure.observed)
                self._early.append(EarlyFixes(exchange.number + self._patience, self._book))
            if not self._give_up(exchange):
                return True
        running, may_come = in_flight(self.exchanges, 0, self.structure)
        if may_come:
            is_answered = exchange.number <= self.last_answered
            if not (self._is_old(exchange, self.number) or is_answered):
                return False
            if is_answered or is_called_by_code(exchange):
                # Sent requests have these calls. Without the call of the code, the calls that it made have no maker.
                running |= may_come
        self._emit(assistant_messages(exchange, self.structure, self.changed, self._book, running=running))
        for call in exchange.calls:
            self._settle_call(exchange, call)
        exchange.sealed = True
        return True

    def _expired(self, exchange: Exchange) -> bool:
        # Every exchange but the last one is followed by an assistant turn.
        if exchange is self.exchanges[-1]:
            return self._is_old(exchange, self.number)
        return self._is_sent(exchange) or self._is_old(exchange, self.number) or self._is_never_answered(exchange)

    def _is_sent(self, exchange: Exchange) -> bool:
        """Return True if the model has answered an exchange as it is; an assistant turn follows it."""
        return self.structure.prefix_bound or exchange.number <= self.last_answered

    def _is_old(self, exchange: Exchange, number: int) -> bool:
        return exchange.number + self._patience <= number

    def _is_never_answered(self, exchange: Exchange) -> bool:
        """Return True if an exchange is known to settle without the results of some of its calls."""
        return (
            self.known_turns is not None
            and not exchange.answered
            and self.known_turns.expires(exchange, exchange.number + self._patience - self.number, self.turns)
        )

    def _give_up(self, exchange: Exchange) -> bool:
        """Drop the calls whose results never arrived; return False if no assistant turn is left."""
        missing = exchange.lacking(self.structure)
        if missing and self.policy.missing_result == "drop":
            return self._drop_calls(exchange, missing)
        if missing:
            # The assistant's own messages are between the settled part and its results.
            self._fill(exchange, missing, self.messages + count_assistant_messages(exchange))
        return True

    def _fill(self, exchange: Exchange, missing: list[Call], before: int) -> None:
        """Add placeholders for calls without a result; ``before`` counts the messages before the user's."""
        for at, call in enumerate(missing, len(exchange.results)):
            call.result = at
        exchange.results += placeholders(exchange, missing, before, self._book)

    def _drop_calls(self, exchange: Exchange, missing: list[Call]) -> bool:
        for call in missing:
            piece = exchange.assistant[call.at]
            self._book.drop("call_unanswered", piece)
            self.changed.add(piece.turn)
            self._settle_call(exchange, call)
        exchange.leave_out(missing)
        if any(can_be_alone(piece, self.structure) for piece in exchange.assistant):
            return True
        leave_out(exchange.assistant, self._book)
        if exchange is self.exchanges[0]:
            exchange.assistant, exchange.calls, exchange.sealed = [], [], True
        else:
            self._join_to_previous(exchange)
        return False

    def _join_to_previous(self, exchange: Exchange) -> None:
        previous = self.exchanges[self.exchanges.index(exchange) - 1]
        both = bool(previous.user and exchange.user)
        apart = both and "user" in self.structure.neighbours
        if both and not apart:
            self._book.note_fix("turns_merged", exchange.user[0].message)
        previous.join_user(exchange, apart=apart)
        self.exchanges.remove(exchange)

    def _settle_call(self, exchange: Exchange, call: Call) -> None:
        settled = SettledCall(call.original, exchange.tool_use(call).id, call.real)
        self._calls.append(settled)
        self.ids.settle_call(settled)

    def _emit_user(self, exchange: Exchange) -> None:
        """Settle an exchange's user turn.

        A result may have come after the assistant turn settled with none; then its other calls need one too.
        """
        missing = exchange.lacking(self.structure)
        if missing:
            self._fill(exchange, missing, self.messages)
        self._emit(user_messages(exchange, self.structure, self.changed, self._book, first=not self.messages))

    def _emit(self, messages: list[Message]) -> None:
        self._settled += messages
        self.messages += len(messages)
        if len(self.changed) > _MANY_CHANGED:
            self.changed &= {
                piece.turn
                for exchange in self.exchanges
                for piece in (*exchange.assistant, *exchange.results, *exchange.user)
            }


def _renamed(turn: Turn, finals: Sequence[str]) -> Turn:
    """Return a turn with these ids of its calls, or of its results, in their order."""
    ids = iter(finals)
    blocks: list[Block] = []
    came_as: list[str | None] = []
    for block in turn.blocks:
        came = tool_id(block)
        final = next(ids) if came else ""
        if final != came:
            name = "id" if isinstance(block, ToolUse) else "tool_use_id"
            blocks.append(structs.replace(block, **{name: final}))
            came_as.append(came)
        else:
            blocks.append(block)
            came_as.append(None)
    return RenamedTurn(
        role=turn.role,
        blocks=tuple(blocks),
        index=turn.index,
        id=turn.id,
        paths=turn.paths,
        recorded=turn.recorded,
        root=turn.root,
        ids_made=turn.ids_made,
        own=turn.own,
        came_as=tuple(came_as),
    )
