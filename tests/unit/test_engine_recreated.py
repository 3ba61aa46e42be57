"""`accept` and `rebuild` on an in-memory input and changelog, with the stage of the turns."""

from __future__ import annotations

import json

import pytest
from aiokafka import TopicPartition
from build import said, user
from stage_runs import OPENED, Sliced, restored, turn
from stored import key_for

from reknit.pipeline.engine import recreated as module
from reknit.pipeline.engine import state as state_module
from reknit.pipeline.engine.runtime import Scope, TopicChangedError
from reknit.pipeline.engine.state import Restored
from reknit.pipeline.engine.topic_ids import Look
from reknit.pipeline.errors import InputError
from reknit.pipeline.settings import Config, StateSettings
from reknit.pipeline.stages.base import Record
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.turns import TurnsStage
from reknit.topics import AGENT_TURNS, PROVIDER_REQUESTS, TURNS_STATE
from reknit.topics.positions import POSITION, GroupPosition, PositionMark, read_mark, read_position

PARK = Defaults(on_dead_letter="park")
LETTER = turn({"role": "nobody"})
RELEASED = {"type": "session.released"}
PLACE = TopicPartition(AGENT_TURNS, 0)


def log(events, key=b"a"):
    values = [json.dumps(event).encode() for event in events]
    return [Record(partition=0, offset=at, key=key, value=value) for at, value in enumerate(values)]


class Cluster:
    """One input, its changelog as rows (key, value, headers), and their ids."""

    def __init__(self):
        self.input, self.first = [], 0
        self.rows = []
        self.ids = {AGENT_TURNS: "in", TURNS_STATE: "state"}

    # Queries of the commands.

    async def check(self, runtime, _read, _written):
        runtime.partitions = 1

    async def restore(self, _connection, _topic, _number, apply, *, start=min, **_):
        at = start(0, len(self.rows))
        position, state_format, mark = None, 1, PositionMark()
        for key, value, headers in self.rows[at:]:
            if key == POSITION:
                (position, state_format), mark = read_position(value), read_mark(value, headers)
            else:
                apply(key, value)
        return Restored(position, state_format, len(self.rows) - at, 0.0, len(self.rows), mark)

    async def open(self): ...

    async def close(self): ...

    async def write(self, batch):
        assert list(batch.outputs) == [], "nothing is published"
        self.rows += batch.state()
        return len(self.rows)

    async def look(self):
        return Look(0.0, self.ids)

    # The input's consumer.

    def __call__(self, **_):
        self.at = 0
        return self

    async def start(self): ...

    async def stop(self): ...

    def assign(self, _places): ...

    def pause(self, *_places): ...

    def resume(self, *_places): ...

    def seek(self, _place, offset):
        self.at = offset

    async def position(self, _place):
        return self.at

    async def getmany(self, place, **_):
        found = [record for record in self.input if record.offset >= self.at][:3]
        if found:
            self.at = found[-1].offset + 1
        return {place: found}

    async def beginning_offsets(self, _places):
        return {PLACE: self.first}

    async def end_offsets(self, _places):
        return {PLACE: self.first + len(self.input)}

    # The final state.

    @property
    def state(self):
        latest = {key: value for key, value, _ in self.rows if key != POSITION}
        return {key: value for key, value in latest.items() if value is not None}

    @property
    def stored(self):
        """Return the last position and its mark."""
        _, value, headers = [row for row in self.rows if row[0] == POSITION][-1]
        return read_position(value)[0], read_mark(value, headers)

    @property
    def stage(self):
        return restored(TurnsStage(PARK), self.state)


@pytest.fixture
def cluster(monkeypatch):
    made = Cluster()
    monkeypatch.setattr(module.preflight, "check", made.check)
    monkeypatch.setattr(module, "restore", made.restore)
    monkeypatch.setattr(state_module, "restore", made.restore)
    monkeypatch.setattr(module, "writer_for", lambda *_: made)
    monkeypatch.setattr(module, "AIOKafkaConsumer", made)
    monkeypatch.setattr(module, "patch_aiokafka", lambda: None)
    monkeypatch.setattr(module.TopicIds, "look", lambda _topics: made.look())
    return made


CONFIG = Config(state=StateSettings(format=3))
STAGES = {AGENT_TURNS: lambda _: TurnsStage(PARK)}


async def accept(group=None, start="earliest", **more):
    groups = {} if group is None else {(AGENT_TURNS, 0): group}
    (outcome,) = await module.accept(CONFIG, STAGES, AGENT_TURNS, start, groups, scope=Scope(), **more)
    return outcome


async def rebuild(group=None, published=frozenset(), **more):
    """``published`` has the ids of requests that the topics hold."""

    async def look(_topic, _partition, _offset):
        def was_published(outputs):
            ids = {dict(output.headers)["request-id"] for output in outputs if output.topic == PROVIDER_REQUESTS}
            return ids <= published if ids else None

        return was_published

    groups = {} if group is None else {(AGENT_TURNS, 0): group}
    (outcome,) = await module.rebuild(CONFIG, STAGES, groups, look, scope=Scope(), objects=None, **more)
    return outcome


def requests_of(outputs):
    return [dict(each.headers)["request-id"] for each in outputs if each.topic == PROVIDER_REQUESTS]


def worked(records, most=None):
    """Return the outputs of a worker for these records. With ``most`` it has processed only that many due records."""
    sliced = Sliced(lambda: TurnsStage(PARK))
    for record in records:
        sliced.take(record)
    sliced.release(1 << 30 if most is None else most)
    return sliced


TALK = [OPENED, turn(user("one")), turn(said("two")), turn(user("three")), turn(said("four")), turn(user("five"))]
IDS = {"input_id": "in", "state_id": "state"}


async def test_an_input_is_accepted_with_its_state_and_a_base(cluster):
    cluster.input = log(TALK)
    state = worked(cluster.input).state
    cluster.rows = [(key, value, ()) for key, value in state.items()]
    cluster.rows.append((POSITION, b"6 3", (("input-id", b"former"), ("state-id", b"state"))))
    outcome = await accept()
    assert (outcome.status, outcome.before, outcome.position, outcome.base) == ("accepted", 6, 0, 6)
    assert (cluster.stored, cluster.state) == ((0, PositionMark(base=6, **IDS)), state)
    assert (await accept()).status == "unchanged"
    cluster.ids[AGENT_TURNS] = "another"
    outcome = await accept(start="end")
    assert (outcome.before, outcome.position, outcome.base) == (0, 6, 6)


async def test_a_position_without_an_id_is_accepted_if_the_topic_ends_before_it_or_on_request(cluster):
    cluster.input = log(TALK)
    cluster.rows = [(POSITION, b"4 3", ())]
    assert (await accept()).status == "unchanged"
    cluster.ids = dict.fromkeys(cluster.ids, "")
    with pytest.raises(InputError) as caught:
        await accept()
    assert caught.value.code == "id_unknown"
    assert (await accept(unverified=True)).status == "accepted"
    cluster.rows = [(POSITION, b"9 3", ())]
    assert (await accept()).base == 9


async def test_an_input_is_not_accepted_while_its_state_is_lost(cluster):
    with pytest.raises(TopicChangedError) as caught:
        await accept(GroupPosition(6))
    assert (caught.value.code, cluster.rows) == ("state_lost", [])


async def test_lost_state_is_rebuilt_up_to_the_groups_position_without_publishing(cluster):
    cluster.input = log(TALK)
    expected = worked(cluster.input[:4])
    outcome = await rebuild(GroupPosition(4, base=70))
    assert (outcome.status, outcome.position, outcome.first) == ("rebuilt", 4, 0)
    assert cluster.stored == (4, PositionMark(base=70, **IDS))
    assert cluster.stage.find(b"a").turn == worked(cluster.input[:4]).stage.find(b"a").turn
    assert cluster.state.keys() == expected.state.keys()
    assert (await rebuild(GroupPosition(4, base=70))).status == "unchanged"


async def test_records_after_the_groups_position_count_if_their_outputs_exist(cluster):
    cluster.input = log(TALK)
    published = requests_of(worked(cluster.input).outputs)
    outcome = await rebuild(GroupPosition(2), frozenset(published[:2]))
    # Record 2 has no outputs. Record 3 was processed, so record 2 was too; record 5 was not, and record 4 may not be.
    assert (outcome.position, cluster.stored) == (4, (4, PositionMark(**IDS)))
    assert cluster.stage.find(b"a").turn == 4


async def test_the_content_of_a_recreated_changelog_is_replaced(cluster):
    cluster.input = log(TALK)
    mark = (("input-id", b"in"), ("state-id", b"former"))
    cluster.rows = [(key_for("head", b"s"), b"left", ()), (POSITION, b"5 3", mark)]
    outcome = await rebuild(GroupPosition(2))
    assert (outcome.before, outcome.position) == (5, 5)
    assert cluster.state.keys() == worked(cluster.input[:5]).state.keys()


@pytest.mark.parametrize(("written", "position"), [(1, 0), (2, 6)])
async def test_an_interrupted_rebuild_is_finished(cluster, monkeypatch, written, position):
    cluster.input = log(TALK)
    write, count = Cluster.write, iter(range(10))

    async def fail_later(self, batch):
        if next(count) == written:
            raise TopicChangedError("test", "interrupted")
        return await write(self, batch)

    monkeypatch.setattr(Cluster, "write", fail_later)
    with pytest.raises(TopicChangedError):
        await rebuild(GroupPosition(6))
    assert cluster.stored == (position, PositionMark(until=6, **IDS)), "no worker continues from it"
    monkeypatch.setattr(Cluster, "write", write)
    outcome = await rebuild(GroupPosition(6))
    assert (outcome.status, outcome.position) == ("rebuilt", 6)
    assert cluster.stored == (6, PositionMark(**IDS))
    assert cluster.stage.find(b"a").turn == 6


@pytest.mark.parametrize("taken", [0, 3, 8])
async def test_a_release_in_progress_is_rebuilt_up_to_its_published_outputs(cluster, taken):
    waiting = [turn(user(f"w{n}")) for n in range(8)]
    cluster.input = log([OPENED, turn(user("one")), LETTER, *waiting, RELEASED, turn(user("last"))])
    end = len(cluster.input)
    so_far = worked(cluster.input, taken)
    published = frozenset(requests_of(so_far.outputs))
    outcome = await rebuild(GroupPosition(end, released_at=end - 2), published)
    assert outcome.position == end
    stage = cluster.stage
    stage.use_format(3)
    left = []
    while (record := stage.due_record()) is not None:
        left += requests_of(stage.process([record]).outputs)
    everything = requests_of(worked(cluster.input).outputs)
    assert [*requests_of(so_far.outputs), *left] == everything


async def test_nothing_is_rebuilt_if_nothing_was_processed(cluster):
    cluster.input = log(TALK)
    assert (await rebuild()).status == "unchanged"
    assert cluster.rows == []


async def test_force_rebuilds_existing_state(cluster):
    cluster.input = log(TALK)
    mark = (("input-id", b"in"), ("state-id", b"state"))
    cluster.rows = [(key_for("head", b"s"), b"left", ()), (POSITION, b"6 3", mark)]
    assert (await rebuild()).status == "unchanged"
    assert (await rebuild(force=True)).status == "rebuilt"
    assert cluster.state.keys() == worked(cluster.input).state.keys()
