"""Replay and diff compared with the live worker, on one backlog of recorded Claude CLI lines: rate, processor time,
memory.

    python tests/benchmarks/bench_replay.py [--records 100000] [--rounds 2]

The live worker's and the replay's rates are taken between the first and the last output that a ``read_committed``
reader can see. A dry run has none: its time is that from its plan to its end. That of ``reknit diff``, which compares
the live outputs with the dry run's, is the whole of the command, its start included. So is that of ``reknit report``,
which reads as many fixes, dead letters and turns as there were lines. Memory is the maximum of each process. Needs Java
17 (`deploy/kafka`).
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from itertools import cycle, islice
from pathlib import Path

import bench_worker
import harness
import measure
import msgspec
import pipeline_lab as lab
import recorded
from aiokafka import AIOKafkaProducer, TopicPartition

from reknit.pipeline.stages.base import Record
from reknit.pipeline.stages.turns import TurnsStage
from reknit.topics import AGENT_TURNS, DEAD_LETTERS, HISTORY_FIXES

BUDGET = 0.8
MEMORY_BUDGET = 1.25


class Run(msgspec.Struct, frozen=True):
    """Lines a second, microseconds of processor time a line, and the most MiB that the process had."""

    rate: float
    cpu: float
    memory: float

    def __str__(self):
        return f"{self.rate:,.0f} lines/s ({self.cpu:.0f} µs CPU a line, {self.memory:.0f} MiB)"


def most_memory(pid):
    status = Path(f"/proc/{pid}/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), 0.0)


def used_to_end(side):
    """Seconds of processor time and the most MiB that a process had, once it has ended."""
    spent = memory = 0.0
    while side.poll() is None:
        spent, memory = max(spent, bench_worker.cpu_seconds(side.pid)), max(memory, most_memory(side.pid))
        time.sleep(0.02)
    return spent, memory


async def watched(bootstrap, topic, lines, side):
    """A process from its first visible output to its last, which the end of each partition's backlog leads to."""
    places = [TopicPartition(topic, number) for number in range(bench_worker.PARTITIONS)]
    base = seen = 0
    first = last = began = time.perf_counter()
    spent = so_far = memory = 0.0
    async with harness.reader(bootstrap) as reader:
        reader.assign(places)
        while side.poll() is None:
            total = sum((await reader.end_offsets(places)).values())
            now = time.perf_counter()
            if total > seen:
                if not base:
                    base, first, spent = total, now, bench_worker.cpu_seconds(side.pid)
                seen, last, so_far = total, now, bench_worker.cpu_seconds(side.pid)
            elif base and now - last > bench_worker.QUIET_SECONDS and await bench_worker.at_end(bootstrap, topic):
                break
            if now - max(last, began) > bench_worker.PATIENCE_SECONDS:
                break
            memory = max(memory, most_memory(side.pid))
            await asyncio.sleep(0.02)
    if not await bench_worker.at_end(bootstrap, topic):
        raise bench_worker.FailedError(f"{topic}: {seen} outputs, and not the last ones")
    done = lines * (1 - base / seen)
    return Run(done / (last - first), (so_far - spent) / done * 1e6, memory)


def whole_command(command, lines):
    """A command from its start to its end."""
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as side:
        spent, memory = used_to_end(side)
        took = time.perf_counter() - began
        told = side.stdout.read()
    if side.returncode:
        raise bench_worker.FailedError(f"{command}: status {side.returncode}, {told}")
    return Run(lines / took, spent / lines * 1e6, memory)


async def write_what_is_reported(bootstrap, prefix, count):
    """Write turns of the bundled fleet, and the fixes and dead letters that they lead to, N in total."""
    stage, turns = TurnsStage(lab.DEFAULTS), []
    for topic, key, value, headers in lab.script(1):
        if topic == AGENT_TURNS:
            turns.append(
                Record(partition=0, offset=len(turns), key=key, value=value, headers=tuple(headers), timestamp=0)
            )
    made = [output for output in stage.process(turns).outputs if output.topic in {HISTORY_FIXES, DEAD_LETTERS}]
    rows = [*((AGENT_TURNS, each) for each in turns), *((each.topic, each) for each in made)]
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, max_batch_size=1 << 18, linger_ms=5) as producer:
        for number, (topic, each) in enumerate(islice(cycle(rows), count)):
            key = b"%s/%d" % (each.key, number // len(rows))
            await producer.send(prefix + topic, each.value, key=key, headers=list(each.headers))
        await producer.flush()


class Bench:
    def __init__(self, server, directory, options):
        self.bootstrap, self.directory, self.options = server.bootstrap, directory, options
        self.runs = {"live": [], "replay": [], "dry run": [], "diff": [], "report": []}

    async def round(self, number):
        prefix, bootstrap = f"round{number}.", self.bootstrap
        bench_worker.apply_topics(bootstrap, prefix)
        events = prefix + bench_worker.EVENTS
        await recorded.write_backlog(bootstrap, events, "recorded", bench_worker.PARTITIONS, self.options.records)
        lines = self.options.records
        command = bench_worker.worker_command(bootstrap, prefix, "exactly-once", self.directory)
        with bench_worker.process(command, self.directory / f"{prefix}live.log") as side:
            self.runs["live"].append(await watched(bootstrap, prefix + bench_worker.ITEMS, lines, side))
        command = self.command(prefix, "--id", "bench")
        with bench_worker.process(command, self.directory / f"{prefix}replay.log") as side:
            topic = f"{prefix}replay.bench.{bench_worker.ITEMS}"
            self.runs["replay"].append(await watched(bootstrap, topic, lines, side))
        self.runs["dry run"].append(await asyncio.to_thread(self.dry_run, prefix, lines))
        place = ("--bootstrap-servers", self.bootstrap)
        diff = bench_worker.reknit("diff", *place, "--expect-none", prefix, str(self.directory / f"{prefix}dry"))
        self.runs["diff"].append(await asyncio.to_thread(whole_command, diff, lines))
        await write_what_is_reported(bootstrap, prefix, lines)
        report = bench_worker.reknit("report", *place, "--prefix", prefix, "--json")
        self.runs["report"].append(await asyncio.to_thread(whole_command, report, lines))

    def command(self, prefix, *more):
        place = ("--bootstrap-servers", self.bootstrap, "--prefix", prefix, "--metrics-port", "0")
        return bench_worker.reknit("replay", *place, "--state-dir", str(self.directory / "state"), *more)

    def dry_run(self, prefix, lines):
        command = self.command(prefix, "--dry-run", str(self.directory / f"{prefix}dry"))
        spent = began = 0.0
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as side:
            for line in side.stderr:
                if "into folder" in line:
                    began, spent = time.perf_counter(), bench_worker.cpu_seconds(side.pid)
                    break
            so_far, memory = used_to_end(side)
            took = time.perf_counter() - began
            told = json.loads(side.stdout.read())
        if side.returncode or told["partitions_left"]:
            raise bench_worker.FailedError(f"dry run: status {side.returncode}, {told}")
        return Run(lines / took, (so_far - spent) / lines * 1e6, memory)

    def report(self):
        middle = {name: sorted(runs, key=lambda run: run.rate)[len(runs) // 2] for name, runs in self.runs.items()}
        live = middle["live"]
        for name in ("replay", "dry run", "diff", "report"):
            found = middle[name]
            for what, ratio, budget, met in (
                ("rate", found.rate / live.rate, f"at least {BUDGET:g}", found.rate >= BUDGET * live.rate),
                (
                    "memory",
                    found.memory / max(1.0, live.memory),
                    f"at most {MEMORY_BUDGET:g}",
                    found.memory <= MEMORY_BUDGET * live.memory,
                ),
            ):
                measure.report(
                    what=f"{name} of {self.options.records:,} recorded claude-cli lines, {what}",
                    ours=str(found),
                    theirs=f"live worker {live}",
                    ratio=f"{ratio:.2f}",
                    budget=budget,
                    met=met,
                )


def main():
    parser = measure.arguments(__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()

    async def work(server, directory):
        bench = Bench(server, directory, options)
        for number in range(options.rounds):
            await bench.round(number)
            measure.say("  " + ", ".join(f"{name} {runs[-1]}" for name, runs in bench.runs.items()))
        bench.report()

    measure.on_a_broker(work)


if __name__ == "__main__":
    main()
