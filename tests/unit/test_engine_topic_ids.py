"""Topic ids: the worker's comparisons, and its errors for a recreated topic."""

from __future__ import annotations

import asyncio
import logging
import time
from types import SimpleNamespace
from uuid import uuid4

import pytest
from aiokafka.errors import ClusterAuthorizationFailedError, KafkaConnectionError, NodeNotReadyError
from click.testing import CliRunner

from reknit.pipeline.cli import main
from reknit.pipeline.engine import topic_ids as module
from reknit.pipeline.engine.runtime import NoMetrics, Runtime, Scope, TopicChangedError, Tuning
from reknit.pipeline.engine.topic_ids import Look, TopicIds, TopicWatch, as_kafka_shows
from reknit.pipeline.settings import Config
from reknit.topics.positions import UNMARKED, GroupPosition, PositionMark

INPUT, STATE = "p.in.v1", "p.state.v1"
COMMAND = "--bootstrap-servers localhost:9092 --prefix p."


class Brokers:
    """The brokers' metadata. ``ids`` by name, of 16 bytes, or empty if the brokers have no ids."""

    def __init__(self):
        self.ids = {INPUT: uuid4().bytes, STATE: uuid4().bytes}
        self.asked = 0
        self.errors = []  # the errors of the next requests

    def recreate(self, name):
        self.ids[name] = uuid4().bytes

    def shown(self, name):
        return as_kafka_shows(self.ids[name])


@pytest.fixture
def brokers(monkeypatch):
    found = Brokers()

    class Client:
        def __init__(self, **_):
            pass

        async def bootstrap(self):
            pass

        async def close(self):
            pass

        def get_random_node(self):
            return 1

        async def send(self, _node, request):
            found.asked += 1
            await asyncio.sleep(0)
            if found.errors:
                raise found.errors.pop(0)
            topics = [
                {"topic": name, "error_code": 0 if name in found.ids else 3}
                | ({"topic_id": found.ids[name]} if found.ids.get(name) else {})
                for name in request._topics
            ]
            return SimpleNamespace(to_object=lambda: {"topics": topics})

    monkeypatch.setattr("reknit.pipeline.engine.seams.AIOKafkaClient", Client)
    monkeypatch.setattr("aiokafka.client.AIOKafkaClient", Client)
    return found


def topics_of(brokers, scope=None):
    stage = SimpleNamespace(state_topic="state.v1")
    runtime = Runtime(Config(prefix="p."), {"in.v1": lambda _: stage}, NoMetrics(), Tuning(), scope=scope)
    runtime.topic_ids = {name: f"cluster {topic_id.hex()}" for name, topic_id in brokers.ids.items() if topic_id}
    return TopicIds(runtime)


async def opened(topics, position, mark=UNMARKED, group=None):
    async def ask_group():
        return group

    return await topics.mark_at_opening("in.v1", 4, position, mark, ask_group)


def mark_of(brokers, **more):
    return PositionMark(input_id=brokers.shown(INPUT), state_id=brokers.shown(STATE), **more)


@pytest.mark.parametrize("base", [0, 70])
@pytest.mark.parametrize("stored", ["both", "neither", "input_id", "state_id"])
async def test_a_position_keeps_its_ids_and_adopts_missing_ones(brokers, stored, base):
    whole = mark_of(brokers, base=base)
    mark = PositionMark(
        base=base,
        input_id=whole.input_id if stored in {"both", "input_id"} else "",
        state_id=whole.state_id if stored in {"both", "state_id"} else "",
    )
    assert await opened(topics_of(brokers), 9, mark) == whole


@pytest.mark.parametrize("group", [None, GroupPosition(0), GroupPosition(7, has_state=False)])
async def test_a_partition_without_a_committed_position_begins(brokers, group):
    assert await opened(topics_of(brokers), None, group=group) == mark_of(brokers)


async def test_a_replays_partition_begins_with_the_base_of_the_live_one(brokers):
    topics = topics_of(brokers, Scope(bases={"in.v1": [0, 0, 0, 0, 70]}))
    assert await opened(topics, None) == mark_of(brokers, base=70)
    assert await opened(topics, 9, mark_of(brokers, base=5)) == mark_of(brokers, base=5)


async def refused(topics, position=9, mark=UNMARKED, group=None):
    with pytest.raises(TopicChangedError) as caught:
        await opened(topics, position, mark, group)
    assert caught.value.fault == "caller"
    return caught.value.code, caught.value.message


async def test_a_recreated_input_is_rejected_with_the_command_to_continue(brokers):
    mark = mark_of(brokers)
    brokers.recreate(INPUT)
    code, message = await refused(topics_of(brokers), mark=mark)
    assert code == "input_recreated"
    assert message == (
        f"{INPUT} was re-created since partition 4 was processed up to offset 9 (id {mark.input_id}, now "
        f"{brokers.shown(INPUT)}); `reknit topics accept in.v1 --from earliest {COMMAND}` continues with its first "
        "record, and `--from end` after its last"
    )


async def test_a_replay_does_not_continue_with_another_topic(brokers):
    mark = mark_of(brokers)
    brokers.recreate(INPUT)
    _, message = await refused(topics_of(brokers, Scope(ends={"in.v1": [9] * 5})), mark=mark)
    assert message.endswith("; a replay cannot continue with another topic: start one under another --id")


async def test_a_recreated_changelog_is_rejected_with_the_command_that_rebuilds_it(brokers):
    mark = mark_of(brokers)
    brokers.recreate(STATE)
    code, message = await refused(topics_of(brokers), mark=mark)
    assert code == "state_recreated"
    assert f"stop all workers, and `reknit topics rebuild {COMMAND}` makes the state again" in message


async def test_if_both_are_recreated_no_command_is_named(brokers):
    mark = mark_of(brokers)
    brokers.recreate(INPUT)
    brokers.recreate(STATE)
    code, message = await refused(topics_of(brokers), mark=mark)
    assert code == "topics_recreated"
    assert "reknit topics accept" not in message
    assert "reknit topics rebuild" not in message


async def test_a_changelog_without_a_position_is_rejected_if_the_group_had_one(brokers):
    code, message = await refused(topics_of(brokers), None, group=GroupPosition(7))
    assert code == "state_lost"
    assert f"the group has processed {INPUT} up to offset 7" in message
    assert f"`reknit topics rebuild {COMMAND}`" in message


async def test_an_interrupted_rebuild_is_finished_first(brokers):
    code, message = await refused(topics_of(brokers), mark=mark_of(brokers, until=20))
    assert code == "state_rebuilding"
    assert f"`reknit topics rebuild {COMMAND}` finishes it" in message


async def test_without_topic_ids_nothing_is_compared(brokers):
    brokers.ids = dict.fromkeys(brokers.ids, b"")
    topics = topics_of(brokers)
    stored = PositionMark(input_id="one", state_id="two")
    assert await opened(topics, 9, stored) == stored
    assert await opened(topics, 9) == UNMARKED
    asked = brokers.asked
    await topics.confirm(time.monotonic() + 60)
    assert brokers.asked == asked


@pytest.mark.parametrize("name", [INPUT, STATE])
async def test_records_fetched_after_a_topic_was_recreated_are_not_confirmed(brokers, name):
    topics = topics_of(brokers)
    await topics.look()
    brokers.recreate(name)
    await topics.confirm(topics._last.began)  # fetched before
    with pytest.raises(TopicChangedError) as caught:
        await topics.confirm(topics._last.began + 1)
    assert caught.value.code == ("input_recreated" if name == INPUT else "state_recreated")
    assert f"{name} was re-created while the worker ran" in caught.value.message


async def test_waiting_callers_share_the_answer_to_a_request_sent_after_their_calls(brokers):
    topics = topics_of(brokers)
    looks = await asyncio.gather(*(topics.look() for _ in range(5)))
    assert brokers.asked == 2
    assert looks[1:] == [looks[1]] * 4


async def test_a_check_waits_until_a_broker_answers(brokers, monkeypatch):
    monkeypatch.setattr(module, "_RETRY_SECONDS", 0)
    brokers.errors = [KafkaConnectionError(), NodeNotReadyError(), TimeoutError(), asyncio.CancelledError()]
    look = await topics_of(brokers).look()
    assert (look.ids[INPUT], brokers.asked) == (brokers.shown(INPUT), 5)


async def test_a_check_can_be_cancelled(brokers):
    brokers.errors = [KafkaConnectionError()] * 10_000
    checking = asyncio.create_task(topics_of(brokers).look())
    await asyncio.sleep(0.001)
    checking.cancel()
    async with asyncio.timeout(60):
        with pytest.raises(asyncio.CancelledError):
            await checking


async def test_a_check_that_the_brokers_reject_raises(brokers):
    brokers.errors = [ClusterAuthorizationFailedError()]
    with pytest.raises(ClusterAuthorizationFailedError):
        await topics_of(brokers).look()


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        ([b"1" * 16, b"2" * 16], "topic ids are checked: the brokers at localhost:9092 provide them"),
        ([b"", b""], "topic ids are not checked: the brokers at localhost:9092 provide none"),
        ([], "topic ids are checked once the topics exist: missing topics: p.agent.turns.v1, p.provider.events.v1"),
    ],
    ids=["with ids", "without", "no topics"],
)
def test_config_show_says_whether_topic_ids_are_checked(brokers, ids, said):
    names = ("p.agent.turns.v1", "p.provider.events.v1")
    brokers.ids = dict(zip(names, ids, strict=False))
    done = CliRunner().invoke(main, ["config", "show", "--prefix", "p."], env={})
    assert (done.exit_code, said in done.stderr) == (0, True), done.stderr


def test_config_show_says_that_no_broker_answers(brokers):
    brokers.errors = [KafkaConnectionError()]
    done = CliRunner().invoke(main, ["config", "show"], env={})
    assert (done.exit_code, "no broker answers at localhost:9092" in done.stderr) == (0, True)


async def test_a_worker_is_not_ready_while_a_topic_is_missing(brokers, caplog):
    topics = topics_of(brokers)
    runtime = topics._runtime
    watch = TopicWatch(runtime, topics)
    missing, there = Look(0.0, {}, frozenset({INPUT})), Look(0.0, {STATE: brokers.shown(STATE)}, frozenset())
    said = []
    with caplog.at_level(logging.ERROR, "reknit.engine"):
        for look in (missing, there, missing, missing, missing, there):
            watch.note(look)
            said.append(runtime.missing_topics)
    # Brokers that have just started may not know every topic yet: a single answer proves nothing.
    assert said == [[], [], [], [INPUT], [INPUT], []]
    assert [record.getMessage() for record in caplog.records] == [f"not ready: missing topics: {INPUT}"]
    assert runtime.failure is None


async def test_a_topic_recreated_at_work_ends_the_worker_before_the_next_record(brokers):
    topics = topics_of(brokers)
    brokers.recreate(INPUT)
    TopicWatch(topics._runtime, topics).note(await topics.look())
    assert topics._runtime.failure.code == "input_recreated"


async def test_if_both_are_recreated_under_a_worker_the_next_one_begins(brokers):
    topics = topics_of(brokers)
    brokers.recreate(INPUT)
    brokers.recreate(STATE)
    TopicWatch(topics._runtime, topics).note(await topics.look())
    assert topics._runtime.failure.code == "topics_recreated"
