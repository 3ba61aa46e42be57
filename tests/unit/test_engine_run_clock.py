"""The clock of the time in which a worker could run, and the guards that count only this time."""

from __future__ import annotations

import logging
import subprocess
import sys
from types import SimpleNamespace

import pytest
from aiokafka import TopicPartition

from reknit.pipeline.engine import services
from reknit.pipeline.engine.partition import Phase
from reknit.pipeline.engine.run_clock import RunClock, processor_time_of
from reknit.pipeline.engine.runtime import NoMetrics, Runtime, Tuning
from reknit.pipeline.settings import Config

PLACE = ("in.v1", 0)


class Machine:
    """A machine's clock, and the processor time that a process has used."""

    def __init__(self):
        self.now = self.used = 100.0

    def run(self, seconds, used=0.0):
        self.now += seconds
        self.used += used

    def clock(self, interval_seconds=1.0, **more):
        return RunClock(interval_seconds, lambda: self.used, lambda: self.now, **more)


@pytest.mark.parametrize(
    ("seconds", "used", "lost"),
    [
        (1.0, 0.0, 0.0),  # idle, and on time
        (1.0, 1.0, 0.0),
        (2.0, 0.1, 0.0),  # late by less than an interval
        (60.0, 0.0, 60.0),  # stopped
        (60.0, 1.5, 58.5),  # starved
        (60.0, 60.0, 0.0),  # busy by itself
        (60.0, 110.0, 0.0),  # in two threads
    ],
)
def test_lost_time_is_the_delay_of_a_tick_minus_the_processor_time_used(seconds, used, lost):
    machine = Machine()
    clock = machine.clock()
    for total in (lost, 2 * lost):
        machine.run(seconds, used)
        clock.tick()
        assert clock.lost == pytest.approx(total)


@pytest.mark.parametrize(("used", "lost"), [(0.0, 0.0), (0.002, 0.0), (0.05, 0.2), (0.25, 0.0)])
def test_for_a_busy_thread_only_processor_time_counts_even_if_ticks_are_on_time(used, lost):
    machine = Machine()
    clock = machine.clock(0.25, busy_share=0.01)
    machine.run(0.25, used)
    clock.tick()
    assert clock.lost == pytest.approx(lost)


def test_the_processor_time_of_a_thread_is_its_own():
    script = (
        "import threading, time\n"
        "from reknit.pipeline.engine.run_clock import processor_time_of\n"
        "used = processor_time_of(threading.get_ident())\n"
        "busy = threading.Thread(target=lambda: sum(range(10**7)))\n"
        "before, whole = used(), time.process_time()\n"
        "busy.start()\n"
        "busy.join()\n"
        "print(used() - before < (time.process_time() - whole) / 2)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "True\n"


def test_without_thread_clocks_the_process_clock_is_read(monkeypatch):
    monkeypatch.delattr("time.pthread_getcpuclockid", raising=False)
    assert processor_time_of(1)() > 0


# A partition that does not move.


class Watched:
    """A watchdog over a partition that stays at offset 5 of 9, with a machine's clock."""

    def __init__(self, monkeypatch, machine):
        self.machine = machine
        monkeypatch.setattr(services, "time", SimpleNamespace(monotonic=lambda: machine.now))
        self.runtime = Runtime(Config(prefix="p."), {}, NoMetrics(), Tuning(stall_seconds=60.0))
        self.runtime.run_clock = machine.clock()
        actor = SimpleNamespace(topic="in.v1", number=0, done_to=5, phase=Phase.WORKING)
        self.actor = actor
        actors = {TopicPartition(*PLACE): actor}
        self._dog = services.Watchdog(self.runtime, services.Deadman(600.0), lambda: actors, lambda: None)

    def look(self, times, seconds, used, *, steps=0):
        """Check ``times`` times. Before each check the clock ticks once after ``seconds``; more than 2 is late."""
        for _ in range(times):
            self.machine.run(seconds, used)
            self.runtime.run_clock.tick()
            self.runtime.steps[PLACE] += steps
            self._dog._look_at(self.actor, 9)

    @property
    def failure(self):
        return self.runtime.failure and self.runtime.failure.message


@pytest.fixture
def watched(monkeypatch):
    return Watched(monkeypatch, Machine())


STALLED = "in.v1 partition 0 stays at offset 5 of 9 for 60 s"


@pytest.mark.parametrize(
    ("seconds", "used"), [(1.0, 0.01), (1.0, 1.0), (30.0, 30.0)], ids=["idle", "busy", "in bursts"]
)
def test_a_stalled_partition_of_a_running_process_ends_the_worker(watched, seconds, used):
    looks = round(60 / seconds) + 1
    watched.look(looks, seconds, used)
    assert watched.failure is None
    watched.look(1, seconds, used)
    assert watched.failure == STALLED


@pytest.mark.parametrize("used", [0.0, 0.3], ids=["stopped", "starved"])
def test_a_process_that_could_not_run_is_not_ended_and_logs_it_once(watched, used, caplog):
    caplog.set_level(logging.WARNING, "reknit.engine")
    watched.look(150, 10.0, used)
    assert watched.failure is None
    lost = round(7 * (10 - used))
    told = f"in.v1 partition 0 stays at offset 5 of 9; for {lost} of 70 s this process could not run: waiting"
    assert [record.getMessage() for record in caplog.records] == [told]


def test_the_processor_time_of_a_starved_process_adds_up(watched):
    watched.look(100, 10.0, 0.5)
    assert watched.failure is None
    watched.look(30, 10.0, 0.5)
    assert watched.failure == STALLED


def test_a_partition_in_progress_is_not_stalled_however_long_its_records_take(watched):
    watched.look(1_000, 1.0, 1.0, steps=1)
    assert watched.failure is None
    watched.look(62, 1.0, 1.0)
    assert watched.failure == STALLED


def test_progress_restarts_the_stall_timer(watched, caplog):
    watched.look(60, 1.0, 0.0)
    watched.actor.done_to = 6
    watched.look(61, 1.0, 0.0)
    assert watched.failure is None
    watched.look(1, 1.0, 0.0)
    assert watched.failure == STALLED.replace("offset 5", "offset 6")


# The thread that checks the event loop.

DEADMAN = """
import time
from reknit.pipeline.engine import services
from reknit.pipeline.engine.run_clock import RunClock

deadman = services.Deadman(1.0)
deadman._clock = RunClock(services._GLANCE_SECONDS, {processor}, busy_share=0.01)
deadman.start()
time.sleep({seconds})
"""


@pytest.mark.parametrize(
    ("processor", "seconds", "status"),
    [
        ("lambda: 0.0", 30, 75),
        ("time.monotonic", 30, 75),
        ("lambda: time.monotonic() / 10", 3, 0),  # it has had 0.3 s of processor time then
    ],
    ids=["blocked", "busy without an end", "starved"],
)
def test_a_blocked_event_loop_ends_the_process_unless_it_is_starved(processor, seconds, status):
    command = [sys.executable, "-c", DEADMAN.format(processor=processor, seconds=seconds)]
    assert subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == status
