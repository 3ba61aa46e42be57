"""Settling the plan of a replay from the topics of the pipeline.

Ends are settled first, and nothing after them is read. Then: the offsets of the inputs that a range selects, the
sessions that have records in them (the first pass; the second is the replay's own), the forgotten ones, and those for
which a replay could only differ from the live pipeline.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING

import msgspec
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from msgspec import Struct

from reknit.pipeline import __version__
from reknit.pipeline.errors import InputError, InternalError
from reknit.pipeline.kafka.partitions import partitions_of
from reknit.pipeline.kafka.reading import OnProgress, read_partitions, reader
from reknit.pipeline.replay import Offsets, Plan, Selection, Stretch, Uncompared, digest_of
from reknit.pipeline.settings import Config
from reknit.pipeline.stages.base import POSITION, read_position
from reknit.pipeline.stages.kept import KINDS, SessionLifetimes
from reknit.topics import (
    AGENT_TURNS,
    DAY_MS,
    DEAD_LETTERS,
    INPUTS,
    MARKER_DAYS,
    PROVIDER_EVENTS,
    PROVIDER_REQUESTS,
    SESSION_ITEMS,
    TURNS_STATE,
    qualified,
)
from reknit.topics import headers as names
from reknit.topics.positions import TAIL_RECORDS, read_mark
from reknit.topics.records import TURN_RECORDS, SessionForgotten

if TYPE_CHECKING:
    from reknit.pipeline.stages.turn_state import TurnStates


class _Live(Struct):
    """The live pipeline as a survey reads it, up to the ends of its inputs."""

    config: Config
    consumer: AIOKafkaConsumer
    numbers: list[int]
    on_progress: OnProgress

    def places(self, topic: str, partitions: list[int] | None = None) -> list[TopicPartition]:
        name = qualified(topic, self.config.prefix)
        return [TopicPartition(name, number) for number in (self.numbers if partitions is None else partitions)]

    def read(
        self, topic: str, partitions: list[int], stretches: Mapping[int, Stretch] | None = None
    ) -> AsyncIterator[ConsumerRecord]:
        name = qualified(topic, self.config.prefix)
        places = None if stretches is None else {TopicPartition(name, n): stretches[n] for n in partitions}
        return read_partitions(
            self.consumer, self.places(topic, partitions), on_progress=self.on_progress, stretches=places
        )

    async def offsets_at(self, topic: str, time: int, otherwise: list[int]) -> list[int]:
        """The first offsets of a topic that were written at a time or later."""
        found = await self.consumer.offsets_for_times(dict.fromkeys(self.places(topic), time))
        return [
            otherwise[place.partition] if found[place] is None else found[place].offset for place in self.places(topic)
        ]


async def settle(config: Config, replay: str, selection: Selection, now: int, on_progress: OnProgress) -> Plan:
    """Read the live pipeline and settle the plan of its replay. ``now`` is in milliseconds since the epoch.

    Raises:
        InputError: the pipeline has no topics, or a requested place does not exist.
        BrokerError: no broker answers, or it refuses.
    """
    async with reader(config) as consumer:
        live = _Live(config, consumer, await partitions_of(consumer, config, AGENT_TURNS), on_progress)
        starts: Offsets = {}
        ends: Offsets = {}
        for topic in INPUTS:
            places = live.places(topic)
            firsts, lasts = await consumer.beginning_offsets(places), await consumer.end_offsets(places)
            starts[topic], ends[topic] = [firsts[place] for place in places], [lasts[place] for place in places]
        ranges = await _ranges(live, selection, starts, ends)
        letters = await _letters(live)
        bases = await _bases(live)
        expired, forgotten = await _expired(live, starts, ends, bases)
        uncompared = expired | {
            Uncompared(session, topic, "limited")
            for session, topics in letters.items()
            for topic, limited in topics.items()
            if limited and selection.names(session)
        }
        return Plan(
            id=replay,
            version=__version__,
            created=now,
            source_prefix=config.prefix,
            partitions=len(live.numbers),
            starts=starts,
            ends=ends,
            selection=selection,
            ranges=ranges,
            chosen=await _chosen(live, selection, ranges, set(letters) if selection.dead_letters else None),
            uncompared=sorted(each for each in uncompared if selection.names(each.session)),
            forgotten=sorted(forgotten),
            bases={AGENT_TURNS: bases} if any(bases) else {},
        )


async def _bases(live: _Live) -> list[int]:
    """The bases of the turns' offsets, by partition, as the live pipeline's positions have them."""
    ends = await live.consumer.end_offsets(live.places(TURNS_STATE))
    tails = {place.partition: (max(0, end - TAIL_RECORDS), end) for place, end in ends.items()}
    bases = dict.fromkeys(live.numbers, 0)
    async for record in live.read(TURNS_STATE, live.numbers, tails):
        if record.key == POSITION:
            bases[record.partition] = read_mark(record.value, record.headers).base
    return [bases[number] for number in live.numbers]


async def _ranges(
    live: _Live, selection: Selection, starts: Offsets, ends: Offsets
) -> dict[str, list[list[Stretch]]] | None:
    if not selection.has_range():
        return None
    ranges: dict[str, list[list[Stretch]]] = {topic: [[] for _ in live.numbers] for topic in INPUTS}
    if selection.since is not None or selection.until is not None:
        for topic in INPUTS:
            first, bound = starts[topic], ends[topic]
            if selection.since is not None:
                first = await live.offsets_at(topic, selection.since, ends[topic])
            if selection.until is not None:
                bound = await live.offsets_at(topic, selection.until, ends[topic])
            for number in live.numbers:
                ranges[topic][number].append((first[number], min(bound[number], ends[topic][number])))
    for place in selection.offsets:
        if place.topic not in INPUTS or place.partition not in live.numbers:
            raise InputError("place_unknown", f"there is no partition {place.partition} of an input {place.topic}")
        end = ends[place.topic][place.partition]
        ranges[place.topic][place.partition].append((place.first, min(place.last + 1, end)))
    return {
        topic: [[(first, bound) for first, bound in some if first < bound] for some in every]
        for topic, every in ranges.items()
    }


async def _chosen(
    live: _Live, selection: Selection, ranges: dict[str, list[list[Stretch]]] | None, lettered: set[str] | None
) -> dict[str, list[str | None]] | None:
    """The sessions that have records in the range, with their runs."""
    if ranges is None:
        return None if lettered is None else {session: [] for session in sorted(filter(selection.names, lettered))}
    found: dict[str, set[str | None]] = {}
    for topic, every in ranges.items():
        hulls = {number: (min(some)[0], max(end for _, end in some)) for number, some in enumerate(every) if some}
        async for record in live.read(topic, list(hulls), hulls):
            if not record.key or not any(a <= record.offset < b for a, b in every[record.partition]):
                continue
            session = record.key.decode("utf-8", "replace")
            if selection.names(session) and (lettered is None or session in lettered):
                runs = found.setdefault(session, set())
                if topic == PROVIDER_EVENTS:
                    runs.add(names.find_text(record.headers, names.RUN))
    return {session: sorted(runs, key=lambda run: run or "") for session, runs in sorted(found.items())}


async def _letters(live: _Live) -> dict[str, dict[str, bool]]:
    """The sessions that have dead letters, by input, and whether a limit refused one of them."""
    found: dict[str, dict[str, bool]] = {}
    async for record in live.read(DEAD_LETTERS, live.numbers):
        if record.key is None or any(name == names.ERROR_LETTER for name, _ in record.headers):
            continue  # a note about another letter
        given = dict(names.as_texts(record.headers))
        session, topic = record.key.decode("utf-8", "replace"), given.get(names.ERROR_TOPIC, "")
        topics = found.setdefault(session, {})
        topics[topic] = topics.get(topic, False) or names.ERROR_LIMIT in given
    return found


async def _expired(live: _Live, starts: Offsets, ends: Offsets, bases: list[int]) -> tuple[set[Uncompared], set[str]]:
    """Return the sessions that began before the kept part of an input, and the digests of forgotten ones.

    The records of a former topic of the turns are not kept; its offsets are before the ``bases``.
    """
    # A program that compares outputs reads plans, and does not need the code that makes outputs.
    from reknit.pipeline.stages.defaults import Defaults  # noqa: PLC0415  as said above
    from reknit.pipeline.stages.turn_state import TurnStates, session_of  # noqa: PLC0415  as said above

    begun_before: set[str] = set()
    forgotten: set[str] = set()
    begins = {number: bases[at] + starts[AGENT_TURNS][at] for at, number in enumerate(live.numbers)}
    cut = [number for number in live.numbers if begins[number]]
    endings = {number: SessionLifetimes(MARKER_DAYS * DAY_MS) for number in live.numbers}
    states = {number: TurnStates(Defaults().session) for number in cut}
    keys: dict[int, set[bytes]] = {number: set() for number in cut}
    positions = dict.fromkeys(live.numbers, 0)
    async for record in live.read(TURNS_STATE, live.numbers):
        key, number = record.key or b"", record.partition
        if key == POSITION:
            positions[number] = read_position(record.value)[0]
        elif key[:1] in KINDS:
            endings[number].restore(key, record.value)
        elif number in states:
            states[number].restore(key, record.value)
            keys[number].add(session_of(key))
    for number in cut:
        for key in keys[number]:
            if _began_before(states[number], key, begins[number]):
                begun_before.add(key.decode("utf-8", "replace"))
    forgotten.update(digest.hex() for each in endings.values() for digest in each.forgotten)
    rest = {number: (positions[number], end) for number, end in enumerate(ends[AGENT_TURNS])}
    async for record in live.read(AGENT_TURNS, live.numbers, rest):
        if record.key and _forgets(record.value):
            forgotten.add(digest_of(record.key))
    async for record in live.read(PROVIDER_REQUESTS, cut):
        first = names.find_text(record.headers, names.FIRST) or ""
        if record.key and first.isdecimal() and int(first) < begins[record.partition]:
            begun_before.add(record.key.decode("utf-8", "replace"))
    expired = {Uncompared(session, AGENT_TURNS, "expired") for session in begun_before}
    return expired | {
        Uncompared(session, PROVIDER_EVENTS, "expired")
        for session in begun_before | await _before_the_events(live, starts)
    }, forgotten


async def _before_the_events(live: _Live, starts: Offsets) -> set[str]:
    """Return sessions with records or items from before the kept events of their partition."""
    found: set[str] = set()
    for number in [number for number in live.numbers if starts[PROVIDER_EVENTS][number]]:
        first = starts[PROVIDER_EVENTS][number]
        at = None
        async for record in live.read(PROVIDER_EVENTS, [number], {number: (first, first + 1)}):
            at = record.timestamp
        for topic in (AGENT_TURNS, SESSION_ITEMS):
            async for record in live.read(topic, [number]):
                if at is not None and record.timestamp >= at:
                    break
                if record.key:
                    found.add(record.key.decode("utf-8", "replace"))
    return found


def _began_before(states: TurnStates, key: bytes, start: int) -> bool:
    try:
        entry = states.find(key)
    except InternalError:
        return True  # its beginning is unknown
    states.committed({}, room=0)  # its state need not be kept
    # A version before 0.2 did not note where a session began.
    return entry is not None and (entry.is_carried or entry.first is None or entry.first < start)


def _forgets(value: bytes | None) -> bool:
    if value is None or b"session.forgotten" not in value:
        return False
    try:
        return isinstance(TURN_RECORDS.decode(value), SessionForgotten)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
