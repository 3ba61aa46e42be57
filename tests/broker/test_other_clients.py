"""Independent programs: each asks a question and is given the request, by the published contract."""

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path

import harness
import pipeline_lab as lab
import pytest
from aiokafka.partitioner import murmur2

from reknit.topics import AGENT_TURNS

pytestmark = pytest.mark.broker

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
NODE_MODULES = ROOT / "tests" / "js" / "node_modules"
PROGRAMS = {
    "java": ["java", "-cp", f"{ROOT}/deploy/kafka/lib/*", str(EXAMPLES / "java" / "Agent.java")],
    "librdkafka": [sys.executable, str(EXAMPLES / "librdkafka.py")],
    "kcat": [str(EXAMPLES / "kcat.sh")],
}


async def test_strangers_programs_feed_and_read_the_pipeline(broker, prefix, tmp_path, free_port, broker_is_required):
    if missing := [program for program in ("javac", "kcat") if shutil.which(program) is None]:
        (pytest.fail if broker_is_required else pytest.skip)(f"not installed: {missing}")
    asking = {f"{name}-{number}": name for name in PROGRAMS for number in range(2)}
    async with lab.workers(broker.bootstrap, prefix, tmp_path, free_port) as fleet:
        await fleet.start().ready(60)
        each = (answer_of_program(name, broker.bootstrap, prefix, session) for session, name in asking.items())
        bodies = await asyncio.gather(*each)
    said = [{"role": "user", "content": "What is there?"}]
    assert [(body["model"], body["messages"]) for body in bodies] == [("claude-sonnet-4-5", said)] * len(asking)
    partitions = await harness.read_all(broker.bootstrap, prefix + AGENT_TURNS, lab.PARTITIONS)
    placed = {record.key.decode(): record.partition for part in partitions for record in part}
    assert placed == {session: (murmur2(session.encode()) & 0x7FFFFFFF) % lab.PARTITIONS for session in asking}


async def test_kafkajs_feeds_a_pipeline_and_reads_its_gzip(broker, prefix, tmp_path, free_port):
    if missing := missing_node():
        (pytest.fail if os.environ.get("REQUIRE_NODE") else pytest.skip)(missing)
    # Node looks for packages next to a program.
    (tmp_path / "node_modules").symlink_to(NODE_MODULES)
    program = shutil.copy(EXAMPLES / "kafkajs.mjs", tmp_path)
    await lab.make_topics(broker.bootstrap, prefix)
    with lab.make_fleet(broker.bootstrap, prefix, tmp_path, free_port, top='compression = "gzip"\n') as fleet:
        await fleet.start().ready(60)
        body = await answer_of("node", program, broker.bootstrap, prefix, "of-javascript", "What is there?")
    assert body["messages"] == [{"role": "user", "content": "What is there?"}]


def missing_node():
    if shutil.which("node") is None:
        return "needs Node.js 20"
    return "" if (NODE_MODULES / "kafkajs").is_dir() else "needs the packages of tests/js: run `make sdks`"


async def answer_of_program(name, bootstrap, prefix, session):
    return await answer_of(*PROGRAMS[name], bootstrap, prefix, session, "What is there?")


async def answer_of(*command):
    process = await asyncio.create_subprocess_exec(*command, stdout=-1, stderr=-1)
    try:
        async with asyncio.timeout(120):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, err.decode()
    return json.loads(out)
