"""Messages of a valid run as items of the Responses API, written in one pass.

Turns of plain text, calls, and results of text need none of the writer's work on single blocks. Items of the API itself
need none either, where all of them may be sent back with their ids (``own_items``). A test compares the bytes and the
ledger with those of the writer.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

from reknit.pipeline.history.pieces import FixLog
from reknit.pipeline.model import Image, Text, ToolResult, ToolUse, Turn
from reknit.pipeline.options import MessageOptions
from reknit.pipeline.providers.openai.writer import content_of, has_parts, result_content, stays
from reknit.pipeline.providers.openai_responses.writer.items import output_part
from reknit.pipeline.providers.openai_responses.writer.own_items import OwnItems, own_rows
from reknit.pipeline.targets import Row
from reknit.pipeline.targets.valid_run import PlacedTurn, ReasoningFault, RunMessages, drop_reasoning, input_paths

_encode = msgspec.json.Encoder().encode


class _Message(Struct, tag_field="type", tag="message"):
    content: str | list[Any]
    role: Literal["user", "assistant"]


class _Call(Struct, tag_field="type", tag="function_call", gc=False):
    call_id: str
    name: str
    arguments: str


class _Output(Struct, tag_field="type", tag="function_call_output"):
    call_id: str
    output: str | list[Any]


class WrittenItems(Struct, kw_only=True):
    """Items of a valid run.

    Attributes:
        count: the number of the body's items after them.
        options: the target's options.
        own: the calls and ids of items so far, and which items may be sent back.
        fault: returns why reasoning cannot go back.
        book: receives the fixes of reasoning that is dropped.
        items: the items, ready to encode.
        origins: the origins of each turn.
    """

    count: int
    options: MessageOptions
    own: OwnItems
    fault: ReasoningFault
    book: FixLog
    items: list[Any] = []
    origins: list[PlacedTurn] = []

    def write(self, run: RunMessages, part: range) -> None:
        """Write the first messages of a part of a run that the API takes as they are."""
        for at in part:
            came = run.turns[at]
            turn = run.without_reasoning(at, self.fault, self.book) if at in run.special else came
            if turn is None and stays(came, self.options):
                turn = came
            if turn is None:
                items, origin = self.own.written(came), PlacedTurn(came, self.count, own_rows)
            else:
                items, origin = self._plain(turn), PlacedTurn(turn, self.count, _rows)
            if items is None:
                break
            if turn is not None and turn is not came:
                drop_reasoning(came, self.fault, self.book)
            self.origins.append(origin)
            self.items += items
            self.count += len(items)

    @property
    def data(self) -> bytes:
        """The items, joined by commas."""
        return _encode(self.items)[1:-1]

    def _plain(self, turn: Turn) -> list[Any] | None:
        return _assistants(turn) if turn.role == "assistant" else self._users(turn)

    def _users(self, turn: Turn) -> list[Any] | None:
        """Return the results, then the texts and images as one message; None if a result needs a type of its own."""
        parts = self.options.parts
        items: list[Any] = []
        shown: list[Text | Image] = []
        for block in turn.blocks:
            if type(block) is ToolResult:
                if block.tool_use_id in self.own.asked:
                    return None
                items.append(_Output(block.tool_use_id, result_content(block, parts)))
            elif type(block) is Text or type(block) is Image:
                shown.append(block)
        if shown:
            items.append(_Message(content_of(shown, parts), "user"))
        return items


def _assistants(turn: Turn) -> list[Any]:
    """Return the texts as one message, then the calls: in a valid turn no text follows a call."""
    items: list[Any] = []
    texts = [block for block in turn.blocks if type(block) is Text]
    if texts:
        content = texts[0].text if len(texts) == 1 else [output_part(text) for text in texts]
        items.append(_Message(content, "assistant"))
    items.extend(
        _Call(block.id, block.name, bytes(block.input).decode().strip())
        for block in turn.blocks
        if type(block) is ToolUse
    )
    return items


def _rows(turn: Turn, first: int) -> list[Row]:
    """Return the origins of a turn's blocks, whose first item is that of index ``first`` in the body."""
    texts = sum(type(block) is Text for block in turn.blocks)
    is_list = has_parts(turn)
    results = sum(type(block) is ToolResult for block in turn.blocks)
    message = first if turn.role == "assistant" else first + results
    place = f"input.{message}.content"
    # An assistant's calls follow its message.
    item = first + 1 if turn.role == "assistant" and texts else first
    rows: list[Row] = []
    said = 0
    for path, block in zip(input_paths(turn), turn.blocks, strict=True):
        if type(block) is Text or type(block) is Image:
            where = f"{place}.{said}" if is_list else place
            said += 1
        else:
            where = f"input.{item}.output" if type(block) is ToolResult else f"input.{item}"
            item += 1
        rows.append((path, "kept", "", where))
    return rows
