"""The operator's own check of requests: a Python function that decides about the access to a session.

The function is the operator's, so it may raise, hang, or return something else. All of these deny. A function without
``async`` runs in a thread of its own: it cannot be stopped, but it delays no other request.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping
from importlib import import_module
from typing import Any, Final, Literal, TypeAlias, get_args

from reknit.pipeline.errors import InputError, error_name

_log = logging.getLogger("reknit.screens")

Decision: TypeAlias = Literal["read", "write", "deny"]
Function: TypeAlias = Callable[[Mapping[str, str], str], Decision | Awaitable[Decision]]

# How long a function may take.
CHECK_SECONDS: Final = 5.0
# Threads in which functions run at the same time. Where all of them hang, further requests are denied.
MOST_THREADS: Final = 32


class CheckExitError(Exception):
    """The function tried to end the process."""


class UnknownDecisionError(Exception):
    """The function returned something else than a decision."""


class Check:
    """Asks the operator's function.

    Args:
        function: gets the headers of a request and the id of a session, and returns ``read``, ``write`` (which includes
            ``read``) or ``deny``.
        seconds: how long it may take.

    Attributes:
        failures: how often it raised, took too long, or returned something else.
    """

    def __init__(self, function: Function, seconds: float = CHECK_SECONDS) -> None:
        self._function = function
        self._is_async = _is_async(function)
        self._seconds = seconds
        self._threads = asyncio.Semaphore(MOST_THREADS)
        self.failures = 0

    async def decide(self, headers: Mapping[str, str], session: str) -> Decision:
        """Return the decision about a session; ``deny`` where the function fails."""
        # A task, because a function may catch its cancellation and continue.
        task = asyncio.create_task(self._answer(headers, session))
        task.add_done_callback(_retrieve)
        try:
            done, _ = await asyncio.wait([task], timeout=self._seconds)
            if done and not task.cancelled():
                return _decision(task.result())
            self._fail(asyncio.CancelledError() if done else TimeoutError())
        except Exception as error:  # noqa: BLE001  the function is not part of this program
            self._fail(error)
        finally:
            task.cancel()
        return "deny"

    async def _answer(self, headers: Mapping[str, str], session: str) -> object:
        try:
            if self._is_async:
                found: Any = self._function(headers, session)
            else:
                found = await self._in_thread(headers, session)
            return await found if inspect.isawaitable(found) else found
        except (SystemExit, KeyboardInterrupt) as error:
            raise CheckExitError from error

    async def _in_thread(self, headers: Mapping[str, str], session: str) -> object:
        await self._threads.acquire()
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[object] = loop.create_future()

        def end(error: BaseException | None, found: object) -> None:
            self._threads.release()
            if ended.done():
                return
            if error is None:
                ended.set_result(found)
            else:
                ended.set_exception(error if isinstance(error, Exception) else CheckExitError())

        def run() -> None:
            error: BaseException | None = None
            found: object = None
            try:
                found = self._function(headers, session)
            except StopIteration as raised:
                error = RuntimeError(error_name(raised))  # a future cannot hold this one
            except BaseException as raised:  # noqa: BLE001  passed on
                error = raised
            if not loop.is_closed():
                loop.call_soon_threadsafe(end, error, found)

        # Not a thread of a pool, for which the interpreter waits at its end.
        threading.Thread(target=run, name="reknit-check", daemon=True).start()
        return await ended

    def _fail(self, error: BaseException) -> None:
        self.failures += 1
        # Only the name: the text may quote a header.
        _log.warning("the check failed, so access is denied: %s (failure %d)", error_name(error), self.failures)


def load_check(name: str) -> Function:
    """Return the function that ``module:function`` names.

    Raises:
        InputError: ``check_unknown``, for a module that cannot be imported, or a name that is no function.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise InputError("check_unknown", f"{name!r} does not name a function as module:function")
    try:
        found: Any = import_module(module)
        for each in attribute.split("."):
            found = getattr(found, each)
    except Exception as error:
        raise InputError("check_unknown", f"cannot import {name}: {error_name(error)}: {error}") from error
    if not callable(found):
        raise InputError("check_unknown", f"{name} is not a function")
    function: Function = found
    return function


def _is_async(function: Function) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004  an object's


def _decision(found: object) -> Decision:
    for each in get_args(Decision):
        if found == each:
            decision: Decision = each
            return decision
    raise UnknownDecisionError


def _retrieve(task: asyncio.Task[object]) -> None:
    """Take a late error, which asyncio would log with its text."""
    if not task.cancelled():
        task.exception()
