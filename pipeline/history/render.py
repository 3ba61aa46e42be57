"""Exchanges as messages: for good when they are settled, for one request while they are open."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from msgspec import Struct, structs

from pipeline.fixes import Fix
from pipeline.history.exchanges import Call, Exchange, calls_last, is_reasoning
from pipeline.history.pieces import Book, Entry, Message, Piece
from pipeline.history.results import INTERRUPTED
from pipeline.model import Text, ToolResult

# What the user says where a history must not end with the assistant.
CONTINUE = "Continue."


# Made with each request, and nothing that it holds knows of it, so the garbage collector need not look (gc=False).
class OpenEnd(Struct, frozen=True, gc=False):
    """What of a history is open.

    ``changed`` are the input messages that lost a block; ``settled`` counts the messages before. ``drops`` says that
    calls without a result are left out, ``begun`` that a turn has come at all.
    """

    exchanges: Sequence[Exchange]
    changed: AbstractSet[int]
    settled: int
    drops: bool
    begun: bool


class Rendered(Struct, frozen=True):
    """The open end of a history as messages, with the fixes and ledger entries that hold for this request only.

    ``assistant_last`` says that it ends in an assistant turn, or with nothing at all, against the policy.
    """

    messages: list[Message]
    fixes: list[Fix]
    gone: list[Entry]
    assistant_last: bool = False


def assistant_message(exchange: Exchange, changed: set[int], book: Book) -> Message:
    """An exchange's assistant turn."""
    return _assistant(exchange.assistant, exchange.assistant_id, changed, book)


def user_message(exchange: Exchange, changed: set[int]) -> Message:
    """An exchange's user turn: results first, then what the user said."""
    return _message("user", [*exchange.results, *exchange.user], exchange.user_id, changed)


def result_for(exchange: Exchange, call: Call, place: str, book: Book) -> Piece:
    """An error result for a call that has none; ``place`` is where it will stand in the output."""
    use = exchange.tool_use(call)
    called = exchange.assistant[call.at]
    book.note("result_synthesised", place, detail=f"{called.path}: {use.name}", tool_id=call.original)
    block = ToolResult(tool_use_id=use.id, content=INTERRUPTED, is_error=True)
    return Piece(block, called.turn, "", fate="synthesised", code="result_synthesised", came_as=call.original)


def render_open(end: OpenEnd, tail: str) -> Rendered:
    """The open exchanges as messages, as if nothing more came."""
    book = Book()
    changed = set(end.changed)
    messages: list[Message] = []
    for exchange in end.exchanges:
        pieces = exchange.assistant
        if not exchange.sealed:
            pieces = _without_missing(exchange, changed, book) if end.drops else pieces
            if all(is_reasoning(piece) for piece in pieces):
                for piece in pieces:
                    book.drop("reasoning_alone", piece)
            else:
                messages.append(_assistant(pieces, exchange.assistant_id, changed, book))
        _add_user(messages, exchange, changed, end, book)
    assistant_last = _end(messages, end, tail, book)
    return Rendered(messages, book.fixes, book.gone, assistant_last)


def _without_missing(exchange: Exchange, changed: set[int], book: Book) -> list[Piece]:
    kept = list(exchange.assistant)
    for call in reversed([call for call in exchange.calls if call.result < 0]):
        piece = kept.pop(call.at)
        book.drop("call_unanswered", piece)
        changed.add(piece.turn)
    return kept


def _add_user(messages: list[Message], exchange: Exchange, changed: set[int], end: OpenEnd, book: Book) -> None:
    results = list(exchange.results)
    if not end.drops:
        at = end.settled + len(messages)
        for call in exchange.calls:
            if call.result < 0:
                place = f"messages.{at}.content.{len(results)}"
                results.append(result_for(exchange, call, place, book))
    if not (results or exchange.user):
        return
    message = _message("user", [*results, *exchange.user], exchange.user_id, changed)
    if messages and messages[-1].role == "user":
        if exchange.user:
            book.note("turns_merged", exchange.user[0].message)
        last = messages.pop()
        message = structs.replace(
            message,
            pieces=[*last.pieces, *message.pieces],
            id=message.id or last.id,
            changed=last.changed | message.changed,
        )
    messages.append(message)


def _end(messages: list[Message], end: OpenEnd, tail: str, book: Book) -> bool:
    """Apply the policy for a history that ends with the assistant; True if it does and stays so against the policy."""
    if not messages:
        # Nothing of it is left; there is nothing to go on with either, so only a restored history may stay empty.
        if tail in {"keep", "reject"} or not end.begun:
            return False
    elif messages[-1].role == "user" or tail in {"keep", "prefill"}:
        return False
    elif tail == "reject":
        return True
    book.note("tail_continued", f"messages.{end.settled + len(messages)}.content.0")
    piece = Piece(Text(text=CONTINUE), -1, "", fate="synthesised", code="tail_continued")
    messages.append(Message("user", [piece]))
    return False


def _assistant(pieces: list[Piece], identity: str | None, changed: set[int], book: Book) -> Message:
    order = calls_last(pieces)
    if order != list(range(len(pieces))):
        pieces = _reordered(pieces, order, changed, book)
    return _message("assistant", pieces, identity, changed)


def _reordered(pieces: list[Piece], order: list[int], changed: set[int], book: Book) -> list[Piece]:
    moved = []
    furthest = -1
    for at in order:
        piece = pieces[at]
        if at < furthest:
            piece = book.change("call_moved", piece)
            changed.add(piece.turn)
        furthest = max(furthest, at)
        moved.append(piece)
    return moved


def _message(role: str, pieces: list[Piece], identity: str | None, changed: set[int]) -> Message:
    touched = frozenset(changed.intersection(piece.turn for piece in pieces)) if changed else frozenset()
    return Message("assistant" if role == "assistant" else "user", pieces, identity, touched)
