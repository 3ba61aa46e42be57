"""Work beside a live pipeline: what reads its inputs writes none of its topics, and makes what it made."""

import json
import subprocess
import sys

import harness
import msgspec
import pipeline_lab as lab
import pytest
from aiokafka import TopicPartition

from topics import PROVIDER_EVENTS, TOPICS

pytestmark = pytest.mark.broker

# A worker that ends at these offsets, which no option says.
ENDS = """
import sys, msgspec
from pipeline.cli.worker import run
from pipeline.config import load_config
sys.exit(run(load_config(sys.argv[1]), ends=msgspec.json.decode(sys.argv[2])))
"""


def reknit(*args):
    command = [sys.executable, "-m", "reknit", *args]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)


async def ends_of(bootstrap, names):
    async with harness.reader(bootstrap) as reader:
        places = [TopicPartition(name, number) for name in names for number in range(lab.PARTITIONS)]
        return {tuple(place): end for place, end in (await reader.end_offsets(places)).items()}


@pytest.fixture
async def live(broker, prefix, tmp_path, free_port):
    """The prefix of a pipeline that worked through recorded sessions."""
    async with lab.workers(broker.bootstrap, prefix, tmp_path / "live", free_port) as fleet:
        await fleet.start().ready()
        async with lab.Feeder(broker.bootstrap, prefix, 2_000, lab.script(2)) as feeder:
            await feeder.wait()
        await lab.drained(broker.bootstrap, prefix)
        for worker in fleet.workers:
            await worker.stop()
    return prefix


async def test_workers_that_read_another_pipelines_inputs_end_at_its_frozen_ends(broker, live, tmp_path, free_port):
    beside, bootstrap = f"{live}beside.", broker.bootstrap
    place = ("--bootstrap-servers", bootstrap, "--prefix", beside, "--source-prefix", live)
    assert reknit("topics", "apply", *place, "--partitions", str(lab.PARTITIONS)).returncode == 0
    before = await ends_of(bootstrap, [live + topic.name for topic in TOPICS])
    ends = {topic: [before[live + topic, n] for n in range(lab.PARTITIONS)] for topic in lab.SOURCES}
    async with lab.Feeder(bootstrap, live, 2_000, list(lab.script(1))[:40]) as late:
        await late.wait()  # behind the ends
    after = await ends_of(bootstrap, [live + topic.name for topic in TOPICS])
    top = f'bootstrap_servers = "{bootstrap}"\nprefix = "{beside}"\nsource_prefix = "{live}"\nbatch_records = 37\n'
    top += f'state_dir = "{tmp_path}/beside"\nmetrics_port = '

    def command(port):
        settings = tmp_path / f"{port}.toml"
        settings.write_text(f"{top}{port}\n{lab.SETTINGS}")
        return [sys.executable, "-c", ENDS, str(settings), msgspec.json.encode(ends).decode()]

    with harness.Fleet(command, tmp_path, free_port) as fleet:
        first, second = fleet.start(), fleet.start()
        assert [await first.wait(90), await second.wait(90)] == [0, 0]
    counted = await lab.audit(bootstrap, beside, source_prefix=live, ends=ends)
    assert counted["sessions"] > 10
    assert counted["recorded turns"] > 0
    assert await ends_of(bootstrap, [live + topic.name for topic in TOPICS]) == after


async def test_a_live_prefix_is_never_written_by_a_worker_that_reads_another(broker, live, tmp_path):
    other = f"{live}other."
    await lab.make_topics(broker.bootstrap, other)
    place = ("--bootstrap-servers", broker.bootstrap, "--prefix", other, "--source-prefix", live)
    found = reknit("worker", *place, "--metrics-port", "0", "--state-dir", str(tmp_path))
    assert found.returncode == 2
    assert f"must not write to '{other}', which is a live pipeline: it has inputs of its own" in found.stderr


def replay(bootstrap, live, *args):
    settings = ("--bootstrap-servers", bootstrap, "--prefix", live, "--metrics-port", "0")
    return reknit("replay", "--config", f"{args[0]}/live/reknit.toml", *settings, *args[1:])


async def test_a_replay_makes_what_the_live_workers_made(broker, live, tmp_path):
    before = await ends_of(broker.bootstrap, [live + topic.name for topic in TOPICS])
    found = replay(broker.bootstrap, live, tmp_path, "--id", "all", "--state-dir", str(tmp_path / "state"))
    assert found.returncode == 0, found.stderr
    counted = await lab.audit(broker.bootstrap, f"{live}replay.all.", source_prefix=live)
    found = replay(broker.bootstrap, live, tmp_path, "--dry-run", str(tmp_path / "dry"))
    assert found.returncode == 0, found.stderr
    dry = await lab.audit(broker.bootstrap, "", source_prefix=live, folder=tmp_path / "dry")
    assert dry == counted
    assert counted["sessions"] > 10
    assert counted["recorded turns"] > 0
    assert await ends_of(broker.bootstrap, [live + topic.name for topic in TOPICS]) == before
    place = ("--bootstrap-servers", broker.bootstrap, "--prefix", live)
    (listed,) = [json.loads(line) for line in reknit("replay", "list", *place).stdout.splitlines()]
    assert (listed["replay"], listed["prefix"], listed["left"]) == ("all", f"{live}replay.all.", 0)
    assert reknit("replay", "delete", "all", *place).returncode == 0
    assert reknit("replay", "list", *place).stdout == ""
    assert "there is no replay 'all'" in reknit("replay", "delete", "all", *place).stderr


def diff(bootstrap, *args):
    return reknit("diff", "--bootstrap-servers", bootstrap, *map(str, args))


def differences(found):
    """The summary that `reknit diff --json` ends with."""
    return json.loads(found.stdout.splitlines()[-1])["summary"]


async def test_a_replay_differs_from_live_work_where_its_configuration_does(broker, live, tmp_path):
    bootstrap = broker.bootstrap
    assert replay(bootstrap, live, tmp_path, "--id", "same", "--state-dir", str(tmp_path / "same")).returncode == 0
    dry = tmp_path / "dry"
    with (tmp_path / "live" / "reknit.toml").open("a") as file:
        file.write('\n[session.policy]\nmissing_result = "drop"\n')
    assert replay(bootstrap, live, tmp_path, "--dry-run", str(dry)).returncode == 0
    same = diff(bootstrap, live, f"{live}replay.same.", "--expect-none", "--json")
    assert same.returncode == 0, same.stderr + same.stdout
    told = differences(same)
    assert told["compared"]["differ"] == 0
    assert min(told["compared"]["counts"].values()) > 0
    assert set(told["compared"]["counts"]) >= {"requests", "fixes", "records of items", "recorded turns"}
    other = diff(bootstrap, live, dry, "--expect-none", "--json")
    assert other.returncode == 3, other.stderr
    fixes = {
        (kind["how"], kind["label"]) for kind in differences(other)["compared"]["kinds"] if kind["subject"] == "fix"
    }
    # Where a call goes and nothing else is in its turn, two of the user's are neighbours.
    assert fixes == {
        ("vanished", "result_synthesised lossy"),
        ("appeared", "call_unanswered lossy"),
        ("appeared", "turns_merged lossless"),
    }


async def test_sessions_that_went_on_behind_a_replay_are_listed(broker, live, tmp_path):
    bootstrap = broker.bootstrap
    assert replay(bootstrap, live, tmp_path, "--id", "once", "--state-dir", str(tmp_path / "once")).returncode == 0
    more = list(lab.script(1))[:40]
    async with lab.Feeder(bootstrap, live, 2_000, more) as late:
        await late.wait()
    found = diff(bootstrap, live, f"{live}replay.once.", "--expect-none", "--json")
    assert found.returncode == 0, found.stderr + found.stdout
    went_on = {key.decode() for topic, key, *_ in more if topic == PROVIDER_EVENTS}
    assert went_on
    left_out = differences(found)["not_compared"]["its events went on, and only one side has read them"]
    assert set(left_out) == went_on
