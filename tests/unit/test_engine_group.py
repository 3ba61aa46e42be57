"""The group client in its thread: its commits as a member, and calls while a broker does not answer."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import (
    CommitFailedError,
    ConsumerStoppedError,
    GroupAuthorizationFailedError,
    IllegalGenerationError,
    KafkaConnectionError,
    KafkaError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from aiokafka.structs import OffsetAndMetadata
from aiokafka.util import commit_structure_validate
from faust.transport.consumer import ConsumerThread, Fetcher
from faust.transport.drivers import aiokafka as driver
from msgspec import structs

from reknit.pipeline.engine import transport
from reknit.pipeline.engine.partition import Phase
from reknit.pipeline.engine.runtime import NoMetrics, Runtime, Tuning
from reknit.pipeline.engine.transport import SpanThread
from reknit.pipeline.engine.worker import make_app
from reknit.pipeline.settings import Config

CONFIG = Config(bootstrap_servers="nobody:1", prefix="p.", delivery="at-least-once")
PLACE = TopicPartition("in.v1", 0)


@pytest.fixture
async def app(tmp_path):
    """An app whose client thread has not been started."""
    made = make_app(Runtime(structs.replace(CONFIG, state_dir=str(tmp_path)), {}, NoMetrics(), Tuning()))
    yield made
    loop = made.consumer._thread.thread_loop
    if not loop.is_closed():
        await asyncio.to_thread(lambda: loop.run_until_complete(asyncio.sleep(0)))  # for callbacks scheduled in it
        loop.close()


async def test_a_worker_that_stops_during_a_rebalance_is_not_reported_as_crashed(app):
    app.rebalancing = True
    fetcher = Fetcher(app)
    await fetcher.start()
    await asyncio.sleep(0)  # it waits for the rebalance to end
    await fetcher.stop()
    assert fetcher.crash_reason is None


async def test_reading_continues_after_the_client_cancelled_a_call(app, monkeypatch, caplog):
    consumer, fetcher, read = app.consumer, SimpleNamespace(should_stop=False), []

    async def spans(_wanted, _seconds):
        read.append("call")
        if len(read) == 1:
            raise asyncio.CancelledError
        fetcher.should_stop = True
        return {}

    async def align():
        pass

    monkeypatch.setattr(consumer._thread, "spans", spans)
    monkeypatch.setattr(consumer, "_align", align)
    async with asyncio.timeout(60):
        await consumer._drain_messages(fetcher)
    assert (len(read), "the inputs could not be read: CancelledError" in caplog.text) == (2, True)


async def test_reading_ends_when_it_is_cancelled(app, monkeypatch):
    consumer, has_begun = app.consumer, asyncio.Event()

    async def align():
        has_begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(consumer, "_align", align)
    reading = asyncio.create_task(consumer._drain_messages(SimpleNamespace(should_stop=False)))
    async with asyncio.timeout(60):
        await has_begun.wait()
        reading.cancel()
        assert await reading is None


async def test_nothing_is_committed_while_the_group_rebalances(app, monkeypatch):
    async def by_faust(*_arguments):
        pass

    async def call(_thread, method, *arguments):
        called.append((method.__name__, *arguments))
        return True

    called, place = [], TopicPartition("in.v1", 0)
    for name in ("on_partitions_revoked", "on_partitions_assigned"):
        monkeypatch.setattr(driver.Consumer, name, by_faust)
    monkeypatch.setattr(SpanThread, "call_thread", call)
    consumer = app.consumer
    for generation in (1, 2):
        called.clear()
        await consumer.on_partitions_revoked(set())
        committing = asyncio.create_task(consumer._thread.commit_positions({place: 5}))
        assert await consumer._thread.is_ours(place, 5) is None
        await asyncio.sleep(0)
        assert called == []
        await consumer.on_partitions_assigned(set(), generation)
        await committing
        assert await consumer._thread.is_ours(place, 5) is True
        assert called == [("_commit_positions", {place: 5}), ("_commit_as_owner", place, 5)]


async def test_an_actor_that_closes_itself_while_others_are_closed_is_opened_again(app, monkeypatch):
    async def by_faust(*_arguments):
        pass

    async def nothing():
        pass

    async def close():
        stays.phase = Phase.CLOSED  # its batch in flight failed

    def actor(phase, close):
        return SimpleNamespace(topic="in.v1", number=0, phase=phase, close=close)

    stays, leaves, opened = actor(Phase.PAUSED, nothing), actor(Phase.PAUSED, close), actor(Phase.OPENING, nothing)
    monkeypatch.setattr(driver.Consumer, "on_partitions_assigned", by_faust)
    monkeypatch.setattr(transport, "Partition", lambda *_, **__: opened)
    consumer = app.consumer
    consumer._runtime.stages["in.v1"] = None
    place, other = TopicPartition("p.in.v1", 0), TopicPartition("p.in.v1", 1)
    consumer.actors, consumer._generation = {place: stays, other: leaves}, 7
    await consumer.on_partitions_assigned({place}, 8)
    assert consumer.actors == {place: opened}


class Coordinator:
    """``answers`` are those of the next heartbeats."""

    def __init__(self):
        self.generation, self.answers = 7, [True]

    async def _do_heartbeat(self):
        return self.answers.pop(0) if self.answers else True


class GroupMember:
    """A group consumer in generation 7, with the client's own check of its commits."""

    def __init__(self, assigned):
        self.assigned, self.committed = assigned, []
        self._coordinator = Coordinator()
        self.sent = asyncio.Event()
        self.answer = asyncio.Event()
        self.answer.set()
        self.error = None

    def assignment(self):
        return self.assigned

    async def commit(self, offsets):
        self.sent.set()
        await self.answer.wait()
        if self.error:
            raise self.error
        self.committed.append(commit_structure_validate(offsets))


@pytest.mark.parametrize(
    ("assigned", "positions", "committed"),
    [
        (set(), {}, []),
        (set(), {TopicPartition("in.v1", 0): 5}, []),
        ({TopicPartition("in.v1", 1)}, {TopicPartition("in.v1", 0): 5}, []),
        (
            {TopicPartition("in.v1", 0)},
            {TopicPartition("in.v1", 0): 5, TopicPartition("in.v1", 1): 6},
            [{TopicPartition("in.v1", 0): OffsetAndMetadata(5, "reknit")}],
        ),
    ],
)
async def test_a_member_commits_only_partitions_that_it_owns(app, monkeypatch, assigned, positions, committed):
    async def call(_thread, method, *arguments):
        return await method(*arguments)

    member = GroupMember(assigned)
    monkeypatch.setattr(SpanThread, "call_thread", call)
    monkeypatch.setattr(SpanThread, "_ensure_consumer", lambda _: member)
    thread = app.consumer._thread
    thread.in_group.set()
    thread._generation = 7
    await thread.commit_positions(positions)
    assert member.committed == committed


async def test_a_worker_without_partitions_reports_the_progress_of_others(app, monkeypatch):
    async def call(_thread, method, *arguments):
        return await method(*arguments)

    async def fetch(places):
        return {place: OffsetAndMetadata(7, "reknit") for place in places}

    member = GroupMember(set())
    member._coordinator.fetch_committed_offsets = fetch
    monkeypatch.setattr(SpanThread, "call_thread", call)
    monkeypatch.setattr(SpanThread, "_ensure_consumer", lambda _: member)
    app.consumer._thread.in_group.set()
    assert (await app.consumer.how_far([TopicPartition("in.v1", 0)]), member.committed) == (
        {TopicPartition("in.v1", 0): 7},
        [],
    )


@pytest.fixture
def member(app, monkeypatch):
    """A member of generation 7 whose client runs in this loop, and its thread."""

    async def by_faust(*_arguments):
        pass

    for name in ("on_partitions_revoked", "on_partitions_assigned"):
        monkeypatch.setattr(ConsumerThread, name, by_faust)
    made = GroupMember({PLACE})
    monkeypatch.setattr(SpanThread, "_ensure_consumer", lambda _: made)
    return made, app.consumer._thread


async def test_a_member_that_has_not_joined_sends_no_commit(member):
    client, thread = member
    assert (await thread._commit_as_owner(PLACE, 5), client.sent.is_set()) == (None, False)
    await thread.on_partitions_assigned({PLACE}, 7)
    assert (await thread._commit_as_owner(PLACE, 5), client.sent.is_set()) == (True, True)


@pytest.mark.parametrize("then", ["joins", "joins and has joined", "was refused"])
async def test_a_commit_across_generations_proves_nothing(member, then):
    client, thread = member
    await thread.on_partitions_assigned({PLACE}, 7)
    client.answer.clear()
    asking = asyncio.create_task(thread._commit_as_owner(PLACE, 5))
    await client.sent.wait()
    if then == "was refused":
        client._coordinator.generation = -1  # a broker accepts that commit if the group is empty
    else:
        await thread.on_partitions_revoked({PLACE})
    if then == "joins and has joined":
        client._coordinator.generation = 8
        await thread.on_partitions_assigned({PLACE}, 8)
    client.answer.set()
    assert await asking is None
    assert len(client.committed) == (then == "was refused"), "a commit is not sent again while its member joins"


def refused(cause):
    error = CommitFailedError()
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "is_ours"),
    [
        (refused(UnknownMemberIdError()), False),
        (refused(IllegalGenerationError()), False),
        (refused(RebalanceInProgressError()), None),
        (KafkaConnectionError("gone"), None),
    ],
)
async def test_a_rejected_commit_reports_the_owner(member, error, is_ours):
    client, thread = member
    await thread.on_partitions_assigned({PLACE}, 7)
    client.error = error
    assert await thread._commit_as_owner(PLACE, 5) is is_ours


async def test_the_owner_is_unknown_without_an_answer(member, monkeypatch):
    client, thread = member
    monkeypatch.setattr(transport, "_ASK_SECONDS", 0.01)
    await thread.on_partitions_assigned({PLACE}, 7)
    client.answer.clear()
    assert (await thread._commit_as_owner(PLACE, 5), client.committed) == (None, [])


@pytest.fixture
async def running(app):
    """The thread's loop in its own thread, without a client."""
    thread = app.consumer._thread
    runs = threading.Thread(target=thread.thread_loop.run_forever)
    runs.start()
    yield thread
    thread.thread_loop.call_soon_threadsafe(thread.thread_loop.stop)
    await asyncio.to_thread(runs.join)


async def test_blocked_calls_hold_up_no_other_and_end_with_their_caller(running):
    ended = []

    async def waits(number):
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    waiting = [asyncio.create_task(running.call_thread(waits, number)) for number in range(8)]
    async with asyncio.timeout(60):
        assert await running.call_thread(threading.get_ident) != threading.get_ident()
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await running.call_thread(asyncio.sleep, 0)
    assert sorted(ended) == list(range(8))


async def test_calls_fail_and_commits_are_skipped_after_the_thread_has_ended(app):
    thread = app.consumer._thread
    thread.thread_loop.close()
    thread.in_group.set()
    with pytest.raises(ConsumerStoppedError):
        await thread.call_thread(asyncio.sleep, 0)
    await thread.commit_positions({PLACE: 5})


class Deaf:
    """A client whose broker does not answer: it cannot leave the group, and its connections send nothing."""

    def __init__(self):
        self.steps = []
        self._client = self

    async def stop(self):
        self.steps.append("leave")
        await asyncio.Event().wait()

    async def close(self):
        self.steps.append("close")
        await asyncio.Event().wait()


class Cancelled(Deaf):
    """A client whose own tasks were cancelled, which its stop reports as a cancellation of the caller."""

    async def stop(self):
        self.steps.append("leave")
        raise asyncio.CancelledError

    async def close(self):
        self.steps.append("close")


async def test_a_stop_continues_after_the_client_cancelled_its_own_tasks(app):
    thread, client = app.consumer._thread, Cancelled()
    thread._consumer = client
    await thread.on_thread_stop()
    assert client.steps == ["leave", "close"]


async def test_a_stop_does_not_wait_for_a_broker_that_does_not_answer(app, monkeypatch):
    monkeypatch.setattr(transport, "_LEAVE_SECONDS", 0.01)
    thread, client = app.consumer._thread, Deaf()
    thread._consumer = client
    async with asyncio.timeout(60):
        await thread.on_thread_stop()
    assert client.steps == ["leave", "close"]


@pytest.mark.parametrize(
    ("error", "failed"),
    [
        (KafkaError("a task of the client ended"), True),
        (GroupAuthorizationFailedError("p.reknit"), True),
        (KafkaConnectionError("gone"), False),
    ],
)
async def test_an_error_that_ends_group_membership_fails_the_worker(app, monkeypatch, error, failed):
    taken = []

    async def call(_thread, method):
        taken.append(method.__name__)
        if len(taken) == 1:
            raise error

    monkeypatch.setattr(transport, "_CHECK_SECONDS", 0.001)
    monkeypatch.setattr(SpanThread, "call_thread", call)
    runtime = app.runtime
    watching = asyncio.create_task(app.consumer._watch_group.fun(app.consumer))
    async with asyncio.timeout(60):
        while not (runtime.failed.is_set() or len(taken) > 2):  # noqa: ASYNC110  polls what the task changes
            await asyncio.sleep(0.001)
    watching.cancel()
    assert (runtime.failed.is_set(), taken[0]) == (failed, "check_group")


async def test_each_answered_heartbeat_renews_the_lease_of_its_generation(app, monkeypatch):
    async def by_faust(*_arguments):
        pass

    member, runtime = GroupMember(set()), app.runtime
    clock = SimpleNamespace(now=100.0)
    clock.monotonic = lambda: clock.now
    runtime.seams = SimpleNamespace(clock=clock)
    for name in ("on_partitions_revoked", "on_partitions_assigned"):
        monkeypatch.setattr(driver.AIOKafkaConsumerThread, name, by_faust)
    monkeypatch.setattr(SpanThread, "_ensure_consumer", lambda _: member)
    thread = app.consumer._thread
    assert runtime.lease.until == float("-inf")
    await thread.on_partitions_assigned(set(), 7)
    first = runtime.lease
    assert first.until == 110.0
    for now, is_answered, until in ((102.0, True, 112.0), (104.0, False, 112.0), (106.0, True, 116.0)):
        clock.now, member._coordinator.answers = now, [is_answered]
        await member._coordinator._do_heartbeat()
        assert first.until == until
    await thread.on_partitions_revoked(set())
    await member._coordinator._do_heartbeat()
    assert first.until == float("-inf")
    member._coordinator.answers = [False]
    await thread.on_partitions_assigned(set(), 8)
    assert runtime.lease is not first
    assert runtime.lease.until == float("-inf")
