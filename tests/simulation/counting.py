"""A stage whose outputs show every lost, repeated or reordered record, and its result without any fault."""

from __future__ import annotations

from msgspec import Struct

from reknit.pipeline.stages.base import POSITION, Live, Output, Result, Stage, dead_letter

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


def state_of(entries):
    newest = {entry.key: entry.value for entry in entries if entry.key != POSITION}
    return {key: int(value) for key, value in newest.items() if value is not None}
