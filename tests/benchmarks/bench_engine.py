"""The engine against a bare client loop, and exactly-once against at-least-once; one broker, one run, ratios.

    python tests/benchmarks/bench_engine.py [--records 300000] [--seconds 10]

Both sides do the same work for each record: count per key, one output, state once for each key and batch, the source
offset. The bare loop has neither transactions nor recovery nor rebalances. Rates are taken between the first and the
last visible output, so the start does not count. Needs a real Kafka (`deploy/kafka`).
"""

import argparse
import asyncio
import multiprocessing
import statistics
import time
import uuid

import measure

# isort: split
import broker as kafka_broker
import harness
import toy_stage
from aiokafka import AIOKafkaProducer, TopicPartition
from bench_worker import PARTITIONS, arrivals, paced
from hosts import Places, bare, send

SOURCE = toy_stage.SOURCES[0]
STATE = SOURCE.replace(".v1", "-state.v1")
STATES = [source.replace(".v1", "-state.v1") for source in toy_stage.SOURCES]


async def prepare(bootstrap, prefix, records):
    """Make a pipeline's topics and a backlog of 200-byte records in the first source."""
    names = [*toy_stage.SOURCES, *STATES, toy_stage.OUT, "pipeline.dead-letters.v1"]
    await harness.make_topics(bootstrap, [prefix + name for name in names], PARTITIONS)
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, max_batch_size=1 << 18) as producer:
        for number in range(PARTITIONS):
            rows = ((b"k%d" % (n % 1000), b"x" * 200, []) for n in range(number, records, PARTITIONS))
            await asyncio.gather(*await send(producer, prefix + SOURCE, number, rows))


async def rate(bootstrap, prefix, records):
    tps = [TopicPartition(prefix + toy_stage.OUT, number) for number in range(PARTITIONS)]
    began = first = 0.0
    base = 0
    async with harness.reader(bootstrap) as consumer:
        while True:
            # Markers count as offsets too; the last record of a partition is what must be reached.
            seen = sum((await consumer.end_offsets(tps)).values())
            now = time.perf_counter()
            if seen and not began:
                began, base = now, seen
            if seen >= records:
                return (records - base) / (now - began)
            first = first or now
            if now - first > 90:
                raise SystemExit(f"only {seen} of {records} outputs after 90 s")
            await asyncio.sleep(0.02)


def bare_loop(bootstrap, prefix):
    """A hand-written loop."""
    places = Places(
        bootstrap=bootstrap,
        group=f"{prefix}bare",
        source=prefix + SOURCE,
        items=prefix + toy_stage.OUT,
        state=prefix + STATE,
        partitions=PARTITIONS,
    )
    bare(places, lambda number: toy_stage.ToyStage(SOURCE, number))


def fleet(bootstrap, prefix, directory, delivery):
    options = {"bootstrap_servers": bootstrap, "prefix": prefix, "partitions": PARTITIONS, "delivery": delivery}
    command = harness.toy_command(**options, state_dir=str(directory))
    return harness.Fleet(command, directory, kafka_broker.free_port)


async def engine_rate(bootstrap, directory, delivery, records):
    prefix = f"b{uuid.uuid4().hex[:6]}."
    await prepare(bootstrap, prefix, records)
    workers = fleet(bootstrap, prefix, directory, delivery)
    try:
        workers.start()
        return await rate(bootstrap, prefix, records)
    finally:
        workers.end()


async def bare_rate(bootstrap, records):
    prefix = f"b{uuid.uuid4().hex[:6]}."
    await prepare(bootstrap, prefix, records)
    process = multiprocessing.get_context("spawn").Process(target=bare_loop, args=(bootstrap, prefix), daemon=True)
    process.start()
    try:
        return await rate(bootstrap, prefix, records)
    finally:
        process.kill()
        process.join()


async def latency(bootstrap, directory, delivery, seconds, per_second=200):
    """Return milliseconds from a record's sending to its output's arrival at a read_committed reader."""
    prefix = f"b{uuid.uuid4().hex[:6]}."
    await prepare(bootstrap, prefix, PARTITIONS)
    workers = fleet(bootstrap, prefix, directory, delivery)
    try:
        await workers.start().ready()
        async with (
            AIOKafkaProducer(bootstrap_servers=bootstrap) as producer,
            arrivals(bootstrap, prefix + toy_stage.OUT) as (sent_at, took),
        ):
            async for n in paced(range(int(seconds * per_second)), per_second):
                key = b"key-%d" % n
                sent_at[key] = time.perf_counter()
                await producer.send(prefix + SOURCE, key=key, value=b"x" * 200, partition=n % PARTITIONS)
            await asyncio.sleep(1.5)
    finally:
        workers.end()
    return took[per_second:]  # the first second warms up


def percentiles(values):
    cuts = statistics.quantiles(values, n=100)
    return f"p50 {cuts[49]:.1f} ms, p90 {cuts[89]:.1f} ms, p99 {cuts[98]:.1f} ms"


async def run(options, server, directory):
    """Measure, alternating the sides so that a slow moment of the machine hits both, and print."""
    rates = {"bare": [], "exactly-once": [], "at-least-once": []}
    for _ in range(options.rounds):
        rates["bare"].append(await bare_rate(server.bootstrap, options.records))
        for delivery in ("exactly-once", "at-least-once"):
            rates[delivery].append(await engine_rate(server.bootstrap, directory, delivery, options.records))
    best = {name: max(values) for name, values in rates.items()}
    for name, value in best.items():
        print(f"{name:14s} {value:9,.0f} records/s  {value / best['bare']:.2f} x bare")  # noqa: T201 - a report
    middle = {}
    for delivery in ("at-least-once", "exactly-once"):
        took = await latency(server.bootstrap, directory, delivery, options.seconds)
        middle[delivery] = statistics.median(took)
        print(f"{delivery:14s} 200/s: {percentiles(took)}")  # noqa: T201 - a report
    ratio = middle["exactly-once"] / middle["at-least-once"]
    print(f"exactly-once takes {ratio:.2f} times as long (median)")  # noqa: T201 - a report


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    measure.on_a_broker(lambda server, directory: asyncio.wait_for(run(options, server, directory), 300))


if __name__ == "__main__":
    main()
