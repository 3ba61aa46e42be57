"""Thinking of which no word has come: it has no item until one does, and what is only a signature never gets one.

A provider seals its reasoning, and some send nothing else of it. That goes into the log, for the provider wants it
back; on a screen it would be an empty box. Agent programs, which tell everything twice, show what they show.
"""

from __future__ import annotations

from msgspec import UNSET

from pipeline.streams.events import BlockStarted, WholeBlock
from pipeline.streams.recovery.attempts import Block, Message
from pipeline.streams.recovery.render import streamed_start
from topics.items import Item


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
