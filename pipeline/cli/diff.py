"""``reknit diff``: what two runs over the same input published otherwise, session by session."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from aiokafka import AIOKafkaConsumer, TopicPartition
from msgspec import structs

from pipeline.cli.broker import every_place, read_partitions, reader, run_with_broker
from pipeline.cli.config import broker_options, configured, wait_option
from pipeline.cli.output import Exit, Progress, fail, say, write_json
from pipeline.diff.summary import COMPARED_TOPICS, Compared, Summary, Tally, compare_session
from pipeline.errors import InputError, ReknitError
from pipeline.objects import open_objects
from pipeline.replay.folder import plan_of, read_partition, unfinished
from pipeline.replay.replays import plan_at
from pipeline.replay.sides import Coverage, Side, behind, is_of_worker
from pipeline.replay.spool import Fetch, Spool
from pipeline.settings import Config
from pipeline.stages.base import Record
from pipeline.text.invisible import visible
from topics import AGENT_TURNS, PROVIDER_EVENTS, qualified
from topics.declarations import RECORDED_PREFIX

RECORDED = RECORDED_PREFIX + AGENT_TURNS
# Sessions whose differences stand on a page, and of each so many; what is counted is counted in full.
_SESSIONS_SHOWN, _CHANGES_SHOWN = 200, 50
# Names in a list of sessions that were not compared, and lines of an example on a terminal.
_NAMED, _LINES = 20, 6
# Beyond every offset.
_NO_END = 1 << 62


@click.command("diff")
@broker_options
@wait_option
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
    before: str,
    after: str,
    sessions: tuple[str, ...],
    *,
    expect_none: bool,
    html: str | None,
    as_lines: bool,
    config_file: str | None,
    **options: Any,  # noqa: ANN401  click's options
) -> None:
    """Compare what two runs over the same input published: live work, replays, dry runs.

    A and B are prefixes of topics, or folders of dry runs: what exists as a folder, or has a slash in it, is a folder.
    Requests are paired by their target and the record that caused them; versions and ids do not count.
    """
    config = configured(config_file, **options)
    summary, page = Summary(), _Page()
    try:
        fetch = [_fetching(config, name) for name in (before, after)]
        with Spool(frozenset(name.encode() for name in sessions), fetch) as spool:
            sides = _read(config, spool, (before, after))
            for compared in _compared(spool, Coverage(sides), summary):
                page.keep(compared, is_example=summary.add_session(compared))
                if as_lines and (compared.changes or compared.not_comparable):
                    write_json(compared)
    except ReknitError as error:
        fail(error)
    if as_lines:
        write_json({"summary": _told(summary)})
    else:
        for line in report((before, after), summary):
            click.echo(line)
    if html is not None:
        Path(html).write_text(page.rendered((before, after), summary), encoding="utf-8")
    if expect_none and not summary.plain.sessions:
        say("reknit: nothing was compared: no session of one version has outputs in both, or is comparable")
        raise SystemExit(int(Exit.UNUSABLE))
    if expect_none and summary.plain.differing:
        raise SystemExit(int(Exit.DIFFERENT))


def _compared(spool: Spool, coverage: Coverage, summary: Summary) -> Iterator[Compared]:
    for both in spool.sessions():
        if not coverage.takes(both.session):
            continue
        name = both.session.decode("utf-8", "backslashreplace")
        why_not = coverage.why_not(both)
        for why in dict.fromkeys(why_not.values()):
            summary.leave_out(name, why)
        covered = coverage.covered(both, why_not)
        if not why_not:
            summary.uncovered += len(both.before) + len(both.after) - len(covered.before) - len(covered.after)
        if covered.before or covered.after:
            yield compare_session(name, covered.before, covered.after)


# Reading.


def _read(config: Config, spool: Spool, names: tuple[str, str]) -> tuple[Side, Side]:
    """Put both sides' records into the spool."""
    folders = [Path(name) if "/" in name or (name and Path(name).is_dir()) else None for name in names]
    sides = [
        Side(name=name, plan=None if folder is None else plan_of(folder))
        for name, folder in zip(names, folders, strict=True)
    ]
    for number, folder in enumerate(folders):
        if folder is not None:
            _read_folder(folder, number, spool)
    prefixes = [number for number, folder in enumerate(folders) if folder is None]

    async def read_topics() -> None:
        async with reader(config) as consumer:
            known = await every_place(consumer)
            for number in prefixes:
                sides[number] = await _read_prefix(consumer, known, names[number], number, spool)
            stretches = {place: each for place, each in _read_by_one(sides).items() if place.topic in known}
            async for record in read_partitions(consumer, stretches, on_progress=Progress(), stretches=stretches):
                sides[0].went_on.add(record.key or b"")

    if prefixes or _read_by_one(sides):
        run_with_broker(config, read_topics)
    return sides[0], sides[1]


def _fetching(config: Config, prefix: str) -> Fetch:
    """Reads the values of a pipeline from the object store that the configuration names."""
    objects = open_objects(structs.replace(config, prefix=prefix))

    def fetch(session: bytes, dataref: str) -> bytes | None:
        with suppress(InputError, ConnectionError):
            return None if objects is None else asyncio.run(objects.get(session, dataref))
        return None

    return fetch


def _read_by_one(sides: Sequence[Side]) -> dict[TopicPartition, tuple[int, int]]:
    """The stretches of the events that only one side has read: replays end, and live work goes on."""
    plans = [side.plan for side in sides if side.plan is not None]
    sources = {side.name if side.plan is None else side.plan.source_prefix for side in sides}
    if not plans or len(sources) > 1:
        return {}
    name = qualified(PROVIDER_EVENTS, sources.pop())
    found = {}
    for number, ends in enumerate(zip(*(plan.ends[PROVIDER_EVENTS] for plan in plans), strict=True)):
        first, last = min(ends), max(ends) if len(plans) == len(sides) else _NO_END
        if first < last:
            found[TopicPartition(name, number)] = first, last
    return found


def _read_folder(folder: Path, side: int, spool: Spool) -> None:
    missing = unfinished(folder)
    if missing:
        numbers = ", ".join(map(str, missing))
        raise InputError("not_finished", f"{folder}: partitions {numbers} are not there yet; run the same replay again")
    for topic in COMPARED_TOPICS:
        for number in range(plan_of(folder).partitions):
            for record in read_partition(folder, RECORDED if topic == AGENT_TURNS else topic, number):
                spool.add_record(side, topic, record)


async def _read_prefix(
    consumer: AIOKafkaConsumer,
    known: Mapping[str, list[TopicPartition]],
    prefix: str,
    side: int,
    spool: Spool,
) -> Side:
    # A pipeline that reads another one's inputs has what it would have recorded in a topic of its own.
    recorded = RECORDED if qualified(RECORDED, prefix) in known else AGENT_TURNS
    names = {qualified(recorded if topic == AGENT_TURNS else topic, prefix): topic for topic in COMPARED_TOPICS}
    there = names.keys() & known
    if not there:
        raise InputError("topic_missing", f"there are no outputs under the prefix {prefix!r}: {', '.join(names)}")
    places = [place for name in there for place in known[name]]
    consumer.assign(places)  # at once: asked about topics that it does not know, a consumer learns them one by one
    consumer.pause(*places)
    begins = await consumer.beginning_offsets(places)
    found = Side(name=prefix, plan=await plan_at(consumer, prefix))
    late = {(names[place.topic], place.partition) for place in places if begins[place]}
    found.begins_late.update((place, {}) for place in late)
    async for read in read_partitions(consumer, places, on_progress=Progress()):
        topic = names[read.topic]
        if recorded == topic and not is_of_worker(read.value):
            continue
        record = Record(
            partition=read.partition,
            offset=read.offset,
            key=read.key,
            value=read.value,
            headers=read.headers,
            timestamp=read.timestamp,
        )
        if (topic, read.partition) in late and (cause := behind(topic, record)) is not None:
            found.begins_late[topic, read.partition].setdefault(cause.topic, cause.offset)
        spool.add_record(side, topic, record)
    return found


# What is said of it.


class _Page:
    """The sessions that stand on a page; the examples among them in any case."""

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
        from pipeline.pages import render

        return render(
            "diff.html",
            names=names,
            summary=summary,
            sessions=list(zip(self._sessions, self._counts, strict=True)),
            hidden=self._hidden,
            # A session's id may hold anything; that of an element of a page is its number.
            anchors={each.session: f"session-{number}" for number, each in enumerate(self._sessions)},
            left_out=sum(map(len, summary.not_comparable.values())),
            most_named=_NAMED,
        )


def report(names: tuple[str, str], summary: Summary) -> Iterator[str]:
    """The summary in lines for people."""
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
    yield f"{_sessions(tally.sessions)} compared{which}: {tally.differing:,} differ{f' ({counted})' if counted else ''}"
    for kind in tally.ranked():
        yield f"{kind.count:8,} in {_sessions(kind.sessions)}  {kind.subject} {kind.how}: {_in_line(kind.label)}"
        for session, change in kind.examples:
            again = f"  and in {change.again:,} later requests" if change.again else ""
            yield f"{'':10}{_in_line('  '.join(filter(None, (session, change.place, change.path))))}{again}"
            yield from (f"{'':12}{_in_line(line)}" for line in change.lines[:_LINES])
            if len(change.lines) > _LINES:
                yield f"{'':12}… {len(change.lines) - _LINES} more lines"


def _sessions(number: int) -> str:
    return f"{number:,} session{'' if number == 1 else 's'}"


def _in_line(text: str) -> str:
    """A text of the sessions' own that can neither drive a terminal nor begin a line of its own."""
    return visible(text).replace("\n", "⟦U+000A⟧")


def _told(summary: Summary) -> dict[str, object]:
    return {
        "compared": _tally_told(summary.plain),
        "several_versions": _tally_told(summary.mixed),
        "not_compared": summary.not_comparable,
        "left_out": summary.uncovered,
    }


def _tally_told(tally: Tally) -> dict[str, object]:
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
    return {"sessions": tally.sessions, "differ": tally.differing, "counts": tally.counts, "kinds": kinds}
