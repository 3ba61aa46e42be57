"""The worker on a real Kafka: recorded Claude CLI lines to items, exactly once, compared with three other hosts.

    python tests/benchmarks/bench_worker.py [--lines 80000] [--rounds 2] [--peers PYTHON]

All sides read the same backlog on the same broker in the same run, and do the same pure work (``EventsStage``); see
``hosts.py`` for their definitions. Rates are taken between the first and the last output that a ``read_committed``
reader can see, so the start does not count. The last record of each partition is searched in the outputs, so a side
that lost records counts as failed and not as fast. Needs Java 17 (`deploy/kafka`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import measure
import msgspec
import recorded

# isort: split
import broker as kafka_broker
import harness
from aiokafka import AIOKafkaProducer, TopicPartition
from hosts import Places

HERE = Path(__file__).resolve().parent

PARTITIONS = 4
EVENTS, ITEMS, STATE = "provider.events.v1", "session.items.v1", "pipeline.events-state.v1"
QUIET_SECONDS = 2.0  # a side without new output for this long is done
PATIENCE_SECONDS = 90.0
PER_SECOND = 200
# Idiomatic Faust does a few thousand a second; its rate is steady, so a shorter backlog measures it as well. A long
# answer makes few items, and quickly: with less of it, a fast side would be done in a batch or two.
SHARE = {"faust": 0.1, "quix": 0.5}
TIMES = {"recorded": 1, "long": 4}
BUDGETS = {"faust": 40.0, "quix": 4.0, "bare": 1.0}
NAMES = {"faust": "idiomatic Faust", "quix": "Quix Streams", "bare": "bare aiokafka loop, no transactions"}
LONGEST_LATENCY = 2.0
ALL = ("rate", "two", "latency")


class FailedError(RuntimeError):
    """A side ended, or did not get to the end of its backlog."""


@contextlib.contextmanager
def process(command, log):
    with log.open("wb") as file:
        running = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
    try:
        yield running
    finally:
        running.kill()
        running.wait()


def reknit(*arguments):
    """A command line of Reknit, for the Python of this process."""
    return [sys.executable, "-c", "from reknit.pipeline.cli import main; main()", *arguments]


def apply_topics(bootstrap, prefix, partitions=PARTITIONS):
    options = ["--bootstrap-servers", bootstrap, "--prefix", prefix, "--partitions", str(partitions)]
    subprocess.run(reknit("topics", "apply", *options), check=True, capture_output=True)


def worker_command(bootstrap, prefix, delivery, directory, port=0):
    options = {
        "bootstrap-servers": bootstrap,
        "prefix": prefix,
        "delivery": delivery,
        "metrics-port": port or kafka_broker.free_port(),
        "state-dir": directory / "state",
    }
    return reknit("worker", *(f"--{name}={value}" for name, value in options.items()))


class Pace(msgspec.Struct, frozen=True):
    """How fast a side was: lines a second, and microseconds of its process's processor time a line (0: not known)."""

    rate: float
    cpu: float

    def __str__(self):
        return f"{self.rate:,.0f} lines/s" + (f" ({self.cpu:.0f} µs CPU a line)" if self.cpu else "")


def cpu_seconds(pid):
    """User and system time of a process so far, on Linux; elsewhere 0."""
    stat = Path(f"/proc/{pid}/stat")
    if not stat.exists():
        return 0.0
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def pace(bootstrap, topic, lines, *sides):
    """Measure from the first visible output to the last; ``sides`` are the processes that do the work."""
    tps = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    began = first = last = time.perf_counter()
    base = seen = 0
    spent = so_far = 0.0
    async with harness.reader(bootstrap) as consumer:
        consumer.assign(tps)
        while True:
            total = sum((await consumer.end_offsets(tps)).values())
            now = time.perf_counter()
            if total > seen:
                if not base:
                    base, first, spent = total, now, sum(cpu_seconds(side.pid) for side in sides)
                seen, last, began = total, now, now
                so_far = sum(cpu_seconds(side.pid) for side in sides)
            elif base and now - last > QUIET_SECONDS and await at_end(bootstrap, topic):
                # The first look was at `base` outputs already: their lines were done before the clock started.
                done = lines * (1 - base / seen)
                return Pace(done / (last - first), (so_far - spent) / done * 1e6)
            statuses = [side.poll() for side in sides]
            if any(status is not None for status in statuses) or now - began > PATIENCE_SECONDS:
                raise FailedError(f"{topic}: status {statuses}, {seen} outputs")
            await asyncio.sleep(0.02)


def has_partitions(port, count):
    """Return True if the worker with this port reports N partitions and their state."""
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
        return f'reknit_partitions{{topic="{EVENTS}"}} {count:.1f}\n' in page.read().decode()
    return False


async def at_end(bootstrap, topic):
    """Whether the outputs of every partition's last record are there; hosts may spread them as they like."""
    ends = {recorded.END + b"%d" % number for number in range(PARTITIONS)}
    for records in await harness.read_all(bootstrap, topic, PARTITIONS):
        ends -= {record.key for record in records}
    return not ends


class Bench:
    """One broker and what runs on it."""

    def __init__(self, server, directory, options):
        self.bootstrap = server.bootstrap
        self.directory = directory
        self.options = options
        self._runs = 0

    def fresh(self):
        self._runs += 1
        return f"bench{self._runs}."

    async def worker(self, delivery, workload):
        prefix, lines = self.fresh(), self.options.lines * TIMES[workload]
        apply_topics(self.bootstrap, prefix)
        await recorded.write_backlog(self.bootstrap, prefix + EVENTS, workload, PARTITIONS, lines)
        command = worker_command(self.bootstrap, prefix, delivery, self.directory)
        with process(command, self.directory / f"{prefix}log") as side:
            return await pace(self.bootstrap, prefix + ITEMS, lines, side)

    async def together(self, workload, count):
        """The pace of N workers of one pipeline, each with its share of the partitions from the start."""
        prefix, lines = self.fresh(), self.options.lines * TIMES[workload]
        apply_topics(self.bootstrap, prefix)
        with contextlib.ExitStack() as stack:
            sides = {}
            for number in range(count):
                place, port = self.directory / f"{prefix}{number}", kafka_broker.free_port()
                command = worker_command(self.bootstrap, prefix, "exactly-once", place, port)
                # They are stopped while the backlog is written, and must not be considered dead.
                command = ["env", "REKNIT_SESSION_SECONDS=60", *command]
                sides[port] = stack.enter_context(process(command, self.directory / f"{prefix}{number}.log"))
            until = time.monotonic() + PATIENCE_SECONDS
            while not all(has_partitions(port, PARTITIONS / count) for port in sides):
                if time.monotonic() > until:
                    raise FailedError(f"{prefix}: {count} workers do not share the partitions")
                await asyncio.sleep(0.2)
            for side in sides.values():
                side.send_signal(signal.SIGSTOP)
            await recorded.write_backlog(self.bootstrap, prefix + EVENTS, workload, PARTITIONS, lines)
            for side in sides.values():
                side.send_signal(signal.SIGCONT)
            return await pace(self.bootstrap, prefix + ITEMS, lines, *sides.values())

    async def scaling(self, workload):
        """One worker and two, in turns, on as many processors as there are."""
        await self.together(workload, 1)
        paces = {1: [], 2: []}
        for _ in range(self.options.rounds):
            for count, found in paces.items():
                found.append(await self.together(workload, count))
        one, two = (median(found) for found in paces.values())
        measure.report(
            what=f"two workers, {workload} claude-cli lines, {os.cpu_count()} cores for them and the broker",
            ours=str(two),
            theirs=f"one worker {one}",
            **measure.as_fast(two.rate / one.rate),
        )

    async def host(self, name, workload):
        """The pace of another host on a backlog of its own."""
        prefix = self.fresh()
        lines = int(self.options.lines * SHARE.get(name, TIMES[workload]))
        places = Places(
            bootstrap=self.bootstrap,
            group=f"{prefix}{name}",
            source=prefix + EVENTS,
            items=prefix + ITEMS,
            state=prefix + STATE,
            partitions=PARTITIONS,
        )
        await harness.make_topics(self.bootstrap, [places.source, places.items, places.state], PARTITIONS)
        await recorded.write_backlog(self.bootstrap, places.source, workload, PARTITIONS, lines)
        python = self.options.peers if name == "quix" else sys.executable
        command = [python, str(HERE / "hosts.py"), name, msgspec.json.encode(places).decode()]
        with process(command, self.directory / f"{prefix}log") as side:
            return await pace(self.bootstrap, places.items, lines, side)

    async def throughput(self, workload):
        """All sides on one workload, round by round, on a broker that is warm."""
        await self.worker("exactly-once", workload)
        sides = {
            "exactly-once": lambda: self.worker("exactly-once", workload),
            "bare": lambda: self.host("bare", workload),
            "faust": lambda: self.host("faust", workload),
            "at-least-once": lambda: self.worker("at-least-once", workload),
        }
        if has_quix(self.options.peers):
            sides["quix"] = lambda: self.host("quix", workload)
        else:
            measure.say(f"Quix Streams: {self.options.peers} does not have it (see --peers)")
        paces = {name: [] for name in sides}
        for _ in range(self.options.rounds):
            for name, run in sides.items():
                try:
                    paces[name].append(await run())
                except FailedError as error:
                    measure.say(f"{name} failed: {error}")
                    continue
                measure.say(f"  {workload}, {name}: {paces[name][-1]}")
        middle = {name: median(found) for name, found in paces.items() if found}
        for name in (*BUDGETS, "at-least-once"):
            if name in middle and "exactly-once" in middle:
                compare(workload, middle, name)

    async def latency(self):
        """Both deliveries in one run, taking turns, on a broker that is warm.

        A young one is still being compiled: its first transactions take five times as long as those a minute later.
        """
        for _ in range(2):
            await self.event_to_item("exactly-once")
        took = {"exactly-once": [], "at-least-once": []}
        for _ in range(self.options.rounds):
            for delivery in took:
                took[delivery] += await self.event_to_item(delivery)
        middle = {delivery: statistics.median(found) for delivery, found in took.items()}
        ratio = middle["exactly-once"] / middle["at-least-once"]
        measure.report(
            what=f"event to item, {PER_SECOND} events/s, read_committed",
            ours=f"exactly once {percentiles(took['exactly-once'])}",
            theirs=f"at least once {percentiles(took['at-least-once'])}",
            ratio=f"{ratio:.2f} times as long (p50)",
            budget=f"at most {LONGEST_LATENCY:g} times",
            met=ratio <= LONGEST_LATENCY,
        )

    async def event_to_item(self, delivery):
        """Milliseconds from an event's sending to the arrival of its first item at a reader."""
        prefix = self.fresh()
        worker = working(self.bootstrap, prefix, delivery, self.directory)
        async with worker, timed(self.bootstrap, prefix) as (send, took):
            async for number in paced(range(int(self.options.seconds * PER_SECOND)), PER_SECOND):
                await send(recorded.whole_message(b"session-%d" % number), number % PARTITIONS)
            await asyncio.sleep(1.5)
        return took[PER_SECOND:]  # the first second warms up


@contextlib.asynccontextmanager
async def working(bootstrap, prefix, delivery, directory, *, partitions=PARTITIONS, interval_ms=0):
    """A worker that is ready, on topics of its own."""
    apply_topics(bootstrap, prefix, partitions)
    port = kafka_broker.free_port()
    command = worker_command(bootstrap, prefix, delivery, directory, port)
    command = ["env", f"REKNIT_COMMIT_INTERVAL_MS={interval_ms}", *command]
    worker = harness.WorkerProcess(prefix, command, directory / f"{prefix}log", port)
    try:
        await worker.start().ready(120)
        yield worker
    finally:
        worker.end()


async def paced(what, per_second):
    """Each of these, N a second."""
    began = time.perf_counter()
    for number, each in enumerate(what):
        await asyncio.sleep(max(0.0, began + number / per_second - time.perf_counter()))
        yield each


@contextlib.asynccontextmanager
async def arrivals(bootstrap, topic, partitions=PARTITIONS):
    """Where to say when a key is sent, and the milliseconds that it took each to come to a reader of the topic."""
    sent_at, took = {}, []

    async def read(consumer):
        async for record in consumer:
            began = sent_at.pop(record.key, None)
            if began is not None:
                took.append((time.perf_counter() - began) * 1000)

    async with harness.reader(bootstrap) as consumer:
        consumer.assign([TopicPartition(topic, number) for number in range(partitions)])
        reading = asyncio.create_task(read(consumer))
        yield sent_at, took
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading


@contextlib.asynccontextmanager
async def timed(bootstrap, prefix, partitions=PARTITIONS):
    """Returns a function that sends an event, and the milliseconds until each was an item."""
    async with (
        AIOKafkaProducer(bootstrap_servers=bootstrap) as producer,
        arrivals(bootstrap, prefix + ITEMS, partitions) as (sent_at, took),
    ):

        async def send(event, partition):
            sent_at[event.key] = time.perf_counter()
            await producer.send(
                prefix + EVENTS, key=event.key, value=event.value, headers=recorded.headers(event), partition=partition
            )

        yield send, took


def median(found):
    return Pace(statistics.median(one.rate for one in found), statistics.median(one.cpu for one in found))


def compare(workload, middle, name):
    measure.report(
        what=f"worker, {workload} claude-cli lines, exactly once",
        ours=str(middle["exactly-once"]),
        theirs=f"{NAMES.get(name, f'the same worker {name}')} {middle[name]}",
        **measure.as_fast(middle["exactly-once"].rate / middle[name].rate, BUDGETS.get(name)),
    )


def percentiles(values):
    cuts = statistics.quantiles(values, n=100)
    return f"p50 {cuts[49]:.1f} ms, p99 {cuts[98]:.1f} ms"


def has_quix(python):
    return subprocess.run([python, "-c", "import quixstreams"], capture_output=True, check=False).returncode == 0


async def run(options, server, directory):
    bench = Bench(server, options.logs or directory, options)
    if "rate" in options.only:
        for workload in options.workloads:
            await bench.throughput(workload)
    if "two" in options.only:
        await bench.scaling("long")
    if "latency" in options.only:
        await bench.latency()


def main():
    parser = measure.arguments(__doc__)
    parser.add_argument("--lines", type=int, default=80_000)
    parser.add_argument("--workloads", nargs="+", choices=["recorded", "long"], default=["recorded", "long"])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=6.0, help="of load, for each measurement of latency")
    parser.add_argument("--only", nargs="+", choices=ALL, default=ALL)
    parser.add_argument("--logs", type=Path, help="keep the logs of all sides in this directory")
    options = parser.parse_args()
    measure.on_a_broker(lambda server, directory: run(options, server, directory))


if __name__ == "__main__":
    main()
