"""Alerts: they parse, they fire when they should, and they speak of metrics that exist."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from pipeline.metrics import Metrics

HERE = Path(__file__).parents[2] / "deploy" / "prometheus"
RULES = [
    rule
    for group in yaml.safe_load((HERE / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
# Made by a scrape or a histogram.
FOREIGN = {name: {"job", "instance"} for name in ("up", "process_start_time_seconds")}


def exported():
    """The labels of every sample name that a worker can export."""
    names = {}
    for collector, samples in Metrics().registry._collector_to_names.items():
        labels = set(getattr(collector, "_labelnames", ()))  # those of the process have none
        names |= {sample: labels | ({"le"} if sample.endswith("_bucket") else set()) for sample in samples}
    # A scrape adds whom it asked.
    return {name: labels | {"instance"} for name, labels in names.items()} | FOREIGN


def promtool(*arguments):
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (Debian package `prometheus`)")
    done = subprocess.run(["promtool", *arguments], cwd=HERE, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_configuration_is_valid():
    assert "is valid prometheus config" in promtool("check", "config", "prometheus.yml")


def test_the_rules_are_valid():
    assert f"SUCCESS: {len(RULES)} rules found" in promtool("check", "rules", "alerts.yml")


@pytest.mark.parametrize("file", ["alerts_test.yml", "alerts_week_test.yml"])
def test_alerts_fire_when_they_should(file):
    assert "SUCCESS" in promtool("test", "rules", file)


def test_every_alert_is_tested():
    tests = "".join(path.read_text(encoding="utf-8") for path in HERE.glob("*_test.yml"))
    assert [rule["alert"] for rule in RULES if rule["alert"] not in tests] == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_speaks_of_metrics_and_labels_that_exist(rule):
    known = exported()
    used = set(re.findall(r"\b(?:reknit_[a-z_]+|up|process_[a-z_]+)\b", rule["expr"]))
    assert used
    assert used <= set(known)
    shared = set.intersection(*(known[name] for name in used if name != "reknit_build_info"))
    grouped = {label.strip() for labels in re.findall(r"by \(([^)]+)\)", rule["expr"]) for label in labels.split(",")}
    assert grouped <= shared
    quoted = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
    assert quoted <= (grouped or shared)
    families = {sample.removesuffix("_total").removesuffix("_bucket") for sample in known}
    named = re.findall(r"reknit_[a-z_]+", rule["annotations"]["description"])
    assert {name.removesuffix("_total") for name in named} <= families


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_to_do(rule):
    assert re.fullmatch(r"Reknit[A-Z][A-Za-z]+", rule["alert"])
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert rule["annotations"]["summary"].endswith(".")
    assert len(rule["annotations"]["description"].split()) >= 15
