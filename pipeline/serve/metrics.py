"""Metrics of a gateway. Labels come from the configuration and from fixed sets; no label has content of a request."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from reknit.pipeline.metrics import LATENCY_BUCKETS, PipelineRegistry


class _LabelledCounter:
    """A counter that finds the child for some labels once; a request needs three, which took 3 µs each."""

    def __init__(self, counter: Counter) -> None:
        self.labels: Callable[..., Counter] = cache(counter.labels)


class GatewayMetrics:
    """The metrics of one gateway.

    Args:
        pipeline: the prefix of the topics, the label ``pipeline`` of each metric; "" leaves the label out.
    """

    def __init__(self, pipeline: str = "") -> None:
        self.registry = PipelineRegistry(pipeline) if pipeline else CollectorRegistry()
        ProcessCollector(registry=self.registry)

        def counter(name: str, text: str, *labels: str) -> _LabelledCounter:
            return _LabelledCounter(Counter(name, text, labels, registry=self.registry))

        self.requests = counter(
            "reknit_serve_requests_total", "Requests by upstream and class of status.", "upstream", "status"
        )
        self.repairs = counter(
            "reknit_serve_repairs_total",
            "Requests to a model by target and outcome of repair.",
            *("target", "outcome"),
        )
        self.fixes = counter("reknit_serve_fixes_total", "Fixes by code and target.", "code", "target")
        self.healed = counter(
            "reknit_serve_healed_total",
            "Refusals by target, healing and outcome: the narrower request was accepted, or refused again.",
            *("target", "healing", "outcome"),
        )
        self.streams = counter(
            "reknit_serve_streams_total",
            "Streamed answers by target and end: whole, cut by the upstream, left by the client.",
            *("target", "end"),
        )
        self.resent = counter(
            "reknit_serve_resent_total", "Requests sent again since a kept connection was dead.", "upstream"
        )
        self.log_records = counter(
            "reknit_serve_log_records_total", "Records that were written to the input topics.", "topic"
        )
        self.log_incomplete = counter(
            "reknit_serve_log_incomplete_total",
            "Exchanges whose records are incomplete: the journal was full, the answer too long or not readable, or the "
            "request not.",
            "reason",
        )
        self.log_lost = counter(
            "reknit_serve_log_lost_total", "Records that could not be stored or written, by the error.", "reason"
        )
        self.log_bytes = Gauge(
            "reknit_serve_log_bytes", "Bytes in the journal of records for the topics.", registry=self.registry
        )
        self.in_flight = Gauge("reknit_serve_in_flight", "Exchanges in progress.", registry=self.registry)
        self.repair_seconds = Histogram(
            "reknit_serve_repair_seconds", "Time of repair.", buckets=LATENCY_BUCKETS, registry=self.registry
        )
