"""A parked session of 1,000 records of 8 kB is released: growth of the worker's memory, longest wait of its loop.

    python tests/benchmarks/bench_release.py [--records 1000] [--bytes 8000]

Every second record is a user's turn, so it publishes a request that holds the whole history: 2 GB in all. The worker is
the product in a process of its own, on a real Kafka, with a task on its event loop that looks every few milliseconds
how long the loop was busy with something else. How long a slice blocks the loop is given in processor time of the
loop's thread, since what else runs on the machine is no part of it; the clock's time is given with it. Meanwhile other
sessions in all partitions send turns, whose requests are timed. Needs Java 17 (`deploy/kafka`).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import statistics
import sys
import time
from pathlib import Path

import measure

# isort: split
import bench_worker
import broker as kafka_broker
import harness
from aiokafka import AIOKafkaProducer, TopicPartition

TURNS, REQUESTS = "agent.turns.v1", "provider.requests.v1"
MOST_MB, MOST_MS = 150, 250
# Turns of neighbours.
PER_SECOND = 20
# Of a second; a slice that blocks the loop is seen as a longer wait than this.
LOOK_SECONDS = 0.005
SESSION = b"released"
SETTINGS = {"ON_DEAD_LETTER": "park", "SESSION__MODEL": "claude-sonnet-4-5", "SESSION__MAX_TOKENS": 100}
UNUSABLE = {"type": "turn.appended", "message": {"role": "nobody"}}
RELEASED = {"type": "session.released"}
WORDS = ["".join(random.Random(number).choices("abcdefghijklmnop", k=7)) for number in range(3_000)]  # noqa: S311  as below
# With this argument the file is the worker, and not the benchmark.
WORKER, PROGRAM = "--as-worker", Path(__file__).resolve()


def said(number, size):
    """A turn of about ``size`` bytes, of words that compress about as well as text does."""
    words = " ".join(random.Random(number).choices(WORDS, k=size // 8))  # noqa: S311  the same in every run
    message = {"role": ("user", "assistant")[number % 2], "content": f"{number} {words}"}
    return {"type": "turn.appended", "message": message}


# Inside the worker.


def watch_loop(file):
    """Write the longest waits whenever there is a longer one: milliseconds of processor time, and of the clock."""
    from reknit.pipeline.engine import services

    async def look():
        longest = {"processor": 0.0, "clock": 0.0}
        while True:
            clock, processor = time.perf_counter(), time.thread_time()
            await asyncio.sleep(LOOK_SECONDS)
            waits = {"processor": time.thread_time() - processor, "clock": time.perf_counter() - clock}
            if any(waits[name] > longest[name] for name in waits):
                longest = {name: max(longest[name], wait) for name, wait in waits.items()}
                file.write_text(json.dumps({name: wait * 1000 for name, wait in longest.items()}))
            if not file.exists():
                longest = {"processor": 0.0, "clock": 0.0}  # asked to begin again
                file.write_text(json.dumps(longest))

    plain = services.Health.on_start

    async def on_start(self):
        self.looking = asyncio.create_task(look())
        await plain(self)

    services.Health.on_start = on_start


def work():
    watch_loop(Path(sys.argv[2]))
    from reknit.pipeline.cli import main

    main(sys.argv[3:])


# Next to it.


class Memory:
    """A process's resident memory, and its peak since it was last asked to forget it."""

    def __init__(self, pid):
        self._status, self._forget = Path(f"/proc/{pid}/status"), Path(f"/proc/{pid}/clear_refs")

    def forget_peak(self):
        self._forget.write_text("5")

    def mb(self, name):
        line = next(line for line in self._status.read_text().splitlines() if line.startswith(name))
        return int(line.split()[1]) / 1000


async def park(producer, topic, options):
    sending = [
        await producer.send(topic, json.dumps(event).encode(), key=SESSION, partition=0)
        for event in [UNUSABLE, *(said(number, options.bytes) for number in range(options.records))]
    ]
    await asyncio.gather(*sending)


async def metric(worker, name):
    page = await asyncio.to_thread(worker.ask, "/metrics")
    return sum(float(line.rpartition(" ")[2]) for line in page[1].splitlines() if line.startswith(name))


async def until(worker, name, value):
    deadline = time.monotonic() + 400
    while await metric(worker, name) != value:
        if time.monotonic() > deadline or not worker.running:
            raise SystemExit(f"{name} does not become {value}\n{worker.tail()}")
        await asyncio.sleep(0.2)


async def talk(producer, topic, sent_at):
    """Other sessions in every partition, each with one turn, until this is cancelled."""
    async for number in bench_worker.paced(itertools.count(), PER_SECOND):
        key = b"neighbour-%d" % number
        sent_at[key] = time.perf_counter()
        partition = number % bench_worker.PARTITIONS
        await producer.send(topic, json.dumps(said(0, 300)).encode(), key=key, partition=partition)


async def release(options, server, directory):
    prefix, looks = "release.", directory / "waits.json"
    bench_worker.apply_topics(server.bootstrap, prefix)
    port = kafka_broker.free_port()
    command = bench_worker.worker_command(server.bootstrap, prefix, "exactly-once", directory, port)
    inside = [sys.executable, str(PROGRAM), WORKER, str(looks), *command[3:]]
    command = ["env", *(f"REKNIT_{name}={value}" for name, value in SETTINGS.items()), *inside]
    worker = harness.WorkerProcess("release", command, directory / "worker.log", port)
    topic = prefix + TURNS
    try:
        await worker.start().ready(120)
        async with AIOKafkaProducer(bootstrap_servers=server.bootstrap) as producer:
            await park(producer, topic, options)
            await until(worker, "reknit_turns_waiting", options.records)
            await asyncio.sleep(2)
            memory = Memory(worker.pid)
            before = memory.mb("VmRSS")
            memory.forget_peak()
            looks.unlink(missing_ok=True)
            await asyncio.sleep(0.2)
            async with bench_worker.arrivals(server.bootstrap, prefix + REQUESTS) as (sent_at, took):
                talking = asyncio.create_task(talk(producer, topic, sent_at))
                await asyncio.sleep(5)
                alone, took[:] = took.copy(), []
                began = time.perf_counter()
                await producer.send_and_wait(topic, json.dumps(RELEASED).encode(), key=SESSION, partition=0)
                await until(worker, "reknit_turns_waiting", 0)
                seconds = time.perf_counter() - began
                await asyncio.sleep(1)
                talking.cancel()
                await asyncio.gather(talking, return_exceptions=True)
            waits, peak = json.loads(looks.read_text()), memory.mb("VmHWM")
            count, size = await requests_of(server.bootstrap, prefix)
    finally:
        worker.end()
    lost = worker.log.read_text().count("is opened again")
    measure.say(f"  {count} requests, {size / 1e9:.2f} GB, in {seconds:.0f} s; {lost} partitions lost a transaction")
    what = f"release of {options.records:,} records of {options.bytes / 1000:g} kB"
    tell_costs(what, before, peak, waits)
    measure.report(
        what=f"{what}: turn to request of other sessions, {PER_SECOND} turns/s",
        ours=bench_worker.percentiles(took),
        theirs=f"before it {bench_worker.percentiles(alone)}",
        ratio=f"{statistics.median(took) / statistics.median(alone):.2f} times as long (p50)",
    )


async def requests_of(bootstrap, prefix):
    """How many requests of the session were published, and their bytes, one after the other."""
    place, count, size = TopicPartition(prefix + REQUESTS, 0), 0, 0
    async with harness.reader(bootstrap) as consumer:
        consumer.assign([place])
        end = (await consumer.end_offsets([place]))[place]
        while await consumer.position(place) < end:
            for records in (await consumer.getmany(timeout_ms=200, max_records=20)).values():
                own = [record.value for record in records if record.key == SESSION]
                count, size = count + len(own), size + sum(map(len, own))
    return count, size


def tell_costs(what, before, peak, waits):
    measure.report(
        what=f"{what}: memory of the worker",
        ours=f"{peak - before:.0f} MB more",
        theirs=f"{before:.0f} MB before it",
        ratio=f"{peak / before:.2f} times as much at most",
        budget=f"less than {MOST_MB} MB more",
        met=peak - before < MOST_MB,
    )
    measure.report(
        what=f"{what}: longest wait of the event loop",
        ours=f"{waits['processor']:.0f} ms of processor time",
        theirs=f"{waits['clock']:.0f} ms by the clock, with all that runs on the machine",
        ratio=f"{waits['processor'] / MOST_MS:.2f} of the budget",
        budget=f"at most {MOST_MS} ms",
        met=waits["processor"] <= MOST_MS,
    )


def main():
    parser = measure.arguments(__doc__)
    parser.add_argument("--records", type=int, default=1_000)
    parser.add_argument("--bytes", type=int, default=8_000)
    options = parser.parse_args()
    measure.on_a_broker(lambda server, directory: release(options, server, directory))


if __name__ == "__main__":
    work() if sys.argv[1:2] == [WORKER] else main()
