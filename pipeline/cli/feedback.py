"""``reknit feedback``: what providers refused of published requests, and what the rules say of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import click
from msgspec import UNSET

from pipeline.cli import Group, write_json
from pipeline.cli.broker import run_with_broker
from pipeline.cli.config import Since, broker_options, configured, wait_option
from pipeline.cli.dead_letters import Letter, Wanted, read_letters
from pipeline.cli.sessions import JSON
from pipeline.text import visible

F = TypeVar("F", bound=Callable[..., Any])

_PREFIX = "refused_"
# What wants a rule, or another one; `foreseen` is what a rule said before.
_CANDIDATES = frozenset({"refused_missed", "refused_unknown"})
_ALL = _CANDIDATES | {"refused_foreseen"}


def _options(command: F) -> F:
    options = (
        broker_options,
        wait_option,
        click.option("--session", help="Only requests of this session."),
        click.option("--since", type=Since(), help="Only answers since then: 90s, 30m, 2h, 7d ago, or a time."),
        click.option("--all", "every", is_flag=True, help="Also what a rule foresaw, and what was retried or dropped."),
        JSON,
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.group("feedback", cls=Group)
def feedback_group() -> None:
    """Published requests that their provider refused, compared with the rules: list and count them.

    What no rule knows, and what a rule should have found, is a candidate for a rule. Each is also a dead letter, under
    the place that `list` prints.
    """


@feedback_group.command("list")
@_options
def list_command(*, as_lines: bool, **options: Any) -> None:  # noqa: ANN401  click's options
    """Print refusals, oldest first in each partition: the request by its digest, and the provider's words."""
    for letter in _letters(**options):
        told = _told(letter)
        where = f"{told['letter']:>10}  {told['outcome']:<8}  {told['target']}  {told['session']}"
        line = f"{where}  {told['rule'] or '-'}  {told['body-sha256']}  {told['message']}"
        write_json(told) if as_lines else click.echo(visible(line))


@feedback_group.command("count")
@_options
def count_command(*, as_lines: bool, **options: Any) -> None:  # noqa: ANN401  click's options
    """Count refusals by target, outcome, rule and the provider's words, the most frequent first."""
    names = ("target", "outcome", "rule", "message")
    counts = Counter(tuple(told[name] for name in names) for told in map(_told, _letters(**options)))
    for found, count in sorted(counts.items(), key=lambda each: (-each[1], each[0])):
        told = dict(zip(names, found, strict=True))
        line = f"{count:>8}  {told['target']}  {told['outcome']:<8}  {told['rule'] or '-'}  {told['message']}"
        write_json({**told, "refusals": count}) if as_lines else click.echo(visible(line))


def _letters(
    *, every: bool, session: str | None, since: int | None, config_file: str | None, **options: str | None
) -> list[Letter]:
    config = configured(config_file, **options)
    wanted = Wanted(codes=_ALL if every else _CANDIDATES, session=session, since=since)
    found = run_with_broker(config, lambda: read_letters(config, wanted))
    return [letter for letter in found if every or not letter.done]


def _told(letter: Letter) -> dict[str, str]:
    """What a list says of a refusal: the provider's own words, and nothing of the request but its digest."""
    why = letter.why
    said = {"target": why.target, "rule": why.rule, "body-sha256": why.body_sha256, "message": why.message}
    known = {name: "" if value is UNSET else value for name, value in said.items()}
    outcome = why.code.removeprefix(_PREFIX)
    return {"letter": letter.place, "session": letter.session or "", "outcome": outcome, **known, "done": letter.done}
