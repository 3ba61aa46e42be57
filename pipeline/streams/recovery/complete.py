"""Complete messages: they confirm blocks that streamed, promote those that did not, and replace others."""

from __future__ import annotations

from msgspec import UNSET

from reknit.pipeline.streams.events import TEXTS, WholeBlock, WholeMessage
from reknit.pipeline.streams.recovery.attempts import leave_message, withdraw_block, withdraw_blocks
from reknit.pipeline.streams.recovery.memory import Context, mark_of_id
from reknit.pipeline.streams.recovery.message import Block, Message, likeness
from reknit.pipeline.streams.recovery.render import (
    confirmed,
    interrupted,
    is_unspoken,
    promoted_block,
    turn_delta,
    uncover,
    uncover_growing,
    whole_items,
)
from reknit.topics.items import Item, Origin, TurnDelta


def confirm_blocks(context: Context, event: WholeMessage) -> list[Item]:
    """Complete the blocks that streamed, promote those that did not."""
    message = context.message
    message.model = message.model or event.model
    message.id = message.id or event.message_id
    items: list[Item] = []
    completed: list[Item] = []
    for whole in event.blocks:
        block = message.streamed_block(whole)
        message.confirmed += 1
        if block is not None and block.confirmed:
            continue  # it was reported before, as its place shows
        if block is None:
            items += _promote_block(context, message, whole)
            block = message.blocks[-1]
        else:
            if not is_unspoken(whole):
                items += uncover(block)
            rest = block.confirm_with(whole)
            if not block.unseen:
                completed.append(confirmed(block, whole, rest))
            block.raw = _json_for_log(context, whole)
        if _is_repeated_call(context, message, block):
            completed += withdraw_block(block, "repeated id")
        if context.complete_messages:
            block.likeness = likeness(whole)  # another message in this one's place may say it again, or a transcript
    if event.interrupted:
        completed += cut_newest_block(message)
    delta = turn_delta(event)
    has_delta = delta != TurnDelta() or (context.complete_messages and not context.whole_blocks)
    return [*items, *([delta] if has_delta else []), *completed]


def _is_repeated_call(context: Context, message: Message, block: Block) -> bool:
    """True if the run has a call of this id already. The Claude CLI keeps the first of them in its history, alone."""
    if not context.confirmed_by_messages or block.kind != "tool_use" or block.tool_id is None:
        return False
    here = any(call is not block and call.tool_id == block.tool_id for call in message.confirmed_calls())
    return here or mark_of_id(block.tool_id) in context.memory.called


def cut_newest_block(message: Message) -> list[Item]:
    """Mark the newest block, which the program interrupted. A call is confirmed whole."""
    block = message.blocks[-1] if message.blocks else None
    if block is None or block.cut or block.withdrawn or not block.confirmed or block.kind not in TEXTS:
        return []
    block.cut = True
    return [] if block.unseen else [interrupted(block)]


def promote_next(context: Context, event: WholeMessage) -> list[Item]:
    """Close the message, promote the next."""
    items = leave_message(context, "next message")
    context.memory.message = Message(id=event.message_id, model=event.model, attempt=False)
    return [*items, *confirm_blocks(context, event)]


def replace_unconfirmed(context: Context, event: WholeMessage) -> list[Item]:
    """Withdraw what is unconfirmed, promote the next."""
    return [*withdraw_blocks(context.message, everything=False), *promote_next(context, event)]


def replace_said_again(context: Context, event: WholeMessage) -> list[Item]:
    """Withdraw what is unconfirmed and what the next says again, promote the next."""
    former = context.message
    items = withdraw_blocks(former, everything=False)
    items += leave_message(context, "next message", replaced=True)
    context.memory.message = Message(id=event.message_id, model=event.model, attempt=False, former=former)
    return [*items, *confirm_blocks(context, event)]


def _promote_block(context: Context, message: Message, whole: WholeBlock) -> list[Item]:
    items = uncover_growing(message)
    before = message.block_said_before(likeness(whole)) if message.former is not None else None
    # It is shown once, as a block of this message, because this one may have more content.
    items += [] if before is None else withdraw_block(before)
    ids = context.ids
    for_block = ids.for_streamed if context.whole_blocks else ids.for_promoted
    item_id = for_block() if whole.tool_id is None else ids.for_call(whole.tool_id)
    block = promoted_block(item_id, whole, _json_for_log(context, whole))
    block.unseen = not context.complete_messages and is_unspoken(whole)
    message.add_block(block)
    if block.unseen:
        return items
    origin: Origin = "stream" if context.whole_blocks else "promoted"
    repeats = message.take_said(likeness(whole)) if message.said else ""
    return [*items, *whole_items(item_id, whole, origin=origin, repeats=repeats)]


def _json_for_log(context: Context, whole: WholeBlock) -> bytes | None:
    """The block's JSON for the log. A plain text is kept as it is shown, once and not twice."""
    is_plain = whole.kind == "text" and whole.extras is UNSET
    return bytes(whole.raw) if context.records and not is_plain else None
