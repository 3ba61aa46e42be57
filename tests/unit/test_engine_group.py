"""A worker as a member of its group: assignments, reads of the inputs, and commits; and the loop of the client."""

from __future__ import annotations

import asyncio
import io
import threading
from types import SimpleNamespace

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import (
    CommitFailedError,
    ConsumerStoppedError,
    GroupAuthorizationFailedError,
    IllegalGenerationError,
    IllegalStateError,
    KafkaConnectionError,
    KafkaError,
    OffsetOutOfRangeError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from aiokafka.structs import OffsetAndMetadata
from aiokafka.util import commit_structure_validate
from mode.utils.logging import cry

from reknit.pipeline.engine import member as members
from reknit.pipeline.engine import source as sources
from reknit.pipeline.engine.batches import Span
from reknit.pipeline.engine.member import Member
from reknit.pipeline.engine.member_loop import ThreadLoop
from reknit.pipeline.engine.partition import Phase
from reknit.pipeline.engine.runtime import NoMetrics, Runtime, Tuning
from reknit.pipeline.engine.seams import KafkaBrokers, Seams
from reknit.pipeline.engine.source import Source
from reknit.pipeline.settings import Config
from reknit.pipeline.stages.base import Record

PLACE, OTHER = TopicPartition("p.in.v1", 0), TopicPartition("p.in.v1", 1)


class SameLoop:
    """As ``MemberLoop``, without a loop of its own."""

    async def start(self):
        pass

    async def call(self, work):
        return await work

    call_back = call

    def soon(self, callback):
        callback()

    async def stop(self, seconds):
        pass


class Client:
    """A group consumer with the client's own check of its commits; ``starts`` and ``errors`` are raised one by one."""

    def __init__(self):
        self.generation, self.assigned, self.positions = 7, {PLACE}, {}
        self.committed, self.asked, self.steps = [], [], []
        self.sent, self.answer = asyncio.Event(), asyncio.Event()
        self.answer.set()
        self.error, self.starts, self.errors = None, [], []
        self.log, self.wakes = [], asyncio.Event()
        self._coordinator = self

    async def start(self):
        self.steps.append("start")
        if self.starts:
            raise self.starts.pop(0)

    def subscribe(self, topics, listener):
        self.steps.append(("subscribe", topics))

    async def stop(self):
        self.steps.append("stop")

    def assignment(self):
        return self.assigned

    async def commit(self, offsets):
        self.sent.set()
        await self.answer.wait()
        if self.error:
            raise self.error
        self.committed.append(commit_structure_validate(offsets))

    # Records: `log` has offsets of the one partition.

    def seek(self, tp, offset):
        if tp not in self.assigned:
            raise IllegalStateError
        self.positions[tp] = offset

    async def position(self, tp):
        if tp not in self.assigned:
            raise IllegalStateError
        return self.positions[tp]

    async def getmany(self, *places, timeout_ms=0, max_records=None):
        assert places, "it would read all partitions"
        self.asked.append((set(places), timeout_ms))
        if self.errors:
            raise self.errors.pop(0)
        if timeout_ms and not self.log:
            await asyncio.wait([asyncio.ensure_future(self.wakes.wait())], timeout=timeout_ms / 1000)
        if PLACE not in places or not self.log:
            return {}
        found, self.log = self.log[:max_records], self.log[max_records:]
        self.positions[PLACE] = found[-1] + 1
        return {PLACE: [fetched(offset) for offset in found]}

    def last_stable_offset(self, _tp):
        return 20

    def highwater(self, _tp):
        return 30


def fetched(offset):
    return SimpleNamespace(partition=0, offset=offset, key=b"k", value=b"v", headers=(), timestamp=1)


def record(offset):
    return Record(partition=0, offset=offset, key=b"k", value=b"v", timestamp=1)


class Brokers:
    def __init__(self):
        self.client, self.requests, self.offsets = Client(), [], []

    def member(self, **options):
        self.options = options
        return self.client

    def generation(self, member):
        return member.generation

    def watch_heartbeats(self, member, on_heartbeat):
        return None

    def admin(self, **_options):
        return self

    async def start(self):
        pass

    async def close(self):
        self.requests.append("close")

    async def list_consumer_group_offsets(self, group, partitions):
        self.requests.append((group, partitions))
        found = self.offsets.pop(0)
        if isinstance(found, Exception):
            raise found
        return found


def runtime_with(brokers, delivery="exactly-once", **tuning):
    config = Config(bootstrap_servers="nobody:1", prefix="p.", delivery=delivery)
    seams = Seams(brokers=brokers, member_loop=SameLoop)
    return Runtime(config, {"in.v1": None}, NoMetrics(), Tuning(**tuning), seams=seams)


@pytest.fixture
def brokers():
    return Brokers()


@pytest.fixture
def heard():
    """The calls of a member's owner, in order."""
    return []


@pytest.fixture
async def member(brokers, heard):
    """A member that has started its client and has not joined."""

    async def on_revoked():
        heard.append("revoked")

    async def on_assigned(assigned, continues):
        heard.append((assigned, continues))

    made = Member(
        runtime_with(brokers),
        ["a strategy"],
        on_revoked=on_revoked,
        on_assigned=on_assigned,
        metadata_of=lambda _: "reknit",
    )
    await made.start()
    return made


async def joins(member, *, generation=7, position=None):
    member._consumer.generation = generation
    await member.on_partitions_assigned({PLACE})
    if position is not None:
        await member.seek({PLACE: position})


async def test_the_client_is_subscribed_after_its_start(member, brokers):
    assert brokers.client.steps == ["start", ("subscribe", ["p.in.v1"])]
    wanted = {"auto_offset_reset": "none", "isolation_level": "read_committed", "enable_auto_commit": False}
    assert brokers.options | wanted == brokers.options
    assert brokers.options["partition_assignment_strategy"] == ["a strategy"]


async def test_a_client_that_did_not_start_is_stopped_and_another_one_started(brokers, caplog, monkeypatch):
    monkeypatch.setattr(sources, "_POLL_SECONDS", 0.001)
    brokers.client.starts = [KafkaConnectionError("gone"), KafkaConnectionError("gone")]
    source = Source(runtime_with(brokers), [])
    await source._start_member()
    assert brokers.client.steps == ["start", "stop", "start", "stop", "start", ("subscribe", ["p.in.v1"])]
    said = [record.getMessage() for record in caplog.records]
    assert said == ["the group could not be joined: KafkaConnectionError"] * 2


async def test_a_member_tells_its_owner_about_generations(member, heard):
    await member.on_partitions_revoked(set())
    for generation in (7, 8, 10):
        await joins(member, generation=generation)
    assert heard == ["revoked", ({PLACE}, False), ({PLACE}, True), ({PLACE}, False)]


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError])
async def test_an_error_of_the_owner_fails_the_worker(brokers, error):
    async def raises(*_):
        raise error

    member = Member(runtime_with(brokers), [], on_revoked=raises, on_assigned=raises, metadata_of=str)
    await member.on_partitions_revoked(set())
    assert member._runtime.failure.code == "worker_failed"


# Reads.


async def test_a_span_has_the_positions_before_and_after_its_records(member, brokers):
    await joins(member, position=5)
    brokers.client.log = [6, 7]
    found = await member.spans({PLACE}, 1.0)
    assert found == {PLACE: Span(5, 8, [record(6), record(7)], 20)}
    assert await member.spans({PLACE}, 0.001) == {}


async def test_at_least_once_reads_up_to_the_end_of_the_log(brokers):
    async def ignore(*_):
        pass

    runtime = runtime_with(brokers, "at-least-once")
    member = Member(runtime, [], on_revoked=ignore, on_assigned=ignore, metadata_of=str)
    await member.start()
    await joins(member, position=5)
    brokers.client.log = [5]
    assert (await member.spans({PLACE}, 1.0))[PLACE].limit == 30
    assert brokers.options["isolation_level"] == "read_uncommitted"


@pytest.mark.parametrize("wanted", [set(), {PLACE}, {OTHER}], ids=["none", "not positioned", "of another member"])
async def test_nothing_is_read_from_partitions_without_a_position(member, brokers, wanted):
    await joins(member)
    assert await member.spans(wanted, 0.001) == {}
    assert brokers.client.asked == []


@pytest.mark.parametrize("wanted", [set(), {PLACE}])
async def test_a_poke_ends_a_poll(member, wanted):
    await joins(member, position=5)
    polling = asyncio.create_task(member.spans(wanted, 600.0))
    await asyncio.sleep(0.001)
    member.poke()
    async with asyncio.timeout(60):
        assert await polling == {}


async def test_a_rebalance_ends_a_poll_and_its_records_do_not_count(member, brokers):
    await joins(member, position=5)
    polling = asyncio.create_task(member.spans({PLACE}, 600.0))
    await asyncio.sleep(0.001)
    await member.on_partitions_revoked({PLACE})
    async with asyncio.timeout(60):
        assert await polling == {}
    brokers.client.log = [6]
    assert await member.spans({PLACE}, 0.001) == {}
    with pytest.raises(IllegalStateError):
        await member.seek({PLACE: 5})
    await joins(member, generation=8)
    assert await member.spans({PLACE}, 0.001) == {}, "its position was set in the former generation"


async def test_a_position_outside_of_the_log_is_an_error_that_names_its_partition(member, brokers):
    await joins(member, position=5)
    brokers.client.errors = [OffsetOutOfRangeError({PLACE: 5})]
    with pytest.raises(OffsetOutOfRangeError) as error:
        await member.spans({PLACE}, 1.0)
    assert members.places_of(error.value) == {PLACE}
    assert await member.spans({PLACE}, 0.001) == {}
    assert len(brokers.client.asked) == 1, "it is read again once its position is set"


# Commits.


class Actor:
    """An open partition at a position."""

    def __init__(self, position=5):
        self.phase, self.aligned, self.waits_for, self.done_to = Phase.WORKING, False, position, position
        self.topic, self.number, self.group_metadata = "in.v1", 0, "reknit"
        self.lost = []

    def expired(self, first):
        self.lost.append(first)
        self.waits_for = first

    async def pause(self, _seconds):
        pass

    async def close(self):
        pass


async def test_nothing_is_committed_while_the_group_rebalances(brokers):
    source = Source(runtime_with(brokers), [])
    member, client = source._member, brokers.client
    await member.start()
    client.assigned = set()
    for generation in (1, 2):
        client.committed.clear()
        client.assigned = set()
        await member.on_partitions_revoked(set())
        committing = asyncio.create_task(member.commit_positions({PLACE: 5}))
        assert await member.is_ours(PLACE, 5) is None
        await asyncio.sleep(0)
        assert client.committed == []
        client.generation = generation
        await member.on_partitions_assigned(set())
        client.assigned = {PLACE}
        assert await committing is True
        assert await member.is_ours(PLACE, 5) is True
        assert client.committed == [{PLACE: OffsetAndMetadata(5, "reknit")}] * 2


@pytest.mark.parametrize(
    ("assigned", "positions", "committed"),
    [
        (set(), {}, []),
        (set(), {PLACE: 5}, []),
        ({OTHER}, {PLACE: 5}, []),
        ({PLACE}, {PLACE: 5, OTHER: 6}, [{PLACE: OffsetAndMetadata(5, "reknit")}]),
    ],
)
async def test_a_member_commits_only_partitions_that_it_owns(member, brokers, assigned, positions, committed):
    await joins(member)
    member.in_group.set()
    brokers.client.assigned = assigned
    assert await member.commit_positions(positions) is True
    assert brokers.client.committed == committed


async def test_a_commit_that_the_group_refuses_is_reported(member, brokers):
    await joins(member)
    member.in_group.set()
    brokers.client.error = CommitFailedError("it has rebalanced")
    assert await member.commit_positions({PLACE: 5}) is False


async def test_a_worker_without_partitions_reports_the_progress_of_others(brokers):
    source = Source(runtime_with(brokers), [])
    await source._member.start()
    await source._on_assigned(set(), continues=False)
    brokers.offsets = [{PLACE: OffsetAndMetadata(7, "reknit")}]
    assert (await source.how_far([PLACE]), brokers.client.committed) == ({PLACE: 7}, [])


async def test_a_member_that_has_not_joined_sends_no_commit(member, brokers):
    assert (await member._commit_as_owner(PLACE, 5), brokers.client.sent.is_set()) == (None, False)
    await joins(member)
    assert (await member._commit_as_owner(PLACE, 5), brokers.client.sent.is_set()) == (True, True)


@pytest.mark.parametrize("then", ["joins", "joins and has joined", "was refused"])
async def test_a_commit_across_generations_proves_nothing(member, brokers, then):
    client = brokers.client
    await joins(member)
    client.answer.clear()
    asking = asyncio.create_task(member._commit_as_owner(PLACE, 5))
    await client.sent.wait()
    if then == "was refused":
        client.generation = -1  # a broker accepts that commit if the group is empty
    else:
        await member.on_partitions_revoked({PLACE})
    if then == "joins and has joined":
        await joins(member, generation=8)
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
async def test_a_rejected_commit_reports_the_owner(member, brokers, error, is_ours):
    await joins(member)
    brokers.client.error = error
    assert await member._commit_as_owner(PLACE, 5) is is_ours


async def test_the_owner_is_unknown_without_an_answer(member, brokers, monkeypatch):
    monkeypatch.setattr(members, "_ASK_SECONDS", 0.01)
    await joins(member)
    brokers.client.answer.clear()
    assert (await member._commit_as_owner(PLACE, 5), brokers.client.committed) == (None, [])


async def test_offsets_of_the_group_are_requested_until_the_answer_names_the_partitions(member, brokers, monkeypatch):
    monkeypatch.setattr(members, "_RETRY_SECONDS", 0.001)
    answer = {PLACE: OffsetAndMetadata(7, "by hand"), OTHER: OffsetAndMetadata(-1, "")}
    brokers.offsets = [{}, KafkaConnectionError("gone"), {PLACE: answer[PLACE]}, answer]
    assert await member.committed([PLACE, OTHER]) == {PLACE: OffsetAndMetadata(7, "by hand")}
    asked = ("p.reknit", [PLACE, OTHER])
    assert brokers.requests == [asked, asked, "close", asked, asked]
    brokers.offsets = [GroupAuthorizationFailedError("p.reknit")]
    with pytest.raises(GroupAuthorizationFailedError):
        await member.committed([PLACE])


@pytest.mark.parametrize(("metadata", "by_hand"), [("", 7), ("reknit", None)])
async def test_the_metadata_of_an_offset_shows_whether_a_worker_committed_it(member, brokers, metadata, by_hand):
    brokers.offsets = [{PLACE: OffsetAndMetadata(7, metadata)}] * 2
    assert await member.committed_by_hand(PLACE) == by_hand
    assert (await member.committed_by_worker(PLACE) is None) == (by_hand is not None)


@pytest.mark.parametrize(
    ("error", "failed"),
    [
        (KafkaError("a task of the client ended"), True),
        (GroupAuthorizationFailedError("p.reknit"), True),
        (KafkaConnectionError("gone"), False),
    ],
)
async def test_an_error_that_ends_group_membership_fails_the_worker(brokers, monkeypatch, error, failed):
    monkeypatch.setattr(sources, "_CHECK_SECONDS", 0.001)
    brokers.client.errors = [error]
    source = Source(runtime_with(brokers), [])
    await source._member.start()
    runtime = source._runtime
    watching = asyncio.create_task(source._watch_group.fun(source))
    async with asyncio.timeout(60):
        while not (runtime.failed.is_set() or len(brokers.client.asked) > 2):  # noqa: ASYNC110  polls what the task changes
            await asyncio.sleep(0.001)
    watching.cancel()
    assert runtime.failed.is_set() == failed


# The lease.


class Coordinator:
    """The part of a client's coordinator that sends heartbeats; ``answers`` are those of the next ones."""

    def __init__(self):
        self.answers = [True]

    async def _do_heartbeat(self):
        return self.answers.pop(0) if self.answers else True


async def test_each_answered_heartbeat_renews_the_lease_of_its_generation(brokers):
    async def ignore(*_):
        pass

    client, clock = brokers.client, SimpleNamespace(now=100.0)
    client._coordinator = coordinator = Coordinator()
    clock.monotonic = lambda: clock.now
    brokers.watch_heartbeats = KafkaBrokers().watch_heartbeats
    runtime = runtime_with(brokers, "at-least-once")
    runtime.seams = Seams(clock=clock, brokers=brokers, member_loop=SameLoop)
    member = Member(runtime, [], on_revoked=ignore, on_assigned=ignore, metadata_of=str)
    await member.start()
    assert runtime.lease.until == float("-inf")
    await joins(member)
    first = runtime.lease
    assert first.until == 110.0
    for now, is_answered, until in ((102.0, True, 112.0), (104.0, False, 112.0), (106.0, True, 116.0)):
        clock.now, coordinator.answers = now, [is_answered]
        await coordinator._do_heartbeat()
        assert first.until == until
    await member.on_partitions_revoked(set())
    await coordinator._do_heartbeat()
    assert first.until == float("-inf")
    coordinator.answers = [False]
    await joins(member, generation=8)
    assert runtime.lease is not first
    assert runtime.lease.until == float("-inf")


# Positions of the actors.


async def test_actors_are_read_from_their_positions_in_one_step(brokers):
    source = Source(runtime_with(brokers), [])
    await source._member.start()
    await joins(source._member)
    source.actors = {PLACE: (actor := Actor(5))}
    await source._align()
    assert (actor.aligned, brokers.client.positions) == (True, {PLACE: 5})


@pytest.mark.parametrize(("bounds", "aligned", "lost"), [((8, 9), True, [8]), ((0, 4), False, [])])
async def test_bounds_are_requested_for_a_position_outside_of_its_log(brokers, monkeypatch, bounds, aligned, lost):
    async def bounds_of(_tp):
        return bounds

    source = Source(runtime_with(brokers), [])
    member, client = source._member, brokers.client
    monkeypatch.setattr(member, "bounds", bounds_of)
    await member.start()
    await joins(member)
    source.actors = {PLACE: (actor := Actor(5))}
    actor.wants = lambda *_: actor.aligned
    client.errors = [OffsetOutOfRangeError({PLACE: 5})]
    await source._pass_some()
    assert (actor.aligned, client.positions) == (False, {PLACE: 5})
    await source._align()
    assert (actor.aligned, actor.lost, client.positions) == (aligned, lost, {PLACE: actor.waits_for})


async def test_a_position_of_a_former_generation_is_set_again(brokers, monkeypatch):
    source = Source(runtime_with(brokers), [])
    member = source._member
    await member.start()
    await joins(member)
    source.actors = {PLACE: (actor := Actor(5))}

    async def seek(_positions):
        source._assignments += 1  # a rebalance

    monkeypatch.setattr(member, "seek", seek)
    await source._align()
    assert not actor.aligned


async def test_an_actor_that_closes_itself_while_others_are_closed_is_opened_again(brokers, monkeypatch):
    source = Source(runtime_with(brokers), [])
    stays, leaves, opened = Actor(), Actor(), Actor()

    async def close():
        stays.phase = Phase.CLOSED  # its batch in flight failed

    stays.phase, leaves.close = Phase.PAUSED, close
    monkeypatch.setattr(source, "_open", lambda _: opened)
    source.actors = {PLACE: stays, OTHER: leaves}
    await source._on_assigned({PLACE}, continues=True)
    assert source.actors == {PLACE: opened}


# The client's loop in a thread.


@pytest.fixture
async def thread():
    made = ThreadLoop()
    await made.start()
    yield made
    await made.stop(60.0)


async def test_the_debugging_signal_of_mode_prints_the_tasks_of_the_client(thread):
    began = asyncio.Event()

    async def waits_for_its_group():
        thread._worker.call_soon_threadsafe(began.set)
        await asyncio.Event().wait()

    waiting = asyncio.create_task(thread.call(waits_for_its_group()))
    async with asyncio.timeout(60):
        await began.wait()
    printed = io.StringIO()
    cry(printed)  # on SIGUSR1
    waiting.cancel()
    assert "TASK waits_for_its_group" in printed.getvalue()


async def test_blocked_calls_hold_up_no_other_and_end_with_their_caller(thread):
    ended = []

    async def waits(number):
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    async def ident():
        return threading.get_ident()

    waiting = [asyncio.create_task(thread.call(waits(number))) for number in range(8)]
    async with asyncio.timeout(60):
        assert await thread.call(ident()) != threading.get_ident()
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await thread.call(asyncio.sleep(0))
    assert sorted(ended) == list(range(8))


async def test_the_thread_calls_back_while_it_is_called(thread):
    async def ident():
        return threading.get_ident()

    async def there():
        return threading.get_ident(), await thread.call_back(ident())

    first, second = await thread.call(there())
    assert first != second == threading.get_ident()


async def test_calls_under_way_and_later_ones_fail_once_the_thread_ends(thread):
    calling = asyncio.create_task(thread.call(asyncio.Event().wait()))
    await thread.call(asyncio.sleep(0))
    await thread.stop(60.0)
    assert not thread._thread.is_alive()
    for call in (calling, thread.call(asyncio.sleep(0))):
        with pytest.raises(ConsumerStoppedError):
            await call
    thread.soon(threading.get_ident)


async def cancels_itself():
    raise asyncio.CancelledError


async def test_a_cancellation_of_the_client_is_an_error_of_the_call(thread):
    with pytest.raises(KafkaConnectionError, match="cancelled a call by itself"):
        await thread.call(cancels_itself())


async def test_a_call_whose_time_limit_ends_raises_a_timeout(thread):
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await thread.call(asyncio.Event().wait())


async def test_records_are_read_after_the_client_cancelled_a_call(thread, brokers, monkeypatch, caplog):
    monkeypatch.setattr(sources, "_POLL_SECONDS", 0.001)
    source, polls, again = Source(runtime_with(brokers), []), [], asyncio.Event()

    async def spans(wanted, _seconds):
        polls.append(wanted)
        await asyncio.sleep(0)
        if len(polls) == 1:
            await thread.call(cancels_itself())
        again.set()
        return {}

    monkeypatch.setattr(source._member, "spans", spans)
    await source.start()
    async with asyncio.timeout(60):
        await again.wait()
        await source.stop()
    assert "the inputs could not be read: KafkaConnectionError" in caplog.messages


async def test_a_cancelled_first_heartbeat_does_not_end_the_membership(brokers, heard):
    async def ignore(*_):
        pass

    async def on_assigned(assigned, continues):
        heard.append((assigned, continues))

    member = Member(
        runtime_with(brokers, "at-least-once"), [], on_revoked=ignore, on_assigned=on_assigned, metadata_of=str
    )
    await member.start()
    member._beat = cancels_itself
    await joins(member)
    assert heard == [({PLACE}, False)]


async def test_a_client_of_offsets_that_was_cancelled_at_its_start_is_replaced(member, brokers, monkeypatch):
    never, starts = asyncio.Event(), []

    async def start():
        starts.append(len(starts))
        if len(starts) == 1:
            await never.wait()

    monkeypatch.setattr(brokers, "start", start)
    brokers.offsets = [{PLACE: OffsetAndMetadata(5, "")}]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await member.committed([PLACE])
    assert await member.committed([PLACE]) == {PLACE: OffsetAndMetadata(5, "")}
    assert starts == [0, 1]
    assert brokers.requests[0] == "close"


async def test_a_worker_stops_in_order_before_it_has_joined(brokers):
    source = Source(runtime_with(brokers), [])
    source._member._loop = ThreadLoop()
    async with asyncio.timeout(60):
        await source.on_stop()
    assert brokers.client.steps == []


async def test_commits_are_skipped_after_the_thread_has_ended(member, thread):
    await thread.stop(60.0)
    member._loop = thread
    member.in_group.set()
    assert await member.commit_positions({PLACE: 5}) is False


async def test_a_stop_continues_after_the_client_cancelled_its_own_tasks(member, brokers, monkeypatch, caplog):
    async def leave():
        raise asyncio.CancelledError

    caplog.set_level("INFO", "reknit.engine")
    monkeypatch.setattr(brokers.client, "stop", leave)
    await member.stop()
    assert "the worker did not leave the group, its session will expire: CancelledError" in caplog.messages


async def test_a_stop_does_not_wait_for_a_broker_that_does_not_answer(member, brokers, monkeypatch, caplog):
    async def leave():
        await asyncio.Event().wait()

    caplog.set_level("INFO", "reknit.engine")
    monkeypatch.setattr(members, "_LEAVE_SECONDS", 0.01)
    monkeypatch.setattr(brokers.client, "stop", leave)
    async with asyncio.timeout(60):
        await member.stop()
    assert "the worker did not leave the group, its session will expire: TimeoutError" in caplog.messages


async def test_a_log_that_stays_shorter_than_its_position_ends_the_worker(brokers, monkeypatch):
    now = [100.0]
    runtime = runtime_with(brokers)
    monkeypatch.setattr(runtime.seams, "clock", SimpleNamespace(monotonic=lambda: now[0]))
    source, expired = Source(runtime, []), []
    source.actors[PLACE] = SimpleNamespace(phase=Phase.WORKING, waits_for=5, expired=expired.append)
    assert [source._position_within(PLACE, bounds) for bounds in (None, (0, 5), (5, 5), (6, 9))] == [5, 5, 5, 5]
    assert expired == [6]
    # Right after a broker's failure a log may seem shorter than it is.
    assert source._position_within(PLACE, (0, 4)) is None
    now[0] += 10
    assert source._position_within(PLACE, (0, 4)) is None
    assert source._position_within(PLACE, (0, 5)) == 5
    now[0] += 10
    assert source._position_within(PLACE, (0, 4)) is None
    assert runtime.failure is None
    now[0] += 10.1
    assert source._position_within(PLACE, (0, 4)) is None
    assert runtime.failure.code == "position_beyond_end"
    assert "p.in.v1 partition 0 ends at offset 4, but it was processed up to 5" in str(runtime.failure)
