"""Options that every command with a broker takes, and the configuration they end up in."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from pipeline.cli.output import fail
from pipeline.config import Config, load_config
from pipeline.errors import ReknitError

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--config", "config_file", type=click.Path(exists=True, dir_okay=False), help="A TOML file."),
    click.option("--bootstrap-servers", metavar="HOST:PORT,…", help="The brokers  [env: REKNIT_BOOTSTRAP_SERVERS]"),
    click.option("--prefix", help="Stands before every topic, group and transactional id  [env: REKNIT_PREFIX]"),
)


def broker_options(command: F) -> F:
    """Add ``--config``, ``--bootstrap-servers`` and ``--prefix``."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def configured(config_file: str | None, **options: Any) -> Config:  # noqa: ANN401  whatever options a command has
    """File, then environment, then options that were given; ends the command where one of them is wrong."""
    given = {name: value for name, value in options.items() if value is not None}
    try:
        return load_config(config_file, env=os.environ, overrides=given)
    except ReknitError as error:
        fail(error)
