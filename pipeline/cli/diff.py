"""``reknit diff``: what two runs over the same input published otherwise, session by session."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click
from msgspec import structs

from pipeline.cli import Exit, Progress, fail, say, write_json
from pipeline.cli.broker import run_with_broker
from pipeline.cli.config import broker_options, configured, wait_option
from pipeline.diff import Compared, Summary, Tally
from pipeline.errors import ReknitError
from pipeline.replay.reading import compared_sessions, fetching, read_folders, read_topics, want_topics
from pipeline.replay.sides import Coverage, Spool
from pipeline.text import visible

# Sessions whose differences stand on a page, and of each so many; what is counted is counted in full.
_SESSIONS_SHOWN, _CHANGES_SHOWN = 200, 50
# Names in a list of sessions that were not compared, and lines of an example on a terminal.
_NAMED, _LINES = 20, 6


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
        fetch = [fetching(config, name) for name in (before, after)]
        with Spool(frozenset(name.encode() for name in sessions), fetch) as spool:
            sides = read_folders(spool, (before, after))
            if want_topics(sides):
                sides = run_with_broker(config, partial(read_topics, config, spool, sides, Progress()))
            for compared in compared_sessions(spool, Coverage(sides), summary):
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
