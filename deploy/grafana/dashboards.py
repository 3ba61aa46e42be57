"""Grafana's dashboards as code: ``python deploy/grafana/dashboards.py`` writes them into ``dashboards/``.

The tables below define their content; ``$job``, ``$pipeline``, ``$instance`` and ``$target`` are selected on the board.
``$viewer`` and ``$docs`` are the addresses of the viewer and of the site of the docs, to which panels link.
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
from grafana_foundation_sdk.models.common import GraphThresholdsStyleMode, LegendDisplayMode, TooltipDisplayMode
from grafana_foundation_sdk.models.dashboard import (
    DashboardLinkType,
    DataSourceRef,
    Threshold,
    ThresholdsMode,
    VariableRefresh,
)

from reknit.pipeline.letters import LETTER_KINDS, LETTER_MATCHERS

FOLDER = Path(__file__).parent / "dashboards"
SOURCE = DataSourceRef("prometheus", "${datasource}")
WIDTH = 24
HEIGHT, STAT_HEIGHT = 8, 4
# The recorded series have no instance.
_RECORDED = 'job=~"$job", pipeline=~"$pipeline"'
_JOB = f'{_RECORDED}, instance=~"$instance"'
_TARGETS = f'{_JOB}, target=~"$target"'


# Title, unit and what it says; then its query, or its queries by their legends. Rows of panels have a title too, and in
# the first of a board each panel is one number.
Panel: TypeAlias = tuple[str, str, str]
Queries: TypeAlias = str | dict[str, str]
Board: TypeAlias = dict[str, dict[Panel, Queries]]


def rate(metric: str, by: str = "", matching: str = _JOB) -> str:
    """Return the rate per second, summed by labels."""
    return f"sum{f' by ({by})' if by else ''} (rate({metric}{{{matching}}}[$__rate_interval]))"


def total(metric: str, by: str = "", matching: str = _JOB) -> str:
    """Return the increase over the selected time range, summed by labels."""
    return f"sum{f' by ({by})' if by else ''} (increase({metric}{{{matching}}}[$__range]))"


def quantile(share: float, metric: str, by: str = "topic") -> str:
    return f"histogram_quantile({share}, sum by ({by}, le) (rate({metric}_bucket{{{_JOB}}}[$__rate_interval])))"


def hourly(metric: str, by: str, matching: str = _JOB) -> str:
    """Return the increase over the last hour, summed by labels; for rare events."""
    return f"sum by ({by}) (increase({metric}{{{matching}}}[1h]))"


def share_of(metric: str, matching: str, by: str, span: str) -> str:
    """Return the share of a counter's increase that has more labels, by labels."""
    part, whole = (f"sum by ({by}) (increase({metric}{{{each}}}[{span}]))" for each in (f"{_JOB}, {matching}", _JOB))
    return f"{part} / {whole}"


def most(expression: str) -> str:
    """Return the ten largest values above 0. Most label sets never occur."""
    return f"topk(10, {expression}) > 0"


# Dead letters by kind, as the viewer and the report count them too.
_LETTERS = {
    words: total("reknit_dead_letters_total", matching=f"{_JOB}, {LETTER_MATCHERS[kind]}")
    for kind, words in LETTER_KINDS.items()
}
_HOURLY = f'reknit:fixes:increase1h{{{_RECORDED}, target=~"$target"}}'
_HOURLY_BEFORE = f"{_HOURLY} offset 1w"

FIXES: Board = {
    "Selected time range": {
        ("Fixes", "short", "Changes to histories and streams."): total("reknit_fixes_total"),
        ("Requests that needed a fix", "percentunit", "The share of all requests for these targets."): (
            total("reknit_requests_total", matching=f'{_TARGETS}, outcome="mended"')
            + f" / {total('reknit_requests_total', matching=_TARGETS)}"
        ),
        ("Sessions affected", "short", "Sessions whose requests needed a fix for the first time."): total(
            "reknit_sessions_mended_total", matching=_TARGETS
        ),
        ("Content lost or added", "short", "Fixes that dropped content or added text."): total(
            "reknit_fixes_lossy_total"
        ),
        ("Rejected", "short", "Requests that a provider would have refused and that were not sent."): total(
            "reknit_rejections_total", matching=_TARGETS
        ),
        ("Refusals not foreseen", "short", "Requests that a provider refused although no rule foresaw it."): total(
            "reknit_provider_refusals_total", matching=f'{_TARGETS}, outcome=~"missed|unknown"'
        ),
    },
    "Fixes": {
        ("By code", "ops", "`reknit explain CODE` describes each code."): most(rate("reknit_fixes_total", "code")),
        (
            "By target",
            "ops",
            "The target of the request, or the source of the stream. Repairs of structure count for all targets.",
        ): most(rate("reknit_fixes_total", "target")),
        (
            "By producer",
            "ops",
            "The program that wrote the record, by its header. The first 32 have a label of their own.",
        ): most(rate("reknit_producer_fixes_total", "producer")),
        ("By severity", "ops", "Lossless fixes keep all content. Lossy ones drop or add some."): {
            "lossless": f"{rate('reknit_fixes_total')} - {rate('reknit_fixes_lossy_total')}",
            "lossy": rate("reknit_fixes_lossy_total"),
        },
        ("Lossy, by code", "ops", "Fixes that dropped or added content."): most(
            rate("reknit_fixes_lossy_total", "code, target")
        ),
        ("Only observed", "ops", "Repairs that a policy only observes. They were not made."): most(
            rate("reknit_fixes_observed_total", "code, target", _TARGETS)
        ),
    },
    "Compared with last week": {
        ("Fixes in an hour", "short", "The last hour, and the same hour a week ago."): {
            "now": f"sum ({_HOURLY})",
            "a week ago": f"sum ({_HOURLY_BEFORE})",
        },
        ("Largest growth", "short", "The ratio to the same hour a week ago, by code."): most(
            f"sum by (code) ({_HOURLY}) / (sum by (code) ({_HOURLY_BEFORE}) > 0)"
        ),
        (
            "New",
            "short",
            "Fixes per hour with codes that did not occur in the same hour a week ago.",
        ): f"sum by (code) ({_HOURLY}) > 0 unless on (code) sum by (code) ({_HOURLY_BEFORE}) > 0",
    },
    "Requests": {
        ("Outcome", "reqps", "Unchanged (`clean`), repaired (`mended`) or rejected."): rate(
            "reknit_requests_total", "outcome", _TARGETS
        ),
        (
            "Prefix kept",
            "percentunit",
            "The share of bytes that repeat the settled prefix, which the provider may have cached.",
        ): (
            f"{rate('reknit_prefix_kept_bytes_total', 'target', _TARGETS)}"
            f" / {rate('reknit_request_written_bytes_total', 'target', _TARGETS)}"
        ),
        ("Prefix resets", "ops", "Requests that do not begin with the settled prefix, by cause."): rate(
            "reknit_prefix_resets_total", "cause"
        ),
        ("Size", "bytes", "Median and 99th percentile of the request size."): {
            "p50 {{target}}": quantile(0.5, "reknit_request_bytes", "target"),
            "p99 {{target}}": quantile(0.99, "reknit_request_bytes", "target"),
        },
        ("Rejections by rule", "ops", "`reknit explain RULE` describes each rule."): most(
            rate("reknit_rejections_total", "target, rule", _TARGETS)
        ),
    },
    "Answers of providers": {
        (
            "Refusals by outcome",
            "ops",
            "`healed`: sent again without the cause; `foreseen`, `missed`, `unknown`: of the rules; others: neither.",
        ): rate("reknit_provider_refusals_total", "outcome"),
        (
            "Healed requests",
            "ops",
            "By the class of the refusal, and whether the provider then took the request.",
        ): most(rate("reknit_healed_total", "target, class, outcome", _TARGETS)),
        ("Refusals by rule", "ops", "A rule with missed refusals is incomplete."): most(
            rate("reknit_provider_refusals_total", "outcome, rule", f'{_TARGETS}, rule!=""')
        ),
        (
            "Precision of soft rules",
            "percentunit",
            "The share of requests with a soft violation that the provider refused for that reason.",
        ): most(
            total("reknit_provider_refusals_total", "rule", f'{_TARGETS}, outcome="foreseen"')
            + f" / {total('reknit_requests_doubted_total', 'rule', _TARGETS)}"
        ),
        (
            "Requests with soft violations",
            "ops",
            "Requests that were sent although a soft rule reports a violation.",
        ): most(rate("reknit_requests_doubted_total", "target, rule", _TARGETS)),
    },
    "Streams": {
        (
            "Items by origin",
            "ops",
            "Streamed, promoted because they never streamed, or known only from a result.",
        ): rate("reknit_items_total", "origin"),
        (
            "Repaired streams",
            "ops",
            "Items that were retracted or cut short, and results of items that were never shown.",
        ): {
            "retracted": rate("reknit_retractions_total"),
            "incomplete": rate("reknit_items_incomplete_total"),
            "result unseen": rate("reknit_results_unseen_total"),
            "not recognised": rate("reknit_events_unrecognised_total"),
        },
        ("Results never shown, per hour", "short", "Results of runs whose text was on no screen, by source."): most(
            hourly("reknit_results_unseen_total", "source")
        ),
        ("Unfinished runs", "ops", "Runs that did not finish, by cause."): most(
            rate("reknit_runs_unfinished_total", "source, cause")
        ),
    },
}


PIPELINE: Board = {
    "Now": {
        ("Workers", "short", "Workers that answer a scrape."): f"count (reknit_build_info{{{_JOB}}}) or vector(0)",
        (
            "Partitions without a worker",
            "short",
            "Partitions that no scraped worker processes.",
        ): f"sum by (topic) (max by (pipeline, topic, partition) (reknit_partition_working{{{_JOB}}}) == bool 0)",
        (
            "Lag",
            "short",
            "Records that are not processed yet.",
        ): f"sum by (topic) (reknit_consumer_lag_records{{{_JOB}}})",
        ("End-to-end latency, p99", "s", "From the write of a record to the commit of its outputs."): quantile(
            0.99, "reknit_end_to_end_latency_seconds"
        ),
        (
            "Sessions parked",
            "short",
            "Parked sessions wait for an operator.",
        ): f"sum (reknit_sessions_parked{{{_JOB}}})",
        ("Dead letters", "short", "In the selected time range, all kinds."): total("reknit_dead_letters_total"),
    },
    "Throughput": {
        ("Records in", "ops", "Processed, by topic."): rate("reknit_records_consumed_total", "topic"),
        ("Records out", "ops", "Published, by topic."): rate("reknit_records_produced_total", "topic"),
        ("Transactions", "ops", "Committed batches. With exactly-once delivery each is a transaction."): rate(
            "reknit_batches_total", "topic"
        ),
        (
            "Records per transaction",
            "short",
            "Few records under high load indicate a commit interval that is too short.",
        ): rate("reknit_records_consumed_total", "topic") + " / " + rate("reknit_batches_total", "topic"),
    },
    "Lag and latency": {
        (
            "Lag by topic",
            "short",
            "If the lag of all partitions grows, add workers. If only one grows, that partition is stuck.",
        ): f"sum by (topic) (reknit_consumer_lag_records{{{_JOB}}})",
        ("Partitions with the largest lag", "short", "Records that are not processed yet."): most(
            f"sum by (topic, partition) (reknit_consumer_lag_records{{{_JOB}}})"
        ),
        ("End-to-end latency", "s", "From the write of a batch's oldest record to its commit."): {
            f"p{share * 100:.0f} {{{{topic}}}}": quantile(share, "reknit_end_to_end_latency_seconds")
            for share in (0.5, 0.99)
        },
        (
            "Batch time, p99",
            "s",
            "Processing in the stage, and writing up to the commit.",
        ): {
            "stage {{topic}}": quantile(0.99, "reknit_batch_process_seconds"),
            "commit {{topic}}": quantile(0.99, "reknit_batch_write_seconds"),
        },
    },
    "Group and state": {
        ("Rebalances", "short", "Assignments of partitions per hour."): hourly("reknit_rebalances_total", "topic"),
        ("New producer epochs", "short", "Per hour, after commits that may have been sent twice."): hourly(
            "reknit_producer_epochs_total", "topic"
        ),
        (
            "Partitions of each worker",
            "short",
            "Evenly distributed if the group is stable.",
        ): f"sum by (instance, topic) (reknit_partitions{{{_JOB}}})",
        ("State restored", "ops", "Changelog records, read after a start or a rebalance."): rate(
            "reknit_state_restored_records_total", "topic"
        ),
        (
            "Restore time of a partition, p90",
            "s",
            "Since the start of the workers. Sessions wait during a restore.",
        ): f"histogram_quantile(0.9, sum by (topic, le) (reknit_state_restore_seconds_bucket{{{_JOB}}}))",
        ("Discarded stores", "short", "Per hour, by reason."): hourly("reknit_state_store_discarded_total", "reason"),
        ("Ended sessions", "ops", "Closed, expired or forgotten."): rate("reknit_sessions_ended_total", "how"),
    },
    "Memory and CPU": {
        (
            "Memory of each worker",
            "bytes",
            "Resident memory of the process.",
        ): f"sum by (instance) (process_resident_memory_bytes{{{_JOB}}})",
        ("Memory of sessions", "bytes", "Live sessions, and sessions stored as records."): {
            "live {{instance}}": f"reknit_sessions_live_bytes{{{_JOB}}}",
            "stored {{instance}}": f"reknit_sessions_stored_bytes{{{_JOB}}}",
        },
        ("Sessions", "short", "The two sides of a session, history and stream, are counted separately."): {
            "live": f"sum (reknit_sessions_live{{{_JOB}}})",
            "stored": f"sum (reknit_sessions_stored{{{_JOB}}})",
            "evicted": f"sum (increase(reknit_sessions_evicted_total{{{_JOB}}}[5m]))",
        },
        ("CPU", "percentunit", "Share of one core."): rate("process_cpu_seconds_total", "instance"),
    },
    "Dead letters and parked sessions": {
        (
            "Dead letters by kind",
            "short",
            "In the selected time range. The kinds add up to all dead letters.",
        ): _LETTERS,
        ("Dead letters by code", "ops", "By topic and code; `reknit dead-letters list` shows them."): most(
            rate("reknit_dead_letters_total", "topic, code")
        ),
        ("Headers dropped", "short", "Malformed headers per hour, by topic and name."): most(
            hourly("reknit_headers_dropped_total", "topic, header")
        ),
        ("Parked", "short", "Sessions that wait for an operator, and their waiting records."): {
            "sessions": f"sum (reknit_sessions_parked{{{_JOB}}})",
            "being released": f"sum (reknit_sessions_releasing{{{_JOB}}})",
            "records": f"sum (reknit_turns_waiting{{{_JOB}}})",
        },
        (
            "Stage errors and expired inputs",
            "short",
            "Per hour: records on which a stage failed, and offsets that retention deleted unread.",
        ): {
            "raised {{topic}}": hourly("reknit_poison_records_total", "topic"),
            "expired {{topic}}": hourly("reknit_source_expired_records_total", "topic"),
        },
    },
    "Brokers and restarts": {
        (
            "Silence of the brokers",
            "s",
            "Time since the last answer of a broker.",
        ): f"max by (instance) (reknit_broker_silent_seconds{{{_JOB}}})",
        (
            "Restarts",
            "short",
            "In 15 minutes.",
        ): f"sum by (instance) (changes(process_start_time_seconds{{{_JOB}}}[15m]))",
        ("Versions", "short", "Workers by version."): f"count by (version) (reknit_build_info{{{_JOB}}})",
    },
}


# Metrics of workers on the board of gateways, whose job is another one.
_WORKERS = 'pipeline=~"$pipeline"'
# Exchanges without a session, and those whose history is at the provider, have no records by design.
_UNRECORDED = 'reason=~"turns|session"'

GATEWAY: Board = {
    "Now": {
        ("Gateways", "short", "Gateways that answer a scrape."): (
            'sum (up{job=~"$job", instance=~"$instance"}) or vector(0)'
        ),
        ("In progress", "short", "Exchanges in progress."): f"sum (reknit_serve_in_flight{{{_JOB}}})",
        ("Requests repaired", "percentunit", "The share of requests to a model in the selected time range."): (
            total("reknit_serve_repairs_total", matching=f'{_TARGETS}, outcome="repaired"')
            + f" / {total('reknit_serve_repairs_total', matching=_TARGETS)}"
        ),
        (
            "Refusals healed",
            "short",
            "Narrower requests that were accepted, in the selected time range.",
        ): total("reknit_serve_healed_total", matching=f'{_TARGETS}, outcome="accepted"'),
        ("Streams cut", "short", "Streams without a final event in the selected time range."): total(
            "reknit_serve_streams_total", matching=f'{_TARGETS}, end="cut"'
        ),
        ("Journal", "bytes", "Records for the topics on the disks of all gateways."): (
            f"sum (reknit_serve_log_bytes{{{_JOB}}})"
        ),
    },
    "Requests": {
        ("Requests by upstream", "reqps", "By the class of the status that the client got."): rate(
            "reknit_serve_requests_total", "upstream, status"
        ),
        ("Server errors", "percentunit", "The share of requests in 5 minutes whose status is 5xx."): share_of(
            "reknit_serve_requests_total", 'status="5xx"', "upstream", "5m"
        ),
        ("Repairs by outcome", "reqps", "`failed` and `late`: forwarded without repair."): rate(
            "reknit_serve_repairs_total", "outcome", _TARGETS
        ),
        ("Forwarded without repair", "short", "In 10 minutes, by target and outcome."): most(
            "sum by (target, outcome) (increase(reknit_serve_repairs_total"
            f'{{{_TARGETS}, outcome=~"failed|late"}}[10m]))'
        ),
        ("Fixes of requests", "ops", "`reknit explain CODE` describes each code."): most(
            rate("reknit_serve_fixes_total", "code", _TARGETS)
        ),
        ("Time of repair", "s", "Median and 99th percentile, by gateway."): {
            f"p{share * 100:.0f} {{{{instance}}}}": quantile(share, "reknit_serve_repair_seconds", "instance")
            for share in (0.5, 0.99)
        },
    },
    "Answers": {
        ("Streams by end", "ops", "Whole, cut by the upstream, or left by the client."): rate(
            "reknit_serve_streams_total", "target, end", _TARGETS
        ),
        ("Share of cut streams", "percentunit", "In 10 minutes, by target."): share_of(
            "reknit_serve_streams_total", 'end="cut"', "target", "10m"
        ),
        ("Healings", "ops", "Narrower requests after refusals, and whether the provider took them."): most(
            rate("reknit_serve_healed_total", "target, healing, outcome", _TARGETS)
        ),
        ("Healings refused again", "short", "Per hour, by target and healing."): most(
            hourly("reknit_serve_healed_total", "target, healing", f'{_TARGETS}, outcome="refused"')
        ),
        ("Sent again", "short", "Requests per hour over kept connections that the provider had closed."): hourly(
            "reknit_serve_resent_total", "upstream"
        ),
    },
    "Records for the topics": {
        ("Journal of each gateway", "bytes", "Beyond 1 GiB records are missing in the topics."): (
            f"sum by (instance) (reknit_serve_log_bytes{{{_JOB}}})"
        ),
        ("Records written", "ops", "Records that the brokers have, by topic."): rate(
            "reknit_serve_log_records_total", "topic"
        ),
        ("Incomplete and lost", "short", "Per hour: exchanges that are incomplete in the topics, and lost records."): {
            "incomplete {{reason}}": hourly(
                "reknit_serve_log_incomplete_total", "reason", f"{_JOB}, {_UNRECORDED.replace('=~', '!~')}"
            ),
            "lost {{reason}}": hourly("reknit_serve_log_lost_total", "reason"),
        },
        ("Exchanges without records", "short", "Per hour: without a session, or without turns."): hourly(
            "reknit_serve_log_incomplete_total", "reason", f"{_JOB}, {_UNRECORDED}"
        ),
        ("Mismatches", "short", "Requests per hour whose content differs from that of the worker."): hourly(
            "reknit_gateway_mismatch_total", "target", _WORKERS
        ),
        ("Repeated and withdrawn", "short", "Per hour, in workers: repeated events, and withdrawn requests."): {
            "repeated": hourly("reknit_events_repeated_total", "pipeline", _WORKERS),
            "withdrawn": hourly("reknit_requests_withdrawn_total", "pipeline", _WORKERS),
        },
    },
    "Memory of gateways": {
        ("Memory of each gateway", "bytes", "Resident memory of the process."): (
            f"sum by (instance) (process_resident_memory_bytes{{{_JOB}}})"
        ),
        ("CPU of each gateway", "percentunit", "Share of one core."): rate("process_cpu_seconds_total", "instance"),
    },
}


# The alerts that watch what a panel shows, and from which value on: a line in the panel, or the colour of its number.
# The first number is that of the alert; a count above N is one from N + 1 on, and a rate is that of a second.
_BAD, _GOOD = "red", "green"
WATCHED: dict[str, tuple[tuple[str, ...], float]] = {
    "Partitions without a worker": (("ReknitPartitionWithoutOwner",), 1),
    "Lag": (("ReknitLagGrowing", "ReknitNoRecords"), 1000),
    "Lag by topic": (("ReknitLagGrowing", "ReknitNoRecords"), 1000),
    "Partitions with the largest lag": (("ReknitLagGrowing", "ReknitNoRecords"), 1000),
    "End-to-end latency, p99": (("ReknitEndToEndSlow",), 1),
    "End-to-end latency": (("ReknitEndToEndSlow",), 1),
    "Sessions parked": (("ReknitSessionsParked",), 1),
    "Parked": (("ReknitSessionsParked",), 1),
    "Dead letters": (("ReknitDeadLetters",), 1),
    "Dead letters by kind": (("ReknitDeadLetters",), 1),
    "Stage errors and expired inputs": (("ReknitPoisonRecords", "ReknitRecordsExpired"), 1),
    "Restore time of a partition, p90": (("ReknitRestoreSlow",), 30),
    "Silence of the brokers": (("ReknitNoBroker",), 30),
    "Restarts": (("ReknitRestarts",), 3),
    "Rejected": (("ReknitRejectedRequests",), 1),
    "Refusals not foreseen": (("ReknitRefusalsMissed",), 1),
    "Fixes in an hour": (("ReknitFixRateHigh",), 101),
    "New": (("ReknitNewFixAppeared",), 21),
    "Lossy, by code": (("ReknitContentLost",), 100 / 3600),
    "Results never shown, per hour": (("ReknitResultsUnseen",), 11),
    "Server errors": (("ReknitGatewayErrors",), 0.1),
    "Forwarded without repair": (("ReknitGatewayUnrepaired",), 11),
    "Time of repair": (("ReknitGatewayRepairSlow",), 0.1),
    "Share of cut streams": (("ReknitGatewayStreamsCut",), 0.05),
    "Healings refused again": (("ReknitGatewayHealingsRefused",), 11),
    "Journal of each gateway": (("ReknitGatewayJournalGrowing",), 268435456),
    "Incomplete and lost": (("ReknitGatewayLogIncomplete", "ReknitGatewayRecordsLost"), 1),
    "Mismatches": (("ReknitGatewayMismatch",), 1),
}
# The panels that are bad below their value.
WATCHED_BELOW: dict[str, tuple[tuple[str, ...], float]] = {
    "Workers": (("ReknitDown", "ReknitNoWorker"), 1),
    "Gateways": (("ReknitGatewayDown",), 1),
}

_SPAN = "since=${__from:date:iso}&until=${__to:date:iso}"
_LABEL = "${{__field.labels.{}}}"
# The pages of the viewer that show the sessions, or dead letters, of a panel; and what a click on a series leads to.
_SESSIONS = f"/sessions?{_SPAN}"
_DEAD_LETTERS = f"/letters?handled=1&{_SPAN}"
PAGES: dict[str, tuple[str, ...]] = {
    **{
        title: (f"{_SESSIONS}&code={_LABEL.format('code')}", f"/explain/{_LABEL.format('code')}")
        for title in ("By code", "Lossy, by code", "Only observed", "Largest growth", "New")
    },
    **{
        title: (f"{_SESSIONS}&code={_LABEL.format('rule')}", f"/explain/{_LABEL.format('rule')}")
        for title in (
            "Rejections by rule",
            "Refusals by rule",
            "Precision of soft rules",
            "Requests with soft violations",
        )
    },
    "By target": (f"{_SESSIONS}&target={_LABEL.format('target')}",),
    "By producer": (f"{_SESSIONS}&producer={_LABEL.format('producer')}",),
    "Results never shown, per hour": (f"{_SESSIONS}&code=unseen",),
    "Rejected": (f"/letters?kind=rejected&handled=1&{_SPAN}",),
    "Refusals not foreseen": (f"/letters?kind=refused&handled=1&{_SPAN}",),
    "Dead letters": (_DEAD_LETTERS,),
    "Dead letters by kind": (_DEAD_LETTERS,),
    "Dead letters by code": (f"{_DEAD_LETTERS}&code={_LABEL.format('code')}",),
    **dict.fromkeys(("Sessions parked", "Parked"), ("/sessions?parked=1",)),
    **dict.fromkeys(("Lag", "Lag by topic", "Partitions with the largest lag"), ("/progress",)),
}
_RUNBOOKS = "${docs:raw}/operating.html#"
_VIEWER = "${viewer:raw}"


def link(title: str, url: str) -> dashboard.DashboardLink:
    return dashboard.DashboardLink(title).url(url).target_blank(True)


def links_of(title: str) -> tuple[list[dashboard.DashboardLink], list[dashboard.DashboardLink]]:
    """Return the links of a panel, runbooks and pages of the viewer, and those of its series, which name a label."""
    alerts, _ = {**WATCHED, **WATCHED_BELOW}.get(title, ((), 0))
    pages = PAGES.get(title, ())
    runbooks = [link(f"Runbook: {alert}", _RUNBOOKS + alert.lower()) for alert in alerts]
    shown = [link("In the viewer", _VIEWER + page) for page in pages if "__field" not in page]
    of_series = [
        link("Explain" if page.startswith("/explain") else "In the viewer", _VIEWER + page)
        for page in pages
        if "__field" in page
    ]
    return runbooks + shown, of_series


def thresholds_of(title: str) -> dashboard.ThresholdsConfig:
    """Return from which value on a panel is bad. Without steps Grafana would take its own, bad from 80 on."""
    steps = [Threshold(value=None, color=_BAD if title in WATCHED_BELOW else _GOOD)]
    if title in WATCHED:
        steps.append(Threshold(value=WATCHED[title][1], color=_BAD))
    if title in WATCHED_BELOW:
        steps.append(Threshold(value=WATCHED_BELOW[title][1], color=_GOOD))
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)


def annotation(name: str, colour: str, expression: str, title: str, tags: str) -> dashboard.AnnotationQuery:
    made = dashboard.AnnotationQuery().name(name).datasource(SOURCE).enable(True).icon_color(colour).expr(expression)
    return made.step("60s").title_format(title).tag_keys(tags).hide(False)


# A version is deployed when workers with it appear; firing alerts are series of Prometheus itself.
ANNOTATIONS = (
    annotation(
        "Deploys",
        "blue",
        f"count by (version) (reknit_build_info{{{_JOB}}}) unless on (version) "
        f"count by (version) (reknit_build_info{{{_JOB}}} offset 2m)",
        "Reknit {{version}}",
        "version",
    ),
    annotation(
        "Alerts",
        "red",
        'count by (alertname, severity, pipeline) (ALERTS{alertname=~"Reknit.+", alertstate="firing"})',
        "{{alertname}}",
        "severity,pipeline",
    ),
)


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
        if panel[0] in WATCHED:
            made = made.thresholds_style(common.GraphThresholdsStyleConfig().mode(GraphThresholdsStyleMode.DASHED))
    title, unit, says = panel
    of_panel, of_series = links_of(title)
    made = made.thresholds(thresholds_of(title)).links(of_panel).data_links(of_series)
    made = made.title(title).description(says).unit(unit).span(width).datasource(SOURCE)
    for letter, (legend_format, expression) in zip(ascii_uppercase, legends(queries).items(), strict=False):
        query = prometheus.Dataquery().ref_id(letter).datasource(SOURCE).expr(expression).legend_format(legend_format)
        made = made.with_target(query.instant() if is_stat else query.range())
    return made


def board(uid: str, title: str, says: str, rows: Board, *variables: dashboard.QueryVariable) -> str:
    made = dashboard.Dashboard(title).uid(uid).description(says).tags(["reknit"]).readonly()
    made = made.refresh("30s").time("now-6h", "now")
    made = made.with_variable(dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    for name, label, default, says_what in ADDRESSES:
        made = made.with_variable(
            dashboard.TextBoxVariable(name).label(label).description(says_what).default_value(default)
        )
    made = made.link(link("Viewer", f"{_VIEWER}/")).link(link("Runbooks", f"{_RUNBOOKS}alerts"))
    made = made.link(
        dashboard.DashboardLink("Reknit").type(DashboardLinkType.DASHBOARDS).tags(["reknit"]).keep_time(True)
    )
    for each in ANNOTATIONS:
        made = made.annotation(each)
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


# Text fields of a board: a variable, its label, its default and what it is.
ADDRESSES = (
    ("viewer", "Viewer", "http://127.0.0.1:8760", "The address of `reknit viewer`."),
    ("docs", "Docs", "http://127.0.0.1:8000", "The address of the site that `make site` builds."),
)


def choice(name: str, label: str, query: str) -> dashboard.QueryVariable:
    return dashboard.QueryVariable(name).label(label).query(query).multi(True).include_all(True).all_value(".*")


def files() -> dict[str, str]:
    job = choice("job", "Job", "label_values(reknit_build_info, job)")
    pipeline = choice("pipeline", "Pipeline", 'label_values(reknit_build_info{job=~"$job"}, pipeline)')
    instance = choice("instance", "Instance", f"label_values(reknit_build_info{{{_RECORDED}}}, instance)")
    target = choice("target", "Target", "label_values(reknit_requests_total, target)")
    return {
        "fixes.json": board(
            "reknit-fixes",
            "Reknit: fixes",
            "Repairs by code, target and producer; requests; answers of providers; streams.",
            FIXES,
            job,
            pipeline,
            instance,
            target,
        ),
        "pipeline.json": board(
            "reknit-pipeline",
            "Reknit: pipeline",
            "Throughput, lag, group, state and resources of the workers.",
            PIPELINE,
            job,
            pipeline,
            instance,
        ),
        "gateway.json": board(
            "reknit-gateway",
            "Reknit: gateway",
            "Requests, repairs, answers and records of `reknit serve`.",
            GATEWAY,
            choice("job", "Job", "label_values(reknit_serve_in_flight, job)"),
            choice("pipeline", "Pipeline", 'label_values(reknit_serve_in_flight{job=~"$job"}, pipeline)'),
            choice("instance", "Instance", f"label_values(reknit_serve_in_flight{{{_RECORDED}}}, instance)"),
            choice("target", "Target", "label_values(reknit_serve_repairs_total, target)"),
        ),
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in files().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
