"""Failures that a worker survives, and what is seen of them: brokers that go away, commits of unknown outcome."""

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from pathlib import Path

import harness
import pipeline_lab as lab
import pytest
import toy_stage
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from reknit.topics import AGENT_TURNS

pytestmark = pytest.mark.broker

MARK = "planted-9c1f"
AWAY_SECONDS = 60
ALERTS = Path(__file__).parents[2] / "deploy" / "prometheus" / "alerts.yml"


def samples(page, name):
    return {
        line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith(name)
    }


async def until(condition, seconds, worker):
    deadline = harness.deadline_after(seconds)
    while not await asyncio.to_thread(condition):
        assert worker.running, worker.tail()
        assert time.monotonic() < deadline, worker.tail()
        await asyncio.sleep(0.2)


async def _is_fenced(bootstrap, prefix, worker):
    """Take the transactional id of a partition that stays assigned; return whether the worker has reported it.

    A slow commit is followed by a new epoch, which fences this producer instead. So one attempt is not enough.
    """
    name = f"{prefix}reknit-{SOURCES[0]}-0"
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=name):
        pass
    await asyncio.sleep(1)
    return "is opened anew: another worker took" in worker.tail(1 << 20)


def marked(n):
    """A session whose every text is planted: a turn, then records that become dead letters."""
    turn = {"role": "user", "content": [{"type": "text", "text": MARK}]}
    yield AGENT_TURNS, b"%s-%d" % (MARK.encode(), n), json.dumps(turn).encode(), []
    for _ in range(20):
        yield AGENT_TURNS, b"%s-%d" % (MARK.encode(), n), b'{"role": "%s"' % MARK.encode(), []


class Prometheus:
    """A real one that scrapes a worker every second; if the program is not installed, nothing is checked."""

    def __init__(self, folder, port, worker):
        self._program = shutil.which("prometheus")
        self._folder, self._port, self._worker = folder, port, worker
        self._process = None

    def __enter__(self):
        if self._program is None:
            return self
        self._folder.mkdir()
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(ALERTS)],
            "scrape_configs": [
                {"job_name": "reknit", "static_configs": [{"targets": [f"127.0.0.1:{self._worker.port}"]}]}
            ],
        }
        (self._folder / "prometheus.yml").write_text(json.dumps(config))
        command = [self._program, "--config.file", str(self._folder / "prometheus.yml")]
        command += ["--storage.tsdb.path", str(self._folder / "data")]
        command += [f"--web.listen-address=127.0.0.1:{self._port}"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return self

    def __exit__(self, *_error):
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def fires(self, alert, **labels):
        """Return True if the alert fires; always True without Prometheus."""
        if self._process is None:
            return True
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{self._port}/api/v1/alerts") as page,
        ):
            found = [one for one in json.load(page)["data"]["alerts"] if one["state"] == "firing"]
            wanted = {"alertname": alert, **labels}.items()
            return any(wanted <= one["labels"].items() for one in found)
        return False

    def silent(self, alert):
        return self._process is None or not self.fires(alert)


async def test_a_minute_without_a_broker_is_seen_and_survived(own_broker, prefix, tmp_path, free_port, monkeypatch):
    monkeypatch.setenv("REKNIT_LOG_FORMAT", "json")
    async with lab.workers(own_broker.bootstrap, prefix, tmp_path, free_port) as fleet:
        worker = fleet.start()
        with Prometheus(tmp_path / "prometheus", free_port(), worker) as prometheus:
            await without_a_broker(own_broker, prefix, worker, prometheus)


async def without_a_broker(own_broker, prefix, worker, prometheus):
    await worker.ready(60)
    async with lab.Feeder(own_broker.bootstrap, prefix, 200) as feeder:
        await asyncio.sleep(3)
    async with lab.Feeder(own_broker.bootstrap, prefix, 500, marked(1)) as planted:
        await planted.wait()
    await until(lambda: samples(worker.ask("/metrics")[1], "reknit_consumer_lag_records"), 20, worker)
    await until(lambda: prometheus.fires("ReknitDeadLetters", code="not_json"), 20, worker)
    assert prometheus.silent("ReknitNoBroker")
    lines = len(worker.log.read_text().splitlines())
    # Records are on their way when it dies: the commit in flight has an unknown outcome.
    with contextlib.suppress(KafkaError):
        async with lab.Feeder(own_broker.bootstrap, prefix, 500):
            await asyncio.sleep(1)
            await asyncio.to_thread(own_broker.kill)
    began = time.monotonic()
    await until(lambda: worker.ask("/readyz")[0] == 503, 20, worker)
    await until(lambda: "no broker has answered for" in worker.ask("/readyz")[1], 20, worker)
    assert worker.ask("/livez")[0] == 200
    await asyncio.sleep(max(0.0, AWAY_SECONDS - (time.monotonic() - began)))
    said = worker.log.read_text().splitlines()
    assert len(said) - lines < 100, "\n".join(said)
    page = worker.ask("/metrics")[1]
    (silent,) = samples(page, "reknit_broker_silent_seconds{").values()
    assert silent > AWAY_SECONDS - 15
    assert samples(page, "reknit_consumer_lag_records{") == {}, "nobody knows the lag"
    assert prometheus.fires("ReknitNoBroker")
    await asyncio.to_thread(own_broker.start)
    await worker.ready(20)
    await until(lambda: prometheus.silent("ReknitNoBroker"), 20, worker)
    async with lab.Feeder(own_broker.bootstrap, prefix, 300, lab.script(1)):
        await asyncio.sleep(2)
    await lab.drained(own_broker.bootstrap, prefix)
    counted = await lab.audit(own_broker.bootstrap, prefix)
    assert counted["sessions"] > 5
    page = worker.ask("/metrics")[1]
    assert await worker.stop() == 0
    said = worker.log.read_text()
    events = [json.loads(line) for line in said.splitlines()]
    told = [event["event"] for event in events]
    for one in ("ready, with 8 partitions", "a broker answers again, after", "stopping: SIGTERM", "stopped"):
        assert any(event.startswith(one) for event in told), f"{one}\n{said}"
    assert any("became a dead letter: not_json" in event for event in told)
    for word in ("Traceback", "Unclosed", MARK):
        assert word not in said
    assert MARK not in page
    assert "_created" not in page
    for name in ("process_cpu_seconds_total", "process_open_fds", "process_resident_memory_bytes", "python_gc_"):
        assert samples(page, name)
    assert feeder.sent


SOURCES = toy_stage.SOURCES


@pytest.mark.parametrize("failpoint", ["lost before the commit", "lost after the commit", "no end"])
async def test_a_commit_of_unknown_outcome_reopens_the_partition(broker, prefix, tmp_path, free_port, failpoint):
    tuning = {"session_seconds": 6.0, "heartbeat_seconds": 1.0, "batch_seconds": 4.0}
    async with harness.toys(
        broker.bootstrap, prefix, tmp_path, free_port, partitions=2, tuning=tuning, failpoint=failpoint
    ) as fleet:
        worker = fleet.start()
        sources = [prefix + source for source in SOURCES]
        async with harness.Feeder(broker.bootstrap, sources, 2, 300):
            await worker.ready()
            await until(lambda: worker.tail(1 << 20).count("is opened anew") >= 3, 40, worker)
            await worker.ready()
            while not await _is_fenced(broker.bootstrap, prefix, worker):
                assert worker.running, worker.tail()
        await harness.caught_up(broker.bootstrap, prefix + toy_stage.OUT, sources, 2, 60)
        total = await harness.audit(broker.bootstrap, prefix, toy_stage.ToyStage, SOURCES, [toy_stage.OUT], 2)
        assert total > 500
        assert await worker.stop() == 0


async def test_a_frozen_worker_whose_partitions_moved_continues_with_its_new_assignment(
    broker, prefix, tmp_path, free_port
):
    tuning = {"session_seconds": 4.0, "heartbeat_seconds": 1.0, "rebalance_seconds": 8.0}
    async with harness.toys(
        broker.bootstrap,
        prefix,
        tmp_path,
        free_port,
        partitions=2,
        tuning=tuning,
        failpoint=str(tmp_path / "freeze"),
    ) as fleet:
        frozen = fleet.start()
        await frozen.ready()
        sources = [prefix + source for source in SOURCES]
        async with harness.Feeder(broker.bootstrap, sources, 2, 200):
            await asyncio.sleep(2)
            (tmp_path / "freeze").touch()  # the failpoint: it stops itself in the middle of a transaction
            await asyncio.sleep(1)
            other = fleet.start()
            await other.ready(40)
            await asyncio.sleep(1)
            frozen.signal(signal.SIGCONT)
            await asyncio.sleep(8)
        said = frozen.log.read_text()
        assert (frozen.status, "Traceback" in said) == (None, False), said
        await harness.caught_up(broker.bootstrap, prefix + toy_stage.OUT, sources, 2, 60)
        assert await harness.audit(broker.bootstrap, prefix, toy_stage.ToyStage, SOURCES, [toy_stage.OUT], 2) > 200
        assert await other.stop() == 0


PHASES = ("at once", "once no broker answers", "after a while", "once a broker answers again")


@pytest.mark.parametrize("kind", ["refuses", "is silent"])
async def test_sigterm_ends_a_worker_in_order_in_each_phase_of_an_outage(own_broker, tmp_path, free_port, kind):
    async with contextlib.AsyncExitStack() as made:
        fleets = {
            phase: await made.enter_async_context(
                lab.workers(own_broker.bootstrap, f"p{number}.", tmp_path / f"{number}", free_port)
            )
            for number, phase in enumerate(PHASES)
        }
        for number in range(len(PHASES)):  # a backlog, so that batches are in flight
            rows = itertools.islice(lab.script(100), 3_000)
            async with lab.Feeder(own_broker.bootstrap, f"p{number}.", 1_000_000, rows) as feeder:
                await feeder.wait()
        workers = {phase: fleet.start() for phase, fleet in fleets.items()}
        await asyncio.gather(*(worker.ready(60) for worker in workers.values()))
        if kind == "refuses":
            await asyncio.to_thread(own_broker.kill)
        else:
            os.kill(own_broker.pid, signal.SIGSTOP)
        statuses = {"at once": await workers["at once"].stop(30)}
        silent = workers["once no broker answers"]
        await until(lambda: "no broker has answered for" in silent.ask("/readyz")[1], 30, silent)
        statuses["once no broker answers"] = await silent.stop(20)
        statuses["after a while"] = await workers["after a while"].stop(20)
        if kind == "refuses":
            await asyncio.to_thread(own_broker.start)
        else:
            os.kill(own_broker.pid, signal.SIGCONT)
        statuses["once a broker answers again"] = await workers["once a broker answers again"].stop(20)
        said = {phase: worker.tail(1 << 20) for phase, worker in workers.items()}
        given_up = {phase: "did not stop in time" in log or "Traceback" in log for phase, log in said.items()}
        assert (statuses, given_up) == (dict.fromkeys(PHASES, 0), dict.fromkeys(PHASES, False)), "\n".join(
            f"{phase}:\n{log}" for phase, log in said.items()
        )
        await fleets["at once"].start().ready(20)
        await lab.drained(own_broker.bootstrap, "p0.")
        assert (await lab.audit(own_broker.bootstrap, "p0."))["sessions"] > 1
