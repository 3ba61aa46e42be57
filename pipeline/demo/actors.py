"""The actors of the demo: two clients on the broker, and two child processes, which end when the demo does.

One client sends the recordings, sessions in parallel, at a pace that can be watched, and waits where each session's own
client would. The other reads the pipeline's outputs, and detects when no work is left. The children are the worker,
the viewer and the server of screens.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from msgspec import Struct

from reknit.pipeline.cli.running import DEFAULT_PORT
from reknit.pipeline.demo.recordings import Input, Recording, Wait, fleet, inputs
from reknit.pipeline.errors import ReknitError, error_name
from reknit.pipeline.kafka import connection, opener
from reknit.pipeline.kafka.reading import isolation_of
from reknit.pipeline.kafka.sending import Sender, open_producer
from reknit.pipeline.settings import Config
from reknit.topics import (
    AGENT_TURNS,
    DEAD_LETTERS,
    HISTORY_FIXES,
    INPUTS,
    PROVIDER_REQUESTS,
    SESSION_ITEMS,
    qualified,
)

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
    producer = await open_producer(config)
    try:
        one_each = [_Client(key, inputs(recording)) for key, recording in clients.items()]
        await _feed(Sender(config, producer), config.prefix, one_each, recorded, on_sent)
    finally:
        await producer.stop()


async def _feed(
    sender: Sender,
    prefix: str,
    clients: list[_Client],
    recorded: Callable[[str], int],
    on_sent: Callable[[], None],
) -> None:
    clock = asyncio.get_running_loop().time
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
                    await sender.send(qualified(step.topic, prefix), step.value, client.key.encode(), step.headers)
                    on_sent()
                    due = max(due + 1 / RECORDS_PER_SECOND, clock() - _LOOK_SECONDS)
                    await asyncio.sleep(due - clock())
        if all(recorded(client.key) < client.waits_for for client in clients):
            await asyncio.sleep(_LOOK_SECONDS)
    await sender.flush()


WATCHED = (*INPUTS, PROVIDER_REQUESTS, SESSION_ITEMS, HISTORY_FIXES, DEAD_LETTERS)

# Called with the topic's contract name and the record.
OnRecord = Callable[[str, ConsumerRecord], None]

_POLL_MS = 50


class Watch:
    """Reads the six topics from where they end now. ``before`` is how many offsets the session log has by then."""

    def __init__(self, config: Config, consumer: AIOKafkaConsumer) -> None:
        self._consumer = consumer
        self._names = {qualified(topic, config.prefix): topic for topic in WATCHED}
        self._places = [TopicPartition(name, number) for name in self._names for number in range(config.partitions)]
        # The position after the last record that was read: transaction markers have offsets, but are not processed.
        self._read_to: dict[TopicPartition, int] = {}
        self.before = 0

    async def start(self) -> None:
        """Note where the topics end, and read from there."""
        self._consumer.assign(self._places)
        ends = await self._consumer.end_offsets(self._places)
        for place, end in ends.items():
            self._consumer.seek(place, end)
        self._read_to = {place: 0 for place in ends if self._names[place.topic] in INPUTS}
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
        """Return True if no work is left.

        The order of the checks makes it correct: the committed positions are read first. If the sources end no later
        than those, no record was in flight between the two, including those that one side of the pipeline writes for
        the other.
        """
        committed = {place: await self._consumer.committed(place) or 0 for place in self._read_to}
        for place, end in (await self._consumer.end_offsets(self._places)).items():
            if await self._consumer.position(place) < end:
                return False
        return all(committed[place] >= read_to for place, read_to in self._read_to.items())


@contextlib.asynccontextmanager
async def watching(config: Config) -> AsyncIterator[Watch]:
    """A watch on the pipeline of this configuration; it sees what is committed and nothing else."""
    consumer = AIOKafkaConsumer(
        **connection(config),
        isolation_level=isolation_of(config),
        # The worker's own group, to read its committed offsets; with assigned partitions, the consumer does not join
        # it.
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


# The worker, the viewer and the server of screens.

_STOP_SECONDS = 30.0
_START_SECONDS = 60.0
_LOOK_SECONDS = 0.05
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_LOG_TAIL = 2000
# A proxy of the environment is for the world outside, not for the loopback address.
_DIRECT = opener(urllib.request.ProxyHandler({}))


class _Order(Struct, frozen=True, kw_only=True):
    """The settings of a worker. ``embedded``: the broker is the embedded one."""

    config: Config
    embedded: bool


class _Child:
    """A child process. ``url`` is where it answers."""

    name: str
    health: str

    def __init__(self, host: str, port: int, log: Path) -> None:
        """``log`` is where its words go."""
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"http://{host}:{port}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _start(self, *arguments: str, **more: str) -> None:
        """Start it with an environment of ``more`` only, so that the demo is the same on every machine."""
        command = [sys.executable, "-m", "reknit.pipeline.demo.actors", str(os.getpid()), self.name, *arguments]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("REKNIT_")}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603  our own module, our own arguments
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment | more,
                start_new_session=True,  # the parent handles Ctrl-C: it stops the feed first, then the children
            )

    async def ready(self, on_look: Callable[[], None]) -> None:
        """Wait until it answers that it is; ``on_look`` is called while that takes."""
        while not await asyncio.to_thread(self._is_ready):
            on_look()
            await asyncio.sleep(_LOOK_SECONDS)

    async def ended(self) -> None:
        """Wait for its unexpected end.

        Raises:
            ChildError: always, once it has ended.
        """
        while self.running:  # noqa: ASYNC110  a process has no event for the event loop
            await asyncio.sleep(_LOOK_SECONDS)
        status = None if self._process is None else self._process.returncode
        words = f"the {self.name} ended with status {status}; its last words:\n{self.tail()}"
        raise ChildError(f"{self.name}_ended", words)

    def _is_ready(self) -> bool:
        if not self.running:
            return False
        with contextlib.suppress(OSError):
            return b"ok" in self._get(self.health)
        return False

    def _get(self, path: str) -> bytes:
        with _DIRECT.open(self.url + path, timeout=5) as answer:
            body: bytes = answer.read()
            return body

    def tail(self) -> str:
        return self._log.read_bytes()[-_LOG_TAIL:].decode(errors="replace").strip()

    def stop(self) -> None:
        """Let it finish what it does, and end it where it does not."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Worker(_Child):
    """``reknit worker``, tuned for the embedded broker where it is that; it answers /metrics, /livez and /readyz."""

    name, health = "worker", "/readyz"

    def __init__(self, config: Config, log: Path) -> None:
        """``config`` has a metrics port."""
        super().__init__(config.metrics_host, config.metrics_port, log)
        self._config = config

    def start(self, *, embedded: bool) -> None:
        self._start(msgspec.json.encode(_Order(config=self._config, embedded=embedded)).decode())

    def metrics(self) -> str:
        """The text of /metrics.

        Raises:
            ChildError: it does not answer.
        """
        try:
            return self._get("/metrics").decode()
        except OSError as error:
            raise ChildError(
                "worker_silent", f"no answer from {self.url} ({error_name(error)}); its last words:\n{self.tail()}"
            ) from error


class Viewer(_Child):
    """``reknit viewer`` as a user starts it: for the demo's own pipeline, whose dead letters it may retry."""

    name, health = "viewer", "/healthz"

    def __init__(self, config: Config, log: Path) -> None:
        self._config, self._port = config, free_port(DEFAULT_PORT)
        super().__init__("127.0.0.1", self._port, log)

    def start(self) -> None:
        config = self._config
        where = ["--bootstrap-servers", config.bootstrap_servers, "--prefix", config.prefix]
        more = {"REKNIT_DELIVERY": config.delivery, "REKNIT_STATE_DIR": config.state_dir}
        titles = Path(config.state_dir) / "titles.json"
        titles.write_bytes(msgspec.json.encode({one.session: one.title for one in fleet()}))
        self._start(*where, "--port", str(self._port), "--allow-retry", "--titles", str(titles), **more)


class ScreensServer(_Child):
    """``reknit screens``; pages of one site may ask."""

    name, health = "screens", "/healthz"

    def __init__(self, config: Config, log: Path) -> None:
        self._config, self.port = config, free_port()
        self._origin = ""
        super().__init__("127.0.0.1", self.port, log)

    async def start(self, origin: str) -> None:
        """Start it for the pages of a site, and wait until it answers.

        Raises:
            ChildError: it has ended, or does not answer in time.
        """
        self._origin = origin
        await self.restart()

    async def restart(self) -> None:
        """End it where it runs, start it, and wait until it answers.

        Raises:
            ChildError: it has ended, or does not answer in time.
        """
        await asyncio.to_thread(self.stop)
        config = self._config
        where = ["--bootstrap-servers", config.bootstrap_servers, "--prefix", config.prefix]
        more = {"REKNIT_DELIVERY": config.delivery, "REKNIT_STATE_DIR": config.state_dir}
        self._start(*where, "--port", str(self.port), "--allow-origin", self._origin, **more)
        try:
            async with asyncio.timeout(_START_SECONDS):
                await self.ready(self._check)
        except TimeoutError as error:
            raise ChildError(
                "screens_slow", f"reknit screens does not answer; its last words:\n{self.tail()}"
            ) from error

    def _check(self) -> None:
        if not self.running:
            raise ChildError("screens_ended", f"screens has ended; its last words:\n{self.tail()}")


class ChildError(ReknitError):
    fault = "us"


def free_port(wanted: int = 0) -> int:
    """Return a free port: this one, or else any."""
    for port in (wanted, 0):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise ChildError("no_port", "this machine has no free port")


def main(parent: str, program: str, *arguments: str) -> int:
    """Run as the child of a process: as a worker with settings in JSON, or as a command of Reknit."""
    _end_with(int(parent))
    # Imported here: the demo itself needs no engine.
    if program != Worker.name:
        from reknit.pipeline.cli import main as reknit

        reknit([program, *arguments], prog_name="reknit")
        return 0
    from reknit.pipeline.cli.running import run
    from reknit.pipeline.engine.embedded import TUNING

    order = msgspec.json.decode(arguments[0], type=_Order)
    try:
        return run(order.config, TUNING if order.embedded else None)
    except ReknitError as error:
        sys.stderr.write(f"reknit: {error}\n")
        return 2


def _end_with(parent: int) -> None:
    """Ask the kernel, if it supports that, for SIGTERM at the parent's end: a kill -9 leaves no child running."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it ended before the request was made
            raise SystemExit(0)


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
