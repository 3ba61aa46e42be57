"""``reknit config``: the merged configuration, and which source each value comes from."""

from __future__ import annotations

from typing import Any

import click

from pipeline.cli.broker import broker_options
from pipeline.cli.output import fail, write_json
from pipeline.config import origins
from pipeline.errors import ReknitError


@click.group("config")
def config_group() -> None:
    """Show the configuration that a worker and the commands beside it would use."""


@config_group.command("show")
@broker_options
def show_command(config_file: str | None, **options: Any) -> None:  # noqa: ANN401  click's options
    """Print every key with its value and source, one a line; what is secret is hidden."""
    try:
        for origin in origins(config_file, overrides=options):
            write_json(origin)
    except ReknitError as error:
        fail(error)
