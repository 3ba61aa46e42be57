"""Running several things at once, where one of them decides."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def alongside(work: Coroutine[Any, Any, None], *beside: Coroutine[Any, Any, None], seconds: float | None) -> None:
    """Run ``work`` to its end with others beside it, which are then cancelled.

    An error of any of them ends all. ``seconds`` None: without a bound.

    Raises:
        TimeoutError: the time is over.
    """
    decisive = asyncio.create_task(work)
    running = {decisive, *map(asyncio.create_task, beside)}
    every = list(running)
    try:
        async with asyncio.timeout(seconds):
            while decisive in running:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
    finally:
        for task in every:
            task.cancel()
        await asyncio.gather(*every, return_exceptions=True)
