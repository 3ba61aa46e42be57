"""The event loop of the group's client. A worker's client has one in a thread of its own.

A slice of records can keep the worker's loop busy for half a minute. If the client were in that loop, it would send no
heartbeat meanwhile, the group would expel the worker, and the next owner would begin the same slice: it was seen never
to end with two workers. The interpreter lets the thread run every 5 ms.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from aiokafka.errors import ConsumerStoppedError, KafkaConnectionError

from reknit.pipeline.engine.connections import Loop, is_cancelled

T = TypeVar("T")


class MemberLoop(Protocol):
    """The worker's loop calls ``start``, ``call`` and ``stop``; the loop of the client calls ``call_back``."""

    async def start(self) -> None:
        """Start the loop, unless it runs."""

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Await ``work`` in the loop. Cancelling this cancels that.

        Raises:
            ConsumerStoppedError: the loop has ended.
            KafkaConnectionError: the client cancelled ``work`` by itself. A ``CancelledError`` would end the caller's
                task without a trace.
        """

    async def call_back(self, work: Coroutine[Any, Any, T]) -> T:
        """Await ``work`` in the worker's loop."""

    def soon(self, callback: Callable[[], object]) -> None:
        """Call a function in the loop soon; nothing happens if it has ended."""

    async def stop(self, seconds: float) -> None:
        """Cancel the loop's tasks and end it; return after ``seconds`` at most."""


class _Thread(threading.Thread):
    """A thread with a loop. mode prints the tasks of ``loop`` on SIGUSR1."""

    loop: asyncio.AbstractEventLoop | None = None


class ThreadLoop:
    def __init__(self) -> None:
        self._worker = asyncio.get_running_loop()
        self._started: asyncio.Future[None] = self._worker.create_future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ends: asyncio.Event | None = None
        self._has_ended = False
        self._thread = _Thread(target=self._run, name="inputs", daemon=True)

    async def start(self) -> None:
        if self._loop is None:
            self._thread.start()
            await self._started

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=Loop) as runner:
            runner.run(self._live())

    async def _live(self) -> None:
        self._loop, self._ends = asyncio.get_running_loop(), asyncio.Event()
        self._thread.loop = self._loop
        if not self._has_ended:
            self._worker.call_soon_threadsafe(self._started.set_result, None)
            await self._ends.wait()

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None or self._has_ended:
            work.close()
            raise ConsumerStoppedError
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            if self._has_ended:
                raise ConsumerStoppedError from None
            raise KafkaConnectionError("the client cancelled a call by itself") from None

    async def call_back(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._worker))

    def soon(self, callback: Callable[[], object]) -> None:
        if self._loop is not None and not self._has_ended:
            self._loop.call_soon_threadsafe(callback)

    async def stop(self, seconds: float) -> None:
        self._has_ended = True
        if self._loop is not None and self._ends is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed already
                self._loop.call_soon_threadsafe(self._ends.set)
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, seconds)
