"""``deploy/capacity.py``: the plan for a load, and the page that the script writes."""

import math
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from reknit.pipeline.settings import StateSettings
from reknit.topics import DAY_MS, DEFAULT_PARTITIONS, TOPICS

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "deploy" / "capacity.py"
PAGE = (ROOT / "docs" / "capacity.md").read_text(encoding="utf-8")
capacity = SimpleNamespace(**runpy.run_path(str(SCRIPT)))

# Loads of one kind each, and the resource that each exhausts first.
LOADS = {
    "few, each in a transaction": ({"sessions": 100, "commit_interval_ms": 0.0}, "the workers' processors"),
    "answers that nobody keeps for long": (
        {"answer_events": 400, "busy_hours": 0.1, "commit_interval_ms": 1_000.0, "replicas": 1},
        "the workers' processors",
    ),
    "idle, in memory": (
        {"sessions": 10**6, "working": 1e-4, "store": "memory", "turns": 1_000},
        "the workers' memory",
    ),
    "day and night, long": ({"turns": 5_000, "busy_hours": 24.0, "turn_seconds": 1.0}, "the brokers' disks"),
}


def test_the_page_has_the_tables_that_the_script_makes(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE, encoding="utf-8")
    subprocess.run([sys.executable, str(SCRIPT), "--write", str(page)], check=True)
    assert page.read_text(encoding="utf-8") == PAGE, "run deploy/capacity.py --write docs/capacity.md"


def test_assumptions_match_topics_and_settings():
    settings = {topic.name: {one.name: one.value for one in topic.settings} for topic in TOPICS}
    for name, days in capacity.KEPT_DAYS.items():
        (topic,) = [topic for topic in settings if f"`{topic}`" in capacity.COSTS[name].what]
        kept_ms = settings[topic].get("retention.ms") or settings[topic]["segment.ms"]
        assert int(kept_ms) == days * DAY_MS, topic
    assert capacity.FEWEST_PARTITIONS == DEFAULT_PARTITIONS
    assert StateSettings().memory_mib << 20 == capacity.WORKER_HOT_BYTES


@pytest.mark.parametrize(("load", "first"), LOADS.values(), ids=LOADS)
def test_a_plan_fits_its_load_and_names_the_first_bottleneck(load, first):
    plan = capacity.plan(capacity.Load(**load))
    assert max(plan.used.values()) <= 1
    assert plan.breaks_first == first
    assert plan.partitions >= 2 * plan.workers


def test_rates_and_disk_are_computed_from_the_load():
    cost = {name: one.amount for name, one in capacity.COSTS.items()}
    load = capacity.Load(sessions=6_000, working=0.5, turn_seconds=30.0, answer_events=10, busy_hours=6.0, replicas=1)
    assert (load.turn_rate, load.event_rate) == (100.0, 500.0)
    plan = capacity.plan(load)
    # Twelve partitions; each batches for 25 ms.
    transactions = 100 / (1 + 100 / 12 * 0.025) + 500 / (1 + 500 / 12 * 0.025)
    cpu = 100 * cost["turn_cpu"] + 500 * cost["event_cpu"] + transactions * cost["batch_cpu"]
    assert (plan.partitions, plan.worker_cores) == (12, pytest.approx(cpu / 1e6))
    turns = 30 * cost["turn_in"] + 7 * cost["turn_out"] + cost["turn_state"]
    events = 7 * cost["event_in"] + 7 * cost["event_out"] + cost["event_state"]
    assert math.isclose(plan.broker_bytes, 6 * 3_600 * (100 * turns + 500 * events) + 6_000 * cost["disk"])


def test_fewer_transactions_need_fewer_broker_cores():
    cores = [capacity.plan(capacity.Load(commit_interval_ms=ms)).broker_cores for ms in (0.0, 25.0, 100.0)]
    assert cores == sorted(cores, reverse=True)
    assert len(set(cores)) == 3


def test_the_command_plans_for_a_given_load():
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--sessions", "10000", "--working", "0.2"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert "| live sessions | 10,000 |\n" in done.stdout
    assert "| turns a second | 67 |\n" in done.stdout
