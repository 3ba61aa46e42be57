"""``reknit replay``: process the inputs of a live pipeline again, next to it."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click
from msgspec import Struct, structs

from reknit.pipeline.cli import Exit, Group, Progress, configure_logs, fail, read_input, say, write_json
from reknit.pipeline.cli.broker import run_with_broker
from reknit.pipeline.cli.config import (
    Since,
    broker_options,
    configured,
    session_defaults,
    setting_option,
    wait_option,
    with_config,
)
from reknit.pipeline.cli.running import run, scope_of
from reknit.pipeline.engine.runtime import StageFactory, Tuning
from reknit.pipeline.errors import InputError, ReknitError, expected_one_of
from reknit.pipeline.objects import open_objects
from reknit.pipeline.replay import Place, Plan, PlannedStage, Selection, replays, settling
from reknit.pipeline.replay import folder as folders
from reknit.pipeline.settings import Config, StateSettings
from reknit.pipeline.stages import stages
from reknit.pipeline.stages.base import Stage
from reknit.topics import AGENT_TURNS, INPUTS

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_PLACE = re.compile(r"(?P<topic>.+)/(?P<partition>\d+)/(?P<first>\d+)(?:-(?P<last>\d+))?")
# Interval of progress messages: on a terminal, and elsewhere.
_BAR_SECONDS, _LINE_SECONDS = 0.5, 5.0
_BAR_WIDTH = 30


class Places(click.ParamType):
    """Records of one partition of an input: ``agent.turns.v1/3/100-200``, or one: ``agent.turns.v1/3/100``."""

    name = "TOPIC/PARTITION/FIRST-LAST"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Place:  # noqa: ANN401  as click
        found = _PLACE.fullmatch(value)
        if found is None:
            self.fail(f"{value!r} is not like {AGENT_TURNS}/3/100-200", param, ctx)
        if found["topic"] not in INPUTS:
            self.fail(expected_one_of(INPUTS, found["topic"]), param, ctx)
        first = int(found["first"])
        return Place(found["topic"], int(found["partition"]), first, int(found["last"] or first))


class Share(click.ParamType):
    """One of N shares of the partitions: ``1/4``."""

    name = "N/OF"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:  # noqa: ANN401  as click
        if isinstance(value, tuple):
            return value
        found = re.fullmatch(r"(\d+)/(\d+)", value)
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            self.fail(f"{value!r} is no share; of four processes the first takes 1/4", param, ctx)
        return int(found[1]), int(found[2])


@click.group("replay", cls=Group, invoke_without_command=True)
@broker_options
@wait_option
@click.option(
    "--session", "sessions", multiple=True, help="A session's id, or a pattern such as 'tenant-7/*'; several times."
)
@click.option(
    "--session-file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="A file with ids or patterns, one a line; - for stdin.",
)
@click.option("--since", type=Since(), help="Outputs of records since then: 90s, 30m, 2h, 7d ago, or 2026-11-22T14:00.")
@click.option("--until", type=Since(), help="Outputs of records before then.")
@click.option("--offsets", type=Places(), multiple=True, help="Outputs of these records of an input; several times.")
@click.option("--dead-letters", is_flag=True, help="Only sessions that have dead letters.")
@click.option(
    "--id", "name", help="The replay's name; the time where none is given. One that is there is gone on with."
)
@click.option(
    "--dry-run", "directory", type=click.Path(file_okay=False, path_type=Path), help="Into files of this folder."
)
@click.option("--share", type=Share(), help="Of a dry run by several processes, the partitions of this one: 1/4.")
@click.option(
    "--policy", "policies", multiple=True, metavar="K=V", help="A policy of sessions for this replay: heal=off."
)
@click.option("--rate", type=click.IntRange(min=1), help="The most records a second, in this process.")
@setting_option("delivery", type=click.Choice(["exactly-once", "at-least-once"]))
@setting_option("metrics_port", type=int)
@setting_option("state_dir", type=click.Path(file_okay=False))
def replay_group(
    sessions: tuple[str, ...],
    session_file: str | None,
    since: int | None,
    until: int | None,
    offsets: tuple[Place, ...],
    dead_letters: bool,
    name: str | None,
    directory: Path | None,
    share: tuple[int, int] | None,
    rate: int | None,
    policies: tuple[str, ...],
    config_file: str | None,
    **options: Any,  # noqa: ANN401  click's options, as `configured` takes them
) -> None:
    """Process again what the pipeline of --prefix has read, with this build and this configuration.

    Outputs go to topics below PREFIXreplay.ID., or into a folder; the pipeline's topics are not written. A range
    selects outputs: sessions with records in it are read from their beginning. The replay ends where the inputs ended
    when it began. Several processes with one --id share it.

    Exit codes: 0 done, 2 only a person can help, 75 interrupted: the same command continues it.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    config = configured(config_file, **options, **_policies(policies))
    listed = read_input(session_file).decode().split("\n") if session_file else []
    selection = Selection(
        sessions=(*sessions, *filter(None, map(str.strip, listed))),
        since=since,
        until=until,
        offsets=offsets,
        dead_letters=dead_letters,
    )
    # The folder of a dry run depends on the log alone, so that two folders can be compared byte by byte.
    name = name or ("dry-run" if directory else datetime.now(UTC).strftime("%Y%m%d-%H%M%S"))
    if not _NAME.fullmatch(name):
        fail(InputError("bad_name", "a name has lower-case letters, digits and hyphens, 40 at most", path="--id"))
    if share is not None and directory is None:
        fail(InputError("share_without_folder", "processes share a replay by its --id; --share is for --dry-run"))
    if config.log_level == "info":
        config = structs.replace(config, log_level="warning")
    try:
        if directory is None:
            _replay(config, name, selection, rate)
        else:
            _dry_run(config, name, selection, rate, directory, share or (1, 1))
    except ReknitError as error:
        fail(error)


def _policies(given: tuple[str, ...]) -> dict[str, str]:
    """Return policies as settings by their keys."""
    for each in given:
        if "=" not in each:
            fail(InputError("bad_policy", f"{each!r} is not like heal=off", path="--policy"))
    return {f"session.policy.{name}": value for name, _, value in (each.partition("=") for each in given)}


def _replay(config: Config, name: str, selection: Selection, rate: int | None) -> None:
    plan = run_with_broker(config, lambda: _begun(config, name, selection))
    work = replays.replay_config(config, name)
    _announce(plan, f"topics {work.prefix}…")
    bar = Bar(plan, range(plan.partitions))
    scope = structs.replace(scope_of(work, plan.ends), bases=plan.bases)
    code = run(work, scope=scope, rate=rate, factories=_factories(work, plan), on_progress=bar.note)
    bar.close()
    if bar.is_done() and not run_with_broker(config, lambda: replays.wait_until_visible(work)):
        say(f"reknit: replay {name}: transactions are still open; the last outputs are not visible yet")
    _end(plan, {"replay": name, "prefix": work.prefix}, code or int(Exit.CLEAN if bar.is_done() else Exit.DOWN))


async def _begun(config: Config, name: str, selection: Selection) -> Plan:
    found = await replays.plan_of(config, name)
    if found is None:
        plan = await settling.settle(config, name, selection, int(time.time() * 1000), Progress())
        found = await replays.begin(config, plan)
    elif selection not in {Selection(), found.selection}:
        raise InputError("replay_differs", f"replay {name!r} was begun for something else; give this one another --id")
    return found


def _dry_run(
    config: Config, name: str, selection: Selection, rate: int | None, directory: Path, share: tuple[int, int]
) -> None:
    from reknit.pipeline.engine.dry import run_dry

    async def settled() -> Plan:
        if (directory / folders.PLAN).exists():
            there = folders.plan_of(directory)
            asked = there.selection if selection == Selection() else selection
            return folders.begin(directory, structs.replace(there, source_prefix=config.prefix, selection=asked))
        found = await settling.settle(config, name, selection, 0, Progress())
        return folders.begin(directory, found)

    plan = run_with_broker(config, settled)
    configure_logs(config.log_level, config.log_format)
    _announce(plan, f"folder {directory}")
    work = structs.replace(
        replays.replay_config(config, plan.id), state=StateSettings(memory_mib=config.state.memory_mib)
    )
    ours = [number for number in range(plan.partitions) if number % share[1] == share[0] - 1]
    bar = Bar(plan, ours)
    for number in ours:
        if folders.is_done(directory, number):
            bar.note({(topic, number): plan.ends[topic][number] for topic in INPUTS})
    code = Exit.CLEAN
    try:
        run_dry(
            work,
            _factories(work, plan),
            [number for number in ours if not folders.is_done(directory, number)],
            partial(folders.PartitionFiles, directory),
            structs.replace(scope_of(work, plan.ends), rate=rate, bases=plan.bases),
            tuning=Tuning(batch_records=config.batch_records, batch_bytes=config.batch_bytes),
            objects=open_objects(work),
            on_progress=bar.note,
        )
    except KeyboardInterrupt:
        code = Exit.DOWN
    bar.close()
    left = folders.unfinished(directory)
    _end(plan, {"replay": plan.id, "folder": str(directory), "partitions_left": len(left)}, int(code))


def _factories(config: Config, plan: Plan) -> Mapping[str, StageFactory]:
    made = stages(session_defaults(config))
    return made if plan.takes_everything() else {topic: _planned(make, plan) for topic, make in made.items()}


def _planned(make: Callable[[int], Stage], plan: Plan) -> StageFactory:
    return lambda number: PlannedStage(make(number), plan)


def _announce(plan: Plan, where: str) -> None:
    chosen = "all sessions" if plan.chosen is None else f"{len(plan.chosen)} sessions"
    say(f"reknit: replay {plan.id}: {chosen}, {sum(map(sum, plan.ends.values()))} offsets, into {where}")
    for topic in INPUTS:
        count = sum(each.topic == topic for each in plan.uncompared)
        if count:
            say(f"reknit: {count} sessions of {topic} are listed and not processed; their beginnings are not there")


def _end(plan: Plan, outcome: dict[str, object], code: int) -> None:
    write_json({**outcome, "uncompared": plan.uncompared})
    raise SystemExit(code)


class Bar:
    """Progress of a replay: done, rate, lag and time left, on one line that is updated, or on new lines."""

    def __init__(self, plan: Plan, partitions: range | list[int], clock: Callable[[], float] = time.monotonic) -> None:
        self._places = {
            (topic, number): (plan.starts[topic][number], plan.ends[topic][number])
            for topic in INPUTS
            for number in partitions
        }
        self._at = {place: start for place, (start, _) in self._places.items()}
        self._clock = clock
        self._begun = clock()
        self._counted_from: int | None = None
        self._said = self._begun
        self._is_drawn = sys.stderr.isatty()

    @property
    def _done(self) -> int:
        return sum(self._at[place] - start for place, (start, _) in self._places.items())

    @property
    def _every(self) -> int:
        return sum(end - start for start, end in self._places.values())

    def is_done(self) -> bool:
        return self._done >= self._every

    def note(self, offsets: Mapping[tuple[str, int], int]) -> None:
        """Note the next offsets of partitions, and report progress from time to time."""
        for place, offset in offsets.items():
            start, end = self._places[place]
            self._at[place] = max(start, min(offset, end))
        if self._counted_from is None:
            self._counted_from = self._done  # done before this process started
        now = self._clock()
        if now - self._said >= (_BAR_SECONDS if self._is_drawn else _LINE_SECONDS):
            self._said = now
            # Return to the start of the line, so that the next log line starts there.
            click.echo(f"{self.line()}\x1b[K\r" if self._is_drawn else self.line(), err=True, nl=not self._is_drawn)

    def line(self) -> str:
        done, every = self._done, max(1, self._every)
        rate = (done - (self._counted_from or 0)) / max(1e-9, self._clock() - self._begun)
        drawn = "#" * int(_BAR_WIDTH * done / every)
        left = f"{(every - done) / rate:.0f} s left" if rate else "no end in sight"
        return f"[{drawn:-<{_BAR_WIDTH}}] {100 * done // every} %  {rate:,.0f}/s  {every - done:,} behind  {left}"

    def close(self) -> None:
        if self._is_drawn:
            click.echo(f"{self.line()}\x1b[K", err=True)


class Listed(Struct, frozen=True, kw_only=True):
    """A replay in a list; ``left`` counts the offsets before its ends that are not processed yet."""

    replay: str
    prefix: str
    created: str
    version: str
    left: int
    sessions: int | None
    uncompared: int
    selection: Selection


@replay_group.command("list")
@with_config
def list_command(config: Config) -> None:
    """Print the replays of the pipeline, one per line."""

    async def work() -> list[Listed | dict[str, str]]:
        found: list[Listed | dict[str, str]] = []
        for name, plan in (await replays.every_plan(config)).items():
            prefix = replays.prefix_of(config.prefix, name)
            if plan is None:
                found.append({"replay": name, "prefix": prefix})
                continue
            left = await replays.left_of(config, plan)
            created = datetime.fromtimestamp(plan.created / 1000, UTC).isoformat()
            found.append(
                Listed(
                    replay=name,
                    prefix=prefix,
                    created=created,
                    version=plan.version,
                    left=left,
                    sessions=None if plan.chosen is None else len(plan.chosen),
                    uncompared=len(plan.uncompared),
                    selection=plan.selection,
                )
            )
        return found

    for each in run_with_broker(config, work):
        write_json(each)


@replay_group.command("delete")
@with_config
@click.argument("name")
def delete_command(config: Config, name: str) -> None:
    """Delete a replay: its topics, its group and its objects. Remove the folder of a dry run yourself."""
    count = run_with_broker(config, lambda: replays.delete(config, name))
    say(f"reknit: replay {name} deleted, {count} topics")
