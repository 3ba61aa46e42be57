"""Finds the calls that never get a result, in a history that is known as a whole.

A call without a result keeps its exchange open: the result may be in one of the next turns (``policy.open_exchanges``).
Where the next turns are known, and none of them has it, the exchange settles at once, and the valid run after it is
taken in one pass. The result is the same as turn by turn: the fixes of an exchange that settles early are due when it
would have settled.

Measured on ``anthropic`` with histories in which each of 25 rounds has lost a result, relative to a plain history of
the same size: 5.5 times the time without this and 2.8 with it where the user speaks over the call, 6.7 and 4.4 where
the next message is the assistant's, since repair then joins two messages.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from msgspec import Struct

from reknit.pipeline.history.call_ids import NO_ID
from reknit.pipeline.history.exchanges import Exchange
from reknit.pipeline.history.pieces import FixLog
from reknit.pipeline.history.valid_runs import ValidRun
from reknit.pipeline.model import ToolResult, ToolUse, Turn, Unknown


class KnownTurns:
    """All turns of a history.

    Args:
        turns: all turns.
        valid_runs: the runs of them that need no repair.
    """

    def __init__(self, turns: Sequence[Turn], valid_runs: Sequence[ValidRun]) -> None:
        self._turns = turns
        self._starts = [run.start for run in valid_runs]
        self._ends = [run.start + run.turns for run in valid_runs]
        # Repair counts this many exchanges and user turns in the runs at least: the first turn may join the one before.
        self._numbers = list(accumulate((max(run.number - 1, 0) for run in valid_runs), initial=0))
        # Most histories have no call without a result, so the turns are only read once there is one.
        self._found: tuple[set[str], dict[str, int]] | None = None
        self._unclear: list[int] = []
        self._expiring: dict[int, bool] = {}  # by the exchange's number

    def expires(self, exchange: Exchange, missing: int, turns: int) -> bool:
        """Return True if an exchange certainly settles without more results.

        Args:
            exchange: the first one that is open, or one after it.
            missing: how many more exchanges and user turns are counted until it settles.
            turns: the number of turns that have been taken.
        """
        # Each turn asks about an exchange that waits, and the turns to come are known from the first time on.
        found = self._expiring.get(exchange.number)
        if found is None:
            found = self._expiring[exchange.number] = self._expires(exchange, missing, turns)
        return found

    def _expires(self, exchange: Exchange, missing: int, turns: int) -> bool:
        results, called = self._read()
        for call in exchange.calls:
            if call.result < 0 and call.original in results:
                return False
        # Before the next unclear turn, each call and each result has an id that no other one has.
        start = called.get(exchange.calls[0].original, 0)
        end = self._unclear[bisect_left(self._unclear, start)]
        first, last = bisect_left(self._starts, turns), bisect_right(self._ends, end)
        if first >= last or self._numbers[last] - self._numbers[first] < missing:
            return False
        return not exchange.has_unknown

    def _read(self) -> tuple[set[str], dict[str, int]]:
        """Return the ids of all results, and for the id of each call the index of the first turn that has it.

        Also find the unclear turns. They have blocks of a type with rules of its own, calls or results without ids, or
        an id that came before, so that a result in them may belong to one of several calls.
        """
        if self._found is not None:
            return self._found
        results: set[str] = set()
        called: dict[str, int] = {}
        for at, turn in enumerate(self._turns):
            is_unclear = turn.ids_made
            block: Any  # looked at by its class, for speed
            for block in turn.blocks:
                kind = type(block)
                if kind is ToolUse:
                    is_unclear = is_unclear or block.id in called or block.id == NO_ID
                    called.setdefault(block.id, at)
                elif kind is ToolResult:
                    is_unclear = is_unclear or block.tool_use_id in results or block.tool_use_id == NO_ID
                    results.add(block.tool_use_id)
                elif kind is Unknown:
                    is_unclear = True
            if is_unclear:
                self._unclear.append(at)
        self._unclear.append(len(self._turns))
        self._found = results, called
        return self._found


class EarlyFixes(Struct, frozen=True, gc=False):
    """The fixes of an exchange that has settled early, and of what has settled after it.

    Attributes:
        due: the number of exchanges and user turns with which the exchange would have settled.
        book: the fixes.
    """

    due: int
    book: FixLog
