"""Messages of a valid run as items of the Responses API, written in one pass.

Turns of plain text, calls, and results of text need none of the writer's work on single blocks. A test compares the
bytes and the ledger with those of the writer.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any, Literal

import msgspec
from msgspec import Struct

from reknit.pipeline.history.pieces import FixLog
from reknit.pipeline.model import Text, ToolResult, ToolUse, Turn
from reknit.pipeline.options import Parts
from reknit.pipeline.providers.openai.writer import content_of, result_content
from reknit.pipeline.providers.openai_responses.writer.items import output_part
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


def written_in_one_pass(
    run: RunMessages,
    part: range,
    count: int,
    parts: Parts,
    asked: Container[str],
    *,
    fault: ReasoningFault,
    book: FixLog,
) -> tuple[bytes, list[PlacedTurn], int]:
    """Write the first messages of a part of a valid run that the API takes as they are.

    Args:
        run: the messages, whose tools' names can stay.
        part: the indexes of those to write.
        count: the number of items of the body before them.
        parts: the forms of blocks.
        asked: the ids of calls whose output has a type of its own.
        fault: returns why reasoning cannot go back.
        book: receives the fixes of reasoning that is dropped.

    Returns:
        The items, joined by commas; the origins of each turn; and the number of the body's items after them.
    """
    written: list[Any] = []
    rows: list[PlacedTurn] = []
    for at in part:
        came, before = run.turns[at], len(written)
        turn = run.without_reasoning(at, fault, book) if at in run.special else came
        if turn is None:
            break
        if turn.role == "assistant":
            _add_assistant(written, turn)
        elif not _add_user(written, turn, parts, asked):
            del written[before:]
            break
        if turn is not came:
            drop_reasoning(came, fault, book)
        rows.append(PlacedTurn(turn, count + before, _rows))
    return _encode(written)[1:-1], rows, count + len(written)


def _add_assistant(written: list[Any], turn: Turn) -> None:
    """Add the texts as one message, then the calls: in a valid turn no text follows a call."""
    texts = [block for block in turn.blocks if type(block) is Text]
    if texts:
        content = texts[0].text if len(texts) == 1 else [output_part(text) for text in texts]
        written.append(_Message(content, "assistant"))
    written.extend(
        _Call(block.id, block.name, bytes(block.input).decode().strip())
        for block in turn.blocks
        if type(block) is ToolUse
    )


def _add_user(written: list[Any], turn: Turn, parts: Parts, asked: Container[str]) -> bool:
    """Add the results, then the texts as one message; False if a result needs a type of its own."""
    texts: list[Text] = []
    for block in turn.blocks:
        if type(block) is ToolResult:
            if block.tool_use_id in asked:
                return False
            written.append(_Output(block.tool_use_id, result_content(block, parts)))
        elif type(block) is Text:
            texts.append(block)
    if texts:
        written.append(_Message(content_of(texts, parts), "user"))
    return True


def _rows(turn: Turn, first: int) -> list[Row]:
    """Return the origins of a turn's blocks, whose first item is that of index ``first`` in the body."""
    texts = sum(type(block) is Text for block in turn.blocks)
    results = sum(type(block) is ToolResult for block in turn.blocks)
    message = first if turn.role == "assistant" else first + results
    place = f"input.{message}.content"
    # An assistant's calls follow its message.
    item = first + 1 if turn.role == "assistant" and texts else first
    rows: list[Row] = []
    said = 0
    for path, block in zip(input_paths(turn), turn.blocks, strict=True):
        if type(block) is Text:
            where = f"{place}.{said}" if texts > 1 else place
            said += 1
        else:
            where = f"input.{item}.output" if type(block) is ToolResult else f"input.{item}"
            item += 1
        rows.append((path, "kept", "", where))
    return rows
