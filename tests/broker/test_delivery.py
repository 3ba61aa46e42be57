"""One worker on a real broker: poison, large records, fencing, prefixes, ports, stopping."""

import asyncio
import hashlib
import time

import harness
import pytest
import toy_stage
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from reknit.pipeline import __version__
from reknit.pipeline.stages.base import POSITION

pytestmark = pytest.mark.broker

PARTITIONS = 2
FIRST = toy_stage.SOURCES[0]
DEAD = "pipeline.dead-letters.v1"
MIB = 1 << 20


@pytest.fixture
async def make(broker, tmp_path, free_port):
    """Return what makes a pipeline's topics and its fleet; ends every worker at the end."""
    fleets = []

    async def build(prefix, **more):
        await harness.make_topics(
            broker.bootstrap,
            [prefix + name for name in toy_stage.TOPICS],
            PARTITIONS,
            **{"max.message.bytes": str(68 * MIB)},
        )
        options = {
            "bootstrap_servers": broker.bootstrap,
            "prefix": prefix,
            "partitions": PARTITIONS,
            "delivery": "exactly-once",
            "state_dir": str(tmp_path / "state"),
            "tuning": {"session_seconds": 4.0, "heartbeat_seconds": 1.0},
        }
        fleets.append(harness.Fleet(harness.toy_command(**options | more), tmp_path, free_port))
        return fleets[-1]

    yield build
    for fleet in fleets:
        fleet.end()


async def send(bootstrap, topic, rows, partition=0):
    """Send (key, value) rows, each with a header, and return when all are stored."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, max_request_size=70 * MIB)
    await producer.start()
    try:
        for key, value in rows:
            await producer.send_and_wait(topic, key=key, value=value, partition=partition, headers=[("h", b"1")])
    finally:
        await producer.stop()


async def until_done(bootstrap, prefix, offset, seconds=40):
    """Wait until the group has committed an offset."""
    deadline = harness.deadline_after(seconds)
    while (await harness.committed(bootstrap, f"{prefix}reknit", prefix + FIRST)).get(0, 0) < offset:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)


async def outputs(bootstrap, prefix, topic=toy_stage.OUT, partition=0):
    return (await harness.read_all(bootstrap, prefix + topic, PARTITIONS))[partition]


async def test_poison_becomes_a_dead_letter_and_leaves_no_trace_in_the_state(broker, prefix, make):
    rows = [(b"a", b"1"), (b"a", b"2"), (b"a", toy_stage.POISON), (b"a", b"3"), (b"b", toy_stage.POISON), (b"b", b"4")]
    fleet = await make(prefix)
    await send(broker.bootstrap, prefix + FIRST, rows)
    worker = fleet.start()
    await until_done(broker.bootstrap, prefix, len(rows))
    await send(broker.bootstrap, prefix + FIRST, [(b"a", b"5")])
    await until_done(broker.bootstrap, prefix, len(rows) + 1)
    assert [record.value for record in await outputs(broker.bootstrap, prefix)] == [
        b"toy.first.v1:0:0:1",
        b"toy.first.v1:0:1:2",
        b"toy.first.v1:0:3:3",
        b"toy.first.v1:0:5:1",
        b"toy.first.v1:0:6:4",
    ]
    letters = await outputs(broker.bootstrap, prefix, DEAD)
    assert [(letter.key, letter.value) for letter in letters] == [(b"a", b"poison"), (b"b", b"poison")]
    assert letters[0].headers == (
        ("h", b"1"),
        ("reknit.error.code", b"internal"),
        ("reknit.error.topic", b"toy.first.v1"),
        ("reknit.error.partition", b"0"),
        ("reknit.error.offset", b"2"),
        ("reknit.error.version", __version__.encode()),
    )
    assert worker.running
    assert "poison" not in worker.tail(1 << 20).replace("is poison", ""), "content never appears in logs"


async def test_records_of_64_mib_go_through_and_larger_outputs_become_letters(broker, prefix, make):
    fleet = await make(prefix)
    big = 64 * MIB - 200
    await send(broker.bootstrap, prefix + FIRST, [(b"big", b"x" * big)])
    await send(broker.bootstrap, prefix + FIRST, [(b"big", b"huge:%d" % (60 * MIB)), (b"big", b"huge:%d" % (80 * MIB))])
    fleet.start()
    await until_done(broker.bootstrap, prefix, 3)
    found = await outputs(broker.bootstrap, prefix)
    assert [len(record.value) for record in found] == [len("toy.first.v1:0:0:1"), len("toy.first.v1:0:1:2:") + 60 * MIB]
    (letter,) = await outputs(broker.bootstrap, prefix, DEAD)
    lost = b"toy.first.v1:0:2:3:" + b"x" * (80 * MIB)
    assert letter.key == b"big"
    assert letter.value is None
    assert dict(letter.headers) == {
        "reknit.error.code": b"size",
        "reknit.error.topic": b"toy.first.v1",
        "reknit.error.partition": b"0",
        "reknit.error.offset": b"2",
        "reknit.error.version": __version__.encode(),
        "reknit.error.output-topic": b"toy.out.v1",
        "reknit.error.value-bytes": b"%d" % len(lost),
        "reknit.error.value-sha256": hashlib.sha256(lost).hexdigest().encode(),
    }


async def test_sigterm_finishes_the_batch_in_flight(broker, prefix, make):
    fleet = await make(prefix)
    worker = fleet.start()
    await worker.ready()
    await send(broker.bootstrap, prefix + FIRST, [(b"a", b"slow:1.5")])
    await asyncio.sleep(0.9)  # the first fetch from this partition may wait 0.5 s for one from another partition
    assert await worker.stop() == 0
    assert [record.value for record in await outputs(broker.bootstrap, prefix)] == [b"toy.first.v1:0:0:1"]
    # No transaction is left open: a reader's end is the log's end.
    first, last = [], []
    for isolation, ends in (("read_committed", first), ("read_uncommitted", last)):
        async with harness.reader(broker.bootstrap, isolation) as consumer:
            tps = [TopicPartition(prefix + toy_stage.OUT, number) for number in range(PARTITIONS)]
            ends.append(await consumer.end_offsets(tps))
    assert first == last


async def test_a_stage_that_never_returns_ends_the_process(broker, prefix, make):
    fleet = await make(prefix, tuning={"loop_stuck_seconds": 3.0})
    worker = fleet.start()
    await worker.ready()
    await send(broker.bootstrap, prefix + FIRST, [(b"a", b"slow:600")])
    assert await worker.wait(20) == 75
    assert "the event loop has not turned for 3 s; ending the process, nothing was committed" in worker.tail()


async def test_a_source_whose_beginning_expired_continues_and_reports_the_loss(broker, prefix, make):
    fleet = await make(prefix)
    await send(broker.bootstrap, prefix + FIRST, [(b"a", b"%d" % n) for n in range(6)])
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    await admin.start()
    await admin.delete_records({TopicPartition(prefix + FIRST, 0): RecordsToDelete(before_offset=4)})
    await admin.close()
    worker = fleet.start()
    await until_done(broker.bootstrap, prefix, 6)
    assert [record.value for record in await outputs(broker.bootstrap, prefix)] == [
        b"toy.first.v1:0:4:1",
        b"toy.first.v1:0:5:2",
    ]
    assert "toy.first.v1 partition 0: offsets 0 to 3 expired before they were read" in worker.tail()


async def test_an_input_that_ends_before_its_position_is_refused_in_a_sentence(broker, prefix, make):
    fleet = await make(prefix)
    await send(broker.bootstrap, prefix + FIRST, [(b"a", b"%d" % n) for n in range(6)])
    worker = fleet.start()
    await until_done(broker.bootstrap, prefix, 6)
    assert await worker.stop() == 0
    # An older build stores no topic ids, so the worker cannot know that the topic was re-created.
    await send(broker.bootstrap, prefix + toy_stage.STATES[0], [(POSITION, b"6")])
    await harness.recreate_topics(broker.bootstrap, [prefix + FIRST], PARTITIONS)
    worker = fleet.start()
    assert await worker.wait(40) == 2
    said = f"{prefix}{FIRST} partition 0 ends at offset 0, but it was processed up to 6; if the topic was re-created, "
    assert f"{said}`reknit topics accept {FIRST} --from earliest" in worker.tail()
    assert "Traceback" not in worker.tail()


async def test_two_prefixes_on_one_broker_do_not_meet(broker, prefix, make):
    left, right = f"{prefix}left.", f"{prefix}right."
    fleets = [await make(left), await make(right)]
    workers = [fleet.start() for fleet in fleets]
    await asyncio.gather(*(worker.ready() for worker in workers))
    await send(broker.bootstrap, left + FIRST, [(b"a", b"1"), (b"a", b"2")])
    await send(broker.bootstrap, right + FIRST, [(b"a", b"1")])
    await until_done(broker.bootstrap, left, 2)
    await until_done(broker.bootstrap, right, 1)
    assert len(await outputs(broker.bootstrap, left)) == 2
    assert len(await outputs(broker.bootstrap, right)) == 1
    assert [await worker.stop() for worker in workers] == [0, 0]


async def test_two_workers_with_one_port_and_what_they_serve(broker, prefix, make, tmp_path):
    fleet = await make(prefix)
    first = fleet.start()
    await first.ready()
    second = harness.WorkerProcess("second", fleet._command(first.port), tmp_path / "second.log", 0).start()
    fleet.workers.append(second)
    assert await second.wait(20) == 2
    assert f"cannot listen on 127.0.0.1 port {first.port}: Address already in use. Set another" in second.tail()
    assert first.ask("/readyz") == first.ask("/livez") == (200, "ok\n")
    assert first.ask("/metrics")[0] == 200
    assert first.ask("/other")[0] == 404


async def test_two_hundred_thousand_state_records_are_read_back_and_nothing_aborted_is(broker, prefix, make):
    from reknit.pipeline.engine.state import restore

    await make(prefix)
    count = 200_000
    producer = AIOKafkaProducer(
        bootstrap_servers=broker.bootstrap, transactional_id=f"{prefix}state", max_batch_size=1 << 18
    )
    await producer.start()
    await producer.begin_transaction()
    batch = producer.create_batch()
    for n in range(count):
        row = {"key": b"session-%d" % n, "value": b"v" * 100, "timestamp": None}
        if batch.append(**row) is None:
            await producer.send_batch(batch, prefix + toy_stage.STATES[0], partition=0)
            batch = producer.create_batch()
            batch.append(**row)
    batch.append(key=POSITION, value=b"41", timestamp=None)
    await producer.send_batch(batch, prefix + toy_stage.STATES[0], partition=0)
    await producer.commit_transaction()
    await producer.begin_transaction()
    await producer.send_and_wait(prefix + toy_stage.STATES[0], key=b"session-0", value=b"aborted", partition=0)
    await producer.abort_transaction()
    await producer.stop()
    state = {}
    restored = await restore(
        {"bootstrap_servers": broker.bootstrap}, prefix + toy_stage.STATES[0], 0, state.__setitem__, committed_only=True
    )
    assert restored.position == 41
    assert restored.records == count + 1
    assert len(state) == count
    assert state[b"session-0"] == b"v" * 100
