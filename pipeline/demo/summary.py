"""What came of the whole fleet, and what the worker measured while it was at it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families

from pipeline.demo.report import SessionReport
from pipeline.demo.show import counted, heading, labelled
from pipeline.fixes import FIXES


class Measured(Struct, frozen=True, kw_only=True):
    """Of the worker's /metrics, all topics together. Times are in seconds, sizes in bytes."""

    consumed: int
    produced: int
    batches: int
    process_mean: float
    write_mean: float
    request_bytes: int
    prefix_bytes: int


def measured(text: str) -> Measured:
    """The figures in the text of /metrics."""
    totals: Counter[str] = Counter()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            totals[sample.name] += sample.value  # type: ignore[assignment]  # sums of floats; a Counter for its zeros
    return Measured(
        consumed=int(totals["reknit_records_consumed_total"]),
        produced=int(totals["reknit_records_produced_total"]),
        batches=int(totals["reknit_batches_total"]),
        process_mean=_mean(totals, "reknit_batch_process_seconds"),
        write_mean=_mean(totals, "reknit_batch_write_seconds"),
        request_bytes=int(totals["reknit_request_written_bytes_total"]),
        prefix_bytes=int(totals["reknit_prefix_kept_bytes_total"]),
    )


def _mean(totals: Counter[str], name: str) -> float:
    return totals[f"{name}_sum"] / max(1, totals[f"{name}_count"])


def summary(reports: Sequence[SessionReport], worker: Measured) -> list[str]:
    """The summary, as lines."""
    facts = [*_histories(reports), *_streams(reports), *_worker(worker)]
    return [*heading("Summary"), "", *(line for label, text in facts for line in labelled(label, text))]


def _histories(reports: Sequence[SessionReport]) -> Iterator[tuple[str, str]]:
    refused = sum(any(not refusal.tolerated for refusal in report.met) for report in reports)
    tolerated = sum(bool(report.met) for report in reports) - refused
    yield (
        "sessions",
        f"{len(reports)}; {refused} histories would have been refused, {tolerated} by stricter providers only",
    )
    sent = sum(sum(report.requests.values()) for report in reports)
    invalid = sum(report.valid is False for report in reports)
    verdict = f"NOT VALID in {counted(invalid, 'session')}" if invalid else "all valid by the provider's rules"
    rejected = sum(len(report.rejected) for report in reports)
    yield "requests", f"{sent} sent, {verdict}; {rejected} rejected before sending"
    codes: Counter[str] = Counter()
    for report in reports:
        codes.update(report.fixes)
    added = sum(count for code, count in codes.items() if FIXES[code].fate == "synthesised")
    lost = sum(report.lossy for report in reports) - added
    kinds = f"{codes.total()} of {len(codes)} kinds"
    yield "fixes", f"{kinds}; {lost} lost content and {added} added words that nobody said; each of them says what"


def _streams(reports: Sequence[SessionReport]) -> Iterator[tuple[str, str]]:
    promoted = sum(len(report.promoted) for report in reports)
    retracted = sum(len(report.retracted) for report in reports)
    incomplete = sum(len(report.incomplete) for report in reports)
    unseen = sum(len(report.unseen) for report in reports)
    blocks = f"{counted(promoted, 'block')} promoted, {retracted} retracted, {incomplete} incomplete"
    yield "streams", f"{blocks}; {counted(unseen, 'result')} that no block had shown"
    letters = sum(len(report.dead_letters) for report in reports)
    yield "dead letters", f"{counted(letters, 'record')} that could not be used, kept unchanged with the reason"


def _worker(worker: Measured) -> Iterator[tuple[str, str]]:
    work, commit = worker.process_mean * 1000, worker.write_mean * 1000
    records = f"{worker.consumed} records in, {worker.produced} out, in {worker.batches} batches"
    yield "worker", f"{records}; on average {work:.1f} ms of work and {commit:.1f} ms to write each"
    if worker.request_bytes:
        share = worker.prefix_bytes / worker.request_bytes
        yield "prefix", f"{share:.0%} of the request bytes are settled: the next request begins with them"
