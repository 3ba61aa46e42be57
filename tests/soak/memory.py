"""Samples of a gateway's memory and of its files, and whether they grow."""

from __future__ import annotations

import asyncio
import contextlib
import statistics

from msgspec import Struct

_SECONDS = 1.0
_LEAST_SAMPLES = 20


class Sample(Struct, frozen=True):
    """``life`` is the number of the process; ``kib`` is its resident memory."""

    done: int
    life: int
    kib: int
    journal: int
    store: int


class Growth(Struct, frozen=True):
    """The memory of one process, in KiB.

    Attributes:
        exchanges: between the first and the last sample.
        first, last: medians of the first and of the last quarter of the samples.
        slope: by which it grows per 1,000 exchanges, by least squares; the first quarter is not counted.
    """

    exchanges: int
    first: float
    last: float
    slope: float


class Sampler:
    """Takes samples while a load runs."""

    def __init__(self, gateway, load):
        self.samples = []
        self._gateway, self._load = gateway, load

    async def run(self):
        while True:
            await asyncio.sleep(_SECONDS)
            self.take()

    def take(self):
        """Take a sample, unless the process is being replaced."""
        life, directory = self._gateway.life, self._gateway.directory
        kib = None if life is None else self._gateway.resident_kib()
        if kib is not None:
            journal, store = size_of(directory.glob("serve.journal/*")), size_of(directory.glob("*.sqlite*"))
            self.samples.append(Sample(self._load.done, life, kib, journal, store))


def size_of(paths):
    """Return the bytes of files, some of which may be deleted meanwhile."""
    total = 0
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def growth(samples):
    """Return the growth of the last process; None if there are too few samples of it."""
    last = [each for each in samples if each.life == samples[-1].life]
    if len(last) < _LEAST_SAMPLES:
        return None
    quarter = len(last) // 4
    rest = last[quarter:]
    slope = statistics.linear_regression([each.done for each in rest], [each.kib for each in rest]).slope
    return Growth(
        last[-1].done - last[0].done,
        statistics.median(each.kib for each in last[:quarter]),
        statistics.median(each.kib for each in last[-quarter:]),
        1_000 * slope,
    )
