"""Calls of tools that accept no object: the item gets the value that the model put into an object.

The turn for the log keeps the object, because a history holds such a value in it too. Deltas show the object as it
streams; the completed item replaces them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Raw, structs

from reknit.pipeline.fixes import make
from reknit.pipeline.history.wrapped_inputs import unwrapped_input
from reknit.pipeline.streams.recovery.memory import Context
from reknit.topics.items import Item, ItemCompleted, ItemStarted


def streamed_inputs(context: Context) -> dict[str, str]:
    """The inputs of the open calls of wrapped tools so far, by item id. A confirmed block no longer has it."""
    message = context.memory.message
    blocks = () if message is None else message.blocks
    return {block.item_id: block.text() for block in blocks if block.name in context.wrapped and not block.confirmed}


def with_values(items: Sequence[Item], streamed: Mapping[str, str], context: Context) -> list[Item]:
    """The items, with the values of wrapped calls; ``streamed`` are their inputs before. A complete call gets a fix."""
    inputs = dict(streamed)
    found: list[Item] = []
    for item in items:
        if isinstance(item, ItemStarted) and full_name(item) in context.wrapped:
            inputs[item.item_id] = ""
            found.append(_unwrapped_start(item))
        elif isinstance(item, ItemCompleted) and item.item_id in inputs and not item.incomplete:
            found.append(_unwrapped_end(item, inputs[item.item_id], context))
        else:
            found.append(item)
    return found


def full_name(item: ItemStarted) -> str:
    """A tool's name as the model calls it."""
    return f"{item.tool_source}__{item.tool_server}__{item.name}" if item.tool_source else item.name


def _unwrapped_start(item: ItemStarted) -> ItemStarted:
    value = unwrapped_input(item.input) if isinstance(item.input, Raw) else None
    return item if value is None else structs.replace(item, input=value)


def _unwrapped_end(item: ItemCompleted, streamed: str, context: Context) -> ItemCompleted:
    given = item.input if isinstance(item.input, Raw) else Raw(streamed.encode("utf-8", "replace"))
    value = unwrapped_input(given)
    if value is None:
        return item
    if context.records:
        context.memory.fixes.append(
            make("call_unwrapped", item.item_id, before=given, after=value, target=context.issuer)
        )
    return structs.replace(item, input=value)
