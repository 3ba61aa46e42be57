"""``reknit viewer``: sessions, fixes and streams in a browser, until a signal ends it."""

from __future__ import annotations

import logging
import os
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import click
import msgspec

from pipeline.cli import configure_logs, say
from pipeline.cli.broker import run_with_broker, unless_stopped
from pipeline.cli.config import broker_options, configured, wait_option
from pipeline.errors import InputError
from pipeline.settings import Config

if TYPE_CHECKING:
    from pipeline.viewer.guard import Viewed

log = logging.getLogger("reknit.viewer")

DEFAULT_PORT = 8760


@click.command("viewer")
@broker_options
@wait_option
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="The address to listen on. Another than this machine's own wants a login.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="The port; 0 takes a free one.",
)
@click.option(
    "--index",
    "index_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file of the index; without it viewer.sqlite in state_dir, with the prefix in its name.",
)
@click.option("--rebuild", is_flag=True, help="Throw the index away, and fill it from the topics.")
@click.option("--allow-retry", is_flag=True, help="Let pages retry dead letters; without it they only show.")
@click.option(
    "--allow-host", "names", multiple=True, metavar="NAME", help="Another name under which a browser may ask for it."
)
@click.option(
    "--trusted-proxy",
    "proxies",
    multiple=True,
    metavar="ADDRESS",
    help="A proxy, or a network of them, whose X-Forwarded-For, -Host, -Proto and -User count.",
)
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The token with which people log in; a file that is not there is made, with a token that nobody guesses.",
)
@click.option(
    "--audit-log",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file to which is added who asked for which page, a line of JSON each.",
)
def viewer_command(config_file: str | None, **given: Any) -> None:  # noqa: ANN401  click's options
    """Show sessions, fixes and streams in a browser, from an index that follows the topics.

    It reads without a group, and writes nothing to the cluster unless --allow-retry lets it. Ends with 0 after SIGTERM
    or SIGINT, with 2 where only a person can change why it does not run, with 75 where no broker answers at the start.
    """
    settings = {name: given.pop(name) for name in ("bootstrap_servers", "prefix", "wait_seconds")}
    config = configured(config_file, **settings)
    configure_logs(config.log_level, config.log_format)
    run_with_broker(config, lambda: _until_stopped(config, **given))


async def _until_stopped(
    config: Config,
    *,
    host: str,
    names: tuple[str, ...],
    proxies: tuple[str, ...],
    token_file: Path | None,
    audit_log: Path | None,
    index_file: Path | None,
    **options: Any,  # noqa: ANN401  the rest is the server's
) -> None:
    from pipeline.viewer.guard import Guard
    from pipeline.viewer.server import run_viewer

    with _audit(audit_log) as audit:
        login = "" if token_file is None else _login(token_file)
        name = f"viewer-{config.prefix.strip('.')}" if config.prefix else "viewer"
        await unless_stopped(
            run_viewer(
                config,
                Guard(host, names, login, proxies, audit),
                host=host,
                index_file=index_file or Path(config.state_dir) / f"{name}.sqlite",
                on_start=lambda url: _say_where(config, url, token_file, login),
                **options,
            )
        )


@contextmanager
def _audit(path: Path | None) -> Iterator[Callable[[Viewed], object] | None]:
    """What writes down who viewed what: a line at once, and whole, which nobody but the file's owner may read."""
    if path is None:
        yield None
        return
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    try:
        yield lambda viewed: os.write(file, msgspec.json.encode(viewed) + b"\n")
    finally:
        os.close(file)


def _login(path: Path) -> str:
    """The token of a file; where there is no file it is made, with a token that nobody guesses."""
    with suppress(FileExistsError):
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        os.write(file, f"{secrets.token_urlsafe(24)}\n".encode())
        os.close(file)
    token = path.read_text(encoding="utf-8").strip()
    if not token:
        raise InputError("login_missing", f"{path} holds no token; without the file one is made")
    return token


def is_seen_by_a_person() -> bool:
    return sys.stderr.isatty()


def _say_where(config: Config, url: str, token_file: Path | None, login: str) -> None:
    """Say where it is to be seen; the token itself only to a person, for logs are kept and passed on."""
    if token_file is None:
        told = url
    elif is_seen_by_a_person():
        told = f"{url}?{urlencode({'token': login})}"
    else:
        told = f"{url} (log in with the token in {token_file})"
    if config.log_format == "json":
        log.info("viewer: %s", told)
    else:
        say(f"reknit viewer: {told}")
