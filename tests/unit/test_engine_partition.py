"""The actor of a source partition, with an in-memory log, changelog and writer."""

from __future__ import annotations

import asyncio
import weakref
from contextlib import suppress

import pytest
from aiokafka.errors import KafkaConnectionError, TransactionalIdAuthorizationFailed
from msgspec import Raw, structs

from reknit.pipeline.engine import partition as module
from reknit.pipeline.engine import state as state_module
from reknit.pipeline.engine.batches import Backlog, OffsetGap, Span, smaller_letter
from reknit.pipeline.engine.lease import Lease
from reknit.pipeline.engine.limits import RefusedSizeError
from reknit.pipeline.engine.partition import Partition, Phase
from reknit.pipeline.engine.runtime import (
    NoMetrics,
    PartitionLostError,
    Runtime,
    Scope,
    StartupError,
    TopicChangedError,
    Tuning,
)
from reknit.pipeline.engine.state import Restored
from reknit.pipeline.engine.stores import StoreError
from reknit.pipeline.settings import Config
from reknit.pipeline.stages.base import POSITION, Output, Record, Result, Stage, StoppedError, dead_letter
from reknit.topics import DEAD_LETTERS
from reknit.topics.positions import UNMARKED, PositionMark, read_mark


def fetched(offset, value=b"v", key=b"k"):
    return Record(partition=0, offset=offset, key=key, value=value)


def span(start, *records, end=None):
    end = end if end is not None else (records[-1].offset + 1 if records else start)
    return Span(start, end, records, end)


CONFIG = Config(prefix="p.")
LETTER = ("reknit_dead_letters_total", "in.v1", "internal")


class Counting(Stage):
    topic = "in.v1"
    state_topic = "state.v1"
    made = 0

    def __init__(self, number):
        Counting.made += 1
        self.count = 0

    def restore(self, key, value):
        self.count = int(value)

    def process(self, records):
        result = Result()
        for record in records:
            self.count += 1
            if record.value == b"poison":
                raise RuntimeError("secret content")
            if record.value == b"stop":
                raise StoppedError("stopped", "in.v1/0/2")
            value = record.value if record.value.startswith(b"big") else b"%d:%d" % (record.offset, self.count)
            value = b"x" * 4_000 if record.value == b"large" else value
            result.outputs.append(Output("out.v1", record.key, value))
        result.changes[b"count"] = b"%d" % self.count
        result.tally[("seen",)] = len(records)
        return result

    def refuse(self, record, error):
        if record.key == b"worse":
            self.count += 100
            raise RuntimeError("secret content")
        return Result(outputs=[dead_letter(record, self.topic, error)], tally={LETTER: 1})

    def levels(self):
        return {"count": self.count}


class Broker:
    """The durable state: the changelog and the written batches."""

    def __init__(self):
        self.state = {}
        self.position = None
        self.batches = []
        self.positions = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.fence = asyncio.Event()  # set unless the former owner cannot be fenced
        self.fence.set()
        self.error = None
        self.once = None
        self.ours = []  # the group's answers to the ownership check, True once the list is empty
        self.opened = self.closed = self.writing = 0
        self.format = 1
        self.mark = UNMARKED  # of the position that is read
        self.own = None  # the mark that the actor writes, if it is another one
        self.late = 0  # number of reads of the changelog that do not see the last batch yet
        self.before = ({}, None)  # state and position before the last batch

    async def open(self):
        self.opened += 1
        await self.fence.wait()

    async def write(self, batch):
        self.writing += 1
        await self.gate.wait()
        if self.error:
            raise self.error
        once, self.once = self.once, None
        if once and not once[1]:
            raise once[0]
        self.batches.append(batch)
        self.before = (dict(self.state), self.position)
        self.state |= batch.changes
        self.position = batch.position
        if once:
            raise once[0]

    def fail_once(self, error, *, committed):
        self.once = (error, committed)

    async def close(self):
        self.closed += 1

    async def restore(self, connection, topic, number, apply, *, start, **_):
        state, position = self.before if self.late else (self.state, self.position)
        self.late = max(0, self.late - 1)
        start(0, len(state))
        for key, value in state.items():
            apply(key, value)
        return Restored(position, self.format, len(state), 0.0, mark=self.mark)

    async def mark_at_opening(self, _position, mark):
        return self.own or mark

    async def is_ours(self, position):
        return self.ours.pop(0) if self.ours else True

    @property
    def values(self):
        return [output.value for batch in self.batches for output in batch.outputs]

    @property
    def written(self):
        """Return the position of each batch with its outputs."""
        return [(batch.position, [output.value for output in batch.outputs]) for batch in self.batches]


class Recording(NoMetrics):
    def __init__(self):
        super().__init__()
        self.calls = []
        self.levels = []
        self.at = []

    def on_position(self, topic, partition, position):
        self.at.append(position)

    def on_levels(self, topic, partition, levels):
        self.levels.append(levels)

    def on_commit(self, topic, partition, result, records):
        self.calls.append(("commit", topic, partition, records, dict(result.tally)))

    def on_poison(self, topic, partition):
        self.calls.append(("poison", topic, partition))

    def on_expired(self, topic, partition, offsets):
        self.calls.append(("expired", topic, partition, offsets))


@pytest.fixture
async def make(monkeypatch):
    """Return a function that makes a broker and a working actor on it."""
    made = []
    monkeypatch.setattr(module, "_REOPEN_SECONDS", 0.001)

    async def build(
        *,
        state=None,
        position=None,
        state_format=1,
        scope=None,
        runtime=None,
        mark=UNMARKED,
        own=None,
        ours=(),
        **tuning,
    ):
        broker = Broker()
        broker.ours = list(ours)
        broker.state, broker.position, broker.format = state or {}, position, state_format
        broker.mark, broker.own = mark, own
        monkeypatch.setattr(state_module, "restore", broker.restore)
        runtime = runtime or Runtime(CONFIG, {"in.v1": Counting}, Recording(), Tuning(**tuning), scope=scope)
        actor = Partition(
            runtime,
            "in.v1",
            0,
            writer=lambda _: broker,
            on_room=lambda: None,
            on_opened=opened,
            on_position=broker.positions.append,
            is_ours=broker.is_ours,
            mark_at_opening=broker.mark_at_opening,
        )
        made.append(actor)
        await until(lambda: actor.phase is not Phase.OPENING)
        return broker, actor, runtime

    yield build
    for actor in made:
        await actor.close()


async def opened(_position):
    pass


async def begin_writing(broker, actor, *offsets):
    """Leave a batch of these in flight: its write is blocked."""
    broker.gate.clear()
    actor.offer(span(offsets[0], *map(fetched, offsets)))
    await until(lambda: broker.writing == 1)


async def finish(actor, *offsets):
    """Process a batch of these completely."""
    actor.offer(span(offsets[0], *map(fetched, offsets)))
    await until(lambda: actor.next == offsets[-1] + 1)


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - polls what the actor changes by itself
            await asyncio.sleep(0.001)


async def test_the_position_is_reported_after_opening_and_after_each_durable_batch(make):
    broker, actor, _ = await make(position=3)
    assert broker.positions == [3]
    actor.aligned = True
    broker.gate.clear()
    actor.offer(span(3, fetched(3), fetched(4)))
    await asyncio.sleep(0.01)
    assert broker.positions == [3]
    broker.gate.set()
    await until(lambda: broker.batches)
    assert broker.positions == [3, 5]


async def test_the_position_is_reported_again_after_a_rebalance(make):
    broker, actor, _ = await make()
    await finish(actor, 0)
    await actor.pause(5)
    actor.resume()
    assert broker.positions == [0, 1, 1]


async def test_it_resumes_at_the_changelogs_position_with_its_state(make):
    broker, actor, _ = await make(state={b"count": b"5"}, position=7)
    assert actor.waits_for == 7
    actor.offer(span(7, fetched(7), fetched(9), end=11))
    await until(lambda: actor.next == 11)
    assert broker.values == [b"7:6", b"9:7"]
    assert broker.position == 11, "behind the markers that trail the last record"
    assert broker.state == {b"count": b"7"}


async def test_without_a_changelog_it_begins_at_zero(make):
    _, actor, _ = await make()
    assert actor.waits_for == 0


async def test_records_that_arrive_during_a_commit_make_the_next_batch(make):
    broker, actor, runtime = await make()
    await begin_writing(broker, actor, 0)
    for offset in range(1, 50):
        actor.offer(span(offset, fetched(offset)))
    broker.gate.set()
    await until(lambda: actor.next == 50)
    assert [len(batch.outputs) for batch in broker.batches] == [1, 49]
    assert runtime.metrics.calls == [
        ("commit", "in.v1", 0, 1, {("seen",): 1}),
        ("commit", "in.v1", 0, 49, {("seen",): 49}),
    ]


async def test_records_within_the_commit_interval_make_one_batch(make):
    broker, actor, _ = await make(commit_interval_ms=100)
    await finish(actor, 0)
    actor.offer(span(1, fetched(1)))
    await asyncio.sleep(0)
    actor.offer(span(2, fetched(2)))
    await until(lambda: actor.next == 3)
    assert broker.values == [b"0:1", b"1:2", b"2:3"]
    assert [len(batch.outputs) for batch in broker.batches] == [1, 2]


async def test_a_full_buffer_does_not_wait_for_the_commit_interval(make):
    _, actor, _ = await make(commit_interval_ms=3_600_000)
    actor.aligned = True
    for offset in range(3):
        actor.offer(span(offset, fetched(offset)))
        assert not actor.wants(1 << 20, 1)
        await until(lambda end=offset + 1: actor.next == end)


async def test_the_end_and_a_rebalance_do_not_wait_for_the_commit_interval(make):
    broker, actor, _ = await make(commit_interval_ms=3_600_000)
    await finish(actor, 0)
    actor.offer(span(1, fetched(1)))
    async with asyncio.timeout(60):
        await actor.pause(60)
        actor.resume()
        await actor.close()
    assert broker.values == [b"0:1"]


async def test_a_closed_partition_holds_no_sessions(make):
    _, actor, _ = await make()
    await finish(actor, 0)
    stage = weakref.ref(actor._kept.stage)
    await actor.close()
    assert stage() is None


async def test_a_batch_is_bounded_in_records_and_bytes_but_takes_one_at_least(make):
    broker, actor, _ = await make(batch_records=3, batch_bytes=4_000)
    await begin_writing(broker, actor, 0)
    big = [fetched(offset, b"x" * 2_500) for offset in (5, 6)]
    actor.offer(span(1, *(fetched(offset) for offset in range(1, 5)), *big, fetched(7, b"x" * 5_000)))
    broker.gate.set()
    await until(lambda: actor.next == 8)
    assert [len(batch.outputs) for batch in broker.batches] == [1, 3, 2, 1, 1]


async def test_outputs_beyond_the_bound_are_committed_in_parts(make):
    broker, actor, _ = await make(batch_bytes=10_000, slice_records=1)
    actor.offer(span(0, *(fetched(offset, b"large") for offset in range(4)), fetched(4)))
    await until(lambda: actor.next == 5)
    large = b"x" * 4_000
    assert broker.written == [(3, [large] * 3), (5, [large, b"4:5"])]


async def test_the_event_loop_runs_other_tasks_between_slices(make, monkeypatch):
    turns, slices = 0, []

    async def count_turns():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    process = Counting.process
    monkeypatch.setattr(Counting, "process", lambda stage, records: slices.append(turns) or process(stage, records))
    _, one, runtime = await make(slice_records=1)
    _, other, _ = await make(runtime=runtime)
    counting = asyncio.create_task(count_turns())
    for actor in (one, other):
        actor.offer(span(0, *(fetched(offset) for offset in range(5))))
    await until(lambda: one.next == other.next == 5)
    counting.cancel()
    assert len(slices) == len(set(slices)) == 10


async def test_an_oversized_output_becomes_a_dead_letter(make):
    broker, actor, runtime = await make(output_bytes=1_000)
    actor.offer(span(0, fetched(0, b"big" + b"x" * 2_000), fetched(1)))
    await until(lambda: actor.next == 2)
    letter, fine = broker.batches[0].outputs
    assert letter.topic == "pipeline.dead-letters.v1"
    assert letter.value is None
    assert fine.value == b"1:2"
    (tally,) = [call[4] for call in runtime.metrics.calls if call[0] == "commit"]
    assert tally[LETTER[0], "in.v1", "size"] == 1


async def test_an_oversized_dead_letter_is_counted_once(make):
    _, actor, runtime = await make(output_bytes=1_000)
    actor.offer(span(0, fetched(0, b"poison", b"k" * 2_000)))
    await until(lambda: actor.next == 1)
    tallies = [call[4] for call in runtime.metrics.calls if call[0] == "commit"]
    assert [name for tally in tallies for name in tally if name[0] == LETTER[0]] == [LETTER]


async def test_the_position_metric_is_set_after_opening_and_after_each_batch(make):
    _, actor, runtime = await make(position=3)
    assert runtime.metrics.at == [3]
    await finish(actor, 3, 4)
    assert runtime.metrics.at == [3, 5]


async def test_a_poison_record_is_dead_lettered_and_the_state_is_rebuilt(make, caplog):
    broker, actor, runtime = await make(slice_records=4)
    values = [b"v", b"v", b"poison", b"v", b"poison", b"v"]
    made = Counting.made
    keys = [b"worse" if at == 2 else b"k" for at in range(6)]
    actor.offer(span(0, *map(fetched, range(6), values, keys)))
    await until(lambda: actor.next == 6)
    assert broker.values == [b"0:1", b"1:2", b"poison", b"3:3", b"poison", b"5:4"]
    assert broker.state == {b"count": b"4"}
    assert [call for call in runtime.metrics.calls if call[0] == "poison"] == [("poison", "in.v1", 0)] * 2
    tallies = [call[4] for call in runtime.metrics.calls if call[0] == "commit"]
    assert sum(tally.get(LETTER, 0) for tally in tallies) == 2
    assert Counting.made > made + 2
    assert "secret content" not in caplog.text
    assert runtime.failure is None


async def test_slices_before_a_poisoned_one_are_committed_before_the_state_is_read_again(make):
    broker, actor, _ = await make(slice_records=2)
    values = [b"v", b"v", b"v", b"poison", b"v", b"v"]
    actor.offer(span(0, *map(fetched, range(6), values), end=8))
    await until(lambda: actor.next == 8)
    good = [(2, [b"0:1", b"1:2"]), (3, [b"2:3"])]
    assert broker.written == [*good, (4, [b"poison"]), (8, [b"4:4", b"5:5"])]
    assert broker.state == {b"count": b"5"}


async def test_after_a_poison_record_the_state_is_read_until_it_holds_the_last_commit(make):
    broker, actor, runtime = await make(slice_records=2)
    await finish(actor, 0, 1)
    broker.late = 2
    actor.offer(span(2, fetched(2, b"poison"), fetched(3)))
    await until(lambda: actor.next == 4)
    assert broker.written == [(2, [b"0:1", b"1:2"]), (3, [b"poison"]), (4, [b"3:3"])]
    assert (broker.state, broker.late, runtime.failure) == ({b"count": b"3"}, 0, None)


@pytest.mark.parametrize("place", ["process", "refuse"])
async def test_a_store_failure_at_a_poison_record_dead_letters_no_valid_record(make, monkeypatch, place):
    failures = [StoreError("damaged", "a store on disk")]
    plain = getattr(Counting, place)

    def failing(stage, records, *error):
        is_the_second_look = place == "refuse" or [record.offset for record in records] == [1]
        if failures and is_the_second_look:
            raise failures.pop()
        return plain(stage, records, *error)

    monkeypatch.setattr(Counting, place, failing)
    broker, actor, runtime = await make()
    log = [fetched(0), fetched(1), fetched(2, b"poison"), fetched(3)]
    actor.offer(span(0, *log))
    await until(lambda: broker.opened == 2 and actor.phase is Phase.WORKING)
    actor.offer(span(actor.waits_for, *log[actor.waits_for :]))
    await until(lambda: actor.next == 4)
    assert (broker.values, runtime.failure, failures) == ([b"0:1", b"1:2", b"poison", b"3:3"], None, [])


class Versioned(Counting):
    """Writes the state format that it uses into its state."""

    format = None

    def use_format(self, state_format):
        self.format = state_format

    def restore(self, key, value):
        if key != b"format":
            super().restore(key, value)

    def process(self, records):
        result = super().process(records)
        result.changes[b"format"] = b"%d" % self.format
        return result


@pytest.mark.parametrize(
    ("found", "configured", "written"),
    [(1, 1, b"8"), (1, 2, b"8 2"), (2, 1, b"8 2"), (2, 2, b"8 2"), (2, 3, b"8 3"), (3, 1, b"8 3")],
)
async def test_state_is_never_written_in_an_older_format_than_it_was_found_in(make, found, configured, written):
    config = structs.replace(CONFIG, state=structs.replace(CONFIG.state, format=configured))
    runtime = Runtime(config, {"in.v1": Versioned}, NoMetrics(), Tuning())
    broker, actor, _ = await make(state={b"count": b"5"}, position=7, state_format=found, runtime=runtime)
    await finish(actor, 7)
    newest = b"%d" % max(found, configured)
    state = [(b"count", b"6", ()), (b"format", newest, ()), (POSITION, written, ())]
    assert [(batch.position, batch.state()) for batch in broker.batches] == [(8, state)]
    assert broker.values == [b"7:6"]


async def test_outputs_without_a_new_position_end_the_worker(make, monkeypatch):
    monkeypatch.setattr(Backlog, "take_batch", lambda *_: ([fetched(0)], 0))
    broker, actor, runtime = await make()
    actor.offer(span(0, fetched(0)))
    await until(runtime.failed.is_set)
    assert (runtime.failure.code, runtime.failure.fault) == ("position_not_moved", "us")
    assert (broker.written, actor.next) == ([], 0)


async def test_by_policy_the_worker_ends_at_a_record_and_commits_the_records_before_it(make):
    broker, actor, runtime = await make()
    actor.offer(span(0, *(fetched(offset, value) for offset, value in enumerate([b"v", b"v", b"stop", b"v"]))))
    await until(lambda: runtime.failure is not None)
    assert (runtime.failure.code, runtime.failure.fault) == ("stopped", "caller")
    assert (broker.values, broker.position) == ([b"0:1", b"1:2"], 2)


async def test_level_metrics_are_set_after_each_batch_and_removed_at_the_end(make):
    _, actor, runtime = await make(state={b"count": b"5"}, position=7)
    await finish(actor, 7)
    await actor.close()
    assert [levels.get("count") for levels in runtime.metrics.levels] == [5, 6, None]
    assert runtime.metrics.levels[-1] == {}


async def test_a_span_after_an_offset_gap_is_rejected(make):
    _, actor, _ = await make()
    with pytest.raises(OffsetGap):
        actor.offer(span(3, fetched(3)))
    assert actor.waits_for == 0


async def test_pausing_finishes_the_batch_in_flight_and_drops_the_rest(make):
    broker, actor, _ = await make()
    actor.aligned = True
    await begin_writing(broker, actor, 0)
    actor.offer(span(1, fetched(1)))
    holding = asyncio.create_task(actor.pause(5.0))
    await asyncio.sleep(0.01)
    assert not holding.done()
    broker.gate.set()
    await holding
    assert broker.values == [b"0:1"]
    actor.offer(span(1, fetched(1)))  # ignored: it will be fetched again
    actor.resume()
    assert not actor.aligned
    assert actor.waits_for == 1
    await finish(actor, 1)
    assert broker.values == [b"0:1", b"1:2"]


async def test_a_batch_that_outlives_its_pause_is_not_processed_twice(make):
    broker, actor, _ = await make()
    await begin_writing(broker, actor, 0, 1)
    await actor.pause(0.01)
    actor.resume()
    actor.offer(span(0, fetched(0), fetched(1), fetched(2)))  # the position was not committed yet
    broker.gate.set()
    await until(lambda: actor.next == 3)
    assert broker.values == [b"0:1", b"1:2", b"2:3"]


async def test_closing_finishes_the_batch_in_flight_and_closes_the_writer(make):
    broker, actor, runtime = await make()
    await begin_writing(broker, actor, 0)
    closing = asyncio.create_task(actor.close())
    await asyncio.sleep(0.01)
    broker.gate.set()
    await closing
    assert broker.values == [b"0:1"]
    assert broker.closed == 1
    assert runtime.failure is None


async def test_closing_does_not_wait_for_a_batch_in_flight_while_no_broker_answers(make, monkeypatch):
    broker, actor, runtime = await make(stop_seconds=3_600.0)
    await begin_writing(broker, actor, 0)
    monkeypatch.setattr("reknit.pipeline.engine.runtime.SILENT_SECONDS", 0.0)
    async with asyncio.timeout(60):
        await actor.close()
    assert (broker.written, broker.closed, runtime.failure) == ([], 1, None)


LOST = PartitionLostError("fenced", "another worker owns it")
PASSING = [
    LOST,
    PartitionLostError("stuck", "too long"),
    KafkaConnectionError("gone"),
    ConnectionResetError(),
    asyncio.CancelledError("of a task of the client"),
]


@pytest.mark.parametrize("error", PASSING, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("committed", [False, True])
async def test_after_a_write_of_unknown_outcome_it_is_reopened(make, error, committed):
    broker, actor, runtime = await make()
    broker.ours = [None, True]  # unknown at first
    broker.fail_once(error, committed=committed)
    actor.offer(span(0, fetched(0), fetched(1)))
    await until(lambda: broker.opened == 2 and actor.phase is Phase.WORKING)
    assert (actor.waits_for, actor.aligned) == (2 if committed else 0, False)
    assert broker.closed == 1
    actor.offer(span(actor.waits_for, *(fetched(offset) for offset in range(actor.waits_for, 4))))
    await until(lambda: actor.next == 4)
    assert broker.values == [b"0:1", b"1:2", b"2:3", b"3:4"], "once each, from the state that was committed"
    assert runtime.failure is None


async def test_an_opening_ends_if_the_partition_has_another_owner(make):
    # It was suspended since the assignment. It has fenced the owner, who opens again.
    broker, actor, _ = await make(position=3, own=PositionMark(input_id="a", state_id="b"), ours=[False])
    assert actor.phase is Phase.CLOSED
    await until(lambda: broker.closed == 1)
    assert (broker.opened, broker.batches, broker.positions) == (1, [], [])


async def test_an_opening_waits_while_the_group_does_not_know_the_owner(make):
    broker, actor, _ = await make(position=3, ours=[None, None, True])
    assert actor.phase is Phase.WORKING
    assert (broker.opened, broker.ours, broker.positions) == (1, [], [3])


async def test_an_opening_that_takes_too_long_is_repeated(make, caplog):
    broker, actor, runtime = await make(start_seconds=0.05)
    broker.fence.clear()
    broker.fail_once(KafkaConnectionError("gone"), committed=False)
    actor.offer(span(0, fetched(0)))
    await until(lambda: broker.opened == 3)
    broker.fence.set()
    await until(lambda: actor.phase is Phase.WORKING)
    await finish(actor, 0)
    assert (broker.values, runtime.failure) == ([b"0:1"], None)
    assert "taking the partition over took more than 0 s (PartitionLostError[stuck])" in caplog.text


async def test_pauses_before_new_openings_grow_until_a_commit_succeeds(make):
    broker, actor, _ = await make()
    pauses, pause = [], actor._backoff.pause
    actor._backoff.pause = lambda: pauses.append(pause()) or pauses[-1]
    for opened in (2, 3, 4):
        broker.fail_once(KafkaConnectionError("gone"), committed=False)
        actor.offer(span(0, fetched(0)))
        await until(lambda opened=opened: broker.opened == opened and actor.phase is Phase.WORKING)
    await finish(actor, 0)
    broker.fail_once(KafkaConnectionError("gone"), committed=False)
    actor.offer(span(1, fetched(1)))
    await until(lambda: broker.opened == 5 and actor.phase is Phase.WORKING)
    assert pauses == [0.001, 0.002, 0.004, 0.001]


async def test_it_is_not_opened_again_before_its_lease_is_renewed(make):
    broker, actor, runtime = await make()
    runtime.lease = Lease(float("-inf"))
    broker.fail_once(PartitionLostError("stuck", "no heartbeat was answered"), committed=False)
    broker.ours = [True] * 3
    actor.offer(span(0, fetched(0)))
    await until(lambda: not broker.ours)
    assert (broker.opened, actor.phase) == (1, Phase.OPENING)
    runtime.lease.renew(float("inf"))
    await until(lambda: actor.phase is Phase.WORKING)
    await finish(actor, 0)
    assert (broker.opened, broker.values, runtime.failure) == (2, [b"0:1"], None)


async def test_a_lease_that_is_not_renewed_ends_the_worker(make):
    broker, actor, runtime = await make(stall_seconds=0.05)
    runtime.lease = Lease(float("-inf"))
    broker.fail_once(PartitionLostError("stuck", "no heartbeat was answered"), committed=False)
    actor.offer(span(0, fetched(0)))
    await until(lambda: runtime.failure is not None)
    assert (runtime.failure.code, broker.opened, broker.batches) == ("stuck", 1, [])


class Store:
    """An object store that does not answer the first request."""

    def __init__(self):
        self.asked = 0

    async def get(self, session, key):
        self.asked += 1
        if self.asked == 1:
            raise ConnectionError("the object store does not answer")
        return b"%d" % self.asked


async def test_an_unavailable_store_delays_its_partition_and_loses_nothing(make):
    broker, actor, runtime = await make()
    runtime.objects = Store()
    log = [fetched(0), structs.replace(fetched(1), value=None, headers=(("dataref", b"key"),))]
    actor.offer(span(0, *log))
    await until(lambda: broker.opened == 2 and actor.phase is Phase.WORKING)
    assert (broker.values, actor.waits_for) == ([], 0)
    actor.offer(span(0, *log))
    await until(lambda: actor.next == 2)
    assert (broker.values, runtime.objects.asked, runtime.failure) == ([b"0:1", b"1:2"], 2, None)


class Scaling:
    """Scales the image of each record of a session that asks for it."""

    async def with_scaled(self, records, scales):
        scaled = {"digest": Raw(b"{}")}
        return [structs.replace(each, scaled=scaled) if scales(each.key) else each for each in records]


class Scaled(Counting):
    def scales(self, key):
        return key == b"wide"

    def process(self, records):
        result = super().process(records)
        result.outputs += [Output("out.v1", each.key, b"scaled %d" % each.offset) for each in records if each.scaled]
        return result


async def test_a_stage_gets_the_scaled_images_of_its_records(make):
    runtime = Runtime(CONFIG, {"in.v1": Scaled}, Recording(), Tuning(slice_records=1))
    runtime.scaler = Scaling()
    broker, actor, _ = await make(runtime=runtime)
    # A record that makes the stage raise has the others processed again.
    log = [fetched(0, key=b"wide"), fetched(1, b"poison"), fetched(2), fetched(3, key=b"wide")]
    actor.offer(span(0, *log))
    await until(lambda: actor.next == 4)
    shown = [output.value for batch in broker.batches for output in batch.outputs if output.topic == "out.v1"]
    assert shown == [b"0:1", b"scaled 0", b"2:2", b"3:3", b"scaled 3"]


@pytest.mark.parametrize("error", [LOST, KafkaConnectionError("gone")], ids=["fenced", "cut off"])
async def test_a_partition_that_moved_away_only_closes(make, error):
    broker, actor, runtime = await make()
    broker.ours = [False]
    broker.error = error
    actor.offer(span(0, fetched(0)))
    await until(lambda: actor.phase is Phase.CLOSED)
    assert (runtime.failure, actor.next, broker.opened, broker.written) == (None, 0, 1, [])


async def test_a_partition_that_is_fenced_repeatedly_ends_the_worker(make):
    broker, actor, runtime = await make(stall_seconds=0.05)
    broker.error = LOST
    async with asyncio.timeout(60):
        while not runtime.failed.is_set():
            if actor.phase is Phase.WORKING:
                actor.offer(span(0, fetched(0)))
            await asyncio.sleep(0.001)
    assert (runtime.failure, actor.next, broker.written) == (LOST, 0, [])


async def test_a_commit_that_takes_too_long_is_given_up_and_repeated_timeouts_end_the_worker(make):
    broker, actor, runtime = await make(batch_seconds=0.05, stall_seconds=0.1)
    broker.gate.clear()
    for _ in range(4):
        actor.offer(span(0, fetched(0)))
        await until(lambda: actor.phase is Phase.OPENING or runtime.failed.is_set())
        await until(lambda: actor.phase is Phase.WORKING or runtime.failed.is_set())
    await until(runtime.failed.is_set)
    assert runtime.failure.code == "stuck"


async def test_it_waits_while_no_broker_answers_and_the_wait_does_not_count_as_a_stall(make, monkeypatch):
    broker, actor, runtime = await make(stall_seconds=0.0)
    monkeypatch.setattr("reknit.pipeline.engine.runtime.SILENT_SECONDS", 0.0)
    broker.fail_once(KafkaConnectionError("gone"), committed=False)
    actor.offer(span(0, fetched(0)))
    await until(lambda: actor.phase is Phase.OPENING)
    await asyncio.sleep(0.05)
    monkeypatch.setattr("reknit.pipeline.engine.runtime.SILENT_SECONDS", 10.0)
    await asyncio.sleep(0.2)
    assert (broker.opened, runtime.failure) == (1, None)
    runtime.on_answer()
    await until(lambda: broker.opened == 2 and actor.phase is Phase.WORKING)


@pytest.mark.parametrize("answers", [[True], [None] * 1000], ids=["owner", "a rebalance is under way"])
async def test_closing_while_opening_succeeds_although_the_cancellation_is_swallowed(make, answers):
    broker, actor, _ = await make()
    opens = asyncio.Event()

    async def deaf():
        broker.ours = answers
        opens.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    broker.open = deaf
    broker.fail_once(KafkaConnectionError("gone"), committed=False)
    actor.offer(span(0, fetched(0)))
    await opens.wait()
    await asyncio.wait_for(actor.pause(5.0), 5)
    assert (actor.phase, broker.closed) == (Phase.CLOSED, 2)


async def test_a_missing_right_ends_the_worker_and_is_named(make):
    broker, actor, runtime = await make()
    broker.error = TransactionalIdAuthorizationFailed("p.reknit-in.v1-0")
    actor.offer(span(0, fetched(0)))
    await until(runtime.failed.is_set)
    assert (runtime.failure.code, runtime.failure.fault) == ("not_authorized", "caller")
    assert "a right on transactional id p.reknit-in.v1-0" in runtime.failure.message


async def test_an_unknown_error_does_not_quote_content(make, caplog):
    broker, actor, runtime = await make()
    broker.error = ValueError("secret content")
    actor.offer(span(0, fetched(0)))
    await until(runtime.failed.is_set)
    assert runtime.failure.code == "worker_failed"
    assert "ValueError" in runtime.failure.message
    assert "secret content" not in runtime.failure.message + caplog.text


async def test_expired_offsets_are_counted_and_skipped(make):
    _, actor, runtime = await make()
    actor.expired(40)
    assert actor.waits_for == 40
    assert runtime.metrics.calls == [("expired", "in.v1", 0, 40)]


async def test_it_ends_at_a_fixed_end_whatever_is_fetched_beyond(make):
    broker, actor, _ = await make(scope=Scope(ends={"in.v1": [2]}))
    actor.aligned = True
    actor.offer(span(0, fetched(0)))
    assert (actor.wants(1 << 20, 10), actor.at_end) == (True, False)
    actor.offer(span(1, fetched(1), fetched(2), fetched(3)))
    assert (actor.wants(1 << 20, 10), actor.at_end) == (False, True)
    await until(lambda: actor.next == 2)
    actor.offer(span(4, fetched(4)))
    assert (broker.values, actor.done_to, actor.wants(1 << 20, 10)) == ([b"0:1", b"1:2"], 2, False)


async def test_trailing_transaction_markers_count_as_processed_at_the_end(make):
    _, actor, _ = await make(scope=Scope(ends={"in.v1": [4]}))
    actor.offer(span(0, fetched(0), end=3))
    actor.offer(span(3, end=9))
    await until(lambda: actor.done_to == 4)


@pytest.mark.parametrize(
    ("scope", "outputs"),
    [
        (Scope(publishes=frozenset()), []),
        (Scope(publishes=frozenset({"out.v1"})), [("out.v1", b"0:1")]),
        (Scope(source_prefix="live."), [("out.v1", b"0:1"), ("recorded.in.v1", b"to the input")]),
        (Scope(source_prefix="p."), [("out.v1", b"0:1"), ("in.v1", b"to the input")]),
        (Scope(source_prefix="live.", publishes=frozenset({"recorded.in.v1"})), [("recorded.in.v1", b"to the input")]),
    ],
)
async def test_the_scope_selects_published_topics_and_redirects_inputs(make, monkeypatch, scope, outputs):
    def process(stage, records):
        return Result(outputs=[Output("out.v1", b"k", b"0:1"), Output("in.v1", b"k", b"to the input")])

    monkeypatch.setattr(Counting, "process", process)
    broker, actor, _ = await make(scope=scope)
    await finish(actor, 0)
    assert [(output.topic, output.value) for output in broker.batches[0].outputs] == outputs


async def test_it_requests_records_only_while_its_share_of_memory_lasts(make):
    broker, actor, _ = await make()
    assert not actor.wants(1_000, 10), "not before the consumer was told where to fetch"
    actor.aligned = True
    assert actor.wants(1_000, 10)
    await begin_writing(broker, actor, 0)
    actor.offer(span(1, fetched(1, b"x" * 2_000)))
    assert not actor.wants(1_000, 10)
    assert actor.wants(10_000, 10)
    assert not actor.wants(10_000, 1)
    broker.gate.set()
    await until(lambda: actor.next == 2)
    assert actor.wants(1_000, 1)


def test_an_unknown_delivery_is_rejected():
    with pytest.raises(StartupError) as error:
        Runtime(Config(delivery="exactly_once"), {}, NoMetrics(), Tuning())
    assert error.value.code == "delivery_unknown"


# Topic ids, and offsets of a recreated topic.

IDS = PositionMark(input_id="in", state_id="state")


class TopicsThatChange:
    """Topics. One of them is recreated once ``changed`` is set."""

    def __init__(self):
        self.changed = False

    async def confirm(self, since):
        if self.changed:
            raise TopicChangedError("input_recreated", "in.v1 was re-created")


async def test_ids_are_stored_immediately_with_a_position_that_has_none(make, caplog):
    with caplog.at_level("INFO", "reknit.engine"):
        broker, actor, runtime = await make(own=IDS, state={b"count": b"5"}, position=7)
    assert [(batch.position, list(batch.outputs), batch.changes, batch.mark) for batch in broker.batches] == [
        (7, [], {}, IDS)
    ]
    assert caplog.text.count("the position was stored without topic ids; from now on it has in and state") == 1
    assert (actor.next, broker.positions, runtime.metrics.calls) == (7, [7], [])


@pytest.mark.parametrize("position", [None, 7])
async def test_nothing_is_stored_for_a_new_partition_or_one_with_ids(make, position):
    broker, actor, _ = await make(own=IDS, position=position, mark=IDS)
    assert broker.batches == []
    await finish(actor, position or 0)
    (*_, (key, value, headers)) = broker.batches[0].state()
    assert (key, value, read_mark(value, headers)) == (POSITION, b"%d 3" % actor.next, IDS)


async def test_records_from_a_recreated_topic_are_not_committed(make):
    runtime = Runtime(CONFIG, {"in.v1": Counting}, Recording(), Tuning())
    runtime.topics = TopicsThatChange()
    broker, actor, _ = await make(runtime=runtime)
    await finish(actor, 0)
    runtime.topics.changed = True
    actor.offer(span(1, fetched(1)))
    await until(runtime.failed.is_set)
    assert (runtime.failure.code, runtime.failure.fault) == ("input_recreated", "caller")
    assert (broker.written, broker.position) == ([(1, [b"0:1"])], 1)


async def test_records_of_an_accepted_topic_and_the_groups_offset_have_its_base(make, monkeypatch):
    seen = []
    process = Counting.process
    monkeypatch.setattr(Counting, "process", lambda stage, records: seen.extend(records) or process(stage, records))
    mark = structs.replace(IDS, base=100)
    broker, actor, _ = await make(own=mark, position=7, mark=mark)
    assert actor.group_metadata == "reknit base=100"
    await finish(actor, 7)
    assert [(record.offset, record.base, record.unique_offset) for record in seen] == [(7, 100, 107)]
    assert broker.batches[0].state()[-1][1] == b"8 3 base=100"


async def test_an_offset_past_transaction_markers_alone_reports_empty_state(make):
    _, actor, _ = await make()
    actor.offer(span(0, end=5))
    assert (actor.done_to, actor.group_metadata) == (5, "reknit empty")
    await finish(actor, 5)
    assert actor.group_metadata == "reknit"


# Topics with smaller limits than the contract requires.


def take_at_most(broker, topics):
    """Make topics reject rows whose value is longer than this."""
    write = broker.write

    async def refusing(batch):
        rows = {topic: [output for output in batch.outputs if output.topic == topic] for topic in topics}
        sizes = {topic: [len(each.value or b"") for each in found] for topic, found in rows.items()}
        sizes["state.v1"] = [len(value or b"") for _, value, _ in batch.state()]
        for topic, most in topics.items():
            if found := [at for at, size in enumerate(sizes[topic]) if size > most]:
                raise RefusedSizeError(topic, "max.message.bytes", found)
        return await write(batch)

    broker.write = refusing


def letters_of(broker):
    found = [output for batch in broker.batches for output in batch.outputs if output.topic == DEAD_LETTERS]
    return [(letter.key, letter.value, {name: value.decode() for name, value in letter.headers}) for letter in found]


async def test_rejected_outputs_become_dead_letters_that_name_the_topics_setting(make):
    broker, actor, runtime = await make()
    take_at_most(broker, {"out.v1": 100})
    actor.offer(span(0, fetched(0), fetched(1, b"large", b"l"), fetched(2), fetched(3, b"large", b"m")))
    await until(lambda: actor.next == 4)
    assert [(batch.position, batch.changes) for batch in broker.batches] == [(4, {b"count": b"4"})]
    assert [value for value in broker.values if value] == [b"0:1", b"2:3"]
    assert [(key, value, why["reknit.error.code"]) for key, value, why in letters_of(broker)] == [
        (b"l", None, "size"),
        (b"m", None, "size"),
    ]
    (_, _, why), _ = letters_of(broker)
    assert why["reknit.error.message"] == (
        "p.out.v1 takes no record of this size; its max.message.bytes is too small, and `reknit topics apply --fix "
        "--bootstrap-servers localhost:9092 --prefix p.` sets it"
    )
    assert (why["reknit.error.output-topic"], why["reknit.error.value-bytes"]) == ("out.v1", "4000")
    assert runtime.metrics.calls == [
        ("commit", "in.v1", 0, 4, {("seen",): 4, ("reknit_dead_letters_total", "in.v1", "size"): 2})
    ]


async def test_a_request_names_its_own_record_in_the_dead_letter(make, monkeypatch):
    cause = ("cause", b"in.v1/0/1")
    monkeypatch.setattr(
        Counting, "process", lambda _stage, records: Result(outputs=[Output("out.v1", b"k", b"x" * 200, (cause,))])
    )
    broker, actor, _ = await make()
    take_at_most(broker, {"out.v1": 100})
    await finish(actor, 0, 1, 2)
    ((_, _, why),) = letters_of(broker)
    assert why["reknit.error.offset"] == "1"


async def test_a_rejected_dead_letter_loses_its_value_first(make):
    broker, actor, _ = await make()
    take_at_most(broker, {DEAD_LETTERS: 5})
    actor.offer(span(0, fetched(0), fetched(1, b"poison")))
    await until(lambda: actor.next == 2)
    ((key, value, why),) = letters_of(broker)
    assert (key, value) == (b"k", None)
    assert (why["reknit.error.offset"], why["reknit.error.value-bytes"]) == ("1", "6")


def test_a_dead_letter_then_loses_details_and_a_long_key_and_then_is_dropped():
    headers = (("own", b"1"), ("reknit.error.code", b"internal"), ("reknit.error.message", b"words"))
    letter = Output(DEAD_LETTERS, b"k" * 2_000, b"value", headers)
    smaller = smaller_letter(letter, "in.v1", 0, 3)
    assert (smaller.key, smaller.value) == (letter.key, None)
    least = smaller_letter(smaller, "in.v1", 0, 3)
    kept = {"reknit.error.code", "reknit.error.output-topic", "reknit.error.value-bytes", "reknit.error.value-sha256"}
    assert (least.key, least.value, {name for name, _ in least.headers}) == (None, None, kept)
    assert smaller_letter(least, "in.v1", 0, 3) is None


class Weighing(Counting):
    """Stores the value of each record as state, whose size a changelog may reject."""

    def restore(self, key, value):
        if key == b"count":
            super().restore(key, value)

    def process(self, records):
        result = super().process(records)
        result.changes |= {b"weight %d" % record.offset: record.value for record in records}
        return result


async def test_a_record_with_rejected_state_becomes_a_dead_letter_and_its_neighbours_are_processed(make):
    runtime = Runtime(CONFIG, {"in.v1": Weighing}, Recording(), Tuning())
    broker, actor, _ = await make(runtime=runtime)
    take_at_most(broker, {"state.v1": 50})
    heavy = b"big" + b"x" * 60
    records = [fetched(0), fetched(1), fetched(2, heavy, b"h"), fetched(3)]
    actor.offer(span(0, *records, end=6))
    await until(lambda: actor.next == 6)
    assert broker.written == [(1, [b"0:1"]), (2, [b"1:2"]), (3, [heavy]), (4, [b"3:3"]), (6, [])]
    assert broker.state == {b"count": b"3"} | {b"weight %d" % offset: b"v" for offset in (0, 1, 3)}
    ((key, value, why),) = letters_of(broker)
    assert (key, value, why["reknit.error.code"], why["reknit.error.offset"]) == (b"h", heavy, "state_size", "2")
    assert why["reknit.error.message"].startswith("p.state.v1 takes no record of this size; its max.message.bytes is")


async def test_a_sessions_parked_state_is_left_out_if_it_is_rejected_too(make, monkeypatch):
    def refuse(stage, record, error):
        letter = dead_letter(record, stage.topic, error)
        return Result(outputs=[letter], changes={b"parked": record.value}, tally={LETTER: 1})

    monkeypatch.setattr(Weighing, "refuse", refuse, raising=False)
    runtime = Runtime(CONFIG, {"in.v1": Weighing}, Recording(), Tuning())
    broker, actor, _ = await make(runtime=runtime)
    take_at_most(broker, {"state.v1": 50})
    await_two = [fetched(0, b"big" + b"x" * 60, b"h"), fetched(1)]
    actor.offer(span(0, *await_two))
    await until(lambda: actor.next == 2)
    assert [(key, why["reknit.error.code"]) for key, _, why in letters_of(broker)] == [(b"h", "state_size")]
    assert broker.state == {b"count": b"1", b"weight 1": b"v"}


@pytest.mark.parametrize("topics", [{"state.v1": 0}, {"out.v1": 0, DEAD_LETTERS: -1}], ids=["state", "letters"])
async def test_a_topic_that_rejects_everything_ends_the_worker(make, topics):
    broker, actor, runtime = await make()
    take_at_most(broker, topics)
    actor.offer(span(0, fetched(0)))
    await until(runtime.failed.is_set)
    assert (runtime.failure.code, runtime.failure.fault) == ("message_too_large", "caller")
    assert (broker.written, actor.next) == ([], 0)
