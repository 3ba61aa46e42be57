"""Every provider's streams at once, whole, in pieces, cut and retried, while a worker is killed."""

import asyncio
import json
from itertools import cycle, islice
from pathlib import Path

import harness
import msgspec
import pipeline_lab as lab
import pytest

from reknit.pipeline.demo.recordings import Events, fleet
from reknit.pipeline.registry import SOURCES
from reknit.topics import AGENT_TURNS, PROVIDER_EVENTS, PROVIDER_REQUESTS, SESSION_ITEMS
from reknit.topics.items import AnyItem
from reknit.topics.reducer import reduce

pytestmark = pytest.mark.broker

SESSIONS = 400
# At a time; the others wait for one of them to end.
AT_ONCE = 60
STREAMS = Path(__file__).parents[1] / "vectors/provider_streams.jsonl"
WAYS = ("single", "together", "bytes", "cut", "retried")
CHUNK = 97  # bytes; no event is so short that a record could not end inside it


def streams():
    """Recorded streams as (source, events as they arrive over the wire)."""
    rows = [json.loads(line) for line in STREAMS.read_text().splitlines()]
    found = [
        (
            row["source"],
            [f"data: {event}\n\n".encode() if row["framing"] == "sse" else event.encode() for event in row["events"]],
        )
        for row in rows
    ]
    runs = [step for recording in fleet() for step in recording.feed if isinstance(step, Events)]
    return found + [(run.source, [line.encode() for line in run.lines]) for run in runs]


def session(number, source, events, way):
    """One session: opened, asked, its stream, and what comes after it."""
    key = f"{source}/{way}/{number}".encode()
    headers = [("source", source.encode()), ("run", b"r1")]
    opened = {"type": "session.opened", "targets": [source], "policy": {"record_assistant": True}}
    yield AGENT_TURNS, key, json.dumps(opened).encode(), []
    yield AGENT_TURNS, key, turn("What is the weather in Paris?"), []
    for value, more in records(events, way):
        yield PROVIDER_EVENTS, key, value, headers + more
    yield PROVIDER_EVENTS, key, None, [*headers, ("exit", b"time limit" if way == "cut" else b"0")]
    yield AGENT_TURNS, key, turn("Thanks. And tomorrow?"), []


def records(events, way):
    half = len(events) // 2
    match way:
        case "single":
            yield from ((event, []) for event in events)
        case "together":
            yield from ((b"\n".join(events[at : at + 5]), []) for at in range(0, len(events), 5))
        case "bytes":
            data = b"".join(event if event.endswith(b"\n") else event + b"\n" for event in events)
            yield from ((data[at : at + CHUNK], [("framing", b"bytes")]) for at in range(0, len(data), CHUNK))
        case "cut":
            yield from ((event, []) for event in events[:half])
        case "retried":
            # A chat that is asked for again is answered under another id: one id is one message.
            again = [event.replace(b'"id":"chatcmpl-', b'"id":"chatcmpl-again-') for event in events]
            yield from ((event, []) for event in [*events[:half], *again])


def turn(words):
    return json.dumps({"type": "turn.appended", "message": {"role": "user", "content": words}}).encode()


def rows():
    """All sessions, interleaved record by record."""
    every = cycle((source, events, way) for way in WAYS for source, events in streams())
    waiting = (session(number, *given) for number, given in enumerate(islice(every, SESSIONS)))
    running = list(islice(waiting, AT_ONCE))
    while running:
        for one in list(running):
            row = next(one, None)
            if row is None:
                running.remove(one)
                running += islice(waiting, 1)
            else:
                yield row


async def test_all_sources_interleaved_with_a_worker_killed(broker, prefix, tmp_path, free_port):
    async with lab.workers(broker.bootstrap, prefix, tmp_path, free_port) as workers:
        pair = [workers.start(), workers.start()]
        async with lab.Feeder(broker.bootstrap, prefix, 600, rows()) as feeder:
            await asyncio.gather(*(worker.ready(60) for worker in pair))
            for victim in (0, 1, 0):
                await asyncio.sleep(2.5)
                pair[victim].kill()
                pair[victim] = workers.start()
            await asyncio.wait_for(feeder.wait(), 120)
        await lab.drained(broker.bootstrap, prefix)
        counted = await lab.audit(broker.bootstrap, prefix)
        items = await harness.read_all(broker.bootstrap, prefix + SESSION_ITEMS, lab.PARTITIONS)
        assert [await worker.stop() for worker in pair] == [0, 0]
    assert counted["sessions"] == SESSIONS
    assert counted[f"source {PROVIDER_EVENTS}"] == feeder.sent[PROVIDER_EVENTS] + counted["policies"]
    assert counted[f"source {AGENT_TURNS}"] == feeder.sent[AGENT_TURNS] + counted["recorded turns"]
    assert counted[PROVIDER_REQUESTS] > SESSIONS
    views_are_those_of_the_clean_run(items)


def views_are_those_of_the_clean_run(partitions):
    """In addition to the audit: the division of a stream into records, or a retry, does not show on the screen."""
    decoder = msgspec.json.Decoder(AnyItem)
    by_session = {}
    for record in (record for found in partitions for record in found):
        by_session.setdefault(record.key, []).append(decoder.decode(record.value))
    texts = {key: screen(items) for key, items in by_session.items()}
    every = cycle((source, events, way) for way in WAYS for source, events in streams())
    clean = {}
    compared = 0
    for number, (source, events, way) in enumerate(islice(every, SESSIONS)):
        shown = texts[f"{source}/{way}/{number}".encode()]
        whole = clean.setdefault((source, b"".join(events)), shown)
        # The screen of a program's run that is played one and a half times depends on its ids; see its own tests.
        if way in {"together", "bytes"} or (way == "retried" and not SOURCES[source].self_driving):
            assert shown == whole, (source, way, number)
            compared += 1
    assert compared > SESSIONS / 3


def screen(items):
    return "".join(entry.text for entry in reduce(items).blocks("text"))
