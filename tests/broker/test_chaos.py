"""Workers are killed, stopped, frozen and fenced while records arrive; then every source offset is audited."""

import asyncio
import random
import signal

import harness
import pytest
import toy_stage
from aiokafka import AIOKafkaProducer

pytestmark = pytest.mark.broker

PARTITIONS = 6
# A short session keeps the test short: it is how long a killed worker's partitions wait.
TUNING = {"session_seconds": 4.0, "heartbeat_seconds": 1.0, "rebalance_seconds": 10.0}


def toys(bootstrap, prefix, directory, free_port, **tuning):
    return harness.toys(bootstrap, prefix, directory, free_port, partitions=PARTITIONS, tuning=TUNING | tuning)


async def audited(bootstrap, prefix):
    sources = [prefix + source for source in toy_stage.SOURCES]
    await harness.caught_up(bootstrap, prefix + toy_stage.OUT, sources, PARTITIONS, 60)
    return await harness.audit(bootstrap, prefix, toy_stage.ToyStage, toy_stage.SOURCES, [toy_stage.OUT], PARTITIONS)


async def test_kill_9_of_one_of_two_workers_ten_times(broker, prefix, tmp_path, free_port):
    chance = random.Random(11)  # noqa: S311 - reproducible, not secret
    sources = [prefix + source for source in toy_stage.SOURCES]
    async with toys(broker.bootstrap, prefix, tmp_path, free_port) as fleet:
        pair = [fleet.start(), fleet.start()]
        async with harness.Feeder(broker.bootstrap, sources, PARTITIONS, 2_000) as feeder:
            await asyncio.gather(*(worker.ready() for worker in pair))
            for turn in range(10):
                await asyncio.sleep(chance.uniform(0.5, 2.5))
                victim = chance.randrange(2)
                pair[victim].kill()
                # Sometimes the other worker takes over first, sometimes the group meets the newcomer at once.
                await asyncio.sleep(chance.choice([0.0, 5.0]))
                assert pair[1 - victim].running, f"round {turn}\n{pair[1 - victim].tail()}"
                pair[victim] = fleet.start()
        assert feeder.sent > 10_000
        assert await audited(broker.bootstrap, prefix) == feeder.sent
        assert [await worker.stop() for worker in pair] == [0, 0]


async def test_scaling_freezing_and_a_source_full_of_markers(broker, prefix, tmp_path, free_port):
    sources = [prefix + source for source in toy_stage.SOURCES]
    async with toys(broker.bootstrap, prefix, tmp_path, free_port) as fleet:
        first = fleet.start()
        feeder = harness.Feeder(broker.bootstrap, sources, PARTITIONS, 1_000, transactions=f"{prefix}feeder")
        async with feeder:
            await first.ready()
            second, third = fleet.start(), fleet.start()
            await asyncio.gather(second.ready(), third.ready())
            await asyncio.sleep(2)
            assert await second.stop() == 0
            await asyncio.sleep(1)
            assert await third.stop() == 0
            other = fleet.start()
            await other.ready()
            for _ in range(2):
                # Frozen past its session, it loses its partitions. When it wakes in the middle of a batch it is fenced.
                other.signal(signal.SIGSTOP)
                await asyncio.sleep(7)
                other.signal(signal.SIGCONT)
                await asyncio.sleep(4)
                if not other.running:
                    assert other.status == 75
                    other = fleet.start()
                    await other.ready()
        total = await audited(broker.bootstrap, prefix)
        assert 5_000 < total < feeder.sent, "a quarter of the transactions is aborted"
        assert await first.stop() == 0
        assert await other.stop() == 0


async def test_a_worker_that_rarely_runs_finishes_its_work(broker, prefix, tmp_path, free_port):
    """Its guard ends it after 8 s without progress, and each of its batches takes longer than that."""
    source, tuning = prefix + toy_stage.SOURCES[0], {"session_seconds": 6.0, "stall_seconds": 8.0, "slice_records": 1}
    async with toys(broker.bootstrap, prefix, tmp_path, free_port, **tuning) as fleet:
        worker = fleet.start()
        await worker.ready()
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
            # Its first fetch, which needs several round trips, is complete before it is stopped for the first time.
            for partition in range(2):
                await producer.send_and_wait(source, b"first", key=b"k", partition=partition)
            await harness.caught_up(broker.bootstrap, prefix + toy_stage.OUT, [source], PARTITIONS, 30)
            for number in range(60):
                await producer.send(source, toy_stage.SLOW + b"0.05", key=b"k", partition=number % 2)
        stops = 0
        while await produced(broker.bootstrap, prefix) < 62:
            assert (worker.status, stops < 300) == (None, True), worker.tail()
            stops += 1
            for number, stays in ((signal.SIGSTOP, 1.5), (signal.SIGCONT, 0.5)):
                worker.signal(number)
                await asyncio.sleep(stays)
        assert stops > 2
        assert await audited(broker.bootstrap, prefix) == 62
        assert await worker.stop() == 0


async def produced(bootstrap, prefix):
    return sum(map(len, await harness.read_all(bootstrap, prefix + toy_stage.OUT, PARTITIONS)))


async def test_the_broker_dies_and_comes_back(own_broker, prefix, tmp_path, free_port):
    sources = [prefix + source for source in toy_stage.SOURCES]
    async with toys(own_broker.bootstrap, prefix, tmp_path, free_port) as fleet:
        pair = [fleet.start(), fleet.start()]
        async with harness.Feeder(own_broker.bootstrap, sources, PARTITIONS, 1_500):
            await asyncio.gather(*(worker.ready() for worker in pair))
            for end in (own_broker.kill, own_broker.stop):
                await asyncio.sleep(2)
                await asyncio.to_thread(end)
                await asyncio.sleep(3)
                await asyncio.to_thread(own_broker.start)
                await asyncio.sleep(4)
        assert await audited(own_broker.bootstrap, prefix) > 5_000
        assert [await worker.stop() for worker in pair] == [0, 0], "nobody gave up meanwhile"
