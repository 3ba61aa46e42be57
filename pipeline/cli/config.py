"""``reknit config`` and the configuration of all commands: options for settings, their values, and the page of docs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec
from msgspec.inspect import (
    BoolType,
    DictType,
    FloatType,
    IntType,
    LiteralType,
    NoneType,
    Type,
    UnionType,
    VarTupleType,
)

from reknit.pipeline.cli import Group, fail, say, write_json
from reknit.pipeline.config import Described, described, load_config, origins, variable_of
from reknit.pipeline.errors import ReknitError
from reknit.pipeline.kafka import connection
from reknit.pipeline.settings import Config
from reknit.pipeline.urls import mask_urls
from reknit.topics import INPUTS, qualified

if TYPE_CHECKING:
    from reknit.pipeline.stages.defaults import Defaults

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def _takes(kind: Type) -> str:
    match kind:
        case UnionType():
            return " or ".join(_takes(each) for each in kind.types if not isinstance(each, NoneType))
        case LiteralType():
            return ", ".join(f"`{value}`" for value in kind.values)
        case IntType() | FloatType():
            bounds = {"from": kind.ge, "above": kind.gt, "to": kind.le}
            return " ".join(["number", *(f"{word} {bound:g}" for word, bound in bounds.items() if bound is not None)])
        case BoolType():
            return "`true`, `false`"
        case DictType():
            return "table"
        case VarTupleType():
            return "list"
        case _:
            return "text"


def _shown(default: object) -> str:
    if default is None:
        return "none"
    if default == "":
        return "empty"
    if isinstance(default, str | float):
        return f"{default:g}" if isinstance(default, float) else default
    return msgspec.json.encode(default).decode()


_SETTINGS = {setting.key: setting for setting in described()}


def setting_option(key: str, flag: str = "", **more: Any) -> Callable[[F], F]:  # noqa: ANN401  as click's own
    """Return an option for a setting, with its description; ``flag`` gives it another name."""
    setting = _SETTINGS[key]
    text = f"{setting.text.replace('`', '')}  [env: {variable_of(key)}; default: {_shown(setting.default)}]"
    return click.option(flag or f"--{key.replace('_', '-')}", key, help=text, **more)


_OPTIONS = (
    click.option(
        "--config",
        "config_file",
        type=click.Path(exists=True, dir_okay=False),
        help="A TOML file with settings  [env: REKNIT_CONFIG]",
    ),
    setting_option("bootstrap_servers", metavar="HOST:PORT,…"),
    setting_option("prefix"),
)
wait_option = setting_option("wait_seconds", "--wait", type=float, metavar="SECONDS")


def broker_options(command: F) -> F:
    """Add ``--config``, ``--bootstrap-servers`` and ``--prefix``."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def configured(config_file: str | None, **options: Any) -> Config:  # noqa: ANN401  whatever options a command has
    """Load the file, then the environment, then the given options; exit if one of them is wrong."""
    given = {name: value for name, value in options.items() if value is not None}
    try:
        return load_config(config_file, env=os.environ, overrides=given)
    except ReknitError as error:
        fail(error)


def with_config(command: Callable[..., T]) -> Callable[..., T]:
    """Add those and ``--wait``; the command gets ``config``, which includes the settings among its options."""

    @wraps(command)
    def with_its_config(config_file: str | None, **options: Any) -> T:  # noqa: ANN401  click's options
        given = {name: options.pop(name) for name in options.keys() & _SETTINGS.keys()}
        return command(config=configured(config_file, **given), **options)

    return broker_options(wait_option(with_its_config))


def session_defaults(config: Config) -> Defaults:
    """Return the configuration's defaults for sessions, as the stages take them.

    Raises:
        UnknownTargetError: a target does not exist.
        InputError: a redaction root or its marker cannot be used, or a parameter leads outside of the request.
        ScalingError: images are to be scaled, and Pillow or an object store is missing.
    """
    from reknit.pipeline.registry import target_named
    from reknit.pipeline.scaling import check_worker
    from reknit.pipeline.session.arguments import policy_from
    from reknit.pipeline.stages.defaults import Defaults, refuse_chained
    from reknit.pipeline.text.redaction import Redactor

    given = config.session
    Redactor(config.text.redact_roots, config.text.redact_marker)  # an error here, not later in every partition
    for name in given.targets:
        target_named(name)
    refuse_chained(given.params)
    policy = policy_from(given.policy)
    params = dict(given.params)
    if given.max_tokens is not None:
        params.setdefault("max_tokens", msgspec.Raw(msgspec.json.encode(given.max_tokens)))
    return Defaults(
        targets=given.targets,
        model=given.model,
        params=params,
        system=given.system,
        tools=given.tools,
        policy=policy,
        can_scale=check_worker(policy, config.objects.url),
        on_dead_letter=config.on_dead_letter,
        parked_records=config.parked_records,
        parked_bytes=config.parked_bytes,
        limits=config.limits,
        redact_roots=config.text.redact_roots,
        redact_marker=config.text.redact_marker,
        withdraw=config.requests.withdraw,
    )


JSON = click.option("--json", "as_lines", is_flag=True, help="One line of JSON each.")

_AGO = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def moment(value: str) -> int:
    """Parse an age (90s, 30m, 2h, 7d) or an ISO 8601 time into milliseconds since the epoch.

    Raises:
        ValueError: the text is neither.
    """
    try:
        if value[-1:] in _AGO:
            when = datetime.now(UTC) - timedelta(**{_AGO[value[-1]]: float(value[:-1])})
        else:
            when = datetime.fromisoformat(value)
        return int(when.timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        expected = "neither so long ago (90s, 30m, 2h, 7d) nor a time (2026-11-22T14:00)"
        raise ValueError(f"{value!r} is {expected}") from error


class Since(click.ParamType):
    """A parameter that ``moment`` parses."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:  # noqa: ANN401  as click
        try:
            return moment(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.group("config", cls=Group)
def config_group() -> None:
    """Show the configuration that a worker and the commands use."""


@config_group.command("show")
@broker_options
def show_command(config_file: str | None, **options: Any) -> None:  # noqa: ANN401  click's options
    """Print every key with its value and source, one per line; secrets are hidden.

    Reports on stderr whether the brokers provide topic ids, by which workers notice that a topic was re-created.
    """
    try:
        for origin in origins(config_file, overrides=options):
            write_json(origin)
        say(f"reknit: {mask_urls(_topic_ids(load_config(config_file, overrides=options)))}")
    except ReknitError as error:
        fail(error)


# Time limit of the request for topic ids.
_ANSWER_SECONDS = 3.0


def _topic_ids(config: Config) -> str:
    """Return a sentence about whether workers check topic ids here."""
    from aiokafka.client import AIOKafkaClient
    from aiokafka.errors import KafkaError

    from reknit.pipeline.engine.topic_ids import ask

    prefix = config.inputs_prefix
    names = [qualified(topic, prefix) for topic in INPUTS]

    async def look() -> str:
        client = AIOKafkaClient(**connection(config))
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                await client.bootstrap()
                found = await ask(client, names)
        except (KafkaError, OSError):
            return f"whether topic ids are checked is not known: no broker answers at {config.bootstrap_servers}"
        finally:
            await client.close()
        if not found.ids:
            return f"topic ids are checked once the topics exist: missing topics: {', '.join(sorted(found.missing))}"
        if not all(found.ids.values()):
            return (
                f"topic ids are not checked: the brokers at {config.bootstrap_servers} provide none, so a re-created "
                "topic is only noticed if it ends before a stored position"
            )
        return f"topic ids are checked: the brokers at {config.bootstrap_servers} provide them"

    return asyncio.run(look())


_INTRO = """# Configuration

(Written by `make docs` from `pipeline/settings.py`.)

A setting comes from a TOML file (`--config`, or `REKNIT_CONFIG`), from the environment, or from an option; each wins
over the one before. Keys are the same everywhere: `session.policy.tail` is `tail` under `[session.policy]` in the file
and `REKNIT_SESSION__POLICY__TAIL` in the environment, where two underscores go down a level (one, after
`REKNIT_KAFKA`). In a variable lists and tables are JSON; a list of names may have commas instead. An empty variable
counts as not set. Secrets are in the environment or in files of their own, never in the file of all settings and
never in an option.

```sh
reknit config show    # what holds, and where each value comes from; secrets are hidden
```

A wrong key or value ends every command with 2 and the name of its source.
"""


def page() -> str:
    """Return every setting as ``docs/configuration.md``."""
    tables: dict[str, list[Described]] = {}
    for setting in described():
        tables.setdefault(setting.key.rpartition(".")[0], []).append(setting)
    lines = [_INTRO]
    for table, settings in tables.items():
        lines += [f"## [{table}]\n"] if table else []
        lines += ["| key | takes | default | meaning | variable |", "|---|---|---|---|---|"]
        for setting in settings:
            name = setting.key.rpartition(".")[2]
            default = f"`{_shown(setting.default)}`"
            cells = (f"`{name}`", _takes(setting.kind), default, setting.text, f"`{variable_of(setting.key)}`")
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)
