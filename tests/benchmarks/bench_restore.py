"""Reading state back: a changelog to its end, directly into a stage, on a real Kafka.

    python tests/benchmarks/bench_restore.py [--records 400000] [--rounds 3]

The changelog is written as workers write it, in transactions, one record for each session. For comparison, a bare
client reads the same log into a dictionary, without positions and deadlines. Needs Java 17 (`deploy/kafka`).
"""

import statistics
import time

import measure

# isort: split
import harness
import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from hosts import send

from reknit.pipeline.engine.state import restore
from reknit.pipeline.stages.base import POSITION
from reknit.pipeline.stages.events import EventsStage
from reknit.pipeline.streams.session import Recovery

TOPIC = "pipeline.events-state.v1"
A_TRANSACTION = 2_000
BUDGET = 200_000  # records a second


async def write(bootstrap, records):
    """The changelog of a partition: a record for each of N sessions, and the position in its source."""
    value = msgspec.msgpack.encode([Recovery().snapshot(), None, 0])
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap, transactional_id="bench", max_batch_size=1 << 18, compression_type="zstd"
    ) as producer:
        for first in range(0, records, A_TRANSACTION):
            rows = [(b"esession-%d" % number, value, []) for number in range(first, first + A_TRANSACTION)]
            async with producer.transaction():
                await send(producer, TOPIC, 0, [*rows, (POSITION, b"%d" % first, [])])


async def ours(bootstrap):
    """Records a second into the state of a stage."""
    stage = EventsStage()
    done = await restore({"bootstrap_servers": bootstrap}, TOPIC, 0, stage.restore, committed_only=True)
    return done.records / done.seconds


async def bare(bootstrap):
    """Records a second into a dictionary."""
    place, found = TopicPartition(TOPIC, 0), {}
    began, count = time.monotonic(), 0
    async with harness.reader(bootstrap) as reader:
        assert isinstance(reader, AIOKafkaConsumer)
        reader.assign([place])
        end = (await reader.end_offsets([place]))[place]
        while await reader.position(place) < end:
            for records in (await reader.getmany(timeout_ms=50)).values():
                count += len(records)
                for record in records:
                    found[record.key] = record.value
    return count / (time.monotonic() - began)


async def run(records, rounds, server):
    """Both sides, round by round, on one broker."""
    await harness.make_topics(server.bootstrap, [TOPIC], 1)
    await write(server.bootstrap, records)
    rates = {"ours": [], "bare": []}
    for _ in range(rounds):
        rates["ours"].append(await ours(server.bootstrap))
        rates["bare"].append(await bare(server.bootstrap))
    middle = {name: statistics.median(found) for name, found in rates.items()}
    measure.report(
        what=f"state recovery, {records:,} sessions of one partition",
        ours=f"{middle['ours']:,.0f} records/s",
        theirs=f"bare client into a dictionary {middle['bare']:,.0f} records/s",
        ratio=f"{middle['ours'] / middle['bare']:.2f} times as fast",
        budget=f"at least {BUDGET:,} records/s",
        met=middle["ours"] >= BUDGET,
    )


def main():
    parser = measure.arguments(__doc__)
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    measure.on_a_broker(lambda server, _: run(options.records, options.rounds, server))


if __name__ == "__main__":
    main()
