"""Samples of a gateway's memory and of its files, and whether they grow."""

from __future__ import annotations

import asyncio
import contextlib
import statistics

from msgspec import Struct

_SECONDS = 1.0
_LEAST_SAMPLES = 20
# Exchanges until the cache of known conversations is full: measured 8,500.
WARM = 10_000


class Sample(Struct, frozen=True):
    """``life`` is the number of the process; ``kib`` is its resident memory; the others are bytes on disk."""

    done: int
    life: int
    kib: int
    journal: int
    store: int


class Growth(Struct, frozen=True):
    """The memory of one process, in KiB.

    Attributes:
        exchanges: between the first sample and the last one.
        first: the median of the first quarter of the samples.
        last: the median of the last quarter.
        slope: growth per 1,000 exchanges, by least squares.
        is_warm: its caches were full at the first sample.
    """

    exchanges: int
    first: float
    last: float
    slope: float
    is_warm: bool


class Sampler:
    """Takes samples while a load runs."""

    def __init__(self, gateway, load):
        self.samples = []
        self._gateway, self._load = gateway, load

    async def run(self):
        while True:
            self.take()
            await asyncio.sleep(_SECONDS)

    def take(self):
        """Take a sample, unless the process is being replaced."""
        life, directory = self._gateway.life, self._gateway.directory
        kib = None if life is None else self._gateway.resident_kib()
        if kib is not None:
            journal, store = size_of(directory.glob("serve.journal/*")), size_of(directory.glob("serve.sqlite*"))
            self.samples.append(Sample(self._load.done, life, kib, journal, store))


def size_of(paths):
    """Return the bytes of files; those that are deleted meanwhile do not count."""
    total = 0
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def growth(samples):
    """Return the growth of the last process; None if there are too few samples of it.

    Samples before its caches are full are left out, unless there are too few others.
    """
    last = [each for each in samples if each.life == samples[-1].life]
    warm = [each for each in last if each.done - last[0].done >= WARM]
    is_warm = len(warm) >= _LEAST_SAMPLES
    judged = warm if is_warm else last
    done, kib = [each.done for each in judged], [each.kib for each in judged]
    if len(judged) < _LEAST_SAMPLES or done[0] == done[-1]:
        return None
    quarter = len(judged) // 4
    return Growth(
        done[-1] - done[0],
        statistics.median(kib[:quarter]),
        statistics.median(kib[-quarter:]),
        1_000 * statistics.linear_regression(done, kib).slope,
        is_warm,
    )
