"""Two workers of the product on three brokers, what they are fed, and the audit of all that they wrote."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import harness
import msgspec
import pipeline_lab as lab
from aiokafka.errors import KafkaError
from chaos.cluster import COPIES, Cluster, kafka_broker

from reknit.pipeline.objects import ObjectSettings, open_objects
from reknit.topics import AGENT_TURNS, DEAD_LETTERS, HISTORY_FIXES, PROVIDER_EVENTS, PROVIDER_REQUESTS, TOPICS

DEFAULTS = msgspec.structs.replace(lab.DEFAULTS, on_dead_letter="park")
# Small, since the script's histories are: about every second request becomes an object.
_OBJECT_BYTES = 400
_RATE = 100
# Records of the shortest fault. 461 were seen to have 32 outputs, on a busy machine; the test requires more than 50.
_LEAST_SENT = 1_000
_WORKERS = 2
_SECONDS = 300.0
# The valid exit statuses of a worker: stopped, killed, or with nothing committed since its broker or its partition was
# lost.
_ENDS = {0, -9, 75}


async def die_at(worker: harness.WorkerProcess, point: str) -> None:
    """Run a worker, which is not running, until it ends itself at a failpoint."""
    program = [sys.executable, str(Path(__file__).with_name("worker.py")), point]
    doomed = harness.WorkerProcess(worker.name, [*program, *worker.command[3:]], worker.log, worker.port).start()
    try:
        assert await doomed.wait(_SECONDS) == -9, doomed.tail()
    finally:
        doomed.end()


class Pipeline:
    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.cluster = cluster
        self.directory = directory
        self.prefix = f"c{uuid.uuid4().hex[:8]}."
        self.objects_folder = directory / "objects"
        settings = ObjectSettings(url=f"file://{self.objects_folder}", threshold_bytes=_OBJECT_BYTES)
        self._objects = open_objects(SimpleNamespace(prefix=self.prefix, objects=settings))
        more = '[state]\nstore = "disk"\n'
        more += f'[objects]\nurl = "{settings.url}"\nthreshold_bytes = {settings.threshold_bytes}\n'
        directory.mkdir(parents=True, exist_ok=True)
        place = (cluster.through_the_network, self.prefix, directory, kafka_broker.free_port)
        self.fleet = lab.make_fleet(*place, top='on_dead_letter = "park"\n', more=more, own_state=True)
        self._rows = lab.script(100_000)
        self.former: dict[str, lab.Former] = {}
        self.feeder: lab.Feeder | None = None
        self._sent: Counter[str] = Counter()
        self._audited: Counter[str] = Counter()

    async def start(self) -> None:
        await lab.make_topics(self.cluster.direct, self.prefix, COPIES)
        for _ in range(_WORKERS):
            self.fleet.start()
        await self.ready()

    @property
    def workers(self) -> list[harness.WorkerProcess]:
        return self.fleet.workers

    async def ready(self) -> None:
        await asyncio.gather(*(worker.ready(_SECONDS) for worker in self.workers))

    def state_folder(self, worker: harness.WorkerProcess) -> Path:
        return self.directory / f"state-{worker.port}"

    def said(self) -> str:
        return "".join(worker.log.read_text() for worker in self.workers)

    def command(self, *arguments: str, **settings: object) -> list[str]:
        """Return a command with the workers' configuration and these settings."""
        text = (self.directory / "reknit.toml").read_text()
        config = self.directory / "beside.toml"
        config.write_text("".join(f"{name} = {value}\n" for name, value in settings.items()) + text)
        place = ["--config", str(config), "--bootstrap-servers", self.cluster.direct, "--prefix", self.prefix]
        return [sys.executable, "-m", "reknit", *arguments, *place]

    async def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = self.command(*arguments)
        return await asyncio.to_thread(
            subprocess.run, command, check=False, capture_output=True, text=True, timeout=_SECONDS
        )

    async def recreate(self, topic: str) -> None:
        """Delete a topic and create another one of its name, while the workers run; they end for a person."""
        name = self.prefix + topic
        await harness.recreate_topics(self.cluster.direct, [name], lab.PARTITIONS, COPIES)
        for worker in self.workers:
            assert await worker.wait(_SECONDS) == 2, worker.tail()
            assert f"{name} was re-created while the worker ran" in worker.tail()

    async def start_again(self) -> None:
        for worker in self.workers:
            worker.start()
        await self.ready()

    async def leads(self) -> Counter[int]:
        return await self.cluster.leads([self.prefix + topic.name for topic in TOPICS])

    async def until(self, true: Callable[[], Awaitable[bool]], what: str) -> None:
        deadline = time.monotonic() + _SECONDS
        while True:
            with suppress(KafkaError):  # a broker that is asked may be the one that is away
                if await true():
                    return
            assert time.monotonic() < deadline, f"{what}: not within {_SECONDS:.0f} s\n{self.said()[-4000:]}"
            await asyncio.sleep(0.2)

    async def feed(self, rows: Iterable[lab.Row], rate: int = _RATE) -> None:
        async with lab.Feeder(self.cluster.direct, self.prefix, rate, rows, sent_once=True) as feeder:
            await feeder.wait()
        self._sent += feeder.sent

    async def _has_sent_enough(self) -> bool:
        return self.feeder.sent.total() >= _LEAST_SENT

    async def undergo(self, inflict: Callable[[Pipeline], Awaitable[None]]) -> Counter[str]:
        """Feed records while something happens, then audit all that was ever fed; count what is new since last time.

        Raises:
            DiffersError: readers do not see what an undisturbed run makes.
        """
        async with lab.Feeder(self.cluster.direct, self.prefix, _RATE, self._rows, sent_once=True) as feeder:
            self.feeder = feeder
            await asyncio.sleep(1)
            await inflict(self)
            await asyncio.sleep(1)
            await self.until(self._has_sent_enough, f"{_LEAST_SENT} records are sent")
        self._sent += feeder.sent
        for worker in self.workers:
            if not worker.running:
                assert worker.status in _ENDS, worker.tail()
                worker.start()
        await self.ready()
        await lab.drained(self.cluster.direct, self.prefix, _SECONDS)
        counted = await lab.audit(self.cluster.direct, self.prefix, DEFAULTS, self._objects, former=self.former)
        # Every record of a client is in its source, and all other records are those that the workers appended.
        for source, own in ((AGENT_TURNS, "recorded turns"), (PROVIDER_EVENTS, "policies")):
            there, due = counted[f"source {source}"], self._sent[source] + counted[own]
            if there != due:
                words = f"{there} records in the source, {due} were written"
                lost, doubled = max(0, due - there), max(0, there - due)
                raise harness.DiffersError(source, words, lost=lost, doubled=doubled)
        new = counted - self._audited
        self._audited = counted
        return new


def outputs(counted: Counter[str]) -> int:
    topics = (
        PROVIDER_REQUESTS,
        HISTORY_FIXES,
        "fixes of streams",
        DEAD_LETTERS,
        "recorded turns",
        "policies",
        "sessions",
    )
    return sum(counted[topic] for topic in topics)


def sources(counted: Counter[str]) -> int:
    return sum(counted[f"source {topic}"] for topic in lab.SOURCES)
