"""Grafana's dashboards as code: ``python deploy/grafana/dashboards.py`` writes them into ``dashboards/``.

The tables below define their content; ``$job``, ``$pipeline`` and ``$target`` are selected on the board.
"""

# ruff: noqa: FBT003, INP001 - the library takes booleans by place; a script by itself, not a package
from __future__ import annotations

import json
import re
from itertools import count
from pathlib import Path
from string import ascii_uppercase
from typing import Any, TypeAlias

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LegendDisplayMode, TooltipDisplayMode
from grafana_foundation_sdk.models.dashboard import DataSourceRef, VariableRefresh

from reknit.pipeline.letters import LETTER_KINDS, LETTER_MATCHERS

FOLDER = Path(__file__).parent / "dashboards"
SOURCE = DataSourceRef("prometheus", "${datasource}")
WIDTH = 24
HEIGHT, STAT_HEIGHT = 8, 4
_JOB = 'job=~"$job", pipeline=~"$pipeline"'
_TARGETS = f'{_JOB}, target=~"$target"'


# Title, unit and what it says; then its query, or its queries by their legends. Rows of panels have a title too, and in
# the first of a board each panel is one number.
Panel: TypeAlias = tuple[str, str, str]
Queries: TypeAlias = str | dict[str, str]
Board: TypeAlias = dict[str, dict[Panel, Queries]]


def rate(metric: str, by: str = "", matching: str = _JOB) -> str:
    """How often a second, summed by labels."""
    return f"sum{f' by ({by})' if by else ''} (rate({metric}{{{matching}}}[$__rate_interval]))"


def total(metric: str, by: str = "", matching: str = _JOB) -> str:
    """How often in the range that is shown, summed by labels."""
    return f"sum{f' by ({by})' if by else ''} (increase({metric}{{{matching}}}[$__range]))"


def quantile(share: float, metric: str, by: str = "topic") -> str:
    return f"histogram_quantile({share}, sum by ({by}, le) (rate({metric}_bucket{{{_JOB}}}[$__rate_interval])))"


def hourly(metric: str, by: str) -> str:
    """How often in the hour before, summed by labels: of what is rare."""
    return f"sum by ({by}) (increase({metric}{{{_JOB}}}[1h]))"


def most(expression: str) -> str:
    """The ten largest that are not 0: of the label sets most never occur."""
    return f"topk(10, {expression}) > 0"


# Dead letters by kind, as the viewer and the report count them too.
_LETTERS = {
    words: total("reknit_dead_letters_total", matching=f"{_JOB}, {LETTER_MATCHERS[kind]}")
    for kind, words in LETTER_KINDS.items()
}
_HOURLY = f"reknit:fixes:increase1h{{{_TARGETS}}}"
_HOURLY_BEFORE = f"{_HOURLY} offset 1w"

FIXES: Board = {
    "In this range": {
        ("Fixes", "short", "Changes to histories and streams."): total("reknit_fixes_total"),
        ("Requests that needed one", "percentunit", "The share of all requests for these targets."): (
            total("reknit_requests_total", matching=f'{_TARGETS}, outcome="mended"')
            + f" / {total('reknit_requests_total', matching=_TARGETS)}"
        ),
        ("Sessions affected", "short", "Sessions whose requests needed a fix for the first time."): total(
            "reknit_sessions_mended_total", matching=_TARGETS
        ),
        ("Content lost or added", "short", "Fixes that dropped something or said what nobody said."): total(
            "reknit_fixes_lossy_total"
        ),
        ("Rejected", "short", "Requests that a provider would have refused and that were not sent."): total(
            "reknit_rejections_total", matching=_TARGETS
        ),
    },
    "What is mended": {
        ("By code", "ops", "`reknit explain CODE` says what each is."): most(rate("reknit_fixes_total", "code")),
        ("By target", "ops", "Whom it was mended for, or whose stream it is; the structure is everybody's."): most(
            rate("reknit_fixes_total", "target")
        ),
        ("By producer", "ops", "What wrote the record, by its header; beyond 32 they are other."): most(
            rate("reknit_producer_fixes_total", "producer")
        ),
        ("By severity", "ops", "Lossless fixes keep every word; others drop some, or add some."): {
            "lossless": f"{rate('reknit_fixes_total')} - {rate('reknit_fixes_lossy_total')}",
            "lossy": rate("reknit_fixes_lossy_total"),
        },
        ("Lossy, by code", "ops", "What lost content, or added it."): most(
            rate("reknit_fixes_lossy_total", "code, target")
        ),
        ("Only observed", "ops", "Mends that a policy observes and that were not made."): most(
            rate("reknit_fixes_observed_total", "code, target", _TARGETS)
        ),
    },
    "Against last week": {
        ("Fixes in an hour", "short", "Now, and at the same hour a week ago."): {
            "now": f"sum ({_HOURLY})",
            "a week ago": f"sum ({_HOURLY_BEFORE})",
        },
        ("Grown most", "short", "How many times as often as a week ago, by code."): most(
            f"sum by (code) ({_HOURLY}) / (sum by (code) ({_HOURLY_BEFORE}) > 0)"
        ),
        (
            "New",
            "short",
            "In an hour, of codes that did not occur in the hour a week ago.",
        ): f"sum by (code) ({_HOURLY}) > 0 unless on (code) sum by (code) ({_HOURLY_BEFORE}) > 0",
    },
    "Requests": {
        ("Outcome", "reqps", "Clean, mended or rejected."): rate("reknit_requests_total", "outcome", _TARGETS),
        (
            "Prefix kept",
            "percentunit",
            "Of the bytes sent, those that repeat what was settled, which a provider's cache may know.",
        ): (
            f"{rate('reknit_prefix_kept_bytes_total', 'target', _TARGETS)}"
            f" / {rate('reknit_request_written_bytes_total', 'target', _TARGETS)}"
        ),
        ("Prefixes given up", "ops", "Why a request does not begin with what was settled."): rate(
            "reknit_prefix_resets_total", "cause"
        ),
        ("Size", "bytes", "The request in the middle, and the hundredth from the top."): {
            "p50 {{target}}": quantile(0.5, "reknit_request_bytes", "target"),
            "p99 {{target}}": quantile(0.99, "reknit_request_bytes", "target"),
        },
        ("Rejections by rule", "ops", "`reknit explain RULE` says what each is."): most(
            rate("reknit_rejections_total", "target, rule", _TARGETS)
        ),
    },
    "What providers answer": {
        (
            "Refusals by outcome",
            "ops",
            "Foreseen, missed and unknown say something of the rules; not_shape and unmatched do not.",
        ): rate("reknit_provider_refusals_total", "outcome"),
        ("Missed or foreseen, by rule", "ops", "A missed rule is incomplete."): most(
            rate("reknit_provider_refusals_total", "outcome, rule", f'{_TARGETS}, rule!=""')
        ),
        (
            "How true the doubts are",
            "percentunit",
            "Of requests that left although a rule doubted them, those that the provider refused for it.",
        ): most(
            total("reknit_provider_refusals_total", "rule", f'{_TARGETS}, outcome="foreseen"')
            + f" / {total('reknit_requests_doubted_total', 'rule', _TARGETS)}"
        ),
        ("Doubted requests", "ops", "Requests that left although a rule that is not hard finds a breach."): most(
            rate("reknit_requests_doubted_total", "target, rule", _TARGETS)
        ),
    },
    "Streams": {
        (
            "Items by origin",
            "ops",
            "Streamed, promoted because they were never streamed, or known from a result alone.",
        ): rate("reknit_items_total", "origin"),
        ("Mended streams", "ops", "Items withdrawn or cut short, and results that no screen had shown."): {
            "retracted": rate("reknit_retractions_total"),
            "incomplete": rate("reknit_items_incomplete_total"),
            "result unseen": rate("reknit_results_unseen_total"),
            "not recognised": rate("reknit_events_unrecognised_total"),
        },
        ("Runs that did not finish", "ops", "By cause."): most(rate("reknit_runs_unfinished_total", "source, cause")),
    },
}


PIPELINE: Board = {
    "Now": {
        ("Workers", "short", "Those that answer a scrape."): f"count (reknit_build_info{{{_JOB}}}) or vector(0)",
        (
            "Partitions without a worker",
            "short",
            "Partitions that no scraped worker processes.",
        ): f"sum by (topic) (max by (pipeline, topic, partition) (reknit_partition_working{{{_JOB}}}) == bool 0)",
        ("Lag", "short", "Records that wait."): f"sum by (topic) (reknit_consumer_lag_records{{{_JOB}}})",
        ("Slowest record in a hundred", "s", "From when it was written to its commit."): quantile(
            0.99, "reknit_end_to_end_latency_seconds"
        ),
        ("Sessions parked", "short", "They wait for somebody."): f"sum (reknit_sessions_parked{{{_JOB}}})",
        ("Dead letters", "short", "In this range, of all kinds."): total("reknit_dead_letters_total"),
    },
    "Throughput": {
        ("Records in", "ops", "Processed, by topic."): rate("reknit_records_consumed_total", "topic"),
        ("Records out", "ops", "Published, by topic."): rate("reknit_records_produced_total", "topic"),
        ("Transactions", "ops", "Batches that were committed; exactly once each is a transaction."): rate(
            "reknit_batches_total", "topic"
        ),
        ("Records in a transaction", "short", "Few of them at a high load hint at a short commit interval."): rate(
            "reknit_records_consumed_total", "topic"
        )
        + " / "
        + rate("reknit_batches_total", "topic"),
    },
    "Lag and latency": {
        (
            "Records that wait",
            "short",
            "If all partitions grow, workers are too few; if one does, it stands still.",
        ): f"sum by (topic) (reknit_consumer_lag_records{{{_JOB}}})",
        ("Partitions with the most", "short", "Where records wait."): most(
            f"sum by (topic, partition) (reknit_consumer_lag_records{{{_JOB}}})"
        ),
        ("From written to committed", "s", "Of each batch's oldest record."): {
            f"p{share * 100:.0f} {{{{topic}}}}": quantile(share, "reknit_end_to_end_latency_seconds")
            for share in (0.5, 0.99)
        },
        ("A batch's time, p99", "s", "In the stage, and from the first send to the commit: the brokers' part."): {
            "stage {{topic}}": quantile(0.99, "reknit_batch_process_seconds"),
            "commit {{topic}}": quantile(0.99, "reknit_batch_write_seconds"),
        },
    },
    "Group and state": {
        ("Rebalances", "short", "Times in an hour that workers were given their partitions."): hourly(
            "reknit_rebalances_total", "topic"
        ),
        ("New producer epochs", "short", "In an hour, after commits that may have been sent twice."): hourly(
            "reknit_producer_epochs_total", "topic"
        ),
        (
            "Partitions of each worker",
            "short",
            "Evenly spread when the group is at rest.",
        ): f"sum by (instance, topic) (reknit_partitions{{{_JOB}}})",
        ("State read back", "ops", "Changelog records; only after a start or a rebalance."): rate(
            "reknit_state_restored_records_total", "topic"
        ),
        (
            "Time to read a partition's state, p90",
            "s",
            "Since the workers started, as most of it is done before the first scrape. Sessions wait meanwhile.",
        ): f"histogram_quantile(0.9, sum by (topic, le) (reknit_state_restore_seconds_bucket{{{_JOB}}}))",
        ("Stores thrown away", "short", "In an hour, by reason."): hourly(
            "reknit_state_store_discarded_total", "reason"
        ),
        ("Sessions over", "ops", "Closed, expired or forgotten."): rate("reknit_sessions_ended_total", "how"),
    },
    "Memory and processor": {
        (
            "Memory of each worker",
            "bytes",
            "All of the process.",
        ): f"sum by (instance) (process_resident_memory_bytes{{{_JOB}}})",
        ("Memory of sessions", "bytes", "At work, and as records."): {
            "at work {{instance}}": f"reknit_sessions_live_bytes{{{_JOB}}}",
            "records {{instance}}": f"reknit_sessions_stored_bytes{{{_JOB}}}",
        },
        ("Sessions", "short", "Each side of a session counts."): {
            "at work": f"sum (reknit_sessions_live{{{_JOB}}})",
            "records": f"sum (reknit_sessions_stored{{{_JOB}}})",
            "sent to records": f"sum (increase(reknit_sessions_evicted_total{{{_JOB}}}[5m]))",
        },
        ("Processor", "percentunit", "Of one core."): rate("process_cpu_seconds_total", "instance"),
    },
    "What does not get through": {
        ("Dead letters by kind", "short", "In this range. They add up to all dead letters."): _LETTERS,
        ("Dead letters", "ops", "By topic and code; `reknit dead-letters list` shows them."): most(
            rate("reknit_dead_letters_total", "topic, code")
        ),
        ("Headers dropped", "short", "In an hour: malformed headers, by topic and name."): most(
            hourly("reknit_headers_dropped_total", "topic, header")
        ),
        ("Parked", "short", "Sessions that wait behind a record, and the records behind it."): {
            "sessions": f"sum (reknit_sessions_parked{{{_JOB}}})",
            "being released": f"sum (reknit_sessions_releasing{{{_JOB}}})",
            "records": f"sum (reknit_turns_waiting{{{_JOB}}})",
        },
        (
            "Our faults and lost inputs",
            "short",
            "In an hour: records that a stage raised for, and offsets that retention took before they were read.",
        ): {
            "raised {{topic}}": hourly("reknit_poison_records_total", "topic"),
            "expired {{topic}}": hourly("reknit_source_expired_records_total", "topic"),
        },
    },
    "Brokers and restarts": {
        (
            "Silence of the brokers",
            "s",
            "Since a worker last heard from one.",
        ): f"max by (instance) (reknit_broker_silent_seconds{{{_JOB}}})",
        ("Restarts", "short", "In an hour."): f"sum by (instance) (changes(process_start_time_seconds{{{_JOB}}}[1h]))",
        ("Versions", "short", "Workers by version."): f"count by (version) (reknit_build_info{{{_JOB}}})",
    },
}


def legends(queries: Queries) -> dict[str, str]:
    """Return the queries by their legends, in which labels are in double braces."""
    if isinstance(queries, dict):
        return queries
    found = re.search(r"by \(([^)]*)\)", queries)
    names = [name for name in found[1].split(", ") if name != "le"] if found else []
    return {" ".join(f"{{{{{name}}}}}" for name in names): queries}


def built(panel: Panel, queries: Queries, width: int, *, is_stat: bool) -> timeseries.Panel | stat.Panel:
    made: timeseries.Panel | stat.Panel
    if is_stat:
        made = stat.Panel().height(STAT_HEIGHT).reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    else:
        legend = common.VizLegendOptions().show_legend(True).display_mode(LegendDisplayMode.LIST)
        tooltip = common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI)
        made = timeseries.Panel().height(HEIGHT).fill_opacity(10).min(0).legend(legend).tooltip(tooltip)
    title, unit, says = panel
    made = made.title(title).description(says).unit(unit).span(width).datasource(SOURCE)
    for letter, (legend_format, expression) in zip(ascii_uppercase, legends(queries).items(), strict=False):
        query = prometheus.Dataquery().ref_id(letter).datasource(SOURCE).expr(expression).legend_format(legend_format)
        made = made.with_target(query.instant() if is_stat else query.range())
    return made


def board(uid: str, title: str, says: str, rows: Board, *variables: dashboard.QueryVariable) -> str:
    made = dashboard.Dashboard(title).uid(uid).description(says).tags(["reknit"]).readonly()
    made = made.refresh("30s").time("now-6h", "now")
    made = made.with_variable(dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    for variable in variables:
        made = made.with_variable(variable.datasource(SOURCE).refresh(VariableRefresh.ON_TIME_RANGE_CHANGED))
    numbers = count(1)
    for place, (name, panels) in enumerate(rows.items()):
        made = made.with_row(dashboard.Row(name).id(next(numbers)))
        columns = len(panels) if place == 0 else 2 if len(panels) % 3 else 3
        for panel, queries in panels.items():
            shown = built(panel, queries, WIDTH // columns, is_stat=place == 0)
            made = made.with_panel(shown.id(next(numbers)))
    return one_panel_a_line(json.loads(JSONEncoder(sort_keys=True).encode(made.build())))


def one_panel_a_line(board: dict[str, Any]) -> str:
    panels = ",\n".join(json.dumps(panel, sort_keys=True) for panel in board.pop("panels"))
    return f'{json.dumps(board, sort_keys=True)[:-1]}, "panels": [\n{panels}\n]}}\n'


def choice(name: str, label: str, query: str) -> dashboard.QueryVariable:
    return dashboard.QueryVariable(name).label(label).query(query).multi(True).include_all(True).all_value(".*")


def files() -> dict[str, str]:
    job = choice("job", "Job", "label_values(reknit_build_info, job)")
    pipeline = choice("pipeline", "Pipeline", "label_values(reknit_build_info, pipeline)")
    target = choice("target", "Target", "label_values(reknit_requests_total, target)")
    return {
        "fixes.json": board(
            "reknit-fixes", "Reknit: fixes", "What is mended, for whom, and how well.", FIXES, job, pipeline, target
        ),
        "pipeline.json": board("reknit-pipeline", "Reknit: pipeline", "How the workers do.", PIPELINE, job, pipeline),
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in files().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
