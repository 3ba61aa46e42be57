"""What events and blocks look like as items, and which blocks have none."""

from __future__ import annotations

from typing import TypedDict

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from pipeline.streams.events import CALLS, BlockStarted, UserMessage, WholeBlock, WholeMessage
from pipeline.streams.recovery.finished import shown_json
from pipeline.streams.recovery.message import PLAIN, Block, Message
from topics.items import Item, ItemCompleted, ItemRetracted, ItemStarted, Origin, TurnDelta, TurnStop


class _ToolName(TypedDict, total=False):
    name: str
    tool_server: str
    tool_source: str


def tool_name(name: str) -> _ToolName:
    """A tool's name in its parts: ``mcp__server__tool`` is a tool of an MCP server."""
    parts = name.split("__", 2)
    if len(parts) == 3 and parts[0] == "mcp" and parts[1] and parts[2]:
        return {"name": parts[2], "tool_server": parts[1], "tool_source": "mcp"}
    return {"name": name}


def streamed_start(item_id: str, event: BlockStarted) -> ItemStarted:
    """A block begins to stream; its content follows in deltas."""
    kind = event.kind or "unknown"
    if not event.name:
        return ItemStarted(item_id=item_id, item_type=kind, raw=event.raw)
    return ItemStarted(item_id=item_id, item_type=kind, raw=event.raw, **tool_name(event.name))


def whole_items(
    item_id: str, whole: WholeBlock, *, origin: Origin = "stream", parent: str | None = None, sidechain: bool = False
) -> list[Item]:
    """A block that comes all at once: it starts with its content and is complete."""
    raw = whole.raw if whole.opaque or whole.kind == "redacted_thinking" else UNSET
    started = ItemStarted(
        item_id=item_id,
        item_type=whole.kind,
        origin=origin,
        text=whole.text,
        input=whole.input,
        raw=raw,
        parent_tool_use_id=parent,
        is_sidechain=sidechain,
        **tool_name(whole.name),
    )
    text = whole.text or UNSET
    own = UNSET if whole.kind in PLAIN else whole.raw
    done = ItemCompleted(item_id=item_id, origin=origin, text=text, input=whole.input, raw=own, extras=whole.extras)
    return [started, done]


class Rest(Struct, frozen=True):
    """What a confirmed block was still missing on the screen."""

    text: str | UnsetType = UNSET
    input: Raw | UnsetType = UNSET
    raw: Raw | UnsetType = UNSET


def confirmed(block: Block, whole: WholeBlock, rest: Rest) -> ItemCompleted:
    """A streamed block is complete, with what its stream did not deliver."""
    raw = rest.raw if block.kind in PLAIN else whole.raw
    return ItemCompleted(item_id=block.item_id, text=rest.text, input=rest.input, raw=raw, extras=whole.extras)


def confirmed_by_stop(block: Block, told: str | UnsetType) -> ItemCompleted:
    """A streamed block is complete, where its source never sends complete messages; ``told`` is what its stop said."""
    extras = block.extras() or UNSET
    if block.kind in CALLS and isinstance(told, str):
        return ItemCompleted(item_id=block.item_id, input=Raw(told.encode()), extras=extras)
    whole = None if block.kind in PLAIN else shown_json(block)
    return ItemCompleted(item_id=block.item_id, text=told, raw=UNSET if whole is None else Raw(whole), extras=extras)


def left_incomplete(block: Block, told: str | UnsetType, reason: str) -> ItemCompleted:
    """A streamed block ends unconfirmed. A call repeats the raw JSON that came, so that nobody has to add it up."""
    return ItemCompleted(
        item_id=block.item_id,
        text=told,
        partial_input=block.text() if block.kind in CALLS else UNSET,
        incomplete=True,
        reason=reason,
        extras=block.extras() or UNSET,
    )


def retracted(block: Block) -> ItemRetracted:
    return ItemRetracted(item_id=block.item_id)


def turn_delta(event: WholeMessage) -> TurnDelta:
    """What a complete message says about the turn."""
    return TurnDelta(model=event.model, usage=event.usage, uuid=event.uuid, extras=event.extras)


def turn_stop(message: Message, *, incomplete: bool, told_by_stop: bool) -> TurnStop:
    """An attempt's turn is over. Where no complete message tells about the turn, its stop does.

    A reason of no words: the end was told, and nobody said why.
    """
    if not told_by_stop:
        return TurnStop(incomplete=incomplete)
    return TurnStop(
        incomplete=incomplete,
        model=message.model,
        stop_reason=message.reason or None,
        usage=UNSET if message.usage is None else message.usage,
        extras={name: Raw(value) for name, value in message.details.items()} or UNSET,
    )


def subagent_stop(event: WholeMessage) -> TurnStop:
    """A sub-agent's turn, which is one complete message."""
    return TurnStop(
        model=event.model,
        usage=event.usage,
        parent_tool_use_id=event.parent,
        is_sidechain=event.sidechain,
        uuid=event.uuid,
        extras=event.extras,
    )


def user_message(item_id: str, event: UserMessage) -> ItemStarted:
    """A user's words, beside the tool results that may stand in the same line."""
    return ItemStarted(
        item_id=item_id,
        item_type="user_message",
        content=Raw(msgspec.json.encode(event.rest)),
        parent_tool_use_id=event.parent,
        is_sidechain=event.sidechain,
        is_synthetic=event.synthetic,
        is_replay=event.replay,
        uuid=event.uuid,
        extras=UNSET if event.results else event.extras,
    )


def promoted_block(item_id: str, whole: WholeBlock, raw: bytes | None) -> Block:
    """A promoted block as the current message remembers it."""
    return Block(
        item_id=item_id,
        kind=whole.kind,
        tool_id=whole.tool_id,
        name=whole.name,
        index=-1 if whole.index is None else whole.index,
        parts=[whole.text] if whole.kind == "text" else [],
        confirmed=True,
        raw=raw,
    )


# Thinking of which no word has come has no item until one does, and what is only a signature never gets one: a provider
# seals its reasoning, and some send nothing else of it. That goes into the log, for the provider wants it back; on a
# screen it would be an empty box. Agent programs, which tell everything twice, show what they show.


def is_unspoken(whole: WholeBlock) -> bool:
    """Whether there is nothing to show of a whole block."""
    return whole.kind == "thinking" and not whole.text and whole.extras is UNSET


def uncover(block: Block) -> list[Item]:
    """Start the item of a block that has none, for now it has something to show."""
    if not block.unseen:
        return []
    block.unseen = False
    return [streamed_start(block.item_id, BlockStarted(index=block.index, kind=block.kind))]


def uncover_growing(message: Message) -> list[Item]:
    """Start the newest block's item, if words may still come: items stand in the order of their blocks.

    Where the blocks are placed, they need not.
    """
    newest = message.blocks[-1] if message.blocks and not message.placed else None
    if newest is None or newest.stopped or newest.confirmed or newest.withdrawn:
        return []
    return uncover(newest)


def uncover_told(block: Block) -> list[Item]:
    """Start the item of a block that ends and has more than a signature."""
    return uncover(block) if block.unseen and (block.told or block.extras()) else []
