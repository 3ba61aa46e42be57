"""A request that ends a transaction reaches a real broker late, during the next transaction of the same partition."""

import asyncio
import signal

import harness
import pytest
import toy_stage
from aiokafka import AIOKafkaProducer

pytestmark = pytest.mark.broker

FIRST = toy_stage.SOURCES[0]


async def send(bootstrap, topic, *values):
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for value in values:
            await producer.send_and_wait(topic, key=b"a", value=value, partition=0)


async def outputs(bootstrap, prefix, count):
    """The values of the outputs, once there are at least ``count``."""
    async with asyncio.timeout(40):
        while True:
            (found,) = await harness.read_all(bootstrap, prefix + toy_stage.OUT, 1)
            if len(found) >= count:
                return [record.value for record in found]
            await asyncio.sleep(0.1)


@pytest.fixture
async def start(broker, prefix, tmp_path, free_port):
    """Return what starts a worker of the pipeline, with a failpoint or without one."""
    fleets = []
    await harness.make_topics(broker.bootstrap, [prefix + name for name in toy_stage.TOPICS], 1)

    def begin(**more):
        directory = tmp_path / str(len(fleets))
        directory.mkdir()
        command = harness.toy_command(
            bootstrap_servers=broker.bootstrap,
            prefix=prefix,
            partitions=1,
            delivery="exactly-once",
            state_dir=str(directory / "state"),
            tuning={"session_seconds": 4.0, "heartbeat_seconds": 1.0},
            **more,
        )
        fleets.append(harness.Fleet(command, directory, free_port))
        return fleets[-1].start()

    yield begin
    for fleet in fleets:
        fleet.end()


async def test_a_late_end_of_a_transaction_does_not_commit_half_of_the_next_one(broker, prefix, start):
    worker = start(failpoint="late end, killed")
    await worker.ready()
    await send(broker.bootstrap, prefix + FIRST, b"1")
    assert await outputs(broker.bootstrap, prefix, 1) == [b"toy.first.v1:0:0:1"]
    await send(broker.bootstrap, prefix + FIRST, b"2")
    assert await worker.wait(20) == -signal.SIGKILL
    refused = "the late EndTxn is answered with error 47" in worker.tail()
    other = start()
    await send(broker.bootstrap, prefix + FIRST, b"3")
    expected = [b"toy.first.v1:0:0:1", b"toy.first.v1:0:1:2", b"toy.first.v1:0:2:3"]
    assert (await outputs(broker.bootstrap, prefix, 3), refused) == (expected, True)
    assert await other.stop() == 0


async def test_a_new_epoch_is_counted_and_reads_no_state_again(broker, prefix, start):
    worker = start(failpoint="late end")
    await worker.ready()
    restored = worker.tail().count("records of state restored")
    await send(broker.bootstrap, prefix + FIRST, b"1")
    await outputs(broker.bootstrap, prefix, 1)
    await send(broker.bootstrap, prefix + FIRST, b"2", b"3")
    expected = [b"toy.first.v1:0:0:1", b"toy.first.v1:0:1:2", b"toy.first.v1:0:2:3"]
    assert await outputs(broker.bootstrap, prefix, 3) == expected
    log = worker.tail(1 << 20)
    assert "the late EndTxn is answered with error 47" in log
    assert 'reknit_producer_epochs_total{topic="toy.first.v1"} 1.0' in worker.ask("/metrics")[1]
    assert (log.count("records of state restored"), log.count("opened again")) == (restored, 0)
    assert await worker.stop() == 0
