"""Messages of a valid run in Chat Completions' form, written in one pass.

Turns of plain text, images, calls, results of text, and reasoning in a field need none of the writer's work on single
blocks. A test compares the bytes and the ledger with those of the writer.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from reknit.pipeline.history.pieces import FixLog
from reknit.pipeline.model import Image, RedactedThinking, Text, Thinking, ToolResult, ToolUse, Turn
from reknit.pipeline.options import MessageOptions, ModelOptions
from reknit.pipeline.providers.openai.writer import content_of, has_parts, reasoning_fault, result_content, stays
from reknit.pipeline.targets import Row
from reknit.pipeline.targets.valid_run import PlacedTurn, RunMessages, drop_reasoning, input_paths

_encode = msgspec.json.Encoder().encode


class _Function(Struct, gc=False):
    name: str
    arguments: str


class _Call(Struct, tag_field="type", tag="function"):
    id: str
    function: _Function


class _Assistant(Struct, tag_field="role", tag="assistant"):
    content: str | list[Any] | None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[_Call] | UnsetType = UNSET


class _Result(Struct, tag_field="role", tag="tool"):
    tool_call_id: str
    content: str | list[Any]


class _User(Struct, tag_field="role", tag="user"):
    content: str | list[Any]


def written_in_one_pass(
    run: RunMessages, part: range, count: int, options: MessageOptions, model: ModelOptions, *, book: FixLog
) -> tuple[bytes, list[PlacedTurn], int]:
    """Write the first messages of a part of a valid run that the model takes as they are.

    Args:
        run: the messages, whose tools' names can stay.
        part: the indexes of those to write.
        count: the number of messages of the body before them.
        options: the target's options.
        model: the model's options.
        book: receives the fixes of reasoning that is dropped.

    Returns:
        The messages, joined by commas; the origins of each turn; and the number of the body's messages after them.
    """
    written: list[Any] = []
    rows: list[PlacedTurn] = []

    def fault(block: Thinking | RedactedThinking, _: Turn) -> str:
        return reasoning_fault(block, options)

    for at in part:
        came, before = run.turns[at], len(written)
        turn = run.without_reasoning(at, fault, book) if at in run.special else came
        if turn is None:
            is_kept = _keeps_reasoning(came, options, model) if at in run.thoughts else stays(came, options)
            turn = came if is_kept else None
        if turn is None:
            break
        add = _add_assistant if turn.role == "assistant" else _add_user
        if not add(written, turn, options, model):
            del written[before:]
            break
        if turn is not came:
            drop_reasoning(came, fault, book)
        rows.append(PlacedTurn(turn, count + before, _rows))
    return _encode(written)[1:-1], rows, count + len(written)


def _keeps_reasoning(turn: Turn, options: MessageOptions, model: ModelOptions) -> bool:
    """Return True if the reasoning of a turn is one block that begins it and goes back in a field of its message."""
    first, *rest = turn.blocks
    if model.reasoning_parts or not isinstance(first, (Thinking, RedactedThinking)) or reasoning_fault(first, options):
        return False
    # Another block would be joined to the first, which is a fix.
    return not any(isinstance(block, (Thinking, RedactedThinking)) for block in rest)


def _add_assistant(written: list[Any], turn: Turn, options: MessageOptions, model: ModelOptions) -> bool:
    """Add an assistant's message; False if the model does not take it unchanged."""
    texts: list[Text] = []
    calls: list[_Call] = []
    thoughts: list[str] = []
    for block in turn.blocks:
        if type(block) is ToolUse:
            if options.call_id(block.id) != block.id:
                return False
            calls.append(_Call(block.id, _Function(block.name, bytes(block.input).decode().strip())))
        elif type(block) is Text:
            texts.append(block)
        elif type(block) is Thinking:
            thoughts.append(block.thinking)
    if len(calls) > 1 and model.single_call:
        return False
    content = content_of(texts, options.parts) if texts else None
    has_field = bool(thoughts) or (bool(calls) and model.reasoning_required)
    written.append(_Assistant(content, "\n".join(thoughts) if has_field else UNSET, calls or UNSET))
    return True


def _add_user(written: list[Any], turn: Turn, options: MessageOptions, model: ModelOptions) -> bool:
    """Add a message for each result, and one for the texts; False if the model does not take them unchanged."""
    shown: list[Text | Image] = []
    results = len(written)
    for block in turn.blocks:
        if type(block) is ToolResult:
            if options.call_id(block.tool_use_id) != block.tool_use_id:
                return False
            written.append(_Result(block.tool_use_id, result_content(block, options.parts)))
        elif type(block) is Text or type(block) is Image:
            shown.append(block)
    if shown:
        # Some models need an answer between results and the user.
        if model.answer_required and len(written) > results:
            return False
        written.append(_User(content_of(shown, options.parts)))
    return True


def _rows(turn: Turn, first: int) -> list[Row]:
    """Return the origins of a turn's blocks, whose first message is that of index ``first`` in the body."""
    results = sum(type(block) is ToolResult for block in turn.blocks)
    is_list = has_parts(turn)
    place = f"messages.{first + results}.content"
    rows: list[Row] = []
    said = called = answered = 0
    for path, block in zip(input_paths(turn), turn.blocks, strict=True):
        if type(block) is ToolUse:
            where = f"messages.{first}.tool_calls.{called}"
            called += 1
        elif type(block) is ToolResult:
            where = f"messages.{first + answered}.content"
            answered += 1
        elif type(block) is Thinking:
            where = f"messages.{first}.reasoning_content"
        else:
            where = f"{place}.{said}" if is_list else place
            said += 1
        rows.append((path, "kept", "", where))
    return rows
