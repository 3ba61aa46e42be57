"""The broker of docker-compose.yml, from real jars with the same settings: it starts, and takes the declared topics."""

import asyncio
import json
import os
import socket
import subprocess
import sys

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from compose_settings import listener_names, settings_here

from reknit.pipeline.config import load_config
from reknit.pipeline.kafka.admin import connected
from reknit.topics import AGENT_TURNS, LARGEST_INPUT, TOPICS

pytestmark = pytest.mark.broker


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def compose_broker(broker, tmp_path_factory):
    # `broker` skips or fails where there is no Java, and knows how to start a node.
    class ComposeBroker(type(broker)):
        def _write_properties(self):
            ports = {"CONTROLLER": self.controller_port, "PLAINTEXT": free_port(), "PLAINTEXT_HOST": self.port}
            assert list(ports) == listener_names()
            settings = settings_here(self.directory / "data", ports)
            path = self.directory / "server.properties"
            path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
            return path

    server = ComposeBroker(tmp_path_factory.mktemp("compose"))
    server.start()
    try:
        yield server
    finally:
        server.stop()


def reknit(server, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", "from reknit.pipeline.cli import main; main()", "topics", *arguments],
        env={**os.environ, "REKNIT_BOOTSTRAP_SERVERS": server.bootstrap, "REKNIT_PARTITIONS": "3"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    return done.returncode, {row["topic"]: row for row in map(json.loads, done.stdout.splitlines())}, done.stderr


def statuses(rows):
    return [row["status"] for row in rows.values()]


def test_apply_creates_and_then_finds_nothing_to_do(compose_broker):
    code, rows, words = reknit(compose_broker, "apply", "--prefix", "a.")
    assert (code, list(rows)) == (0, [f"a.{topic.name}" for topic in TOPICS]), words
    assert statuses(rows) == ["created"] * 8
    code, rows, _ = reknit(compose_broker, "apply", "--prefix", "a.")
    assert (code, statuses(rows)) == (0, ["unchanged"] * 8)
    code, rows, _ = reknit(compose_broker, "diff", "--prefix", "a.")
    assert (code, [row["differences"] for row in rows.values()]) == (0, [[]] * 8)


def test_drift_is_refused_until_it_is_to_be_fixed(compose_broker):
    name = f"b.{AGENT_TURNS}"
    config = load_config(env={}, overrides={"bootstrap_servers": compose_broker.bootstrap})
    assert reknit(compose_broker, "apply", "--prefix", "b.")[0] == 0

    async def overrides(**changes):
        async with connected(config) as cluster:
            found = (await cluster.describe([name]))[name].overrides
            if changes:
                await cluster.alter(name, {**found, **changes})
            return found

    asyncio.run(overrides(**{"retention.ms": "5000", "flush.messages": "77"}))
    code, rows, words = reknit(compose_broker, "apply", "--prefix", "b.")
    assert (code, rows[name]["status"]) == (4, "drift")
    wanted = str(30 * 24 * 60 * 60 * 1000)
    assert rows[name]["differences"] == [
        {"topic": name, "setting": "retention.ms", "wanted": wanted, "found": "5000", "kind": "setting"}
    ]
    assert f"{name}  retention.ms  {wanted}  5000" in words
    code, rows, _ = reknit(compose_broker, "apply", "--prefix", "b.", "--fix")
    assert (code, rows[name]["status"]) == (0, "altered")
    after = asyncio.run(overrides())
    # A setting of another party on the topic is unchanged.
    assert (after["retention.ms"], after["flush.messages"]) == (wanted, "77")


def test_a_partition_count_is_never_altered_and_nothing_else_is_touched(compose_broker):
    assert reknit(compose_broker, "apply", "--prefix", "c.")[0] == 0
    code, rows, words = reknit(compose_broker, "apply", "--prefix", "c.", "--partitions", "5", "--fix")
    assert (code, statuses(rows)) == (4, ["drift"] * 8)
    assert words.count("cannot be altered") == 8
    assert reknit(compose_broker, "diff", "--prefix", "c.")[0] == 0


def test_more_copies_than_brokers_are_refused_in_the_brokers_words(compose_broker):
    code, rows, words = reknit(compose_broker, "apply", "--prefix", "d.", "--replication-factor", "3")
    assert (code, rows) == (2, {})
    assert "replication factor of 3 cannot be reached" in words
    assert "[broker_refused]" in words


async def test_an_input_of_nearly_the_largest_size_passes(compose_broker):
    assert (await asyncio.to_thread(reknit, compose_broker, "apply", "--prefix", "e."))[0] == 0
    # Bytes that do not compress, so that the broker sees the size.
    value = os.urandom(LARGEST_INPUT - 1024)
    producer = AIOKafkaProducer(
        bootstrap_servers=compose_broker.bootstrap, max_request_size=LARGEST_INPUT, request_timeout_ms=60_000
    )
    await producer.start()
    try:
        sent = await producer.send_and_wait(f"e.{AGENT_TURNS}", value=value, partition=0)
    finally:
        await producer.stop()
    consumer = AIOKafkaConsumer(bootstrap_servers=compose_broker.bootstrap, fetch_max_bytes=LARGEST_INPUT)
    await consumer.start()
    try:
        partition = TopicPartition(f"e.{AGENT_TURNS}", 0)
        consumer.assign([partition])
        consumer.seek(partition, sent.offset)
        record = await asyncio.wait_for(consumer.getone(), 240)
    finally:
        await consumer.stop()
    assert record.value == value
