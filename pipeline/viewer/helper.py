"""A process beside the viewer, for work on texts that anybody pasted: what takes too long is ended with its process.

In a thread such work could not be ended, and every other page would wait for its turns of the interpreter.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Generic, ParamSpec, TypeAlias, TypeVar

from pipeline.errors import InputError, InternalError, ReknitError

P = ParamSpec("P")
T = TypeVar("T")
Answer: TypeAlias = tuple[Any, ReknitError | None]

# Not multiprocessing's own processes: a fork takes over locks that other threads hold, and what it spawns runs the
# program's main module again.
_PROGRAM = f"from {__name__} import answer; answer()"
# Pieces of work that wait for the one under way; of somebody who types only the last one matters.
_MOST_WAITING = 8
# What the start of a process takes on a busy machine, which is not the work's own time.
_START_SECONDS = 60.0


class Helper(Generic[P, T]):
    """Does ``work``, a function of a module, once at a time, and each time in at most so many seconds.

    Its process starts with ``warm``, or when it is first needed.
    """

    def __init__(self, work: Callable[P, T], seconds: float) -> None:
        self._work, self._seconds = work, seconds
        # Waits for the process, so that nobody else does; it is also the queue.
        self._thread = ThreadPoolExecutor(1, "viewer-helper")
        self._waiting = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection[Any, Any] | None = None

    def warm(self) -> None:
        self._thread.submit(self._connected)

    async def run(self, *arguments: P.args, **named: P.kwargs) -> T:
        """What the work gives for these arguments.

        Raises:
            InputError: ``too_long`` or ``busy``.
            ReknitError: whatever the work raises.
        """
        if self._waiting >= _MOST_WAITING:
            raise InputError("busy", "too much is waiting already; try again in a moment")
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            given, error = await loop.run_in_executor(self._thread, self._ask, (arguments, named))
        finally:
            self._waiting -= 1
        if error is not None:
            raise error
        found: T = given
        return found

    def stop(self) -> None:
        """End the process, and what it works on; it starts again when it is needed."""
        process = self._process
        if process is not None:
            process.kill()
            process.wait()

    def _ask(self, given: object) -> Answer:
        try:
            connection = self._connected()
            connection.send(given)
            if connection.poll(self._seconds):
                answer: Answer = connection.recv()
                return answer
        except (EOFError, OSError):
            self._end()
            return None, InternalError("helper_ended", "the process that worked on it ended; try again")
        self._end()
        return None, InputError("too_long", f"it was given up after {self._seconds:g} seconds")

    def _connected(self) -> Connection[Any, Any]:
        if self._connection is None or self._process is None or self._process.poll() is not None:
            self._end()
            self._connection, theirs = Pipe()
            with theirs:
                place = theirs.fileno()
                command = [sys.executable, "-c", _PROGRAM, str(place)]
                self._process = subprocess.Popen(  # noqa: S603  what runs is this module
                    command, stdin=subprocess.DEVNULL, pass_fds=[place]
                )
            self._connection.send(self._work)
            if self._connection.poll(_START_SECONDS):
                self._connection.recv()
        return self._connection

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def answer() -> None:
    """What the process does until nobody asks any more; its first word says that everything is loaded."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the viewer ends it
    asked: Connection[Any, Any] = Connection(int(sys.argv[1]))
    try:
        work = asked.recv()
        asked.send("ready")
        while True:
            arguments, named = asked.recv()
            asked.send(_answered(work, arguments, named))
    except EOFError:
        return


def _answered(work: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> Answer:
    try:
        return work(*arguments, **named), None
    except ReknitError as error:
        return None, error
    except Exception as error:  # noqa: BLE001  a traceback on stderr would hold what was pasted
        return None, InternalError("helper_failed", f"it ended with {type(error).__name__}, a fault of Reknit")
