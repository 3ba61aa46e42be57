"""The time in which this process could not run, so that no guard mistakes a slow machine for a stuck worker.

A worker that a guard ends because nothing moved for a minute starts again, as slow as before, and must read its state
first. So on a machine with too little processor time, in a throttled container, or after a suspension, a guard with the
usual clock turns slowness into a crash loop. Guards subtract the lost time.

No system reports this time for every cause: Linux counts the wait of threads that are ready to run, but not the time
that a process was stopped. A late timer shows all causes. So a timer ticks this clock at an interval. If a tick is on
time, every ready thread could run, and nothing was lost. If it is late, the whole time was lost except the processor
time used since the last tick: that is nearly all of it for a busy process, and nearly nothing for one that could not
run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

# A tick is late after this many intervals. Timers of a process that may run are late by a few milliseconds, or
# by a slice of records (`Tuning.slice_seconds`).
_LATE = 2.0


class RunClock:
    """Adds up the seconds that a process lost. ``tick`` must be called at an interval, and may be called more often.

    ``processor`` returns the processor time used so far, in seconds, of the process or of one thread. If
    that is more than ``busy_share`` of the time, it counts alone, also when the tick is on time.
    """

    def __init__(
        self,
        interval_seconds: float,
        processor: Callable[[], float] = time.process_time,
        clock: Callable[[], float] = time.monotonic,
        *,
        busy_share: float = 1.0,
    ) -> None:
        self._interval_seconds, self._busy_share = interval_seconds, busy_share
        self._processor, self._clock = processor, clock
        self._ticked_at, self._used = clock(), processor()
        self.lost = 0.0

    def tick(self) -> None:
        """Measure the time since the last tick."""
        passed, used = self._clock() - self._ticked_at, self._processor() - self._used
        self._ticked_at += passed
        self._used += used
        if passed > _LATE * self._interval_seconds or used > self._busy_share * passed:
            self.lost += max(0.0, passed - used)


def processor_time_of(thread: int) -> Callable[[], float]:
    """Return a reader of a thread's processor time, or of the process's if the system does not report it by thread."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.process_time
    return partial(time.clock_gettime, time.pthread_getcpuclockid(thread))
