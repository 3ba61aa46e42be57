"""The simulation's model of compaction leaves the same records as a real broker after the same random writes.

A broker compacts neither its newest segment nor the one with the last stable offset, so a record begins a further
segment at the end. The times of records decide where segments begin.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import AsyncExitStack

import harness
import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from simulation.logs import MARKER, Log, Piece

pytestmark = pytest.mark.broker

PARTITIONS, COMMANDS, KEYS = 8, 50, 4
# Times of records may be an hour in the future, so all segments of a partition must be within that.
SEGMENT_MS = 60_000
CONFIG = {
    "cleanup.policy": "compact",
    "segment.ms": str(SEGMENT_MS),
    "segment.jitter.ms": "0",
    "min.cleanable.dirty.ratio": "0",
}
LIMIT_SECONDS = 60
_OPEN_SECONDS = 600


class Producer:
    """A producer of the broker, with its part of the model's log if it has an open transaction."""

    def __init__(self, bootstrap, tid=None):
        self.tid, self.piece = tid, None
        more = {"transactional_id": tid, "transaction_timeout_ms": _OPEN_SECONDS * 1000} if tid else {}
        self.client = AIOKafkaProducer(bootstrap_servers=bootstrap, **more)

    async def __aenter__(self):
        await self.client.start()
        return self

    async def __aexit__(self, *_):
        await self.client.stop()


class Partition:
    """A partition of the broker and its model, which get the same writes."""

    def __init__(self, place, reader):
        self.place, self._reader, self.log = place, reader, Log()
        self._milliseconds, self._segments = int(time.time() * 1000), [0]

    async def write(self, producer, rows, *, in_new_segment):
        if in_new_segment:
            self._segments.append(self.log.end)
            self._milliseconds += SEGMENT_MS + 1
        if producer.tid and producer.piece is None:
            await producer.client.begin_transaction()
            producer.piece = self.log.open[producer.tid] = Piece(producer.tid, self.log.end)
        batch = producer.client.create_batch()
        for key, value in rows:
            batch.append(key=key, value=value, timestamp=self._milliseconds)
        sent = await producer.client.send_batch(batch, self.place.topic, partition=self.place.partition)
        assert (await sent).offset == self.log.end
        for key, value in rows:
            self.log.append((key, value, ()), producer.piece, 0.0)

    def compact(self):
        """Compact the model up to the segment that has the last stable offset, or the newest one."""
        self.log.compact(max(first for first in self._segments if first <= self.log.lso))

    async def _end(self):
        return (await self._reader.end_offsets([self.place]))[self.place]

    async def end_transaction(self, producer, *, commit):
        await (producer.client.commit_transaction() if commit else producer.client.abort_transaction())
        piece, producer.piece = producer.piece, None
        piece.status = "committed" if commit else "aborted"
        del self.log.open[producer.tid]
        self.log.append(MARKER, piece, 0.0, marker=True)
        async with asyncio.timeout(LIMIT_SECONDS):  # a broker answers before it writes the marker
            while await self._end() < self.log.end:  # noqa: ASYNC110  asked of a broker
                await asyncio.sleep(0.01)


def rows_of_a_batch(draw, value):
    """Return keys with values; every third is a tombstone."""
    count = draw.choice([1, 1, 2, 3])
    return [(b"k%d" % draw.randrange(KEYS), draw.choice([value, value, None])) for _ in range(count)]


async def run_commands(partition, producers, draw):
    """Write with and without transactions, which may stay open."""
    for number in range(COMMANDS):
        producer = draw.choice(producers)
        if producer.piece is not None and draw.random() < 0.4:
            await partition.end_transaction(producer, commit=draw.random() < 0.6)
        else:
            rows = rows_of_a_batch(draw, b"%d" % number)
            await partition.write(producer, rows, in_new_segment=draw.random() < 0.4)


async def end_transactions(partition, producers, draw):
    for producer in producers:
        if producer.piece is not None:
            await partition.end_transaction(producer, commit=draw.random() < 0.5)


def contents(partitions, *, committed):
    """Return what readers of the model get from each partition: offsets, keys and values."""
    return [[(e.offset, e.key, e.value) for e in each.log.records(committed=committed)] for each in partitions]


async def real_contents(bootstrap, topic, *, committed):
    isolation = "read_committed" if committed else "read_uncommitted"
    found = await harness.read_all(bootstrap, topic, PARTITIONS, isolation)
    return [[(record.offset, record.key, record.value) for record in records] for records in found]


async def check_compaction(bootstrap, topic, partitions):
    """Until it has compacted, a broker has more than the model, but never less, and nothing that was not written."""
    written = {committed: contents(partitions, committed=committed) for committed in (False, True)}
    for partition in partitions:
        partition.compact()
    deadline = time.monotonic() + LIMIT_SECONDS
    for committed, before in written.items():
        kept = contents(partitions, committed=committed)
        while (found := await real_contents(bootstrap, topic, committed=committed)) != kept:
            for least, some, most in zip(kept, found, before, strict=True):
                assert set(least) <= set(some) <= set(most)
            if time.monotonic() > deadline:
                assert found == kept
            await asyncio.sleep(0.1)


async def in_all(partitions, producers, draws, work):
    """Do the work in all partitions, then write the first record of a further segment to each."""
    async with asyncio.TaskGroup() as tasks:
        for args in zip(partitions, producers, draws, strict=True):
            tasks.create_task(work(*args))
    for partition, (plain, *_) in zip(partitions, producers, strict=True):
        await partition.write(plain, [(b"after %s" % work.__name__.encode(), b"")], in_new_segment=True)


async def test_the_model_of_compaction_leaves_what_the_broker_leaves(broker, prefix):
    topic = f"{prefix}compacted"
    await harness.make_topics(broker.bootstrap, [topic], PARTITIONS, **CONFIG)
    async with AsyncExitStack() as stack:
        reader = await stack.enter_async_context(harness.reader(broker.bootstrap, "read_uncommitted"))
        partitions = [Partition(TopicPartition(topic, number), reader) for number in range(PARTITIONS)]
        tids = [[None, f"{topic}-{number}-0", f"{topic}-{number}-1"] for number in range(PARTITIONS)]
        producers = [
            [await stack.enter_async_context(Producer(broker.bootstrap, tid)) for tid in each] for each in tids
        ]
        draws = [random.Random(number) for number in range(PARTITIONS)]  # noqa: S311  test data
        for work in (run_commands, end_transactions):
            await in_all(partitions, producers, draws, work)
            await check_compaction(broker.bootstrap, topic, partitions)
