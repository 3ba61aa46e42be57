"""``reknit report``: what is, or would be, mended and prevented: the case for the switch, and a page to pass on."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition

from pipeline.cli import Progress, say, write_json
from pipeline.cli.broker import partitions_of, read_partitions, reader, run_with_broker
from pipeline.cli.config import Since, broker_options, configured, setting_option, wait_option
from pipeline.report import Refusal, Report, Tally
from pipeline.settings import Config
from pipeline.text import visible
from topics import AGENT_TURNS, DEAD_LETTERS, HISTORY_FIXES, qualified

# Lines of one list that people are shown; `--json` has all.
_MOST = 20


@click.command("report")
@broker_options
@wait_option
@setting_option("source_prefix")
@click.option("--since", type=Since(), help="Only records since then: 90s, 30m, 2h, 7d ago, or a time; else all.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option("--html", type=click.Path(dir_okay=False), help="Write a page to this file, which stands alone.")
def report_command(
    *, since: int | None, as_json: bool, html: str | None, config_file: str | None, **options: str | None
) -> None:
    """Say what was mended, which of the providers' errors that prevented, and what cannot be judged.

    It reads the fixes and dead letters under --prefix, a shadow's or a live worker's, and the inputs that it worked on,
    under --source-prefix where they are another pipeline's.
    """
    config = configured(config_file, **options)
    report = run_with_broker(config, lambda: _read(config, since))
    if html is not None:
        # Not before: a page needs a template engine, which the other commands do not pay for.
        from pipeline.pages import render

        begun = "" if since is None else _time(since).isoformat(" ", "minutes")
        page = render("report.html", report=report, prefix=config.prefix, since=begun)
        Path(html).write_text(page, encoding="utf-8")
        say(f"wrote {html}")
    if as_json:
        write_json(report)
    elif html is None:
        click.echo(visible("\n".join(lines_of(report))))


async def _read(config: Config, since: int | None) -> Report:
    source = config.prefix if config.source_prefix is None else config.source_prefix
    tally, strange = Tally(), 0
    async with reader(config) as consumer:
        # Letters first: inputs are compared with them.
        for topic, prefix in ((DEAD_LETTERS, config.prefix), (HISTORY_FIXES, config.prefix), (AGENT_TURNS, source)):
            places = await _places(consumer, config, topic, prefix)
            async for record in read_partitions(consumer, places, since, Progress()):
                headers, day = dict(record.headers), _time(record.timestamp).date().isoformat()
                try:
                    if topic == DEAD_LETTERS:
                        tally.count_letter(record.key, headers, day)
                    elif topic == HISTORY_FIXES:
                        tally.count_fix(record.key, record.value or b"", headers, day)
                    else:
                        tally.count_input(record.key, record.partition, record.offset, headers, day)
                except (msgspec.DecodeError, UnicodeDecodeError):
                    strange += 1
    if strange:
        say(f"{strange} records are not a worker's and are passed over")
    return tally.report()


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


async def _places(consumer: AIOKafkaConsumer, config: Config, topic: str, prefix: str) -> list[TopicPartition]:
    numbers = await partitions_of(consumer, msgspec.structs.replace(config, prefix=prefix), topic)
    return [TopicPartition(qualified(topic, prefix), number) for number in numbers]


def lines_of(report: Report) -> Iterator[str]:
    """The report as people read it in a terminal."""
    yield f"sessions: {report.sessions}, of them mended: {report.mended_sessions}"
    yield from _listed(
        "Requests as they were sent, read from a log",
        [
            f"{row.requests:>8}  {row.target}  {_by(row.producer)}; would be refused: {row.refused}, leave mended: "
            f"{row.prevented}, rejected: {row.refused - row.prevented}"
            for row in report.logged
        ],
    )
    yield from _listed("Errors of providers that these would get", list(map(_refusal, report.refusals)))
    yield from _listed("Rejected, since nothing mends it", list(map(_refusal, report.rejections)))
    yield from _listed(
        "Mended",
        [
            f"{row.mends:>8}  {row.target or 'all'}  {row.code}  {_by(row.producer)}"
            f"{'' if row.lossless else ', lossy'}{', only observed' if row.observed else ''}"
            f"{f', avoids: {row.avoids}' if row.avoids else ''}"
            for row in report.mends
        ],
    )
    yield from _listed(
        "Refused by providers all the same",
        [f"{row.requests:>8}  {row.target}  {row.outcome} {row.rule}: {row.message}" for row in report.answered],
    )
    yield from _listed(
        "Not judged",
        [f"{row.records:>8}  {row.topic}  {row.code}, sessions: {row.sessions}" for row in report.unjudged],
    )
    yield ""
    yield "Nor is judged what no request's shape shows: keys, quotas, tokens, bytes behind URLs, what models answer."


def _refusal(row: Refusal) -> str:
    return f"{row.requests:>8}  {row.target}  {row.rule}  {_by(row.producer)}: {row.message}"


def _listed(title: str, rows: list[str]) -> Iterator[str]:
    if rows:
        yield from ("", title, *rows[:_MOST])
        if len(rows) > _MOST:
            yield f"          and {len(rows) - _MOST} more, which --json and --html have"


def _by(producer: str) -> str:
    return producer or "(no name)"
