"""Results that come late: more real results of a call that has one, or whose exchange has settled without one.

A tool may answer "pending" now, and return its real result later under the same call id. Such a result either takes the
place of the earlier one, or becomes user text that names the call. Equal results of a call count as one, so that a
result that is delivered again changes nothing. The results of settled calls are read from the log, once they are asked
for: most sessions never need them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final, TypeAlias

import msgspec
from msgspec import UNSET, Struct, structs

from reknit.pipeline.fixes import digest
from reknit.pipeline.history.calls import CallsWithId
from reknit.pipeline.history.clean import UNNAMED, with_plain_data
from reknit.pipeline.history.pieces import FixLog, TrackedBlock
from reknit.pipeline.history.result_text import as_words
from reknit.pipeline.model import Document, Image, Text, ToolResult, ToolUse, Turn, Unknown, on_the_wire

LATE: Final = "result_late_turn"
LATE_RESULT: Final = "[Tool result of an earlier call: "
LATE_ERROR: Final = "[Tool error of an earlier call: "

Log: TypeAlias = Callable[[], Iterable[Turn]]
"""Returns the turns of the history, oldest first; the current one may be among them."""


def result_digest(result: ToolResult) -> str:
    """The digest of what a result says, which no repair of a single turn changes."""
    content = result.content
    if isinstance(content, list):
        parts: list[object] = []
        for part in content:
            if not isinstance(part, Text):
                parts.append(_as_value(part))
            elif part.text.strip():
                parts.append(part.text)
    else:
        parts = [] if content is UNSET or not content.strip() else [content]
    return digest([result.is_error, parts])


def _as_value(part: Image | Document | Unknown) -> object:
    """A part as a value that is the same for any spelling of its JSON."""
    if isinstance(part, (Image, Document)):
        part = structs.replace(part, source=with_plain_data(part.source) or part.source, cache_control=UNSET)
    return msgspec.json.decode(msgspec.json.encode(on_the_wire(part)))


def has_seen(asked: CallsWithId, results: Sequence[TrackedBlock], came: str) -> bool:
    """Return True if one of the calls had a result of this digest; ``results`` are those of their exchange.

    Each result is digested once.
    """
    calls = asked.calls
    while asked.digested < len(calls) and calls[asked.digested].real:
        call = calls[asked.digested]
        asked.seen.add(digest_of(results[call.result]))
        asked.seen.update(call.seen)
        asked.digested += 1
    return came in asked.seen


def digest_of(piece: TrackedBlock) -> str:
    """The digest of a result's piece."""
    assert isinstance(piece.block, ToolResult)  # noqa: S101  a call points at nothing else
    return result_digest(piece.block)


def late_pieces(piece: TrackedBlock, result: ToolResult, name: str, final: str, book: FixLog) -> list[TrackedBlock]:
    """A late result as user text that names its call, by the tool and the call's id in the output, and its media."""
    mark = LATE_ERROR if result.is_error else LATE_RESULT
    called = ", ".join(filter(None, (name, final)))
    return as_words(piece, result, f"{mark}{called}]", LATE, book)


def is_late(piece: TrackedBlock) -> bool:
    """Return True if a piece is user text, or a medium in a user turn, that came as a late result."""
    return piece.code == LATE


class EarlierCall(Struct):
    """The last call of an id: its tool, and the digests of its results."""

    name: str
    seen: set[str] = set()


class EarlierCalls:
    """The calls of a history by their ids in the input, as the log has them."""

    def __init__(self, log: Log | None, turns: int) -> None:
        self._calls: dict[str, EarlierCall] = {}
        for turn in islice(() if log is None else log(), turns):
            self.add(turn)

    def add(self, turn: Turn) -> None:
        """Note the calls and results of the next turn."""
        for block in turn.blocks:
            if isinstance(block, ToolUse):
                self._calls[block.id] = EarlierCall(block.name if block.name.strip() else UNNAMED)
            elif isinstance(block, ToolResult):
                self.find(block.tool_use_id).seen.add(result_digest(block))

    def find(self, original: str) -> EarlierCall:
        """The last call that came under an id."""
        return self._calls.setdefault(original, EarlierCall(""))
