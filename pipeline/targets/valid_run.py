"""The messages of a valid run, written in one pass, and the origins of their blocks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeAlias

from msgspec import Struct, structs

from reknit.pipeline.fixes import Fix
from reknit.pipeline.history.pieces import FixLog, LedgerEntry, TrackedBlock
from reknit.pipeline.model import Block, RedactedThinking, Thinking, Turn
from reknit.pipeline.targets import Dialect, Row

ReasoningFault: TypeAlias = Callable[[Thinking | RedactedThinking, Turn], str]
"""Returns the code of the fix that drops reasoning of a turn; ``""`` if the target may take it."""


class RunMessages(Struct, frozen=True):
    """The turns of a valid run. Each is one message.

    ``names`` are the tools that they call; ``special`` are the indexes of those that hold more than plain text, calls,
    and results of text, or the result of an error; ``thoughts`` are those of them that only hold reasoning in addition.
    """

    turns: Sequence[Turn]
    names: Collection[str]
    special: Collection[int]
    thoughts: Collection[int]

    def without_reasoning(self, at: int, fault: ReasoningFault, book: FixLog) -> Turn | None:
        """Return a special turn without its reasoning; None if the target may take some of it, or if more is special.

        The book is only asked. `drop_reasoning` records the fixes of a turn that is written.
        """
        turn = self.turns[at]
        if at not in self.thoughts:
            return None
        blocks: list[Block] = []
        paths: list[str] = []
        for block, path in zip(turn.blocks, input_paths(turn), strict=True):
            if isinstance(block, (Thinking, RedactedThinking)):
                code = fault(block, turn)
                if not code or not book.makes(code):
                    return None
            else:
                blocks.append(block)
                paths.append(path)
        return structs.replace(turn, blocks=tuple(blocks), paths=tuple(paths))


def drop_reasoning(turn: Turn, fault: ReasoningFault, book: FixLog) -> None:
    """Record that the reasoning of a turn is dropped."""
    for block, path in zip(turn.blocks, input_paths(turn), strict=True):
        if isinstance(block, (Thinking, RedactedThinking)):
            book.drop(fault(block, turn), TrackedBlock(block, turn.index, path))


class PlacedTurn(Struct, frozen=True):
    """A turn that is written unchanged, as several messages or not, from that of index ``first`` in the body on."""

    turn: Turn
    first: int
    rows_of: Callable[[Turn, int], list[Row]]


Origins: TypeAlias = Sequence[Row] | Turn | PlacedTurn
"""The origins of the blocks of one message. A turn that becomes one unchanged message represents itself."""


def expanded(origins: Origins) -> list[Row]:
    """Return the rows of one message."""
    if isinstance(origins, PlacedTurn):
        return origins.rows_of(origins.turn, origins.first)
    if not isinstance(origins, Turn):
        return list(origins)
    return [(path, "kept", "") for path in input_paths(origins)]


def input_paths(turn: Turn) -> Sequence[str]:
    """Return the paths of a turn's blocks in the input."""
    return turn.paths or [f"messages.{turn.index}.content.{at}" for at in range(len(turn.blocks))]


class EncodedRun(Struct, frozen=True, kw_only=True):
    """The first messages of a part of a run, in the target's bytes.

    Attributes:
        data: the messages, joined by the separator.
        state: the target's state after them.
        end: the index after the last one.
        origins: the origins of each, for a target that does not write each turn as one message.
        fixes: the target's own repairs of them.
        dropped: the entries of the blocks that it dropped.
    """

    data: bytes
    state: Any
    end: int
    origins: Sequence[Origins] = ()
    fixes: Sequence[Fix] = ()
    dropped: Sequence[LedgerEntry] = ()


EncodeValidRun: TypeAlias = Callable[[RunMessages, range, Any], EncodedRun | None]
"""Writes the first messages of a part of a run, after a state; None if the first one needs work on single blocks."""


def valid_run_encoder(dialect: Dialect) -> EncodeValidRun | None:
    """Return a dialect's method ``encode_valid_run``, which writes valid messages in one pass, or None."""
    encode: EncodeValidRun | None = getattr(dialect, "encode_valid_run", None)
    return encode
