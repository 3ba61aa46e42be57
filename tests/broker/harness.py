"""Worker processes under load, what may happen to them, and an audit of every source offset.

All but ``toys`` serves any stage: a test gives the command that starts a worker, the topics, and a stage that says
what an undisturbed run would have written. The product's own chaos tests use the same pieces.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self

import toy_stage
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError

from reknit.pipeline.engine.batches import records_of
from reknit.pipeline.stages.base import Output, Record, Stage

# A wait states the seconds that an idle machine needs at most. CI needs several times as long, and a longer limit costs
# nothing where the wait ends early.
SLACK = 4


def deadline_after(seconds: float) -> float:
    """Return the time of the monotonic clock at which a wait fails."""
    return time.monotonic() + SLACK * seconds


class WorkerProcess:
    """One worker, by the command that starts it. ``end`` leaves no process running in any case."""

    def __init__(self, name: str, command: Sequence[str], log: Path, port: int) -> None:
        self.name = name
        self.command = list(command)
        self.log = log
        self.port = port
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> WorkerProcess:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=dict(os.environ)
            )
        return self

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def status(self) -> int | None:
        return self._process.poll() if self._process else None

    def signal(self, number: signal.Signals) -> None:
        if self.running:
            self._process.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        if self._process:
            self._process.wait(10)

    def end(self) -> None:
        self.signal(signal.SIGCONT)
        self.kill()

    async def wait(self, seconds: float) -> int:
        """Wait for its end and return its status."""
        deadline = deadline_after(seconds)
        while self.running:
            if time.monotonic() > deadline:
                raise AssertionError(f"{self.name} still runs after {seconds} s\n{self.tail()}")
            await asyncio.sleep(0.02)
        return self.status

    async def stop(self, seconds: float = 20.0) -> int:
        self.signal(signal.SIGTERM)
        return await self.wait(seconds)

    def ask(self, path: str) -> tuple[int, str]:
        """Return status and text of one of its HTTP pages; status 0 if there is no answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=2) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    async def page(self, path: str, seconds: float = 30.0) -> str:
        """Return the text of one of its HTTP pages, once it answers."""
        deadline = deadline_after(seconds)
        while True:
            status, text = await asyncio.to_thread(self.ask, path)
            if status == HTTPStatus.OK:
                return text
            if not self.running or time.monotonic() > deadline:
                raise AssertionError(f"{self.name} has no {path} (status {status})\n{self.tail()}")
            await asyncio.sleep(0.05)

    async def ready(self, seconds: float = 30.0) -> None:
        deadline = deadline_after(seconds)
        while (await asyncio.to_thread(self.ask, "/readyz"))[0] != 200:
            if not self.running or time.monotonic() > deadline:
                raise AssertionError(f"{self.name} is not ready (status {self.status})\n{self.tail()}")
            await asyncio.sleep(0.05)

    def tail(self, size: int = 4000) -> str:
        return self.log.read_bytes()[-size:].decode(errors="replace") if self.log.exists() else ""


class Fleet:
    """Workers of one pipeline."""

    def __init__(self, command: Callable[[int], Sequence[str]], directory: Path, free_port: Callable[[], int]) -> None:
        """``command`` gets the port for health and returns the command line."""
        self._command = command
        self._directory = directory
        self._free_port = free_port
        self.workers: list[WorkerProcess] = []

    def start(self) -> WorkerProcess:
        port = self._free_port()
        name = f"worker-{len(self.workers)}"
        worker = WorkerProcess(name, self._command(port), self._directory / f"{name}.log", port)
        self.workers.append(worker.start())
        return worker

    def end(self) -> None:
        for worker in self.workers:
            worker.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def toy_command(build: Path | None = None, **options: Any) -> Callable[[int], Sequence[str]]:
    """Return the command that starts a toy worker, of another build if its directory is given."""
    script = Path(__file__).with_name("toy_worker.py")
    program = [str(script)]
    if build is not None:
        script = build / script.relative_to(Path(__file__).parents[2])
        start = f"import runpy, sys; sys.path.insert(0, {str(build)!r})"
        program = ["-c", f"{start}; runpy.run_path({str(script)!r}, run_name='__main__')"]
    return lambda port: [sys.executable, *program, json.dumps(options | {"metrics_port": port})]


@contextlib.asynccontextmanager
async def toys(
    bootstrap: str,
    prefix: str,
    directory: Path,
    free_port: Callable[[], int],
    *,
    partitions: int,
    **options: Any,
) -> AsyncIterator[Fleet]:
    """Workers with the toy stage over topics of their own, exactly once; none of them outlives the block."""
    await make_topics(bootstrap, [prefix + name for name in toy_stage.TOPICS], partitions)
    with toy_fleet(bootstrap, prefix, directory, free_port, partitions=partitions, **options) as fleet:
        yield fleet


def toy_fleet(bootstrap: str, prefix: str, directory: Path, free_port: Callable[[], int], **options: Any) -> Fleet:
    """Workers with the toy stage over topics that are there, exactly once."""
    directory.mkdir(exist_ok=True)
    place = {"bootstrap_servers": bootstrap, "prefix": prefix, "state_dir": str(directory / "state")}
    return Fleet(toy_command(**place, delivery="exactly-once", **options), directory, free_port)


async def make_topics(bootstrap: str, names: Iterable[str], partitions: int, copies: int = 1, **config: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        names = list(names)
        response = await admin.create_topics(
            [NewTopic(name, partitions, copies, topic_configs=config) for name in names]
        )
        errors = {entry[0]: entry[1] for entry in response.topic_errors}
        assert errors == dict.fromkeys(names, 0)
    finally:
        await admin.close()
    # A topic exists before it has leaders.
    async with reader(bootstrap) as consumer:
        tps = [TopicPartition(name, number) for name in names for number in range(partitions)]
        await consumer.end_offsets(tps)


async def recreate_topics(
    bootstrap: str, names: Iterable[str], partitions: int, copies: int = 1, **config: str
) -> None:
    """Delete topics and create others of the same names as soon as the brokers let that be done."""
    names = list(names)
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.delete_topics(names)
        while set(names) & set(await admin.list_topics()):  # noqa: ASYNC110  asked of a broker
            await asyncio.sleep(0.05)
    finally:
        await admin.close()
    await make_topics(bootstrap, names, partitions, copies, **config)


async def find_coordinator(client: AIOKafkaClient, kind: int, name: str) -> None:
    """Wait for the coordinator of a group or a transactional id, until the brokers have created the topic for it."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(KafkaError):
                await client.coordinator_lookup(kind, name)
                return
            await asyncio.sleep(0.1)


@contextlib.asynccontextmanager
async def reader(bootstrap: str, isolation: str = "read_committed") -> AsyncIterator[AIOKafkaConsumer]:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        isolation_level=isolation,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_partition_fetch_bytes=8 << 20,
    )
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


async def read_all(
    bootstrap: str,
    topic: str,
    partitions: int,
    isolation: str = "read_committed",
    *,
    begin: Mapping[int, int] | None = None,
) -> list[list[Record]]:
    """Return the records of each partition, from the offsets in ``begin`` on, or all of them."""
    tps = [TopicPartition(topic, number) for number in range(partitions)]
    found: list[list[Record]] = [[] for _ in tps]
    async with reader(bootstrap, isolation) as consumer:
        consumer.assign(tps)
        for number, offset in (begin or {}).items():
            consumer.seek(tps[number], offset)
        end = await consumer.end_offsets(tps)
        while not all([await consumer.position(tp) >= end[tp] for tp in tps]):
            for tp, records in (await consumer.getmany(timeout_ms=100)).items():
                found[tp.partition].extend(records_of(records))
    return found


async def committed(bootstrap: str, group: str, topic: str) -> dict[int, int]:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        offsets = await admin.list_consumer_group_offsets(group)
    except KafkaError:  # a broker that has just started makes its own topics first
        return {}
    finally:
        await admin.close()
    return {tp.partition: entry.offset for tp, entry in offsets.items() if tp.topic == topic}


async def commit(bootstrap: str, group: str, topic: str, offsets: Mapping[int, int], metadata: str = "") -> None:
    """Commit offsets of a group that has no members."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False)
    await consumer.start()
    try:
        places = {TopicPartition(topic, number): (offset, metadata) for number, offset in offsets.items()}
        consumer.assign(list(places))
        await consumer.commit(places)
    finally:
        await consumer.stop()


async def caught_up(bootstrap: str, topic: str, sources: Sequence[str], partitions: int, seconds: float) -> None:
    """Wait until the output topic stops growing and holds as many records as the sources."""
    deadline = deadline_after(seconds)
    want = 0
    for source in sources:
        want += sum(map(len, await read_all(bootstrap, source, partitions)))
    while (got := sum(map(len, await read_all(bootstrap, topic, partitions)))) < want:
        if time.monotonic() > deadline:
            raise AssertionError(f"{topic} has {got} records of {want} after {seconds} s")
        await asyncio.sleep(0.5)


class Feeder:
    """Writes to the sources at a rate until stopped. Survives a broker restart; failed records are missing.

    With ``transactions`` every few records are a transaction, and some are aborted, so that the log is full of markers
    and of records that no reader may see.
    """

    def __init__(
        self,
        bootstrap: str,
        topics: Sequence[str],
        partitions: int,
        rate: int,
        *,
        keys: int = 200,
        transactions: str | None = None,
        seed: int = 7,
    ) -> None:
        self._bootstrap = bootstrap
        self._topics = topics
        self._partitions = partitions
        self._rate = rate
        self._keys = keys
        self._transactions = transactions
        self._random = random.Random(seed)  # noqa: S311 - reproducible, not secret
        self._stop = asyncio.Event()
        self.sent = 0

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._stop.set()
        await asyncio.wait_for(self._task, 40)

    async def _run(self) -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=self._bootstrap,
            acks="all",
            request_timeout_ms=5_000,
            transactional_id=self._transactions,
            transaction_timeout_ms=10_000,
        )
        await producer.start()
        began, n = time.monotonic(), 0
        try:
            while not self._stop.is_set():
                due = int((time.monotonic() - began) * self._rate)
                with contextlib.suppress(KafkaError, TimeoutError):
                    await asyncio.wait_for(self._burst(producer, min(due - n, 2_000)), 10)
                n = due
                await asyncio.sleep(0.05)
        finally:
            with contextlib.suppress(KafkaError, TimeoutError):
                await asyncio.wait_for(producer.stop(), 10)

    async def _burst(self, producer: AIOKafkaProducer, count: int) -> None:
        """Send ``count`` records and wait for them, so that little is outstanding when the broker goes."""
        if self._transactions is None:
            await self._send(producer, count)
            return
        # It ends between two transactions. One that the caller's time limit cut would make the next one fail.
        ends = time.monotonic() + 5
        while count > 0 and time.monotonic() < ends:
            part = self._random.randint(1, 40)
            await producer.begin_transaction()
            await self._send(producer, part)
            if self._random.random() < 0.25:
                await producer.abort_transaction()
            else:
                await producer.commit_transaction()
            count -= part

    async def _send(self, producer: AIOKafkaProducer, count: int) -> None:
        futures = []
        for _ in range(count):
            self.sent += 1
            key = b"k%d" % self._random.randrange(self._keys)
            topic = self._topics[self.sent % len(self._topics)]
            futures.append(
                await producer.send(
                    topic, key=key, value=b"v" * 100, partition=self._random.randrange(self._partitions)
                )
            )
        if futures:
            await asyncio.gather(*futures)


async def audit(  # noqa: PLR0917 - the places first, in the order of the pipeline
    bootstrap: str,
    prefix: str,
    stages: Callable[[str, int], Stage],
    sources: Sequence[str],
    outputs: Sequence[str],
    partitions: int,
    *,
    source_of: Callable[[Record], str] = lambda record: (record.value or b"").split(b":", 1)[0].decode(),
    repeats: bool = False,
) -> int:
    """Compare the visible outputs with those of one undisturbed run on the same sources; return the number of audited
    records.

    Equality is exact: no record lost, duplicated, out of order, or made from wrong state. Outputs of different sources
    may interleave in one topic, so they are compared source by source; ``source_of`` returns an output's source (a toy
    output begins with it). With ``repeats``, for at-least-once, an output may be repeated, byte by byte equal; the
    first of each is compared.
    """
    expected: dict[tuple[str, int, str], list[bytes | None]] = {}
    total = 0
    for source in sources:
        for number, records in enumerate(await read_all(bootstrap, prefix + source, partitions)):
            total += len(records)
            stage = stages(source, number)
            for output in made_by(stage, records):
                expected.setdefault((output.topic, number, source), []).append(output.value)
    found: dict[tuple[str, int, str], list[bytes | None]] = {}
    for topic in outputs:
        for number, records in enumerate(await read_all(bootstrap, prefix + topic, partitions)):
            for record in records:
                found.setdefault((topic, number, source_of(record)), []).append(record.value)
    for place in expected.keys() | found.keys():
        seen = found.get(place, [])
        compare(place, expected.get(place, []), list(dict.fromkeys(seen)) if repeats else seen)
    return total


def made_by(stage: Stage, records: Sequence[Record]) -> list[Output]:
    return stage.process(records).outputs if records else []


class DiffersError(AssertionError):
    """The visible outputs differ from those of one undisturbed run."""

    def __init__(self, place: object, words: str, *, lost: int = 0, doubled: int = 0, different: int = 0) -> None:
        super().__init__(f"{place}: lost {lost}, doubled {doubled}, different {different}; {words}")
        self.lost, self.doubled, self.different = lost, doubled, different


def compare(place: object, expected: Sequence[Hashable], found: Sequence[Hashable]) -> None:
    """Compare in order.

    Raises:
        DiffersError: something is missing (lost), there again (doubled), or not among what was expected, or elsewhere.
    """
    if expected == found:
        return
    wanted, seen = Counter(expected), Counter(found)
    pairs = list(zip(expected, found, strict=False))
    first = next((i for i, pair in enumerate(pairs) if pair[0] != pair[1]), None)
    near = pairs[first] if first is not None else None
    more = seen - wanted
    doubled = sum(count for row, count in more.items() if row in wanted)
    lost = (wanted - seen).total()
    strange = more.total() - doubled
    moved = sum(a != b for a, b in pairs) if wanted == seen else 0
    words = f"expected {len(expected)}, found {len(found)}, first difference at {first}: {near}"
    raise DiffersError(place, words, lost=lost, doubled=doubled, different=strange + moved)
