"""The rules that every schedule must obey, for each transaction and at the end."""

from __future__ import annotations

from simulation import counting
from simulation.counting import OUT, SOURCE, STATE
from simulation.plans import PARTITIONS
from simulation.worker import PREFIX

from reknit.pipeline.stages.base import POSITION, read_position
from reknit.topics import DEAD_LETTERS

# Openings of one partition. Two workers that fence each other reach this within the time limit of a schedule.
MOST_OPENINGS = 40


class ViolationError(Exception):
    """``rule`` names the rule, which the shrinker keeps; ``number`` the partition, None for no particular one."""

    def __init__(self, rule, words, number=None):
        super().__init__(f"{rule}: {words}")
        self.rule, self.number = rule, number


class Oracle:
    def __init__(self, cluster, *, exactly_once, is_compacted):
        self._cluster, self._committed, self._is_compacted = cluster, exactly_once, is_compacted
        self._outputs_of = {}  # the outputs' piece of a transaction, by the changelog's
        self._pieces = []  # they must live as long as their ids are keys
        self.violation = None
        cluster.on_commit = self._on_commit
        cluster.group.on_offsets = self._on_offsets

    def _on_commit(self, pieces):
        by_topic = {topic: piece for (topic, _), piece in pieces.items()}
        self._pieces.append(by_topic)
        if (state := by_topic.get(PREFIX + STATE)) is not None:
            self._outputs_of[id(state)] = by_topic.get(PREFIX + OUT)

    def _on_offsets(self, offsets):
        for (_, number), (offset, _) in offsets.items():
            written = [e for e in self._cluster.log(PREFIX + STATE, number).entries if e.key == POSITION]
            durable = max((read_position(entry.value)[0] for entry in written if not entry.aborted), default=0)
            if offset > durable and not self._passes_markers(number, durable, offset):
                words = f"{offset} in partition {number}, the state's is {durable}"
                self.violation = ViolationError("group offset", words, number)

    def _passes_markers(self, number, position, offset):
        """True if there is no record between the two."""
        records = self._cluster.log(PREFIX + SOURCE, number).records(committed=self._committed)
        return not any(position <= entry.offset < offset for entry in records)

    def _read(self, topic, number):
        return self._cluster.log(PREFIX + topic, number).records(committed=self._committed)

    def position(self, number):
        found = [entry for entry in self._read(STATE, number) if entry.key == POSITION]
        return read_position(found[-1].value)[0] if found else 0

    def is_drained(self):
        """True if all records are processed, and the markers of all transactions are written."""
        return not any(log.open for log in self._cluster.logs.values()) and not self.behind()

    def behind(self):
        """The partitions with records that are not processed."""
        lasts = {number: records[-1].offset for number in range(PARTITIONS) if (records := self._read(SOURCE, number))}
        return {number for number, last in lasts.items() if self.position(number) <= last}

    def check(self, happened, exempt):
        """Check all partitions but the ``exempt`` ones, in which two owners may have written."""
        for number in set(range(PARTITIONS)) - exempt:
            self._check_results(number)
            self._check_commits(number)
            if (count := happened["opened", number]) > MOST_OPENINGS:
                raise ViolationError("openings", f"partition {number} was opened {count} times")

    def _check_results(self, number):
        wanted = counting.expected(self._read(SOURCE, number))
        outputs = [counting.output_of(entry) for entry in self._read(OUT, number)]
        letters = [counting.letter_of(entry) for entry in self._read(DEAD_LETTERS, number)]
        if not self._committed:  # at least once: results may be repeated
            outputs, letters = list(dict.fromkeys(outputs)), list(dict.fromkeys(letters))
        compare("outputs", number, wanted.outputs, outputs)
        compare("dead letters", number, wanted.letters, letters)
        if (state := counting.state_of(self._read(STATE, number))) != wanted.state:
            raise ViolationError("state", f"partition {number} has {state}, expected {wanted.state}")

    def _check_commits(self, number):
        """Check positions and formats, and that each transaction has the outputs of the records that it passes."""
        before, format_before = 0, 1
        for entry in self._read(STATE, number):
            if entry.key != POSITION:
                continue
            position, state_format = read_position(entry.value)
            if position < before or (position == before and self._committed):
                raise ViolationError("positions", f"partition {number} goes from {before} to {position}")
            if state_format < format_before:
                raise ViolationError("formats", f"partition {number} goes from {format_before} to {state_format}")
            if self._committed and not self._is_compacted:  # compaction removes positions
                self._check_outputs(number, entry.piece, before, position)
            before, format_before = position, state_format

    def _check_outputs(self, number, piece, before, position):
        outputs = self._outputs_of.get(id(piece))
        for entry in self._read(OUT, number):
            offset = counting.output_of(entry)[0]
            if entry.piece is outputs and not before <= offset < position:
                words = f"partition {number}: position {position} after {before} has the output of record {offset}"
                raise ViolationError("transaction", words)


def compare(rule, number, wanted, found):
    if wanted == found:
        return
    lost = [row for row in wanted if row not in found]
    repeated = [row for row in dict.fromkeys(found) if found.count(row) > 1]
    others = [row for row in found if row not in wanted]
    words = f"lost {lost[:4]}, repeated {repeated[:4]}, unexpected {others[:4]}"
    raise ViolationError(rule, f"partition {number}: " + (words if lost or repeated or others else "another order"))
