"""The watchdogs of a worker, its health pages, and the order of the at-least-once writer."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from types import SimpleNamespace

import aiohttp
import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError
from prometheus_client import CollectorRegistry, Counter

from reknit.pipeline.engine import seams, services
from reknit.pipeline.engine import writer as writers
from reknit.pipeline.engine.commit import Batch
from reknit.pipeline.engine.lease import Lease
from reknit.pipeline.engine.partition import Phase
from reknit.pipeline.engine.runtime import EngineError, NoMetrics, Runtime, StartupError, Tuning
from reknit.pipeline.engine.sending import side_by_side
from reknit.pipeline.engine.services import Health, listen
from reknit.pipeline.engine.topic_ids import TopicWatch
from reknit.pipeline.settings import Config
from reknit.pipeline.stages.base import POSITION, Output

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
    return clock


def actor(done_to, phase=Phase.WORKING):
    return SimpleNamespace(topic="in.v1", number=0, done_to=done_to, phase=phase)


class Ends:
    """The log end offsets that the brokers report, one for all checks or one per check; an error if none answers.

    A check takes 5 s.
    """

    def __init__(self, clock, monkeypatch, end):
        self.clock, self.end, self.looks = clock, end, 0
        monkeypatch.setattr(services, "AIOKafkaConsumer", lambda **_: self)
        for pause in ("_LOOK_SECONDS", "_LOOK_AGAIN_SECONDS"):
            monkeypatch.setattr(services, pause, 0.001)

    async def start(self):
        pass

    async def stop(self):
        pass

    async def end_offsets(self, tps):
        self.looks += 1
        self.clock.now += 5
        end = self.end[min(self.looks, len(self.end)) - 1] if isinstance(self.end, list) else self.end
        if isinstance(end, BaseException):
            raise end
        return dict.fromkeys(tps, end)


async def watched(ends, actor_at, until, metrics=None, **stages):
    """Let a watchdog check one partition until something holds; return the failures for which it ended the worker."""
    runtime = Runtime(CONFIG, stages, metrics or NoMetrics(), Tuning(stall_seconds=60.0))
    runtime.partitions = 3
    stops = []
    place = TopicPartition("in.v1", 0)
    dog = services.Watchdog(
        runtime, services.Deadman(60.0), lambda: {place: actor_at(ends.looks)}, lambda: stops.append(runtime.failure)
    )
    await dog.start()
    try:
        async with asyncio.timeout(60):
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
        (lambda _: actor(5, Phase.PAUSED), 9),
        (lambda _: actor(5, Phase.OPENING), 9),
        (lambda _: actor(5), [9, *[KafkaConnectionError()] * 30, *[9] * 9]),
        (lambda _: actor(5), [9, *[asyncio.CancelledError()] * 30, *[9] * 9]),
    ],
    ids=[
        *("progress", "no lag", "rebalancing", "reading state"),
        *("no broker answers for a while", "the client cancels its requests for a while"),
    ],
)
async def test_these_are_not_stalls(clock, monkeypatch, actor_at, end):
    ends = Ends(clock, monkeypatch, end)
    assert await watched(ends, actor_at, lambda _: ends.looks >= 40) == []


async def test_a_stop_begins_no_request(monkeypatch):
    begun = []

    class Reader:
        async def start(self):
            begun.append("start")
            raise KafkaConnectionError

        async def stop(self):
            pass

    class Topics:
        async def look(self):
            begun.append("look")
            raise KafkaConnectionError

        async def close(self):
            pass

    monkeypatch.setattr(services, "AIOKafkaConsumer", lambda **_: Reader())
    runtime = Runtime(CONFIG, {}, NoMetrics(), Tuning())
    dog = services.Watchdog(runtime, services.Deadman(60.0), dict, lambda: None)
    for service in (dog, TopicWatch(runtime, Topics())):
        await service.start()
        await asyncio.sleep(0.01)
        await service.stop()
    assert begun == []


class Shown(NoMetrics):
    """Records the metrics of partitions, check by check."""

    def __init__(self):
        super().__init__()
        self.working, self.lags = [], []

    def on_working(self, topic, working, every):
        self.working.append((topic, sorted(working), every))

    def on_lag(self, topic, partition, records):
        self.lags.append(records)


@pytest.mark.parametrize(
    ("actor_at", "working", "lags"),
    [
        (lambda _: actor(5), [0], {4}),
        (lambda _: actor(5, Phase.PAUSED), [0], {4}),
        # Its state was never read, so its lag is unknown.
        (lambda _: actor(0, Phase.OPENING), [], set()),
        # Its state was read before, so its lag stays known while it is reopened.
        (lambda _: actor(5, Phase.OPENING), [], {4}),
        (lambda _: actor(5, Phase.CLOSED), [], {4}),
    ],
    ids=["working", "held", "reading state", "opened again", "closed"],
)
async def test_partition_metrics_by_phase(clock, monkeypatch, actor_at, working, lags):
    ends, metrics = Ends(clock, monkeypatch, 9), Shown()
    await watched(ends, actor_at, lambda _: ends.looks >= 3, metrics, **{"in.v1": None})
    assert set(map(repr, metrics.working)) == {repr(("in.v1", working, 3))}
    assert set(metrics.lags) == lags


async def test_partition_metrics_stay_unchanged_while_no_broker_answers(clock, monkeypatch):
    ends, metrics = Ends(clock, monkeypatch, [9, *[KafkaConnectionError()] * 40]), Shown()
    await watched(
        ends,
        lambda looks: actor(5, Phase.OPENING if looks else Phase.WORKING),
        lambda _: ends.looks >= 10,
        metrics,
        **{"in.v1": None},
    )
    assert metrics.lags[-1] is None
    assert len(metrics.working) == 1


async def test_while_no_broker_answers_the_log_names_the_error_once(clock, monkeypatch, caplog):
    monkeypatch.setattr("reknit.pipeline.engine.runtime.SILENT_SECONDS", 0.0)
    ends = Ends(clock, monkeypatch, KafkaConnectionError("secret content"))
    await watched(ends, actor, lambda _: ends.looks >= 5)
    said = [record.getMessage() for record in caplog.records if "no broker" in record.getMessage()]
    assert said == ["no broker at nobody:1 has answered for 0 s; waiting for one: KafkaConnectionError"]


@pytest.mark.parametrize(
    ("lines", "status", "said"),
    [
        ("d = Deadman(0.5)\nd.start()", 75, "the event loop has not turned for 0 s"),
        ("d = Deadman(600)\nd.start()\nd.must_end_within(0.3)", 75, "the worker did not stop in time"),
        ("d = Deadman(0.3)\nd.start()\nd.disarm()\ntime.sleep(1)\nraise SystemExit(3)", 3, ""),
    ],
)
def test_the_deadman_ends_the_process_unless_it_is_disarmed(lines, status, said):
    script = f"import time\nfrom reknit.pipeline.engine.services import Deadman\n{lines}\ntime.sleep(20)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
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
        monkeypatch.setattr("reknit.pipeline.engine.services.DEFAULT_METRICS_PORT", health.port)
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
    monkeypatch.setattr(
        seams, "AIOKafkaProducer", lambda **_: SimpleNamespace(_sender=SimpleNamespace(sender_task=None))
    )
    monkeypatch.setattr(seams, "time", clock)
    steps = Steps(clock)
    runtime = Runtime(CONFIG, {}, NoMetrics(), Tuning(session_seconds=10.0))
    made = writers.AtLeastOnceWriter(runtime, "state.v1", 0)
    made._sender = steps
    return made, steps


BATCH = Batch([Output("out.v1", b"k", b"v")], {b"k": b"1", b"gone": None}, 7, lease=Lease(110.0))
OUTPUTS = ("outputs", [b"v"])
STATE = ("state.v1", [(b"k", b"1"), (b"gone", None), (POSITION, b"7")])


async def test_outputs_are_written_before_the_state_with_the_position(writer):
    made, steps = writer
    await made.write(BATCH)
    assert steps.steps == [OUTPUTS, STATE]


@pytest.mark.parametrize(("slow", "left"), [("outputs", [OUTPUTS]), ("state.v1", [OUTPUTS, STATE])])
async def test_a_batch_that_outlives_the_lease_is_given_up(writer, slow, left):
    made, steps = writer
    steps.slow = slow
    with pytest.raises(EngineError) as error:
        await made.write(BATCH)
    assert (error.value.code, steps.steps) == ("stuck", left)


async def test_concurrent_calls_raise_the_bare_error_and_cancel_the_rest():
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
