"""The behaviour of public calls of aiokafka that the engine relies on, and of its client's thread, on a real broker."""

from __future__ import annotations

import asyncio
import contextlib
import time

import harness
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.consumer import consumer as consumer_module
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.errors import InconsistentGroupProtocolError, OffsetOutOfRangeError
from aiokafka.protocol.group import JoinGroupRequest

from reknit.pipeline.engine.client_patch import Coordinator
from reknit.pipeline.engine.member import Member
from reknit.pipeline.engine.runtime import NoMetrics, Runtime, Tuning
from reknit.pipeline.engine.seams import KafkaBrokers
from reknit.pipeline.settings import Config

pytestmark = pytest.mark.broker

SESSION_SECONDS = 4.0
IN = "in.v1"


@pytest.fixture
async def places(broker, prefix):
    """Two partitions of a new topic."""
    await harness.make_topics(broker.bootstrap, [prefix + IN], 2)
    return [TopicPartition(prefix + IN, number) for number in range(2)]


async def write(broker, place, *values):
    """Write records in a transaction, which ends with a marker."""
    producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=f"{place.topic}-writer")
    await producer.start()
    async with producer.transaction():
        for value in values:
            await producer.send_and_wait(place.topic, value, partition=place.partition)
    await producer.stop()


@contextlib.asynccontextmanager
async def reader(broker, *places):
    consumer = AIOKafkaConsumer(
        bootstrap_servers=broker.bootstrap,
        isolation_level="read_committed",
        auto_offset_reset="none",
        enable_auto_commit=False,
    )
    await consumer.start()
    try:
        consumer.assign(places)
        for place in places:
            consumer.seek(place, 0)
        yield consumer
    finally:
        await consumer.stop()


async def test_positions_before_and_after_a_poll_enclose_its_records_and_markers(broker, places):
    place = places[0]
    await write(broker, place, b"a", b"b")
    async with reader(broker, place) as consumer:
        before = await consumer.position(place)
        found = await consumer.getmany(place, timeout_ms=20_000, max_records=1)
        assert [record.offset for record in found[place]] == [0]
        assert (before, await consumer.position(place)) == (0, 1)
        found = await consumer.getmany(place, timeout_ms=20_000)
        while await consumer.position(place) < 3:  # the marker is passed with the records, or with the next fetch
            assert await consumer.getmany(place, timeout_ms=20_000) == {}
        assert [record.offset for record in found[place]] == [1]
        assert consumer.last_stable_offset(place) == 3


async def test_a_poll_that_is_cancelled_has_taken_nothing(broker, places):
    place = places[0]
    async with reader(broker, place) as consumer:
        for _ in range(20):
            polling = asyncio.create_task(consumer.getmany(place, timeout_ms=20_000))
            await asyncio.sleep(0.01)
            polling.cancel()
            await asyncio.wait([polling])
            assert (polling.cancelled(), await consumer.position(place)) == (True, 0)
        await write(broker, place, b"a")
        found = await consumer.getmany(place, timeout_ms=20_000)
        assert [record.value for record in found[place]] == [b"a"]


async def test_a_position_outside_of_the_log_is_an_error_that_names_the_partition(broker, places):
    place, other = places
    await write(broker, place, b"a")
    async with reader(broker, place, other) as consumer:
        consumer.seek(place, 90)
        with pytest.raises(OffsetOutOfRangeError) as error:
            await consumer.getmany(place, timeout_ms=20_000)
        assert error.value.args[0] == {place: 90}
        assert await consumer.getmany(other, timeout_ms=0) == {}
        consumer.seek(place, 0)
        found = await consumer.getmany(place, timeout_ms=20_000)
        assert [record.value for record in found[place]] == [b"a"]


class Listener(ConsumerRebalanceListener):
    def __init__(self, name, steps, seconds=0.0):
        self.name, self.steps, self.seconds = name, steps, seconds

    async def on_partitions_revoked(self, revoked):
        if revoked:
            self.steps.append(f"{self.name} lets go")
            await asyncio.sleep(self.seconds)
            self.steps.append(f"{self.name} has let go")

    async def on_partitions_assigned(self, assigned):
        self.steps.append(f"{self.name} has {sorted(place.partition for place in assigned)}")


def group_member(broker, prefix, *strategies):
    return AIOKafkaConsumer(
        bootstrap_servers=broker.bootstrap,
        group_id=f"{prefix}group",
        partition_assignment_strategy=strategies or [RangePartitionAssignor],
        session_timeout_ms=int(SESSION_SECONDS * 1000),
        rebalance_timeout_ms=30_000,
        heartbeat_interval_ms=500,
        max_poll_interval_ms=2**31 - 1,
        enable_auto_commit=False,
    )


async def joins(consumer, topic, listener):
    await consumer.start()
    consumer.subscribe([topic], listener=listener)


async def until(done, seconds=60):
    end = harness.deadline_after(seconds)
    while not done():
        assert time.monotonic() < end
        await asyncio.sleep(0.05)


async def test_a_group_waits_for_a_listener_and_its_member_stays_meanwhile(broker, prefix, places):
    steps, brokers = [], KafkaBrokers()
    first, second = group_member(broker, prefix), group_member(broker, prefix)
    try:
        await joins(first, places[0].topic, Listener("first", steps, 1.5 * SESSION_SECONDS))
        await until(lambda: steps)
        generation = brokers.generation(first)
        await joins(second, places[0].topic, Listener("second", steps))
        await until(lambda: len(steps) == 5)
        assert steps[:3] == ["first has [0, 1]", "first lets go", "first has let go"]
        assert len({*steps[3:]} & {"first has [0]", "first has [1]"}) == 1
        # It was a member all the time: the generation is the next one.
        assert brokers.generation(first) == brokers.generation(second) == generation + 1
    finally:
        await asyncio.gather(first.stop(), second.stop())


async def test_two_members_that_join_at_once_settle_if_each_offers_two_strategies(broker, prefix, places, monkeypatch):
    monkeypatch.setattr(consumer_module, "GroupCoordinator", Coordinator)
    strategies = (RangePartitionAssignor, RoundRobinPartitionAssignor)
    first, second = group_member(broker, prefix, *strategies), group_member(broker, prefix, *strategies)
    steps, second_joins = [], asyncio.Event()
    send, send_of_second = first._client.send, second._client.send

    async def notes_that_it_joins(node, request, **options):
        if isinstance(request, JoinGroupRequest) and request._member_id:
            second_joins.set()
        return await send_of_second(node, request, **options)

    async def answers_after_the_other_joins(node, request, **options):
        answer = await send(node, request, **options)
        if isinstance(request, JoinGroupRequest) and answer.error_code == 0 and not second_joins.is_set():
            await joins(second, places[0].topic, Listener("second", steps))
            await second_joins.wait()
            await asyncio.sleep(0.5)  # its request arrives
        return answer

    monkeypatch.setattr(first._client, "send", answers_after_the_other_joins)
    monkeypatch.setattr(second._client, "send", notes_that_it_joins)
    try:
        await joins(first, places[0].topic, Listener("first", steps))
        await until(lambda: len(first.assignment()) == len(second.assignment()) == 1)
        # Each has one assignment, and joins no more.
        await asyncio.sleep(2)
        assert sorted(steps) == ["first has [0]", "second has [1]"] or sorted(steps) == [
            "first has [1]",
            "second has [0]",
        ]
    finally:
        await asyncio.gather(first.stop(), second.stop())


async def polls_of_nowhere(consumer):
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.0):
                await consumer.getmany(TopicPartition("", 0))
        await asyncio.sleep(0.05)


async def test_a_poll_of_no_topic_raises_what_keeps_a_member_from_joining(broker, prefix, places):
    first, second = group_member(broker, prefix), group_member(broker, prefix, RoundRobinPartitionAssignor)
    steps = []
    try:
        await joins(first, places[0].topic, Listener("first", steps))
        await until(lambda: steps)
        await joins(second, places[0].topic, Listener("second", steps))
        with pytest.raises(InconsistentGroupProtocolError):
            await polls_of_nowhere(second)
    finally:
        await asyncio.gather(first.stop(), second.stop())


# The member of a worker, whose client is in a thread.


class Owner:
    """A member and its calls, which come in the worker's loop."""

    def __init__(self, broker, prefix):
        tuning = Tuning(session_seconds=SESSION_SECONDS, heartbeat_seconds=0.5)
        config = Config(bootstrap_servers=broker.bootstrap, prefix=prefix)
        self.runtime = Runtime(config, {IN: None}, NoMetrics(), tuning)
        self.assigned, self.continued, self.loops = set(), [], set()
        self.member = Member(
            self.runtime,
            [RangePartitionAssignor],
            on_revoked=self._on_revoked,
            on_assigned=self._on_assigned,
            metadata_of=lambda _: "reknit",
        )

    async def _on_revoked(self):
        self.member.in_group.clear()
        self.assigned = set()

    async def _on_assigned(self, assigned, continues):
        self.loops.add(asyncio.get_running_loop())
        self.assigned = assigned
        self.continued.append(continues)
        self.member.in_group.set()


@pytest.fixture
async def owners(broker, prefix, places):
    """Return what starts a member; ends all of them."""
    made = []

    async def start():
        made.append(Owner(broker, prefix))
        await made[-1].member.start()
        await until(lambda: made[-1].assigned)
        return made[-1]

    yield start
    for owner in made:
        await owner.member.stop()


async def test_a_worker_whose_loop_is_busy_for_longer_than_a_session_stays_a_member(owners, places):
    owner = await owners()
    await asyncio.sleep(0.1)  # the client sends heartbeats once its call of the owner has returned
    time.sleep(2 * SESSION_SECONDS)  # noqa: ASYNC251  as a slice of records does
    await asyncio.sleep(1)
    assert await owner.member.is_ours(places[0], 0) is True
    assert (len(owner.continued), owner.loops) == (1, {asyncio.get_running_loop()})


async def test_records_are_read_from_the_thread_until_it_is_poked(owners, broker, places):
    owner = await owners()
    member, place = owner.member, places[0]
    await member.seek({place: 0})
    polling = asyncio.create_task(member.spans({place}, 600.0))
    await asyncio.sleep(1)
    member.poke()
    async with asyncio.timeout(60):
        assert await polling == {}
    await write(broker, place, b"a")
    async with asyncio.timeout(60):
        while not (found := await member.spans({place}, 10.0)):
            pass
    assert [(span.start, [each.value for each in span.records]) for span in found.values()] == [(0, [b"a"])]


async def test_a_rebalance_ends_a_poll_and_moves_partitions(owners, places):
    first = await owners()
    await first.member.seek(dict.fromkeys(places, 0))
    polling = asyncio.create_task(first.member.spans(set(places), 600.0))
    second = await owners()
    async with asyncio.timeout(60):
        assert await polling == {}
    await until(lambda: first.assigned)
    assert first.assigned | second.assigned == set(places)
    (moved,) = second.assigned
    assert await first.member.is_ours(moved, 0) is not True
    await second.member.commit_positions({moved: 7})
    assert await first.member.committed_by_worker(moved) is not None
    assert await first.member.committed_by_hand(moved) is None


async def test_a_stopped_member_leaves_the_group_and_its_thread_ends(owners, places):
    first, second = await owners(), await owners()
    await until(lambda: first.assigned)
    await second.member.stop()
    await until(lambda: first.assigned == set(places))
    assert not second.member._loop._thread.is_alive()
