"""Messages of a valid run as Gemini's contents, written in one pass.

Turns of plain text, calls, and results of text need none of the writer's work on single blocks. A test compares the
bytes and the ledger with those of the writer.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from reknit.pipeline.history.call_ids import made_id
from reknit.pipeline.history.pieces import FixLog, TrackedBlock
from reknit.pipeline.model import Text, ToolResult, ToolUse, Turn
from reknit.pipeline.providers.gemini.writer.blocks import PLACEHOLDER, words_of
from reknit.pipeline.targets import Row
from reknit.pipeline.targets.valid_run import PlacedTurn, ReasoningFault, RunMessages, drop_reasoning, input_paths

_encode = msgspec.json.Encoder().encode


class _Text(Struct, gc=False):
    text: str


class _Function(Struct, gc=False):
    name: str
    args: Raw


class _FunctionWithId(Struct, gc=False):
    id: str
    name: str
    args: Raw


class _Call(Struct, rename="camel"):
    function_call: _Function | _FunctionWithId
    thought_signature: str | UnsetType = UNSET


class _Words(Struct, gc=False):
    result: str


class _Response(Struct, omit_defaults=True):
    id: str | UnsetType
    name: str
    response: _Words


class _Result(Struct, rename="camel"):
    function_response: _Response


class _Content(Struct):
    role: Literal["user", "model"]
    parts: list[Any]


class WrittenContents(Struct, kw_only=True):
    """Contents of a valid run.

    Attributes:
        count: the number of the body's contents after them.
        calls: the functions' names of the last calls by the calls' ids, as the responses need them.
        unnamed: the ids of those calls that were written without their id.
        newer: the model takes ids of any shape, and refuses calls without a signature.
        book: the fixes: reasoning that is dropped, and calls that get a placeholder for their signature.
        fault: returns why reasoning cannot go back.
        contents: the contents.
        origins: the origins of each turn.
    """

    count: int
    calls: dict[str, str]
    unnamed: frozenset[str]
    newer: bool
    book: FixLog
    fault: ReasoningFault
    contents: list[_Content] = []
    origins: list[PlacedTurn] = []

    def write(self, run: RunMessages, part: range) -> None:
        """Write the first messages of a part of a run that need no work on single blocks."""
        rows = _rows_with_placeholder if self._adds_placeholders else _rows
        for at in part:
            came = run.turns[at]
            turn = run.without_reasoning(at, self.fault, self.book) if at in run.special else came
            if turn is None:
                break
            if turn.role == "assistant":
                if turn is not came:
                    drop_reasoning(came, self.fault, self.book)
                content = self._assistant(turn)
            elif self._is_in_order(turn):
                content = self._user(turn)
            else:
                break
            self.origins.append(PlacedTurn(turn, self.count, rows))
            self.contents.append(content)
            self.count += 1

    @property
    def data(self) -> bytes:
        """The contents, joined by commas."""
        return _encode(self.contents)[1:-1]

    @property
    def _adds_placeholders(self) -> bool:
        return self.newer and self.book.makes("signature_skipped")

    def _assistant(self, turn: Turn) -> _Content:
        parts: list[Any] = []
        calls: dict[str, str] = {}
        unnamed: list[str] = []
        # Ids that came in this shape go back to every model.
        shows_ids = self.newer or turn.root == "contents"
        for at, block in enumerate(turn.blocks):
            if type(block) is ToolUse:
                signature: str | UnsetType = UNSET
                if self._adds_placeholders and not calls:
                    came_as = made_id(block.name) if turn.ids_made else None
                    piece = TrackedBlock(block, turn.index, input_paths(turn)[at], came_as=came_as)
                    self.book.change("signature_skipped", piece)
                    signature = PLACEHOLDER
                calls[block.id] = block.name
                # In a valid run either all calls of a turn came with their ids, or none.
                if shows_ids and not turn.ids_made and block.id != made_id(block.name):
                    parts.append(_Call(_FunctionWithId(block.id, block.name, block.input), signature))
                else:
                    unnamed.append(block.id)
                    parts.append(_Call(_Function(block.name, block.input), signature))
            elif type(block) is Text:
                parts.append(_Text(block.text))
        self.calls, self.unnamed = calls, frozenset(unnamed)
        return _Content("model", parts)

    def _is_in_order(self, turn: Turn) -> bool:
        """Return True if results are in the order of their calls, by which the API matches them."""
        results = [block.tool_use_id for block in turn.blocks if type(block) is ToolResult]
        return len(results) < 2 or results == list(self.calls)

    def _user(self, turn: Turn) -> _Content:
        parts: list[Any] = []
        for block in turn.blocks:
            if type(block) is ToolResult:
                shown = UNSET if block.tool_use_id in self.unnamed else block.tool_use_id
                name = self.calls[block.tool_use_id]
                parts.append(_Result(_Response(shown, name, _Words(words_of(block)))))
            elif type(block) is Text:
                parts.append(_Text(block.text))
        return _Content("user", parts)


def _rows(turn: Turn, first: int) -> list[Row]:
    """Return the origins of a turn's blocks, whose content is that of index ``first`` in the body."""
    return [(path, "kept", "", f"contents.{first}.parts.{at}") for at, path in enumerate(input_paths(turn))]


def _rows_with_placeholder(turn: Turn, first: int) -> list[Row]:
    """Return the same, where the first call of a turn has a placeholder for its signature."""
    rows = _rows(turn, first)
    at = next((at for at, block in enumerate(turn.blocks) if type(block) is ToolUse), None)
    if at is not None:
        path, _, _, place = rows[at]
        rows[at] = (path, "rewritten", "signature_skipped", place)
    return rows
