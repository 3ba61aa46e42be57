"""The engine's seam to its group: membership, reads of the inputs, and offsets.

``transport.SpanThread`` implements it, with a thread and a loop of its own. A simulation
(``tests/simulation``) has an implementation on the worker's loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from aiokafka import TopicPartition

from reknit.pipeline.engine.batches import Span
from reknit.topics.positions import GroupPosition


class Member(Protocol):
    """A worker's membership of its group, and its reads of the inputs.

    Methods are called from the worker's event loop. An implementation may have a loop of its own.
    """

    in_group: asyncio.Event

    def poke(self) -> None:
        """End the poll under way."""

    async def spans(self, wanted: set[TopicPartition], seconds: float) -> Mapping[TopicPartition, Span]:
        """Return buffered spans of the wanted partitions; wait up to ``seconds`` for records or a poke."""

    async def bounds(self, tp: TopicPartition) -> tuple[int, int]:
        """Return a partition's first offset, and the offset after the last one that a reader may see."""

    async def is_ours(self, tp: TopicPartition, position: int) -> bool | None:
        """Ask the group if this worker owns the partition now; None if that is unknown."""

    async def commit_positions(self, positions: Mapping[TopicPartition, int]) -> bool:
        """Commit the group's offsets, after any rebalance under way; return False if the group did not accept them."""

    async def committed_by_hand(self, tp: TopicPartition) -> int | None:
        """Return the group's offset of a partition if no worker committed it."""

    async def committed_by_worker(self, tp: TopicPartition) -> GroupPosition | None:
        """Return the position that a worker committed as the group's offset."""
