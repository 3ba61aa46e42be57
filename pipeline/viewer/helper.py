"""A process beside the viewer, for work on texts that anybody pasted: what takes too long is ended with its process.

In a thread such work could not be ended, and every other page would wait for its turns of the interpreter.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from pipeline.errors import InputError, InternalError, ReknitError

T = TypeVar("T")

# A fork would take the locks of this process's other threads with it.
_PROCESSES = multiprocessing.get_context("spawn")
# Pieces of work that wait for the one under way; of somebody who types only the last one matters.
_MOST_WAITING = 8
# What the start of a process takes on a busy machine, which is not the work's own time.
_START_SECONDS = 60.0


class Helper:
    """Does one piece of work at a time, each in at most so many seconds. Its process starts when it is first needed."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        # Waits for the process, so that nobody else does; it is also the queue.
        self._thread = ThreadPoolExecutor(1, "viewer-helper")
        self._waiting = 0
        self._process: BaseProcess | None = None
        self._connection: Connection[Any, Any] | None = None

    async def run(self, work: Callable[..., T], *arguments: object) -> T:
        """What ``work``, a function of a module, gives for these arguments.

        Raises:
            InputError: ``too_long`` or ``busy``.
            ReknitError: whatever the work raises.
        """
        if self._waiting >= _MOST_WAITING:
            raise InputError("busy", "too much is waiting already; try again in a moment")
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            given, error = await loop.run_in_executor(self._thread, self._ask, work, arguments)
        finally:
            self._waiting -= 1
        if error is not None:
            raise error
        found: T = given
        return found

    def stop(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._end()

    def _ask(self, work: Callable[..., Any], arguments: tuple[object, ...]) -> tuple[Any, ReknitError | None]:
        connection = self._connected()
        try:
            connection.send((work, arguments))
            if connection.poll(self._seconds):
                answer: tuple[Any, ReknitError | None] = connection.recv()
                return answer
        except (EOFError, OSError):
            self._end()
            return None, InternalError("helper_ended", "the process that worked on it ended; try again")
        self._end()
        return None, InputError("too_long", f"it was given up after {self._seconds:g} seconds")

    def _connected(self) -> Connection[Any, Any]:
        if self._connection is None or self._process is None or not self._process.is_alive():
            self._end()
            self._connection, theirs = _PROCESSES.Pipe()
            self._process = _PROCESSES.Process(target=_work, args=(theirs,), name="viewer-helper", daemon=True)
            self._process.start()
            theirs.close()
            if self._connection.poll(_START_SECONDS):
                self._connection.recv()
        return self._connection

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _work(connection: Connection[Any, Any]) -> None:
    """Answer until nobody asks any more; the first word says that the process is there."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the viewer ends it
    connection.send("ready")
    while True:
        try:
            work, arguments = connection.recv()
        except EOFError:
            return
        connection.send(_answer(work, arguments))


def _answer(work: Callable[..., object], arguments: tuple[object, ...]) -> tuple[object, ReknitError | None]:
    try:
        return work(*arguments), None
    except ReknitError as error:
        return None, error
    except Exception as error:  # noqa: BLE001  a traceback on stderr would hold what was pasted
        return None, InternalError("helper_failed", f"it ended with {type(error).__name__}, a fault of Reknit")
