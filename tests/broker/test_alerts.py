"""Each alert fires in a real Prometheus in its state; the viewer's pages show the states of brokers and workers."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import threading
import time
from wsgiref.simple_server import WSGIRequestHandler, make_server

import harness
import msgspec
import pipeline_lab as lab
import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from alerting import HASTE, RULES, Prometheus
from browser import browsing, needs_browser
from build import user
from prometheus_client import generate_latest
from published_records import OPENED, appended
from yaml import safe_load

from reknit.pipeline.config import load_config
from reknit.pipeline.metrics import Metrics
from reknit.pipeline.objects import ObjectSettings, open_objects
from reknit.pipeline.serve.metrics import GatewayMetrics
from reknit.pipeline.stages.base import Record, Result
from reknit.pipeline.stages.turns import TurnsStage
from reknit.pipeline.viewer import progress
from reknit.pipeline.viewer.guard import Guard
from reknit.pipeline.viewer.server import run_viewer
from reknit.topics import AGENT_TURNS, PROVIDER_EVENTS, PROVIDER_REQUESTS

pytestmark = pytest.mark.broker

PATIENCE = 240
HELLO = msgspec.json.encode(appended(user("hello"))[0])


@pytest.fixture(autouse=True)
def _prometheus_is_there(broker_is_required):
    if shutil.which("prometheus") is None:
        (pytest.fail if broker_is_required else pytest.skip)("prometheus is not installed (Debian package)")


# Faults of a worker and its broker; an alert and every page show them.

# A partition that waits does not end the worker.
SETTINGS = "stall_seconds = 600.0\n"
HEADER = "document.getElementById('status').textContent.replace(/\\s+/g, ' ')"
ROWS = "[...document.querySelectorAll('#progress tbody tr')].map((row) => [...row.cells].map((cell) => cell.innerText))"


@contextlib.asynccontextmanager
async def viewer_of(config, folder):
    """The URL of a viewer of this pipeline."""
    url = asyncio.get_running_loop().create_future()
    running = asyncio.create_task(
        run_viewer(config, Guard(), index_file=folder / "viewer.sqlite", on_start=url.set_result)
    )
    try:
        await asyncio.wait([running, url], return_when=asyncio.FIRST_COMPLETED)
        yield (await url).rstrip("/")
    finally:
        running.cancel()
        await asyncio.wait([running])


class Pipeline:
    """A pipeline with a broker of its own, and what looks at it: Prometheus, and an open page of the viewer."""

    def __init__(self, broker, config, store, prometheus, page):
        self.config, self.prometheus, self.page = config, prometheus, page
        self._broker, self._store = broker, store

    async def send(self, partition, *values, headers=()):
        """Write records of a session that is this partition's alone."""
        topic, key = self.config.prefix + AGENT_TURNS, b"session-%d" % partition
        async with AIOKafkaProducer(bootstrap_servers=self._broker.bootstrap) as producer:
            for value in values:
                await producer.send_and_wait(topic, value, key, partition=partition, headers=list(headers))

    async def processed(self, partition, offset):
        """Wait until the group's offset of a partition of the turns is this one."""
        topic, group = self.config.prefix + AGENT_TURNS, f"{self.config.prefix}reknit"
        async with asyncio.timeout(PATIENCE):
            while (await harness.committed(self._broker.bootstrap, group, topic)).get(partition) != offset:  # noqa: ASYNC110  Kafka has no event for it
                await asyncio.sleep(0.2)

    async def header(self, *words):
        """Wait until the header of the open page says this."""
        await self.page.until(" && ".join(f"{HEADER}.includes('{each}')" for each in words), PATIENCE)

    async def begin_stuck(self, partition):
        """Have a worker wait for an object of its store without an end; what ends it for the next worker."""
        settings = ObjectSettings(url=f"file://{self._store}")
        objects = open_objects(msgspec.structs.replace(self.config, objects=settings))
        key = await objects.put(b"session-%d" % partition, HELLO)
        (path,) = [path for path in self._store.rglob("*") if path.is_file()]
        path.unlink()
        os.mkfifo(path)  # opening it blocks until a writer comes
        await self.send(partition, None, headers=[("dataref", key.encode())])

        def end():
            path.unlink()
            path.write_bytes(HELLO)

        return end

    @contextlib.contextmanager
    def frozen_broker(self):
        """A broker that keeps its connections and answers nothing."""
        os.kill(self._broker.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._broker.pid, signal.SIGCONT)

    async def expire(self, partition):
        """Have retention remove all that a partition of the turns holds."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self._broker.bootstrap)
        await admin.start()
        try:
            place = TopicPartition(self.config.prefix + AGENT_TURNS, partition)
            await admin.delete_records({place: RecordsToDelete(-1)})
        finally:
            await admin.close()


@needs_browser
@pytest.mark.timeout(900)
async def test_a_dead_worker_a_frozen_broker_a_stuck_partition_and_a_lost_backlog_are_shown(
    own_broker, prefix, tmp_path, free_port, monkeypatch
):
    monkeypatch.setattr(progress, "STUCK_SECONDS", 8.0)
    await lab.make_topics(own_broker.bootstrap, prefix)
    config = load_config(env={}, overrides={"bootstrap_servers": own_broker.bootstrap, "prefix": prefix})
    ports = [free_port() for _ in range(2)]  # of the first worker, and of the one after it
    store = tmp_path / "objects"
    settings = {"top": SETTINGS, "more": f'[objects]\nurl = "file://{store}"\n'}
    async with contextlib.AsyncExitStack() as stack:
        fleet = stack.enter_context(
            lab.make_fleet(own_broker.bootstrap, prefix, tmp_path / "fleet", iter(ports).__next__, **settings)
        )
        prometheus = stack.enter_context(Prometheus(tmp_path / "prometheus", free_port(), ports))
        url = await stack.enter_async_context(viewer_of(config, tmp_path))
        browser = await stack.enter_async_context(browsing())
        page = await stack.enter_async_context(browser.tab())
        assert await page.go(f"{url}/progress") == 200
        await undergo(Pipeline(own_broker, config, store, prometheus, page), fleet)
        fired = await prometheus.fired(PATIENCE * 6)
        messages = page.did().messages
    assert messages == []
    # After an outage a worker opens its partitions again. Until then records of partition 0 wait, for seconds. In a
    # hastened rule those are minutes.
    brief = {
        alert
        for alert in fired
        if alert[0] == "ReknitPartitionWithoutOwner" or (alert[0] == "ReknitNoRecords" and "partition=0" in alert)
    }
    assert {alert for alert in fired - brief if f"pipeline={prefix}" in alert} == {
        ("ReknitNoRecords", f"pipeline={prefix}", f"topic={AGENT_TURNS}", "partition=1"),
        ("ReknitNoBroker", f"pipeline={prefix}"),
        ("ReknitNoWorker", f"pipeline={prefix}"),
        ("ReknitRecordsExpired", f"pipeline={prefix}", f"topic={AGENT_TURNS}"),
    }


async def undergo(pipeline, fleet):
    await pipeline.header(pipeline.config.prefix, pipeline.config.bootstrap_servers, "no worker")
    worker = fleet.start()
    await worker.ready(PATIENCE)
    for partition in range(lab.PARTITIONS):
        await pipeline.send(partition, msgspec.json.encode(OPENED), HELLO)
    await pipeline.header("keeps up")

    end_stuck = await pipeline.begin_stuck(1)
    await pipeline.send(1, HELLO)
    await pipeline.header("partition 1 of agent.turns.v1 stuck for", "2 records wait")
    await pipeline.send(0, HELLO)
    await pipeline.processed(0, 3)  # the worker continues with the other partitions
    await pipeline.prometheus.fires("ReknitNoRecords", topic=AGENT_TURNS, partition="1")
    waiting = f"{ROWS}.filter((row) => !row[3].startsWith('done')).map((row) => row.slice(0, 3).join())"
    await pipeline.page.until(f"{waiting}.join() === 'agent.turns.v1,1,2'", PATIENCE)

    with pipeline.frozen_broker():
        await pipeline.header("no broker has answered for")
        await pipeline.prometheus.fires("ReknitNoBroker", pipeline=pipeline.config.prefix)
    await pipeline.header("partition 1 of agent.turns.v1 stuck for")

    worker.kill()
    end_stuck()
    await pipeline.send(0, *[HELLO] * 50)
    await pipeline.header("no worker: 52 records wait")
    await pipeline.prometheus.fires("ReknitNoWorker", pipeline=pipeline.config.prefix)

    await pipeline.expire(0)
    await pipeline.header("no worker: 2 records wait", "50 records lost")
    await fleet.start().ready(PATIENCE)
    await pipeline.prometheus.fires("ReknitRecordsExpired", topic=AGENT_TURNS)
    # The worker resumes after the lost offsets, and the page still shows the loss.
    await pipeline.header("keeps up", "50 records lost")


# All alerts, from metrics as a worker exports them. One pipeline is ill in every way, its neighbour is well.

WEEK = 7 * 86_400 // HASTE
MISSED = '{"error": {"type": "invalid_request_error", "message": "the moon is in the wrong phase for tools"}}'


class Exporter:
    """Serves what a function gives, as a worker's port does, until it is stopped."""

    def __init__(self, port, page):
        def answer(_environ, start):
            start("200 OK", [("Content-Type", "text/plain; version=0.0.4; charset=utf-8")])
            return [page()]

        quiet = type("Quiet", (WSGIRequestHandler,), {"log_message": lambda *_: None})
        self._server = make_server("127.0.0.1", port, answer, handler_class=quiet)
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_error):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Worked:
    """The metrics of a worker of one pipeline."""

    def __init__(self, pipeline):
        self.metrics = Metrics(targets=["anthropic"], pipeline=pipeline)
        self._stage = TurnsStage()
        self._offset = 0
        for topic in (AGENT_TURNS, PROVIDER_EVENTS):
            self.metrics.on_partitions(topic, 3, 3)
            self.metrics.on_working(topic, range(3), 3)
            for partition in range(3):
                self.metrics.on_lag(topic, partition, 0)
                self.metrics.on_position(topic, partition, 0)
        self.metrics.watch_broker(lambda: 0.0)
        self._shown = b""
        self.show()

    def show(self):
        """Let scrapes see what was counted so far: none of them waits for that."""
        self._shown = generate_latest(self.metrics.registry)

    def page(self):
        return self._shown

    def take(self, session, *values):
        """Have a stage process records; what it publishes."""
        records = []
        for value in values:
            value = value if isinstance(value, bytes) else msgspec.json.encode(value)  # noqa: PLW2901  as it is sent
            records.append(Record(partition=0, offset=self._offset, key=session, value=value))
            self._offset += 1
        result = self._stage.process(records)
        self.metrics.on_commit(AGENT_TURNS, 0, result, len(records))
        return result.outputs

    def count(self, amount, name, *labels):
        self.metrics.on_commit(AGENT_TURNS, 0, Result(tally={(name, *labels): amount}), 0)

    def work(self, second):
        """Count as a healthy worker does in a second."""
        self.take(b"s%d" % second, OPENED, *appended(user("hello")))
        for topic in (AGENT_TURNS, PROVIDER_EVENTS):
            self.metrics.on_latency(topic, 0.01)
            for partition in range(3):
                self.metrics.on_position(topic, partition, second)
                # Records wait at every look, and others at each.
                self.metrics.on_lag(topic, partition, 5)


def fall_ill(worker):
    """Count faults that happen once."""
    metrics = worker.metrics
    worker.take(b"letter", b"no json")
    worker.take(b"rejected", {"type": "session.opened", "model": "m"}, *appended(user("without a limit")))
    (request,) = [
        each for each in worker.take(b"refused", OPENED, *appended(user("hello"))) if each.topic == PROVIDER_REQUESTS
    ]
    answer = {"type": "provider.answered", "request_id": dict(request.headers)["request-id"].decode(), "status": 400}
    worker.take(b"refused", answer | {"body": MISSED})
    metrics.on_poison(PROVIDER_EVENTS, 0)
    worker.count(1, "reknit_dead_letters_total", PROVIDER_EVENTS, "internal")
    metrics.on_expired(PROVIDER_EVENTS, 2, 3000)
    metrics.on_levels(AGENT_TURNS, 0, {"reknit_sessions_parked": 2})
    worker.count(300, "reknit_fixes_lossy_total", "result_synthesised", "anthropic")
    worker.count(300, "reknit_fixes_total", "result_moved", "")
    worker.count(50, "reknit_results_unseen_total", "claude-cli")
    worker.count(1, "reknit_gateway_mismatch_total", "anthropic")
    metrics.on_restored(AGENT_TURNS, 0, 1_000_000, 45.0)
    metrics.watch_broker(lambda: 60.0)


def be_ill(worker, second):
    """Show faults that last."""
    metrics = worker.metrics
    for _ in range(20):
        metrics.on_latency(AGENT_TURNS, 3.0)
    metrics.on_position(AGENT_TURNS, 0, 7)  # stuck, with few records
    metrics.on_lag(AGENT_TURNS, 1, 2000 + 100 * second)  # late, though it moves
    metrics.on_working(PROVIDER_EVENTS, {0, 1}, 3)


class Served:
    """The metrics of a gateway, for each second of work."""

    def __init__(self, pipeline):
        self.metrics = GatewayMetrics(pipeline)
        self.show()

    def show(self):
        self._shown = generate_latest(self.metrics.registry)

    def page(self):
        return self._shown

    def work(self):
        """Count as a healthy gateway does in a second."""
        metrics = self.metrics
        metrics.requests.labels("anthropic", "2xx").inc(10)
        metrics.repairs.labels("anthropic", "repaired").inc(10)
        metrics.fixes.labels("result_moved", "anthropic").inc()
        metrics.repair_seconds.observe(0.001)
        metrics.streams.labels("anthropic", "whole").inc(10)
        metrics.healed.labels("anthropic", "thinking_signature", "accepted").inc()
        metrics.log_incomplete.labels("turns").inc()
        metrics.log_bytes.inc(1000)
        metrics.log_records.labels(PROVIDER_EVENTS).inc(10)

    def be_ill(self):
        """Count as a gateway does in a second in which everything fails."""
        metrics = self.metrics
        metrics.requests.labels("anthropic", "5xx").inc(10)
        metrics.repairs.labels("anthropic", "late").inc(10)
        for _ in range(10):
            metrics.repair_seconds.observe(0.2)
        metrics.streams.labels("anthropic", "cut").inc(10)
        metrics.healed.labels("anthropic", "thinking_signature", "refused").inc()
        metrics.log_bytes.inc(1000)

    def fall_ill(self):
        """Count faults that happen once."""
        self.metrics.log_incomplete.labels("journal_full").inc()
        self.metrics.log_lost.labels("disk").inc()
        self.metrics.resent.labels("anthropic").inc()


def gateway_queries():
    """The queries of the gateways' dashboard, with Grafana's variables filled in."""
    board = RULES.parents[1] / "grafana" / "dashboards" / "gateway.json"
    panels = json.loads(board.read_text(encoding="utf-8"))["panels"]
    places = {"$job": "reknit-serve", "$__rate_interval": "1m", "$__range": "1m"}
    places |= dict.fromkeys(("$pipeline", "$instance", "$target"), ".*")
    queries = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    for place, value in places.items():
        queries = [query.replace(place, value) for query in queries]
    return queries


def last_week(pipelines):
    """The same hour a week ago: a worker that needed hardly a fix."""
    now = time.time()
    began = int(now) - WEEK - 180
    lines = []
    for name, labels, step in (
        ("reknit_build_info", 'version="0"', 0),
        ("reknit_records_consumed_total", f'topic="{AGENT_TURNS}"', 2),
        ("reknit_fixes_total", 'code="result_moved",target=""', 0.01),
        ("reknit_fixes_total", 'code="result_synthesised",target=""', 0.01),
    ):
        for pipeline in pipelines:
            series = f'{name}{{job="reknit",pipeline="{pipeline}",{labels}}}'
            lines += [f"{series} {1 + step * second} {began + second}\n" for second in range(0, 360, 5)]
    return "".join(lines) + "# EOF\n"


@pytest.mark.timeout(300)
async def test_each_alert_fires_in_its_state_and_none_for_a_healthy_neighbour(tmp_path, free_port):
    well, ill, ended = (Worked(name) for name in ("well.", "ill.", "ended."))
    well_gateway, ill_gateway = Served("well."), Served("ill.")
    starts = iter(range(10**6))

    def restarting():
        """A worker that has another start at each scrape."""
        return b'process_start_time_seconds{pipeline="ill."} %d\n' % next(starts)

    ports, gateways = [free_port() for _ in range(4)], [free_port() for _ in range(3)]
    pages = dict(zip(ports, (well.page, ill.page, restarting), strict=False))
    # No gateway has the third port.
    pages |= dict(zip(gateways, (well_gateway.page, ill_gateway.page), strict=False))
    with contextlib.ExitStack() as stack:
        for port, page in pages.items():
            stack.enter_context(Exporter(port, page))
        prometheus = stack.enter_context(
            Prometheus(tmp_path / "prometheus", free_port(), ports, last_week(["well.", "ill."]), gateways)
        )
        with Exporter(ports[3], ended.page):
            await prometheus.until('reknit_build_info{pipeline="ended."}')
            await prometheus.until('count_over_time(reknit_build_info{pipeline="ill."}[30s]) > 2')
        fall_ill(ill)
        ill_gateway.fall_ill()
        for second in range(40):
            well.work(second)
            ill.work(second)
            be_ill(ill, second)
            well_gateway.work()
            ill_gateway.be_ill()
            for each in (well, ill, well_gateway, ill_gateway):
                each.show()
            await asyncio.sleep(1)
        fired = await prometheus.fired(60)
        queries = gateway_queries()
        empty = [query for query in queries if not await asyncio.to_thread(prometheus.asked, query)]
    own = {alert for alert in fired if "pipeline=ended." in alert or "pipeline=ill." in alert}
    assert {alert for alert in fired if "pipeline=well." in alert} == set()
    turns, events = f"topic={AGENT_TURNS}", f"topic={PROVIDER_EVENTS}"
    assert own == {
        ("ReknitNoWorker", "pipeline=ended."),
        ("ReknitRestarts", "pipeline=ill."),
        ("ReknitNoBroker", "pipeline=ill."),
        ("ReknitPartitionWithoutOwner", "pipeline=ill.", events, "partition=2"),
        ("ReknitRestoreSlow", "pipeline=ill.", turns),
        ("ReknitLagGrowing", "pipeline=ill.", turns, "partition=1"),
        ("ReknitNoRecords", "pipeline=ill.", turns, "partition=0"),
        ("ReknitRecordsExpired", "pipeline=ill.", events),
        ("ReknitEndToEndSlow", "pipeline=ill.", turns),
        ("ReknitDeadLetters", "pipeline=ill.", turns, "code=not_json"),
        ("ReknitPoisonRecords", "pipeline=ill.", events),
        ("ReknitSessionsParked", "pipeline=ill."),
        ("ReknitRejectedRequests", "pipeline=ill.", "rule=ANT-37b", "target=anthropic"),
        ("ReknitRefusalsMissed", "pipeline=ill.", "outcome=unknown", "target=anthropic"),
        ("ReknitNewFixAppeared", "pipeline=ill.", "code=result_moved"),
        ("ReknitFixRateHigh", "pipeline=ill."),
        ("ReknitContentLost", "pipeline=ill.", "code=result_synthesised", "target=anthropic"),
        ("ReknitResultsUnseen", "pipeline=ill.", "source=claude-cli"),
        ("ReknitGatewayErrors", "pipeline=ill.", "upstream=anthropic"),
        ("ReknitGatewayStreamsCut", "pipeline=ill.", "target=anthropic"),
        ("ReknitGatewayUnrepaired", "pipeline=ill.", "outcome=late", "target=anthropic"),
        ("ReknitGatewayRepairSlow", "pipeline=ill."),
        ("ReknitGatewayHealingsRefused", "pipeline=ill.", "target=anthropic", "healing=thinking_signature"),
        ("ReknitGatewayJournalGrowing", "pipeline=ill."),
        ("ReknitGatewayLogIncomplete", "pipeline=ill.", "reason=journal_full"),
        ("ReknitGatewayRecordsLost", "pipeline=ill.", "reason=disk"),
        ("ReknitGatewayMismatch", "pipeline=ill.", "target=anthropic"),
    }
    groups = safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    assert {name for name, *_ in fired} == {rule["alert"] for group in groups for rule in group["rules"]}
    assert (len(queries) > 20, empty) == (True, [])
