"""Records and batches that a topic rejects for their size: batches are divided, and oversized records are named."""

from __future__ import annotations

import asyncio
from secrets import token_bytes
from types import SimpleNamespace

import pytest
from aiokafka.errors import MessageSizeTooLargeError, RecordListTooLargeError
from aiokafka.producer.message_accumulator import BatchBuilder

from reknit.pipeline.engine.commit import Batch
from reknit.pipeline.engine.limits import RefusedSizeError, TopicLimits
from reknit.pipeline.engine.sending import Sender, packed_size
from reknit.pipeline.stages.base import Output

KIBI = 1024


class Producer:
    """Accepts batches of at most ``most`` compressed bytes; records the number of records of each."""

    def __init__(self, most, error=MessageSizeTooLargeError):
        self.most, self.error = most, error
        self.delivered = []
        self.refused = 0

    def create_batch(self):
        return BatchBuilder(KIBI * KIBI, 4, is_transactional=1)

    async def send_batch(self, batch, topic, *, partition):
        future = asyncio.get_running_loop().create_future()
        batch._build()
        if batch.size() > self.most:
            self.refused += 1
            future.set_exception(self.error())
        else:
            future.set_result(SimpleNamespace(offset=sum(self.delivered)))
            self.delivered.append(batch.record_count())
        return future


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def rows(*sizes):
    return [(b"k", token_bytes(size), ()) for size in sizes]


async def sent(sender, given):
    """Send, without records that are too large alone, until nothing is rejected.

    Return those records and the last offset.
    """
    left_out = []
    while True:
        try:
            return left_out, await sender.send("out.v1", given)
        except RefusedSizeError as error:
            left_out += [given[at] for at in error.rows]
            given = [row for at, row in enumerate(given) if at not in error.rows]


async def test_small_records_are_sent_in_smaller_batches_and_only_oversized_ones_are_named():
    producer = Producer(10 * KIBI)
    given = rows(*[500] * 40, 20 * KIBI, *[500] * 40, 30 * KIBI, 9 * KIBI)
    left_out, behind = await sent(Sender(producer, "p.", 0, TopicLimits(), "zstd"), given)
    assert [len(value) for _, value, _ in left_out] == [20 * KIBI, 30 * KIBI]
    assert behind == sum(producer.delivered)


async def test_a_rejected_size_is_not_sent_again_for_a_while():
    clock, producer = Clock(), Producer(10 * KIBI)
    sender = Sender(producer, "p.", 0, TopicLimits(clock), "zstd")
    large, small = rows(20 * KIBI, 500)
    with pytest.raises(RefusedSizeError):
        await sender.send("out.v1", [large])
    with pytest.raises(RefusedSizeError) as caught:
        await sender.send("out.v1", [small, large])
    assert (caught.value.rows, caught.value.setting) == ([1], "max.message.bytes")
    assert (producer.refused, producer.delivered) == (1, [])
    outputs = [Output("out.v1", *small), Output("other.v1", *large), Output("out.v1", *large)]
    with pytest.raises(RefusedSizeError) as caught:
        sender.check_sizes(Batch(outputs, {}, 1), "state.v1")
    assert caught.value.rows == [1], "counted among the topic's own"
    producer.most = 1 << 20  # the limit has been raised
    clock.now = 61.0
    sender.check_sizes(Batch(outputs, {}, 1), "state.v1")
    assert await sender.send("out.v1", [small, large]) == 2


async def test_limits_are_per_topic():
    limits = TopicLimits()
    limits.note_refused("out.v1", 5_000, 1)
    limits.note_refused("out.v1", 9_000, 1)
    limits.note_refused("out.v1", 8_000, 3)
    assert (limits.refused_record("out.v1"), limits.batch_bytes("out.v1")) == (5_000, 4_000)
    assert (limits.refused_record("other.v1"), limits.batch_bytes("other.v1")) == (None, None)


async def test_outputs_are_divided_and_state_is_one_batch():
    producer = Producer(1 << 30)
    sender = Sender(producer, "p.", 0, TopicLimits(), output_batch_bytes=10 * KIBI)
    await sender.send_outputs([Output("out.v1", *row) for row in rows(*[4 * KIBI] * 5)])
    assert producer.delivered == [2, 2, 1]
    await sender.send("state.v1", rows(*[4 * KIBI] * 5))
    assert producer.delivered[3:] == [5]


async def test_a_record_larger_than_a_segment_names_that_setting():
    sender = Sender(Producer(KIBI, RecordListTooLargeError), "p.", 0, TopicLimits(), "zstd")
    with pytest.raises(RefusedSizeError) as caught:
        await sender.send("out.v1", rows(4 * KIBI))
    assert (caught.value.setting, caught.value.rows) == ("segment.bytes", [0])


@pytest.mark.parametrize("compression", ["none", "gzip", "lz4", "zstd"])
def test_a_packed_record_has_the_size_that_a_broker_sees(compression):
    row = (b"k", b"words " * 2_000, (("header", b"value"),))
    batch = BatchBuilder(1 << 20, {"none": 0, "gzip": 1, "lz4": 3, "zstd": 4}[compression], is_transactional=1)
    batch.append(timestamp=None, key=row[0], value=row[1], headers=list(row[2]))
    batch._build()
    assert packed_size(row, compression) == batch.size()
