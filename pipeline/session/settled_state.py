"""The parts of a target's settled messages that a session's state holds: bytes, breakpoints, fixes and losses."""

from __future__ import annotations

from typing import Any, TypeAlias

from msgspec import Struct

from reknit.pipeline.fixes import Fix
from reknit.pipeline.history.pieces import LedgerEntry
from reknit.pipeline.targets import Row


class Mark(Struct, frozen=True, array_like=True):
    """A settled chunk with live cache breakpoints: its place, its bytes with them, their number, its input path.

    ``tool_id`` is the id of the call that its first block makes or answers, if it does.
    """

    at: int
    data: bytes
    count: int
    path: str
    tool_id: str = ""


class SettledSlice(Struct, array_like=True):
    """The part that a target has gained since a size."""

    chunks: list[bytes] = []
    rows: list[list[Row]] = []
    fixes: list[Fix] = []
    dropped: list[LedgerEntry] = []


class SettledHead(Struct, array_like=True):
    """The state with which a target's part continues: its own state, breakpoints, and why its prefix was given up."""

    state: Any
    marks: list[Mark]
    reset: str


Size: TypeAlias = tuple[int, int, int, int]
"""How many chunks, rows, fixes and blocks that went a part has."""
