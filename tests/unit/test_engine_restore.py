"""Reading a changelog to its end: memory use, and the errors that end it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from aiokafka import TopicPartition

from reknit.pipeline.engine import seams
from reknit.pipeline.engine.batches import fetched_size
from reknit.pipeline.engine.runtime import EngineError, PartitionLostError
from reknit.pipeline.engine.state import restore
from reknit.pipeline.stages.base import POSITION, position_value

PLACE = TopicPartition("state.v1", 0)
MIB = 1 << 20


class Changelog:
    """A partition on a broker.

    A client's fetch has records of ``fetched`` bytes, which may be more than its compressed size.
    """

    def __init__(self, values, fetched):
        rows = [(b"k%d" % at, value) for at, value in enumerate(values)] + [(POSITION, position_value(7, 2))]
        self.records = [SimpleNamespace(key=key, value=value, headers=()) for key, value in rows]
        self.fetched, self.at, self.buffer, self.held = fetched, 0, [], []

    def __call__(self, **options):
        self.options = options
        return self

    async def start(self):
        pass

    async def stop(self):
        pass

    def assign(self, places):
        pass

    def seek(self, place, offset):
        self.at = offset

    async def end_offsets(self, places):
        return {PLACE: len(self.records)}

    async def beginning_offsets(self, places):
        return {PLACE: 0}

    async def position(self, place):
        return self.at

    async def getmany(self, place, *, timeout_ms, max_records=None):
        if not self.buffer:
            behind, size = self.at, 0
            while behind < len(self.records) and size < self.fetched:
                size += len(self.records[behind].value)
                behind += 1
            self.buffer = self.records[self.at : behind]
        taken, self.buffer = self.buffer[:max_records], self.buffer[max_records:] if max_records else []
        self.at += len(taken)
        self.held.append(fetched_size(taken))
        return {PLACE: taken}


async def read(monkeypatch, changelog, **more):
    """The calls of a restore to the stage, and its return value."""
    monkeypatch.setattr(seams, "AIOKafkaConsumer", changelog)
    given = []
    restored = await restore({}, *PLACE, lambda key, value: given.append((key, value)), committed_only=True, **more)
    return given, restored


@pytest.mark.parametrize("size", [100, 10_000, 60_000, 300_000, 5 * MIB])
async def test_a_read_holds_a_few_mebibytes_however_well_the_changelog_compresses(monkeypatch, size):
    values = [b"x" * size] * max(20, 60 * MIB // max(size, 4_000))
    changelog = Changelog(values, fetched=160 * MIB)
    given, restored = await read(monkeypatch, changelog)
    assert [value for _, value in given] == values
    assert (restored.position, restored.state_format, restored.records) == (7, 2, len(values) + 1)
    assert max(changelog.held) <= max(4 * MIB + 64 * 1024, size + 1024)
    assert changelog.options["max_partition_fetch_bytes"] <= MIB


async def test_when_records_become_larger_one_read_holds_a_fetch_and_the_next_ones_less(monkeypatch):
    changelog = Changelog([b"x" * 100] * 20_000 + [b"x" * 100_000] * 400, fetched=20 * MIB)
    await read(monkeypatch, changelog)
    most, *others = sorted(changelog.held, reverse=True)
    assert (most <= 21 * MIB, max(others) <= 12 * MIB) == (True, True), changelog.held


def with_end(monkeypatch, changelog, end):
    async def given(_places):
        return {PLACE: end}

    monkeypatch.setattr(changelog, "end_offsets", given)


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("first", range(1, 12))
async def test_a_read_never_ends_within_a_batch(monkeypatch, first, after):
    """A broker gives the end before the last batch, or after its first record. Reads have 1, 2, 4 and more records."""
    changelog = Changelog([b"1"] * first, fetched=MIB)
    with_end(monkeypatch, changelog, len(changelog.records) + after)
    rows = [*((b"k%d" % at, b"2") for at in range(9)), (POSITION, position_value(11, 2))]
    changelog.records += [SimpleNamespace(key=key, value=value, headers=()) for key, value in rows]
    given, restored = await read(monkeypatch, changelog)
    values, whole = [value for _, value in given], [b"1"] * first + [b"2"] * 9
    assert (values, restored.position) in ([(whole, 11)] if after else [([b"1"] * first, 7), (whole, 11)])


async def test_state_without_a_position_is_read_to_its_end(monkeypatch):
    changelog = Changelog([b"1"] * 5, fetched=MIB)
    del changelog.records[-1]
    given, restored = await read(monkeypatch, changelog)
    assert (len(given), restored.position) == (5, None)


async def test_a_broker_that_does_not_answer_ends_the_read(monkeypatch):
    changelog = Changelog([], fetched=MIB)
    changelog.start = asyncio.Event().wait
    with pytest.raises(PartitionLostError) as lost:
        async with asyncio.timeout(60):
            await read(monkeypatch, changelog, patience=0.01)
    assert lost.value.code == "stuck"


async def test_state_that_cannot_be_read_names_the_changelog_and_the_place(monkeypatch):
    monkeypatch.setattr(seams, "AIOKafkaConsumer", Changelog([b"1", b"2"], fetched=MIB))

    def apply(key, value):
        raise ValueError("secret content")

    with pytest.raises(EngineError) as caught:
        await restore({}, *PLACE, apply, committed_only=True)
    assert caught.value.code == "state_unreadable"
    assert "state.v1 partition 0 holds state that cannot be read, near offset 0 (ValueError at " in str(caught.value)
    assert "secret" not in str(caught.value)
