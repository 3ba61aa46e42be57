"""The group's own offsets, which other tools read; a worker continues at the position in its changelog."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping

from aiokafka import TopicPartition

from reknit.pipeline.engine.runtime import log

# Offsets that arrive within this time after a commit share the next one.
_PAUSE_SECONDS = 0.1
# Pause before a commit that failed is repeated.
_AGAIN_SECONDS = 1.0
# Time limit for reading the group's offset while a partition opens; the offset is only compared.
_LOOK_SECONDS = 5.0


class OffsetCommits:
    """Commits the group's offsets in the background; ``commit`` handles several partitions at once.

    The authoritative position is in a partition's changelog, with its state. So no batch waits for these commits. All
    partitions share them, a few per second. A commit that fails is repeated with the newest offsets, since no later
    record may come: other tools would then see records that wait.
    """

    def __init__(
        self,
        commit: Callable[[Mapping[TopicPartition, int]], Awaitable[bool]],
        committed_by_hand: Callable[[TopicPartition], Awaitable[int | None]],
        last_seconds: float,
    ) -> None:
        """``commit`` returns False if it failed.

        ``last_seconds`` is the time limit of ``finish``: a stopped client does not answer.
        """
        self._commit = commit
        self._committed_by_hand = committed_by_hand
        self._last_seconds = last_seconds
        self._waiting: dict[TopicPartition, int] = {}
        self._sent: dict[TopicPartition, int] = {}  # those of the last commit
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def soon(self, partition: TopicPartition, offset: int) -> None:
        """Commit this next offset soon."""
        self._waiting[partition] = offset
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    def forget(self, partition: TopicPartition) -> None:
        """Drop the offset of a partition that moved away: its new owner commits newer ones."""
        for offsets in (self._waiting, self._sent):
            offsets.pop(partition, None)

    async def name_moved(self, partition: TopicPartition, position: int) -> None:
        """Log that the group's offset was moved manually; the position in the changelog counts."""
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                moved = await self._committed_by_hand(partition)
        except TimeoutError:
            log.info("%s partition %d: the group's offset was not read in time", partition.topic, partition.partition)
            return
        if moved is not None and moved != position:
            log.warning(
                "%s partition %d: the group's offset was moved by hand to %d, which changes nothing: the worker "
                "continues at %d, the position of its state. To process records again, start a pipeline of its own, "
                "with another --prefix.",
                *(partition.topic, partition.partition, moved, position),
            )

    async def finish(self) -> None:
        """Commit waiting offsets within ``last_seconds``; the rest is given up."""
        if self._task is None:
            return
        self._hurry.set()
        await asyncio.wait([self._task], timeout=self._last_seconds)
        self._task.cancel()
        self._hurry.clear()

    async def _run(self) -> None:
        while self._waiting:
            self._sent, self._waiting = self._waiting, {}
            if await self._commit(dict(self._sent)):
                seconds = _PAUSE_SECONDS
            elif self._hurry.is_set():
                return
            else:
                self._waiting = self._sent | self._waiting
                seconds = _AGAIN_SECONDS
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), seconds)
