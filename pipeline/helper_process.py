"""A process of its own for work that may take too long: it is ended with its work, and started again when needed.

A thread cannot be ended, and all other work of the program would wait for the interpreter.
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
from typing import Any, TypeAlias, TypeVar

from reknit.pipeline.errors import InputError, InternalError, ReknitError, error_name

T = TypeVar("T")
Answer: TypeAlias = tuple[Any, ReknitError | None]

# Not multiprocessing's own processes: a fork takes over locks that other threads hold, and what it spawns runs the
# program's main module again.
_PROGRAM = f"from {__name__} import answer; answer()"
# The number of jobs that wait for the current one; of one user's typing only the last matters.
_MOST_WAITING = 8
# The time limit for starting a process on a busy machine, in addition to that of the work.
_START_SECONDS = 60.0


class HelperProcess:
    """Calls functions of modules in another process, one call at a time.

    The process starts with ``warm``, or when it is first needed.

    Args:
        first: a function of the first call; the process imports its module at the start.
    """

    def __init__(self, first: Callable[..., Any]) -> None:
        self._first = first
        # Waits for the process in place of the event loop; it is also the queue.
        self._thread = ThreadPoolExecutor(1, "helper-process")
        self._waiting = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection[Any, Any] | None = None

    def warm(self) -> None:
        self._thread.submit(self._connected)

    async def run(self, seconds: float | None, work: Callable[..., T], *arguments: object) -> T:
        """Return the result of the work.

        Args:
            seconds: its time limit, without the time that it waits for other calls; None for none.
            work: a function of a module.
            arguments: of the function.

        Raises:
            InputError: ``too_long`` or ``busy``.
            InternalError: ``helper_ended``: the process ended; ``helper_failed``: the work raised another error.
            ReknitError: any error of the work.
        """
        if self._waiting >= _MOST_WAITING:
            raise InputError("busy", "too much is waiting already; try again in a moment")
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            given, error = await loop.run_in_executor(self._thread, self._ask, seconds, (work, arguments))
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

    def _ask(self, seconds: float | None, job: object) -> Answer:
        try:
            connection = self._connected()
            connection.send(job)
            if connection.poll(seconds):
                answer: Answer = connection.recv()
                return answer
        except (EOFError, OSError):
            self._end()
            return None, InternalError("helper_ended", "the process that worked on it ended; try again")
        self._end()
        return None, InputError("too_long", f"it was given up after {seconds or 0:g} seconds")

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
            self._connection.send(self._first)
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
    """Serve jobs until the connection ends; the first message says that everything is loaded."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the program that started it ends it
    asked: Connection[Any, Any] = Connection(int(sys.argv[1]))
    try:
        asked.recv()
        asked.send("ready")
        while True:
            asked.send(_answered(*asked.recv()))
    except EOFError:
        return


def _answered(work: Callable[..., Any], arguments: tuple[Any, ...]) -> Answer:
    try:
        return work(*arguments), None
    except ReknitError as error:
        return None, error
    except Exception as error:  # noqa: BLE001  a traceback on stderr would hold what was pasted
        return None, InternalError("helper_failed", f"it ended with {error_name(error)}, a fault of Reknit")
