"""Records that any client can write, on both inputs: nothing that reads them stops, and nothing of them is lost."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import time
from collections import Counter
from contextlib import asynccontextmanager
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

import aiohttp
import confluent_kafka
import harness
import pipeline_lab as lab
import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.partitioner import DefaultPartitioner
from aiokafka.protocol.produce import ProduceRequest
from raw_batches import CODECS, raw_batch
from stand_in import Provider, serving

from reknit.client import Brokers, DeadLetters, Fixes, Items, Requests
from reknit.pipeline.kafka import connection
from reknit.topics import (
    AGENT_TURNS,
    DEAD_LETTERS,
    HISTORY_FIXES,
    PROVIDER_EVENTS,
    PROVIDER_REQUESTS,
    SESSION_ITEMS,
    TOPICS,
)
from reknit.topics import headers as names

pytestmark = pytest.mark.broker

INPUTS = (AGENT_TURNS, PROVIDER_EVENTS)
OUTPUTS = {PROVIDER_REQUESTS: Requests, SESSION_ITEMS: Items, HISTORY_FIXES: Fixes, DEAD_LETTERS: DeadLetters}
SOURCE = ("source", b"claude-cli")
FAULTS = {"null": None, "bytes": b"a\xff\xfe", "long": b"x" * (16 * 1024 + 1)}
HUGE = b"y" * 3_000_000
NAMES = ["other", *(value for name, value in vars(names).items() if name.isupper() and isinstance(value, str))]
# Headers that an event needs if it has them. A turn that has a value needs no header.
NEEDED = {"source", "run", "framing", "transcript", "status", "seq"}
PAST = 1_700_000_000_000
TIMES = [-1, 0, 1, -5, -(2**63), 2**62, 2**63 - 1]


class Row(NamedTuple):
    """A record, and the code of the dead letter that it becomes; "" where it is taken."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list
    code: str = ""
    time: int = PAST


def turn(words, **message):
    message = {"role": "user", "content": [{"type": "text", "text": words}, {"type": "text", "text": " "}], **message}
    return json.dumps({"type": "turn.appended", "message": message}).encode()


def event(words):
    message = {"id": "m", "role": "assistant", "content": [{"type": "text", "text": words}]}
    return json.dumps({"type": "assistant", "message": message}).encode()


def value_of(topic, words="hello"):
    return turn(words) if topic == AGENT_TURNS else event(words)


def rows():
    for topic in INPUTS:
        own = [] if topic == AGENT_TURNS else [SOURCE]
        kind = "turn" if topic == AGENT_TURNS else "event"
        for name in NAMES:
            for fault, bad in FAULTS.items():
                code = "bad_header" if kind == "event" and name in NEEDED else ""
                yield Row(topic, f"{kind} {name} {fault}".encode(), value_of(topic), [*own, (name, bad)], code)
        for name in ("other", "producer", "run"):
            code = "bad_header" if kind == "event" and name in NEEDED else ""
            yield Row(topic, f"{kind} {name} huge".encode(), value_of(topic), [*own, (name, HUGE)], code)
        for number, name in enumerate((b"\xff\xfeA", b"run\xc3", b"\xed\xa0\x80", "\ufffd".encode())):
            key = f"{kind} name {number}".encode()
            yield Row(topic, key, value_of(topic), [*own, (name, b"x")], "bad_header")
            yield Row(topic, key, value_of(topic, "later"), own)
        for key, code in ((None, "no_key"), (b"", "no_key"), (b"\xff\xfe", "bad_key"), (b"ok\xc3", "bad_key")):
            yield Row(topic, key, value_of(topic), own, code)
        for key in (b"k" * 100_000, "ü\n\0\u202e".encode()):
            yield Row(topic, key, value_of(topic), own)
        for number, at in enumerate(TIMES):
            yield Row(topic, f"{kind} time {number}".encode(), value_of(topic), own, "", at)
        for fault, bad in FAULTS.items():
            yield Row(topic, f"{kind} object {fault}".encode(), None, [("dataref", bad)], "bad_header")
    for fault, bad in FAULTS.items():
        yield Row(PROVIDER_EVENTS, f"policy {fault}".encode(), None, [("policy", bad)], "bad_header")
        # A run ends, whatever is said of the reason.
        yield Row(PROVIDER_EVENTS, f"exit {fault}".encode(), event("hello"), [SOURCE])
        yield Row(PROVIDER_EVENTS, f"exit {fault}".encode(), None, [SOURCE, ("exit", bad)])
    for value, code in ((None, "no_value"), (b"", "not_json"), (b"\xff", "not_json"), (b"null", "bad_record")):
        yield Row(AGENT_TURNS, b"turn value", value, [], code)
    for value, code in ((None, "no_value"), (b"", ""), (b"\xff", ""), (b"null", "")):
        yield Row(PROVIDER_EVENTS, b"event value", value, [SOURCE], code)


def good(words, time=PAST):
    return [Row(topic, b"good", value_of(topic, words), [SOURCE], "", time) for topic in INPUTS]


def partition_of(key):
    return DefaultPartitioner()(key, list(range(lab.PARTITIONS)), list(range(lab.PARTITIONS))) if key else 1


async def write(bootstrap, prefix, written, codec="zstd"):
    """Write rows, in as few batches as their times and partitions allow, and return where each is."""
    places = {}
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for topic, number in dict.fromkeys((row.topic, partition_of(row.key)) for row in written):
            await producer.partitions_for(prefix + topic)
            node = producer.client.cluster.leader_for_partition(TopicPartition(prefix + topic, number))
            own = [row for row in written if (row.topic, partition_of(row.key)) == (topic, number)]
            for _, group in groupby(own, key=attrgetter("time")):
                found = list(group)
                batch = raw_batch([(row.key, row.value, row.headers, row.time) for row in found], codec)
                request = ProduceRequest(None, -1, 10_000, [(prefix + topic, [(number, batch)])])
                answer = await producer.client.send(node, request)
                ((_, ((_, error, first, *_),)),) = answer.topics
                assert error == 0
                places |= {(topic, number, first + at): row for at, row in enumerate(found)}
    return places


class Pipeline:
    """A pipeline whose inputs hold all of these rows, and its commands."""

    def __init__(self, bootstrap, prefix, directory):
        self.bootstrap, self.prefix, self.directory = bootstrap, prefix, directory
        self.brokers = Brokers(bootstrap_servers=bootstrap, prefix=prefix)
        self.environment = os.environ | {
            "REKNIT_BOOTSTRAP_SERVERS": bootstrap,
            "REKNIT_PREFIX": prefix,
            "REKNIT_STATE_DIR": str(directory),
            "REKNIT_CONFIG": str(directory / "reknit.toml"),
        }

    @asynccontextmanager
    async def started(self, *arguments):
        """Run a command until the block ends, then end it by SIGTERM; gives a function that returns its output."""
        log = self.directory / f"{arguments[0]}.log"
        with log.open("wb") as err:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "reknit", *arguments), env=self.environment, stdout=err, stderr=err
            )
        try:
            yield log.read_text
            assert process.returncode is None
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), 30) == 0
        except BaseException as error:
            error.add_note(log.read_text()[-4000:])
            raise
        finally:
            if process.returncode is None:
                process.kill()

    async def run(self, *arguments, code=0):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "reknit", *arguments), env=self.environment, stdout=-1, stderr=-1
        )
        said, words = await asyncio.wait_for(process.communicate(), 120)
        assert process.returncode == code, words.decode() + said.decode()[:4000]
        assert b"Traceback" not in words
        return said.decode()

    async def lines(self, *arguments, **more):
        return [json.loads(line) for line in (await self.run(*arguments, **more)).splitlines()]

    async def read(self, topic):
        parts = await harness.read_all(self.bootstrap, self.prefix + topic, lab.PARTITIONS)
        return [record for part in parts for record in part]


async def test_nothing_that_a_client_can_write_stops_a_reader(broker, prefix, tmp_path, free_port):
    connection(Brokers(bootstrap_servers=broker.bootstrap))  # this process reads as the commands do
    named = [prefix + topic.name for topic in TOPICS]
    # Old times would make the broker delete records in the middle of the test.
    kept = {"message.timestamp.after.max.ms": str(2**63 - 1), "retention.ms": "-1"}
    await harness.make_topics(broker.bootstrap, named, lab.PARTITIONS, **kept)
    pipeline = Pipeline(broker.bootstrap, prefix, tmp_path)
    places = await write(broker.bootstrap, prefix, [*good("first"), *rows(), *good("last")])
    with lab.make_fleet(broker.bootstrap, prefix, tmp_path, free_port) as fleet:
        worker = fleet.start()
        await worker.ready(60)
        await lab.drained(broker.bootstrap, prefix, 120)
        await check_outputs(pipeline, places)
        check_metrics(worker.ask("/metrics")[1], places)
        await check_commands(pipeline, places)
        await check_replay(pipeline)
        await write_junk(pipeline)
        await check_readers(pipeline)
        await check_viewer(pipeline)
        await check_sender(pipeline)
        assert (worker.running, await worker.stop()) == (True, 0)


async def check_outputs(pipeline, places):
    """Each bad record is a dead letter, every other one is taken, and outputs hold UTF-8 only."""
    found = {topic: await pipeline.read(topic) for topic in OUTPUTS}
    expected = {place: row.code for place, row in places.items() if row.code}
    letters = {}
    for record in found[DEAD_LETTERS]:
        why = names.decode(record.headers, names.DeadLetterHeaders)
        letters[why.topic, why.partition, why.offset] = why.code
    assert letters == expected
    for record in (record for records in found.values() for record in records):
        for name, value in record.headers:
            assert (name.encode(), value.decode()) is not None
    taken = Counter(row.topic for row in places.values() if not row.code)
    assert len(found[PROVIDER_REQUESTS]) == taken[AGENT_TURNS]
    ours = [json.loads(record.value)["messages"] for record in found[PROVIDER_REQUESTS] if record.key == b"good"]
    assert [[part["text"] for part in messages[-1]["content"]] for messages in ours] == [["first"], ["last"]]
    shown = {record.key for record in found[SESSION_ITEMS]}
    assert shown == {row.key for row in places.values() if row.topic == PROVIDER_EVENTS and not row.code and row.value}
    await lab.audit(pipeline.bootstrap, pipeline.prefix)


def check_metrics(text, places):
    def total(name, **labels):
        wanted = {f'{label}="{value}"' for label, value in labels.items()}
        lines = re.findall(rf"^{name}{{(.*)}} (\S+)$", text, re.MULTILINE)
        return sum(float(value) for found, value in lines if wanted <= set(found.split(",")))

    assert total("reknit_poison_records_total") == 0
    for topic in INPUTS:
        codes = Counter(row.code for row in places.values() if row.topic == topic and row.code)
        assert {code: total("reknit_dead_letters_total", topic=topic, code=code) for code in codes} == codes
    turns = {name: total("reknit_headers_dropped_total", topic=AGENT_TURNS, header=name) for name in NAMES}
    counted = {"dataref", "judged", "producer", "traceparent", "tracestate"}
    assert turns == {name: (len(FAULTS) if name in counted else 0) + (name == "producer") for name in NAMES}
    events = {name: total("reknit_headers_dropped_total", topic=PROVIDER_EVENTS, header=name) for name in NAMES}
    counted = {"closed", "dataref", "expired", "forgotten", "origin", "policy", "producer", "request-id"}
    counted |= {"traceparent", "tracestate"}
    expected = {name: (len(FAULTS) if name in counted else 0) + (name == "producer") for name in NAMES}
    assert events == expected | {"exit": 2 * len(FAULTS)}


async def check_commands(pipeline, places):
    codes = Counter(row.code for row in places.values() if row.code)
    letters = await pipeline.lines("dead-letters", "list", "--json")
    assert Counter(letter["code"] for letter in letters) == codes
    assert len((await pipeline.run("dead-letters", "list")).splitlines()) >= codes.total()
    assert len(await pipeline.lines("dead-letters", "show", "--code", "bad_header", "--json")) == codes["bad_header"]
    counts = await pipeline.lines("dead-letters", "count", "--json")
    assert sum(count["letters"] for count in counts) == codes.total()
    for session in ("good", "turn name 0", "event run bytes", "turn time 4"):
        summary, *records = await pipeline.lines("inspect", session, "--records")
        assert summary["session"] == session
        assert records
    assert {each["session"] for each in await pipeline.lines("sessions", "list", "--json")} >= {"good"}
    report = json.loads(await pipeline.run("report", "--json"))
    assert {row["code"] for row in report["unjudged"]} == set(codes)
    (letter,) = [each for each in letters if each["session"] == "turn name 1"]
    (retried,) = await pipeline.lines("dead-letters", "retry", letter["letter"], "--json")
    assert retried["done"] == "retried"
    keyless = next(each for each in letters if each["code"] == "bad_key" and each["record"].startswith(AGENT_TURNS))
    (left,) = await pipeline.lines("dead-letters", "retry", keyless["letter"], "--json", code=2)
    assert left["left"] == "its key is not UTF-8, so it is of no session"
    await lab.drained(pipeline.bootstrap, pipeline.prefix)
    asked = [json.loads(r.value) for r in await pipeline.read(PROVIDER_REQUESTS) if r.key == b"turn name 1"]
    assert [len(body["messages"]) for body in asked] == [1, 2]


async def check_replay(pipeline):
    folder = pipeline.directory / "dry"
    await pipeline.run("replay", "--dry-run", str(folder), "--metrics-port", "0")
    *_, told = await pipeline.lines("diff", pipeline.prefix, str(folder), "--expect-none", "--json")
    assert told["summary"]["not_compared"] == {}
    assert (told["summary"]["compared"]["differ"], told["summary"]["compared"]["sessions"] > 100) == (0, True)


async def write_junk(pipeline):
    """Each output gets records that no worker writes, and both inputs one more good record after them."""
    bad = [(name, value) for value in FAULTS.values() for name in (*NAMES, b"\xff")]
    junk = [
        Row(topic, key, value, headers)
        for topic in OUTPUTS
        for key in (b"good", None, b"\xff")
        for value in (None, b"\xff", b"{}")
        for headers in ([], bad[:-40], bad[-40:])
    ]
    await write(pipeline.bootstrap, pipeline.prefix, junk)
    await write(pipeline.bootstrap, pipeline.prefix, good("behind", int(time.time() * 1000)))
    await lab.drained(pipeline.bootstrap, pipeline.prefix)


async def check_readers(pipeline):
    for topic, reader in OUTPUTS.items():
        count, raw = len(await pipeline.read(topic)), 0
        async with reader(pipeline.brokers) as found, asyncio.timeout(240):
            async for each in found:
                count, raw = count - 1, raw + bool(each.raw_headers)
                assert names.has_bad_name(each.raw_headers) or type(each.session) in {str, type(None)}
                if not count:
                    break
        assert raw


async def check_viewer(pipeline):
    sessions = ("good", "turn%20time%204", "turn%20name%200", "event%20run%20bytes")
    pages = ["/", "/sessions", "/letters", *(f"/sessions/{session}" for session in sessions)]
    async with pipeline.started("viewer", "--port", "0") as said, aiohttp.ClientSession() as http:
        found = {}

        async def is_read():
            urls = re.findall(r"http://127\.0\.0\.1:\d+", said())
            for page in pages if urls else ():
                async with http.get(urls[0] + page) as answer:
                    found[page] = answer.status, await answer.text()
            assert all(status < 500 for status, _ in found.values())
            return found and "behind" in found["/sessions/good"][1]

        await until(is_read)
        assert {page: status for page, (status, _) in found.items()} == dict.fromkeys(pages, 200)
        assert "bad_key" in found["/letters"][1]


async def check_sender(pipeline):
    provider = Provider()
    provider.refusals = 0

    async def is_answered():
        """Whether the request after the junk was sent, and its answer shown."""
        shown = [record.value or b"" for record in await pipeline.read(SESSION_ITEMS) if record.key == b"good"]
        return any(b"3 heard" in value for value in shown) and any("behind" in str(body) for body in provider.asked)

    async with serving(provider) as url, pipeline.started("send", "--to", url, "--source", "anthropic"):
        await until(is_answered)


async def until(condition):
    async with asyncio.timeout(120):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.2)


# Batches as other clients write them.

LARGE = 20_000_000


def of_librdkafka(bootstrap, prefix):
    """Turns and events of librdkafka with every codec, and a transaction that it aborts between two that it commits."""
    sessions = {}
    for codec in CODECS:
        producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "compression.type": codec})
        sessions[f"librdkafka {codec}"] = [words := f"{codec} " * 100]
        for topic in INPUTS:
            key, headers = f"librdkafka {codec}".encode(), [("source", b"claude-cli"), ("empty", None)]
            producer.produce(prefix + topic, value_of(topic, words), key, headers=headers, timestamp=PAST)
        assert producer.flush(30) == 0
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{prefix}librdkafka"})
    producer.init_transactions(30)
    for words, end in TRANSACTIONS.items():
        producer.begin_transaction()
        for topic in INPUTS:
            producer.produce(prefix + topic, value_of(topic, words), b"librdkafka transactions", headers=dict([SOURCE]))
        producer.commit_transaction(30) if end == "commit" else producer.abort_transaction(30)
    return sessions | {"librdkafka transactions": COMMITTED}


TRANSACTIONS = {"first": "commit", "second": "abort", "third": "abort", "fourth": "commit"}
COMMITTED = [words for words, end in TRANSACTIONS.items() if end == "commit"]


async def of_aiokafka(bootstrap, prefix):
    """Batches of every codec, large values, odd times, and transactions; some are aborted."""
    batches = [(f"aiokafka {codec}", f"{codec} " * 100, PAST, codec) for codec in CODECS]
    batches += [(f"large {codec}", os.urandom(LARGE // 2).hex(), PAST, codec) for codec in ("none", "zstd")]
    batches += [(f"time {number}", "hello", at, "none") for number, at in enumerate(TIMES)]
    for name, words, at, codec in batches:
        rows = [Row(topic, name.encode(), value_of(topic, words), [SOURCE], "", at) for topic in INPUTS]
        await write(bootstrap, prefix, rows, codec)
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"{prefix}aiokafka") as producer:
        for words, end in TRANSACTIONS.items():
            await producer.begin_transaction()
            for topic in INPUTS:
                value = value_of(topic, words)
                await producer.send(prefix + topic, value, key=b"aiokafka transactions", headers=[SOURCE])
            await (producer.commit_transaction() if end == "commit" else producer.abort_transaction())
    return {name: [words] for name, words, *_ in batches} | {"aiokafka transactions": COMMITTED}


async def test_batches_of_every_codec_size_and_time_and_aborted_transactions_are_read(
    broker, prefix, tmp_path, free_port
):
    inputs = [prefix + topic for topic in INPUTS]
    others = [prefix + topic.name for topic in TOPICS if prefix + topic.name not in inputs]
    await harness.make_topics(broker.bootstrap, others, lab.PARTITIONS)
    # As `reknit topics apply` makes the inputs: the timestamps of clients do not count.
    await harness.make_topics(broker.bootstrap, inputs, lab.PARTITIONS, **{"message.timestamp.type": "LogAppendTime"})
    began = time.time() * 1000
    sessions = await asyncio.to_thread(of_librdkafka, broker.bootstrap, prefix)
    sessions |= await of_aiokafka(broker.bootstrap, prefix)
    pipeline = Pipeline(broker.bootstrap, prefix, tmp_path)
    with lab.make_fleet(broker.bootstrap, prefix, tmp_path, free_port) as fleet:
        worker = fleet.start()
        await worker.ready(60)
        await lab.drained(broker.bootstrap, prefix, 120)
        counted = await lab.audit(broker.bootstrap, prefix)
        assert await worker.stop() == 0
    requests = {name: [] for name in sessions}
    for record in await pipeline.read(PROVIDER_REQUESTS):
        requests[record.key.decode()].append(json.loads(record.value)["messages"][-1]["content"][0]["text"])
    assert requests == sessions
    shown = {name: [] for name in sessions}
    for record in await pipeline.read(SESSION_ITEMS):
        item = json.loads(record.value)
        shown[record.key.decode()] += [item["text"]] if item["type"] == "item/completed" else []
    assert shown == sessions
    assert await pipeline.read(DEAD_LETTERS) == []
    assert counted["source agent.turns.v1"] == sum(map(len, sessions.values()))
    times = [record.timestamp for topic in INPUTS for record in await pipeline.read(topic)]
    assert began - 1000 < min(times) <= max(times) < time.time() * 1000 + 1000
