"""Reports about many sessions: ``reknit report``, ``feedback`` and ``diff``.

``report`` shows what was, or would be, repaired and prevented; ``feedback`` what providers refused anyway; ``diff``
what two runs over the same input published differently. Each writes a list for people, JSON lines, or a page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from msgspec import structs

from reknit.pipeline.cli import Exit, Group, Progress, fail, say, write_json
from reknit.pipeline.cli.broker import run_with_broker
from reknit.pipeline.cli.config import JSON, Since, setting_option, with_config
from reknit.pipeline.diff import Compared, Summary, Tally
from reknit.pipeline.errors import ReknitError
from reknit.pipeline.kafka.admin import connected
from reknit.pipeline.kafka.partitions import partitions_of
from reknit.pipeline.kafka.reading import read_partitions, reader
from reknit.pipeline.letters import LETTER_KINDS, REFUSED
from reknit.pipeline.replay.reading import compared_runs
from reknit.pipeline.settings import Config
from reknit.pipeline.text import visible
from reknit.topics import AGENT_TURNS, DEAD_LETTERS, HISTORY_FIXES, qualified
from reknit.topics.records import FixRecord

if TYPE_CHECKING:
    from reknit.pipeline.cli.dead_letters import Letter
    from reknit.pipeline.report import Refusal, Report

# Most lines of one list on a terminal; `--json` has all.
_MOST = 20


@click.command("report")
@with_config
@setting_option("source_prefix")
@click.option("--since", type=Since(), help="Only records since then: 90s, 30m, 2h, 7d ago, or a time; else all.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option("--html", type=click.Path(dir_okay=False), help="Write a page to this file, which stands alone.")
def report_command(config: Config, *, since: int | None, as_json: bool, html: str | None) -> None:
    """Report what was repaired, which errors of providers that prevented, and what cannot be judged.

    Reads the fixes and dead letters of a shadow or a live worker under --prefix, and its inputs, under --source-prefix
    if they belong to another pipeline.
    """
    report = run_with_broker(config, lambda: _read(config, since))
    if html is not None:
        # Imported here: only a page needs the template engine.
        from reknit.pipeline.pages import render

        begun = "" if since is None else _time(since).isoformat(" ", "minutes")
        page = render("report.html", report=report, prefix=config.prefix, since=begun)
        Path(html).write_text(page, encoding="utf-8")
        say(f"wrote {html}")
    if as_json:
        write_json({**structs.asdict(report), "dead_letters": report.dead_letters})
    elif html is None:
        click.echo(visible("\n".join(lines_of(report))))


async def _read(config: Config, since: int | None) -> Report:
    from reknit.pipeline import report  # it imports all rules, which a comparison does not need

    source = config.inputs_prefix
    tally, strange, unread = report.Tally(), 0, 0
    async with reader(config) as consumer:
        turns = await _places(consumer, config, AGENT_TURNS, source)
        async with connected(config) as admin:
            positions = await admin.next_offsets(f"{config.prefix}reknit", turns)
        # Letters first: inputs are matched with them.
        for topic, prefix in ((DEAD_LETTERS, config.prefix), (HISTORY_FIXES, config.prefix), (AGENT_TURNS, source)):
            places = await _places(consumer, config, topic, prefix)
            async for record in read_partitions(consumer, places, since, Progress()):
                headers, day = dict(record.headers), _day(record.timestamp)
                try:
                    if topic == DEAD_LETTERS:
                        tally.count_letter(record.key, headers, day)
                    elif topic == HISTORY_FIXES:
                        tally.count_fix(record.key, record.value or b"", headers, day)
                    else:
                        place = TopicPartition(record.topic, record.partition)
                        unread += record.offset >= positions.get(place, 0)
                        tally.count_input(record.key, record.partition, record.offset, headers, day)
                        tally.count_images(record.key, record.value)
                except (msgspec.DecodeError, UnicodeDecodeError):
                    strange += 1
    if strange:
        say(f"{strange} records are not a worker's and are passed over")
    if unread:
        say(f"reknit: the worker has not read {unread:,} records of {AGENT_TURNS} yet; the report covers the rest")
    return tally.report()


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _day(milliseconds: int) -> str:
    """Return the day of a record; a producer's timestamp may be outside of the calendar."""
    try:
        return _time(milliseconds).date().isoformat()
    except (OverflowError, ValueError, OSError):
        return "unknown"


async def _places(consumer: AIOKafkaConsumer, config: Config, topic: str, prefix: str) -> list[TopicPartition]:
    numbers = await partitions_of(consumer, msgspec.structs.replace(config, prefix=prefix), topic)
    return [TopicPartition(qualified(topic, prefix), number) for number in numbers]


def lines_of(report: Report) -> Iterator[str]:
    """Yield the report as lines for a terminal."""
    yield f"sessions: {report.sessions}, of them mended: {report.mended_sessions}"
    letters = report.dead_letters
    kinds = ", ".join(f"{words}: {getattr(letters, kind)}" for kind, words in LETTER_KINDS.items())
    yield f"dead letters: {letters.all} ({kinds})"
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
    equal = report.equal_images
    if equal.images:
        yield ""
        sizes = f"{equal.images} ({equal.bytes} bytes) in {equal.sessions} sessions"
        yield f"Images that repeat one of their session: {sizes}"
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


# Refusals of published requests.

# Refusals that need a new rule or a change of one; a rule had predicted `foreseen`.
_UNKNOWN = "refused_unknown"
_CANDIDATES = frozenset({"refused_missed", _UNKNOWN})
_ALL = _CANDIDATES | {"refused_foreseen"}


def _feedback_options(command: Callable[..., None]) -> Callable[..., None]:
    options = (
        click.option("--session", help="Only requests of this session."),
        click.option("--since", type=Since(), help="Only answers since then: 90s, 30m, 2h, 7d ago, or a time."),
        click.option("--all", "every", is_flag=True, help="Also what a rule foresaw, and what was retried or dropped."),
        JSON,
    )
    for option in reversed(options):
        command = option(command)
    return with_config(command)


@click.group("feedback", cls=Group)
def feedback_group() -> None:
    """Published requests that their provider refused, compared with the rules: list, count, and group them.

    A refusal that no rule knows, or that a rule should have found, is a candidate for a rule. Each is also a dead
    letter, at the place that `list` prints.
    """


@feedback_group.command("list")
@_feedback_options
def list_command(*, as_lines: bool, **options: Any) -> None:  # noqa: ANN401  click's options
    """Print refusals, oldest first in each partition: the request by its digest, and the provider's words."""
    for letter in _refused_letters(**options):
        facts = _refusal_summary(letter)
        where = f"{facts['letter']:>10}  {facts['outcome']:<8}  {facts['target']}  {facts['session']}"
        line = f"{where}  {facts['rule'] or '-'}  {facts['body-sha256']}  {facts['message']}"
        write_json(facts) if as_lines else click.echo(visible(line))


@feedback_group.command("count")
@_feedback_options
def count_command(*, as_lines: bool, **options: Any) -> None:  # noqa: ANN401  click's options
    """Count refusals by target, outcome, rule and the provider's words, the most frequent first.

    Refusals that were healed have the outcome `healed`, and the repair in place of the rule and the words.
    """
    names = ("target", "outcome", "rule", "message")
    counts = Counter(
        tuple(facts[name] for name in names) for facts in map(_refusal_summary, _refused_letters(**options))
    )
    counts += _healed_refusals(options["config"], options["session"], options["since"])
    for found, count in sorted(counts.items(), key=lambda each: (-each[1], each[0])):
        facts = dict(zip(names, found, strict=True))
        line = f"{count:>8}  {facts['target']}  {facts['outcome']:<8}  {facts['rule'] or '-'}  {facts['message']}"
        write_json({**facts, "refusals": count}) if as_lines else click.echo(visible(line))


@feedback_group.command("propose")
@_feedback_options
def propose_command(*, as_lines: bool, **options: Any) -> None:  # noqa: ANN401  click's options
    """Print rows for the table of healings: unknown sentences, grouped by their shape, the most frequent first.

    A row finds every sentence of its shape. A person adds its name, its repair and its loss.
    """
    from reknit.pipeline.healing.proposals import (  # it imports rules, which a comparison does not need
        Sentence,
        propose,
    )

    unknown = [letter for letter in _refused_letters(**options) if letter.why.code == _UNKNOWN]
    sentences = [
        Sentence(str(letter.why.target or ""), str(letter.why.message or ""), letter.place) for letter in unknown
    ]
    for proposal in propose(sentences):
        if as_lines:
            write_json(msgspec.to_builtins(proposal))
            continue
        for line in proposal.row().splitlines():
            click.echo(visible(line))


def _healed_refusals(config: Config, session: str | None, since: int | None) -> Counter[tuple[str, ...]]:
    """Count the refusals that were healed, by target, outcome, repair and its meaning."""
    from reknit.pipeline.healing.table import HEALED_CODES, healed_summary  # it imports rules, as above

    async def healed() -> set[tuple[bytes | None, str, str, str]]:
        # A fix names the request that was refused, and later requests of the session have the same one.
        found = set()
        async with reader(config) as consumer:
            numbers = await partitions_of(consumer, config, HISTORY_FIXES)
            places = [TopicPartition(qualified(HISTORY_FIXES, config.prefix), number) for number in numbers]
            async for record in read_partitions(consumer, places, since, Progress()):
                try:
                    fix = msgspec.json.decode(record.value or b"", type=FixRecord)
                except (msgspec.DecodeError, UnicodeDecodeError):
                    continue  # not a worker's
                if fix.code in HEALED_CODES and (session is None or record.key == session.encode()):
                    found.add((record.key, fix.target, fix.code, fix.detail))
        return found

    refusals = run_with_broker(config, healed)
    return Counter((target, "healed", code, healed_summary(code)) for _, target, code, _ in refusals)


def _refused_letters(*, config: Config, every: bool, session: str | None, since: int | None) -> list[Letter]:
    from reknit.pipeline.cli.dead_letters import (  # they import clients and the state of sessions
        Wanted,
        read_letters,
    )

    wanted = Wanted(codes=_ALL if every else _CANDIDATES, session=session, since=since)
    found = run_with_broker(config, lambda: read_letters(config, wanted))
    return [letter for letter in found if every or not letter.done]


def _refusal_summary(letter: Letter) -> dict[str, str]:
    """Return a refusal's row in a list: the provider's message, and of the request only its digest."""
    why = letter.why
    said = {"target": why.target, "rule": why.rule, "body-sha256": why.body_sha256, "message": why.message}
    known = {name: value or "" for name, value in said.items()}
    outcome = why.code.removeprefix(REFUSED)
    return {"letter": letter.place, "session": letter.session or "", "outcome": outcome, **known, "done": letter.done}


# Comparison of two runs.

# Most sessions on a page, and most differences of each; counts include all.
_SESSIONS_SHOWN, _CHANGES_SHOWN = 200, 50
# Names in a list of sessions that were not compared, and lines of an example on a terminal.
_NAMED, _LINES = 20, 6


@click.command("diff")
@with_config
@setting_option("delivery", type=click.Choice(["exactly-once", "at-least-once"]))
@click.option("--session", "sessions", multiple=True, help="Only this session; may be given several times.")
@click.option(
    "--expect-none", is_flag=True, help="End with 3 where something differs, with 2 where nothing was compared."
)
@click.option(
    "--html", type=click.Path(dir_okay=False, writable=True), help="Also write one HTML page that stands alone."
)
@click.option("--json", "as_lines", is_flag=True, help="One line of JSON a session that differs, then the summary.")
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
def diff_command(
    config: Config,
    before: str,
    after: str,
    sessions: tuple[str, ...],
    *,
    expect_none: bool,
    html: str | None,
    as_lines: bool,
) -> None:
    """Compare the outputs of two runs over the same input: live workers, replays, dry runs.

    A and B are prefixes of topics or folders of dry runs. A name with a slash or of an existing folder is a folder.
    Requests are paired by their target and the record that caused them; versions and ids do not count. A record that
    one side published more often than the other is a difference, unless the side delivers at least once (--delivery).
    """
    summary, page = Summary(), _Page()
    try:
        wanted, read = frozenset(name.encode() for name in sessions), partial(run_with_broker, config)
        for compared in compared_runs(config, (before, after), wanted, summary, read=read, on_progress=Progress()):
            page.keep(compared, is_example=summary.add_session(compared))
            if as_lines and (compared.changes or compared.not_comparable):
                write_json(compared)
    except ReknitError as error:
        fail(error)
    if as_lines:
        write_json({"summary": _summary_json(summary)})
    else:
        for line in compared_lines((before, after), summary):
            click.echo(line)
    if html is not None:
        Path(html).write_text(page.rendered((before, after), summary), encoding="utf-8")
    if expect_none and not summary.plain.sessions:
        say("reknit: nothing was compared: no session of one version has outputs in both, or is comparable")
        raise SystemExit(int(Exit.UNUSABLE))
    if expect_none and summary.plain.differing:
        raise SystemExit(int(Exit.DIFFERENT))


# Output of the comparison.


class _Page:
    """The sessions on a page; examples are always included."""

    def __init__(self) -> None:
        self._sessions: list[Compared] = []
        self._counts: list[int] = []
        self._hidden = 0

    def keep(self, compared: Compared, *, is_example: bool) -> None:
        if compared.changes and (is_example or len(self._sessions) < _SESSIONS_SHOWN):
            self._sessions.append(structs.replace(compared, changes=compared.changes[:_CHANGES_SHOWN]))
            self._counts.append(len(compared.changes))
        else:
            self._hidden += bool(compared.changes)

    def rendered(self, names: tuple[str, str], summary: Summary) -> str:
        from reknit.pipeline.pages import render

        return render(
            "diff.html",
            names=names,
            summary=summary,
            sessions=list(zip(self._sessions, self._counts, strict=True)),
            hidden=self._hidden,
            # A session's id may have any characters; the id of a page's element is a number.
            anchors={each.session: f"session-{number}" for number, each in enumerate(self._sessions)},
            left_out=sum(map(len, summary.not_comparable.values())),
            most_named=_NAMED,
        )


def compared_lines(names: tuple[str, str], summary: Summary) -> Iterator[str]:
    """Yield the summary as lines for a terminal."""
    yield f"A: {names[0] or 'the live topics'}   B: {names[1] or 'the live topics'}"
    yield from _tally_lines(summary.plain, "")
    if summary.mixed.sessions:
        yield ""
        yield from _tally_lines(summary.mixed, " that several versions wrote, counted apart")
    for why, sessions in summary.not_comparable.items():
        named = ", ".join(map(_in_line, sessions[:_NAMED]))
        more = f", and {len(sessions) - _NAMED:,} more" if len(sessions) > _NAMED else ""
        yield f"not compared, {why}: {named}{more}"
    if summary.uncovered:
        yield f"left out, as only one side can have them: {summary.uncovered:,} records"


def _tally_lines(tally: Tally, which: str) -> Iterator[str]:
    counted = ", ".join(f"{number:,} {what}" for what, number in tally.counts.items())
    yield f"{_counted(tally.sessions)} compared{which}: {tally.differing:,} differ{f' ({counted})' if counted else ''}"
    if tally.repeats:
        yield f"{tally.repeats:8,} records published again, as at-least-once delivery may; not counted as differences"
    for kind in tally.ranked():
        yield f"{kind.count:8,} in {_counted(kind.sessions)}  {kind.subject} {kind.how}: {_in_line(kind.label)}"
        for session, change in kind.examples:
            again = f"  and in {change.again:,} later requests" if change.again else ""
            yield f"{'':10}{_in_line('  '.join(filter(None, (session, change.place, change.path))))}{again}"
            yield from (f"{'':12}{_in_line(line)}" for line in change.lines[:_LINES])
            if len(change.lines) > _LINES:
                yield f"{'':12}… {len(change.lines) - _LINES} more lines"


def _counted(number: int) -> str:
    return f"{number:,} session{'' if number == 1 else 's'}"


def _in_line(text: str) -> str:
    """Return a text of a session without control characters and line breaks."""
    return visible(text).replace("\n", "⟦U+000A⟧")


def _summary_json(summary: Summary) -> dict[str, object]:
    return {
        "compared": _tally_json(summary.plain),
        "several_versions": _tally_json(summary.mixed),
        "not_compared": summary.not_comparable,
        "left_out": summary.uncovered,
    }


def _tally_json(tally: Tally) -> dict[str, object]:
    kinds = [
        {
            "subject": kind.subject,
            "how": kind.how,
            "label": kind.label,
            "count": kind.count,
            "sessions": kind.sessions,
            "examples": [session for session, _ in kind.examples],
        }
        for kind in tally.ranked()
    ]
    return {
        "sessions": tally.sessions,
        "differ": tally.differing,
        "repeats": tally.repeats,
        "counts": tally.counts,
        "kinds": kinds,
    }
