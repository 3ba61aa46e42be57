"""The cost of a hot or hostile session for its neighbours: their p99 from turn to request, with 100 times their rate in
addition.

    python tests/benchmarks/bench_neighbours.py [--seconds 12] [--rounds 2]

All sessions are in one partition, the worst case. The hot session continues to talk, so its history and its requests
grow; the hostile one sends unreadable input; the rewinding one rewinds by a turn and repeats it; the reopening one
changes its system prompt constantly. For comparison, the same rate is spread over ordinary sessions: the difference to
the hot one is the cost of its bytes, since each of its requests holds its whole history.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import time

import bench_worker
import measure

# isort: split
from aiokafka import AIOKafkaProducer

TURNS, REQUESTS = "agent.turns.v1", "provider.requests.v1"
NEIGHBOURS, PER_SECOND, TIMES = 20, 0.5, 100
# Of an ordinary session that only fills the same rate.
TURNS_A_SESSION = 20
MOST = 2.0
# How many turns there are before the first rewind.
LONG = 200
OPENED = {"type": "session.opened", "model": "claude-sonnet-4-5", "params": {"max_tokens": 100}}


def said(number):
    """A turn of 300 bytes; users and assistants take turns."""
    message = {"role": ("user", "assistant")[number % 2], "content": f"{number} " + "word " * 60}
    return {"type": "turn.appended", "message": message}


def hot():
    yield b"hot", OPENED
    for number in itertools.count():
        yield b"hot", said(number)


def hostile():
    for number in itertools.count():
        yield b"hostile", {"type": "turn.appended", "message": {"role": "nobody", "content": "x" * 300 + str(number)}}


def rewinding():
    yield b"rewinding", OPENED
    yield from ((b"rewinding", said(number)) for number in range(LONG))
    for number in itertools.count():
        yield b"rewinding", said(LONG) if number % 2 else {"type": "history.rewound", "to": LONG}


def reopening():
    yield b"reopening", OPENED
    yield from ((b"reopening", said(number)) for number in range(LONG))
    for number in itertools.count():
        yield b"reopening", OPENED | {"system": f"be brief {number % 2}"}


def spread():
    for number in itertools.count():
        key, at = b"other-%d" % (number // (TURNS_A_SESSION + 1)), number % (TURNS_A_SESSION + 1)
        yield key, said(at - 1) if at else OPENED


LOADS = {
    "alone": None,
    "spread": spread,
    "hot": hot,
    "hostile": hostile,
    "rewinding": rewinding,
    "reopening": reopening,
}


class Run:
    """The neighbours in a topic of turns, and the additional load."""

    def __init__(self, topic, producer, sent_at):
        self.topic, self.producer, self.sent_at = topic, producer, sent_at

    async def send(self, key, event):
        await self.producer.send(self.topic, json.dumps(event).encode(), key=key, partition=0)

    async def talk(self, seconds):
        """All neighbours, evenly over the time; each says a user's turn and then an answer at once."""
        for number in range(NEIGHBOURS):
            await self.send(b"n%d" % number, OPENED)
        rate = NEIGHBOURS * PER_SECOND
        async for number in bench_worker.paced(range(int(seconds * rate)), rate):
            key = b"n%d" % (number % NEIGHBOURS)
            self.sent_at[key] = time.perf_counter()
            await self.send(key, said(0))
            await self.send(key, said(1))

    async def load(self, events):
        async for key, event in bench_worker.paced(events, PER_SECOND * TIMES):
            await self.send(key, event)


async def measured(bench, load):
    """Milliseconds from each neighbour's turn to its request."""
    prefix = bench.fresh()
    async with (
        bench_worker.working(bench.bootstrap, prefix, "exactly-once", bench.directory),
        AIOKafkaProducer(bootstrap_servers=bench.bootstrap) as producer,
        bench_worker.arrivals(bench.bootstrap, prefix + REQUESTS, 1) as (sent_at, took),
    ):
        run = Run(prefix + TURNS, producer, sent_at)
        beside = asyncio.create_task(run.load(LOADS[load]())) if LOADS[load] else None
        await run.talk(bench.options.seconds)
        await asyncio.sleep(1.5)
        if beside is not None:
            beside.cancel()
            await asyncio.gather(beside, return_exceptions=True)
    return took[NEIGHBOURS:]  # the first round warms up


async def compare(bench):
    await measured(bench, "spread")  # a young broker is still being compiled
    took = {load: [] for load in LOADS}
    for _ in range(bench.options.rounds):
        for load in LOADS:
            took[load] += await measured(bench, load)
            measure.say(f"  {load}: {bench_worker.percentiles(took[load])}")
    for load in ("hot", "hostile", "rewinding", "reopening"):
        for other in ("alone", "spread"):
            p99 = {name: statistics.quantiles(took[name], n=100)[98] for name in (load, other)}
            measure.report(
                what=f"turn to request beside a {load} session at {TIMES} times the rate, one partition",
                ours=bench_worker.percentiles(took[load]),
                theirs=f"{other} {bench_worker.percentiles(took[other])}",
                ratio=f"{p99[load] / p99[other]:.2f} times as long (p99)",
                budget=f"at most {MOST:g} times" if other == "spread" else "",
                met=p99[load] / p99[other] <= MOST if other == "spread" else None,
            )


def main():
    parser = measure.arguments(__doc__)
    parser.add_argument("--seconds", type=float, default=12.0, help="of load, for each measurement")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    measure.on_a_broker(lambda server, directory: compare(bench_worker.Bench(server, directory, options)))


if __name__ == "__main__":
    main()
