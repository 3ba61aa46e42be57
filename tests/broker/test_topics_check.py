"""`reknit topics check` on a real broker: nothing to report where all is well, and each fault with its remedy."""

import asyncio
import json
import subprocess
import sys

import harness
import pipeline_lab as lab
import pytest
from aiokafka import AIOKafkaProducer

from reknit.pipeline.kafka.partitions import usual_partition
from reknit.topics import AGENT_TURNS, TOPICS

pytestmark = pytest.mark.broker


async def reknit(*arguments, bootstrap, prefix):
    options = ["--bootstrap-servers", bootstrap, "--prefix", prefix, "--partitions", str(lab.PARTITIONS)]
    command = [sys.executable, "-m", "reknit", "topics", *arguments, *options]
    return await asyncio.to_thread(subprocess.run, command, capture_output=True, check=False, timeout=120)


def findings(done):
    return {
        (found["severity"], found["subject"]): found["problem"] for found in map(json.loads, done.stdout.splitlines())
    }


async def test_a_pipeline_without_topics_then_with_them_then_with_a_wrong_producer(broker, prefix):
    place = {"bootstrap": broker.bootstrap, "prefix": prefix}
    missing = await reknit("check", **place)
    assert missing.returncode == 4
    wanted = {("error", prefix + topic.name): "the topic does not exist" for topic in TOPICS}
    assert wanted.items() <= findings(missing).items()
    assert (await reknit("apply", **place)).returncode == 0
    well = await reknit("check", **place)
    assert (well.returncode, well.stdout, well.stderr) == (0, b"", b"nothing to report\n")
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
        usual = usual_partition("s", list(range(lab.PARTITIONS)))
        for partition in (usual, (usual + 1) % lab.PARTITIONS):
            await producer.send_and_wait(prefix + AGENT_TURNS, b"{}", key=b"s", partition=partition)
    wrong = await reknit("check", **place)
    assert wrong.returncode == 4
    ((where, problem),) = findings(wrong).items()
    assert where == ("error", prefix + AGENT_TURNS)
    assert problem.startswith("1 of 2 records are in another partition than murmur2 of their key")


async def test_topics_with_different_numbers_of_partitions(broker, prefix):
    names = [prefix + topic.name for topic in TOPICS]
    await harness.make_topics(broker.bootstrap, names[1:], lab.PARTITIONS)
    await harness.make_topics(broker.bootstrap, names[:1], lab.PARTITIONS + 1)
    found = findings(await reknit("check", bootstrap=broker.bootstrap, prefix=prefix))
    assert found["error", "topics"].startswith("their numbers of partitions differ: ")
    assert found["warning", names[0]] == f"it has {lab.PARTITIONS + 1} partitions, {lab.PARTITIONS} are configured"
