"""The part of a history that a shape has a place for, as the messages that will be written.

Nothing is repaired here: calls stay open, and results without calls stay, unless a result is a part of its call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from msgspec import UNSET
from msgspec.structs import replace

from reknit.pipeline.fixes import Fix
from reknit.pipeline.history.pieces import tool_id
from reknit.pipeline.history.readers.tolerant import Placed
from reknit.pipeline.history.uuids import is_uuid
from reknit.pipeline.history.writers.base import Holds, Place
from reknit.pipeline.history.writers.blocks import Keeping
from reknit.pipeline.history.writers.results import at_their_calls
from reknit.pipeline.history.writers.values import by_issuer
from reknit.pipeline.model import Block, RedactedThinking, Role, Text, Thinking, ToolResult, ToolUse, Turn, Unknown

_THOUGHTS = (Thinking, RedactedThinking)


def kept(turns: Sequence[Turn], holds: Holds, model: str | None = None) -> tuple[list[Turn], list[Fix]]:
    """Return the turns that a shape holds, one for each message, and a fix for everything that is left out.

    Args:
        turns: of a history.
        holds: the content that the shape has a place for.
        model: that the history names. Reasoning that names no model has it in a shape of one provider.
    """
    keeping = Keeping(holds, model)
    messages = [message for turn in turns for message in _by_role(turn, keeping)]
    if not holds.items:
        messages = _joined(messages, holds)
    if holds.one_issuer:
        messages = [_with_issuer(message) for message in messages]
    if holds.results_at_calls:
        messages = at_their_calls(messages, keeping)
    known: set[str] = set()
    return [_with_marks(message, keeping, known) for message in messages], keeping.fixes


def place_of(turn: Turn) -> Place:
    """Return the kind of a message."""
    is_result = all(isinstance(block, ToolResult) for block in turn.blocks)
    return "result" if turn.role == "user" and is_result else turn.role


def _by_role(turn: Turn, keeping: Keeping) -> Iterator[Turn]:
    """Yield a turn's blocks in messages of their roles: results are the user's, calls and reasoning the model's."""
    groups: list[tuple[Role, list[Placed]]] = []
    for block, path in keeping.of_turn(turn):
        role = turn.role
        if isinstance(block, ToolResult):
            role = "user"
        elif isinstance(block, (ToolUse, *_THOUGHTS)):
            role = "assistant"
        if role != turn.role:
            keeping.lose("block_moved", path, block)
        if not groups or groups[-1][0] != role:
            groups.append((role, []))
        groups[-1][1].append((block, path))
    for at, (role, placed) in enumerate(groups):
        message = turn_of(turn, placed)
        yield replace(message, role=role, id=turn.id if at == 0 else None)


def turn_of(turn: Turn, placed: Sequence[Placed]) -> Turn:
    """Return a turn with other blocks."""
    blocks, paths = zip(*placed, strict=True) if placed else ((), ())
    return replace(turn, blocks=blocks, paths=paths)


def _joined(messages: Sequence[Turn], holds: Holds) -> list[Turn]:
    """Join what one message of the model was: items of Responses, and reasoning that is a message of its own.

    Claude Code takes a call for one without a result if another message of the model's follows it (2.1.332).
    """
    joined: list[Turn] = []
    for message in messages:
        last = joined[-1] if joined else None
        if last is None or message.role != "assistant" or last.role != "assistant":
            joined.append(message)
            continue
        is_thought = all(isinstance(block, _THOUGHTS) for block in last.blocks)
        is_open = bool(holds.maker) and any(isinstance(block, ToolUse) for block in last.blocks)
        if not (is_thought or is_open or (last.root == message.root == "input")):
            joined.append(message)
            continue
        paths = (*cast("tuple[str, ...]", last.paths), *cast("tuple[str, ...]", message.paths))
        named = message.id if is_thought and message.id else last.id
        joined[-1] = replace(message, blocks=(*last.blocks, *message.blocks), paths=paths, id=named, index=last.index)
    return joined


def _with_issuer(message: Turn) -> Turn:
    """Return a message whose reasoning has an issuer if other reasoning of the message has one."""
    blocks: list[Block] = []
    for issuer, group in by_issuer(message.blocks):
        blocks += [
            replace(block, issuer=issuer or UNSET) if isinstance(block, _THOUGHTS) and block.issuer is UNSET else block
            for block in group
        ]
    return replace(message, blocks=tuple(blocks))


def _with_marks(message: Turn, keeping: Keeping, known: set[str]) -> Turn:
    """Return a message with the marks and the id that the shape has a place for."""
    holds = keeping.holds
    incomplete = message.incomplete and bool(message.blocks) and isinstance(message.blocks[-1], Text)
    if incomplete and not holds.cut_texts:
        keeping.lose("field_dropped", message.place, message.blocks[-1], "incomplete")
        incomplete = False
    named = message.id
    # Frameworks take a message with the id of an earlier one for a new version of it.
    if named and (not _has_id(message, holds) or named in known):
        # The ids of calls stay; the id of an item says nothing where there are no items.
        if not (message.root == "input" and (_is_items(message, holds) or all(map(tool_id, message.blocks)))):
            keeping.lose("field_dropped", f"{message.place}.id", named, f"id: {named}")
        named = None
    known.update([named] if named else [])
    own = message.own if message.own is not UNSET and message.own.provider in holds.own else UNSET
    return replace(message, id=named, incomplete=incomplete, own=own)


def _has_id(message: Turn, holds: Holds) -> bool:
    """Return True if a shape has a place for the id of a message."""
    place = place_of(message)
    return place in holds.ids and (not holds.uuids or place == "assistant" or is_uuid(message.id or ""))


def _is_items(message: Turn, holds: Holds) -> bool:
    """Return True if the id of a message is written with an item's own members."""
    owns = [each.own for each in (message, *message.blocks) if not isinstance(each, Unknown) and each.own is not UNSET]
    return any(own.provider in holds.own and "id" in own.members for own in owns)
