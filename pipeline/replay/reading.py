"""Both sides of a comparison, read into a spool: topics under a prefix, or the folder of a dry run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from aiokafka import AIOKafkaConsumer, TopicPartition
from msgspec import structs

from reknit.pipeline.diff import COMPARED_TOPICS, Compared, Summary, compare_session
from reknit.pipeline.errors import InputError
from reknit.pipeline.kafka.partitions import every_place
from reknit.pipeline.kafka.reading import OnProgress, read_partitions, reader
from reknit.pipeline.objects import open_objects
from reknit.pipeline.replay.folder import plan_of, read_partition, unfinished
from reknit.pipeline.replay.replays import plan_at
from reknit.pipeline.replay.sides import Coverage, Fetch, Side, Spool, input_of, is_of_worker
from reknit.pipeline.settings import Config
from reknit.pipeline.stages.base import Record
from reknit.topics import AGENT_TURNS, PROVIDER_EVENTS, RECORDED_PREFIX, qualified

Sides: TypeAlias = tuple[Side, Side]

RECORDED = RECORDED_PREFIX + AGENT_TURNS
# Beyond every offset.
_NO_END = 1 << 62


def is_folder(name: str) -> bool:
    """Return True if a side's name is that of a dry run's folder: an existing one, or a name with a slash."""
    return "/" in name or bool(name and Path(name).is_dir())


def read_folders(spool: Spool, names: tuple[str, str]) -> Sides:
    """Return both sides; those that are folders are read into the spool.

    Raises:
        InputError: a folder is not a complete dry run.
    """
    one, other = (Side(name=name, plan=plan_of(Path(name)) if is_folder(name) else None) for name in names)
    for number, side in enumerate((one, other)):
        if is_folder(side.name):
            _read_folder(Path(side.name), number, spool)
    return one, other


def want_topics(sides: Sides) -> bool:
    """Return True if there is more to read than folders."""
    return not all(is_folder(side.name) for side in sides) or bool(_read_by_one(sides))


async def read_topics(
    config: Config,
    spool: Spool,
    sides: Sides,
    on_progress: OnProgress,
    partitions: Collection[int] | None = None,
) -> Sides:
    """Return both sides after those in topics are read into the spool too: of all partitions, or of these.

    Raises:
        InputError: a side has no outputs.
        BrokerError: no broker answers, or it refuses.
    """
    found = [*sides]
    async with reader(config) as consumer:
        known = await every_place(consumer)
        if partitions is not None:
            known = {name: [each for each in places if each.partition in partitions] for name, places in known.items()}
        for number, side in enumerate(sides):
            if not is_folder(side.name):
                keep = partial(spool.add_record, number)
                found[number] = await _read_prefix(consumer, known, side.name, keep, on_progress)
                # No record says how it was delivered, so the configuration decides.
                found[number].at_least_once = config.delivery == "at-least-once"
        stretches = {place: each for place, each in _read_by_one(found).items() if place in known.get(place.topic, ())}
        async for record in read_partitions(consumer, stretches, on_progress=on_progress, stretches=stretches):
            found[0].went_on.add(record.key or b"")
    return found[0], found[1]


def compared_runs(
    config: Config,
    names: tuple[str, str],
    sessions: Collection[bytes],
    summary: Summary,
    *,
    read: Callable[[Callable[[], Coroutine[Any, Any, Sides]]], Sides],
    on_progress: OnProgress = lambda _done, _all: None,
    partitions: Collection[int] | None = None,
) -> Iterator[Compared]:
    """Compare the outputs of two runs, and yield each session that can be compared; the summary counts all.

    Args:
        config: the cluster and the object stores.
        names: the prefixes of topics, or the folders of dry runs.
        sessions: only these; all if there are none.
        summary: takes every session.
        read: runs the coroutine that reads topics; it is not called if both sides are folders.
        on_progress: as in ``read_partitions``.
        partitions: only these; all if None.

    Raises:
        InputError: a side has no outputs, or a folder is not a complete dry run.
        BrokerError: no broker answers, or it refuses.
    """
    with Spool(sessions, [fetching(config, name) for name in names]) as spool:
        sides = read_folders(spool, names)
        if want_topics(sides):
            sides = read(partial(read_topics, config, spool, sides, on_progress, partitions))
        yield from compared_sessions(spool, Coverage(sides), summary)


def compared_sessions(spool: Spool, coverage: Coverage, summary: Summary) -> Iterator[Compared]:
    """Yield each session that can be compared; the others are added to the summary."""
    for both in spool.sessions():
        if not coverage.takes(both.session):
            continue
        name = both.session.decode("utf-8", "backslashreplace")
        why_not = coverage.why_not(both)
        for why in dict.fromkeys(why_not.values()):
            summary.leave_out(name, why)
        covered = coverage.covered(both, why_not)
        if not why_not:
            summary.uncovered += len(both.before) + len(both.after) - len(covered.before) - len(covered.after)
        if covered.before or covered.after:
            yield compare_session(name, covered.before, covered.after, coverage.at_least_once)


def fetching(config: Config, prefix: str) -> Fetch:
    """Reads the values of a pipeline from the object store that the configuration names."""
    objects = open_objects(structs.replace(config, prefix=prefix))

    def fetch(session: bytes, dataref: str) -> bytes | None:
        with suppress(InputError, ConnectionError):
            return None if objects is None else asyncio.run(objects.get(session, dataref))
        return None

    return fetch


def _read_by_one(sides: Sequence[Side]) -> dict[TopicPartition, tuple[int, int]]:
    """Return the ranges of events that only one side has read: replays end, and a live pipeline continues."""
    plans = [side.plan for side in sides if side.plan is not None]
    sources = {side.name if side.plan is None else side.plan.source_prefix for side in sides}
    if not plans or len(sources) > 1:
        return {}
    name = qualified(PROVIDER_EVENTS, sources.pop())
    found = {}
    for number, ends in enumerate(zip(*(plan.ends[PROVIDER_EVENTS] for plan in plans), strict=True)):
        first, last = min(ends), max(ends) if len(plans) == len(sides) else _NO_END
        if first < last:
            found[TopicPartition(name, number)] = first, last
    return found


def _read_folder(folder: Path, side: int, spool: Spool) -> None:
    missing = unfinished(folder)
    if missing:
        numbers = ", ".join(map(str, missing))
        raise InputError("not_finished", f"{folder}: partitions {numbers} are not there yet; run the same replay again")
    for topic in COMPARED_TOPICS:
        for number in range(plan_of(folder).partitions):
            for record in read_partition(folder, RECORDED if topic == AGENT_TURNS else topic, number):
                spool.add_record(side, topic, record)


async def _read_prefix(
    consumer: AIOKafkaConsumer,
    known: Mapping[str, list[TopicPartition]],
    prefix: str,
    keep: Callable[[str, Record], None],
    on_progress: OnProgress,
) -> Side:
    # A pipeline that reads another one's inputs has what it would have recorded in a topic of its own.
    recorded = RECORDED if qualified(RECORDED, prefix) in known else AGENT_TURNS
    names = {qualified(recorded if topic == AGENT_TURNS else topic, prefix): topic for topic in COMPARED_TOPICS}
    there = names.keys() & known
    if not there:
        raise InputError("topic_missing", f"there are no outputs under the prefix {prefix!r}: {', '.join(names)}")
    places = [place for name in there for place in known[name]]
    consumer.assign(places)  # at once: asked about topics that it does not know, a consumer learns them one by one
    consumer.pause(*places)
    begins = await consumer.beginning_offsets(places)
    found = Side(name=prefix, plan=await plan_at(consumer, prefix))
    late = {(names[place.topic], place.partition) for place in places if begins[place]}
    found.begins_late.update((place, {}) for place in late)
    async for read in read_partitions(consumer, places, on_progress=on_progress):
        topic = names[read.topic]
        if recorded == topic and not is_of_worker(read.value):
            continue
        record = Record(
            partition=read.partition,
            offset=read.offset,
            key=read.key,
            value=read.value,
            headers=read.headers,
            timestamp=read.timestamp,
        )
        if (topic, read.partition) in late and (cause := input_of(topic, record)) is not None:
            found.begins_late[topic, read.partition].setdefault(cause.topic, cause.offset)
        keep(topic, record)
    return found
