"""The group's offsets: for everybody who asks how far it is, and for nobody who works.

The position that counts stands in a partition's changelog, beside the state that it belongs to. So no batch waits for
these commits, and one that is refused is left to the next. All partitions share them, a few a second.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping

from faust.types import TP

# What comes within so long after a commit goes into the next one together.
_PAUSE_SECONDS = 0.1
# How long an end waits for the last commit: a client that has stopped answers no more.
_LAST_COMMIT_SECONDS = 1.0


class OffsetCommits:
    """Commits what it is told to, in the background; ``commit`` does it for several partitions at once."""

    def __init__(self, commit: Callable[[Mapping[TP, int]], Awaitable[object]]) -> None:
        self._commit = commit
        self._waiting: dict[TP, int] = {}
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def soon(self, partition: TP, offset: int) -> None:
        """Commit this next offset within a moment."""
        self._waiting[partition] = offset
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    async def finish(self) -> None:
        """Commit what waits now, and wait for it a moment at most."""
        if self._task is None:
            return
        self._hurry.set()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._task), _LAST_COMMIT_SECONDS)
        self._hurry.clear()

    async def _run(self) -> None:
        while self._waiting:
            offsets, self._waiting = self._waiting, {}
            await self._commit(offsets)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), _PAUSE_SECONDS)
