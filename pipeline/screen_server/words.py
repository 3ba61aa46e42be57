"""The users' words, written as turns: each message once per process."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any, Final, Protocol

from reknit.pipeline.client import Trace

# Messages that are remembered. The index has a message within seconds.
_MOST: Final = 10_000


class Appends(Protocol):
    """Appends turns, as ``reknit.client.Turns`` does."""

    async def append(self, session: str, message: dict[str, Any], *, record_id: str, trace: Trace | None) -> object:
        """Append a message; return once the brokers have it."""


class Words:
    """Writes messages of users.

    A client that connects again sends its message again, perhaps before the index has it. Another process may still
    write it a second time; the worker drops that record, because it has the same id.
    """

    def __init__(self, turns: Appends) -> None:
        self._turns = turns
        self._written: OrderedDict[tuple[str, str], asyncio.Task[object]] = OrderedDict()

    async def write(
        self, session: str, message_id: str, message: dict[str, Any], *, trace: Trace | None = None
    ) -> None:
        """Write a message; return once the brokers have it. A client that disconnects does not stop this.

        ``trace`` is the headers of its request.

        Raises:
            BrokerError: as ``reknit.client.Turns.append``. The same message can be written again.
        """
        key = session, message_id
        task = self._written.get(key)
        if task is None or _has_failed(task):
            task = asyncio.create_task(self._append(session, message_id, message, trace))
            self._written[key] = task
            while len(self._written) > _MOST:
                self._written.popitem(last=False)
        await asyncio.shield(task)

    async def _append(self, session: str, message_id: str, message: dict[str, Any], trace: Trace | None) -> object:
        return await self._turns.append(session, message, record_id=message_id, trace=trace)


def _has_failed(task: asyncio.Task[object]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
