"""``reknit screens``: sessions for UI clients, and the tokens that open them."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reknit.pipeline.cli import Group, configure_logs, fail, say
from reknit.pipeline.cli.broker import run_with_broker, unless_stopped
from reknit.pipeline.cli.config import with_config
from reknit.pipeline.cli.running import secret_in
from reknit.pipeline.errors import InputError, ReknitError
from reknit.pipeline.settings import Config

if TYPE_CHECKING:
    from reknit.pipeline.screen_server.access import Signer
    from reknit.pipeline.screen_server.gate import Gate, Limits
    from reknit.pipeline.viewer.guard import Guard

log = logging.getLogger("reknit.screens")

DEFAULT_PORT = 8770
_KEY_FILE = click.Path(dir_okay=False, path_type=Path)


class _ServesByDefault(Group):
    """Runs ``serve`` if no command is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_named = bool(args) and (args[0] in self.commands or args[0] in {"-h", "--help"})
        return super().parse_args(ctx, args if is_named else ["serve", *args])


@click.group("screens", cls=_ServesByDefault)
def screens_group() -> None:
    """Serve sessions to UI clients over HTTP, and make the tokens that open them.

    Without a command it serves.
    """


@screens_group.command("serve")
@with_config
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
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
    help="The file of the index; without it screens.sqlite in state_dir, with the prefix in its name.",
)
@click.option("--rebuild", is_flag=True, help="Throw the index away, and fill it from the topics.")
@click.option(
    "--key-file",
    type=_KEY_FILE,
    help="The key that signs tokens; a missing file is created with a random key. Without one, this machine only.",
)
@click.option("--allow-origin", "origins", multiple=True, metavar="URL", help="A site whose pages may ask.")
@click.option("--allow-host", "names", multiple=True, metavar="NAME", help="Another host name of this server.")
@click.option(
    "--trusted-proxy",
    "proxies",
    multiple=True,
    metavar="ADDRESS",
    help="A proxy, or a network of them, whose X-Forwarded-For, -Host and -Proto count.",
)
@click.option("--details", "with_details", is_flag=True, help="Also serve records about the program and its machine.")
@click.option("--input", "takes_input", is_flag=True, help="Let tokens of scope write send the user's words.")
@click.option(
    "--answer-timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=120.0,
    show_default=True,
    help="Seconds that an answer to the user's words may take to begin.",
)
@click.option(
    "--streams-of-a-peer",
    type=click.IntRange(1),
    default=200,
    show_default=True,
    help="Open streams of one token, or of one address.",
)
def serve_command(config: Config, **given: Any) -> None:  # noqa: ANN401  click's options
    """Serve sessions as AG-UI events, as the AI SDK's UI message stream, or as items.

    It reads without a group. Without --input it writes nothing to the cluster. Exits with 0 after SIGTERM or SIGINT,
    with 2 if only a person can help, with 75 if no broker answers at the start.
    """
    configure_logs(config.log_level, config.log_format)
    run_with_broker(config, lambda: _until_stopped(config, **given))


async def _until_stopped(
    config: Config,
    *,
    host: str,
    names: tuple[str, ...],
    origins: tuple[str, ...],
    proxies: tuple[str, ...],
    key_file: Path | None,
    index_file: Path | None,
    streams_of_a_peer: int,
    **options: Any,  # noqa: ANN401  the rest is the server's
) -> None:
    from reknit.pipeline.screen_server.gate import Limits
    from reknit.pipeline.screen_server.server import run_screens

    if options["takes_input"] and config.source_prefix not in {None, config.prefix}:
        raise InputError("inputs_foreign", "--input is not possible with --source-prefix: its inputs are only read")
    guard, signer = _keys_of(host, names, proxies, key_file)
    limits = Limits(of_peer=streams_of_a_peer)
    gate = _gate_of(guard, signer, origins, limits, allow_writing=options["takes_input"])
    name = f"screens-{config.prefix.strip('.')}" if config.prefix else "screens"
    await unless_stopped(
        run_screens(
            config,
            gate,
            host=host,
            index_file=index_file or Path(config.state_dir) / f"{name}.sqlite",
            on_start=lambda url: _say_where(config, url),
            **options,
        )
    )


def _keys_of(
    host: str, names: tuple[str, ...], proxies: tuple[str, ...], key_file: Path | None
) -> tuple[Guard, Signer | None]:
    """Return the names of the server and the signer of its tokens.

    Raises:
        InputError: ``key_missing``, if other machines could connect.
    """
    from reknit.pipeline.screen_server.access import Signer
    from reknit.pipeline.viewer.guard import Guard, is_loopback

    key = "" if key_file is None else secret_in(key_file)
    if not key and (proxies or not is_loopback(host)):
        raise InputError("key_missing", "beyond this machine's loopback tokens are needed: give --key-file")
    return Guard(host, names, key, proxies), Signer(key) if key else None


def _gate_of(
    guard: Guard, signer: Signer | None, origins: tuple[str, ...], limits: Limits, *, allow_writing: bool
) -> Gate:
    """Return the checks of requests.

    Raises:
        InputError: ``origin_unknown``.
    """
    from reknit.pipeline.screen_server.gate import Gate, is_site

    for origin in origins:
        if not is_site(origin):
            words = f"{origin!r} is no site: a scheme and a host, as https://app.example.com"
            raise InputError("origin_unknown", words)
    return Gate(guard, signer, origins, limits, allow_writing=allow_writing)


def _say_where(config: Config, url: str) -> None:
    if config.log_format == "json":
        log.info("screens: %s", url)
    else:
        say(f"reknit screens: {url}")


@screens_group.command("token")
@click.option("--key-file", type=_KEY_FILE, required=True, help="The key of the server.")
@click.option("--session", "sessions", multiple=True, metavar="ID", help="A session that the token opens.")
@click.option("--prefix", "prefixes", multiple=True, metavar="TEXT", help="The beginning of ids that it opens.")
@click.option(
    "--scope", type=click.Choice(["read", "write"]), default="read", show_default=True, help="write includes read."
)
@click.option("--seconds", type=click.IntRange(1), default=3600, show_default=True, help="How long the token is valid.")
def token_command(
    key_file: Path, sessions: tuple[str, ...], prefixes: tuple[str, ...], scope: str, seconds: int
) -> None:
    """Print a token that opens sessions.

    Send it as `Authorization: Bearer TOKEN`, or add `?token=TOKEN` to an address for clients that cannot set headers.
    """
    from reknit.pipeline.screen_server.access import Claims, Signer

    try:
        claims = Claims(
            sessions=sessions,
            prefixes=prefixes,
            scope="write" if scope == "write" else "read",
            expires=int(time.time()) + seconds,
        )
        click.echo(Signer(secret_in(key_file)).token(claims))
    except ReknitError as error:
        fail(error)
