"""Alerts and dashboards: they parse, alerts fire when they should, and both refer to existing metrics and labels."""

import json
import re
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from reknit.pipeline.metrics import Metrics

ROOT = Path(__file__).parents[2]
HERE = ROOT / "deploy" / "prometheus"
BOARDS = ROOT / "deploy" / "grafana" / "dashboards"
RULES = [
    rule
    for group in yaml.safe_load((HERE / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
# Added by a scrape or a histogram.
FOREIGN = {"up": {"job", "instance"}, "process_start_time_seconds": {"job", "instance", "pipeline"}}


def exported():
    """Return the labels of every sample name that a worker can export."""
    names = {}
    for collector, samples in Metrics().registry._collector_to_names.items():
        labels = set(getattr(collector, "_labelnames", ()))  # process metrics have none
        names |= {sample: labels | ({"le"} if sample.endswith("_bucket") else set()) for sample in samples}
    # The registry adds the pipeline, a scrape its target.
    return {name: labels | {"pipeline", "instance"} for name, labels in names.items()} | FOREIGN


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
    assert "SUCCESS" in promtool("check", "rules", "recording.yml")


@pytest.mark.parametrize("file", ["alerts_test.yml", "alerts_week_test.yml"])
def test_alerts_fire_when_they_should(file):
    assert "SUCCESS" in promtool("test", "rules", file)


def test_every_alert_is_tested():
    tests = "".join(path.read_text(encoding="utf-8") for path in HERE.glob("*_test.yml"))
    assert [rule["alert"] for rule in RULES if rule["alert"] not in tests] == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_refers_to_existing_metrics_and_labels(rule):
    known = exported()
    used = set(re.findall(r"\b(?:reknit_[a-z_]+|up|process_[a-z_]+)\b", rule["expr"]))
    assert used
    assert used <= set(known)
    # A metric that only proves that a worker exists is not counted, unless it is the only one.
    summed_up = used - {"up", "reknit_build_info"} or used - {"up"} or used
    shared = set.intersection(*(known[name] for name in summed_up))
    grouped = {label.strip() for labels in re.findall(r"by \(([^)]+)\)", rule["expr"]) for label in labels.split(",")}
    assert grouped <= shared
    quoted = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
    assert quoted <= (grouped or shared)
    families = {sample.removesuffix("_total").removesuffix("_bucket") for sample in known}
    named = re.findall(r"reknit_[a-z_]+", rule["annotations"]["description"])
    assert {name.removesuffix("_total") for name in named} <= families


@pytest.mark.parametrize(
    "rule", [rule for rule in RULES if rule["alert"] != "ReknitDown"], ids=lambda rule: rule["alert"]
)
def test_an_alert_mixes_no_pipelines(rule):
    # `up` comes from Prometheus, without labels of a worker.
    grouped = re.findall(r"\b(?:by|on) \(([^)]*)\)", rule["expr"].replace("unless on () count(", "unless count("))
    assert [labels for labels in grouped if "pipeline" not in labels.split(", ")] == []
    assert grouped


@pytest.mark.parametrize("alert", ["ReknitPartitionWithoutOwner", "ReknitLagGrowing", "ReknitNoRecords"])
def test_an_alert_about_a_partition_names_it(alert):
    (expr,) = (rule["expr"] for rule in RULES if rule["alert"] == alert)
    assert set(re.findall(r"by \(([^)]*)\)", expr)) == {"pipeline, topic, partition"}


def test_losses_errors_and_missed_refusals_have_an_alert():
    named = {metric for rule in RULES for metric in re.findall(r"reknit_[a-z_]+", rule["expr"])}
    assert named >= {
        "reknit_source_expired_records_total",
        "reknit_poison_records_total",
        "reknit_provider_refusals_total",
    }


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_to_do(rule):
    assert re.fullmatch(r"Reknit[A-Z][A-Za-z]+", rule["alert"])
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert rule["annotations"]["summary"].endswith(".")
    assert len(rule["annotations"]["description"].split()) >= 15


def test_every_alert_has_a_runbook_and_every_runbook_an_alert():
    page = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    books = dict(re.findall(r"^### (Reknit\w+)\n\n(.*?)(?=\n#|\Z)", page, re.MULTILINE | re.DOTALL))
    assert sorted(books) == sorted(rule["alert"] for rule in RULES)
    for name, text in books.items():
        assert re.findall(r"\*\*(\w+):\*\*", text) == ["Meaning", "Impact", "Diagnosis", "Mitigation"], name
    for rule in RULES:
        assert rule["annotations"]["runbook_url"] == f"docs/operating.md#{rule['alert'].lower()}"


def panels():
    for board in sorted(BOARDS.glob("*.json")):
        for panel in json.loads(board.read_text(encoding="utf-8"))["panels"]:
            yield from [panel] if panel["type"] != "row" else []


@pytest.mark.filterwarnings("ignore:Prefer using dashboardv2:DeprecationWarning")
def test_the_dashboards_are_those_that_are_declared():
    made = runpy.run_path(str(BOARDS.parent / "dashboards.py"))["files"]()
    assert {path.name: path.read_text(encoding="utf-8") for path in BOARDS.glob("*.json")} == made


@pytest.mark.parametrize("panel", [*panels()], ids=lambda panel: panel["title"])
def test_a_panel_refers_to_existing_metrics_and_labels(panel):
    known = exported()
    known |= {"reknit:fixes:increase1h": {"pipeline", "job", "code", "target"}}
    known["process_resident_memory_bytes"] = known["process_cpu_seconds_total"] = {"job", "instance", "pipeline"}
    assert panel["description"].endswith(".")
    assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    for target in panel["targets"]:
        used = set(re.findall(r"\b(?:reknit[:_][a-z_:0-9]+|up|process_[a-z_]+)\b(?=\{)", target["expr"]))
        assert used
        assert used <= set(known)
        shared = set.intersection(*(known[name] for name in used))
        grouped = {label for found in re.findall(r"by \(([^)]+)\)", target["expr"]) for label in found.split(", ")}
        assert grouped <= shared
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= (grouped or {"instance"})
