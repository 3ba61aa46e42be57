"""Exact records in, exact records, metrics and state out: the main job on a real broker."""

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import harness
import msgspec
import pipeline_lab as lab
import pytest
from aiokafka import AIOKafkaProducer
from prometheus_client.parser import text_string_to_metric_families

from reknit.pipeline import __version__
from reknit.topics import AGENT_TURNS, HISTORY_FIXES, PROVIDER_EVENTS, PROVIDER_REQUESTS, SESSION_ITEMS
from reknit.topics.items import AnyItem
from reknit.topics.reducer import reduce

pytestmark = pytest.mark.broker

GEMINI_RUNS = Path(__file__).parents[1] / "vectors" / "gemini_cli_runs.jsonl"

CALL = {"type": "tool_use", "id": "call.1", "name": "ls", "input": {"path": "/"}}


def user(*blocks):
    return {"role": "user", "content": list(blocks)}


def text(words):
    return {"type": "text", "text": words}


def turn(message, **fields):
    return json.dumps({"type": "turn.appended", "message": message, **fields}).encode()


def stream(*blocks, message_id):
    """A blackout: the whole message, and no stream of it."""
    message = {"id": message_id, "role": "assistant", "model": "m", "content": list(blocks)}
    return [json.dumps({"type": "assistant", "message": message, "uuid": message_id}).encode()]


async def feed(bootstrap, prefix, rows):
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all")
    await producer.start()
    try:
        for topic, value, headers in rows:
            await producer.send_and_wait(prefix + topic, value=value, key=b"s", headers=headers)
    finally:
        await producer.stop()


async def read(bootstrap, topic):
    return [record for part in await harness.read_all(bootstrap, topic, lab.PARTITIONS) for record in part]


def sample(page, name, **labels):
    for family in text_string_to_metric_families(page):
        for found in family.samples:
            if found.name == name and labels.items() <= found.labels.items():
                return found.value
    raise AssertionError(f"no {name}{labels}")


async def test_a_session_from_its_opening_to_the_request_that_its_stream_feeds(broker, prefix, tmp_path, free_port):
    await lab.make_topics(broker.bootstrap, prefix)
    run = [("source", b"claude-cli"), ("run", b"r1")]
    opened = {"type": "session.opened", "targets": ["anthropic", "claude-cli"], "policy": {"record_assistant": True}}
    answer = stream(text("Looking."), CALL, message_id="m1")
    result = user({"type": "tool_result", "tool_use_id": "call.1", "content": "bin etc"})
    done = stream(text("Two folders."), message_id="m2")
    ended = {"type": "result", "subtype": "success", "is_error": False, "result": "Two folders.", "uuid": "r1"}
    answered = {"type": "user", "message": result, "uuid": "u1"}
    events = [*answer, json.dumps(answered).encode(), *done, json.dumps(ended).encode()]
    rows = [
        (AGENT_TURNS, json.dumps(opened).encode(), []),
        (AGENT_TURNS, turn(user(text("What is there?")), id="t1"), []),
    ]
    rows += [(PROVIDER_EVENTS, value, run) for value in events]
    rows += [(PROVIDER_EVENTS, None, [*run, ("exit", b"0")])]
    with lab.make_fleet(broker.bootstrap, prefix, tmp_path, free_port) as fleet:
        worker = fleet.start()
        await worker.ready(60)
        await feed(broker.bootstrap, prefix, rows)
        await lab.drained(broker.bootstrap, prefix)
        await feed(broker.bootstrap, prefix, [(AGENT_TURNS, turn(user(text("Thanks. And now?")), id="t2"), [])])
        await lab.drained(broker.bootstrap, prefix)
        page = worker.ask("/metrics")[1]
        state = inspected(broker.bootstrap, prefix)
        assert await worker.stop() == 0

    requests = await read(broker.bootstrap, prefix + PROVIDER_REQUESTS)
    headers = [{name: value.decode() for name, value in record.headers} for record in requests]
    assert [header["target"] for header in headers] == ["anthropic", "claude-cli"] * 2
    safe = json.loads(requests[2].value)["messages"][1]["content"][1]["id"]
    assert safe != CALL["id"]
    assert json.loads(requests[2].value) == {
        "model": "claude-sonnet-4-5",
        "max_tokens": 1024,
        "messages": [
            user(text("What is there?")),
            {"role": "assistant", "content": [text("Looking."), CALL | {"id": safe}]},
            user({"type": "tool_result", "tool_use_id": safe, "content": "bin etc"}),
            {"role": "assistant", "content": [text("Two folders.")]},
            user(text("Thanks. And now?")),
        ],
    }
    flat = (
        "## Conversation so far\n\n### User\nWhat is there?\n\n### Assistant\nLooking.\n"
        '[Tool call: ls({"path": "/"})]\n\n### Tool result\n[Tool result] bin etc\n\n### Assistant\nTwo folders.\n\n'
        "## Current input\nThanks. And now?"
    )
    assert json.loads(requests[3].value) == {"type": "user", "message": {"role": "user", "content": flat}}
    for record, header in zip(requests, headers, strict=True):
        assert header["body-sha256"] == hashlib.sha256(record.value).hexdigest()
        assert (header["reknit-version"], header["model"]) == (__version__, "claude-sonnet-4-5")
        assert "supersedes" not in header
    assert len({header["request-id"] for header in headers}) == 4
    settled = int(headers[0]["prefix-bytes"])
    assert requests[2].value[:settled] == requests[0].value[:settled]

    fixes = [json.loads(record.value) for record in await read(broker.bootstrap, prefix + HISTORY_FIXES)]
    assert [(fix["code"], fix["path"], fix["lossless"]) for fix in fixes] == [
        ("id_rewritten", "messages.1.content.1", True),
        ("id_rewritten", "messages.2.content.0", True),
    ]
    items = [json.loads(record.value) for record in await read(broker.bootstrap, prefix + SESSION_ITEMS)]
    started = [(i["item_id"], i["origin"]) for i in items if i["type"] == "item/started"]
    assert started == [("cc-promoted-0", "promoted"), ("call.1", "promoted"), ("cc-promoted-1", "promoted")]
    assert [i["item_id"] for i in items if i["type"] == "item/result"] == ["call.1"]

    assert sample(page, "reknit_requests_total", target="anthropic", outcome="clean") == 1
    assert sample(page, "reknit_requests_total", target="anthropic", outcome="mended") == 1
    assert sample(page, "reknit_fixes_total", code="id_rewritten", target="") == 2
    assert sample(page, "reknit_items_total", source="claude-cli", origin="promoted") == 3
    assert sample(page, "reknit_records_consumed_total", topic=PROVIDER_EVENTS) == len(events) + 2
    assert sample(page, "reknit_build_info", version=__version__) == 1
    assert state["history"]["messages"] == 5
    assert state["records"] == {
        AGENT_TURNS: 6,
        PROVIDER_EVENTS: len(events) + 2,
        PROVIDER_REQUESTS: 4,
        SESSION_ITEMS: len(items),
        HISTORY_FIXES: 2,
    }
    _check_with_promtool(page)


async def test_a_run_that_is_ingested_with_its_transcript_feeds_the_next_request(broker, prefix, tmp_path, free_port):
    """The Gemini CLI's stream has the text twice; its transcript has it once, and both calls."""
    runs = [json.loads(line) for line in GEMINI_RUNS.read_text(encoding="utf-8").splitlines()]
    [run] = [run for run in runs if run["name"] == "rst-after-call-0.61.0"]
    kept = tmp_path / "session.jsonl"
    kept.write_text(run["transcript"], encoding="utf-8")
    await lab.make_topics(broker.bootstrap, prefix)
    opened = {"type": "session.opened", "targets": ["gemini-cli"], "policy": {"record_assistant": True}}
    asked = [(AGENT_TURNS, json.dumps(opened).encode(), []), (AGENT_TURNS, turn(user(text("Say hello")), id="t1"), [])]
    place = ["--bootstrap-servers", broker.bootstrap, "--prefix", prefix]
    typed = ["ingest", "events", "--source", "gemini-cli", "--session", "s", "--transcript", str(kept), *place]
    with lab.make_fleet(broker.bootstrap, prefix, tmp_path, free_port) as fleet:
        worker = fleet.start()
        await worker.ready(60)
        await feed(broker.bootstrap, prefix, asked)
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "reknit", *typed],
            input="\n".join(run["lines"]).encode(),
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        await lab.drained(broker.bootstrap, prefix)
        await feed(broker.bootstrap, prefix, [(AGENT_TURNS, turn(user(text("And now?")), id="t2"), [])])
        await lab.drained(broker.bootstrap, prefix)
        assert await worker.stop() == 0

    values = [record.value for record in await read(broker.bootstrap, prefix + SESSION_ITEMS)]
    shown = reduce(msgspec.json.decode(value, type=AnyItem) for value in values).blocks("text", "tool_use")
    assert [entry.item_type for entry in shown] == ["text", "tool_use", "tool_use", "text"]
    requests = await read(broker.bootstrap, prefix + PROVIDER_REQUESTS)
    called = '[Tool call: run_shell_command({"command": "echo ran >> ran.txt; echo out", "description": "run"})]\n'
    result = "[Tool result] <untrusted_context>\nOutput: out\nProcess Group PGID: {}\n</untrusted_context>\n"
    assert [record.value.decode() for record in requests] == [
        "Say hello",
        "## Conversation so far\n\n### User\nSay hello\n\n### Assistant\nI will run a command.\n"
        + called * 2
        + "\n### Tool result\n"
        + result.format(7074)
        + result.format(7075)
        + "\n### Assistant\nAll done.\n\n## Current input\nAnd now?",
    ]


def inspected(bootstrap, prefix):
    command = [sys.executable, "-m", "reknit", "inspect", "s", "--bootstrap-servers", bootstrap, "--prefix", prefix]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240, env=dict(os.environ))
    return json.loads(done.stdout)


def _check_with_promtool(page):
    """Names and help texts by Prometheus' rules; not checked if promtool is not installed."""
    promtool = shutil.which("promtool")
    if promtool is not None:
        done = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
