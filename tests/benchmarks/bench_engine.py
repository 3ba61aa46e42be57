"""The engine against a bare client loop, and exactly-once against at-least-once; one broker, one run, ratios.

    python tests/benchmarks/bench_engine.py [--records 300000] [--seconds 10]

Both sides do the same work per record: count per key, one output, state once a key and batch, the source offset. The
bare loop has neither transactions nor recovery nor rebalances. Rates are taken between the first and the last output
that a reader can see, so that starting costs nobody anything. Needs a real Kafka (`deploy/kafka`).
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
import uvloop
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from hosts import as_record, send

PARTITIONS = 4
SOURCE = toy_stage.SOURCES[0]
STATE = SOURCE.replace(".v1", "-state.v1")
STATES = [source.replace(".v1", "-state.v1") for source in toy_stage.SOURCES]


async def prepare(bootstrap, prefix, records):
    """Make a pipeline's topics and a backlog of 200-byte records in the first source."""
    names = [*toy_stage.SOURCES, *STATES, toy_stage.OUT, "pipeline.dead-letters.v1"]
    await harness.make_topics(bootstrap, [prefix + name for name in names], PARTITIONS)
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, max_batch_size=1 << 18)
    await producer.start()
    for number in range(PARTITIONS):
        batch = producer.create_batch()
        for n in range(number, records, PARTITIONS):
            row = {"key": b"k%d" % (n % 1000), "value": b"x" * 200, "timestamp": None}
            if batch.append(**row) is None:
                await (await producer.send_batch(batch, prefix + SOURCE, partition=number))
                batch = producer.create_batch()
                batch.append(**row)
        await (await producer.send_batch(batch, prefix + SOURCE, partition=number))
    await producer.stop()


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
    """Consume, process, send whole batches, await delivery, commit: what one writes by hand."""

    async def main():
        consumer = AIOKafkaConsumer(
            prefix + SOURCE,
            bootstrap_servers=bootstrap,
            group_id=f"{prefix}bare",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            max_poll_records=2_000,
        )
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", max_batch_size=1 << 18)
        await consumer.start()
        await producer.start()
        stages = [toy_stage.ToyStage(SOURCE, number) for number in range(PARTITIONS)]
        while True:
            for tp, fetched in (await consumer.getmany(timeout_ms=500)).items():
                result = stages[tp.partition].process([as_record(record) for record in fetched])
                rows = [(o.key, o.value, list(o.headers)) for o in result.outputs]
                sent = await send(producer, prefix + toy_stage.OUT, tp.partition, rows)
                changes = [(key, value, []) for key, value in result.changes.items()]
                sent += await send(producer, prefix + STATE, tp.partition, changes)
                await asyncio.gather(*sent)
                await consumer.commit({tp: fetched[-1].offset + 1})

    uvloop.install()
    asyncio.run(main())


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
    sent_at = {}
    took = []
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
    await producer.start()
    try:
        await workers.start().ready()
        async with harness.reader(bootstrap) as consumer:
            consumer.assign([TopicPartition(prefix + toy_stage.OUT, number) for number in range(PARTITIONS)])

            async def read():
                async for record in consumer:
                    sent = sent_at.pop(record.key, None)
                    if sent is not None:
                        took.append((time.perf_counter() - sent) * 1000)

            reading = asyncio.create_task(read())
            began = time.perf_counter()
            for n in range(int(seconds * per_second)):
                await asyncio.sleep(max(0.0, began + n / per_second - time.perf_counter()))
                key = b"key-%d" % n
                sent_at[key] = time.perf_counter()
                await producer.send(prefix + SOURCE, key=key, value=b"x" * 200, partition=n % PARTITIONS)
            await asyncio.sleep(1.5)
            reading.cancel()
    finally:
        await producer.stop()
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
