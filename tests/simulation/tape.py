"""Draws of a schedule: each purpose has a stream of its own, and each stream can be cut short.

A draw after the cut is 0, which means the first choice and the shortest delay. So the shrinker makes a schedule simpler
by cutting streams, and a removed fault does not change the draws for other purposes.
"""

from __future__ import annotations

import random


class Stream:
    def __init__(self, seed, name, kept=None):
        self._random = random.Random(f"{seed}/{name}")  # noqa: S311  a schedule, no secret
        self._kept = kept
        self.drawn = 0

    def fraction(self):
        """Return a number in [0, 1)."""
        self.drawn += 1
        if self._kept is not None and self.drawn > self._kept:
            return 0.0
        return self._random.random()

    def below(self, bound):
        return int(self.fraction() * bound)

    def choice(self, choices):
        return choices[self.below(len(choices))]


class Tape:
    """The streams of one schedule. ``cuts`` has the number of draws that are kept, by stream."""

    def __init__(self, seed, cuts=None):
        self._seed, self._cuts = seed, cuts or {}
        self.streams = {}

    def stream(self, name):
        if name not in self.streams:
            self.streams[name] = Stream(self._seed, name, self._cuts.get(name))
        return self.streams[name]
