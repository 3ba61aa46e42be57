"""What a complete message means: it confirms blocks that streamed, promotes those that did not, replaces others."""

from __future__ import annotations

import hashlib

import msgspec
from msgspec import UNSET, Raw, UnsetType

from pipeline.streams.events import CALLS, TEXTS, WholeBlock, WholeMessage
from pipeline.streams.fields import in_order
from pipeline.streams.recovery.closing import leave_message, withdraw_block, withdraw_blocks
from pipeline.streams.recovery.memory import Context
from pipeline.streams.recovery.message import Block, Message
from pipeline.streams.recovery.render import (
    Rest,
    confirmed,
    is_unspoken,
    promoted_block,
    turn_delta,
    uncover,
    uncover_growing,
    whole_items,
)
from topics.items import Item, Origin, TurnDelta

# Actions.


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
            continue  # it was told before, and its place tells so
        if block is None:
            items += _promote_block(context, message, whole)
            block = message.blocks[-1]
        else:
            if not is_unspoken(whole):
                items += uncover(block)
            rest = confirm_block(block, whole)
            if not block.unseen:
                completed.append(confirmed(block, whole, rest))
            block.raw = _json_for_log(context, whole)
        if message.attempt and context.complete_messages:
            block.likeness = likeness(whole)  # it may be said again, by another message in this one's place
    told = turn_delta(event)
    tells = told != TurnDelta() or (context.complete_messages and not context.whole_blocks)
    return [*items, *([told] if tells else []), *completed]


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
    # On the screen it stands once: as this message's, since this one may say more.
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


# Blocks.


def confirm_block(block: Block, whole: WholeBlock) -> Rest:
    """Take the complete block's word; return what the stream did not deliver of it."""
    streamed = block.text()
    block.confirmed = True
    # Of a confirmed block only the text is needed later, to compare a result with it.
    block.parts = [whole.text] if whole.kind == "text" else []
    if whole.kind in TEXTS:
        # Some settings leave the thinking out of complete messages; then what was streamed is all there is.
        missing = whole.kind == "thinking" and not whole.text
        return Rest() if missing or whole.text == streamed else Rest(text=whole.text)
    if whole.kind in CALLS:
        return Rest(input=UNSET if _same_json(streamed, whole.input) else whole.input)
    return Rest(raw=whole.raw)


def _same_json(streamed: str, whole: Raw | UnsetType) -> bool:
    if whole is UNSET:
        return True
    try:
        return bool(msgspec.json.decode(streamed) == msgspec.json.decode(whole))
    except (msgspec.DecodeError, RecursionError):
        return False


def likeness(whole: WholeBlock) -> bytes:
    """A digest of what a block says, the same whenever it is said again: a call's id is not in it."""
    said = whole.raw if whole.opaque or whole.kind == "redacted_thinking" else whole.text.encode("utf-8", "replace")
    if whole.kind in CALLS:
        said = b"" if whole.input is UNSET else in_order(whole.input)
    head = f"{whole.kind} {whole.name} ".encode("utf-8", "replace")
    return hashlib.blake2b(head + bytes(said), digest_size=8).digest()
