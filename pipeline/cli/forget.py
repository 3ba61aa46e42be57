"""``reknit forget`` and ``reknit objects``: remove a session's data, and list the places that still have some."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from datetime import UTC, datetime, timedelta

import click
from aiokafka import ConsumerRecord, TopicPartition
from msgspec import Struct

from reknit.pipeline.cli import Exit, Group, fail, say, write_json
from reknit.pipeline.cli.broker import run_with_broker
from reknit.pipeline.cli.config import with_config
from reknit.pipeline.client import Place, Turns
from reknit.pipeline.errors import InputError, ReknitError
from reknit.pipeline.kafka.admin import connected
from reknit.pipeline.kafka.partitions import every_place
from reknit.pipeline.kafka.reading import read_partitions, reader
from reknit.pipeline.kafka.sending import producing
from reknit.pipeline.objects import Objects, is_made, open_objects
from reknit.pipeline.replay.replays import delete as delete_replay
from reknit.pipeline.replay.replays import note_forgotten, replay_config, replay_of
from reknit.pipeline.settings import Config
from reknit.pipeline.stages import events, turn_state
from reknit.topics import (
    AGENT_TURNS,
    DEAD_LETTERS,
    EVENTS_STATE,
    MARKER_DAYS,
    PROVIDER_EVENTS,
    PROVIDER_REQUESTS,
    REPLAYS,
    TOPICS,
    TURNS_STATE,
    qualified,
)
from reknit.topics import headers as names
from reknit.topics.cluster import Found
from reknit.topics.records import SessionForgotten

_LOOK_AGAIN_SECONDS = 0.2
# Time limit of the brokers' answers, in addition to the wait for a worker.
_ANSWER_SECONDS = 30.0
# Topics whose records may name objects.
_NAMING = (AGENT_TURNS, PROVIDER_EVENTS, PROVIDER_REQUESTS, DEAD_LETTERS)


class Held(Struct, frozen=True, kw_only=True):
    """A topic, by its name on the broker, that still has records of the session, and when they expire at the latest."""

    topic: str
    records: int
    until: datetime | None


class Replay(Struct, frozen=True, kw_only=True):
    """A replay that had records of the session.

    ``deleted``: the whole replay was deleted. Otherwise the session was removed from its state and its objects, and is
    neither replayed nor compared. That does not hold while processes are ``at_work`` on the replay.
    """

    replay: str
    deleted: bool
    at_work: bool


class Receipt(Struct, frozen=True, kw_only=True):
    """The result of forgetting a session.

    ``record`` is the place of the record that requests it, ``done`` whether a worker has processed it. ``held`` lists
    the topics, those of replays included, whose records retention and compaction will remove; ``objects`` counts the
    objects left in the store. ``replays`` are those that had records of it.
    """

    session: str
    record: str
    done: bool
    held: list[Held]
    replays: list[Replay]
    objects: int


@click.command("forget")
@with_config
@click.option(
    "--timeout", type=click.FloatRange(min=0), default=30.0, show_default=True, help="Seconds to wait for the worker."
)
@click.option("--delete-replays", is_flag=True, help="Delete the replays that hold records of it, whole.")
@click.argument("session")
def forget_command(config: Config, session: str, timeout: float, *, delete_replays: bool) -> None:
    """Forget a session, and print a receipt: one JSON line.

    The worker removes the session from its state, the state's topics and the object store; its later records become
    dead letters without their value. The receipt names every topic of the cluster that still has records of it, and
    until when. Single records of a replay cannot be removed: --delete-replays deletes the replay. Folders of dry runs
    are not known here. Exits with 75 if no worker did it in time (the next one to run will), or if processes are at
    work on a replay that has records of it (end them and repeat the command). Exits with 2 if --delete-replays cannot
    delete a replay because its start was interrupted.
    """
    receipt = run_with_broker(config, lambda: _forget(config, session, timeout, delete_replays=delete_replays))
    write_json(receipt)
    if not receipt.done:
        say(f"reknit: no worker has come to it within {timeout:g} s; the record waits in {receipt.record}")
    for replay in receipt.replays:
        if replay.at_work:
            say(f"reknit: processes are at work on replay {replay.replay}; end them, and have it forgotten once more")
    if not receipt.done or any(replay.at_work for replay in receipt.replays):
        raise SystemExit(int(Exit.DOWN))
    if delete_replays and not all(replay.deleted for replay in receipt.replays):
        raise SystemExit(int(Exit.UNUSABLE))


async def _forget(config: Config, session: str, seconds: float, *, delete_replays: bool) -> Receipt:
    key = session.encode()
    objects = open_objects(config)
    async with Turns(config) as turns:
        place = await turns.write(session, SessionForgotten())
    done = await _is_past(config, place, seconds)
    held, forgotten_at = await _held(config, key)
    if done and forgotten_at is not None:
        done = await _is_past(config, forgotten_at, seconds)
    names_of_replays = sorted(filter(None, {replay_of(each.topic, config.prefix) for each in held}))
    replays = [await _purge(config, name, key, delete=delete_replays) for name in names_of_replays]
    if replays:
        held, _ = await _held(config, key, {each.replay for each in replays if each.deleted})
    left = 0 if objects is None else len(await objects.every(key))
    return Receipt(session=session, record=str(place), done=done, held=held, replays=replays, objects=left)


async def _is_past(config: Config, record: Place, seconds: float) -> bool:
    """Return whether the workers' group commits an offset after a record within ``seconds``."""
    clock = asyncio.get_running_loop().time
    end = clock() + seconds
    place = TopicPartition(qualified(record.topic, config.prefix), record.partition)
    async with connected(config, seconds + _ANSWER_SECONDS) as admin:
        while (await admin.next_offsets(f"{config.prefix}reknit")).get(place, 0) <= record.offset:
            if clock() >= end:
                return False
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
    return True


async def _held(config: Config, key: bytes, emptied: Collection[str] = ()) -> tuple[list[Held], Place | None]:
    """Return the topics with records of a session, and the record that makes the stream side forget it.

    Replays that are ``emptied`` are left out: brokers may name deleted topics for a moment.
    """
    forgotten_at: Place | None = None
    async with reader(config) as consumer:
        contract = tuple(topic.name for topic in TOPICS)
        there = await every_place(consumer)
        ours = sorted(
            name
            for name in there
            if name.endswith(contract) and _is_ours(name, config) and replay_of(name, config.prefix) not in emptied
        )
        places = [place for name in ours for place in there[name]]
        counted: dict[str, int] = {}
        latest: dict[str, int] = {}
        async for record in read_partitions(consumer, places):
            if _is_of(record, key):
                counted[record.topic] = counted.get(record.topic, 0) + 1
                latest[record.topic] = max(latest.get(record.topic, 0), record.timestamp)
                if record.topic == config.prefix + PROVIDER_EVENTS and names.FORGOTTEN in dict(record.headers):
                    forgotten_at = Place(PROVIDER_EVENTS, record.partition, record.offset)
    async with connected(config) as admin:
        described = await admin.describe(counted.keys())
    held = [Held(topic=name, records=counted[name], until=_until(described[name], latest[name])) for name in counted]
    return sorted(held, key=lambda each: each.topic), forgotten_at


async def _purge(config: Config, name: str, key: bytes, *, delete: bool) -> Replay:
    """Remove a session from a replay as far as possible, or delete the replay."""
    work = replay_config(config, name)
    async with connected(config) as admin:
        at_work = await admin.is_at_work(f"{work.prefix}reknit")
    if delete and not at_work:
        try:
            await delete_replay(config, name)
        except InputError as error:  # the replay has no plan, or a live pipeline has such a prefix
            say(f"reknit: {error.message}")
        else:
            return Replay(replay=name, deleted=True, at_work=False)
    await note_forgotten(config, name, key)
    if not at_work:  # its processes would write it again
        await _purge_state(work, key)
    if (objects := open_objects(work)) is not None:
        await objects.forget(key)
    return Replay(replay=name, deleted=False, at_work=at_work)


async def _purge_state(work: Config, key: bytes) -> None:
    last: dict[tuple[str, int, bytes], bool] = {}
    async with reader(work) as consumer:
        there = await every_place(consumer)
        places = [place for topic in _SESSION_OF for place in there.get(qualified(topic, work.prefix), ())]
        async for record in read_partitions(consumer, places):
            if _is_of(record, key):
                last[record.topic, record.partition, record.key] = record.value is not None
    async with producing(work) as producer:
        for (topic, partition, state_key), is_there in last.items():
            if is_there:
                await producer.send_and_wait(topic, key=state_key, partition=partition)


def _is_ours(name: str, config: Config) -> bool:
    prefix = next(name.removesuffix(topic.name) for topic in TOPICS if name.endswith(topic.name))
    return prefix == config.prefix or prefix.startswith(config.prefix + REPLAYS)


def _is_of(record: ConsumerRecord, key: bytes) -> bool:
    state = next((find for name, find in _SESSION_OF.items() if record.topic.endswith(name)), bytes)
    return record.key is not None and state(record.key) == key


def _until(topic: Found, latest_ms: int) -> datetime | None:
    """Return when the last record expires at the latest; None if a topic keeps its records for ever."""
    kept = {name: int(topic.settings.get(name, -1)) for name in _TIMES}
    if "compact" in topic.settings.get("cleanup.policy", ""):
        # A tombstone has the session's id and is kept longer than the record that it removes.
        more = [kept["max.compaction.lag.ms"], kept["delete.retention.ms"], kept["segment.ms"]]
    else:
        more = [kept["retention.ms"], kept["segment.ms"]]
    if min(more) < 0:
        return None
    try:
        return datetime.fromtimestamp(latest_ms / 1000, UTC) + timedelta(milliseconds=sum(more))
    except (OverflowError, ValueError, OSError):
        return None


_SESSION_OF = {TURNS_STATE: turn_state.session_of, EVENTS_STATE: events.session_of}
_TIMES = ("retention.ms", "segment.ms", "max.compaction.lag.ms", "delete.retention.ms")


# Objects that no record names.

# Seconds for which scaled images stay: a record of the input is read as long.
_MADE_SECONDS = MARKER_DAYS * 24 * 3600


@click.group("objects", cls=Group)
def objects_group() -> None:
    """Objects in the object store."""


@objects_group.command("collect")
@with_config
@click.option(
    "--older",
    type=click.FloatRange(min=0),
    default=3600.0,
    show_default=True,
    help="Seconds; younger objects stay, since one is written before the record that names it.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
def collect_command(config: Config, older: float, dry_run: bool) -> None:
    """Delete objects that no record names any more, and print one JSON line per key.

    Run it regularly, for example by cron. A worker does not, because it would have to read every record that may name
    an object.
    """
    try:
        objects = open_objects(config)
    except ReknitError as error:
        fail(error)
    if objects is None:
        fail(InputError("no_object_store", "there is no object store: set objects.url", path="objects.url"))
    kept, emptied = run_with_broker(config, lambda: _collect(config, objects, older, dry_run=dry_run))
    for key in emptied:
        write_json({"object": key, "deleted": not dry_run})
    say(f"reknit: {len(emptied)} objects {'would go' if dry_run else 'deleted'}, {kept} stay")


async def _collect(config: Config, objects: Objects, older: float, *, dry_run: bool) -> tuple[int, list[str]]:
    before = time.time() - older
    # No record names what was made of a record's images. It is needed as long as the record can be read.
    made_before = before if older > _MADE_SECONDS else time.time() - _MADE_SECONDS
    old = {
        key
        for key, written in (await objects.every()).items()
        if written.timestamp() <= (made_before if is_made(key) else before)
    }
    async with reader(config) as consumer:
        there = await every_place(consumer)
        places = [place for topic in _NAMING for place in there.get(qualified(topic, config.prefix), ())]
        records = read_partitions(consumer, places)
        named = {key async for record in records if (key := names.find_dataref(record.headers))}
    # An object that was written again meanwhile is about to be named.
    young = {key for key, written in (await objects.every()).items() if written.timestamp() > before}
    emptied = sorted(old - named - young)
    if not dry_run:
        await objects.delete(emptied)
    return len(old) - len(emptied), emptied
