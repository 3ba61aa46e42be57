"""Turns to requests on a real Kafka, exactly once, compared with a bare loop in which LiteLLM converts the whole
history each turn.

    python tests/benchmarks/bench_requests.py [--lengths 10 100 1000] [--turns 8000] [--peers PYTHON]

Both sides read the same backlog of sessions of N turns, in OpenAI's chat shape, which LiteLLM reads, and write a body
for Anthropic at each turn that waits for the model; both compress with zstd. The loop validates nothing, records
nothing, and forgets everything when it ends. Rates are taken as in ``bench_worker``. For Reknit, the cost of a body's
digest and compression is measured separately. Needs Java 17 (`deploy/kafka`).
"""

from __future__ import annotations

import hashlib
import subprocess
from itertools import chain, islice
from pathlib import Path

import bench_worker
import measure
import msgspec
import recorded
from histories import canonical, one_round, openai_chat

# isort: split
import cramjam
import harness
from aiokafka import AIOKafkaProducer
from hosts import MODEL, Places

HERE = Path(__file__).resolve().parent

TURNS, REQUESTS = "agent.turns.v1", "provider.requests.v1"
BUDGETS = {10: 1.0, 100: 4.0, 1000: 8.0}
SETTINGS = {
    "REKNIT_SESSION__MODEL": MODEL,
    "REKNIT_SESSION__MAX_TOKENS": "1024",
    "REKNIT_SESSION__TARGETS": "anthropic",
}


def turns(length):
    rounds = chain.from_iterable(one_round(number) for number in range(length))
    messages = openai_chat(list(islice(rounds, length)))
    return [msgspec.json.encode({"type": "turn.appended", "message": message}) for message in messages]


def backlog(partition, length, count):
    """``count`` turns of one partition, eight sessions side by side, and a session of one question as the last."""
    session = turns(length)
    at_once = min(8, max(1, count // length))
    made = 0
    while made < count:
        keys = [b"session-%d-%d" % (partition, made + number) for number in range(at_once)]
        for value in session:
            for key in keys:
                yield key, value
        made += at_once * length
    yield recorded.END + b"%d" % partition, turns(1)[0]


async def write_backlog(bootstrap, topic, length, count):
    """Write every partition's backlog; returns how many turns there are."""
    written = 0
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=20, max_batch_size=1 << 18) as producer:
        for partition in range(bench_worker.PARTITIONS):
            for key, value in backlog(partition, length, count // bench_worker.PARTITIONS):
                last = await producer.send(topic, key=key, value=value, partition=partition)
                written += 1
            await last
    return written


class Bench(bench_worker.Bench):
    """Turns to requests instead of events to items."""

    async def ours(self, length):
        prefix = self.fresh()
        bench_worker.apply_topics(self.bootstrap, prefix)
        count = await write_backlog(self.bootstrap, prefix + TURNS, length, self.options.turns)
        command = bench_worker.worker_command(self.bootstrap, prefix, "exactly-once", self.directory)
        return await self._pace(prefix, ["env", *(f"{k}={v}" for k, v in SETTINGS.items()), *command], count)

    async def litellm(self, length):
        prefix = self.fresh()
        places = Places(
            bootstrap=self.bootstrap,
            group=f"{prefix}litellm",
            source=prefix + TURNS,
            items=prefix + REQUESTS,
            state="",
            partitions=bench_worker.PARTITIONS,
            compression="zstd",
        )
        await harness.make_topics(self.bootstrap, [places.source, places.items], places.partitions)
        count = await write_backlog(self.bootstrap, places.source, length, self.options.turns)
        command = [self.options.peers, str(HERE / "hosts.py"), "litellm", msgspec.json.encode(places).decode()]
        return await self._pace(prefix, command, count)

    async def _pace(self, prefix, command, count):
        with bench_worker.process(command, self.directory / f"{prefix}log") as side:
            return await bench_worker.pace(self.bootstrap, prefix + REQUESTS, count, side)

    async def run(self):
        """Both sides in turns, for each length."""
        await self.ours(10)  # warms the broker up
        for length in self.options.lengths:
            paces = {"ours": [], "litellm": []}
            for _ in range(self.options.rounds):
                paces["ours"].append(await self.ours(length))
                paces["litellm"].append(await self.litellm(length))
            compare(length, *(bench_worker.median(found) for found in paces.values()))


def compare(length, ours, theirs):
    """Report how much faster Reknit is, and the bodies' share of its time."""
    ratio, budget = ours.rate / theirs.rate, BUDGETS.get(length)
    body = msgspec.json.encode({"model": MODEL, "max_tokens": 1024, "messages": canonical(max(1, length // 16))})
    digest = measure.seconds_a_call(lambda: hashlib.sha256(body).hexdigest())
    compress = measure.seconds_a_call(lambda: cramjam.zstd.compress(body))
    measure.report(
        what=f"turns to requests, sessions of {length:,} turns, exactly once",
        ours=f"{ours} (digest and compression of a middling body, {len(body) >> 10} KB: "
        f"{measure.duration(digest)} + {measure.duration(compress)})",
        theirs=f"bare loop around LiteLLM {theirs}",
        **measure.as_fast(ratio, budget),
    )


def main():
    parser = measure.arguments(__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[10, 100, 1_000])
    parser.add_argument("--turns", type=int, default=8_000, help="of all sessions together")
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    if subprocess.run([options.peers, "-c", "import litellm"], capture_output=True, check=False).returncode:
        measure.say(f"LiteLLM: {options.peers} does not have it (see --peers)")
        return
    measure.on_a_broker(lambda server, directory: Bench(server, directory, options).run())


if __name__ == "__main__":
    main()
