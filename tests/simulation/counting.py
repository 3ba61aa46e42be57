"""A stage whose outputs show every lost, repeated or reordered record, and its result without any fault."""

from __future__ import annotations

from collections import Counter

from msgspec import Struct
from simulation.violations import ViolationError, compare

from reknit.pipeline.stages.base import POSITION, Live, Output, Result, Stage, dead_letter, read_position
from reknit.topics import DEAD_LETTERS

POISON, LARGE = b"poison", b"large"
SOURCE, OUT, STATE = "in.v1", "out.v1", "state.v1"


class Counting(Stage):
    """Counts records by key, in the engine's store. For poison it raises, with its state half changed."""

    topic, state_topic = SOURCE, STATE

    def __init__(self, number):
        self._counts, self._store = {}, None

    def keep_in(self, store):
        self._store = store

    def restore(self, key, value):
        self._store.put(key, key, value)

    def process(self, records):
        result = Result()
        for record in records:
            key = record.key
            if key not in self._counts:
                self._counts[key] = int(self._store.read(key).get(key, 0))
            self._counts[key] += 1
            if record.value == POISON:
                raise RuntimeError
            value = b"%d:%d" % (record.offset, self._counts[key])
            result.outputs.append(Output(OUT, key, value.ljust(3000, b".") if record.value == LARGE else value))
            result.changes[key] = b"%d" % self._counts[key]
        return result

    def refuse(self, record, error):
        return Result(outputs=[dead_letter(record, SOURCE, error)])

    def committed(self, changes, room):
        for key, value in changes.items():
            self._store.put(key, key, value)
        self._counts.clear()
        return Live()

    def levels(self):
        return {}


class Outcome(Struct, frozen=True):
    """The results for one partition: outputs as (offset, key, count), dead letters, and counts by key."""

    outputs: list
    letters: list
    state: dict


def expected(entries):
    """Return the result of these input records without any fault."""
    counts, outputs, letters = {}, [], []
    for entry in entries:
        if entry.value == POISON:
            letters.append((entry.offset, entry.key))
        else:
            counts[entry.key] = counts.get(entry.key, 0) + 1
            outputs.append((entry.offset, entry.key, counts[entry.key]))
    return Outcome(outputs, letters, counts)


def output_of(entry):
    offset, count = entry.value.rstrip(b".").split(b":")
    return int(offset), entry.key, int(count)


def letter_of(entry):
    return int(dict(entry.headers)["reknit.error.offset"]), entry.key


def results(read, number):
    """Return the outputs and the dead letters of a partition."""
    outputs = [output_of(entry) for entry in read(OUT, number)]
    return outputs, [letter_of(entry) for entry in read(DEAD_LETTERS, number)]


def state_of(entries):
    newest = {entry.key: entry.value for entry in entries if entry.key != POSITION}
    return {key: int(value) for key, value in newest.items() if value is not None}


class Job:
    """The work of a schedule with this stage: its inputs with their changelogs, and the rules for its results."""

    def __init__(self, settings):
        self.states = {SOURCE: STATE}
        self.stages, self.happened = {SOURCE: Counting}, Counter()
        self._exactly_once = settings.exactly_once
        self._outputs_of = {}  # the outputs' piece of a transaction, by the changelog's

    def note_commit(self, by_topic):
        """Note the pieces of a transaction whose commit is decided."""
        if (state := by_topic.get(STATE)) is not None:
            self._outputs_of[id(state)] = by_topic.get(OUT)

    def is_due(self, read, number):
        """No record is kept in state, and no worker has to end."""
        return False

    def check(self, read, number, *, is_compacted):
        """Check the results of a partition; ``read`` returns the records of a topic in it."""
        outputs, letters = results(read, number)
        if not self._exactly_once:  # results may be repeated
            outputs, letters = list(dict.fromkeys(outputs)), list(dict.fromkeys(letters))
        self._compare(read, number, expected(read(SOURCE, number)), outputs, letters, is_compacted=is_compacted)

    def _compare(self, read, number, wanted, outputs, letters, *, is_compacted):
        compare("outputs", number, wanted.outputs, outputs)
        compare("dead letters", number, wanted.letters, letters)
        if (state := state_of(read(STATE, number))) != wanted.state:
            raise ViolationError("state", f"partition {number} has {state}, expected {wanted.state}")
        if self._exactly_once and not is_compacted:  # compaction removes positions
            self._check_transactions(read, number)

    def _check_transactions(self, read, number):
        """Each transaction has the outputs of the records that its position passes, and moves it."""
        before = 0
        for entry in read(STATE, number):
            if entry.key == POSITION:
                position = read_position(entry.value)[0]
                if position == before:
                    raise ViolationError("positions", f"partition {number} stays at {position}")
                self._check_outputs(read, number, entry.piece, before, position)
                before = position

    def _check_outputs(self, read, number, piece, before, position):
        outputs = self._outputs_of.get(id(piece))
        for entry in read(OUT, number):
            offset = output_of(entry)[0]
            if entry.piece is outputs and not before <= offset < position:
                words = f"partition {number}: position {position} after {before} has the output of record {offset}"
                raise ViolationError("transaction", words)
