"""The stage that counts, on an input from which retention removes records, also such that no worker has read yet.

Those are lost, and the worker continues with the first record that is left. All others must have the results that they
have in a run on an input without the lost ones.
"""

from __future__ import annotations

from simulation import counting
from simulation.counting import SOURCE, results


class Job(counting.Job):
    def __init__(self, settings):
        super().__init__(settings)
        self._removed = {}

    def note_removed(self, number, entries):
        self._removed.setdefault(number, []).extend(entries)

    def check(self, read, number, *, is_compacted):
        removed = [entry for entry in self._removed.get(number, ()) if not (entry.marker or entry.aborted)]
        outputs, letters = results(read, number)
        done = {offset for offset, *_ in (*outputs, *letters)}
        survived = [entry for entry in removed if entry.offset in done]
        self.happened["lost to retention"] += len(removed) - len(survived)

        def with_removed(topic, partition):
            return [*(survived if topic == SOURCE else ()), *read(topic, partition)]

        super().check(with_removed, number, is_compacted=is_compacted)
