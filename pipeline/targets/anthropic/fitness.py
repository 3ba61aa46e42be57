"""Which blocks may go back to Anthropic: its own, and reasoning (ANT-17 to ANT-23).

A thinking block goes back exactly as its issuer signed it or not at all, and a turn keeps all of its reasoning or
none: ``thinking blocks in the latest assistant message cannot be modified``. What is blank or what was said by
somebody else does not count as part of the turn.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec import UNSET, Struct

from pipeline.history.pieces import Message, Piece, code_for_unknown
from pipeline.model import Issuer, RedactedThinking, Thinking, ToolUse, Unknown
from pipeline.targets.base import is_issued_by
from pipeline.targets.marks import POINT

# Calls that the provider runs itself: a turn that ends in one is paused, and any model goes on with it.
PAUSING: Final = frozenset({"server_tool_use", "mcp_tool_use"})
# What a system message inside the history may hold besides text (recorded).
SYSTEM_BLOCKS: Final = frozenset({"tool_addition", "tool_removal"})
_RESULTS: Final = frozenset(
    {
        "web_search_tool_result",
        "web_fetch_tool_result",
        "code_execution_tool_result",
        "bash_code_execution_tool_result",
        "text_editor_code_execution_tool_result",
        "tool_search_tool_result",
        "mcp_tool_result",
        "advisor_tool_result",
    }
)
# The types beyond the model's own that the API takes, by role.
_TAKEN: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "assistant": PAUSING | _RESULTS | {"compaction"},
        "user": frozenset({"container_upload", "search_result"}),
        # Inside the history, for models that take such messages at all.
        "system": SYSTEM_BLOCKS,
    }
)


class _Ids(Struct, frozen=True):
    id: str = ""
    tool_use_id: str = ""


def untaken(message: Message, opened: Collection[str], *, paused: bool) -> dict[int, str]:
    """The pieces of a message that the API does not take, each with the code of the fix that says why.

    ``opened`` are the provider-run calls that earlier messages left open. ``paused`` says that the message
    is the last one and the model goes on with it: its own calls may still be open.
    """
    unknown = [at for at, piece in enumerate(message.pieces) if isinstance(piece.block, Unknown)]
    if not unknown:
        return {}
    taken = _TAKEN[message.role]
    # A breakpoint of Converse's is no block here, and gets its place later.
    codes = {
        at: code_for_unknown(message.pieces[at].block)
        for at in unknown
        if _kind(message.pieces[at]) not in taken | {POINT}
    }
    if message.role == "assistant":
        halves = _halves(message.pieces, opened)
        if paused:
            halves = {at for at in halves if _kind(message.pieces[at]) in _RESULTS}
        codes |= dict.fromkeys(halves, "server_tool_unpaired")
    return codes


def _halves(pieces: Sequence[Piece], opened: Collection[str]) -> set[int]:
    """Provider-run calls without their result, and results without their call (ANT-17)."""
    calls, orphans = _unpaired(pieces, opened)
    return orphans if _calls_from_code(pieces) else orphans | {at for at in calls.values() if at >= 0}


def left_open(pieces: Sequence[Piece], opened: Collection[str]) -> tuple[str, ...]:
    """The provider-run calls whose results are still to come behind a message.

    Where a client's call was made by provider-run code, that code's result comes in a later turn.
    """
    calls, _ = _unpaired(pieces, opened)
    from_code = _calls_from_code(pieces)
    return tuple(call for call, at in calls.items() if at < 0 or from_code)


def _unpaired(pieces: Sequence[Piece], opened: Collection[str]) -> tuple[dict[str, int], set[int]]:
    """The calls without a result by their ids (place -1 where an earlier message has it), results without one."""
    calls = dict.fromkeys(opened, -1)
    orphans: set[int] = set()
    for at, piece in enumerate(pieces):
        kind = _kind(piece)
        if kind in PAUSING:
            call = _ids(piece).id
            if calls.get(call, -1) >= 0:  # made again before its result came: there is one for the last of them only
                orphans.add(calls[call])
            calls[call] = at
        elif kind in _RESULTS and calls.pop(_ids(piece).tool_use_id, None) is None:
            orphans.add(at)
    return calls, orphans


def _calls_from_code(pieces: Sequence[Piece]) -> bool:
    return any(isinstance(piece.block, ToolUse) and piece.block.caller is not UNSET for piece in pieces)


def _kind(piece: Piece) -> str:
    return piece.block.kind if isinstance(piece.block, Unknown) else ""


def _ids(piece: Piece) -> _Ids:
    assert isinstance(piece.block, Unknown)  # noqa: S101  only unknown blocks have such a kind
    try:
        return msgspec.json.decode(piece.block.raw, type=_Ids)
    except msgspec.DecodeError:
        return _Ids()


# From 4.7 on models write signed thinking blocks without text, and take them back (recorded).
_VERSION: Final = re.compile(r"claude-(?:[a-z]+-)?(\d+)(?:[-.](\d{1,2}))?(?!\d)")
_EMPTY_SINCE: Final = (4, 7)
# They refuse a tool loop that does not begin with thinking (ANT-23); later ones are documented to switch it off.
_LOOPS_THINK: Final = ((3, 7), (4, 0))
_OTHER_TYPES: Final = ((3, 0), (3, 5))


def unfit_reasoning(message: Message, model: str | None, observed: Collection[str] = ()) -> dict[int, str]:
    """The pieces of a message that cannot go back, each with the code of the fix that says why.

    Those that only a mend among the ``observed`` ones would leave out stay.
    """
    pieces = message.pieces
    reasoning = [at for at, piece in enumerate(pieces) if isinstance(piece.block, (Thinking, RedactedThinking))]
    if not reasoning:
        return {}
    unfit = {at: code for at in reasoning if (code := _fault(pieces[at], message, model)) and code not in observed}
    last = len(pieces) - 1 if "thinking_trailing" not in observed else -1
    # A breakpoint ends with what stands before it.
    while last >= 0 and (last in unfit or last in reasoning or _kind(pieces[last]) == POINT):
        if last in reasoning:
            unfit.setdefault(last, "thinking_trailing")
        last -= 1
    broken = {pieces[at].turn for at in unfit} if "thinking_of_changed_turn" not in observed else ()
    for at in reasoning:
        if pieces[at].turn in broken:
            unfit.setdefault(at, "thinking_of_changed_turn")
    return unfit


def _fault(piece: Piece, message: Message, model: str | None) -> str:
    block = piece.block
    if not isinstance(block, (Thinking, RedactedThinking)):
        return ""
    if isinstance(block.issuer, Issuer) and not is_issued_by(block, {"anthropic"}, model):
        return "thinking_foreign"
    if isinstance(block, RedactedThinking):
        if not block.data:
            return "thinking_unsigned"
    else:
        if block.signature is UNSET or not block.signature:
            return "thinking_unsigned"
        if not block.thinking.strip() and not _takes_empty(model):
            return "thinking_empty"
    return "thinking_of_changed_turn" if piece.turn in message.changed else ""


def version_of(model: str | None) -> tuple[int, int] | None:
    found = _VERSION.search(model or "")
    return (int(found[1]), int(found[2] or 0)) if found else None


def _takes_empty(model: str | None) -> bool:
    version = version_of(model)
    return version is not None and version >= _EMPTY_SINCE


def takes_other_type(model: str | None) -> bool:
    """Whether a model takes an image of another type than the one declared, of those that it knows (recorded)."""
    return version_of(model) in _OTHER_TYPES


def refuses_bare_loop(model: str | None) -> bool:
    """Whether a model is known, or unknown but may be one, to want thinking before the calls of a tool loop."""
    version = version_of(model)
    return version is None or version in _LOOPS_THINK
