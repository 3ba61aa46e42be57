"""Results as parts of their calls, for shapes that have no messages of results."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from reknit.pipeline.history.writers.blocks import Keeping
from reknit.pipeline.history.writers.values import is_seal
from reknit.pipeline.model import Block, ToolResult, ToolUse, Turn


def at_their_calls(messages: Sequence[Turn], keeping: Keeping) -> list[Turn]:
    """Return messages with each result in a message directly after that of its call, and calls after other blocks.

    A result without a call, and another one of a call that has one, is left out.
    """
    calls = {id(block): block for turn in messages for block in turn.blocks if isinstance(block, ToolUse)}
    open_calls: dict[str, tuple[int, int]] = {}
    last_other = -1
    results: dict[int, tuple[ToolResult, str]] = {}
    kept: list[Turn] = []
    for number, message in enumerate(messages):
        left: list[tuple[Block, str]] = []
        for block, path in zip(message.blocks, message.paths or (), strict=True):
            if isinstance(block, ToolUse):
                open_calls[block.id] = id(block), number
            if not isinstance(block, ToolResult):
                left.append((block, path))
                last_other = number
                continue
            call, at = open_calls.get(block.tool_use_id, (0, 0))
            if call not in calls or calls[call].incomplete:
                keeping.lose("result_orphan", path, block)
            elif call in results:
                keeping.lose("result_duplicate", path, block)
            else:
                results[call] = block, path
                if last_other != at:
                    keeping.lose("result_moved", path, block)
        if left:
            kept.append(_of(message, left))
    return [each for message in kept for each in _answered(message, results, keeping)]


def _of(message: Turn, placed: Sequence[tuple[Block, str]]) -> Turn:
    return replace(message, blocks=tuple(block for block, _ in placed), paths=tuple(path for _, path in placed))


def _answered(message: Turn, results: dict[int, tuple[ToolResult, str]], keeping: Keeping) -> list[Turn]:
    """Return a message with its calls at the end, and the message of their results."""
    placed = list(zip(message.blocks, message.paths or (), strict=True))
    ends: list[tuple[Block, str]] = []
    begins: list[tuple[Block, str]] = []
    for at, (block, path) in enumerate(placed):
        follower = placed[at + 1][0] if at + 1 < len(placed) else None
        of_call = isinstance(block, ToolUse) or (is_seal(block) and isinstance(follower, ToolUse))
        if not of_call and ends:
            keeping.lose("call_moved", path, block)
        (ends if of_call else begins).append((block, path))
    answers = [results[id(block)] for block, _ in ends if id(block) in results]
    found = [_of(message, [*begins, *ends])]
    if answers:
        # The results of one message are in it: they have no id.
        found.append(replace(_of(message, answers), role="user", id=None, incomplete=False))
    return found
