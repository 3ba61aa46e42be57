"""Renders exchanges as messages: permanently when they are settled, for one request while they are open."""

from __future__ import annotations

from bisect import bisect
from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from itertools import takewhile
from operator import attrgetter
from typing import Final, Literal

from msgspec import Struct, structs

from reknit.pipeline.fixes import Fix
from reknit.pipeline.history.calls import Call
from reknit.pipeline.history.clean import inlined
from reknit.pipeline.history.exchanges import (
    Exchange,
    Start,
    calls_last,
    can_be_alone,
    is_paused_by,
    leave_out,
)
from reknit.pipeline.history.pieces import FixLog, LedgerEntry, Message, TrackedBlock, is_blank, is_point
from reknit.pipeline.history.placeholders import INTERRUPTED
from reknit.pipeline.history.served import in_flight
from reknit.pipeline.model import Role, Text, ToolResult
from reknit.pipeline.options import Structure

_IS_SYSTEM: Final = attrgetter("system")
# The user turn that is added if a history must not end with the assistant.
CONTINUE = "Continue."
# The user turn that is added if a history must not begin with the assistant.
LEAD = "Start."


# Made with each request, and nothing that it holds knows of it, so the garbage collector need not look (gc=False).
class OpenEnd(Struct, frozen=True, gc=False):
    """The open part of a history.

    ``changed`` are the input messages that lost a block; ``settled`` counts the messages before. ``drops``: calls
    without a result are left out.
    """

    exchanges: Sequence[Exchange]
    changed: AbstractSet[int]
    settled: int
    drops: bool
    structure: Structure


class Rendered(Struct, frozen=True, gc=False):
    """The open end of a history as messages, with the fixes and ledger entries that hold for this request only.

    ``final``: an assistant turn stays the last one, for the model to continue; ``refused``: one is the last against the
    policy.
    """

    messages: list[Message]
    fixes: list[Fix]
    dropped: list[LedgerEntry]
    final: bool = False
    refused: bool = False


def assistant_messages(
    exchange: Exchange,
    structure: Structure,
    changed: set[int],
    book: FixLog,
    pieces: Sequence[TrackedBlock] | None = None,
    *,
    running: frozenset[str] = frozenset(),
) -> list[Message]:
    """An exchange's assistant turn, or these pieces of it: one message, or several where neighbours stay apart.

    ``running`` are the ids of its provider-run calls whose results begin a later turn.
    """
    messages = []
    given = exchange.assistant if pieces is None else pieces
    for said, identity in _messages(given, exchange.assistant_starts, exchange.assistant_id, book, flat=structure.flat):
        ordered = said if structure.flat else calls_last(said, changed, book)
        message = _message("assistant", ordered, identity, changed)
        messages.append(structs.replace(message, in_flight=running) if running else message)
    return messages


def count_assistant_messages(exchange: Exchange) -> int:
    """Return the number of messages of an exchange's assistant turn."""
    if exchange.assistant and not exchange.assistant_starts:
        return 1
    return len(_parted(exchange.assistant, exchange.assistant_starts))


def user_messages(
    exchange: Exchange,
    structure: Structure,
    changed: set[int],
    book: FixLog,
    results: Sequence[TrackedBlock] | None = None,
    *,
    first: bool = False,
) -> list[Message]:
    """An exchange's user turn: its results, or these in their place, then what the user said.

    If it is the ``first`` turn that stays, all that the assistant said before it was left out, and a system message may
    begin it.
    """
    given = [*(exchange.results if results is None else results), *exchange.user]
    if first and not structure.system_first:
        leading = list(takewhile(attrgetter("stays_system"), given))
        shown = [inlined(piece, book) for piece in leading]
        given = [*(piece for piece in shown if piece is not None), *given[len(leading) :]]
    messages = [
        _message("system" if said[0].stays_system else "user", said, identity, changed)
        for said, identity in _messages(given, exchange.user_starts, exchange.user_id, book, items=structure.flat)
    ]
    if len(messages) > 1:
        last = max((at for at, message in enumerate(messages) if _holds_result(message)), default=0)
        messages[:last] = [structs.replace(message, results_follow=True) for message in messages[:last]]
    return messages


def _holds_result(message: Message) -> bool:
    return any(isinstance(piece.block, ToolResult) for piece in message.pieces)


def place_of_result(exchange: Exchange, at: int) -> tuple[int, int]:
    """Return the place of a result in its exchange's user turn: its message, and its block in that message."""
    if not exchange.user_starts:
        return 0, at
    number, start = 0, 0
    for one in _parted(exchange.results[: at + 1], exchange.user_starts)[:-1]:
        number, start = number + 1, start + len(one)
    return number, at - start


def placeholders(exchange: Exchange, calls: Sequence[Call], before: int, book: FixLog) -> list[TrackedBlock]:
    """Return error results for calls without a result, after the others.

    ``before`` counts the messages before the user's.
    """
    number, first = place_of_result(exchange, len(exchange.results))
    made = []
    for at, call in enumerate(calls, first):
        use, called = exchange.tool_use(call), exchange.assistant[call.at]
        place = f"messages.{before + number}.content.{at}"
        book.note_fix("result_synthesised", place, detail=f"{called.path}: {use.name}", tool_id=call.original)
        block = ToolResult(tool_use_id=use.id, content=INTERRUPTED, is_error=True)
        made.append(
            TrackedBlock(block, called.turn, "", fate="synthesised", code="result_synthesised", came_as=call.original)
        )
    return made


def render_open(end: OpenEnd, tail: str) -> Rendered:
    """The open exchanges as messages, as if nothing more came."""
    book = FixLog(observed=end.structure.observed)
    changed = set(end.changed)
    messages: list[Message] = []
    for at, exchange in enumerate(end.exchanges):
        pieces = exchange.assistant
        if not exchange.sealed:
            pieces = _without_missing(exchange, end.structure, changed, book) if end.drops else pieces
            if any(can_be_alone(piece, end.structure) for piece in pieces):
                running, may_come = in_flight(end.exchanges, at, end.structure, drops=end.drops, ended=True)
                running |= may_come
                messages += assistant_messages(exchange, end.structure, changed, book, pieces, running=running)
            else:
                leave_out(pieces, book)
        _add_user(messages, exchange, changed, end, book)
    ended = _ending(messages, end.structure, tail)
    if ended == "continued":
        book.note_fix("tail_continued", f"messages.{end.settled + len(messages)}.content.0")
        piece = TrackedBlock(Text(text=CONTINUE), -1, "", fate="synthesised", code="tail_continued")
        messages.append(Message("user", [piece]))
    return Rendered(messages, book.fixes, book.dropped, ended == "final", ended == "refused")


def _without_missing(exchange: Exchange, structure: Structure, changed: set[int], book: FixLog) -> list[TrackedBlock]:
    kept = list(exchange.assistant)
    for call in reversed(exchange.lacking(structure)):
        piece = kept.pop(call.at)
        book.drop("call_unanswered", piece)
        changed.add(piece.turn)
    return kept


def _add_user(messages: list[Message], exchange: Exchange, changed: set[int], end: OpenEnd, book: FixLog) -> None:
    results = list(exchange.results)
    # A settled call can no longer be left out.
    lacking = [] if end.drops and not exchange.sealed else exchange.lacking(end.structure)
    if lacking:
        results += placeholders(exchange, lacking, end.settled + len(messages), book)
    if not (results or exchange.user):
        return
    first = not (messages or end.settled)
    said = user_messages(exchange, end.structure, changed, book, results, first=first)
    if not said:
        return
    if messages and messages[-1].role == said[0].role == "user" and "user" not in end.structure.neighbours:
        # The assistant's content between them was removed.
        if exchange.user:
            book.note_fix("turns_merged", exchange.user[0].message)
        last = messages.pop()
        said[0] = structs.replace(
            said[0],
            pieces=[*last.pieces, *said[0].pieces],
            id=said[0].id or last.id,
            changed=last.changed | said[0].changed,
        )
    messages += said


def _ending(
    messages: Sequence[Message], structure: Structure, tail: str
) -> Literal["open", "final", "continued", "refused"]:
    """Return the treatment of the end of a history; it is open if the user is last, or if there is no message."""
    if tail == "prefill":
        return "final"
    if tail == "keep" or not messages or messages[-1].role != "assistant":
        return "open"
    if tail == "reject":
        return "refused"
    return "final" if tail == "auto" and _may_be_last(messages[-1], structure) else "continued"


def _may_be_last(message: Message, structure: Structure) -> bool:
    last = next((piece for piece in reversed(message.pieces) if not is_point(piece.block)), message.pieces[-1])
    if is_paused_by(last, structure):
        return True
    block = last.block
    if structure.assistant_last == "text":
        return isinstance(block, Text) and bool(block.text.strip())
    return structure.assistant_last == "always"


def _messages(
    pieces: Sequence[TrackedBlock],
    starts: Sequence[Start],
    first: str | None,
    book: FixLog,
    *,
    flat: bool = False,
    items: bool = False,
) -> list[tuple[list[TrackedBlock], str | None]]:
    """The pieces of each message with its id, that of the ``first`` one where no other starts.

    Blank texts stay in a ``flat`` list; with ``items``, those that were all of an item stay.
    """
    if pieces and not starts and not any(map(_IS_SYSTEM, pieces)):
        # One message, as nearly always.
        said = [*pieces]
        return [(said if flat else _without_blanks(said, book, items=items), first)]
    ids = [first, *(start.id for start in starts)]
    turns = [start.turn for start in starts]
    return [
        (said if flat else _without_blanks(said, book, items=items), ids[bisect(turns, said[0].turn) if at else 0])
        for at, said in enumerate(_parted(pieces, starts))
    ]


def _without_blanks(pieces: list[TrackedBlock], book: FixLog, *, items: bool) -> list[TrackedBlock]:
    """The pieces of a message less texts that say nothing, unless such texts are all that came as the message."""
    if len(pieces) == 1 or not any(map(is_blank, pieces)) or not book.makes("blank_dropped"):
        return pieces
    pieces_of_turn = Counter(piece.turn for piece in pieces)
    kept = [piece for piece in pieces if not is_blank(piece) or (items and _is_item(piece, pieces_of_turn))]
    kept = kept or [piece for piece in pieces if piece.turn == pieces[0].turn]
    for piece in pieces:
        if piece not in kept:
            book.drop("blank_dropped", piece)
    return kept


def _is_item(piece: TrackedBlock, pieces_of_turn: Counter[int]) -> bool:
    """Return True if a piece is a whole item of Responses; several items make one message."""
    return piece.path.startswith("input.") and pieces_of_turn[piece.turn] == 1


def _parted(pieces: Sequence[TrackedBlock], starts: Sequence[Start]) -> list[list[TrackedBlock]]:
    """Split the pieces of one side into messages; a result that was moved or made joins those before it.

    If the turn that begins a message was removed, a call without a result, the next of its turns begins it.
    """
    turns = [start.turn for start in starts]
    parted: list[list[TrackedBlock]] = []
    begun = last = 0
    for piece in pieces:
        has_no_turn = isinstance(piece.block, ToolResult) and piece.fate in {"moved", "synthesised"}
        place = begun if parted and has_no_turn else bisect(turns, piece.turn)
        # A moved result may be of a later turn; the system messages after it must still be distinguished.
        later = place > (last if piece.stays_system else begun)
        if not parted or later or piece.stays_system != parted[-1][0].stays_system:
            parted.append([piece])
        else:
            parted[-1].append(piece)
        begun, last = max(begun, place), place
    return parted


def _message(role: Role, pieces: list[TrackedBlock], identity: str | None, changed: set[int]) -> Message:
    touched = frozenset(changed.intersection([piece.turn for piece in pieces])) if changed else frozenset()
    return Message(role, pieces, identity, touched)
