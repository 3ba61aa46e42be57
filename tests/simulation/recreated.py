"""The stage that counts, on an input that is deleted and created again while workers run.

A worker that finds another topic ends, and is not started again: its user has to accept the topic. A partition with a
position of the former topic has the results before that position, and nothing of the new topic. A partition without a
position begins with the new topic.
"""

from __future__ import annotations

from simulation import counting
from simulation.counting import SOURCE, STATE, Outcome, expected, results
from simulation.violations import ViolationError

from reknit.pipeline.engine.topic_ids import as_kafka_shows
from reknit.pipeline.stages.base import POSITION, read_position
from reknit.topics.positions import read_mark


class Job(counting.Job):
    """``former``: the logs of the former topic by partition; ``None`` as long as that is in use."""

    def __init__(self, settings):
        super().__init__(settings)
        self.former, self.id = None, ""

    def note_recreated(self, former, topic_id):
        self.former, self.id = former, as_kafka_shows(topic_id)

    def is_due(self, read, number):
        """True if a worker has a position of the former topic, so that it must end."""
        return self.former is not None and self._last(read, number)[1] not in {"", self.id}

    def _last(self, read, number):
        """Return the last position of a partition, and the id of the input to which it belongs."""
        found = [entry for entry in read(STATE, number) if entry.key == POSITION]
        if not found:
            return 0, ""
        ids = {read_mark(entry.value, entry.headers).input_id for entry in found}
        if len(ids) > 1:
            raise ViolationError("topic", f"partition {number} has positions of several topics: {sorted(ids)}")
        return read_position(found[-1].value)[0], ids.pop()

    def check(self, read, number, *, is_compacted):
        position, topic_id = self._last(read, number)
        present, former = read(SOURCE, number), self._former(number)
        entries = former if topic_id not in {"", self.id} and self.former is not None else present
        wanted = expected([entry for entry in entries if entry.offset < position])
        outputs, letters = results(read, number)
        if not self._exactly_once:
            lost = expected(former) if entries is present else Outcome([], [], {})
            every = expected(entries)
            outputs, more = at_least_once(outputs, wanted.outputs, every.outputs, lost.outputs)
            letters, more_letters = at_least_once(letters, wanted.letters, every.letters, lost.letters)
            wanted = Outcome(more, more_letters, wanted.state)
        self._compare(read, number, wanted, outputs, letters, is_compacted=is_compacted)

    def _former(self, number):
        log = None if self.former is None else self.former.get(number)
        return log.records(committed=self._exactly_once) if log else []


def at_least_once(found, wanted, every, lost):
    """Return the results that were found and those to compare them with.

    Results may be repeated, and a worker may have ended before it wrote their position. So some of ``every`` result of
    the topic may follow the wanted ones, and a partition that begins with the new topic may have ``lost`` ones, which
    are left out everywhere.
    """
    found, wanted, every = ([each for each in results if each not in lost] for results in (found, wanted, every))
    found = list(dict.fromkeys(found))
    return found, every[: max(len(found), len(wanted))]
