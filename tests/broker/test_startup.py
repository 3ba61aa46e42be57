"""A worker that cannot start reports the reason and the remedy, within a time limit, and leaves no process running."""

import asyncio
import socket

import harness
import pytest
import toy_stage
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

pytestmark = pytest.mark.broker

TOPICS = toy_stage.TOPICS


async def start_and_fail(bootstrap, directory, free_port, *, status=2, **more):
    options = {
        "bootstrap_servers": bootstrap,
        "prefix": "",
        "partitions": 2,
        "delivery": "exactly-once",
        "state_dir": str(directory / "state"),
        "tuning": {"start_seconds": 8.0},
    }
    with harness.Fleet(harness.toy_command(**options | more), directory, free_port) as fleet:
        worker = fleet.start()
        assert await worker.wait(20) == status
        return worker.tail()


async def test_no_broker(tmp_path, free_port):
    said = await start_and_fail(f"127.0.0.1:{free_port()}", tmp_path, free_port, status=75)
    assert "ERROR broker_unreachable: no Kafka broker answers at 127.0.0.1:" in said
    assert "is --bootstrap-servers right, and does it speak PLAINTEXT?" in said


async def test_missing_topics_are_named_and_not_created(broker, prefix, tmp_path, free_port):
    await harness.make_topics(broker.bootstrap, [prefix + name for name in TOPICS if name != toy_stage.OUT], 2)
    for _ in range(2):  # asking for a topic must not make it
        said = await start_and_fail(broker.bootstrap, tmp_path, free_port, prefix=prefix)
        assert f"ERROR topics_missing: missing topics: {prefix}toy.out.v1. Run `reknit topics apply" in said
        assert f"--prefix {prefix}`" in said


async def test_topics_of_different_partition_counts(broker, prefix, tmp_path, free_port):
    await harness.make_topics(broker.bootstrap, [prefix + name for name in TOPICS if name != toy_stage.OUT], 2)
    await harness.make_topics(broker.bootstrap, [prefix + toy_stage.OUT], 3)
    said = await start_and_fail(broker.bootstrap, tmp_path, free_port, prefix=prefix)
    assert "ERROR partitions_mismatch: all topics must have the same number of partitions, but " in said
    assert f"{prefix}toy.out.v1 has 3" in said


async def test_a_worker_goes_by_what_the_topics_have_and_names_offsets_that_were_moved_by_hand(
    broker, prefix, tmp_path, free_port
):
    await harness.make_topics(broker.bootstrap, [prefix + name for name in TOPICS], 2)
    place = {"bootstrap_servers": broker.bootstrap, "prefix": prefix, "delivery": "exactly-once"}
    fleet = harness.Fleet(harness.toy_command(**place, partitions=5, state_dir=str(tmp_path)), tmp_path, free_port)
    source, group = prefix + toy_stage.SOURCES[0], f"{prefix}reknit"
    try:
        first = fleet.start()
        await first.ready()
        await send(broker.bootstrap, source, 1, [b"a", b"b"])
        await harness.caught_up(broker.bootstrap, prefix + toy_stage.OUT, [source], 2, 30.0)
        assert await first.stop() == 0
        await move_offset(broker.bootstrap, group, source, 1, 0)
        second = fleet.start()
        await second.ready()
        assert await second.stop() == 0
    finally:
        fleet.end()
    assert f": delivery exactly-once, group {group} at {broker.bootstrap}" in first.tail()
    assert "moved by hand" not in first.tail()
    assert f"{source} partition 1: the group's offset was moved by hand to 0, which changes nothing" in second.tail()
    assert second.tail().count("moved by hand") == 1


async def send(bootstrap, topic, partition, values):
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all")
    await producer.start()
    try:
        for value in values:
            await producer.send_and_wait(topic, value, key=b"k", partition=partition)
    finally:
        await producer.stop()


async def move_offset(bootstrap, group, topic, partition, offset):
    """Do what `kafka-consumer-groups --reset-offsets` does to a group without members."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False)
    await consumer.start()
    try:
        place = TopicPartition(topic, partition)
        consumer.assign([place])
        await consumer.commit({place: offset})
    finally:
        await consumer.stop()


async def test_an_unknown_delivery(broker, prefix, tmp_path, free_port):
    said = await start_and_fail(broker.bootstrap, tmp_path, free_port, prefix=prefix, delivery="at-most-once")
    assert "ERROR delivery_unknown: delivery is 'at-most-once'" in said


async def test_a_state_directory_that_cannot_be_made(broker, prefix, tmp_path, free_port):
    (tmp_path / "file").write_text("")
    said = await start_and_fail(broker.bootstrap, tmp_path, free_port, state_dir=str(tmp_path / "file" / "state"))
    assert "ERROR state_dir_unusable: cannot make" in said


async def test_sigterm_while_it_still_looks_for_a_broker(tmp_path, free_port):
    silent = socket.create_server(("127.0.0.1", 0))  # takes connections and never answers
    port = silent.getsockname()[1]
    options = {"prefix": "", "partitions": 2, "delivery": "exactly-once", "state_dir": str(tmp_path)}
    fleet = harness.Fleet(
        harness.toy_command(bootstrap_servers=f"127.0.0.1:{port}", **options, tuning={"start_seconds": 60.0}),
        tmp_path,
        free_port,
    )
    try:
        worker = fleet.start()
        silent.settimeout(60)
        connection, _ = await asyncio.to_thread(silent.accept)  # the worker looks for a broker
        with connection:
            await asyncio.sleep(1)
            assert worker.running
            assert await worker.stop(5) == 0
    finally:
        fleet.end()
        silent.close()
