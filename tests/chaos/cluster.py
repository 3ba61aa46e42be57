"""Three brokers, and a network between them and the workers that can be cut and slowed."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import random
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from aiokafka.admin import AIOKafkaAdminClient

_ROOT = Path(__file__).resolve().parents[2]
COPIES = 3
# Room for what a run writes, and little enough to be filled at once.
DISK_MIB = 512


def _load_broker_module():
    spec = importlib.util.spec_from_file_location("reknit_kafka_broker", _ROOT / "deploy/kafka/broker.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


kafka_broker = _load_broker_module()


def _fixed_ports(count: int) -> list[int]:
    """Return free ports below those that systems give to clients.

    One of the latter may be in use by a client when a broker needs it again; and a client that connects to it while it
    is free may reach itself.
    """
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(15_000, 30_000)  # noqa: S311  no secret
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found += [port] if port not in found else []
    return found


class Network:
    """Passes bytes from ports that clients know to ports where brokers listen, in a thread of its own.

    ``cut`` are the ports that no byte passes now, in no direction; connections stay, as they do when a cable is pulled.
    ``bytes_a_second`` is how fast each connection is, 0 for as fast as it goes.
    """

    def __init__(self, ways: Mapping[int, int]) -> None:
        self.ways = dict(ways)
        self.cut: frozenset[int] = frozenset()
        self.bytes_a_second = 0
        self._loop = asyncio.new_event_loop()
        self._open, self._ended = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()
        self._open.wait(10)

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        async with contextlib.AsyncExitStack() as servers:
            for port, to in self.ways.items():
                # A server's end would wait for its connections, which the runner cancels only afterwards.
                server = await asyncio.start_server(partial(self._join, port, to), "127.0.0.1", port)
                servers.callback(server.close)
            self._open.set()
            await self._ended.wait()

    async def _join(self, port: int, to: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            try:
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", to)
            except OSError:
                return
            with contextlib.closing(far_writer), contextlib.suppress(OSError):
                passing = [self._pass(port, reader, far_writer), self._pass(port, far_reader, writer)]
                tasks = [asyncio.ensure_future(one) for one in passing]
                try:
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)

    async def _pass(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            if self.bytes_a_second:
                await asyncio.sleep(len(data) / self.bytes_a_second)
            while port in self.cut:  # noqa: ASYNC110  set by another thread
                await asyncio.sleep(0.05)
            writer.write(data)
            await writer.drain()


class Disk:
    """A folder that can be full: a file system of its own in memory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._filler = directory / "filler"

    def mount(self) -> bool:
        """Whether this process may mount."""
        self._directory.mkdir(parents=True, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "reknit-chaos", str(self._directory)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def unmount(self) -> None:
        subprocess.run(["umount", "--lazy", str(self._directory)], check=True)

    def fill(self) -> None:
        with contextlib.suppress(OSError), self._filler.open("wb", buffering=0) as filler:
            while filler.write(b"\0" * (1 << 20)):
                pass

    def clear(self) -> None:
        self._filler.unlink(missing_ok=True)


class Cluster:
    """Three nodes, each broker and controller; clients of ``direct`` reach them directly, workers through the network.

    The last one's data are on the disk that can be full, if this process may mount one.
    """

    def __init__(self, directory: Path) -> None:
        ports = _fixed_ports(4 * COPIES)
        self.network = Network({ports.pop(): ports.pop() for _ in range(COPIES)})
        self.brokers = []
        for node, (seen, listening) in enumerate(self.network.ways.items(), start=1):
            broker = kafka_broker.Broker(directory / f"broker-{node}", ports.pop(), heap="320m")
            broker.controller_port = ports.pop()
            # Its messages about a full disk must not need room on that disk.
            broker.log = directory / f"broker-{node}.log"
            host = f"PLAINTEXT://127.0.0.1:{broker.port}"
            broker.settings = {
                "node.id": str(node),
                "listeners": f"{host},CLIENT://127.0.0.1:{listening},CONTROLLER://127.0.0.1:{broker.controller_port}",
                "advertised.listeners": f"{host},CLIENT://127.0.0.1:{seen}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT",
                "offsets.topic.replication.factor": str(COPIES),
                "transaction.state.log.replication.factor": str(COPIES),
                "transaction.state.log.min.isr": "2",
                "min.insync.replicas": "2",
                # A killed broker is missed soon, one that is back leads again soon.
                "broker.session.timeout.ms": "6000",
                "leader.imbalance.check.interval.seconds": "2",
                "leader.imbalance.per.broker.percentage": "0",
            }
            self.brokers.append(broker)
        voters = ",".join(f"{at}@127.0.0.1:{broker.controller_port}" for at, broker in enumerate(self.brokers, start=1))
        for broker in self.brokers:
            broker.settings["controller.quorum.voters"] = voters
        disk = Disk(self.brokers[-1].directory)
        self.disk = disk if disk.mount() else None

    @property
    def direct(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers)

    @property
    def through_the_network(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.network.ways)

    def start(self) -> None:
        # None is up before there is a majority.
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda broker: broker.start(), self.brokers))
        self.network.start()

    def heal(self) -> None:
        """Restore the cluster after any fault, also one that failed halfway."""
        self.network.cut, self.network.bytes_a_second = frozenset(), 0
        if self.disk is not None:
            self.disk.clear()
        for broker in self.brokers:
            broker.kill()
            broker.start()

    def end(self) -> None:
        self.network.end()
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda broker: broker.kill(), self.brokers))
        if self.disk is not None:
            self.disk.unmount()

    async def leads(self, topics: list[str]) -> Counter[int]:
        """Return the number of partitions of these topics that each node leads; 0 counts partitions that miss a
        replica.
        """
        admin = AIOKafkaAdminClient(bootstrap_servers=self.direct, request_timeout_ms=5_000)
        await admin.start()
        try:
            every = [part for topic in await admin.describe_topics(topics) for part in topic["partitions"]]
        finally:
            await admin.close()
        return Counter(part["leader"] for part in every) + Counter(0 for part in every if len(part["isr"]) < COPIES)
