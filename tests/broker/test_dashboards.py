"""Every query of the dashboards, asked of a real Prometheus that scraped a worker under the demo's load."""

import asyncio
import json
import math
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
import yaml

from reknit.pipeline.cli.topics import apply
from reknit.pipeline.config import load_config
from reknit.pipeline.demo.actors import Worker, count_records, feed
from reknit.pipeline.demo.recordings import fleet
from reknit.pipeline.fixes import FIXES
from reknit.pipeline.kafka.admin import connected
from reknit.topics.cluster import wanted

pytestmark = pytest.mark.broker

DEPLOY = Path(__file__).parents[2] / "deploy"
# The demo has no gateway; `test_alerts` asks the queries of its board.
BOARDS = sorted(set((DEPLOY / "grafana" / "dashboards").glob("*.json")) - {DEPLOY / "grafana/dashboards/gateway.json"})
QUERIES = [
    (board.stem, panel["title"], target["expr"])
    for board in BOARDS
    for panel in json.loads(board.read_text(encoding="utf-8"))["panels"]
    for target in panel.get("targets", ())
]
# The values of Grafana's variables.
PLACES = {
    "$job": "reknit",
    "$pipeline": ".*",
    "$instance": ".*",
    "$target": ".*",
    "$__rate_interval": "5s",
    "$__range": "1m",
}
# Panels of events that do not happen in the demo. They show values above 0; the series that they select must exist.
QUIET = {
    "Headers dropped",
    "Healed requests",
    "Only observed",
    "Refusals by rule",
    "Refusals not foreseen",
    "Results never shown, per hour",
    "Precision of soft rules",
    "Requests with soft violations",
    "Partitions with the largest lag",
}
# The board compares with records of a week ago. They have all fixes of the demo except this one.
NEW_FIX = "result_moved"
WEEK = 7 * 24 * 60 * 60
SECONDS = 240
# Requests to the loopback address must not use a proxy of the environment.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@pytest.fixture
def worker_port(free_port):
    return free_port()


@pytest.fixture
def prometheus(tmp_path, free_port, worker_port, broker_is_required):
    """The address of a Prometheus with our rules that scrapes the worker every second."""
    if shutil.which("prometheus") is None:
        (pytest.fail if broker_is_required else pytest.skip)("prometheus is not installed (Debian package)")
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(DEPLOY / "prometheus" / name) for name in config["rule_files"]]
    targets = [f"127.0.0.1:{worker_port}"]
    config["scrape_configs"] = [{"job_name": "reknit", "static_configs": [{"targets": targets}]}]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    data = tmp_path / "data"
    record_last_week(tmp_path / "week.txt", data)
    port = free_port()
    command = [
        "prometheus",
        f"--config.file={tmp_path}/prometheus.yml",
        f"--storage.tsdb.path={data}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    with (tmp_path / "prometheus.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    with server:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


def record_last_week(file, data):
    at = int(time.time()) - WEEK
    lines = [
        f'reknit:fixes:increase1h{{job="reknit",code="{code}",target=""}} 1 {second}\n'
        for code in FIXES
        for second in range(at - 300, at + 300, 60)
        if code != NEW_FIX
    ]
    file.write_text("".join(lines) + "# EOF\n")
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(file), str(data)]
    subprocess.run(command, check=True, capture_output=True, timeout=240)


@pytest.fixture
async def config(tmp_path, broker, prefix, worker_port):
    """That of a worker that runs and has its partitions; it does not outlive the test."""
    config = load_config(
        env={},
        overrides={
            "bootstrap_servers": broker.bootstrap,
            "prefix": prefix,
            "partitions": 3,
            "metrics_port": worker_port,
            "state_dir": str(tmp_path / "state"),
        },
    )
    async with connected(config) as cluster:
        await apply(cluster, wanted(prefix=prefix, partitions=config.partitions, replication_factor=1))
    worker = Worker(config, tmp_path / "worker.log")
    worker.start(embedded=False)
    try:
        async with asyncio.timeout(SECONDS):
            await worker.ready(lambda: None)
        yield config
    finally:
        await asyncio.to_thread(worker.stop)


def values(url, expression, began):
    """The values of each series since then, at every second."""
    asked = {"query": expression, "start": began, "end": time.time(), "step": 1}
    with DIRECT.open(f"{url}/api/v1/query_range?{urllib.parse.urlencode(asked)}", timeout=10) as answer:
        found = json.load(answer)["data"]["result"]
    return [[float(value) for _, value in series["values"]] for series in found]


def filled_in(expression):
    for place, value in PLACES.items():
        expression = expression.replace(place, value)
    return expression


async def until(url, expression):
    """Wait until the query has a result."""
    async with asyncio.timeout(SECONDS):
        while not await asyncio.to_thread(values, url, expression, time.time()):  # noqa: ASYNC110  it has no event for an event loop
            await asyncio.sleep(0.2)


async def test_every_query_shows_something(prometheus, config):
    began = time.time()
    await until(prometheus, "reknit_broker_silent_seconds")
    recordings = fleet()
    # The feed does not wait for the worker's records: only the load counts here.
    await feed(config, {one.session: one for one in recordings}, lambda _: sys.maxsize, lambda: None)
    await until(prometheus, f"sum(reknit_records_consumed_total) >= {count_records(recordings)}")
    await asyncio.sleep(2)  # one scrape more, and the recording rules
    empty = []
    for board, title, expression in QUERIES:
        asked = filled_in(expression)
        series = await asyncio.to_thread(values, prometheus, asked, began)
        if title in QUIET:
            shows = bool(series or await asyncio.to_thread(values, prometheus, asked.removesuffix(" > 0"), began))
        else:
            shows = any(not math.isnan(value) for one in series for value in one)
        if not shows:
            empty.append(f"{board}: {title}: {asked}")
    assert not empty, "\n".join(empty)
