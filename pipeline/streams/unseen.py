"""Thinking of which nothing but a signature comes: it goes into the log, and no item tells of it.

Whether there will be words is not known when it starts, so its item starts with its first word. It keeps its place on
the screen: once another block starts, what may still grow gets its item, and words that come for thinking that has
stopped are a block of their own. This is for sources whose blocks are proved by their stops.
"""

from __future__ import annotations

from pipeline.streams.attempts import Block, Message
from pipeline.streams.events import BlockStarted, WholeBlock
from pipeline.streams.render import streamed_start
from topics.items import Item, ItemCompleted


def has_nothing_to_show(started: BlockStarted | WholeBlock) -> bool:
    """Whether a block has nothing yet that an item could show."""
    return started.kind == "thinking" and not started.text and not getattr(started, "extras", None)


def uncovered(block: Block) -> list[Item]:
    """Start the item of thinking of which nothing was shown so far."""
    if not block.unseen:
        return []
    block.unseen = False
    return [streamed_start(block.item_id, BlockStarted(index=block.index, kind=block.kind))]


def uncovered_growth(message: Message) -> list[Item]:
    """Start the item of the newest block, if it may still get words: another block starts behind it."""
    newest = message.blocks[-1] if message.blocks else None
    if newest is None or newest.stopped or newest.confirmed or newest.withdrawn:
        return []
    return uncovered(newest)


def ended(block: Block, item: ItemCompleted) -> list[Item]:
    """The end of a block's item. One that has none gets it now, if more is known of it than a signature."""
    started = uncovered(block) if block.unseen and block.noted() else []
    return [] if block.unseen else [*started, item]
