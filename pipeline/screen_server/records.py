"""The items of a session, read from the index."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from msgspec import structs

from reknit.pipeline.screen_server.formats import PRODUCER
from reknit.pipeline.viewer.index import Reader, timeline
from reknit.pipeline.viewer.index.entries import Entry
from reknit.pipeline.viewer.index.values import Values
from reknit.pipeline.viewer.live import NOWHERE, Position

# Records of a session that are read at most; of a longer one the last.
MOST_RECORDS: Final = 200_000


class Records:
    """Reads items.

    Args:
        reader: the index.
        values: reads values that are too large for the index.
    """

    def __init__(self, reader: Reader, values: Values) -> None:
        self._reader, self._values = reader, values

    async def all(self, session: str) -> list[Entry]:
        """Return all items of a session, in the order of their log."""
        return await self._with_values(await asyncio.to_thread(_all, self._reader, session))

    async def after(self, session: str, position: Position) -> list[Entry]:
        """Return the items after a position, with all records of the blocks that they belong to.

        The index has the pieces of an ended block as one record, at the place of the first. So a client that has some
        of the pieces needs that record too, although it is before the position.
        """
        return await self._with_values(await asyncio.to_thread(_after, self._reader, session, position))

    async def _with_values(self, entries: Sequence[Entry]) -> list[Entry]:
        wanting = [entry for entry in entries if entry.value is None]
        values = iter(await self._values.read_many(wanting) if wanting else ())
        return [
            entry if entry.value is not None else structs.replace(entry, value=next(values).value) for entry in entries
        ]


def position_of(entry: Entry) -> Position:
    """Return the partition and the offset of a record."""
    return entry.partition, entry.offset


def _all(reader: Reader, session: str) -> list[Entry]:
    with reader.consistent():
        items = timeline.items(reader, session, limit=MOST_RECORDS)
        turns = timeline.turns_by(reader, session, PRODUCER)
    return sorted([*turns, *items], key=lambda entry: entry.time_ms) if turns else items


def _after(reader: Reader, session: str, position: Position) -> list[Entry]:
    with reader.consistent():
        items = timeline.items(reader, session, limit=MOST_RECORDS)
        found = [entry for entry in items if position_of(entry) > position]
        touched = sorted({entry.item_id for entry in found if entry.item_id})
        if not touched or position == NOWHERE:
            return found
        whole = timeline.of_items(reader, session, touched)
    by_position = {position_of(entry): entry for entry in (*whole, *found)}
    return [by_position[each] for each in sorted(by_position)]
