"""Healing on a real broker: refusals in the log, workers that are killed while they heal, and one undisturbed run."""

import asyncio
import contextlib
import json
import os
import sys

import aiohttp
import harness
import pipeline_lab as lab
import pytest
from aiohttp import web
from aiokafka import AIOKafkaProducer
from stand_in import Provider, serving

from reknit.client import Brokers, Events, Requests
from reknit.pipeline.client.sender import Http, Sender
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
    """A history that asks for one request, at its end."""
    *earlier, last = history()
    for message in earlier:
        yield _turn(session, {"message": message, "request": False})
    yield _turn(session, {"message": last})


def _turn(session, fields):
    return AGENT_TURNS, session, json.dumps({"type": "turn.appended", **fields}).encode(), []


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


class Forgetful(Provider):
    """A provider that has forgotten its signatures: it refuses the first by a status, the others inside a stream."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        for at, message in enumerate(body["messages"]):
            if isinstance(message["content"], list) and message["content"][0]["type"] == "thinking":
                self.asked.append(body)
                return await self.refuse(request, f"messages.{at}.content.0: Invalid `signature` in `thinking` block")
        self.refusals = 0
        return await super().answer(request)

    async def refuse(self, request: web.Request, words: str) -> web.StreamResponse:
        error = {"type": "error", "error": {"type": "invalid_request_error", "message": words}}
        if len(self.asked) == 1:
            return web.json_response(error, status=400)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"event: error\ndata: %b\n\n" % json.dumps(error).encode())
        return response


@contextlib.asynccontextmanager
async def sending(broker, prefix, url):
    brokers = Brokers(bootstrap_servers=broker.bootstrap, prefix=prefix)
    async with (
        aiohttp.ClientSession() as http,
        Requests(brokers, group="senders") as read,
        Events(brokers, "anthropic") as events,
    ):
        running = asyncio.create_task(Sender(read, events, Http(http, url, {}), target="anthropic").run())
        try:
            yield
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_a_sender_has_its_refused_requests_healed(broker, prefix, tmp_path, free_port):
    provider = Forgetful()
    more = "[session.policy]\nrecord_assistant = true\n"
    async with lab.workers(broker.bootstrap, prefix, tmp_path, free_port, more=more) as fleet, serving(provider) as url:
        worker = fleet.start()
        await worker.ready(60)
        await feed(broker.bootstrap, prefix, turns(b"s"))
        await lab.drained(broker.bootstrap, prefix)
        async with sending(broker, prefix, url), asyncio.timeout(120):
            await _accepted(worker)
        page = _healed(worker)
    assert [str(body["messages"]).count("signature") for body in provider.asked[-3:]] == [2, 1, 0]
    assert page.count(b"1.0") == 2
    counted = await feedback(broker.bootstrap, prefix)
    assert [(each["target"], each["outcome"], each["rule"], each["refusals"]) for each in counted] == [
        ("anthropic", "healed", "healed_thinking_signature", 2)
    ]
    made = (await requests(broker.bootstrap, prefix))[b"s"]
    assert [headers["reason"] for headers, _ in made[-3:]] == [b"turn", b"healed", b"healed"]


async def feedback(bootstrap, prefix):
    """Return the lines that `reknit feedback count` prints."""
    environment = os.environ | {"REKNIT_BOOTSTRAP_SERVERS": bootstrap, "REKNIT_PREFIX": prefix}
    command = (sys.executable, "-m", "reknit", "feedback", "count", "--json")
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=asyncio.subprocess.PIPE)
    printed, _ = await asyncio.wait_for(process.communicate(), 240)
    return [json.loads(line) for line in printed.splitlines()]


async def _accepted(worker):
    """Wait until a healed request is accepted."""
    while b'outcome="accepted"' not in _healed(worker):  # noqa: ASYNC110  the metric is in another process
        await asyncio.sleep(0.2)


def _healed(worker):
    """Return the samples of the metric of healed requests that are not 0."""
    lines = worker.ask("/metrics")[1].encode().splitlines()
    return b"\n".join(line for line in lines if line.startswith(b"reknit_healed_total") and not line.endswith(b" 0.0"))
