"""``reknit screens`` under load: many open connections, and the delay from the topic to their sockets.

    python tests/benchmarks/bench_screens.py [--connections 5000] [--rate 2000] [--seconds 20]

One server on one core, with its index, on a real Kafka. Each connection has a session of its own, and a third of them
has each format. The delay begins before a record is given to the producer and ends when a client has read its frame,
so it includes the producer and the broker. Every connection must get every piece of its session once and in order. The
clients and the producer are this process. Needs Java 17 (`deploy/kafka`).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import re
import statistics
import subprocess
import time
from pathlib import Path

import measure

# isort: split
import bench_worker
import msgspec
from aiokafka import AIOKafkaProducer
from screens_crowd import joined, piece, request_for

from reknit.pipeline.cli.running import secret_in
from reknit.pipeline.screen_server.access import Claims, Signer
from reknit.topics import SESSION_ITEMS
from reknit.topics.items import ItemDelta, ItemStarted

MOST_MS = 250
FORMATS = ("ag-ui", "ai-sdk", "items")
PREFIX = "screens."
# Connections that are being opened at the same time.
AT_ONCE = 50
START_SECONDS = 60
# How long the last pieces may take to arrive.
END_SECONDS = 30


def on_core(number):
    """Run a process on one core, if the system can do that."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {number})


@contextlib.contextmanager
def screens(bootstrap, directory, name):
    """Run a server on one core; yield its port, its process and the key of its tokens."""
    key, log = directory / "key", directory / f"{name}.log"
    options = ["--bootstrap-servers", bootstrap, "--prefix", PREFIX, "--port", "0", "--key-file", str(key)]
    options += ["--index", str(directory / f"{name}.sqlite"), "--trusted-proxy", "127.0.0.1"]
    secret = secret_in(key)
    core = max(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    with log.open("wb") as file:
        command = bench_worker.reknit("screens", "serve", *options)
        pipes = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": subprocess.STDOUT}
        running = subprocess.Popen(command, preexec_fn=lambda: on_core(core), **pipes)  # noqa: PLW1509  one call
    try:
        yield port_in(log, running), running, secret
    finally:
        running.terminate()
        try:
            running.wait(20)
        finally:
            running.kill()
            running.wait()


def port_in(log, running):
    """The port that a server reports once it serves."""
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and running.poll() is None:
        found = re.search(rb"http://127\.0\.0\.1:(\d+)/", log.read_bytes())
        if found:
            return int(found[1])
        time.sleep(0.05)
    raise bench_worker.FailedError(log.read_text())


def session_of(number):
    return f"session-{number}"


def request_of(number, signer, port):
    """A request as a proxy passes it on: one address and one token per client."""
    session = session_of(number)
    token = signer.token(Claims(sessions=(session,), expires=int(time.time()) + 3600))
    headers = {
        "Host": f"127.0.0.1:{port}",
        "Authorization": f"Bearer {token}",
        "X-Forwarded-For": f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}",
    }
    return request_for(f"/sessions/{session}/events?as={FORMATS[number % len(FORMATS)]}", headers)


async def send(producer, number, item):
    await producer.send(
        PREFIX + SESSION_ITEMS, msgspec.json.encode(item), key=session_of(number).encode(), headers=[("run", b"r")]
    )


async def opened(port, secret, count, took):
    """Open the connections, a limited number at the same time."""
    signer, limit = Signer(secret), asyncio.Semaphore(AT_ONCE)

    async def one(number):
        async with limit:
            return await joined(port, request_of(number, signer, port), took)

    return await asyncio.gather(*(one(number) for number in range(count)))


async def until_indexed(port, secret, number):
    """Wait until the index has a session."""
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        try:
            (await joined(port, request_of(number, Signer(secret), port))).transport.abort()
        except AssertionError:
            await asyncio.sleep(0.5)
        else:
            return
    raise bench_worker.FailedError("the index does not have the sessions")


def memory_mib(pid):
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


async def run(options, server, directory):
    bench_worker.apply_topics(server.bootstrap, PREFIX)
    count = options.connections
    async with AIOKafkaProducer(bootstrap_servers=server.bootstrap, linger_ms=2) as producer:
        with screens(server.bootstrap, directory, "screens") as (port, running, secret):
            for number in range(count):
                await send(producer, number, ItemStarted(item_id="t", item_type="text"))
            await producer.flush()
            await until_indexed(port, secret, count - 1)
            before, since, spent = memory_mib(running.pid), time.perf_counter(), bench_worker.cpu_seconds(running.pid)
            took = []
            members = await opened(port, secret, count, took)
            report_opening(count, running.pid, before, spent, time.perf_counter() - since)
            gc.collect()
            gc.freeze()
            await under_load(options, producer, members, took, running.pid)
            for member in members:
                member.transport.abort()


def report_opening(count, pid, before, spent, seconds):
    cpu = (bench_worker.cpu_seconds(pid) - spent) / count * 1e3
    memory = (memory_mib(pid) - before) / count * 1024
    measure.report(
        what=f"screens, {count} connections open, each with a session of its own",
        ours=f"{seconds:.1f} s",
        theirs="one core",
        ratio=f"{cpu:.2f} ms of CPU and {memory:.0f} KiB each",
    )


async def under_load(options, producer, members, took, pid):
    """Send pieces at a rate, and report when they arrive."""
    count, pieces = len(members), int(options.rate * options.seconds)
    warm = options.rate  # the first second
    spent, since, lengths = 0.0, 0.0, [0] * count
    async for number in bench_worker.paced(range(warm + pieces), options.rate):
        if number == warm:
            took.clear()
            spent, since = bench_worker.cpu_seconds(pid), time.perf_counter()
        text = piece(number)
        item = ItemDelta(item_id="t", delta_type="text_delta", content=text, at=lengths[number % count])
        lengths[number % count] += len(text)
        await send(producer, number % count, item)
    await producer.flush()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(END_SECONDS):
            while sum(len(member.numbers) for member in members) < warm + pieces:  # noqa: ASYNC110  counts have no event
                await asyncio.sleep(0.05)
    seconds = time.perf_counter() - since
    for number, member in enumerate(members):
        if member.numbers != list(range(number, warm + pieces, count)):
            raise bench_worker.FailedError(f"connection {number} got {member.numbers}")
    p99 = statistics.quantiles(took, n=100)[98]
    measure.report(
        what=f"screens, {count} connections, {options.rate} items/s on one core: from the topic to the socket",
        ours=f"{bench_worker.percentiles(took)}, {(bench_worker.cpu_seconds(pid) - spent) / seconds:.0%} of the core",
        theirs=f"{MOST_MS} ms",
        ratio=f"{p99 / MOST_MS:.2f} of it (p99)",
        budget="at most 1",
        met=p99 <= MOST_MS,
    )


def main():
    parser = measure.arguments(__doc__)
    parser.add_argument("--connections", type=int, default=5000)
    parser.add_argument("--rate", type=int, default=2000, help="items per second, over all sessions")
    parser.add_argument("--seconds", type=float, default=20.0, help="of load")
    options = parser.parse_args()
    measure.on_a_broker(lambda server, directory: run(options, server, directory))


if __name__ == "__main__":
    main()
