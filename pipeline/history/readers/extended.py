"""Messages that come again under their id with more content, as interfaces write them while an answer arrives.

A later message takes the place of the one directly before it if it has the same id and holds everything that the
earlier one holds: texts may be longer, arguments that were cut may be whole, results and blocks may be added.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from reknit.pipeline.fixes import Fix, make
from reknit.pipeline.model import Block, Text, Thinking, ToolResult, ToolUse, Turn

EXTENDED: Final = "message_extended"


def extends(earlier: Sequence[Turn], later: Sequence[Turn]) -> bool:
    """Return True if a later message has the id of an earlier one, and all of its content.

    Args:
        earlier: the turns of the earlier message.
        later: the turns of the later message.
    """
    if not (earlier and later) or earlier[0].id is None or earlier[0].id != later[0].id:
        return False
    results = {block.tool_use_id: block for block in _blocks(later) if isinstance(block, ToolResult)}
    before, after = _without_results(earlier), _without_results(later)
    return (
        len(before) <= len(after)
        and all(_continues(*both) for both in zip(before, after, strict=False))
        and all(
            _same(block, results.get(block.tool_use_id)) for block in _blocks(earlier) if isinstance(block, ToolResult)
        )
    )


def replaced(earlier: Sequence[Turn]) -> Fix:
    """Return the fix for a message that a later one extends."""
    return make(EXTENDED, earlier[0].place, before=[turn.blocks for turn in earlier], detail=earlier[0].id or "")


def without_extended(turns: Sequence[Turn]) -> tuple[list[Turn], list[Fix]]:
    """Return the turns of a whole history without the messages that the next one extends, and a fix for each."""
    messages = [list(group) for _, group in groupby(turns, key=lambda turn: turn.index)]
    kept: list[Turn] = []
    fixes: list[Fix] = []
    for at, message in enumerate(messages):
        later = messages[at + 1] if at + 1 < len(messages) else []
        if later and later[0].index == message[0].index + 1 and extends(message, later):
            fixes.append(replaced(message))
        else:
            kept += message
    return kept, fixes


def _blocks(turns: Sequence[Turn]) -> list[Block]:
    return [block for turn in turns for block in turn.blocks]


def _without_results(turns: Sequence[Turn]) -> list[tuple[str, Block]]:
    """The blocks of a message with their roles. Results come in the order in which the tools end."""
    return [(turn.role, block) for turn in turns for block in turn.blocks if not isinstance(block, ToolResult)]


def _continues(earlier: tuple[str, Block], later: tuple[str, Block]) -> bool:
    (role, before), (other_role, after) = earlier, later
    if role != other_role or type(before) is not type(after):
        return False
    if isinstance(before, Text) and isinstance(after, Text):
        return after.text.startswith(before.text) and _same(replace(before, text=after.text), after)
    if isinstance(before, Thinking) and isinstance(after, Thinking):
        unsigned = before.signature in (UNSET, None, "")
        return after.thinking.startswith(before.thinking) and (unsigned or before.signature == after.signature)
    if isinstance(before, ToolUse) and isinstance(after, ToolUse) and before.incomplete:
        return (before.id, before.name) == (after.id, after.name)
    return _same(before, after)


def _same(before: Block, after: Block | None) -> bool:
    """Return True if two blocks have the same JSON; raw members of structs are compared by identity otherwise."""
    return before == after or (after is not None and msgspec.json.encode(before) == msgspec.json.encode(after))
