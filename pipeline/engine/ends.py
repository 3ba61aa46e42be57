"""The end of a worker: by a signal, a failure, or because its work is done; each within a time limit."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from reknit.pipeline.engine.runtime import log
from reknit.pipeline.engine.services import EXIT_FAILED, Deadman

if TYPE_CHECKING:
    from reknit.pipeline.engine.runtime import Runtime

EXIT_CLEAN = 0
# An operator has to act.
EXIT_UNUSABLE = 2

# After a fence or a stall the client may not answer any more, and the partitions wait for the end of this worker.
FAILED_STOP_SECONDS = 3.0


class Ends:
    """Notes that a worker has to end, and makes the deadman limit the time of the stop."""

    def __init__(self, runtime: Runtime, deadman: Deadman) -> None:
        self._runtime = runtime
        self._deadman = deadman
        self._begun = asyncio.Event()
        self._has_started = False

    def install(self) -> None:
        """Handle the signals that end a worker; called in its event loop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)

    def on_started(self) -> None:
        """Note that the checks before the start are done: from now on a stop has steps, and is logged."""
        self._has_started = True

    @property
    def begun(self) -> bool:
        """True if the worker has to stop."""
        return self._begun.is_set()

    @property
    def status(self) -> int:
        """The exit status by the worker's failure."""
        failure = self._runtime.failure
        if failure is None:
            return EXIT_CLEAN
        return EXIT_UNUSABLE if failure.fault == "caller" else EXIT_FAILED

    def _on_signal(self, number: signal.Signals) -> None:
        if self._has_started and self._runtime.failure is None:
            log.info("stopping: %s", number.name)
        self._begin(self._runtime.tuning.stop_seconds)

    def on_done(self) -> None:
        """End the worker since everything is done."""
        log.info("all ends are reached")
        self._begin(self._runtime.tuning.stop_seconds)

    def on_failure(self) -> None:
        """Stop after a failure: leave the group if that is quick; the next owner settles open transactions."""
        self._deadman.status = self.status
        self._begin(FAILED_STOP_SECONDS)

    def _begin(self, seconds: float) -> None:
        self._deadman.must_end_within(seconds)
        self._begun.set()

    async def unless_begun(self, work: Coroutine[Any, Any, None]) -> bool:
        """Await ``work``; return False if the end began before it was done, and cancel it."""
        task, end = asyncio.ensure_future(work), asyncio.ensure_future(self._begun.wait())
        try:
            await asyncio.wait([task, end], return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
                return not self.begun
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return False
        finally:
            task.cancel()
            end.cancel()
