"""A backlog of Claude CLI runs: many parallel sessions on every partition.

Two workloads. ``recorded`` are the runs of the bundled fleet as they were recorded: short ones with faults, a third of
their lines notices, whole messages and results. ``long`` are answers of 400 deltas, the usual load of a fleet, made in
the form of the CLI (``bench_recover``).
"""

from __future__ import annotations

import asyncio
from itertools import cycle, islice
from pathlib import Path
from typing import NamedTuple

import msgspec
from aiokafka import AIOKafkaProducer
from bench_recover import cli_lines
from hosts import send

ROOT = Path(__file__).resolve().parents[2]

SOURCE = "claude-cli"
STREAMS = ROOT / "pipeline/demo/fleet/streams.jsonl"
# Sessions that a partition has at a time; when one is over, the next begins.
AT_ONCE = 32
# The sessions of each partition's last record begin so.
END = b"the-end-"


class Event(NamedTuple):
    """One record of provider events."""

    key: bytes
    value: bytes
    run: bytes


class _Run(msgspec.Struct):
    run: str = ""
    source: str = ""
    lines: tuple[str, ...] = ()


class _Recording(msgspec.Struct):
    feed: tuple[_Run, ...]


def runs(workload):
    """The lines of every run of a workload."""
    if workload == "long":
        return [cli_lines()]
    rows = msgspec.json.Decoder(_Recording).decode_lines(STREAMS.read_bytes())
    return [[line.encode() for line in run.lines] for row in rows for run in row.feed if run.source == SOURCE]


def backlog(workload, partition, count):
    """``count`` events of one partition, and as its last record a whole message of a session that has no other."""
    recorded = cycle(runs(workload))
    numbers = iter(range(10**9))

    def sessions():
        for lines in recorded:
            key = b"session-%d-%d" % (partition, next(numbers))
            yield iter([Event(key, line, b"run-1") for line in lines])

    fresh = sessions()
    open_ones = list(islice(fresh, AT_ONCE))
    made = 0
    while made < count - 1:
        for at, session in enumerate(open_ones):
            event = next(session, None)
            if event is None:
                open_ones[at] = next(fresh)
            elif made < count - 1:
                made += 1
                yield event
    yield whole_message(END + b"%d" % partition)


def whole_message(key):
    """A line that makes a text item at once, whatever came before: an answer that was never streamed."""
    message = {
        "id": "msg_" + key.decode(),
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5",
        "content": [{"type": "text", "text": "All done."}],
        "stop_reason": None,
    }
    line = {"type": "assistant", "message": message, "parent_tool_use_id": None, "uuid": f"uuid-{key.decode()}"}
    return Event(key, msgspec.json.encode(line), b"run-1")


async def write_backlog(bootstrap, topic, workload, partitions, records):
    """Write the backlog of every partition in whole batches."""
    size = {"max_batch_size": 1 << 18, "max_request_size": 1 << 20}
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, **size) as producer:
        for partition in range(partitions):
            events = backlog(workload, partition, records // partitions)
            rows = ((event.key, event.value, headers(event)) for event in events)
            await asyncio.gather(*await send(producer, topic, partition, rows))


def headers(event):
    """The headers that `reknit ingest` adds to a line."""
    return [("source", SOURCE.encode()), ("run", event.run)]
