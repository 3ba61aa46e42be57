"""The replays of a pipeline on its cluster: begun, found by their names, deleted."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from msgspec import structs

from reknit.pipeline.cli.topics import apply
from reknit.pipeline.errors import InputError
from reknit.pipeline.kafka.admin import TIMEOUT_SECONDS, connected
from reknit.pipeline.kafka.partitions import every_place
from reknit.pipeline.kafka.reading import POLL_MS, groupless_consumer, isolation_of, read_partitions, reader
from reknit.pipeline.kafka.sending import producing
from reknit.pipeline.objects import open_objects
from reknit.pipeline.replay import Plan, digest_of
from reknit.pipeline.settings import Config
from reknit.topics import INPUTS, REPLAY_PLAN, REPLAYS, TOPICS_BESIDE, qualified
from reknit.topics.cluster import wanted

# Markers follow in milliseconds. Another worker of the same replay may have a transaction open for longer.
_VISIBLE_SECONDS = 10.0


def prefix_of(live: str, replay: str) -> str:
    """The prefix of a replay, by that of the inputs and its name."""
    return f"{live}{REPLAYS}{replay}."


def replay_config(config: Config, replay: str) -> Config:
    """The configuration of a replay of the pipeline that this one is of."""
    return structs.replace(config, prefix=prefix_of(config.prefix, replay), source_prefix=config.prefix)


async def begin(config: Config, plan: Plan) -> Plan:
    """Make a replay's topics and keep its plan; returns the plan that counts, where another process was first.

    ``config`` is the live pipeline's.
    """
    prefix = prefix_of(config.prefix, plan.id)
    made = [
        topic
        for declared, partitions in ((TOPICS_BESIDE, plan.partitions), ((REPLAY_PLAN,), 1))
        for topic in wanted(
            prefix=prefix, partitions=partitions, replication_factor=config.replication_factor, topics=declared
        )
    ]
    async with connected(config) as admin:
        outcomes = await apply(admin, made)
    for outcome in outcomes:
        if outcome.status in {"drift", "missing"}:
            raise InputError("topics_differ", f"{outcome.topic} is not what a replay makes; take another --id")
    async with producing(config) as producer:
        await producer.send_and_wait(qualified(REPLAY_PLAN.name, prefix), msgspec.json.encode(plan), plan.id.encode())
    found = await plan_of(config, plan.id)
    assert found is not None  # noqa: S101  it was written just now
    return found


async def plan_of(config: Config, replay: str) -> Plan | None:
    """Return the plan of a replay of the pipeline in ``config``; None if the replay does not exist."""
    async with reader(config) as consumer:
        return await plan_at(consumer, prefix_of(config.prefix, replay))


async def plan_at(consumer: AIOKafkaConsumer, prefix: str) -> Plan | None:
    """Return the plan of the replay that writes under this prefix; None if the replay does not exist."""
    name = qualified(REPLAY_PLAN.name, prefix)
    if name not in await consumer.topics():
        return None
    plan: Plan | None = None
    forgotten: set[str] = set()
    async for record in read_partitions(consumer, [TopicPartition(name, 0)]):
        if record.value is None:
            forgotten.add((record.key or b"").decode("utf-8", "replace"))
        elif plan is None:
            plan = _decoded(name, record.value)
    return None if plan is None else structs.replace(plan, forgotten=sorted(forgotten.union(plan.forgotten)))


def _decoded(topic: str, value: bytes) -> Plan:
    try:
        return msgspec.json.decode(value, type=Plan)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError("not_readable", f"{topic} holds no plan that this build can read: {error}") from error


async def note_forgotten(config: Config, replay: str, session: bytes) -> None:
    """Have a replay know that a session was forgotten since it began; processes that are at work hear nothing of it."""
    name = qualified(REPLAY_PLAN.name, prefix_of(config.prefix, replay))
    async with producing(config) as producer:
        await producer.send_and_wait(name, key=digest_of(session).encode())


async def every_plan(config: Config) -> dict[str, Plan | None]:
    """The replays of a pipeline by their names; None where one has no plan that this build can read."""
    found: dict[str, Plan | None] = {}
    async with reader(config) as consumer:
        there = {replay_of(topic, config.prefix) for topic in await consumer.topics()}
        for name in sorted(filter(None, there)):
            found[name] = None  # it ended before its plan was kept
            with suppress(InputError):
                found[name] = await plan_at(consumer, prefix_of(config.prefix, name))
    return found


def replay_of(topic: str, live: str) -> str | None:
    """The name of the replay whose topic this is, of the pipeline with this prefix."""
    begins = live + REPLAYS
    rest = topic.removeprefix(begins)
    name, dot, contract = rest.partition(".")
    names_of_it = {each.name for each in (*TOPICS_BESIDE, REPLAY_PLAN)}
    return name if topic.startswith(begins) and dot and contract in names_of_it else None


async def delete(config: Config, replay: str) -> int:
    """Delete a replay: its topics, its group and its objects. Return the number of topics.

    A live pipeline may have a prefix that looks like a replay's (``b.replay.live.``). So topics are deleted only if
    they hold the plan of this replay and no inputs: a replay reads the inputs of the live pipeline.

    Raises:
        InputError: the replay does not exist, its topics are not a replay's, or processes are working on it.
    """
    work = replay_config(config, replay)
    every = {qualified(topic.name, work.prefix) for topic in (*TOPICS_BESIDE, REPLAY_PLAN)}
    inputs = {qualified(topic, work.prefix) for topic in INPUTS}
    async with connected(config, TIMEOUT_SECONDS + config.session_seconds) as admin:
        found = await admin.describe(every | inputs)
        there = [name for name in found if name in every]
        if not there:
            raise InputError("no_replay", f"there is no replay {replay!r}; `reknit replay list` names those there are")
        if has_inputs := sorted(inputs.intersection(found)):
            raise InputError(
                "not_a_replay",
                f"{has_inputs[0]} is an input of a pipeline, so {work.prefix} is no replay; nothing deleted",
            )
        plan = await plan_of(config, replay)
        if plan is None or (plan.id, plan.source_prefix) != (replay, config.prefix):
            raise InputError(
                "not_a_replay",
                f"the topics under {work.prefix} hold no plan of a replay {replay!r}; nothing deleted. If a start was "
                f"interrupted, run it again with --id {replay} first",
            )
        await admin.delete_group(f"{work.prefix}reknit", config.session_seconds)
        await admin.delete(there)
    objects = open_objects(work)
    if objects is not None:
        await objects.delete(await objects.every())
    return len(there)


async def wait_until_visible(work: Config, seconds: float = _VISIBLE_SECONDS) -> bool:
    """Wait until readers see all outputs of a replay that has ended; False if they still do not after that time.

    A broker confirms a commit before it has written the markers of the transaction to all partitions (KIP-98). Until
    then a reader of committed records ends before them.
    """
    everywhere = "read_uncommitted"
    if isolation_of(work) == everywhere:
        return True
    deadline = time.monotonic() + seconds
    everything = groupless_consumer(work, everywhere)
    async with reader(work) as committed:
        try:
            await everything.start()
            known = await every_place(committed)
            places = [place for name in known if name.startswith(work.prefix) for place in known[name]]
            while await committed.end_offsets(places) != await everything.end_offsets(places):
                if time.monotonic() > deadline:
                    return False
                await asyncio.sleep(POLL_MS / 1000)
        finally:
            await everything.stop()
    return True


async def left_of(config: Config, plan: Plan) -> int:
    """Return the number of input offsets that a replay has left."""
    async with connected(config) as admin:
        found = await admin.next_offsets(f"{prefix_of(config.prefix, plan.id)}reknit")
    left = 0
    for topic, ends in plan.ends.items():
        for number, end in enumerate(ends):
            at = found.get(TopicPartition(qualified(topic, config.prefix), number), 0)
            left += end - min(end, max(at, plan.starts[topic][number]))
    return left
