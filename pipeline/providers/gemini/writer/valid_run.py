"""Messages of a valid run as Gemini's contents, written in one pass.

Turns of plain text, calls, and results of text need none of the writer's work on single blocks; nor does Gemini's own
reasoning, where each signature precedes the part that it is written on. A test compares the bytes and the ledger with
those of the writer.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from reknit.pipeline.history.call_ids import made_id
from reknit.pipeline.history.pieces import FixLog, LedgerEntry, TrackedBlock
from reknit.pipeline.model import RedactedThinking, Text, Thinking, ToolResult, ToolUse, Turn
from reknit.pipeline.providers.gemini.reader import SIGNATURE
from reknit.pipeline.providers.gemini.writer.blocks import PLACEHOLDER, words_of
from reknit.pipeline.targets import Row
from reknit.pipeline.targets.valid_run import PlacedTurn, ReasoningFault, RunMessages, drop_reasoning, input_paths

_encode = msgspec.json.Encoder().encode
_REASONING = (Thinking, RedactedThinking)


class _Text(Struct, gc=False):
    text: str


class _SignedText(Struct, rename="camel", omit_defaults=True, gc=False):
    text: str
    thought: bool = False
    thought_signature: str = ""


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
            content: _Content | None
            if turn is None:
                # All of its reasoning is Gemini's own, or the writer decides.
                content = self._reasoned(came) if at in run.thoughts else None
                origin = PlacedTurn(came, self.count, _rows_of_reasoning)
            else:
                if turn is not came:
                    drop_reasoning(came, self.fault, self.book)
                content = self._assistant(turn) if turn.role == "assistant" else self._user(turn)
                origin = PlacedTurn(turn, self.count, rows)
            if content is None:
                break
            self.origins.append(origin)
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
        shows_id = self._begin_calls(turn)
        for at, block in enumerate(turn.blocks):
            if type(block) is ToolUse:
                signature: str | UnsetType = UNSET
                if self._adds_placeholders and not self.calls:
                    came_as = made_id(block.name) if turn.ids_made else None
                    piece = TrackedBlock(block, turn.index, input_paths(turn)[at], came_as=came_as)
                    self.book.change("signature_skipped", piece)
                    signature = PLACEHOLDER
                parts.append(self._call(block, signature, shows_id=shows_id))
            elif type(block) is Text:
                parts.append(_Text(block.text))
        return _Content("model", parts)

    def _begin_calls(self, turn: Turn) -> bool:
        """Begin a turn of the assistant's; return True if its calls are written with their ids."""
        self.calls, self.unnamed = {}, frozenset()
        # Ids that came in this shape go back to every model. In a valid run either all calls of a turn came with their
        # ids, or none.
        return (self.newer or turn.root == "contents") and not turn.ids_made

    def _call(self, use: ToolUse, signature: str | UnsetType, *, shows_id: bool) -> _Call:
        self.calls[use.id] = use.name
        if shows_id and use.id != made_id(use.name):
            return _Call(_FunctionWithId(use.id, use.name, use.input), signature)
        self.unnamed |= {use.id}
        return _Call(_Function(use.name, use.input), signature)

    def _reasoned(self, turn: Turn) -> _Content | None:
        """Return a turn with its reasoning; None if the writer has to move a signature, add one, or drop reasoning."""
        signed = _signed_parts(turn)
        if signed is None or any(self.fault(each, turn) for each in turn.blocks if isinstance(each, _REASONING)):
            return None
        if self._adds_placeholders:
            first = next((signature for block, signature, _ in signed if type(block) is ToolUse), PLACEHOLDER)
            if not first:
                return None
        parts: list[Any] = []
        shows_id = self._begin_calls(turn)
        for block, signature, seal in signed:
            if seal:
                place = f"contents.{self.count}.parts.{len(parts)}"
                self.book.dropped.append(LedgerEntry(seal, "kept", place))
            if type(block) is ToolUse:
                parts.append(self._call(block, signature or UNSET, shows_id=shows_id))
            elif type(block) is Text:
                parts.append(_SignedText(block.text, thought_signature=signature))
            else:
                parts.append(_SignedText(block.thinking, thought=True, thought_signature=signature))
        return _Content("model", parts)

    def _user(self, turn: Turn) -> _Content | None:
        """Return a turn of the user's; None if its results are not in the order of their calls, as the API has them."""
        results = [block.tool_use_id for block in turn.blocks if type(block) is ToolResult]
        if len(results) > 1 and results != list(self.calls):
            return None
        parts: list[Any] = []
        for block in turn.blocks:
            if type(block) is ToolResult:
                shown = UNSET if block.tool_use_id in self.unnamed else block.tool_use_id
                name = self.calls[block.tool_use_id]
                parts.append(_Result(_Response(shown, name, _Words(words_of(block)))))
            elif type(block) is Text:
                parts.append(_Text(block.text))
        return _Content("user", parts)


def _signed_parts(turn: Turn) -> list[tuple[Any, str, str]] | None:
    """Return the blocks of an assistant's turn that become parts, each with its signature.

    The place in the input of a signature that came on its part follows, ``""`` without one. None if a signature came
    without words, and not on the part that follows it, or if no part does.
    """
    found: list[tuple[Any, str, str]] = []
    signature = seal = ""
    for path, block in zip(input_paths(turn), turn.blocks, strict=True):
        is_seals = bool(seal) and seal == f"{path}.{SIGNATURE}"
        if type(block) is Thinking and not is_seals:
            has_words = bool(block.thinking.strip())
            if seal or (block.signature and signature):
                return None
            if has_words:
                found.append((block, "", ""))
            elif path.endswith(f".{SIGNATURE}"):
                seal = path
            else:
                return None
            signature = block.signature or signature
            continue
        if seal and not is_seals:
            return None
        found.append((block, signature, seal))
        signature = seal = ""
    return None if signature else found


def _rows_of_reasoning(turn: Turn, first: int) -> list[Row]:
    """Return the origins of a turn's blocks with reasoning; a signature on a part is no block of its own."""
    placed = zip(input_paths(turn), turn.blocks, strict=True)
    shown = [path for path, block in placed if type(block) is not Thinking or block.thinking.strip()]
    return [(path, "kept", "", f"contents.{first}.parts.{at}") for at, path in enumerate(shown)]


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
