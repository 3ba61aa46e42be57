"""State on a real broker: kept on disk through restarts and kills, and carried from one build to the next."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import harness
import pipeline_lab as lab
import pytest
from aiokafka.client import AIOKafkaClient
from prometheus_client.parser import text_string_to_metric_families

from reknit.pipeline.engine.preflight import _topics, topic_ids
from reknit.pipeline.engine.stores import Belonging, DiskRecords
from reknit.pipeline.stages import stages
from reknit.pipeline.stages.base import NO_SESSION, POSITION, read_position
from reknit.topics import AGENT_TURNS, PROVIDER_REQUESTS, TURNS_STATE

pytestmark = pytest.mark.broker

ROOT = Path(__file__).parents[2]
# The last commit that knows no format of state but the first.
FORMER = "be4030f"
SESSIONS, ROUNDS = 300, 4


def turns(rounds):
    for number in rounds:
        for session in range(SESSIONS):
            for role in ("user", "assistant"):
                message = {"role": role, "content": f"{role} {number} of {session}"}
                yield (
                    AGENT_TURNS,
                    b"s%d" % session,
                    json.dumps({"type": "turn.appended", "message": message}).encode(),
                    [],
                )


def counted(worker, name, **labels):
    _, page = worker.ask("/metrics")
    samples = (found for family in text_string_to_metric_families(page) for found in family.samples)
    return sum(found.value for found in samples if found.name == name and labels.items() <= found.labels.items())


async def fed(bootstrap, prefix, rounds):
    async with lab.Feeder(bootstrap, prefix, 5_000, turns(rounds)) as feeder:
        await feeder.wait()


async def described(bootstrap, topic):
    client = AIOKafkaClient(bootstrap_servers=bootstrap)
    await client.bootstrap()
    try:
        return topic_ids(await _topics(client, {topic}))[topic]
    finally:
        await client.close()


async def state_by_full_read(bootstrap, prefix):
    """The changelog's content, by partition."""
    found = await harness.read_all(bootstrap, prefix + TURNS_STATE, lab.PARTITIONS)
    parts = [{record.key: record.value for record in records} for records in found]
    return [{key: value for key, value in part.items() if value is not None} for part in parts]


async def bodies_are_those_of_one_run(bootstrap, prefix):
    """Compare requests' bodies, session by session and in order, with those of one undisturbed run of this build."""
    logs = await harness.read_all(bootstrap, prefix + AGENT_TURNS, lab.PARTITIONS)
    sent = await harness.read_all(bootstrap, prefix + PROVIDER_REQUESTS, lab.PARTITIONS)
    expected, found = defaultdict(list), defaultdict(list)
    for number in range(lab.PARTITIONS):
        for output in harness.made_by(stages(lab.DEFAULTS)[AGENT_TURNS](number), logs[number]):
            if output.topic == PROVIDER_REQUESTS:
                expected[output.key].append(output.value)
        for record in sent[number]:
            found[record.key].append(record.value)
    assert found == expected
    assert len(found) == SESSIONS
    return sum(map(len, found.values()))


async def test_a_worker_with_a_store_on_disk_continues_from_it_after_a_kill(broker, prefix, tmp_path, free_port):
    pytest.importorskip("rocksdict")
    await lab.make_topics(broker.bootstrap, prefix)
    more = '[state]\nstore = "disk"\nmemory_mib = 1\n'
    with lab.make_fleet(broker.bootstrap, prefix, tmp_path, free_port, more=more) as fleet:
        worker = fleet.start()
        await worker.ready(60)
        await fed(broker.bootstrap, prefix, range(2))
        await lab.drained(broker.bootstrap, prefix)
        assert counted(worker, "reknit_sessions_evicted_total", topic=AGENT_TURNS) > 0
        worker.kill()
        again = fleet.start()
        await again.ready(60)
        # The store continues from its last flush before the kill, and reads the rest from the changelog.
        assert counted(again, "reknit_state_store_discarded_total") == 0
        await fed(broker.bootstrap, prefix, range(2, ROUNDS))
        await lab.drained(broker.bootstrap, prefix)
        assert await again.stop() == 0
        # A stop flushes everything but what the last commit may not have written yet.
        last = fleet.start()
        await last.ready(60)
        assert counted(last, "reknit_state_restored_records_total", topic=AGENT_TURNS) < SESSIONS / 2
        assert await last.stop() == 0
    assert await bodies_are_those_of_one_run(broker.bootstrap, prefix) == SESSIONS * ROUNDS
    for number, part in enumerate(await state_by_full_read(broker.bootstrap, prefix)):
        position = part.pop(POSITION, None)
        ids = await described(broker.bootstrap, prefix + TURNS_STATE)
        belonging = Belonging(ids, f"{prefix}reknit", prefix + TURNS_STATE, number)
        place = tmp_path / "state" / "sessions" / f"{prefix}{TURNS_STATE}-{number}"
        store = DiskRecords(place, belonging, range(1 << 60))
        kept = {key: value for session in range(SESSIONS) for key, value in store.read(b"s%d" % session).items()}
        assert kept == part
        assert store.read(NO_SESSION) == {}
        assert (store.progress.position, store.progress.state_format) == read_position(position)
        store.close()


@pytest.mark.usefixtures("broker")  # or the reason why it is missing
def test_a_fleet_beyond_its_memory_goes_through_one_worker_and_is_there_again(tmp_path):
    """The benchmark of a fleet's state in a smaller form; how long it takes is not looked at."""
    pytest.importorskip("rocksdict")
    found, kept = tmp_path / "rows", tmp_path / "state"
    command = [sys.executable, ROOT / "tests/benchmarks/bench_state.py", "--only", "worker", "--sessions", "300"]
    done = subprocess.run([*command, "--keep", kept], env=os.environ | {"BENCH_ROWS": str(found)}, check=False)
    assert done.returncode == 0
    rows = [json.loads(line)["what"] for line in found.read_bytes().splitlines()]
    assert re.match(r"300 sessions of 50 turns .* one worker with the disk store$", rows[0])
    assert rows[1:] == ["300 sessions read back without their volume"]
    assert int((kept / "resident").read_text()) < 512


@pytest.fixture
def former(build_at):
    return build_at(FORMER)


async def test_a_build_with_the_former_format_runs_in_the_same_group(broker, prefix, tmp_path, free_port, former):
    await lab.make_topics(broker.bootstrap, prefix)
    place = (broker.bootstrap, prefix)
    old = lab.make_fleet(*place, tmp_path / "old", free_port, build=former)
    between = lab.make_fleet(*place, tmp_path / "between", free_port, more="[state]\nformat = 1\n")
    new = lab.make_fleet(*place, tmp_path / "new", free_port)
    try:
        first = old.start()
        await first.ready(60)
        await fed(*place, range(1))
        second = between.start()
        await second.ready(60)
        await fed(*place, range(1, 2))
        await lab.drained(*place)
        assert await second.stop() == 0  # the former build continues with the other one's state
        await first.ready(60)
        await fed(*place, range(2, 3))
        await lab.drained(*place)
        third = new.start()
        assert await first.stop() == 0
        await asyncio.sleep(1)
        await third.ready(60)
        await fed(*place, range(3, ROUNDS))
        await lab.drained(*place)
        late = old.start()
        assert await late.wait(90) != 0
        assert "Was it written by a newer version" in late.tail()
        await third.ready(60)
        assert await third.stop() == 0
    finally:
        for fleet in (old, between, new):
            fleet.end()
    assert await bodies_are_those_of_one_run(*place) == SESSIONS * ROUNDS
