"""The product under load: real workers, recorded sessions as input, and an audit against one undisturbed run.

The expected outputs are made in this process: for each source partition one stage reads the whole final log. The
workers' outputs must be exactly those, whatever happened to the workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self, TypeAlias

import harness
import msgspec
from aiokafka import AIOKafkaProducer, TopicPartition
from item_views import by_session, view_of, whole_items

from reknit.pipeline.demo.recordings import Wait, fleet, inputs
from reknit.pipeline.objects import Objects
from reknit.pipeline.replay.folder import read_partition
from reknit.pipeline.stages import stages
from reknit.pipeline.stages.base import Output, Record
from reknit.pipeline.stages.defaults import Defaults
from reknit.topics import (
    AGENT_TURNS,
    DEAD_LETTERS,
    HISTORY_FIXES,
    PROVIDER_EVENTS,
    PROVIDER_REQUESTS,
    RECORDED_PREFIX,
    SESSION_ITEMS,
    TOPICS,
)
from reknit.topics.headers import DATAREF, find_dataref

# Topic, key, value, headers.
Row: TypeAlias = tuple[str, bytes, bytes | None, list[tuple[str, bytes]]]

PARTITIONS = 4
SOURCES = (AGENT_TURNS, PROVIDER_EVENTS)
# A short session keeps a test short: it is how long a killed worker's partitions wait.
SETTINGS = "session_seconds = 4.0\nheartbeat_seconds = 1.0\nrebalance_seconds = 10.0\n"
SETTINGS += '[session]\nmodel = "claude-sonnet-4-5"\nmax_tokens = 1024\n'

DEFAULTS = Defaults(model="claude-sonnet-4-5", params={"max_tokens": msgspec.Raw(b"1024")})


async def make_topics(bootstrap: str, prefix: str, copies: int = 1) -> None:
    await harness.make_topics(bootstrap, [prefix + topic.name for topic in TOPICS], PARTITIONS, copies)


def make_fleet(
    bootstrap: str,
    prefix: str,
    directory: Path,
    free_port: Callable[[], int],
    *,
    top: str = "",
    more: str = "",
    build: Path | None = None,
    own_state: bool = False,
) -> harness.Fleet:
    """Workers with these settings, ``top`` before and ``more`` after; of another build, if its directory is given.

    With ``own_state`` each has a state directory of its own, as on separate machines.
    """
    directory.mkdir(exist_ok=True)
    settings = directory / "reknit.toml"
    settings.write_text(top + SETTINGS + more)
    start = f"import sys; sys.path.insert(0, {str(build)!r}); from reknit.__main__ import main; sys.exit(main())"
    program = ["-m", "reknit"] if build is None else ["-c", start]

    def command(port: int) -> Sequence[str]:
        options = {
            "--config": str(settings),
            "--bootstrap-servers": bootstrap,
            "--prefix": prefix,
            "--metrics-port": str(port),
            "--state-dir": str(directory / (f"state-{port}" if own_state else "state")),
        }
        return [sys.executable, *program, "worker", *(part for pair in options.items() for part in pair)]

    return harness.Fleet(command, directory, free_port)


@contextlib.asynccontextmanager
async def workers(
    bootstrap: str, prefix: str, directory: Path, free_port: Callable[[], int], *, more: str = ""
) -> AsyncIterator[harness.Fleet]:
    """The same over topics of its own; no worker outlives the block."""
    await make_topics(bootstrap, prefix)
    with make_fleet(bootstrap, prefix, directory, free_port, more=more) as made:
        yield made


def script(copies: int) -> Iterator[Row]:
    """Records of many sessions, interleaved: the recorded fleet again and again, each copy under its own keys."""
    for copy in range(copies):
        feeds = [(f"{recording.session}/{copy}".encode(), inputs(recording)) for recording in fleet()]
        while feeds:
            for feed in list(feeds):
                given = next(feed[1], None)
                if given is None:
                    feeds.remove(feed)
                elif not isinstance(given, Wait):
                    yield given.topic, feed[0], given.value, list(given.headers)


RELEASED = {"type": "session.released"}


def parked(keys: Sequence[bytes], waiting: int) -> Iterator[Row]:
    """Records of sessions that are parked by their first one, each with ``waiting`` more after it, interleaved."""
    yield from (_turn(key, {"role": "nobody", "content": ""}) for key in keys)
    for number in range(waiting):
        message = {"role": ("user", "assistant")[number % 2], "content": f"{number} " + "word " * (number % 50)}
        yield from (_turn(key, message) for key in keys)


def released(keys: Sequence[bytes], later: int = 0) -> Iterator[Row]:
    """Their releases, each with ``later`` turns that come while the session is being released."""
    yield from ((AGENT_TURNS, key, json.dumps(RELEASED).encode(), []) for key in keys)
    for number in range(later):
        yield from (_turn(key, {"role": "user", "content": f"later {number}"}) for key in keys)


def _turn(key: bytes, message: dict[str, str]) -> Row:
    return AGENT_TURNS, key, json.dumps({"type": "turn.appended", "message": message}).encode(), []


class Feeder:
    """Writes rows at a pace, by default the script's, then ends; leaving the block early stops it there.

    Rows that are ``sent_once`` are in the log once, also if a broker stops while they are sent; without any broker,
    leaving the block never ends.
    """

    async def wait(self) -> None:
        await self._task

    def __init__(
        self, bootstrap: str, prefix: str, rate: int, rows: Iterable[Row] | None = None, *, sent_once: bool = False
    ) -> None:
        self._bootstrap, self._prefix, self._rate = bootstrap, prefix, rate
        self._sent_once = sent_once
        self._rows = script(1_000) if rows is None else rows
        self._stop = asyncio.Event()
        self._may_send = asyncio.Event()
        self._may_send.set()
        self._is_idle = asyncio.Event()
        self.sent: Counter[str] = Counter()

    async def pause(self) -> None:
        """Send nothing more, and return once all that was sent is in the log."""
        self._may_send.clear()
        await self._is_idle.wait()

    def resume(self) -> None:
        self._is_idle.clear()
        self._may_send.set()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._stop.set()
        await asyncio.wait_for(self._task, 240)

    async def _run(self) -> None:
        producer = AIOKafkaProducer(bootstrap_servers=self._bootstrap, acks="all", enable_idempotence=self._sent_once)
        await producer.start()
        began, futures = time.monotonic(), []
        try:
            for topic, key, value, headers in self._rows:
                futures.append(await producer.send(self._prefix + topic, value=value, key=key, headers=headers))
                self.sent[topic] += 1
                if len(futures) >= 50 or not self._may_send.is_set():
                    await asyncio.gather(*futures)
                    futures = []
                    self._is_idle.set()
                    await self._may_send.wait()
                    ahead = self.sent.total() / self._rate - (time.monotonic() - began)
                    await asyncio.sleep(max(0.0, ahead))
                if self._stop.is_set():
                    break
            await asyncio.gather(*futures)
        finally:
            self._is_idle.set()
            await producer.stop()


async def drained(bootstrap: str, prefix: str, seconds: float = 60.0, *, source_prefix: str | None = None) -> None:
    """Wait until the group has committed everything that is in the sources, and the sources have stopped growing."""
    deadline = harness.deadline_after(seconds)
    read_from = prefix if source_prefix is None else source_prefix
    while True:
        ends = await _ends(bootstrap, read_from)
        behind = {}
        for topic in SOURCES:
            done = await harness.committed(bootstrap, f"{prefix}reknit", read_from + topic)
            # A transaction marker after the last record has an offset, too, which is never committed.
            rest = await harness.read_all(bootstrap, read_from + topic, PARTITIONS, begin=done)
            for number, found in enumerate(rest):
                if found:
                    behind[topic, number] = (done.get(number, 0), found[-1].offset)
        if not behind and ends == await _ends(bootstrap, read_from):
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"not processed after {seconds} s: {behind}")
        await asyncio.sleep(0.5)


async def processed(bootstrap: str, prefix: str, seconds: float = 3_600.0) -> None:
    """Wait until the group has committed the ends of the turns, however many there are."""
    name, deadline = prefix + AGENT_TURNS, harness.deadline_after(seconds)
    async with harness.reader(bootstrap) as reader:
        ends = await reader.end_offsets([TopicPartition(name, number) for number in range(PARTITIONS)])
    while True:
        done = await harness.committed(bootstrap, f"{prefix}reknit", name)
        if all(done.get(place.partition, 0) >= end for place, end in ends.items()):
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"not processed after {seconds} s: {done} of {ends}")
        await asyncio.sleep(0.5)


async def _ends(bootstrap: str, prefix: str) -> Mapping[TopicPartition, int]:
    async with harness.reader(bootstrap) as reader:
        return await reader.end_offsets([TopicPartition(prefix + t, n) for t in SOURCES for n in range(PARTITIONS)])


class Former(msgspec.Struct, frozen=True):
    """An input before it was re-created: its records by partition, and the bases of the present topic's records."""

    records: Sequence[Sequence[Record]]
    bases: Sequence[int]

    def and_then(self, present: Sequence[Sequence[Record]]) -> list[list[Record]]:
        """All that a worker read of the input, in order."""
        based = [
            [msgspec.structs.replace(record, base=base) for record in records]
            for records, base in zip(present, self.bases, strict=True)
        ]
        return [[*before, *after] for before, after in zip(self.records, based, strict=True)]


async def audit(
    bootstrap: str,
    prefix: str,
    defaults: Defaults = DEFAULTS,
    objects: Objects | None = None,
    *,
    source_prefix: str | None = None,
    ends: Mapping[str, Sequence[int]] | None = None,
    folder: Path | None = None,
    former: Mapping[str, Former] | None = None,
) -> Counter[str]:
    """Compare what the workers wrote with one undisturbed run over the same logs; count what was compared.

    ``source_prefix`` is that of the inputs, where they are another pipeline's, and ``ends`` is where the workers ended;
    ``folder`` holds what was written, where that was a dry run. ``former`` are the inputs that were re-created.

    Raises:
        DiffersError: it is not the same.
    """
    counted: Counter[str] = Counter()
    topics = (*SOURCES, PROVIDER_REQUESTS, SESSION_ITEMS, HISTORY_FIXES, DEAD_LETTERS)

    async def outputs(topic: str) -> list[list[Record]]:
        if folder is not None:
            return [list(read_partition(folder, topic, number)) for number in range(PARTITIONS)]
        return await harness.read_all(bootstrap, prefix + topic, PARTITIONS)

    logs = {topic: await outputs(topic) for topic in topics[2:]}
    read_from = prefix if source_prefix is None else source_prefix
    logs |= {topic: await harness.read_all(bootstrap, read_from + topic, PARTITIONS) for topic in SOURCES}
    for topic, offsets in (ends or {}).items():
        logs[topic] = [[r for r in log if r.offset < end] for log, end in zip(logs[topic], offsets, strict=True)]
    own = "" if read_from == prefix else RECORDED_PREFIX
    written = {topic: await outputs(own + topic) for topic in SOURCES}
    for topic, before in (former or {}).items():
        logs[topic], written[topic] = before.and_then(logs[topic]), before.and_then(written[topic])
    if objects is not None:
        requests = logs[PROVIDER_REQUESTS]
        logs[PROVIDER_REQUESTS] = [[await _with_body(record, objects) for record in records] for records in requests]
    for number in range(PARTITIONS):
        made = [
            output
            for topic, factory in stages(defaults).items()
            for output in harness.made_by(factory(number), logs[topic][number])
        ]
        found = {topic: logs[topic][number] for topic in topics}
        counted += _compare(number, made, found, {topic: written[topic][number] for topic in SOURCES})
        counted += {f"source {topic}": len(found[topic]) for topic in SOURCES}
    return counted


async def _with_body(record: Record, objects: Objects) -> Record:
    """A request as it is where no store takes its body."""
    if (dataref := find_dataref(record.headers)) is None:
        return record
    headers = [header for header in record.headers if header[0] != DATAREF]
    return msgspec.structs.replace(record, value=await objects.get(record.key or b"", dataref), headers=headers)


def _compare(
    number: int, made: list[Output], found: dict[str, list[Record]], written: dict[str, list[Record]]
) -> Counter[str]:
    counted: Counter[str] = Counter()
    # Two sources share the fixes and the dead letters, so they are compared source by source. Events of one session are
    # fed together, so what the stream side writes keeps its order within a session. So does what a release makes, which
    # other sessions do not wait for.
    is_sliced = any(b'"session.released"' in (record.value or b"") for record in found[AGENT_TURNS])
    rows = _in_sessions if is_sliced else _in_order
    for topic in (PROVIDER_REQUESTS, HISTORY_FIXES):
        expected = rows(output for output in made if output.topic == topic and not _is_spoken(output))
        seen = rows(record for record in found[topic] if not _is_spoken(record))
        harness.compare((topic, number), expected, seen)
        counted[topic] = len(expected)
    spoken = _in_sessions(output for output in made if output.topic == HISTORY_FIXES and _is_spoken(output))
    seen = _in_sessions(record for record in found[HISTORY_FIXES] if _is_spoken(record))
    harness.compare(("fixes of streams", number), spoken, seen)
    counted["fixes of streams"] = len(spoken)
    for source in SOURCES:
        expected = _in_sessions(o for o in made if o.topic == DEAD_LETTERS and _from(o) == source)
        seen = _in_sessions(r for r in found[DEAD_LETTERS] if _from(r) == source)
        harness.compare((f"letters of {source}", number), expected, seen)
        counted[DEAD_LETTERS] += len(expected)
    # Records that the stages append to their own sources are there among those of clients.
    recorded = _in_sessions(output for output in made if output.topic == AGENT_TURNS)
    seen = _in_sessions(record for record in written[AGENT_TURNS] if _is_recorded(record))
    harness.compare(("recorded turns", number), recorded, seen)
    counted["recorded turns"] = len(recorded)
    told = rows(output for output in made if output.topic == PROVIDER_EVENTS)
    seen = rows(r for r in written[PROVIDER_EVENTS] if dict(r.headers).get("origin") == b"reknit")
    harness.compare(("policies", number), told, seen)
    counted["policies"] = len(told)
    counted["sessions"] = _compare_items([o for o in made if o.topic == SESSION_ITEMS], found[SESSION_ITEMS])
    return counted


def _compare_items(made: list[Output], found: list[Record]) -> int:
    """Items may be joined otherwise from batch to batch; the view of each session and its records may not."""
    expected, seen = by_session(made), by_session(found)
    harness.compare("sessions with items", sorted(expected), sorted(seen))
    for key in expected:
        harness.compare(("view", key), [view_of(expected[key])], [view_of(seen[key])])
        harness.compare(("items", key), whole_items(expected[key]), whole_items(seen[key]))
    return len(expected)


def _row(record: Output | Record) -> Hashable:
    return record.key, record.value, tuple(record.headers)


def _in_order(records: Iterable[Output | Record]) -> list[Hashable]:
    return [_row(record) for record in records]


def _in_sessions(records: Iterable[Output | Record]) -> list[Hashable]:
    """Return records in a form that can be compared if sessions interleave: each session's in order."""
    return [_row(record) for record in sorted(records, key=lambda record: record.key or b"")]


def _from(record: Output | Record) -> str:
    return dict(record.headers)["reknit.error.topic"].decode()


def _is_spoken(record: Record | Output) -> bool:
    """Whether it is a fix of what a stream said."""
    return b'"source":' in (record.value or b"") and "source" in json.loads(record.value or b"")


def _is_recorded(record: Record) -> bool:
    """Whether the stream side wrote it: a turn, or a provider's answer."""
    if record.value is None or b'"origin"' not in record.value:
        return False
    written = json.loads(record.value)
    return (written["type"], written.get("origin")) in {("turn.appended", "recorded"), ("provider.answered", "reknit")}
