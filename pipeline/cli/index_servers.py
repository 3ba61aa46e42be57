"""The options that ``reknit viewer`` and ``reknit screens`` share: HTTP servers with an index of the topics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from reknit.pipeline.settings import Config

T = TypeVar("T")


def index_server_options(
    name: str, *, port: int, host_note: str, forwarded: str
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Add the address, the index, and the names under which clients connect.

    Args:
        name: the command, which is the beginning of the index's file name.
        port: the default.
        host_note: a sentence about other addresses than loopback.
        forwarded: the X-Forwarded headers that count.
    """
    options = (
        click.option(
            "--host", default="127.0.0.1", show_default=True, help=f"The address to listen on. {host_note}".rstrip()
        ),
        click.option(
            "--port",
            type=click.IntRange(0, 65535),
            default=port,
            show_default=True,
            help="The port; 0 takes a free one.",
        ),
        click.option(
            "--index",
            "index_file",
            type=click.Path(dir_okay=False, path_type=Path),
            help=f"The index file. Default: {name}.sqlite in state_dir, with the prefix in its name.",
        ),
        click.option("--rebuild", is_flag=True, help="Delete the index, and fill it from the topics again."),
        click.option(
            "--allow-host", "names", multiple=True, metavar="NAME", help="A further host name of this server."
        ),
        click.option(
            "--trusted-proxy",
            "proxies",
            multiple=True,
            metavar="ADDRESS",
            help=f"The address or network of a proxy whose {forwarded} headers are used.",
        ),
    )

    def with_options(command: Callable[..., T]) -> Callable[..., T]:
        for option in reversed(options):
            command = option(command)
        return command

    return with_options


def index_path(config: Config, name: str, given: Path | None) -> Path:
    """Return the path of the index; pipelines with different prefixes have different defaults."""
    prefix = config.prefix.strip(".")
    return given or Path(config.state_dir) / (f"{name}-{prefix}.sqlite" if prefix else f"{name}.sqlite")
