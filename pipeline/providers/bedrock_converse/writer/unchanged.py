"""Blocks and messages that Converse takes as they are, and the messages of a valid run, written in one pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import UNSET, structs

from reknit.pipeline.history.pieces import FixLog, TrackedBlock, message_of
from reknit.pipeline.history.unusual import unusual
from reknit.pipeline.model import (
    Block,
    Image,
    RedactedThinking,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Turn,
)
from reknit.pipeline.policy import Endpoint
from reknit.pipeline.providers.bedrock_converse.wire import Message, is_empty_error, written_message
from reknit.pipeline.providers.bedrock_converse.writer.blocks import tool_name
from reknit.pipeline.providers.bedrock_converse.writer.fitness import reasoning_fault, reasoning_stays
from reknit.pipeline.targets import row
from reknit.pipeline.targets.bound import NOT_VOID, Void
from reknit.pipeline.targets.fitting import without_mark
from reknit.pipeline.targets.limits import CONVERSE
from reknit.pipeline.targets.media import MEDIA_TYPES as IMAGE_TYPES
from reknit.pipeline.targets.media import image_stays
from reknit.pipeline.targets.valid_run import Origins, RunMessages, drop_reasoning

_encode = msgspec.json.Encoder().encode


def written_in_one_pass(
    run: RunMessages, part: range, model: str, endpoint: Endpoint, void: Void = NOT_VOID, *, book: FixLog
) -> tuple[bytes, list[Origins]]:
    """Write the first messages of a part of a valid run that stay as they are, or only lose reasoning or breakpoints.

    Return the messages, joined by commas, and the origins of each; ``book`` receives the fixes.
    """

    def fault(block: Block, turn: Turn) -> str:
        return reasoning_fault(block, turn.index, model, endpoint, void)

    messages: list[Message] = []
    origins: list[Origins] = []
    for at in part:
        turn = run.turns[at]
        origin: Origins = turn
        if at in run.special and not _turn_stays(turn, model, endpoint, void):
            bare = run.without_reasoning(at, fault, book)
            if bare is not None:
                drop_reasoning(turn, fault, book)
                origin = turn = bare
            else:
                pieces = message_of(turn).pieces
                blocks = tuple(without_mark(piece, None).block for piece in pieces)
                bare = structs.replace(turn, blocks=blocks)
                if not book.makes("cache_mark_dropped") or not _turn_stays(bare, model, endpoint, void):
                    break
                origin = [row(without_mark(piece, book)) for piece in pieces]
                turn = bare
        messages.append(written_message(turn.role, turn.blocks))
        origins.append(origin)
    return _encode(messages)[1:-1], origins


# The members that Converse has no place for, in blocks that are written as they are. The exempt ones are content.
_UNUSUAL: Final[Mapping[type, Callable[[Any], bool]]] = MappingProxyType(
    {
        Text: unusual(Text, "issuer"),
        ToolUse: unusual(ToolUse, "issuer", "incomplete"),
        ToolResult: unusual(ToolResult, "issuer", "content", "is_error"),
        Thinking: unusual(Thinking, "issuer", "signature"),
        RedactedThinking: unusual(RedactedThinking, "issuer"),
        Image: unusual(Image, "issuer"),
    }
)


def _turn_stays(turn: Turn, model: str, endpoint: Endpoint, void: Void) -> bool:
    return turn.own is UNSET and reasoning_stays(turn, model, endpoint, void) and all(map(_stays, turn.blocks))


def piece_stays(piece: TrackedBlock) -> bool:
    """Return True if a block is written as it is, wherever it is; it is no reasoning."""
    block = piece.block
    if isinstance(block, ToolUse) and tool_name(block.name) != block.name:
        return False
    return piece.own is UNSET and not isinstance(block, (Thinking, RedactedThinking)) and _stays(block)


def _stays(block: Block) -> bool:
    """Return True if a block and its parts need no change, apart from names of tools and the place of reasoning.

    Documents do, because each needs a name that no other one has.
    """
    is_unusual = _UNUSUAL.get(type(block))
    if is_unusual is None or is_unusual(block):
        return False
    if isinstance(block, Image):
        return image_stays(block, IMAGE_TYPES, CONVERSE)
    if not isinstance(block, ToolResult):
        return True
    parts = block.content if type(block.content) is list else ()
    # Other parts than texts can only be written once they are fitted, so they come first.
    if block.is_error and (not all(isinstance(part, Text) for part in parts) or is_empty_error(block)):
        return False
    return all(map(_stays, parts))
