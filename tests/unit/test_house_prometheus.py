"""Alerts and dashboards: they parse, alerts fire when they should, and both refer to existing metrics and labels."""

import json
import re
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from viewer_lab import demo_inputs, filled, pages_of

from reknit.pipeline.metrics import Metrics
from reknit.pipeline.serve.metrics import GatewayMetrics

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
    """Return the labels of every sample name that a worker or a gateway can export."""
    names = {}
    for registry in (Metrics().registry, GatewayMetrics().registry):
        for collector, samples in registry._collector_to_names.items():
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


@pytest.mark.parametrize("rule", [rule for rule in RULES if "up{" not in rule["expr"]], ids=lambda rule: rule["alert"])
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


BOARD_FILES = sorted(BOARDS.glob("*.json"))


def boards():
    return [json.loads(path.read_text(encoding="utf-8")) for path in BOARD_FILES]


def steps_of(panel):
    """Return the values from which on a panel's colour changes, without the first, which has none."""
    found = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    assert "value" not in found[0] or found[0]["value"] is None
    return [step["value"] for step in found[1:]]


def runbooks_of(panel):
    return [link["url"].partition("#")[2] for link in panel["links"] if "operating" in link["url"]]


@pytest.mark.parametrize("panel", [*panels()], ids=lambda panel: panel["title"])
def test_a_panel_has_a_unit_and_thresholds_if_an_alert_watches_it(panel):
    assert panel["fieldConfig"]["defaults"]["unit"] in {"short", "percentunit", "ops", "reqps", "bytes", "s"}
    assert bool(steps_of(panel)) == bool(runbooks_of(panel))
    if panel["type"] == "timeseries" and steps_of(panel):
        assert panel["fieldConfig"]["defaults"]["custom"]["thresholdsStyle"]["mode"] != "off"


# Two names for one thing: whether a worker is scraped, and the recorded increase of a counter.
EQUAL = {"up": "reknit_build_info", "reknit:fixes:increase1h": "reknit_fixes_total"}


def metrics_in(expression):
    found = re.findall(r"\b(?:reknit[:_][a-z_:0-9]+|process_[a-z_]+|up)\b(?=[{\[) ]|$)", expression)
    return {EQUAL.get(name, name) for name in found}


def test_every_alert_is_linked_from_a_panel_with_its_metric_and_its_threshold():
    alerts = {rule["alert"].lower(): rule["expr"] for rule in RULES}
    linked = set()
    for panel in panels():
        shown = {name for target in panel["targets"] for name in metrics_in(target["expr"])}
        books = runbooks_of(panel)
        linked |= set(books)
        assert [book for book in books if not shown & metrics_in(alerts[book])] == [], panel["title"]
        # A count above N is one from N + 1 on. A rate is that of a second, and alerts count in an hour.
        numbers = {float(number) for book in books for number in re.findall(r" (\d+(?:\.\d+)?)\b", alerts[book])}
        for step in steps_of(panel):
            assert {step, step - 1, round(step * 3600, 6)} & numbers, (panel["title"], step, numbers)
    assert linked == set(alerts)


def test_runbook_links_resolve():
    page = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    anchors = {re.sub(r"[^a-z0-9]+", "-", title.lower()) for title in re.findall(r"^#+ (.+)$", page, re.MULTILINE)}
    urls = [link["url"] for board in boards() for link in board["links"] if "url" in link]
    urls += [link["url"] for panel in panels() for link in panel["links"]]
    books = [url for url in urls if url.startswith("${docs:raw}/")]
    assert len(books) > len(RULES)
    assert {url.partition("#")[0] for url in books} == {"${docs:raw}/operating.html"}
    assert {url.partition("#")[2] for url in books} <= anchors
    # With this plugin the addresses of pages end with .html.
    assert "  - offline\n" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


async def test_links_to_the_viewer_are_pages_that_it_has(tmp_path):
    links = [link for panel in panels() for link in (*panel["links"], *panel["fieldConfig"]["defaults"]["links"])]
    links += [link for board in boards() for link in board["links"]]
    shown = {
        link["url"].removeprefix("${viewer:raw}") for link in links if link.get("url", "").startswith("${viewer:raw}")
    }
    assert len(shown) > 10
    values = {"__from:date:iso": "2025-10-09T08:00:00.000Z", "__to:date:iso": "2025-10-09T10:00:00.000Z"}
    values |= {"__field.labels.code": "result_synthesised", "__field.labels.rule": "ANT-25"}
    values |= {"__field.labels.target": "anthropic", "__field.labels.producer": "agent/1"}
    async with pages_of(filled(demo_inputs()), tmp_path) as ask:
        for path in shown:
            asked = re.sub(r"\$\{([^}]*)\}", lambda found: values[found[1]], path)
            status, text = await ask(asked)
            assert status == 200, asked
            if "code=result_synthesised" in asked and asked.startswith("/sessions"):
                assert "lost-result" in text


def test_series_links_name_labels_that_the_series_have():
    for panel in panels():
        grouped = {
            label
            for target in panel["targets"]
            for found in re.findall(r"by \(([^)]+)\)", target["expr"])
            for label in found.split(", ")
        }
        urls = [link["url"] for link in panel["fieldConfig"]["defaults"]["links"]]
        assert {label for url in urls for label in re.findall(r"__field\.labels\.(\w+)", url)} <= grouped, panel[
            "title"
        ]


def test_boards_have_annotations_of_deploys_and_alerts_and_all_their_variables():
    for board in boards():
        known = {variable["name"] for variable in board["templating"]["list"]}
        assert known >= {"datasource", "job", "pipeline", "instance", "viewer", "docs"}
        used = set(re.findall(r"\$\{?([a-z]+)\b", json.dumps(board))) - {"__from", "__to"}
        assert used <= known
        annotations = {each["name"]: each["expr"] for each in board["annotations"]["list"]}
        assert set(annotations) == {"Deploys", "Alerts"}
        assert "reknit_build_info" in annotations["Deploys"]
        assert 'ALERTS{alertname=~"Reknit.+"' in annotations["Alerts"]
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                metric, label = re.fullmatch(r"label_values\((\w+)(?:\{.*\})?, (\w+)\)", variable["query"]).groups()
                assert label in exported()[metric] | {"job"}


# Metrics without a panel and an alert, each with the reason.
UNSEEN = {
    "reknit_source_partitions": "a constant of the topics",
    "reknit_turns_total": "records consumed have a panel",
    "reknit_turns_finished_total": "of runs, which have panels by their end",
}


def test_every_metric_has_a_panel_or_an_alert():
    seen = {name for panel in panels() for target in panel["targets"] for name in metrics_in(target["expr"])}
    seen |= {name for rule in RULES for name in metrics_in(rule["expr"])}
    names = {name for name in exported() if name.startswith("reknit_")}
    families = {name for name in names if not name.endswith(("_bucket", "_sum", "_count", "_created"))}
    # Of a histogram the buckets are shown, and the registry names the total of a counter twice.
    unseen = {name for name in families if {name, f"{name}_bucket", f"{name}_total"}.isdisjoint(seen)}
    assert {name for name in unseen if name.endswith("_total") or f"{name}_total" not in names} == set(UNSEEN)


@pytest.mark.parametrize("board", BOARD_FILES, ids=lambda path: path.stem)
def test_the_queries_of_a_board_are_valid(board, tmp_path):
    panels_of_board = json.loads(board.read_text(encoding="utf-8"))["panels"]
    asked = [target["expr"] for panel in panels_of_board for target in panel.get("targets", ())]
    exprs = [re.sub(r"\$__(range|rate_interval)", "5m", expr) for expr in asked]
    rules = [{"record": f"checked:{number}", "expr": expr} for number, expr in enumerate(exprs)]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": rules}]}), encoding="utf-8")
    assert f"SUCCESS: {len(exprs)} rules found" in promtool("check", "rules", str(tmp_path / "rules.yml"))


@pytest.mark.parametrize("annotation", ["Deploys", "Alerts"])
def test_queries_of_annotations_are_valid(annotation, tmp_path):
    (expr,) = {
        each["expr"] for board in boards() for each in board["annotations"]["list"] if each["name"] == annotation
    }
    rules = {"groups": [{"name": "g", "rules": [{"record": "checked", "expr": expr}]}]}
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rules), encoding="utf-8")
    assert "SUCCESS: 1 rules found" in promtool("check", "rules", str(tmp_path / "rules.yml"))
