"""The life of an attempt: its start, its blocks as they grow, its stop reason and its stop, and how all of it ends."""

from __future__ import annotations

from msgspec import UNSET

from reknit.pipeline.streams.events import (
    BLOCK_OF_DELTA,
    CALLS,
    BlockDelta,
    BlockNoted,
    BlockStarted,
    BlockStopped,
    Event,
    MessageDelta,
    MessageStarted,
    MessageStopped,
    UsageKnown,
)
from reknit.pipeline.streams.recovery.memory import Context, Shown, mark_of_id
from reknit.pipeline.streams.recovery.message import Block, Message, ShownBlock
from reknit.pipeline.streams.recovery.render import (
    confirmed_by_stop,
    finished_turns,
    left_incomplete,
    retracted,
    streamed_start,
    turn_stop,
    uncover,
    uncover_growing,
    uncover_settled,
)
from reknit.topics.items import AgentUnrecognized, Item, ItemDelta, TurnDelta

# The start.


def start_next(context: Context, event: MessageStarted) -> list[Item]:
    """Close the message, begin an attempt."""
    items = leave_message(context, "next message")
    _begin_attempt(context, event)
    return items


def start_again(context: Context, event: MessageStarted) -> list[Item]:
    """Withdraw what is unconfirmed, begin an attempt."""
    # Of an API, another attempt means that the client threw this one away as a whole.
    before = context.message
    items = withdraw_blocks(before, everything=not context.complete_messages)
    items += leave_message(context, "next attempt")
    _begin_attempt(context, event)
    if context.whole_blocks:
        # Complete blocks stay on the screen; a block that repeats one names the item that it repeats.
        context.message.said = [*before.said, *((block.likeness, block.item_id) for block in before.surviving())]
    return items


def start_unseen(context: Context, event: BlockStarted | BlockDelta) -> list[Item]:
    """Close the message, begin an attempt with the block: its own start was lost."""
    items = start_next(context, MessageStarted(event.message_id))
    return items + (open_block(context, event) if isinstance(event, BlockStarted) else extend_block(context, event))


def _begin_attempt(context: Context, event: MessageStarted) -> None:
    context.memory.message = Message(id=event.message_id, model=event.model, attempt=True, placed=event.placed)


# Blocks.


def open_block(context: Context, event: BlockStarted) -> list[Item]:
    """Start an item."""
    message = context.message
    items = uncover_growing(message)
    before = message.block_at(event.index)
    if before is not None and not before.withdrawn and before.repeats(event, whole=context.complete_messages):
        if context.complete_messages:
            return items  # streamed content stays; the complete message has the rest
        # An API never starts a block twice within an attempt: the first start belongs to an attempt that was dropped.
        items += withdraw_block(before)
    is_call = event.kind in CALLS and event.tool_id is not None
    item_id = context.ids.for_call(event.tool_id) if is_call and event.tool_id else context.ids.for_streamed()
    block = Block(item_id=item_id, kind=event.kind, index=event.index, tool_id=event.tool_id, name=event.name)
    block.raw = bytes(event.raw) if event.raw is not UNSET else None
    block.doubtful = event.doubtful
    block.unseen = event.kind == "thinking" and not event.text and not context.complete_messages
    message.add_block(block)
    if block.unseen:
        return items
    items.append(streamed_start(item_id, event))
    if event.text:
        items.append(ItemDelta(item_id=item_id, delta_type=f"{event.kind}_delta", content=event.text))
        block.append(event.text)
    return items


def extend_block(context: Context, event: BlockDelta) -> list[Item]:
    """Pass on a delta."""
    message = context.message
    block = message.blocks[-1] if message.blocks else None
    if block is None or block.index != event.index:
        block = message.block_at(event.index)
    if block is None or (block.confirmed and not context.complete_messages):
        # Its stop has proven the block there: more words can only be another's, whose start was lost.
        return _open_for_delta(context, event)
    if block.confirmed:
        return []  # the complete message had all of it
    if event.kind == "signature_delta":
        block.signature += event.content
        return []
    if not event.content and event.raw is UNSET:
        return []
    if block.unseen and block.stopped and not message.placed:
        return _open_for_delta(context, event)  # new content follows the items that have been shown since
    items = uncover(block)
    at = block.length
    block.append(event.content)
    raw = event.raw
    items.append(ItemDelta(item_id=block.item_id, delta_type=event.kind, content=event.content, at=at, raw=raw))
    return items


def _open_for_delta(context: Context, event: BlockDelta) -> list[Item]:
    """Start a block whose start was lost, if the delta identifies its kind."""
    kind = BLOCK_OF_DELTA.get(event.kind)
    if kind is None or (event.kind == "signature_delta" and context.complete_messages):
        return ignore(context, event)
    started = BlockStarted(index=event.index, kind=kind)
    return [*open_block(context, started), *extend_block(context, event)]


def note_member(context: Context, event: BlockNoted) -> list[Item]:
    """Store the block's metadata."""
    block = context.message.block_at(event.index)
    if block is None or block.withdrawn:
        return ignore(context, event)
    block.note_member(event)
    return []


def stop_block(context: Context, event: BlockStopped) -> list[Item]:
    """Remember that the block's stream stopped."""
    block = context.message.block_at(event.index)
    if block is not None:
        block.stopped = not event.cut
        block.doubtful = block.doubtful or event.doubtful
        if event.text is not None and not block.confirmed:
            block.note_whole_text(event.text)
    return []


def take_stray(context: Context, event: BlockStarted | BlockDelta | BlockNoted | BlockStopped) -> list[Item]:
    """Ignore the event if a complete message repeats it; otherwise treat it as in an open attempt."""
    if context.complete_messages:
        return ignore(context, event)
    if isinstance(event, BlockStarted):
        return open_block(context, event)
    if isinstance(event, BlockDelta):
        return extend_block(context, event)
    return note_member(context, event) if isinstance(event, BlockNoted) else stop_block(context, event)


def ignore(context: Context, event: Event) -> list[Item]:
    """Ignore the event, except for content that no complete message and no item would have."""
    raw = event.value if isinstance(event, BlockNoted) else UNSET
    if isinstance(event, BlockDelta | BlockStarted):
        raw = event.raw
    if raw is UNSET:
        return []
    return [AgentUnrecognized(reason="unknown content outside a message", event=raw, seq=context.ids.next_number())]


# The end.


def take_stop_reason(context: Context, event: MessageDelta) -> list[Item]:
    """Remember the stop reason."""
    message = context.message
    message.reason, message.cut = event.stop_reason, event.cut
    message.details = {} if event.details is UNSET else {name: bytes(raw) for name, raw in event.details.items()}
    return _confirm_stopped(context, message)


def take_late_stop_reason(context: Context, event: MessageDelta) -> list[Item]:
    """Remember the stop reason, close the turn once more."""
    context.message.stopped = False
    return [*take_stop_reason(context, event), *stop_turn(context, context.message)]


def take_usage(context: Context, event: UsageKnown) -> list[Item]:
    """Store the token counts, or report them if the turn is closed."""
    message = context.message
    message.model = event.model or message.model
    if event.usage is None or event.usage == message.usage:
        return []
    message.usage = event.usage
    return [TurnDelta(usage=event.usage)] if message.stopped else []


def stop_message(context: Context, _event: MessageStopped) -> list[Item]:
    """Close the turn."""
    message = context.message
    return [*_confirm_stopped(context, message), *stop_turn(context, message)]


def abandon_blocks(context: Context, event: MessageStopped) -> list[Item]:
    """Close the turn, give up the blocks that are named."""
    message = context.message
    message.reason = None  # it was the stop reason of the abandoned part, and the turn is not whole without that part
    for block in message.blocks:
        block.abandoned = block.abandoned or block.index >= (event.abandoned_from or 0)
    return stop_turn(context, message)


def _confirm_stopped(context: Context, message: Message) -> list[Item]:
    """Confirm blocks by their stop and the message's stop reason, for sources without complete messages."""
    if context.complete_messages or message.reason is None:
        return []
    items: list[Item] = []
    for block in message.surviving():
        if not block.stopped or block.confirmed:
            continue
        if block.reads_as_whole(cut=message.cut):
            block.confirmed = True
            items += uncover_settled(block)
            given = block.settle_text()
            if not block.unseen:
                items.append(confirmed_by_stop(block, given))
    return items


# How blocks end: withdrawn, or left incomplete.


def withdraw_block(block: Block, reason: str = "replaced") -> list[Item]:
    block.withdrawn = True
    return [] if block.unseen else [retracted(block, reason)]


def withdraw_blocks(message: Message, *, everything: bool) -> list[Item]:
    """Take blocks off the screen: all of them, or those that nothing has confirmed or that were abandoned."""
    items: list[Item] = []
    for block in message.surviving():
        if everything or block.abandoned or not block.confirmed:
            items += withdraw_block(block)
    return items


# The turn and the message.


def stop_turn(context: Context, message: Message, *, proven: bool = False) -> list[Item]:
    """The end of the turn, once; ``proven`` says that it is whole, whatever stops were lost."""
    if message.stopped:
        return []
    message.stopped = True
    incomplete = message.is_open() and not proven
    return [turn_stop(message, incomplete=incomplete, by_stop=not context.complete_messages)]


def leave_message(context: Context, reason: str, *, replaced: bool = False) -> list[Item]:
    """Close the current message and remember its items; another one takes its place.

    A ``replaced`` message is not finished yet: its successor may repeat its blocks.
    """
    memory = context.memory
    message = memory.message
    if message is None:
        return []
    items = _end_blocks(context, message, reason) if replaced else close_message(context, message, reason)
    memory.trace.add_text_of(message, context.excerpt)
    memory.before = Shown.of(message) or memory.before
    memory.message = None
    return items


def close_message(context: Context, message: Message, reason: str, *, succeeded: bool = False) -> list[Item]:
    """Say how everything ends that is still open, and finish the turn for the log."""
    items = _end_blocks(context, message, reason, succeeded=succeeded)
    former, message.former = message.former, None
    for over in (former, message):
        if over is None:
            continue
        if context.confirmed_by_messages:
            context.memory.called |= {mark_of_id(call.tool_id or "") for call in over.confirmed_calls()}
        if context.records:
            ids = context.ids
            context.add_finished(finished_turns(over, ids.turns, ids.prefix, context.issuer))
    return items


def _end_blocks(context: Context, message: Message, reason: str, *, succeeded: bool = False) -> list[Item]:
    """Say how everything ends that is still open. ``succeeded``: the run's result is a success."""
    items: list[Item] = []
    for block in message.surviving():
        if block.confirmed or block.left:
            continue
        if context.complete_messages and block.is_blank():
            items += withdraw_block(block)  # no complete message will ever hold it, and it has no visible content
            continue
        block.left = True
        items += uncover_settled(block)
        if not block.unseen:
            items.append(left_incomplete(block, block.settle_text(), message.failed or reason))
    if not message.over and (message.blocks or message.reason is not None):
        # A block that complete messages held in full is whole, even without its stop.
        proven = context.complete_messages and message.is_confirmed()
        if proven and succeeded and message.reason is None:
            message.stopped = False  # if it was stopped, it was called incomplete
        items += stop_turn(context, message, proven=proven and (succeeded or message.is_answered_with(set())))
    if context.transcribed and not message.over:
        shown = [block for block in message.surviving() if block.kind in {"text", "tool_use"} and not block.is_blank()]
        context.memory.shown += [ShownBlock.of(block) for block in shown]
    message.over = True
    return items
