"""Replays next to a live pipeline: they make the same outputs in every way of running, and write none of its topics."""

import asyncio
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import zlib
from pathlib import Path

import harness
import msgspec
import pipeline_lab as lab
import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from chaos.cluster import kafka_broker
from chaos.trial import die_at
from chaos.worker import BEFORE_STATE
from test_docs import BLOCK, environment

from reknit.pipeline.kafka.admin import connected
from reknit.pipeline.replay import Plan
from reknit.pipeline.replay.folder import plan_of, read_partition, unfinished
from reknit.pipeline.replay.replays import wait_until_visible
from reknit.pipeline.settings import Config
from reknit.pipeline.viewer.compare import compare_replay
from reknit.topics import (
    AGENT_TURNS,
    DEAD_LETTERS,
    PROVIDER_EVENTS,
    PROVIDER_REQUESTS,
    REPLAY_PLAN,
    SESSION_ITEMS,
    TOPICS,
)

pytestmark = pytest.mark.broker

ROOT = Path(__file__).parents[2]


class Live:
    """A pipeline that has processed recorded sessions, and the other commands."""

    left_out = None
    compared = 0

    def __init__(self, bootstrap, prefix, directory):
        self.bootstrap, self.prefix, self.directory = bootstrap, prefix, directory
        self.place = ("--bootstrap-servers", bootstrap, "--prefix", prefix)

    async def work(self, rows):
        async with lab.workers(self.bootstrap, self.prefix, self.directory, kafka_broker.free_port) as fleet:
            await fleet.start().ready()
            async with lab.Feeder(self.bootstrap, self.prefix, 2_000, rows) as feeder:
                await feeder.wait()
            await lab.drained(self.bootstrap, self.prefix)
            for worker in fleet.workers:
                assert await worker.stop() == 0

    def replay_command(self, *args, more="", **settings):
        """The command, under the settings of the live workers and these."""
        top = "".join(f"{name} = {value}\n" for name, value in settings.items())
        text = f"{top}{lab.SETTINGS}{more}"
        config = self.directory / f"{zlib.crc32(text.encode())}.toml"
        config.write_text(text)
        state = str(self.directory / "replays")
        options = ("--config", str(config), "--metrics-port", "0", "--state-dir", state)
        return [sys.executable, "-m", "reknit", "replay", *self.place, *options, *args]

    def replay(self, *args, **settings):
        done = run(self.replay_command(*args, **settings))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def differs(self, other, *options):
        """Return the differences between live and replayed outputs, as `reknit diff` summarises them; None if there are
        none.
        """
        command = [sys.executable, "-m", "reknit", "diff", *self.place, *options, self.prefix, str(other)]
        done = run([*command, "--expect-none", "--json"])
        told = json.loads(done.stdout.splitlines()[-1])["summary"]
        assert (done.returncode, min(told["compared"]["counts"].values()) > 0) == (
            3 if told["compared"]["differ"] else 0,
            True,
        )
        self.left_out, self.compared = told["not_compared"], told["compared"]["sessions"]
        return told["compared"] if done.returncode else None

    async def ends(self):
        async with harness.reader(self.bootstrap) as reader:
            names = [self.prefix + topic.name for topic in TOPICS]
            places = [TopicPartition(name, number) for name in names for number in range(lab.PARTITIONS)]
            return {tuple(place): end for place, end in (await reader.end_offsets(places)).items()}

    async def plan(self, replay):
        """The plan of a replay, once there is one."""
        name = f"{self.prefix}replay.{replay}.{REPLAY_PLAN.name}"
        async with asyncio.timeout(240):
            while True:
                async with harness.reader(self.bootstrap) as reader:
                    if name in await reader.topics():
                        reader.assign([TopicPartition(name, 0)])
                        for records in (await reader.getmany(timeout_ms=500)).values():
                            return msgspec.json.decode(records[0].value, type=Plan)
                await asyncio.sleep(0.2)


def run(command):
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=180)


@pytest.fixture(scope="module")
def live(broker, tmp_path_factory):
    """A pipeline that no test changes."""
    found = Live(broker.bootstrap, f"live{os.getpid()}.", tmp_path_factory.mktemp("live"))
    asyncio.run(found.work(lab.script(2)))
    return found


@pytest.fixture
def own(broker, prefix, tmp_path):
    """One for a single test, which feeds it."""
    return Live(broker.bootstrap, prefix, tmp_path)


async def test_a_replay_makes_what_the_live_workers_made(live, tmp_path):
    before = await live.ends()
    told = live.replay("--id", "all", batch_records=37)
    assert told == {"replay": "all", "prefix": f"{live.prefix}replay.all.", "uncompared": []}
    counted = await lab.audit(live.bootstrap, told["prefix"], source_prefix=live.prefix)
    assert (counted["sessions"] > 10, counted["recorded turns"] > 0) == (True, True)
    assert live.differs(told["prefix"]) is None
    config = Config(bootstrap_servers=live.bootstrap, prefix=live.prefix)
    summary, differing = await asyncio.to_thread(compare_replay, config, told["prefix"], "", None)
    assert (summary.plain.sessions, differing) == (live.compared, [])
    live.replay("--dry-run", str(tmp_path / "dry"), batch_records=11)
    live.replay("--dry-run", str(tmp_path / "again"), batch_records=11)
    assert files_of(tmp_path / "again") == files_of(tmp_path / "dry")
    dry = await lab.audit(live.bootstrap, "", source_prefix=live.prefix, folder=tmp_path / "dry")
    assert dry == counted
    assert live.differs(tmp_path / "dry") is None
    assert await live.ends() == before

    command = [sys.executable, "-m", "reknit", "replay"]
    (listed,) = [json.loads(line) for line in run([*command, "list", *live.place]).stdout.splitlines()]
    assert (listed["replay"], listed["prefix"], listed["left"]) == ("all", told["prefix"], 0)
    differing = run(live.replay_command("--id", "all", "--session", "a"))
    assert (differing.returncode, "was begun for something else" in differing.stderr) == (2, True)
    assert run([*command, "delete", "all", *live.place]).returncode == 0
    assert run([*command, "list", *live.place]).stdout == ""
    assert "there is no replay 'all'" in run([*command, "delete", "all", *live.place]).stderr


async def test_processes_share_a_replay_to_its_frozen_ends_though_one_is_killed(own, free_port):
    await own.work(lab.script(1))
    more = list(lab.script(1))[:40]
    rates = [(), (), ("--rate", "10")]  # the one that is killed has far to go

    def command(port):
        return own.replay_command("--id", "shared", "--metrics-port", str(port), *rates.pop())

    with harness.Fleet(command, own.directory, free_port) as fleet:
        first = fleet.start()
        plan = await own.plan("shared")
        async with lab.Feeder(own.bootstrap, own.prefix, 2_000, more) as late:
            await late.wait()  # after the ends
        before = await own.ends()
        await first.ready(60)
        second = fleet.start()
        await second.ready(60)
        first.kill()
        assert await second.wait(120) == 0, second.tail()
        started_after_all_was_done = fleet.start()
        assert await started_after_all_was_done.wait(60) == 0
    prefix = f"{own.prefix}replay.shared."
    counted = await lab.audit(own.bootstrap, prefix, source_prefix=own.prefix, ends=plan.ends)
    assert counted["sessions"] > 10
    assert own.differs(prefix) is None
    (went_on,) = own.left_out.values()
    assert {key.encode() for key in went_on} == {key for topic, key, *_ in more if topic == PROVIDER_EVENTS} != set()
    assert await own.ends() == before


async def test_a_replay_is_deleted_when_no_process_is_a_member_and_a_killed_one_is_waited_for(live, free_port):
    command = live.replay_command("--id", "deleted", "--rate", "1")
    config = command[command.index("--config") + 1]
    delete = [sys.executable, "-m", "reknit", "replay", "delete", "deleted", *live.place, "--config", config]
    with harness.Fleet(lambda _: command, live.directory, free_port) as fleet:
        process = fleet.start()
        await live.plan("deleted")
        async with connected(Config(bootstrap_servers=live.bootstrap)) as admin, asyncio.timeout(60):
            while not await admin.is_at_work(f"{live.prefix}replay.deleted.reknit"):  # noqa: ASYNC110  another process joins
                await asyncio.sleep(0.1)
        refused = await asyncio.to_thread(run, delete)
        assert (refused.returncode, "are still at work; end them first" in refused.stderr) == (2, True)
        process.kill()
        assert run(delete).returncode == 0
    assert "there is no replay 'deleted'" in run(delete).stderr


async def test_a_replay_differs_from_live_work_where_its_configuration_does(live, tmp_path):
    live.replay("--dry-run", str(tmp_path / "dry"), more='[session.policy]\nmissing_result = "drop"\n')
    found = live.differs(tmp_path / "dry")
    # Where a call goes and nothing else is in its turn, two of the user's are neighbours.
    assert {(kind["how"], kind["label"]) for kind in found["kinds"] if kind["subject"] == "fix"} == {
        ("vanished", "result_synthesised lossy"),
        ("appeared", "call_unanswered lossy"),
        ("appeared", "turns_merged lossless"),
    }


async def test_an_interrupted_dry_run_restarts_its_partition_and_shares_are_the_whole(live, tmp_path, free_port):
    place = tmp_path / "dry"
    command = live.replay_command("--dry-run", str(place), "--rate", "150")
    with harness.Fleet(lambda _: command, tmp_path, free_port) as fleet:
        interrupted = fleet.start()
        async with asyncio.timeout(90):
            while not (place / "positions").exists():  # noqa: ASYNC110  another process makes it
                await asyncio.sleep(0.1)
        interrupted.kill()
    left = unfinished(place)
    assert 0 < len(left) < lab.PARTITIONS
    for share in ("1/2", "2/2"):
        live.replay("--dry-run", str(place), "--share", share)
    assert unfinished(place) == []
    counted = await lab.audit(live.bootstrap, "", source_prefix=live.prefix, folder=place, ends=plan_of(place).ends)
    assert counted["sessions"] > 10


async def test_a_range_gives_its_outputs_and_sessions_theirs(live, tmp_path):
    live.replay("--dry-run", str(tmp_path / "all"))
    everything = {topic: outputs(tmp_path / "all", topic) for topic in (PROVIDER_REQUESTS, SESSION_ITEMS)}
    caused = [cause(record) for record in everything[PROVIDER_REQUESTS] if record.partition == 1]
    first, last = caused[len(caused) // 3], caused[2 * len(caused) // 3]
    live.replay("--dry-run", str(tmp_path / "range"), "--offsets", f"{AGENT_TURNS}/1/{first}-{last}")
    ranged = outputs(tmp_path / "range", PROVIDER_REQUESTS)
    assert [body(record) for record in ranged] == [
        body(record)
        for record in everything[PROVIDER_REQUESTS]
        if record.partition == 1 and first <= cause(record) <= last
    ]
    assert len(ranged) >= 2
    assert outputs(tmp_path / "range", SESSION_ITEMS) == []

    (one, *_) = everything[SESSION_ITEMS]
    at = await first_offset(live, PROVIDER_EVENTS, one)
    live.replay("--dry-run", str(tmp_path / "run"), "--offsets", f"{PROVIDER_EVENTS}/{one.partition}/{at}")
    shown = [record.value for record in outputs(tmp_path / "run", SESSION_ITEMS)]
    runs = {dict(record.headers).get("run") for record in outputs(tmp_path / "run", SESSION_ITEMS)}
    of_session = [record for record in everything[SESSION_ITEMS] if record.key == one.key]
    assert [record.value for record in of_session if dict(record.headers).get("run") in runs] == shown
    assert runs == {dict(one.headers).get("run")}

    named = one.key.decode().rpartition("/")[0]
    live.replay("--dry-run", str(tmp_path / "named"), "--session", f"{named}/*")
    for topic, records in everything.items():
        wanted = [body(record) for record in records if record.key.decode().startswith(f"{named}/")]
        assert [body(record) for record in outputs(tmp_path / "named", topic)] == wanted

    live.replay("--dry-run", str(tmp_path / "lettered"), "--dead-letters")
    letters = {record.key for record in outputs(tmp_path / "all", DEAD_LETTERS)}
    assert {record.key for record in outputs(tmp_path / "lettered", DEAD_LETTERS)} == letters != set()
    wanted = [body(record) for record in everything[PROVIDER_REQUESTS] if record.key in letters]
    assert [body(record) for record in outputs(tmp_path / "lettered", PROVIDER_REQUESTS)] == wanted

    live.replay("--dry-run", str(tmp_path / "before"), "--until", "2001-01-01")
    assert [outputs(tmp_path / "before", topic) for topic in everything] == [[], []]


async def first_offset(live, topic, item):
    """The first record of the run that an item is of."""
    records = (await harness.read_all(live.bootstrap, live.prefix + topic, lab.PARTITIONS))[item.partition]
    run_of_it = dict(item.headers).get("run")
    return next(r.offset for r in records if r.key == item.key and dict(r.headers).get("run") == run_of_it and r.value)


def files_of(folder):
    """The bytes of a folder's files by their place in it."""
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def outputs(folder, topic):
    return [record for number in range(lab.PARTITIONS) for record in read_partition(folder, topic, number)]


def body(record):
    return record.key, record.headers, record.value


def cause(record):
    return int(dict(record.headers)["cause"].rpartition(b"/")[2])


async def test_what_expired_is_listed_and_what_was_forgotten_is_not_there(own):
    await own.work(lab.script(2))
    logs = await harness.read_all(own.bootstrap, own.prefix + AGENT_TURNS, lab.PARTITIONS)
    gone = {number: records[len(records) // 3].offset for number, records in enumerate(logs)}
    begun = [{record.key for record in records if record.offset < gone[n]} for n, records in enumerate(logs)]
    goes_on = {r.key for n, records in enumerate(logs) for r in records if r.offset >= gone[n] and r.key in begun[n]}
    forgotten = min(key for keys, records in zip(begun, logs, strict=True) for key in {r.key for r in records} - keys)
    with lab.make_fleet(own.bootstrap, own.prefix, own.directory, kafka_broker.free_port) as fleet:
        await fleet.start().ready()
        told = run([sys.executable, "-m", "reknit", "forget", *own.place, forgotten.decode()])
        assert (told.returncode, json.loads(told.stdout)["done"]) == (0, True)
    await delete_before(own.bootstrap, own.prefix + AGENT_TURNS, gone)
    told = own.replay("--id", "rest")
    listed = {each["session"].encode() for each in told["uncompared"] if each["topic"] == AGENT_TURNS}
    assert {each["why"] for each in told["uncompared"]} == {"expired"}
    assert goes_on <= listed
    assert listed <= set().union(*begun)
    requests = await harness.read_all(own.bootstrap, f"{told['prefix']}{PROVIDER_REQUESTS}", lab.PARTITIONS)
    replayed = {record.key for records in requests for record in records}
    assert not replayed & (listed | {forgotten})
    assert replayed
    assert own.differs(told["prefix"]) is None
    command = [sys.executable, "-m", "reknit", "forget", *own.place, "--timeout", "0", min(replayed).decode()]
    receipt = json.loads(run(command).stdout)
    assert any(each["topic"].startswith(told["prefix"]) for each in receipt["held"])


async def test_live_work_that_delivered_at_least_once_with_an_object_store_differs_in_nothing(own, free_port, tmp_path):
    """Also where sessions are released, each in several slices."""
    settings = {"top": 'delivery = "at-least-once"\nbatch_records = 20\non_dead_letter = "park"\n'}
    settings["more"] = f'[objects]\nurl = "file://{tmp_path}/objects"\nthreshold_bytes = 400\n'
    await lab.make_topics(own.bootstrap, own.prefix)
    with lab.make_fleet(own.bootstrap, own.prefix, own.directory, free_port, **settings) as fleet:
        keys = [b"released-%d" % number for number in range(4)]
        rows = [*lab.parked(keys, 130), *lab.released(keys, later=3), *lab.script(1)]
        async with lab.Feeder(own.bootstrap, own.prefix, 2_000, rows) as feeder:
            await feeder.wait()
        worker = fleet.start()
        worker.kill()
        for _ in range(3):
            await die_at(worker, BEFORE_STATE)
        await worker.start().ready(60)
        await lab.drained(own.bootstrap, own.prefix)
        assert await worker.stop() == 0
    items = await harness.read_all(own.bootstrap, own.prefix + SESSION_ITEMS, lab.PARTITIONS)
    started = [record.value for records in items for record in records if b'"item/started"' in record.value]
    assert len(started) > len(set(started))  # published once more
    assert any((tmp_path / "objects").rglob("*/*"))

    requests = await harness.read_all(own.bootstrap, own.prefix + PROVIDER_REQUESTS, lab.PARTITIONS)
    causes = {dict(record.headers)["cause"] for part in requests for record in part if record.key in keys}
    assert len(causes) == len(keys) * (65 + 3)
    live = {"delivery": '"at-least-once"', "on_dead_letter": '"park"', "more": settings["more"]}
    before = own.replay("--id", "all", **live)["prefix"]
    own.replay("--dry-run", str(tmp_path / "dry"), **live)
    repeated = own.differs(before)["kinds"]
    assert {kind["how"] for kind in repeated} <= {"repeated", "vanished"}
    at_least_once = ("--delivery", "at-least-once")
    assert own.differs(before, *at_least_once) is None
    assert own.differs(tmp_path / "dry", *at_least_once) is None
    assert own.left_out == {}

    half = {number: records[len(records) // 2].offset for number, records in enumerate(items)}
    await delete_before(own.bootstrap, own.prefix + SESSION_ITEMS, half)
    assert own.differs(tmp_path / "dry", *at_least_once) is None
    (why,) = own.left_out
    assert why == f"its items may have expired in {own.prefix}"
    begun = {record.key for n, records in enumerate(items) for record in records if record.offset < half[n]}
    # A record that was published again may be whole there.
    assert {name.encode() for name in own.left_out[why]} <= begun


async def delete_before(bootstrap, topic, offsets):
    """Make a broker delete the records before an offset in each partition, as retention does."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.delete_records(
            {TopicPartition(topic, number): RecordsToDelete(before_offset=at) for number, at in offsets.items()}
        )
    finally:
        await admin.close()


async def test_only_topics_with_a_plan_and_without_inputs_are_deleted_as_a_replay(own):
    await lab.make_topics(own.bootstrap, own.prefix)
    begins = f"{own.prefix}replay."
    foreign = [f"{begins}{name}" for name in ("notes", "mine.notes.v1", "a.b.session.items.v1")]
    unplanned = [f"{begins}stray.{SESSION_ITEMS}", f"{begins}odd.{REPLAY_PLAN.name}"]
    await harness.make_topics(own.bootstrap, [*foreign, *unplanned], 1)
    async with lab.Feeder(own.bootstrap, begins, 100, [(f"odd.{REPLAY_PLAN.name}", b"odd", b"no plan", [])]) as feeder:
        await feeder.wait()
    own.replay("--id", "mine")
    # A live pipeline whose prefix looks like a replay's.
    await lab.make_topics(own.bootstrap, f"{begins}live.")
    command = [sys.executable, "-m", "reknit", "replay"]
    listed = [json.loads(line) for line in run([*command, "list", *own.place]).stdout.splitlines()]
    assert [(each["replay"], "left" in each) for each in listed] == [
        ("live", False), ("mine", True), ("odd", False), ("stray", False)
    ]  # fmt: skip
    async with harness.reader(own.bootstrap) as reader:
        before = {name for name in await reader.topics() if name.startswith(begins)}
    refused = {name: run([*command, "delete", name, *own.place]) for name in ("notes", "live", "odd", "stray")}
    assert {name: done.returncode for name, done in refused.items()} == dict.fromkeys(refused, 2)
    assert f"{begins}live.{AGENT_TURNS} is an input of a pipeline" in refused["live"].stderr
    assert f"the topics under {begins}stray. hold no plan of a replay 'stray'" in refused["stray"].stderr
    assert run([*command, "delete", "mine", *own.place]).returncode == 0
    async with harness.reader(own.bootstrap) as reader:
        after = {name for name in await reader.topics() if name.startswith(begins)}
    assert after == {name for name in before if not name.startswith(f"{begins}mine.") or name in foreign}


async def test_the_end_of_a_replay_waits_for_open_transactions(own):
    """A broker confirms a commit before readers see it, and another worker's transaction may stay open."""
    work = Config(bootstrap_servers=own.bootstrap, prefix=f"{own.prefix}visible.")
    await harness.make_topics(own.bootstrap, [f"{work.prefix}{SESSION_ITEMS}"], 2)
    assert await wait_until_visible(work)
    producer = AIOKafkaProducer(bootstrap_servers=own.bootstrap, transactional_id=f"{work.prefix}t")
    await producer.start()
    try:
        async with producer.transaction():
            await producer.send_and_wait(f"{work.prefix}{SESSION_ITEMS}", b"item", partition=1)
            assert not await wait_until_visible(work, 0.3)
            waiting = asyncio.create_task(wait_until_visible(work, 30))
        assert await waiting
    finally:
        await producer.stop()


async def test_a_live_prefix_is_never_written_by_a_worker_that_reads_another(live, prefix, tmp_path):
    await lab.make_topics(live.bootstrap, prefix)
    place = ("--bootstrap-servers", live.bootstrap, "--prefix", prefix, "--source-prefix", live.prefix)
    found = run([sys.executable, "-m", "reknit", "worker", *place, "--metrics-port", "0", "--state-dir", str(tmp_path)])
    assert found.returncode == 2
    assert f"must not write to '{prefix}', which is a live pipeline: it has inputs of its own" in found.stderr


def test_every_command_of_the_guide_is_run_with_two_builds(live, tmp_path):
    """The other build says something else where a call has no result."""
    other = tmp_path / "other"
    for package in ("pipeline", "topics", "reknit"):
        shutil.copytree(ROOT / package, other / package, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    place = other / "pipeline" / "history" / "placeholders.py"
    words = place.read_text(encoding="utf-8")
    assert words.count("[No result was recorded for this tool call") == 1
    place.write_text(words.replace("[No result was recorded", "[No result has been recorded"), encoding="utf-8")
    programs = {"reknit": ROOT, "reknit-now": ROOT, "reknit-next": other}
    directory = tmp_path / "bin"
    directory.mkdir()
    for name, build in programs.items():
        start = f"import sys; sys.path.insert(0, {str(build)!r}); from reknit.__main__ import main; sys.exit(main())"
        (directory / f"{name}.py").write_text(start)
        (directory / name).write_text(f'#!/bin/sh\nexec {sys.executable} -P {directory}/{name}.py "$@"\n')
        (directory / name).chmod(stat.S_IRWXU)
    settings = tmp_path / "reknit.toml"
    settings.write_text(lab.SETTINGS)
    env = environment(live.bootstrap, live.prefix) | {
        "REKNIT_CONFIG": str(settings),
        "REKNIT_METRICS_PORT": "0",
        "REKNIT_STATE_DIR": str(tmp_path / "state"),
    }
    env["PATH"] = f"{directory}:{env['PATH']}"
    env.pop("PYTHONPATH", None)
    said = {}
    for _, block in BLOCK.findall((ROOT / "docs" / "replay.md").read_text(encoding="utf-8")):
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block],
            check=False,
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
        said[block] = done.stdout
    (summary,) = [text for block, text in said.items() if "--html" in block]
    assert "[No result has been recorded" in summary
    page = (tmp_path / "upgrade.html").read_text(encoding="utf-8")
    assert "[No result has been recorded" in re.sub(r"</?(?:ins|del)>", "", page)
    assert "<ins>has been</ins>" in page
