"""The same through librdkafka (confluent-kafka, and the clients of Go, C#, Rust and PHP that use it).

    python examples/librdkafka.py BOOTSTRAP PREFIX SESSION QUESTION

Its own default partitioner is not Kafka's: without ``partitioner=murmur2_random`` a session's turns and events are in
other partitions than the worker reads.
"""

from __future__ import annotations

import json
import sys
import uuid

from confluent_kafka import Consumer, Producer


def write(bootstrap: str, topic: str, session: str, question: str) -> None:
    """Open a session and append a turn."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "acks": "all",
            "compression.type": "zstd",
            "message.max.bytes": 64 * 1024 * 1024,
            "partitioner": "murmur2_random",
        }
    )
    opened = {"type": "session.opened", "model": "claude-sonnet-4-5", "params": {"max_tokens": 1024}}
    turn = {"type": "turn.appended", "id": uuid.uuid4().hex, "message": {"role": "user", "content": question}}
    for record in (opened, turn):
        headers = {"producer": "librdkafka-example/1.0"}
        producer.produce(topic, json.dumps(record).encode(), key=session.encode(), headers=headers)
    producer.flush()


def read(bootstrap: str, topic: str, session: str) -> bytes:
    """The first request of a session."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"librdkafka-example-{uuid.uuid4()}",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    try:
        while True:
            record = consumer.poll(1.0)
            if record is not None and record.error() is None and record.key() == session.encode():
                body: bytes = record.value()
                return body
    finally:
        consumer.close()


if __name__ == "__main__":
    bootstrap, prefix, session, question = sys.argv[1:]
    write(bootstrap, f"{prefix}agent.turns.v1", session, question)
    sys.stdout.buffer.write(read(bootstrap, f"{prefix}provider.requests.v1", session) + b"\n")
