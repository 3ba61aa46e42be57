"""The order of runs in a topic: within a session one run follows the other, although their answers may overlap.

A worker ends a run when a record of another run arrives, and knows repeated records of the last run only. So the
records of a run wait until the brokers have the end of the run before it.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Generic, TypeVar

from msgspec import Struct, field

from reknit.pipeline.serve.journal_format import InputRecord

T = TypeVar("T")


class _Session(Struct, Generic[T]):
    run: str
    waiting: deque[tuple[str, T]] = field(default_factory=deque)


class RunOrder(Generic[T]):
    """Decides which records can be sent. ``T`` is what the caller keeps of a record that waits."""

    def __init__(self) -> None:
        self._sessions: Final[dict[tuple[str, str], _Session[T]]] = {}
        self.waiting = 0

    def arrive(self, record: InputRecord, kept: T) -> bool:
        """Return True if a record can be sent now; otherwise it waits."""
        if not record.run:
            return True
        session = self._sessions.setdefault((record.topic, record.session), _Session(record.run))
        if session.run == record.run:
            return True
        session.waiting.append((record.run, kept))
        self.waiting += 1
        return False

    def end(self, record: InputRecord) -> list[T]:
        """Note that the brokers have the end of a run; return the records that can be sent now, in order."""
        key = record.topic, record.session
        session = self._sessions[key]
        if not session.waiting:
            del self._sessions[key]
            return []
        session.run = session.waiting[0][0]
        ready = [kept for run, kept in session.waiting if run == session.run]
        session.waiting = deque(each for each in session.waiting if each[0] != session.run)
        self.waiting -= len(ready)
        return ready
