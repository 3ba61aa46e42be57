"""The cost of a transaction per partition and event for the broker, and the savings by `commit_interval_ms`.

    python tests/benchmarks/bench_pacing.py [--rates 200 2000] [--partitions 4 12 48] [--intervals 0 25] [--seconds 6]

One broker, warm; for each number of partitions and each rate the same worker runs in turns: at least once, and exactly
once at each interval. The broker's processor time is counted over the load alone, so its idle work is part of every
side. Latencies are those of a ``read_committed`` reader. Needs Java 17 (`deploy/kafka`).
"""

from __future__ import annotations

import asyncio
import statistics

import bench_worker
import measure
import msgspec
import recorded

MOST_CPU_PACED, PACED_MS = 1.3, 25
MOST_LATENCY = 2.0


class Cost(msgspec.Struct, frozen=True):
    """The processor time for an event (µs), the broker's and the worker's, and the latency of its items (ms)."""

    broker_cpu: float
    worker_cpu: float
    p50: float
    p99: float

    def __str__(self):
        cpu = f"{self.broker_cpu:.0f} µs of CPU an event, the worker {self.worker_cpu:.0f} µs"
        return f"{cpu}, p50 {self.p50:.1f} ms, p99 {self.p99:.1f} ms"


class Load(msgspec.Struct, frozen=True):
    """Events a second over N partitions."""

    partitions: int
    rate: int
    seconds: float


async def cost(server, prefix, load, delivery, interval=0):
    """Run one worker under a load."""
    place, more = (server.bootstrap, prefix), {"partitions": load.partitions}
    async with (
        bench_worker.working(*place, delivery, server.directory.parent, interval_ms=interval, **more) as worker,
        bench_worker.timed(*place, **more) as (send, took),
    ):
        await drive(send, load, range(load.rate))  # the first second warms up
        await asyncio.sleep(0.5)
        took.clear()
        numbers = range(load.rate, int(load.rate * (load.seconds + 1)))
        processes = (server.pid or 0, worker.pid)
        spent = [bench_worker.cpu_seconds(pid) for pid in processes]
        await drive(send, load, numbers)
        await asyncio.sleep(1.5)
        used = [bench_worker.cpu_seconds(pid) for pid in processes]
        cpu = [(now - then) / len(numbers) * 1e6 for now, then in zip(used, spent, strict=True)]
    cuts = statistics.quantiles(took, n=100)
    return Cost(*cpu, cuts[49], cuts[98])


async def drive(send, load, numbers):
    async for number in bench_worker.paced(numbers, load.rate):
        await send(recorded.whole_message(b"session-%d" % number), number % load.partitions)


async def run(options, server, _directory):
    numbers = iter(range(10_000))
    sides = {"at least once": ("at-least-once", 0)}
    sides |= {f"{interval} ms": ("exactly-once", interval) for interval in options.intervals}
    await cost(server, "warm.", Load(4, 200, 6.0), "exactly-once")
    for partitions in options.partitions:
        for rate in options.rates:
            load = Load(partitions, rate, options.seconds)
            found = {name: [] for name in sides}
            for _ in range(options.rounds):
                for name, arguments in sides.items():
                    found[name].append(await cost(server, f"pace{next(numbers)}.", load, *arguments))
            compare(load, {name: middle(costs) for name, costs in found.items()})


def middle(costs):
    return Cost(*(statistics.median(getattr(one, name) for one in costs) for name in Cost.__struct_fields__))


def compare(load, found):
    base = found.pop("at least once")
    for name, one in found.items():
        cpu, latency = one.broker_cpu / base.broker_cpu, one.p50 / base.p50
        unpaced, paced = name == "0 ms", name == f"{PACED_MS} ms"
        measure.report(
            what=f"exactly once every {name}, {load.rate} events/s on {load.partitions} partitions",
            ours=str(one),
            theirs=f"at least once {base}",
            ratio=f"{cpu:.2f} times the broker's CPU, {latency:.2f} times as long (p50)",
            budget=f"at most {MOST_LATENCY:g} times as long"
            if unpaced
            else f"at most {MOST_CPU_PACED:g} times the CPU"
            if paced
            else "",
            met=latency <= MOST_LATENCY if unpaced else cpu <= MOST_CPU_PACED if paced else None,
        )


def main():
    parser = measure.arguments(__doc__)
    parser.add_argument("--rates", type=int, nargs="+", default=[200, 2_000])
    parser.add_argument("--partitions", type=int, nargs="+", default=[4, 12, 48])
    parser.add_argument("--intervals", type=int, nargs="+", default=[0, PACED_MS])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=6.0, help="of load, for each measurement")
    options = parser.parse_args()
    measure.on_a_broker(lambda server, directory: run(options, server, directory))


if __name__ == "__main__":
    main()
