"""Prometheus metrics: one separate registry, names that promtool accepts, labels from bounded sets.

Stages are pure and cannot touch a metric; they return a tally of ``(metric name, *label values)`` that the engine
applies once the batch is committed, so that a counter never counts a rolled-back batch. Metrics have no content of
sessions.
"""

from __future__ import annotations

import re
from collections import Counter as CountOf
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from copy import copy
from itertools import chain, product
from typing import TypeAlias, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    Metric,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)

from reknit.pipeline import __version__
from reknit.pipeline.fixes import FIXES, OBSERVABLE
from reknit.pipeline.healing.table import HEALED_CODES
from reknit.pipeline.registry import SOURCES
from reknit.pipeline.rules.sets import RULES
from reknit.pipeline.stages import WRITTEN
from reknit.pipeline.stages.base import Result
from reknit.pipeline.stages.envelope import EVENT_HEADERS, TURN_HEADERS
from reknit.topics import AGENT_TURNS, INPUTS, PROVIDER_EVENTS
from reknit.topics.items import Cause
from reknit.topics.records import TurnRecord

Tally: TypeAlias = Mapping[tuple[str, ...], float]

# Seconds. A transaction takes a few milliseconds on a quiet broker; a minute needs an operator's attention.
LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
# Bytes. Providers refuse at some tens of MiB; most requests are tens of KiB.
SIZE_BUCKETS = tuple(float(4**n) for n in range(5, 14))

# Counters of stages: name -> (help, labels). The name is also the first part of a tally key.
STAGE_COUNTERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "reknit_fixes_total": (
        "Fixes by code and target, or source of events; target is empty for the structure.",
        ("code", "target"),
    ),
    "reknit_fixes_lossy_total": (
        "Fixes that lost content or added what nobody said, by code and target.",
        ("code", "target"),
    ),
    "reknit_fixes_observed_total": (
        "Mends that a policy only observes and that were not made, by code and target.",
        ("code", "target"),
    ),
    "reknit_producer_fixes_total": (
        "Fixes by code and by the producer of the record that led to them; empty where that has no name.",
        ("producer", "code"),
    ),
    "reknit_sessions_mended_total": ("Sessions whose requests needed a fix for the first time.", ("target",)),
    "reknit_requests_total": (
        "Requests by target and outcome: clean, mended, rejected.",
        ("target", "outcome"),
    ),
    "reknit_requests_withdrawn_total": (
        "Published requests that were withdrawn because the session's log has answered them.",
        ("target",),
    ),
    "reknit_gateway_mismatch_total": (
        "Requests that a gateway sent with another content than the session's log gives.",
        ("target",),
    ),
    "reknit_rejections_total": (
        "Requests refused before sending, by the rule they break.",
        ("target", "rule"),
    ),
    "reknit_requests_doubted_total": (
        "Published requests in which a rule that is not hard finds a breach.",
        ("target", "rule"),
    ),
    "reknit_provider_refusals_total": (
        "Requests that their provider refused, by outcome: healed, foreseen, missed, unknown, not_shape, unmatched.",
        ("target", "outcome", "rule"),
    ),
    "reknit_healed_total": (
        "Healed requests by the class of the refusal and by their outcome: accepted, refused.",
        ("target", "class", "outcome"),
    ),
    "reknit_turns_total": (
        "Records of agent.turns by type and outcome: taken, repeated.",
        ("type", "outcome"),
    ),
    "reknit_sessions_ended_total": ("Sessions that are over, by how: closed, expired, forgotten.", ("how",)),
    "reknit_prefix_kept_bytes_total": ("Request bytes that repeat the settled prefix.", ("target",)),
    "reknit_request_written_bytes_total": ("Request bytes published.", ("target",)),
    "reknit_prefix_resets_total": ("Sessions whose settled prefix was given up, by cause.", ("cause",)),
    "reknit_items_total": ("Items by source and origin: stream, promoted, result.", ("source", "origin")),
    "reknit_retractions_total": ("Items withdrawn because a later attempt replaced them.", ("source",)),
    "reknit_items_incomplete_total": ("Items that ended before their content did.", ("source",)),
    "reknit_results_unseen_total": ("Results whose text no item had shown.", ("source",)),
    "reknit_events_unrecognised_total": ("Provider events passed on without being understood.", ("source",)),
    "reknit_events_repeated_total": (
        "Records of provider events that were written twice, by their number in the run, and ignored.",
        ("source",),
    ),
    "reknit_runs_unfinished_total": (
        "Runs that ended without finishing, by cause: stall, loop, time_limit, disconnect, stopped, error, other.",
        ("source", "cause"),
    ),
    "reknit_turns_finished_total": ("Turns that a stream finished, recorded or not.", ("source",)),
    "reknit_headers_dropped_total": (
        "Headers of input records that the records were taken without: null, not UTF-8, too long or no valid trace.",
        ("topic", "header"),
    ),
    "reknit_dead_letters_total": (
        "Records that could not be processed, by source topic and code.",
        ("topic", "code"),
    ),
}
STAGE_HISTOGRAMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "reknit_request_bytes": ("Size of published requests.", ("target",)),
}

# How much of what stages keep, of all partitions of a worker together.
STAGE_LEVELS: dict[str, str] = {
    "reknit_sessions_parked": "Sessions that are parked behind a record that could not be processed.",
    "reknit_sessions_releasing": "Sessions whose release is under way: records that waited are still to be taken.",
    "reknit_turns_waiting": "Records that wait in parked sessions, and in those that are being released.",
    "reknit_sessions_live": "Sessions that are objects in memory; each side of a session counts.",
    "reknit_sessions_live_bytes": "Memory that they take, as estimated by their state.",
    "reknit_sessions_stored": "Sessions whose records are kept in memory.",
    "reknit_sessions_stored_bytes": "What the kept records of sessions take.",
}


# Producers name themselves. A worker distinguishes at most this many; the others share one label.
MOST_PRODUCERS = 32
_PRODUCER = re.compile(r"[\w.+@-]+(?:/[\w.+-]+)?", re.ASCII)
_LONGEST_PRODUCER = 64
_OTHER = "other"

# Why a record of an input became a dead letter.
DEAD_LETTER_CODES = (
    "bad_framing",
    "bad_header",
    "bad_key",
    "bad_log",
    "bad_memory",
    "bad_policy",
    "bad_record",
    "bad_seq",
    "bad_snapshot",
    "bad_status",
    "bad_transcript",
    "chained",
    "empty",
    "expired",
    "forgotten",
    "id_reused",
    "internal",
    "limit_bytes",
    "limit_sessions",
    "missing_role",
    "nested_too_deeply",
    "no_key",
    "no_message",
    "no_messages",
    "no_value",
    "not_json",
    "not_parked",
    "not_utf8",
    "object_foreign",
    "object_missing",
    "parked_full",
    "policy",
    "quarantined",
    "refused_foreseen",
    "refused_missed",
    "refused_unknown",
    "rejected",
    "size",
    "state_incomplete",
    "state_size",
    "state_unreadable",
    "too_deep",
    "unexpected_event",
    "unknown_message",
    "unknown_role",
    "unknown_shape",
    "unknown_source",
    "unknown_target",
    "wrong_shape",
    "wrong_type",
)
# Why a request does not begin with the settled part of the one before it.
PREFIX_RESETS = (
    "changed", "configured", "environment", "fit", "healed", "limits", "media", "mended", "replaced", "rewound",
    "thinking_disabled",
)  # fmt: skip
_TURN_TYPES = [str(kind.__struct_config__.tag) for kind in get_args(TurnRecord)]


# Why a partition's store on disk was not used, as `reknit.pipeline.engine.stores.StoreError` says it.
STORE_REASONS = ("damaged", "failed", "foreign", "locked", "old", "outside")


def _refusals(targets: Collection[str]) -> Iterator[tuple[str, str, str]]:
    """Everything that can be said of a provider's refusal."""
    yield "", "unmatched", ""
    for target in targets:
        yield from ((target, outcome, "") for outcome in ("healed", "unknown", "not_shape"))
    for rule in RULES.values():
        if rule.target in targets:
            yield rule.target, "not_shape" if rule.unchecked else "missed", rule.id
            if rule.severity != "hard":
                yield rule.target, "foreseen", rule.id


def _healed_fixes(targets: Collection[str]) -> Iterator[tuple[str, str]]:
    for code, row in HEALED_CODES.items():
        yield from ((code, target) for target in sorted(row.targets & set(targets)))


def _healed(targets: Collection[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the labels of every outcome of a healed request."""
    for row in HEALED_CODES.values():
        for target in sorted(row.targets & set(targets)):
            yield from ((target, row.name, outcome) for outcome in ("accepted", "refused"))


class PipelineRegistry(CollectorRegistry):
    """A registry in which every sample has the label ``pipeline``, also those of the process.

    Samples get it as they are collected: no metric declares it, and none can be without it.
    """

    def __init__(self, pipeline: str) -> None:
        super().__init__()
        self._pipeline = {"pipeline": pipeline}

    def collect(self) -> Iterator[Metric]:
        for family in super().collect():
            # A copy: some collectors keep what they return.
            labelled = copy(family)
            labelled.samples = [one._replace(labels=self._pipeline | one.labels) for one in family.samples]
            yield labelled


class Metrics:
    """The worker's metrics, as the engine reports them. ``registry`` is what ``/metrics`` serves."""

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        targets: Collection[str] = (),
        *,
        pipeline: str | None = None,
    ) -> None:
        """Label sets that are bounded begin at 0; of ``targets`` those by target do, of others once they occur.

        ``pipeline`` is the prefix. One Prometheus may scrape workers of several pipelines, and no other label says
        whose a series is. None leaves the label out.
        """
        # One series more for each counter, which nothing here reads.
        disable_created_metrics()  # type: ignore[no-untyped-call] # it has no types
        if registry is None:
            registry = CollectorRegistry() if pipeline is None else PipelineRegistry(pipeline)
        self.registry = registry
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self._tallied = {
            name: Counter(name, text, labels, registry=self.registry) for name, (text, labels) in STAGE_COUNTERS.items()
        }
        self._observed = {
            name: Histogram(name, text, labels, buckets=SIZE_BUCKETS, registry=self.registry)
            for name, (text, labels) in STAGE_HISTOGRAMS.items()
        }
        self._levels = {name: Gauge(name, text, registry=self.registry) for name, text in STAGE_LEVELS.items()}
        self._level_of: dict[tuple[str, str, int], int] = {}
        self._consumed = self._counter("reknit_records_consumed_total", "Source records committed.", "topic")
        self._produced = self._counter("reknit_records_produced_total", "Records published.", "topic")
        self._batches = self._counter("reknit_batches_total", "Committed batches: transactions, exactly once.", "topic")
        self._restored = self._counter("reknit_state_restored_records_total", "Changelog records read back.", "topic")
        self._poison = self._counter(
            "reknit_poison_records_total", "Records that a stage raised for: our bugs.", "topic"
        )
        self._expired = self._counter(
            "reknit_source_expired_records_total",
            "Source offsets that retention removed before they were read.",
            "topic",
        )
        self._epochs = self._counter(
            "reknit_producer_epochs_total", "New producer epochs after a commit that may have been sent twice.", "topic"
        )
        self._add_engine_metrics()
        self._begin_at_zero(targets)

    def _add_engine_metrics(self) -> None:
        self._process = self._histogram("reknit_batch_process_seconds", "A batch's time in the stage.", "topic")
        self._write = self._histogram("reknit_batch_write_seconds", "From a batch's first send to its commit.", "topic")
        self._latency = self._histogram(
            "reknit_end_to_end_latency_seconds", "From when a batch's oldest record was written to its commit.", "topic"
        )
        self._restore = self._histogram(
            "reknit_state_restore_seconds", "A partition's time to read its state.", "topic"
        )
        self._lag = self._gauge(
            "reknit_consumer_lag_records", "Source offsets not yet committed.", "topic", "partition"
        )
        self._lag_known: set[tuple[str, int]] = set()
        self._position = self._gauge(
            "reknit_source_position",
            "Next source offset to process, by partition of this worker.",
            "topic",
            "partition",
        )
        self._working = self._gauge(
            "reknit_partition_working",
            "1 where this worker processes the source partition, 0 where not; of all partitions of the topic.",
            "topic",
            "partition",
        )
        self._owned = self._gauge("reknit_partitions", "Source partitions that this worker has.", "topic")
        self._silent = self._gauge("reknit_broker_silent_seconds", "Seconds since a broker answered last.")
        self._rebalances = self._counter(
            "reknit_rebalances_total", "Times that this worker was given its partitions, its first included.", "topic"
        )
        self._producers = {""}
        self._every = self._gauge("reknit_source_partitions", "Partitions that the source topic has.", "topic")
        self._evicted = self._counter(
            "reknit_sessions_evicted_total", "Sessions that became records only, for want of memory.", "topic"
        )
        self._discarded = self._counter(
            "reknit_state_store_discarded_total", "Stores on disk that could not be used.", "topic", "reason"
        )
        self._gauge("reknit_build_info", "Always 1; the version is a label.", "version").labels(__version__).set(1)

    def _begin_at_zero(self, targets: Collection[str]) -> None:
        """Make the series of what may happen: of a counter that begins at 1, no rate ever shows the first."""
        lossy = [fix.code for fix in FIXES.values() if not fix.lossless]
        whose = ("", *targets, "cascade")  # its stream's text is filtered, whatever the targets
        bounded: dict[str, Iterator[tuple[str, ...]]] = {
            "reknit_fixes_total": chain(product(FIXES, whose), _healed_fixes(targets)),
            "reknit_fixes_lossy_total": product(lossy, whose),
            "reknit_fixes_observed_total": product(OBSERVABLE, targets),
            "reknit_producer_fixes_total": product(("",), FIXES),
            "reknit_sessions_mended_total": product(targets),
            "reknit_requests_total": product(targets, ("clean", "mended", "rejected")),
            "reknit_requests_withdrawn_total": product(targets),
            "reknit_gateway_mismatch_total": product(targets),
            "reknit_sessions_ended_total": product(("closed", "expired", "forgotten")),
            "reknit_prefix_kept_bytes_total": product(targets),
            "reknit_request_written_bytes_total": product(targets),
            "reknit_prefix_resets_total": product(PREFIX_RESETS),
            "reknit_turns_total": product(_TURN_TYPES, ("taken", "repeated")),
            "reknit_rejections_total": ((rule.target, rule.id) for rule in RULES.values() if rule.target in targets),
            "reknit_requests_doubted_total": (
                (rule.target, rule.id) for rule in RULES.values() if rule.target in targets and rule.severity != "hard"
            ),
            "reknit_provider_refusals_total": _refusals(targets),
            "reknit_healed_total": _healed(targets),
            "reknit_items_total": product(SOURCES, ("stream", "promoted", "result")),
            "reknit_results_unseen_total": product(SOURCES),
            "reknit_retractions_total": product(SOURCES),
            "reknit_items_incomplete_total": product(SOURCES),
            "reknit_events_unrecognised_total": product(SOURCES),
            "reknit_events_repeated_total": product(SOURCES),
            "reknit_turns_finished_total": product(SOURCES),
            "reknit_runs_unfinished_total": product(SOURCES, get_args(Cause)),
            "reknit_headers_dropped_total": chain(
                product((AGENT_TURNS,), TURN_HEADERS), product((PROVIDER_EVENTS,), EVENT_HEADERS)
            ),
            "reknit_dead_letters_total": product(INPUTS, DEAD_LETTER_CODES),
        }
        for name, sets in bounded.items():
            for labels in sets:
                self._tallied[name].labels(*labels)
        for target in targets:
            self._observed["reknit_request_bytes"].labels(target)
        for topic in WRITTEN:
            self._produced.labels(topic)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(name, text, labels, buckets=LATENCY_BUCKETS, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def on_commit(self, topic: str, partition: int, result: Result, records: int) -> None:
        """Count a committed batch: read records, published ones, and the stage's own tally."""
        del partition
        self._batches.labels(topic).inc()
        self._consumed.labels(topic).inc(records)
        for name, amount in CountOf(output.topic for output in result.outputs).items():
            self._produced.labels(name).inc(amount)
        self._apply_tally(result.tally)

    def _apply_tally(self, tally: Tally) -> None:
        """Add a stage's tally. A histogram's key carries the observed value as its last part."""
        for (name, *labels), amount in tally.items():
            if name == "reknit_producer_fixes_total":
                labels[0] = self._bounded_producer(labels[0])
            histogram = self._observed.get(name)
            if histogram is None:
                self._tallied[name].labels(*labels).inc(amount)
                continue
            child = histogram.labels(*labels[:-1])
            for _ in range(int(amount)):
                child.observe(float(labels[-1]))

    def _bounded_producer(self, name: str) -> str:
        """The producer's name where it may be a label, and a word for all others."""
        if name not in self._producers:
            if len(self._producers) > MOST_PRODUCERS or len(name) > _LONGEST_PRODUCER or not _PRODUCER.fullmatch(name):
                return _OTHER
            self._producers.add(name)
        return name

    def on_batch(self, topic: str, partition: int, process_seconds: float, write_seconds: float) -> None:
        """Observe how long the batch took: in the stage, and from the first send to the commit."""
        del partition
        self._process.labels(topic).observe(process_seconds)
        self._write.labels(topic).observe(write_seconds)

    def on_latency(self, topic: str, seconds: float) -> None:
        """Observe the time from when a batch's oldest record was written to the batch's commit."""
        self._latency.labels(topic).observe(seconds)

    def on_lag(self, topic: str, partition: int, records: int | None) -> None:
        """Set how many source offsets are not yet committed; where that is not known there is no series."""
        if records is not None:
            self._lag.labels(topic, partition).set(records)
        elif (topic, partition) in self._lag_known:
            self._lag.remove(topic, partition)
        (self._lag_known.discard if records is None else self._lag_known.add)((topic, partition))

    def on_position(self, topic: str, partition: int, position: int | None) -> None:
        """Set the next source offset to process; of a partition that another worker has there is no series."""
        if position is not None:
            self._position.labels(topic, partition).set(position)
        else:
            with suppress(KeyError):  # it was never opened
                self._position.remove(topic, partition)

    def on_working(self, topic: str, working: Collection[int], every: int) -> None:
        """Note which of a source topic's partitions this worker processes, of how many."""
        for partition in range(every):
            self._working.labels(topic, partition).set(partition in working)

    def on_restored(self, topic: str, partition: int, records: int, seconds: float) -> None:
        """Observe that a partition's state was read back."""
        del partition
        self._restored.labels(topic).inc(records)
        self._restore.labels(topic).observe(seconds)

    def on_poison(self, topic: str, partition: int) -> None:
        """Count a record that a stage raised for; it is in the dead letters."""
        del partition
        self._poison.labels(topic).inc()

    def on_new_epoch(self, topic: str, partition: int) -> None:
        """Count a new producer epoch after a commit that may have been sent twice."""
        del partition
        self._epochs.labels(topic).inc()

    def on_levels(self, topic: str, partition: int, levels: Mapping[str, int]) -> None:
        """Set a partition's current amounts of state; an empty mapping after it is released."""
        for name, gauge in self._levels.items():
            before, now = self._level_of.pop((name, topic, partition), 0), levels.get(name, 0)
            if now:
                self._level_of[name, topic, partition] = now
            gauge.inc(now - before)

    def on_expired(self, topic: str, partition: int, offsets: int) -> None:
        """Count source offsets that the broker's retention removed before they were read."""
        del partition
        self._expired.labels(topic).inc(offsets)

    def on_partitions(self, topic: str, count: int, every: int) -> None:
        """Note an assignment: how many partitions of a source topic this worker has, and how many there are."""
        self._rebalances.labels(topic).inc()
        self._owned.labels(topic).set(count)
        self._every.labels(topic).set(every)
        counters = (self._consumed, self._batches, self._restored, self._poison, self._expired, self._evicted)
        for metric in (*counters, self._epochs, self._process, self._write, self._latency, self._restore):
            metric.labels(topic)
        for reason in STORE_REASONS:
            self._discarded.labels(topic, reason)

    def on_store_discarded(self, topic: str, reason: str) -> None:
        """Count stores on disk that could not be used, by reason."""
        self._discarded.labels(topic, reason).inc()

    def on_evicted(self, topic: str, sessions: int) -> None:
        """Count sessions that became records only."""
        self._evicted.labels(topic).inc(sessions)

    def watch_broker(self, silent_seconds: Callable[[], float]) -> None:
        """Show, whenever metrics are read, how long ago a broker answered last."""
        self._silent.set_function(silent_seconds)
