"""Seeded fault schedules of the engine in each run of the tests, and the proof that they find known faults."""

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from simulation.counting import SOURCE
from simulation.loop import EscapeError, SimLoop
from simulation.mutants import MUTANTS, fails
from simulation.plans import PARTITIONS, Fault, Plan, Row, Settings, dump, load, plan_of
from simulation.report import report
from simulation.run import plans, stored
from simulation.shrink import Shrinker
from simulation.tape import Tape
from simulation.world import run

from reknit.topics import AGENT_TURNS, HISTORY_FIXES, PROVIDER_REQUESTS, SESSION_ITEMS

# Less than a minute of one slow core. More run with `make simulate`.
SCHEDULES = 2_000
PARTS = 4


def commit():
    """Return the id of the commit, so that each commit runs other schedules."""
    given = os.environ.get("CI_COMMIT_SHA")
    if given:
        return given[:12]
    found = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or "no-commit"


@pytest.mark.parametrize("plan", stored(), ids=lambda plan: plan.seed)
def test_schedules_that_failed_once(plan):
    violation = run(plan)[1]
    assert violation is None, "\n".join(report(plan))


@pytest.mark.parametrize("part", range(PARTS))
def test_schedules_of_this_commit(part):
    for plan in plans(f"{commit()}-{part}", SCHEDULES // PARTS):
        violation = run(plan)[1]
        if violation is not None:
            shrunk = Shrinker(plan, violation.rule).shrink()
            pytest.fail("\n".join([f"seed {plan.seed}: {violation}", *report(shrunk)]))


def test_every_kind_of_fault_has_an_effect():
    happened = sum((run(plan)[0].happened for plan in plans(0, 200)), start=run(plan_of(0))[0].happened)
    wanted = {"kill", "freeze", "rebalance", "outage", "deaf", "starve", "compact", "clock jump", "reset offset", "cut"}
    wanted |= {"answer lost", "request lost", "full disk", "flip bits", "damaged store", "opened store", "new epoch"}
    wanted |= {"recreate", "lost to retention"}
    assert {kind for kind in wanted if not happened[kind]} == set()


def test_the_real_stages_do_all_that_faults_could_disturb():
    happened = sum((run(plan)[0].happened for plan in plans(0, 120, job="sessions")), start=Counter())
    written = (PROVIDER_REQUESTS, SESSION_ITEMS, HISTORY_FIXES, AGENT_TURNS)
    wanted = {*(("written", topic) for topic in written), "slice of a release"}
    wanted |= {("dead letter", code) for code in ("unknown_role", "not_json", "not_parked", "quarantined", "expired")}
    wanted |= {("ended", how) for how in ("closed", "expired", "forgotten", "policy")}
    assert {kind for kind in wanted if not happened[kind]} == set()


def test_a_seed_gives_the_same_schedule_in_each_process():
    command = [sys.executable, Path(__file__).with_name("run.py"), "--seeds", "10", "--digest"]
    outputs = [
        subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONHASHSEED": seed})
        for seed in ("1", "2")
    ]
    first, second = ([line for line in done.stdout.splitlines() if len(line.split()) == 2] for done in outputs)
    assert first == second
    assert len(set(first)) >= 10


def test_unanswered_heartbeats_do_not_open_partitions_again_and_again():
    """The group keeps a member that commits, but its lease has ended, so it could not write after an opening."""
    rows = [Row(number % PARTITIONS, "k0", "v", aborted=False, pause=0.1) for number in range(300)]
    lost = [Fault("answer lost", at, request="Heartbeat") for at in range(12, 18)]
    finished, violation = run(Plan("heartbeats", Settings(exactly_once=False), rows, lost))
    assert (violation, finished.happened["answer lost"]) == (None, 6)
    # Two openings by the first assignments, one by the end of the lease, and two while the workers join again one by
    # one; it was 46 with a fixed pause.
    assert max(finished.happened["opened", SOURCE, number] for number in range(PARTITIONS)) <= 5


@pytest.mark.parametrize("name", MUTANTS)
def test_known_faults_of_the_engine_are_found(name, tmp_path):
    assert fails(MUTANTS[name], tmp_path)


def read_a_clock():
    return time.monotonic()


def start_a_thread():
    threading.Thread().start()


@pytest.mark.parametrize("escape", [read_a_clock, start_a_thread])
def test_the_use_of_real_clocks_and_threads_is_an_error(escape):
    loop = SimLoop(Tape(0).stream("schedule"))
    loop.call_soon(escape)
    with pytest.raises(EscapeError):
        loop.run(lambda: False, 1.0)
    loop.retire()


def test_a_plan_survives_its_storage():
    plan = plan_of(7)
    assert load(dump(plan)) == plan
