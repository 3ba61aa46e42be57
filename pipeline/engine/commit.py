"""The contents of one commit: outputs, state and the next source offset, and the interface of its writers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from reknit.pipeline.engine.lease import NO_LEASE, Lease
from reknit.pipeline.stages.base import STATE_FORMATS, Output
from reknit.topics.headers import Headers
from reknit.topics.positions import UNMARKED, PositionMark, position_row

Row = tuple[bytes | None, bytes | None, Headers]


class Batch(Struct, frozen=True):
    """The contents of one commit. ``position`` is the next source offset; topics are contract names.

    ``has_due``: records kept in state are still due after it. ``start`` is the group's offset before it, None if that
    is unknown. ``lease`` is that of the partition's owner: a writer without a fence needs it.
    """

    outputs: Sequence[Output]
    changes: dict[bytes, bytes | None]
    position: int
    state_format: int = STATE_FORMATS[0]
    has_due: bool = False
    mark: PositionMark = UNMARKED
    start: int | None = None
    lease: Lease = NO_LEASE

    @property
    def group_offset(self) -> int:
        """The offset for the group."""
        return group_offset(self.position, has_due=self.has_due)

    def state(self) -> list[Row]:
        """The records of the changelog."""
        changes: list[Row] = [(key, value, ()) for key, value in self.changes.items()]
        return [*changes, position_row(self.position, self.state_format, self.mark)]


def group_offset(position: int, *, has_due: bool) -> int:
    """Return the offset to commit for the group: one less than the position while earlier records are due.

    So the lag is not 0, and a replay that ends at the position does not end yet.
    """
    return max(0, position - 1) if has_due else position


class Writer(Protocol):
    """Writes a partition's batches durably, one at a time."""

    async def open(self) -> None:
        """Take the partition over from its former owner."""

    async def write(self, batch: Batch) -> int | None:
        """Make outputs, state and position durable; if it raises, the position has not moved.

        Returns the changelog's offset after the state; None if other writers may have written before it.
        """

    async def close(self) -> None:
        """Close connections. The next owner settles an open transaction."""
