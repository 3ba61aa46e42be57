"""Sizes of records and batches that topics have refused.

A broker refuses a batch that is larger, as compressed, than the topic's ``max.message.bytes``, or than its
``segment.bytes``. It does not report the limit, and reading the setting needs a right that a worker does not have. So a
refused batch of several records is divided, and a refused record shows that its size is above the limit. This knowledge
expires, because an operator may raise the limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from reknit.pipeline.errors import ReknitError

# Each check whether a limit was raised costs a transaction.
_REMEMBERED_SECONDS = 60.0


class TopicLimits:
    """The limits of a worker's topics, by name without prefix. Sizes are in bytes, as compressed."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._records: dict[str, tuple[int, float]] = {}
        self._batches: dict[str, tuple[int, float]] = {}

    def note_refused(self, topic: str, size: int, records: int) -> None:
        """Remember a refused batch with its number of records."""
        until = self._clock() + _REMEMBERED_SECONDS
        if records > 1:
            self._batches[topic] = (size // 2, until)
        else:
            self._records[topic] = (min(size, self.refused_record(topic) or size), until)

    def refused_record(self, topic: str) -> int | None:
        """Return the size of the smallest refused record."""
        return self._known(self._records, topic)

    def batch_bytes(self, topic: str) -> int | None:
        """Return the most bytes of a batch with several records."""
        return self._known(self._batches, topic)

    def _known(self, limits: dict[str, tuple[int, float]], topic: str) -> int | None:
        size, until = limits.get(topic, (0, 0.0))
        return size if self._clock() < until else None


class RefusedSizeError(Exception):
    """A topic refuses a batch. ``rows`` are the records that are too large alone; none if only the batch is."""

    def __init__(self, topic: str, setting: str, rows: Sequence[int]) -> None:
        super().__init__(topic, setting, rows)
        self.topic = topic
        self.setting = setting
        self.rows = rows


class StateSizeError(ReknitError):
    """The changelog refuses the state after a record; ``state_size``."""

    fault = "caller"
