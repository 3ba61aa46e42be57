"""What notices that a worker only looks alive, what it serves, and the order of the at-least-once writer."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from types import SimpleNamespace

import aiohttp
import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError
from faust.transport.consumer import Fetcher
from faust.transport.drivers import aiokafka as driver
from faust.types import TP
from msgspec import structs
from prometheus_client import CollectorRegistry, Counter

from pipeline.engine import services
from pipeline.engine import writer as writers
from pipeline.engine.partition import Phase
from pipeline.engine.runtime import EngineError, NoMetrics, Runtime, StartupError, Tuning
from pipeline.engine.services import Health, listen
from pipeline.engine.transport import SpanThread
from pipeline.engine.worker import make_app
from pipeline.engine.writer import Batch, side_by_side
from pipeline.settings import Config
from pipeline.stages.base import POSITION, Output

CONFIG = Config(bootstrap_servers="nobody:1", prefix="p.", delivery="at-least-once")


class Clock:
    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(services, "time", clock)
    monkeypatch.setattr(writers, "time", clock)
    return clock


def actor(done_to, phase=Phase.WORKING):
    return SimpleNamespace(topic="in.v1", number=0, done_to=done_to, phase=phase)


class Ends:
    """What the brokers say of the log's end, always or look by look; an error where none answers. A look takes 5 s."""

    def __init__(self, clock, monkeypatch, end):
        self.clock, self.end, self.looks = clock, end, 0
        monkeypatch.setattr(services, "AIOKafkaConsumer", lambda **_: self)
        monkeypatch.setattr(services, "_LOOK_SECONDS", 0.001)

    async def start(self):
        pass

    async def stop(self):
        pass

    async def end_offsets(self, tps):
        self.looks += 1
        self.clock.now += 5
        end = self.end[min(self.looks, len(self.end)) - 1] if isinstance(self.end, list) else self.end
        if isinstance(end, Exception):
            raise end
        return dict.fromkeys(tps, end)


async def watched(ends, actor_at, until):
    """Let a watchdog look at one partition until something holds; the failures for which it ended the worker."""
    runtime = Runtime(CONFIG, {}, NoMetrics(), Tuning(stall_seconds=60.0))
    stops = []
    place = TopicPartition("in.v1", 0)
    dog = services.Watchdog(
        runtime, services.Deadman(60.0), lambda: {place: actor_at(ends.looks)}, lambda: stops.append(runtime.failure)
    )
    await dog.start()
    try:
        async with asyncio.timeout(10):
            while not until(stops):  # noqa: ASYNC110 - polls what the watchdog changes by itself
                await asyncio.sleep(0.001)
    finally:
        await dog.stop()
    return stops


async def test_lag_without_progress_ends_the_worker(clock, monkeypatch):
    ends = Ends(clock, monkeypatch, 9)
    (failure,) = await watched(ends, lambda _: actor(5), bool)
    assert failure.code == "stalled"
    assert failure.message == "in.v1 partition 0 stays at offset 5 of 9 for 60 s"
    assert ends.looks >= 14, "60 s are 12 looks after the first"


@pytest.mark.parametrize(
    ("actor_at", "end"),
    [
        (actor, 99),
        (lambda _: actor(5), 5),
        (lambda _: actor(5, Phase.HELD), 9),
        (lambda _: actor(5, Phase.OPENING), 9),
        (lambda _: actor(5), [9, *[KafkaConnectionError()] * 30, *[9] * 9]),
    ],
    ids=["progress", "no lag", "rebalancing", "reading state", "no broker answers for a while"],
)
async def test_what_is_no_stall(clock, monkeypatch, actor_at, end):
    ends = Ends(clock, monkeypatch, end)
    assert await watched(ends, actor_at, lambda _: ends.looks >= 40) == []


@pytest.mark.parametrize(
    ("lines", "status", "said"),
    [
        ("d = Deadman(0.5)\nd.start()", 75, "the event loop has not turned for 0 s"),
        ("d = Deadman(600)\nd.start()\nd.must_end_within(0.3)", 75, "the worker did not stop in time"),
        ("d = Deadman(0.3)\nd.start()\nd.disarm()\ntime.sleep(1)\nraise SystemExit(3)", 3, ""),
    ],
)
def test_the_deadman_ends_the_process_unless_it_is_disarmed(lines, status, said):
    script = f"import time\nfrom pipeline.engine.services import Deadman\n{lines}\ntime.sleep(20)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=15, check=False)
    assert done.returncode == status
    assert said in done.stderr


async def get(port, path):
    async with aiohttp.ClientSession() as client, client.get(f"http://127.0.0.1:{port}{path}") as answer:
        return answer.status, await answer.text()


async def test_health_pages(monkeypatch):
    registry = CollectorRegistry()
    Counter("reknit_things_total", "Things.", registry=registry).inc(3)
    wrong = {"live": None, "ready": "reading state"}
    health = Health(registry, lambda: wrong["live"], lambda: wrong["ready"], listen("127.0.0.1", 0))
    await health.on_start()
    try:
        assert await get(health.port, "/livez") == (200, "ok\n")
        assert await get(health.port, "/readyz") == (503, "reading state\n")
        wrong |= {"live": "stuck", "ready": None}
        assert await get(health.port, "/livez") == (503, "stuck\n")
        assert await get(health.port, "/readyz") == (200, "ok\n")
        status, text = await get(health.port, "/metrics")
        assert status == 200
        assert "reknit_things_total 3.0" in text
        with pytest.raises(StartupError) as refused:
            listen("127.0.0.1", health.port)
        assert f"cannot listen on 127.0.0.1 port {health.port}: Address already in use" in refused.value.message
        monkeypatch.setattr("pipeline.engine.services.DEFAULT_METRICS_PORT", health.port)
        with listen("127.0.0.1", health.port) as other:
            assert other.getsockname()[1] not in {0, health.port}, "nobody asked for the default port"
    finally:
        await health.on_stop()


class Steps:
    """Records the steps of an AtLeastOnceWriter instead of sending."""

    def __init__(self, clock):
        self.steps = []
        self.clock = clock
        self.slow = None

    async def send_outputs(self, outputs):
        await self._step("outputs", [output.value for output in outputs])

    async def send(self, topic, rows):
        await self._step(topic, [(key, value) for key, value, _ in rows])

    async def _step(self, name, what):
        if name == self.slow:
            self.clock.now += 11.0
        self.steps.append((name, what))


@pytest.fixture
async def writer(clock, monkeypatch):
    monkeypatch.setattr(writers, "AIOKafkaProducer", lambda **_: None)
    steps = Steps(clock)
    runtime = Runtime(CONFIG, {}, NoMetrics(), Tuning(session_seconds=10.0))
    made = writers.AtLeastOnceWriter(runtime, "state.v1", 0)
    made._sender = steps
    return made, steps


BATCH = Batch([Output("out.v1", b"k", b"v")], {b"k": b"1", b"gone": None}, 7)


async def test_outputs_come_before_the_state_with_the_position_in_it(writer):
    made, steps = writer
    await made.write(BATCH)
    assert steps.steps == [
        ("outputs", [b"v"]),
        ("state.v1", [(b"k", b"1"), (b"gone", None), (POSITION, b"7")]),
    ]


@pytest.mark.parametrize(("slow", "left"), [("outputs", 1), ("state.v1", 2)])
async def test_a_batch_older_than_the_session_is_given_up(writer, slow, left):
    made, steps = writer
    steps.slow = slow
    with pytest.raises(EngineError) as error:
        await made.write(BATCH)
    assert error.value.code == "stuck"
    assert len(steps.steps) == left


async def test_side_by_side_raises_the_bare_error_and_cancels_the_rest():
    cancelled = asyncio.Event()

    async def waits():
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def fails():
        await asyncio.sleep(0)
        raise EngineError("fenced", "x")

    with pytest.raises(EngineError):
        await side_by_side(waits(), fails())
    assert cancelled.is_set()


@pytest.fixture
def app(tmp_path):
    """An app whose client's thread has not been started."""
    made = make_app(Runtime(structs.replace(CONFIG, state_dir=str(tmp_path)), {}, NoMetrics(), Tuning()))
    yield made
    made.consumer._thread.thread_loop.close()


async def test_a_worker_that_stops_during_a_rebalance_does_not_count_as_crashed(app):
    app.rebalancing = True
    fetcher = Fetcher(app)
    await fetcher.start()
    await asyncio.sleep(0)  # it waits for the rebalance to end
    await fetcher.stop()
    assert fetcher.crash_reason is None


async def test_nothing_is_committed_while_the_group_rebalances(app, monkeypatch):
    async def by_faust(*_arguments):
        pass

    async def call(_thread, method, *arguments):
        called.append((method.__name__, *arguments))
        return True

    called, place = [], TP("in.v1", 0)
    for name in ("on_partitions_revoked", "on_partitions_assigned"):
        monkeypatch.setattr(driver.Consumer, name, by_faust)
    monkeypatch.setattr(SpanThread, "call_thread", call)
    consumer = app.consumer
    for generation in (1, 2):
        called.clear()
        await consumer.on_partitions_revoked(set())
        committing = asyncio.create_task(consumer._thread.commit_positions({place: 5}))
        assert await consumer._thread.is_ours(place, 5) is None
        await asyncio.sleep(0)
        assert called == []
        await consumer.on_partitions_assigned(set(), generation)
        await committing
        assert await consumer._thread.is_ours(place, 5) is True
        assert called == [("_commit_positions", {place: 5}), ("_commit_as_owner", place, 5)]
