"""The demo's fleet and its two clients: one sends what was recorded, the other reads what the pipeline publishes.

The fleet is what each session's agent and provider sent, in order. ``fleet/histories.jsonl`` are broken histories as
clients keep them, one or more for every way in which providers were seen to refuse one; ``source`` names where.
``fleet/streams.jsonl`` are stream-json lines of real versions of the Claude CLI whose responses were cut, as recorded,
with two things shortened: the lists of the ``init`` line, and the CLI's temporary paths. Lines that come from an issue
say so. Others are what ``codex exec --json`` and the Gemini CLI put out where their connections were cut, the latter
with what its transcript has of the run.

Sessions are fed side by side, at a pace that can be watched, each client waiting where it would; the reader knows when
the pipeline has nothing left to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any, TypeAlias

import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from msgspec import UNSET, Raw, Struct, UnsetType

from pipeline.kafka import connection
from pipeline.settings import Config
from pipeline.streams.sources import find_source
from topics import (
    AGENT_TURNS,
    DEAD_LETTERS,
    HISTORY_FIXES,
    LARGEST_INPUT,
    PROVIDER_EVENTS,
    PROVIDER_REQUESTS,
    SESSION_ITEMS,
    qualified,
)
from topics import headers as names
from topics.headers import Headers

FILES = ("histories.jsonl", "streams.jsonl")


class Turns(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="to", tag=AGENT_TURNS):
    """Records for the session's log; ``text`` is one that is not well-formed, as it came."""

    records: tuple[Raw, ...] = ()
    text: str = ""


class Events(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="to", tag=PROVIDER_EVENTS):
    """One run of a provider's stream, a line a record, why it ended, and what its program's transcript has of it."""

    source: str
    run: str
    lines: tuple[str, ...]
    exit: str
    transcript: tuple[str, ...] = ()


class Wait(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="to", tag="wait"):
    """The client goes on once the worker has appended so many turns to the session's log."""

    recorded: int


Step: TypeAlias = Turns | Events | Wait


class Recording(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One session. ``sent`` are the messages of its client's own request, where they are not those of its log."""

    session: str
    title: str
    source: str
    feed: tuple[Step, ...]
    sent: Raw | UnsetType = UNSET


class Input(Struct, frozen=True):
    """One record to write; None for a value ends a run."""

    topic: str
    value: bytes | None
    headers: Headers = ()


def fleet() -> list[Recording]:
    decoder = msgspec.json.Decoder(Recording)
    folder = files("pipeline.demo").joinpath("fleet")
    return [decoder.decode(line) for name in FILES for line in folder.joinpath(name).read_bytes().splitlines()]


def inputs(recording: Recording) -> Iterator[Input | Wait]:
    """A session's records, one by one, and where its client waits."""
    for step in recording.feed:
        match step:
            case Wait():
                yield step
            case Turns():
                yield from (Input(AGENT_TURNS, bytes(record)) for record in step.records)
                if step.text:
                    yield Input(AGENT_TURNS, step.text.encode())
            case Events():
                yield from _events(step)


def _events(step: Events) -> Iterator[Input]:
    run = (names.RUN, step.run.encode())
    headers = ((names.SOURCE, step.source.encode()), run)
    expected = ((names.TRANSCRIPT, b"expected"),) if step.transcript else ()
    for line in step.lines:
        yield Input(PROVIDER_EVENTS, line.encode(), (*headers, *expected))
    for line in step.transcript:
        yield Input(PROVIDER_EVENTS, line.encode(), ((names.SOURCE, find_source(step.source).transcript.encode()), run))
    yield Input(PROVIDER_EVENTS, None, (*headers, (names.EXIT, step.exit.encode())))


RECORDS_PER_SECOND = 200
# How often a client that waits for the worker looks again.
_LOOK_SECONDS = 0.02


class _Client(Struct):
    key: str
    rest: Iterator[Input | Wait]
    waits_for: int = 0


def count_records(recordings: Sequence[Recording]) -> int:
    return sum(isinstance(record, Input) for recording in recordings for record in inputs(recording))


async def feed(
    config: Config,
    clients: Mapping[str, Recording],
    recorded: Callable[[str], int],
    on_sent: Callable[[], None],
) -> None:
    """Write every session's records, one of each in turn, and return once the broker has them.

    ``clients`` are the sessions by the key that they have on the broker; ``recorded`` says how many turns the worker
    has appended to a session's log, ``on_sent`` is called after each record.
    """
    producer = AIOKafkaProducer(**connection(config), acks="all", max_request_size=LARGEST_INPUT)
    await producer.start()
    try:
        one_each = [_Client(key, inputs(recording)) for key, recording in clients.items()]
        await _feed(producer, config.prefix, one_each, recorded, on_sent)
    finally:
        await producer.stop()


async def _feed(
    producer: AIOKafkaProducer,
    prefix: str,
    clients: list[_Client],
    recorded: Callable[[str], int],
    on_sent: Callable[[], None],
) -> None:
    clock = asyncio.get_running_loop().time
    delivered: list[Awaitable[Any]] = []
    due = clock()
    while clients:
        for client in [client for client in clients if recorded(client.key) >= client.waits_for]:
            step = next(client.rest, None)
            match step:
                case None:
                    clients.remove(client)
                case Wait():
                    client.waits_for = step.recorded
                case Input():
                    delivered.append(await _send(producer, prefix, client.key, step))
                    on_sent()
                    due = max(due + 1 / RECORDS_PER_SECOND, clock() - _LOOK_SECONDS)
                    await asyncio.sleep(due - clock())
        if all(recorded(client.key) < client.waits_for for client in clients):
            await asyncio.sleep(_LOOK_SECONDS)
    await asyncio.gather(*delivered)


async def _send(producer: AIOKafkaProducer, prefix: str, key: str, record: Input) -> Awaitable[Any]:
    delivered: Awaitable[Any] = await producer.send(
        qualified(record.topic, prefix), value=record.value, key=key.encode(), headers=list(record.headers)
    )
    return delivered


SOURCES = (AGENT_TURNS, PROVIDER_EVENTS)
WATCHED = (*SOURCES, PROVIDER_REQUESTS, SESSION_ITEMS, HISTORY_FIXES, DEAD_LETTERS)

# Called with the topic's contract name and the record.
OnRecord = Callable[[str, ConsumerRecord], None]

_POLL_MS = 50


class Watch:
    """Reads the six topics from where they end now. ``before`` is how many offsets the session log has by then."""

    def __init__(self, config: Config, consumer: AIOKafkaConsumer) -> None:
        self._consumer = consumer
        self._names = {qualified(topic, config.prefix): topic for topic in WATCHED}
        self._places = [TopicPartition(name, number) for name in self._names for number in range(config.partitions)]
        # Behind the last record that was read: transaction markers take offsets, but nobody processes them.
        self._read_to: dict[TopicPartition, int] = {}
        self.before = 0

    async def start(self) -> None:
        """Note where the topics end, and read from there."""
        self._consumer.assign(self._places)
        ends = await self._consumer.end_offsets(self._places)
        for place, end in ends.items():
            self._consumer.seek(place, end)
        self._read_to = {place: 0 for place in ends if self._names[place.topic] in SOURCES}
        self.before = sum(end for place, end in ends.items() if self._names[place.topic] == AGENT_TURNS)

    async def read(self, on_record: OnRecord, fed: asyncio.Event) -> None:
        """Read until everything has been processed that was in the sources once ``fed`` was set, outputs included."""
        while True:
            found = await self._consumer.getmany(timeout_ms=_POLL_MS)
            for place, records in found.items():
                for record in records:
                    on_record(self._names[place.topic], record)
                if place in self._read_to:
                    self._read_to[place] = records[-1].offset + 1
            if not found and fed.is_set() and await self._is_drained():
                return

    async def _is_drained(self) -> bool:
        """Whether nothing is left to do.

        The order makes it sound: what was committed is asked first. Where the sources end no later than that, nothing
        was on its way between the two, not even what one side of the pipeline writes for the other.
        """
        committed = {place: await self._consumer.committed(place) or 0 for place in self._read_to}
        for place, end in (await self._consumer.end_offsets(self._places)).items():
            if await self._consumer.position(place) < end:
                return False
        return all(committed[place] >= read_to for place, read_to in self._read_to.items())


@asynccontextmanager
async def watching(config: Config) -> AsyncIterator[Watch]:
    """A watch on the pipeline of this configuration; it sees what is committed and nothing else."""
    consumer = AIOKafkaConsumer(
        **connection(config),
        isolation_level="read_committed" if config.delivery == "exactly-once" else "read_uncommitted",
        # The worker's own, to be told what it has committed; assigned by hand, the consumer does not join it.
        group_id=f"{config.prefix}reknit",
        enable_auto_commit=False,
        fetch_max_wait_ms=_POLL_MS,
    )
    try:
        await consumer.start()
        watch = Watch(config, consumer)
        await watch.start()
        yield watch
    finally:
        await consumer.stop()
