"""Calls that a provider runs itself, and their results: both are blocks of the model's own turn.

A result mostly follows its call in the same turn. Where the turn also calls a tool of the client's, the provider may
run its own call after it has the client's results: then its own result begins a later turn, and until that turn is
known, the call may have lost its result or not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

import msgspec
from msgspec import UNSET, Struct

from reknit.pipeline.history.exchanges import Exchange
from reknit.pipeline.history.pieces import ANTHROPIC, NATIVE_TYPES, TrackedBlock
from reknit.pipeline.model import Unknown
from reknit.pipeline.options import Structure

RESULTS: Final = frozenset(each.kind for each in NATIVE_TYPES if each.provider == ANTHROPIC and each.answers)
"""The types of results."""

# The place of a call that an earlier turn made.
EARLIER: Final = -1
_NONE: Final[frozenset[str]] = frozenset()


class Ids(Struct, frozen=True):
    """The id of a call, and that of the call that a result answers."""

    id: str = ""
    tool_use_id: str = ""


_IDS: Final = msgspec.json.Decoder(Ids)


def unpaired(
    pieces: Sequence[TrackedBlock], opened: Iterable[str], calls: Collection[str]
) -> tuple[dict[str, int], set[int]]:
    """Pair the provider-run calls and results of a turn.

    Args:
        pieces: the turn.
        opened: the ids of calls of earlier turns that wait for their results.
        calls: the types of such calls.

    Returns:
        The places of the calls without a result, by their ids (`EARLIER` for an ``opened`` one); the places of results
        without a call, and of calls that were made again before their result came.
    """
    waiting = dict.fromkeys(opened, EARLIER)
    orphans: set[int] = set()
    for at, piece in enumerate(pieces):
        kind = piece.block.kind if isinstance(piece.block, Unknown) else ""
        if kind in calls:
            call = _ids(piece).id
            if waiting.get(call, EARLIER) != EARLIER:  # one result answers the last of them
                orphans.add(waiting[call])
            waiting[call] = at
        elif kind in RESULTS and waiting.pop(_ids(piece).tool_use_id, None) is None:
            orphans.add(at)
    return waiting, orphans


def in_flight(
    exchanges: Sequence[Exchange], at: int, structure: Structure, *, drops: bool = False, ended: bool = False
) -> tuple[frozenset[str], frozenset[str]]:
    """Return the ids of an exchange's provider-run calls whose results begin a later turn, and of those that may.

    A turn in which a client's call is answered continues with the next turn; a turn without such a call ends the loop.
    ``drops``: calls without a result are left out. ``ended``: nothing follows.
    """
    exchange = exchanges[at]
    if not (structure.paused_by and exchange.has_unknown and _has_call(exchange, drops=drops)):
        return _NONE, _NONE
    made, _ = unpaired(exchange.assistant, (), structure.paused_by)
    if not made:
        return _NONE, _NONE
    waiting, goes_on = made, True
    for later in exchanges[at + 1 :]:
        waiting, _ = unpaired(later.assistant, waiting, ())
        goes_on = not (later.closed or ended) or _has_call(later, drops=drops)
        if not (waiting and goes_on):
            break
    return frozenset(made.keys() - waiting.keys()), frozenset(waiting) if goes_on else _NONE


def is_called_by_code(exchange: Exchange) -> bool:
    """Return True if code that the provider runs made one of the client's calls, and continues with its result."""
    return any(exchange.tool_use(call).caller is not UNSET for call in exchange.calls)


def _has_call(exchange: Exchange, *, drops: bool) -> bool:
    """Return True if an assistant turn calls a tool of the client's."""
    return any(call.result >= 0 or not drops for call in exchange.calls)


def _ids(piece: TrackedBlock) -> Ids:
    assert isinstance(piece.block, Unknown)  # noqa: S101  only unknown blocks have such a type
    return ids_of(piece.block)


def ids_of(block: Unknown) -> Ids:
    """Return the ids of a provider-run call or result."""
    try:
        return _IDS.decode(block.raw)
    except msgspec.DecodeError:
        return Ids()
