"""The engine drives a release in slices: their sizes and order, and exactly-once processing after any failure."""

from __future__ import annotations

import asyncio
import json

import msgspec
import pytest
from aiokafka.errors import KafkaConnectionError
from build import said, user
from msgspec import structs
from stage_runs import letters, turn
from stored import kinds_in, without_kinds

from reknit.pipeline.engine import partition as module
from reknit.pipeline.engine.batches import Span
from reknit.pipeline.engine.partition import Partition, Phase
from reknit.pipeline.engine.runtime import NoMetrics, Runtime, Scope, Tuning
from reknit.pipeline.engine.state import Restored
from reknit.pipeline.settings import Config, StateSettings
from reknit.pipeline.stages.base import POSITION, Record, read_position
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.turns import TurnsStage
from reknit.topics import AGENT_TURNS, PROVIDER_REQUESTS

PARK = Defaults(model="m", params={"max_tokens": msgspec.Raw(b"9")}, on_dead_letter="park")
UNUSABLE = {"type": "turn.appended", "message": {"role": "nobody"}}
RELEASED = {"type": "session.released"}
FORGOTTEN = {"type": "session.forgotten"}


def log(*rows, first=0):
    """Records of a partition, each with its session and its event."""
    return [
        Record(
            partition=0,
            offset=offset,
            key=key.encode(),
            value=event if isinstance(event, bytes) else json.dumps(event).encode(),
        )
        for offset, (key, event) in enumerate(rows, start=first)
    ]


def talk(count, words=str):
    """Turns, alternately by a user and an assistant."""
    return [turn((said if at % 2 else user)(words(at))) for at in range(count)]


def released(count, words=str, key="a"):
    """A session that is parked, with ``count`` waiting records, and then released: ``count`` + 2 records."""
    return [(key, event) for event in [UNUSABLE, *talk(count, words), RELEASED]]


class Changelog:
    """The durable transactions, in order."""

    def __init__(self):
        self.rows, self.batches, self.told = [], [], []
        self.fails = {}  # by the number of a write that fails: the part that is durable anyway: all, outputs or nothing
        self.late_after = {}  # by the number of a write: the number of reads that do not see it yet
        self.writes = self.opened = 0
        self.on_write = lambda: None
        self.gate = asyncio.Event()
        self.gate.set()

    async def open(self):
        self.opened += 1

    async def write(self, batch):
        await self.gate.wait()
        self.on_write()
        self.writes += 1
        durable = self.fails.get(self.writes, "all")
        if durable != "nothing":
            self.batches.append(batch)
        if durable == "all":
            self.rows.append([(key, value) for key, value, _ in batch.state()])
        if self.writes in self.fails:
            raise KafkaConnectionError("lost")
        return sum(map(len, self.rows))

    async def close(self): ...

    async def restore(self, connection, topic, number, apply, *, start, **_):
        start(0, 0)
        late = self.late_after.get(self.writes, 0)
        self.late_after[self.writes] = max(0, late - 1)
        seen = self.rows[: len(self.rows) - 1] if late else self.rows
        position, state_format = None, 1
        for key, value in (row for rows in seen for row in rows):
            if key == POSITION:
                position, state_format = read_position(value)
            else:
                apply(key, value)
        return Restored(position, state_format, 0, 0.0, sum(map(len, seen)))

    async def is_ours(self, position):
        self.told.append(position)
        return True

    @property
    def slices(self):
        """Return the position of each transaction, and the texts of its requests with their sessions."""
        return [
            (batch.position, [f"{o.key.decode()}{text(o)}" for o in batch.outputs if o.topic == PROVIDER_REQUESTS])
            for batch in self.batches
        ]

    @property
    def outputs(self):
        return [output for batch in self.batches for output in batch.outputs]

    @property
    def state(self):
        latest = {key: value for rows in self.rows for key, value in rows}
        return {key: value for key, value in latest.items() if value is not None}


def text(output):
    return json.loads(output.value)["messages"][-1]["content"][-1]["text"]


@pytest.fixture
async def make(monkeypatch):
    """Return a function that makes an actor over a changelog, with the stage of the turns."""
    made = []
    monkeypatch.setattr(module, "_REOPEN_SECONDS", 0.001)

    async def build(changelog=None, *, stage=TurnsStage, state_format=3, scope=None, **tuning):
        changelog = changelog or Changelog()
        config = Config(state=StateSettings(format=state_format), delivery="exactly-once")
        runtime = Runtime(config, {AGENT_TURNS: lambda _: stage(PARK)}, NoMetrics(), Tuning(**tuning), scope=scope)
        runtime.read_changelog = changelog.restore
        actor = Partition(
            runtime,
            AGENT_TURNS,
            0,
            writer=lambda _: changelog,
            on_room=lambda: None,
            on_opened=nothing,
            on_position=changelog.told.append,
            is_ours=changelog.is_ours,
        )
        made.append(actor)
        await until(lambda: actor.phase is Phase.WORKING)
        actor.aligned = True
        return changelog, actor, runtime

    yield build
    for actor in made:
        await actor.close()


async def nothing(_position): ...


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - polls what the actor changes by itself
            await asyncio.sleep(0.001)


def offer(actor, records):
    actor.offer(Span(actor.waits_for, records[-1].offset + 1, records, records[-1].offset + 1))


async def feed(actor, records):
    """Pass records to an actor, and wait until all work is done, including due records."""
    offer(actor, records)
    await until(lambda: actor.done_to == records[-1].offset + 1)


async def test_waiting_records_are_released_in_slices_of_a_fixed_number(make):
    changelog, actor, _ = await make(release_records=4)
    await feed(actor, log(*released(10), ("b", turn(user("b")))))
    assert changelog.slices == [(13, ["bb"]), (13, ["a0", "a2"]), (13, ["a4", "a6"]), (13, ["a8"])]
    assert kinds_in(changelog.state).isdisjoint({"parked session", "waiting record", "release"})


async def test_each_released_record_and_each_commit_counts_as_progress(make):
    _, actor, runtime = await make(release_records=4)
    await feed(actor, log(*released(10)))
    assert runtime.steps == {(AGENT_TURNS, 0): 1 + 10 + 4}


async def test_a_slice_ends_once_its_outputs_are_larger_than_a_batch(make):
    changelog, actor, _ = await make(batch_bytes=300_000)
    await feed(actor, log(*released(16, lambda at: f"{at}" + " " * 10_000)))
    sizes = [[len(output.value) // 10_000 for output in batch.outputs] for batch in changelog.batches[1:]]
    assert sizes == [[1, 3, 5], [7, 9], [11, 13], [15]], "with their state, of which each holds less than the history"


async def test_the_group_offset_passes_a_release_once_nothing_is_due(make):
    changelog, actor, _ = await make(release_records=2)
    await feed(actor, log(*released(4)))
    assert [batch.position for batch in changelog.batches] == [6, 6, 6]
    assert changelog.told == [0, 0, 5, 5, 6], "asked at the opening, and committed after it and after each batch"


async def test_a_worker_with_a_fixed_end_finishes_the_release_first(make):
    changelog, actor, _ = await make(release_records=1, scope=Scope(ends={AGENT_TURNS: [5]}))
    seen = []
    changelog.on_write = lambda: seen.append(actor.done_to)
    offer(actor, log(*released(3), ("b", turn(user("behind the end")))))
    await until(lambda: actor.done_to == 5)
    assert changelog.slices == [(5, []), (5, ["a0"]), (5, []), (5, ["a2"])]
    assert seen == [0, 4, 4, 4]


async def test_records_that_arrive_meanwhile_are_processed_between_slices(make):
    changelog, actor, _ = await make(release_records=2)
    changelog.gate.clear()
    records = log(*released(6), ("b", turn(user("b"))), ("a", turn(user("late"))), ("b", turn(said("x"))))
    offer(actor, records[:8])
    await until(lambda: not actor._backlog)
    offer(actor, records[8:])
    changelog.gate.set()
    await until(lambda: actor.done_to == 11)
    assert changelog.slices == [(8, []), (8, ["a0"]), (11, ["bb"]), (11, ["a2"]), (11, ["a4"]), (11, ["alate"])]


async def test_no_more_records_are_taken_while_too_many_wait_for_a_release(make):
    limited = structs.replace(PARK, parked_records=6)
    changelog, actor, _ = await make(stage=lambda _: TurnsStage(limited), release_records=3, batch_records=4)
    later = [("a", event) for event in talk(12, lambda at: f"later {at}")]
    await feed(actor, log(*released(6), *later, ("b", turn(user("b")))))
    assert letters(changelog.outputs) == [(0, "unknown_role")]
    assert changelog.slices == [
        (4, []),
        (8, []),
        (8, ["a0", "a2"]),
        (12, []),
        (12, ["a4"]),
        (16, []),
        (16, ["alater 0", "alater 2"]),
        (20, []),
        (20, ["alater 4"]),  # nine later records still wait, and six may: the next batch has to wait too
        (20, ["alater 6", "alater 8"]),
        (21, ["bb"]),
        (21, ["alater 10"]),
    ]


async def test_forgetting_takes_effect_between_slices(make):
    changelog, actor, _ = await make(release_records=2)
    changelog.gate.clear()
    records = log(*released(6), ("a", FORGOTTEN))
    offer(actor, records[:-1])
    await until(lambda: not actor._backlog)
    offer(actor, records[-1:])
    changelog.gate.set()
    await until(lambda: actor.done_to == 9)
    assert changelog.slices == [(8, []), (8, ["a0"]), (9, [])]
    assert kinds_in(changelog.state) == {"marker"}


async def test_a_rebalance_waits_only_for_the_current_record(make):
    holding = []

    class Holding(TurnsStage):
        """Begin a rebalance during the second record of the release."""

        def process(self, records):
            made = super().process(records)
            if records[0].offset == 2:
                holding.append(asyncio.create_task(actor.pause(10)))
            return made

    changelog, actor, _ = await make(stage=Holding, release_records=4)
    offer(actor, log(*released(6)))
    await until(lambda: holding and holding[0].done())
    assert changelog.slices == [(8, []), (8, ["a0"])]
    actor.resume()
    await until(lambda: actor.done_to == 8)
    assert changelog.slices[2:] == [(8, ["a2", "a4"])]


async def test_the_next_owner_continues_an_unfinished_release(make):
    changelog, actor, _ = await make(release_records=2)
    changelog.on_write = lambda: len(changelog.batches) == 1 and setattr(actor, "phase", Phase.CLOSED)
    offer(actor, log(*released(6)))
    await until(lambda: len(changelog.batches) == 2)
    await actor.close()
    changelog.on_write = lambda: None
    _, other, _ = await make(changelog, release_records=2)
    await until(lambda: other.done_to == 8)
    assert changelog.slices == [(8, []), (8, ["a0"]), (8, ["a2"]), (8, ["a4"])]


async def test_with_a_format_below_3_a_release_is_one_transaction(make):
    changelog, actor, _ = await make(state_format=2, release_records=2)
    await feed(actor, log(*released(6)))
    assert changelog.slices == [(8, ["a0", "a2", "a4"])]


async def test_sessions_parked_in_an_older_format_are_released_in_slices(make):
    changelog, actor, _ = await make(state_format=2)
    records = log(*released(6))
    await feed(actor, records[:-1])
    await actor.close()
    changelog, actor, _ = await make(changelog, release_records=2)
    await feed(actor, records[-1:])
    assert changelog.slices[1:] == [(8, []), (8, ["a0"]), (8, ["a2"]), (8, ["a4"])]


# After any failure the same is committed as in an undisturbed run.

STORY = [*released(5), ("b", turn(user("b"))), ("a", turn(said("x"))), ("a", turn(user("late")))]


def by_session(changelog):
    found = {}
    for output in changelog.outputs:
        found.setdefault((output.topic, output.key), []).append((output.value, output.headers))
    return found, without_kinds(changelog.state, "head", "change of a head")


@pytest.mark.parametrize("durable", ["all", "outputs", "nothing"])
@pytest.mark.parametrize("number", range(1, 6))
async def test_a_process_that_ends_at_any_commit_loses_and_repeats_nothing(make, number, durable):
    """If only the outputs are durable, as with delivery at least once, that batch's outputs are repeated unchanged."""
    calm, actor, _ = await make(release_records=2)
    await feed(actor, log(*STORY))
    assert calm.writes == 5
    changelog, actor, runtime = await make(release_records=2)
    changelog.fails = {number: durable}
    records = log(*STORY)
    offer(actor, records)
    # Reopened, it reads its state from the changelog, as another process would.
    await until(lambda: changelog.opened == 2 and actor.phase is Phase.WORKING)
    actor.aligned = True
    if rest := records[actor.waits_for :]:
        offer(actor, rest)
    await until(lambda: actor.done_to == len(STORY))
    if durable == "outputs":
        repeated = changelog.batches.pop(number - 1)
        assert repeated.outputs == changelog.batches[number - 1].outputs
    assert by_session(changelog) == by_session(calm)
    # Opened again at the end, it asks with that position, and commits it.
    times = 2 if (number, durable) == (calm.writes, "all") else 1
    assert (changelog.told.count(len(STORY)), runtime.failure) == (times, None), "the group hears of the end at the end"


class Buggy(TurnsStage):
    """Has a bug, and for some records a second bug in the handling of the first."""

    def _take_record(self, key, event, record, batch):
        super()._take_record(key, event, record, batch)
        if b"bug" in record.value:
            raise RuntimeError("a bug")

    def _put_aside(self, record, error, batch):
        super()._put_aside(record, error, batch)
        if b"worse bug" in record.value:
            raise RuntimeError("another bug")


async def test_a_released_record_at_which_the_stage_raises_parks_the_session_again(make):
    changelog, actor, runtime = await make(stage=Buggy, release_records=4)
    story = released(6, lambda at: "bug" if at == 2 else str(at))
    await feed(actor, log(*story, ("b", turn(user("b")))))
    # The record before it is committed, then its dead letter; later records wait again.
    assert changelog.slices == [(9, ["bb"]), (9, ["a0"]), (9, [])]
    assert letters(changelog.outputs) == [(0, "unknown_role"), (3, "internal")]
    assert actor._kept.stage.levels() == {"reknit_sessions_parked": 1, "reknit_turns_waiting": 3}
    await feed(actor, log(("a", RELEASED), first=9))
    assert changelog.slices[3:] == [(10, []), (10, ["a4"])]
    assert runtime.failure is None


async def test_a_released_record_whose_error_handling_raises_is_dead_lettered_alone(make):
    changelog, actor, runtime = await make(stage=Buggy, release_records=4)
    await feed(actor, log(*released(6, lambda at: "worse bug" if at == 2 else str(at))))
    assert [texts for _, texts in changelog.slices] == [[], ["a0"], [], ["a4"]]
    assert letters(changelog.outputs) == [(0, "unknown_role"), (3, "internal")]
    assert kinds_in(changelog.state).isdisjoint({"parked session", "waiting record", "release"})
    assert runtime.failure is None


async def test_after_a_bug_the_state_is_read_until_it_holds_the_last_slice(make):
    """The position does not show this: it is the same before and after a slice."""
    changelog, actor, runtime = await make(stage=Buggy, release_records=2)
    changelog.late_after = {3: 2}
    await feed(actor, log(*released(6, lambda at: "bug" if at == 4 else str(at))))
    assert [texts for _, texts in changelog.slices] == [[], ["a0"], ["a2"], []]
    assert letters(changelog.outputs) == [(0, "unknown_role"), (5, "internal")]
    assert (changelog.late_after, runtime.failure) == ({3: 0}, None)


async def test_the_stop_policy_ends_the_worker_at_a_released_record(make):
    changelog, actor, _ = await make()
    await feed(actor, log(("a", UNUSABLE), *(("a", event) for event in [*talk(3), b"{", turn(user("last"))])))
    await actor.close()
    stops = structs.replace(PARK, on_dead_letter="stop")
    _, actor, runtime = await make(changelog, stage=lambda _: TurnsStage(stops))
    offer(actor, log(("a", RELEASED), first=6))
    await until(runtime.failed.is_set)
    assert (runtime.failure.code, runtime.failure.fault) == ("stopped", "caller")
    assert changelog.slices == [(6, []), (7, []), (7, ["a0", "a2"])]


class Stubborn(TurnsStage):
    """Leaves records in its state that it has processed."""

    def process(self, records):
        due = self.due_record()
        made = super().process(records)
        if due is not None:
            self._states.due_record = lambda: due
        return made


async def test_a_record_that_is_still_due_after_processing_ends_the_worker(make):
    changelog, actor, runtime = await make(stage=Stubborn)
    offer(actor, log(*released(3)))
    await until(runtime.failed.is_set)
    assert (runtime.failure.code, runtime.failure.fault) == ("due_not_taken", "us")
    assert changelog.slices == [(5, [])]
