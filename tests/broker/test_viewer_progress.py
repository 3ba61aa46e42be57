"""The viewer's watch on a real broker: records that wait, offsets that only look like it, and losses."""

import asyncio
import contextlib

import harness
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from reknit.pipeline.config import load_config
from reknit.pipeline.viewer import watch as watching
from reknit.pipeline.viewer.index.reading import open_index
from reknit.pipeline.viewer.progress import Progress
from reknit.pipeline.viewer.watch import Watch
from reknit.topics import AGENT_TURNS, PROVIDER_EVENTS

pytestmark = pytest.mark.broker


class Group:
    """Replaces a worker: a member of its group that commits a given offset."""

    def __init__(self, bootstrap, prefix):
        self._topics = [prefix + AGENT_TURNS, prefix + PROVIDER_EVENTS]
        self._member = AIOKafkaConsumer(
            *self._topics, bootstrap_servers=bootstrap, group_id=f"{prefix}reknit", enable_auto_commit=False
        )

    async def __aenter__(self):
        await self._member.start()
        while len(self._member.assignment()) < len(self._topics):
            await self._member.getmany(timeout_ms=50)
        return self

    async def __aexit__(self, *_error):
        await self._member.stop()

    async def commit(self, offset):
        await self._member.commit({TopicPartition(self._topics[0], 0): offset})


@contextlib.asynccontextmanager
async def watched(bootstrap, prefix, folder):
    """Yields a function that waits for a state of the turns' partition and returns it with the whole status."""
    config = load_config(env={}, overrides={"bootstrap_servers": bootstrap, "prefix": prefix})
    index, progress = await open_index(config, folder / "index"), Progress()
    running = asyncio.create_task(Watch(config, index, progress).run())

    async def until(holds):
        async with asyncio.timeout(240):
            while True:
                status = progress.status()
                turns = [each for each in status.partitions if each.topic == AGENT_TURNS]
                if turns and holds(turns[0]):
                    return turns[0], status
                await asyncio.sleep(0.02)

    try:
        yield until
    finally:
        running.cancel()
        await asyncio.wait([running])
        index.close()


async def test_records_that_wait_are_distinguished_from_transaction_markers(broker, prefix, tmp_path, monkeypatch):
    monkeypatch.setattr(watching, "_EVERY_SECONDS", 0.1)
    topic = prefix + AGENT_TURNS
    await harness.make_topics(broker.bootstrap, [topic, prefix + PROVIDER_EVENTS], 1)
    async with (
        AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=f"{prefix}t") as producer,
        watched(broker.bootstrap, prefix, tmp_path) as until,
    ):
        async with Group(broker.bootstrap, prefix) as group:
            async with producer.transaction():
                await producer.send_and_wait(topic, b"{}", b"k")
            await group.commit(2)  # after the record and the end of its transaction
            found, status = await until(lambda each: each.end == 2 and not each.records)
            assert (found.position, status.words) == (2, "keeps up")

            # An aborted transaction leaves offsets that no worker ever takes note of.
            await producer.begin_transaction()
            await producer.send_and_wait(topic, b"{}", b"k")
            await producer.abort_transaction()
            found, status = await until(lambda each: each.end == 4 and not each.records)
            assert (found.position, status.words) == (2, "keeps up")

            # Records of an open transaction wait, and so do committed ones.
            await producer.begin_transaction()
            await producer.send_and_wait(topic, b"{}", b"k")
            await until(lambda each: (each.end, each.records) == (5, 3))
            await producer.commit_transaction()
            found, _ = await until(lambda each: (each.end, each.records) == (6, 4))
            assert found.position == 2
            await group.commit(6)
            _, status = await until(lambda each: not each.records)
            assert (status.words, status.is_at_work) == ("keeps up", True)
        async with producer.transaction():
            await producer.send_and_wait(topic, b"{}", b"k")
        _, status = await until(lambda each: each.records == 2)
        assert (status.level, status.words) == ("bad", "no worker: 2 records wait")

        admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
        await admin.start()
        await admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(-1)})
        await admin.close()
        _, status = await until(lambda each: not each.records)
        assert [(loss.topic, loss.first, loss.next) for loss in status.losses] == [(AGENT_TURNS, 6, 8)]
