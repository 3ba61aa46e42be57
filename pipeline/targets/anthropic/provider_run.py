"""Blocks that only Anthropic has: calls and results of tools that it runs itself, uploads, search results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec import UNSET, Struct

from pipeline.history.pieces import Message, Piece
from pipeline.model import ToolUse, Unknown

_CALLS: Final = frozenset({"server_tool_use", "mcp_tool_use"})
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
        "assistant": _CALLS | _RESULTS | {"compaction"},
        "user": frozenset({"container_upload", "search_result"}),
    }
)


class _Ids(Struct, frozen=True):
    id: str = ""
    tool_use_id: str = ""


def untaken(message: Message, *, paused: bool) -> dict[int, str]:
    """The pieces of a message that the API does not take, each with the code of the fix that says why.

    ``paused`` says that the message is the last one and the model goes on with it: its own calls may still be open.
    """
    unknown = [at for at, piece in enumerate(message.pieces) if isinstance(piece.block, Unknown)]
    if not unknown:
        return {}
    taken = _TAKEN[message.role]
    codes = {at: "unknown_dropped" for at in unknown if _kind(message.pieces[at]) not in taken}
    if message.role == "assistant":
        halves = _halves(message.pieces)
        if paused:
            halves = {at for at in halves if _kind(message.pieces[at]) in _RESULTS}
        codes |= dict.fromkeys(halves, "server_tool_unpaired")
    return codes


def _halves(pieces: Sequence[Piece]) -> set[int]:
    """Provider-run calls without their result, and results without their call (ANT-17).

    Where a client's call was made by provider-run code, that code's result comes in a later turn.
    """
    if any(isinstance(piece.block, ToolUse) and piece.block.caller is not UNSET for piece in pieces):
        return set()
    calls: dict[str, int] = {}
    halves: set[int] = set()
    for at, piece in enumerate(pieces):
        kind = _kind(piece)
        if kind in _CALLS:
            calls[_ids(piece).id] = at
            halves.add(at)
        elif kind in _RESULTS:
            call = calls.pop(_ids(piece).tool_use_id, None)
            if call is None:
                halves.add(at)
            else:
                halves.discard(call)
    return halves


def _kind(piece: Piece) -> str:
    return piece.block.kind if isinstance(piece.block, Unknown) else ""


def _ids(piece: Piece) -> _Ids:
    assert isinstance(piece.block, Unknown)  # noqa: S101  only unknown blocks have such a kind
    try:
        return msgspec.json.decode(piece.block.raw, type=_Ids)
    except msgspec.DecodeError:
        return _Ids()
