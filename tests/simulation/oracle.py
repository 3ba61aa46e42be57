"""The rules that every schedule must obey: positions, formats, the group's offsets, openings, and those of its job."""

from __future__ import annotations

from simulation.plans import PARTITIONS
from simulation.violations import ViolationError
from simulation.worker import PREFIX

from reknit.pipeline.stages.base import POSITION, read_position

# Openings of one partition. Two workers that fence each other reach this within the time limit of a schedule.
MOST_OPENINGS = 40


class Oracle:
    def __init__(self, cluster, job, *, exactly_once, is_compacted):
        self._cluster, self._job, self._committed, self._is_compacted = cluster, job, exactly_once, is_compacted
        self._pieces = []  # they must live as long as their ids are keys
        self.violation = None
        self._reported = {}  # the largest offset that the group had of each partition
        cluster.on_commit = self._on_commit
        cluster.group.on_offsets = self._on_offsets

    def _on_commit(self, pieces):
        by_topic = {topic.removeprefix(PREFIX): piece for (topic, _), piece in pieces.items()}
        self._pieces.append(by_topic)
        self._job.note_commit(by_topic)

    def _on_offsets(self, offsets):
        for (topic, number), (offset, _) in offsets.items():
            self._reported[topic, number] = max(offset, self._reported.get((topic, number), 0))
            source = topic.removeprefix(PREFIX)
            log = self._cluster.log(PREFIX + self._job.states[source], number)
            written = [e for e in log.entries if e.key == POSITION and not e.aborted]
            durable = max((read_position(entry.value)[0] for entry in written), default=0)
            if offset > durable and not self._passes_markers(source, number, durable, offset):
                words = f"{offset} in partition {number} of {source}, the state's is {durable}"
                self.violation = ViolationError("group offset", words, number)

    def _passes_markers(self, source, number, position, offset):
        """True if there is no record between the two."""
        return not any(position <= entry.offset < offset for entry in self._read(source, number))

    def _read(self, topic, number):
        return self._cluster.log(PREFIX + topic, number).records(committed=self._committed)

    def position(self, source, number):
        found = [entry for entry in self._read(self._job.states[source], number) if entry.key == POSITION]
        return read_position(found[-1].value)[0] if found else 0

    def positions(self):
        return {source: [self.position(source, number) for number in range(PARTITIONS)] for source in self._job.states}

    def is_drained(self):
        """True if all records are processed, and the markers of all transactions are written."""
        return not self.is_open() and not self.behind()

    def is_open(self):
        return any(log.open for log in self._cluster.logs.values())

    def offsets(self):
        """The group's offsets by partition, with metadata."""
        return dict(self._cluster.group.offsets)

    def behind(self):
        """The partitions with records that are not processed, or that no offset of the group was after."""
        return {number for number in range(PARTITIONS) if self._is_behind(number)}

    def _is_behind(self, number):
        for source in self._job.states:
            records = self._read(source, number)
            if records and self.position(source, number) <= records[-1].offset:
                return True
            # A late request of an earlier commit, or an operator, may have moved the group's offset back since.
            if records and self._reported.get((PREFIX + source, number), 0) <= records[-1].offset:
                return True
        return self._job.is_due(self._read, number)

    def check(self, happened, exempt):
        """Check all partitions but the ``exempt`` ones, in which two owners may have written."""
        for number in set(range(PARTITIONS)) - exempt:
            self._job.check(self._read, number, is_compacted=self._is_compacted)
            for source in self._job.states:
                self._check_positions(source, number)
                if (count := happened["opened", source, number]) > MOST_OPENINGS:
                    raise ViolationError("openings", f"partition {number} of {source} was opened {count} times")

    def _check_positions(self, source, number):
        """Positions and formats never decrease."""
        before, format_before = 0, 1
        for entry in self._read(self._job.states[source], number):
            if entry.key != POSITION:
                continue
            position, state_format = read_position(entry.value)
            if position < before:
                raise ViolationError("positions", f"partition {number} of {source} goes from {before} to {position}")
            if state_format < format_before:
                raise ViolationError("formats", f"partition {number} goes from {format_before} to {state_format}")
            before, format_before = position, state_format
