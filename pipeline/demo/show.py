"""The output for a person: progress while the demo runs, then a report on each session and a summary of the fleet.

Progress is one line that changes on a terminal, and elsewhere a line from time to time. Colour is optional.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import click
from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families

from reknit.pipeline.cli import colour_mode
from reknit.pipeline.demo.recordings import Piece, SessionReport
from reknit.pipeline.fixes import FIXES, FixCode
from reknit.pipeline.settings import Config

_ON_TERMINAL_SECONDS = 0.1
_ELSEWHERE_SECONDS = 2.0
_BAR = 24
_STAGE_WIDTH = 11


class Progress:
    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._last = time.monotonic()
        self._open = False

    def finish_stage(self, label: str, text: str) -> None:
        self.clear_line()
        self._last = time.monotonic()
        click.echo(f"  {label:<{_STAGE_WIDTH}}{text}", err=True)

    def update_line(self, label: str, text: str, done: int | None = None, of: int = 0) -> None:
        """Show the progress of a stage, at most so often; with ``of`` as a bar of ``done`` parts."""
        now = time.monotonic()
        if now - self._last < (_ON_TERMINAL_SECONDS if self._live else _ELSEWHERE_SECONDS):
            return
        self._last = now
        bar = "" if done is None else f"{'=' * (_BAR * done // max(1, of)):.<{_BAR}} "
        if self._live:
            click.echo(f"\r\033[K  {label:<{_STAGE_WIDTH}}{bar}{text}", nl=False, err=True)
            self._open = True
        else:
            click.echo(f"  {label:<{_STAGE_WIDTH}}{text}", err=True)

    def clear_line(self) -> None:
        """Take the changing line off the screen."""
        if self._open:
            click.echo("\r\033[K", nl=False, err=True)
            self._open = False

    def show_lines(self, lines: Iterable[str], *, err: bool = True) -> None:
        self.clear_line()
        for line in lines:
            click.echo(line, err=err, color=colour_mode())


WIDTH = 100
_LABEL = 13
_INDENT = 4
# How much of a block's text is quoted.
_QUOTE = 66

HISTORIES = "Histories, and what the provider would have said to them as they are"
HISTORIES_LEGEND = ("Each was fed as it is. `reknit explain CODE` says more about a mend.",)
STREAMS = "Streams, and what a screen would have got wrong"
STREAMS_LEGEND = (
    "promoted: the stream never delivered it. retracted: shown, then replaced by a later attempt.",
    "incomplete: its end never came, and it says so. unseen: a result that no block had shown.",
)


def heading(text: str, *notes: str) -> list[str]:
    return ["", click.style(text, bold=True), *(click.style(f"  {note}", dim=True) for note in notes)]


def story(report: SessionReport) -> list[str]:
    """Return one session's report: its title, then a line for each statement."""
    source = report.source.partition("; ")[0]
    gap = " " * (WIDTH - 2 - len(report.title) - len(source))
    lines = ["", f"  {click.style(report.title, bold=True)}{gap}{click.style(source, dim=True)}"]
    for label, text, colour in _facts(report):
        lines += labelled(label, text, colour)
    return lines


def labelled(label: str, text: str, colour: str | None = None) -> Iterator[str]:
    """A label and what it is about, over as many lines as that takes."""
    room = WIDTH - _INDENT - _LABEL
    # Provider messages have words that are longer than a line, such as ids.
    for number, line in enumerate(textwrap.wrap(text, room, break_on_hyphens=False) or [""]):
        shown = click.style(f"{label:<{_LABEL}}", fg=colour) if number == 0 else " " * _LABEL
        yield " " * _INDENT + shown + line


def _facts(report: SessionReport) -> Iterator[tuple[str, str, str | None]]:
    for refusal in report.met:
        if refusal.tolerated:
            yield "without", f"{refusal.target} lets it pass, stricter ones say: {refusal.message}", "yellow"
        else:
            yield "without", f"{refusal.target}: {refusal.message}", "red"
    for code, count in report.fixes.items():
        times = f" ({count} times)" if count > 1 else ""
        yield "mended", f"{code}{times}: {FIXES[code].summary}{_loss(FIXES[code])}", "green"
    yield from _stream_facts(report)
    for letter in report.dead_letters:
        yield "dead letter", f"{letter.code}: {letter.message}", "yellow"
    for message in report.rejected:
        yield "rejected", f"nothing can be sent, and nothing is. {message}", "yellow"
    yield from _outcome(report)


def _loss(fix: FixCode) -> str:
    if fix.lossless:
        return ""
    return f" [{'words are added' if fix.fate == 'synthesised' else 'content is lost'}, and recorded]"


def _stream_facts(report: SessionReport) -> Iterator[tuple[str, str, str | None]]:
    for label, pieces in (
        ("promoted", report.promoted),
        ("retracted", report.retracted),
        ("incomplete", report.incomplete),
    ):
        for piece in pieces:
            yield label, _quoted(piece), "green" if label == "promoted" else "yellow"
    for text in report.unseen:
        yield "unseen", f"result {_shortened(text)!r}, shown opened", "green"
    if report.recorded:
        yield "recorded", f"{counted(report.recorded, 'finished turn')} appended to the session's log", "green"


def _outcome(report: SessionReport) -> Iterator[tuple[str, str, str | None]]:
    if report.requests:
        sent = ", ".join(f"{counted(count, 'request')} for {target}" for target, count in report.requests.items())
        no_repair = "" if report.fixes or report.met else ", nothing to mend"
        yield "now", f"{'valid' if report.valid else 'NOT VALID'}: {sent}{no_repair}", "cyan" if report.valid else "red"
    elif report.items:
        changed = report.promoted or report.retracted or report.incomplete or report.unseen
        yield "now", f"{counted(report.items, 'block')} on the screen{'' if changed else ', as streamed'}", "cyan"


def _quoted(piece: Piece) -> str:
    kind = {"tool_use": "call"}.get(piece.type, piece.type)
    return f"{kind:<9}{_shortened(piece.text)}"


def _shortened(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _QUOTE else flat[: _QUOTE - 3] + "..."


def stories(reports: Sequence[SessionReport]) -> list[str]:
    histories = [report for report in reports if report.kind == "history"]
    streams = [report for report in reports if report.kind == "stream"]
    return [
        *heading(HISTORIES, *HISTORIES_LEGEND),
        *(line for report in histories for line in story(report)),
        *heading(STREAMS, *STREAMS_LEGEND),
        *(line for report in streams for line in story(report)),
    ]


def how_to_go_on(config: Config, url: str, viewer: str = "", page: str = "") -> list[str]:
    """Return the commands for a second terminal while the pipeline keeps running.

    ``viewer`` and ``page`` are the URLs of the viewer and of the page with two UI clients.
    """
    where = f"REKNIT_BOOTSTRAP_SERVERS={config.bootstrap_servers} REKNIT_PREFIX={config.prefix}"
    reknit = _typed()
    commands = (
        f"export {where} REKNIT_DELIVERY={config.delivery}",
        f"""echo '{{"role": "user", "content": "Hello?"}}' | {reknit} ingest turns --session mine""",
        """echo '{"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}' \\""",
        f"  | {reknit} ingest events --source anthropic --session mine",
        f"{reknit} inspect mine",
        f"curl {url}/metrics",
    )
    look = [*heading("Sessions, fixes and streams in a browser:"), "", f"    {viewer}/"] if viewer else []
    title = "Two UI clients on a session whose stream and server break off; each visit begins a new one:"
    screens = [*heading(title), "", f"    {page}"] if page else []
    return [
        *look,
        *screens,
        *heading("The pipeline stays up. In another terminal:"),
        "",
        *(f"    {line}" for line in commands),
        "",
        "  Ctrl-C ends it, and everything that it started.",
        "",
    ]


def _typed() -> str:
    """Return the command line of this program: its name if the shell finds it, otherwise its path."""
    ours = Path(sys.executable).with_name("reknit")
    found = shutil.which("reknit")
    return str(ours) if ours.exists() and (found is None or Path(found) != ours) else "reknit"


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


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
    facts = [*_histories(reports), *_streams(reports), *_worker(worker)]
    return [*heading("Summary"), "", *(line for label, text in facts for line in labelled(label, text))]


def score(reports: Sequence[SessionReport]) -> list[str]:
    """Return the outcome of the fleet in three lines."""
    sent, verdict = _sent(reports)
    promoted, retracted, incomplete = _blocks(reports)
    made, lost, added = _losses(reports)
    facts = {
        "histories": f"{_refused(reports)} would have been refused; {sent} requests were sent, {verdict}",
        "streams": f"{promoted} lost blocks were recovered, {retracted} were withdrawn, {incomplete} marked incomplete",
        "fixes": f"{made}, each recorded with its place; {lost} lost content, {added} added content",
    }
    return [line for name, fact in facts.items() for line in labelled(name, fact)]


def _refused(reports: Sequence[SessionReport]) -> int:
    """Return the number of histories that their provider would have refused."""
    return sum(any(not refusal.tolerated for refusal in report.met) for report in reports)


def _sent(reports: Sequence[SessionReport]) -> tuple[int, str]:
    """Return the number of requests, and whether they are valid."""
    invalid = sum(report.valid is False for report in reports)
    verdict = f"NOT VALID in {counted(invalid, 'session')}" if invalid else "all valid by the provider's rules"
    return sum(sum(report.requests.values()) for report in reports), verdict


def _blocks(reports: Sequence[SessionReport]) -> tuple[int, int, int]:
    """Return the number of blocks that were promoted, retracted, and left incomplete."""
    return (
        sum(len(report.promoted) for report in reports),
        sum(len(report.retracted) for report in reports),
        sum(len(report.incomplete) for report in reports),
    )


def _losses(reports: Sequence[SessionReport]) -> tuple[int, int, int]:
    """Return the number of fixes, of those that lost content, and of those that added content."""
    codes: Counter[str] = Counter()
    for report in reports:
        codes.update(report.fixes)
    added = sum(count for code, count in codes.items() if FIXES[code].fate == "synthesised")
    return codes.total(), sum(report.lossy for report in reports) - added, added


def _histories(reports: Sequence[SessionReport]) -> Iterator[tuple[str, str]]:
    refused = _refused(reports)
    tolerated = sum(bool(report.met) for report in reports) - refused
    yield (
        "sessions",
        f"{len(reports)}; {refused} histories would have been refused, {tolerated} by stricter providers only",
    )
    sent, verdict = _sent(reports)
    rejected = sum(len(report.rejected) for report in reports)
    yield "requests", f"{sent} sent, {verdict}; {rejected} rejected before sending"
    kinds = len({code for report in reports for code in report.fixes})
    made, lost, added = _losses(reports)
    yield "fixes", f"{made} of {kinds} kinds; {lost} lost content and {added} added content; each says what"


def _streams(reports: Sequence[SessionReport]) -> Iterator[tuple[str, str]]:
    promoted, retracted, incomplete = _blocks(reports)
    unseen = sum(len(report.unseen) for report in reports)
    blocks = f"{counted(promoted, 'block')} promoted, {retracted} retracted, {incomplete} incomplete"
    yield "streams", f"{blocks}; {counted(unseen, 'result')} that no block had shown"
    letters = sum(len(report.dead_letters) for report in reports)
    rejected = sum(len(report.rejected) for report in reports)
    unusable = f"{letters} could not be used, for {rejected} there was no valid request"
    yield "dead letters", f"{counted(letters + rejected, 'record')}, kept unchanged with the reason: {unusable}"


def _worker(worker: Measured) -> Iterator[tuple[str, str]]:
    work, commit = worker.process_mean * 1000, worker.write_mean * 1000
    records = f"{worker.consumed} records in, its own among them, {worker.produced} out, in {worker.batches} batches"
    yield "worker", f"{records}; on average {work:.1f} ms of work and {commit:.1f} ms to write each"
    if worker.request_bytes:
        share = worker.prefix_bytes / worker.request_bytes
        yield "prefix", f"{share:.0%} of the request bytes are settled: the next request begins with them"
