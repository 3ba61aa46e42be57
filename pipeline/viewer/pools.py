"""Thread pools by kind of work, so that no page waits for a search.

A search may read as much as the index holds. So searches have one or two threads of their own, a search is stopped
after two seconds or when its browser disconnects, and few may wait for a thread. All other pages read rows in the order
of an index, in threads that no search occupies.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, ParamSpec, Protocol, TypeVar

from msgspec import Struct

from reknit.pipeline.errors import ReknitError
from reknit.pipeline.viewer.index import STOP, Stop, StoppedError

P = ParamSpec("P")
T = TypeVar("T")

# A search occupies a core while it runs. On a small machine one core is left to everything else.
SEARCH_THREADS: Final = 2 if (os.cpu_count() or 1) > 2 else 1
# A call may read this long. Each query of the benchmarks takes less than a tenth of it.
SECONDS: Final = 2.0


class BusyError(ReknitError):
    """The viewer cannot answer now: ``busy``, too many calls wait, or ``too_slow``."""

    fault = "caller"


class Run(Protocol):
    """Calls a function in a thread, as ``asyncio.to_thread`` does."""

    def __call__(self, function: Callable[P, T], /, *args: P.args, **named: P.kwargs) -> Awaitable[T]: ...


class Pool:
    """Threads for one kind of work.

    Args:
        name: the kind, as threads are named.
        threads: calls that run at the same time.
        waiting: calls that may wait for a thread.
    """

    def __init__(self, name: str, *, threads: int, waiting: int) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=f"viewer-{name}")
        self._most = threads + waiting
        self._calls = 0

    async def run(self, function: Callable[P, T], /, *args: P.args, **named: P.kwargs) -> T:
        """Call a function in one of the threads, and stop what it reads from the index when time is over.

        Where the caller is cancelled, so is the call; Python code that runs already is not stopped.

        Raises:
            BusyError: too many calls wait, or this one took too long.
        """
        if self._calls >= self._most:
            raise BusyError("busy", "Too many of these run at the moment. Try again in a few seconds.")
        loop, stop, context = asyncio.get_running_loop(), Stop(), contextvars.copy_context()
        context.run(STOP.set, stop)
        timers: list[asyncio.TimerHandle] = []

        def start_clock() -> None:
            timers.append(loop.call_later(SECONDS, stop.set))

        def call() -> T:
            # The time that a call waits for a thread does not count.
            loop.call_soon_threadsafe(start_clock)
            return function(*args, **named)

        self._calls += 1
        try:
            return await loop.run_in_executor(self._threads, partial(context.run, call))
        except StoppedError as error:
            words = f"This took longer than {SECONDS:g} seconds and was stopped. Ask for less."
            raise BusyError("too_slow", words) from error
        finally:
            self._calls -= 1
            stop.set()
            for timer in timers:
                timer.cancel()

    def close(self) -> None:
        """Let the threads end; calls that wait are dropped."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class Pools(Struct, frozen=True):
    """The pools of one viewer.

    Attributes:
        pages: reads that end after a page's rows.
        searches: reads whose conditions a visitor chose.
        work: computation: requests rebuilt, examples run.
        replays: comparisons of whole topics.
    """

    pages: Pool
    searches: Pool
    work: Pool
    replays: Pool

    def close(self) -> None:
        for pool in (self.pages, self.searches, self.work, self.replays):
            pool.close()


def pools() -> Pools:
    """New pools, whose threads start when they are needed first."""
    return Pools(
        pages=Pool("pages", threads=4, waiting=200),
        searches=Pool("searches", threads=SEARCH_THREADS, waiting=14),
        work=Pool("work", threads=2, waiting=14),
        replays=Pool("replays", threads=2, waiting=0),
    )
