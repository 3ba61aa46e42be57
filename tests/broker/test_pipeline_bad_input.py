"""Hostile records on each topic and brokers that are not as they should be: dead letters and typed errors, no loss."""

import asyncio
import hashlib
import json
import os
import subprocess
import sys

import harness
import pipeline_lab as lab
import pytest
from aiokafka import AIOKafkaProducer

from reknit.topics import AGENT_TURNS, DEAD_LETTERS, LARGEST_INPUT, PROVIDER_EVENTS, PROVIDER_REQUESTS, SESSION_ITEMS

pytestmark = pytest.mark.broker

SOURCE = [("source", b"claude-cli"), ("run", b"r")]


def appended(content):
    return json.dumps({"type": "turn.appended", "message": {"role": "user", "content": content}}).encode()


def said(content, message_id):
    message = {"id": message_id, "role": "assistant", "content": [{"type": "text", "text": content}]}
    return json.dumps({"type": "assistant", "message": message}).encode()


# Values that become dead letters, with the code.
BAD_TURNS = [
    (b"\x00\xff binary noise", "not_json"),
    (b"not json", "not_json"),
    (b"null", "bad_record"),
    (b"[]", "bad_record"),
    (b'{"type":"nobody.knows"}', "bad_record"),
    (b'{"type":"turn.appended","message":17}', "wrong_type"),
    (b'{"type":"turn.appended","message":{"role":"wizard","content":"x"}}', "unknown_role"),
    (b'{"type":"turn.appended","message":{"role":"user","content":' + b"[" * 1000 + b"]" * 1000 + b"}}", "too_deep"),
    (None, "no_value"),
]
# Values that the stream side passes on as items.
BAD_EVENTS = [
    b"\x00\xff binary noise",
    b"not json",
    b"null",
    b'{"type":"nobody.knows"}',
    b"[" * 1000,
    b'{"type":"assistant","message":17}',
    b'{"type":"user","x":"\\ud800"}',
    b"x" * 10_000_000,
]


async def produce(bootstrap, rows):
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", max_request_size=LARGEST_INPUT + 4096)
    await producer.start()
    try:
        for topic, key, value, headers in rows:
            await producer.send_and_wait(topic, value=value, key=key, headers=headers)
    finally:
        await producer.stop()


async def read(bootstrap, topic):
    return [record for part in await harness.read_all(bootstrap, topic, lab.PARTITIONS) for record in part]


async def test_hostile_records_become_dead_letters_or_items_and_every_session_continues(
    broker, prefix, tmp_path, free_port
):
    await lab.make_topics(broker.bootstrap, prefix)
    turns, events = prefix + AGENT_TURNS, prefix + PROVIDER_EVENTS
    rows = [(turns, b"victim", appended("first"), []), (turns, b"neighbour", appended("first"), [])]
    rows += [(turns, b"victim", value, []) for value, _ in BAD_TURNS]
    rows += [(turns, None, appended("nobody's"), [])]
    rows += [(turns, b"victim", appended("last"), []), (turns, b"neighbour", appended("last"), [])]
    rows += [(events, b"victim", value, SOURCE) for value in BAD_EVENTS]
    rows += [(events, b"victim", b"{}", [("source", b"nobody")]), (events, None, b"{}", SOURCE)]
    rows += [(events, b"victim", said("still here", "m1"), SOURCE)]
    await produce(broker.bootstrap, rows)
    with lab.make_fleet(broker.bootstrap, prefix, tmp_path, free_port) as fleet:
        worker = fleet.start()
        await worker.ready(60)
        await lab.drained(broker.bootstrap, prefix)
        counted = await lab.audit(broker.bootstrap, prefix)
        assert await worker.stop() == 0
    letters = [dict(record.headers) for record in await read(broker.bootstrap, prefix + DEAD_LETTERS)]
    codes = sorted(letter["reknit.error.code"].decode() for letter in letters)
    assert codes == sorted([*[code for _, code in BAD_TURNS], "no_key", "no_key", "unknown_source"])
    assert all(
        {"reknit.error.partition", "reknit.error.offset", "reknit.error.topic"} <= letter.keys() for letter in letters
    )
    requests = [r for r in await read(broker.bootstrap, prefix + PROVIDER_REQUESTS) if r.key == b"victim"]
    assert [message["content"] for message in json.loads(requests[-1].value)["messages"]] == ["first", "last"]
    items = [json.loads(r.value) for r in await read(broker.bootstrap, prefix + SESSION_ITEMS)]
    assert [item["text"] for item in items if item.get("text") == "still here"]
    unrecognised = [item for item in items if item["type"] == "agent/unrecognized"]
    assert len(unrecognised) == len(BAD_EVENTS)
    assert counted[DEAD_LETTERS] == len(letters)


async def test_a_record_of_64_mib_goes_through(broker, prefix, tmp_path, free_port):
    for topic in lab.TOPICS:
        size = str(next(s.value for s in topic.settings if s.name == "max.message.bytes"))
        await harness.make_topics(
            broker.bootstrap, [prefix + topic.name], lab.PARTITIONS, **{"max.message.bytes": size}
        )
    large = appended("x" * (LARGEST_INPUT - 8192))
    rows = [(prefix + AGENT_TURNS, b"large", large, []), (prefix + AGENT_TURNS, b"large", appended("small"), [])]
    await produce(broker.bootstrap, rows)
    with lab.make_fleet(broker.bootstrap, prefix, tmp_path, free_port) as fleet:
        worker = fleet.start()
        await worker.ready(60)
        await lab.drained(broker.bootstrap, prefix, 120)
        assert await worker.stop() == 0
    # Nothing larger than the provider's own limit is sent: the record is named by its digest, or is whole.
    letters = await read(broker.bootstrap, prefix + DEAD_LETTERS)
    headers = [dict(letter.headers) for letter in letters]
    assert [h["reknit.error.rule"] for h in headers] == [b"size", b"size"]
    assert hashlib.sha256(letters[0].value).digest() == hashlib.sha256(large).digest()
    assert not await read(broker.bootstrap, prefix + PROVIDER_REQUESTS)


def reknit(*arguments, **environment):
    command = [sys.executable, "-m", "reknit", *arguments]
    return subprocess.run(
        command, input="{}\n", capture_output=True, text=True, check=False, timeout=120, env=os.environ | environment
    )


COMMANDS = [
    ("worker", "--metrics-port", "0"),
    ("topics", "apply"),
    ("ingest", "events", "--session", "s"),
    ("ingest", "turns", "--session", "s"),
    ("inspect", "s"),
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: " ".join(arguments[:2]))
def test_a_broker_that_is_down_is_the_same_sentence_everywhere_and_exit_code_75(arguments, tmp_path, free_port):
    done = reknit(*arguments, "--bootstrap-servers", f"127.0.0.1:{free_port()}", REKNIT_STATE_DIR=str(tmp_path))
    assert done.returncode == 75
    assert "Traceback" not in done.stderr
    assert "no Kafka broker answers at 127.0.0.1:" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("arguments", [COMMANDS[0], *COMMANDS[2:]], ids=lambda arguments: " ".join(arguments[:2]))
def test_missing_topics_are_a_sentence_that_names_the_remedy(broker, prefix, arguments, tmp_path):
    done = reknit(
        *arguments, "--bootstrap-servers", broker.bootstrap, "--prefix", prefix, REKNIT_STATE_DIR=str(tmp_path)
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "reknit topics apply" in done.stderr


async def test_another_partition_count_is_refused_by_apply(broker, prefix):
    await lab.make_topics(broker.bootstrap, prefix)
    options = ("--bootstrap-servers", broker.bootstrap, "--prefix", prefix, "--partitions", "7")
    applied = await asyncio.to_thread(reknit, "topics", "apply", *options)
    assert applied.returncode == 4
    assert "Traceback" not in applied.stderr
