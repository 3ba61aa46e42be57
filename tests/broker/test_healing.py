"""Healing on a real broker: refusals in the log, workers that are killed while they heal, and one undisturbed run."""

import json

import harness
import pipeline_lab as lab
import pytest
from aiokafka import AIOKafkaProducer

from reknit.topics import AGENT_TURNS, DEAD_LETTERS, PROVIDER_EVENTS, PROVIDER_REQUESTS

pytestmark = pytest.mark.broker

SESSIONS = 12
SIGNED = ("EqQBAAAAAAAAAAAA", "EqQBBBBBBBBBBBBB")
LIMIT = "max_tokens: 1024 > 900, which is the maximum allowed number of output tokens for this model"


def text(words):
    return {"type": "text", "text": words}


def history():
    for number, signature in enumerate(SIGNED):
        thought = {"type": "thinking", "thinking": f"Hm {number}.", "signature": signature}
        yield {"role": "user", "content": [text(f"Question {number}?")]}
        yield {"role": "assistant", "content": [thought, text(f"Answer {number}.")]}
    yield {"role": "user", "content": [text("Thanks.")]}


def turns(session):
    for message in history():
        yield AGENT_TURNS, session, json.dumps({"type": "turn.appended", "message": message}).encode(), []


def refusal(session, request_id, words):
    body = json.dumps({"type": "error", "error": {"type": "invalid_request_error", "message": words}}).encode()
    headers = [("source", b"anthropic"), ("run", request_id), ("request-id", request_id), ("status", b"400")]
    return PROVIDER_EVENTS, session, body, headers


async def feed(bootstrap, prefix, rows):
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all")
    await producer.start()
    try:
        for topic, key, value, headers in rows:
            await producer.send_and_wait(prefix + topic, value=value, key=key, headers=headers)
    finally:
        await producer.stop()


async def requests(bootstrap, prefix):
    """Return the requests of each session, in order."""
    found = {}
    for part in await harness.read_all(bootstrap, prefix + PROVIDER_REQUESTS, lab.PARTITIONS):
        for record in part:
            found.setdefault(record.key, []).append((dict(record.headers), record.value))
    return found


async def test_workers_that_are_killed_while_they_heal_publish_what_an_undisturbed_run_makes(
    broker, prefix, tmp_path, free_port
):
    sessions = [f"s{number}".encode() for number in range(SESSIONS)]
    async with lab.workers(broker.bootstrap, prefix, tmp_path, free_port) as fleet:
        worker = fleet.start()
        await worker.ready(60)
        await feed(broker.bootstrap, prefix, [row for session in sessions for row in turns(session)])
        await lab.drained(broker.bootstrap, prefix)
        for words in ("messages.1.content.0: Invalid `signature` in `thinking` block", LIMIT):
            last = {key: made[-1][0]["request-id"] for key, made in (await requests(broker.bootstrap, prefix)).items()}
            refusals = [refusal(session, last[session], words) for session in sessions]
            await feed(broker.bootstrap, prefix, refusals[: SESSIONS // 2])
            worker.kill()
            worker = fleet.start()
            # Each refusal is delivered twice.
            await feed(broker.bootstrap, prefix, refusals)
            await worker.ready(60)
            worker.kill()
            worker = fleet.start()
            await worker.ready(60)
            await lab.drained(broker.bootstrap, prefix)
        assert await worker.stop() == 0

    found = await requests(broker.bootstrap, prefix)
    for session in sessions:
        first, healed, last = (headers for headers, _ in found[session][-3:])
        assert [headers.get("reason") for headers in (first, healed, last)] == [b"turn", b"healed", b"healed"]
        assert (healed["heals"], last["heals"]) == (first["request-id"], healed["request-id"])
        assert last["supersedes"] == healed["request-id"]
        body = json.loads(found[session][-1][1])
        assert SIGNED[0] not in json.dumps(body)
        assert SIGNED[1] in json.dumps(body)
        assert body["max_tokens"] == 900
    letters = await harness.read_all(broker.bootstrap, prefix + DEAD_LETTERS, lab.PARTITIONS)
    assert [record for part in letters for record in part] == []
    counted = await lab.audit(broker.bootstrap, prefix)
    assert counted[f"source {PROVIDER_EVENTS}"] == 3 * SESSIONS
