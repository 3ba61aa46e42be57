"""Items with neighbouring deltas joined."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from reknit.topics.items import Item, ItemDelta


def joined(items: Sequence[Item]) -> list[Item]:
    """Items with neighbouring deltas of one item made one; what they add up to stays the same."""
    found: list[Item] = []
    run: list[ItemDelta] = []
    for item in items:
        if type(item) is ItemDelta and item.raw is msgspec.UNSET:
            if run and not _goes_on(run[-1], item):
                found.append(_as_one(run))
                run = []
            run.append(item)
            continue
        if run:
            found.append(_as_one(run))
            run = []
        found.append(item)
    if run:
        found.append(_as_one(run))
    return found


def _goes_on(before: ItemDelta, item: ItemDelta) -> bool:
    return (
        before.item_id == item.item_id
        and before.delta_type == item.delta_type
        and item.at == before.at + len(before.content)
    )


def _as_one(run: list[ItemDelta]) -> ItemDelta:
    if len(run) == 1:
        return run[0]
    first = run[0]
    content = "".join([item.content for item in run])
    return ItemDelta(item_id=first.item_id, delta_type=first.delta_type, content=content, at=first.at)
