"""The same pure stage with other hosts: a hand-written aiokafka loop, an idiomatic Faust app, Quix Streams.

    python tests/benchmarks/hosts.py {bare|faust|quix|litellm} JSON

The first three read the source topic in a group of their own and run ``EventsStage``, which recovers and encodes the
items, and write items and state. They differ only in how a record reaches the stage and its outputs the broker. The
last one is the bare loop with other work, for turns: LiteLLM over the whole history. None of them has transactions
here: all are at-least-once, the usual first version.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from reknit.pipeline.stages.base import Record
from reknit.pipeline.stages.events import EventsStage

MODEL = "claude-sonnet-4-5"


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """Where a host reads and writes."""

    bootstrap: str
    group: str
    source: str
    items: str
    state: str
    partitions: int
    compression: str | None = None


def bare(places, stage=lambda _number: EventsStage()):
    """The stage of each partition in a loop."""
    stages = [stage(number) for number in range(places.partitions)]

    def process(number, fetched):
        result = stages[number].process([as_record(record) for record in fetched])
        rows = [(o.key, o.value, list(o.headers)) for o in result.outputs]
        return rows, [(key, value, []) for key, value in result.changes.items()]

    loop(places, process)


def litellm(places):
    """Messages kept by session, and at each that waits for the model all of them through LiteLLM once more."""
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # prices are of no interest here, and not to be fetched
    from litellm.litellm_core_utils.prompt_templates.factory import anthropic_messages_pt

    histories = defaultdict(list)

    def process(number, fetched):
        rows = []
        for record in fetched:
            history = histories[record.key]
            history.append(json.loads(record.value)["message"])
            if history[-1]["role"] != "assistant":
                messages = anthropic_messages_pt(list(history), model=MODEL, llm_provider="anthropic")
                body = json.dumps({"model": MODEL, "max_tokens": 1024, "messages": messages}).encode()
                rows.append((record.key, body, []))
        return rows, []

    loop(places, process)


def loop(places, process):
    """Consume, process, send whole batches, await delivery, commit."""
    import uvloop
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    async def main():
        consumer = AIOKafkaConsumer(
            places.source,
            bootstrap_servers=places.bootstrap,
            group_id=places.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            max_poll_records=2_000,
        )
        producer = AIOKafkaProducer(
            bootstrap_servers=places.bootstrap,
            acks="all",
            max_batch_size=1 << 18,
            max_request_size=1 << 21,
            compression_type=places.compression,
        )
        await consumer.start()
        await producer.start()
        while True:
            for tp, fetched in (await consumer.getmany(timeout_ms=500)).items():
                rows, changes = process(tp.partition, fetched)
                sent = await send(producer, places.items, tp.partition, rows)
                if changes:
                    sent += await send(producer, places.state, tp.partition, changes)
                await asyncio.gather(*sent)
                await consumer.commit({tp: fetched[-1].offset + 1})

    uvloop.install()
    asyncio.run(main())


def as_record(record):
    return Record(
        partition=record.partition,
        offset=record.offset,
        key=record.key,
        value=record.value,
        headers=record.headers,
        timestamp=record.timestamp,
    )


async def send(producer, topic, number, rows):
    futures, batch = [], producer.create_batch()
    for key, value, headers in rows:
        if batch.append(key=key, value=value, headers=headers, timestamp=None) is None:
            futures.append(await producer.send_batch(batch, topic, partition=number))
            batch = producer.create_batch()
            batch.append(key=key, value=value, headers=headers, timestamp=None)
    futures.append(await producer.send_batch(batch, topic, partition=number))
    return futures


def faust_app(places):
    """An agent, a table and a send for each output, as Faust's documentation shows them."""
    import faust

    app = faust.App(
        places.group,
        broker=f"kafka://{places.bootstrap}",
        store="memory://",
        topic_partitions=places.partitions,
        key_serializer="raw",
        value_serializer="raw",
        consumer_auto_offset_reset="earliest",
    )
    events = app.topic(places.source, key_type=bytes, value_type=bytes)
    items = app.topic(places.items, key_type=bytes, value_type=bytes)
    state = app.Table("state", key_type=bytes, value_type=bytes, partitions=places.partitions)
    stages = [EventsStage() for _ in range(places.partitions)]

    @app.agent(events)
    async def recover(stream):
        async for event in stream.events():
            message = event.message
            record = Record(
                partition=message.partition,
                offset=message.offset,
                key=message.key,
                value=message.value,
                headers=message.headers,
            )
            result = stages[message.partition].process([record])
            for key, value in result.changes.items():
                state[key] = value
            for output in result.outputs:
                await items.send(key=output.key, value=output.value)

    with tempfile.TemporaryDirectory() as directory:
        # The worker binds a port for its web server by default.
        sys.argv = ["faust", "--datadir", directory, "worker", "-l", "warn", "--without-web"]
        app.main()


def quix(places):
    """A stateful ``apply`` that expands to items, and ``to_topic``."""
    import quixstreams

    with tempfile.TemporaryDirectory() as directory:
        app = quixstreams.Application(
            broker_address=places.bootstrap,
            consumer_group=places.group,
            auto_offset_reset="earliest",
            state_dir=directory,
            loglevel="WARNING",
        )
        source = app.topic(places.source, key_deserializer="bytes", value_deserializer="bytes")
        items = app.topic(places.items, key_serializer="bytes", value_serializer="bytes")
        stages = [EventsStage() for _ in range(places.partitions)]

        def recover(value, key, timestamp, headers, state):
            number = int(key.split(b"-")[-2 if key.startswith(b"session-") else -1])
            record = Record(
                partition=number, offset=0, key=key, value=value, headers=tuple(headers or ()), timestamp=timestamp
            )
            result = stages[number].process([record])
            for name, change in result.changes.items():
                state.delete(name.hex()) if change is None else state.set_bytes(name.hex(), change)
            return [output.value for output in result.outputs]

        app.dataframe(source).apply(recover, expand=True, stateful=True, metadata=True).to_topic(items)
        app.run()


HOSTS = {"bare": bare, "faust": faust_app, "quix": quix, "litellm": litellm}

if __name__ == "__main__":
    HOSTS[sys.argv[1]](msgspec.json.decode(sys.argv[2], type=Places))
