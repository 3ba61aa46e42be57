"""``reknit screens``: sessions for UI clients, and the tokens that open them."""

from __future__ import annotations

import gc
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from reknit.pipeline.cli import Group, configure_logs, fail, say
from reknit.pipeline.cli.broker import run_with_broker, unless_stopped
from reknit.pipeline.cli.config import with_config
from reknit.pipeline.cli.index_servers import index_path, index_server_options
from reknit.pipeline.cli.running import secret_in
from reknit.pipeline.errors import InputError, ReknitError
from reknit.pipeline.settings import Config

if TYPE_CHECKING:
    from reknit.pipeline.screen_server.access import Signer
    from reknit.pipeline.screen_server.checks import Check
    from reknit.pipeline.screen_server.gate import Gate, Limits
    from reknit.pipeline.viewer.guard import HostNames

log = logging.getLogger("reknit.screens")

DEFAULT_PORT = 8770
# A full collection after 2,000,000 more objects: those of some 13,000 connections.
_GC_THRESHOLDS = (10_000, 20, 10)
_KEY_FILE = click.Path(dir_okay=False, path_type=Path)


class _ServesByDefault(Group):
    """Runs ``serve`` if no command is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_named = bool(args) and (args[0] in self.commands or args[0] in {"-h", "--help"})
        return super().parse_args(ctx, args if is_named else ["serve", *args])


class _Access(Struct, frozen=True):
    """The options that decide about access."""

    key_file: Path | None
    check_name: str | None
    check_timeout: float


@click.group("screens", cls=_ServesByDefault)
def screens_group() -> None:
    """Serve sessions to UI clients over HTTP, and make the tokens that open them.

    Without a command it serves.
    """


@screens_group.command("serve")
@with_config
@index_server_options(
    "screens",
    port=DEFAULT_PORT,
    host_note="An address other than loopback needs --key-file or --check.",
    forwarded="X-Forwarded-For, -Host and -Proto",
)
@click.option(
    "--key-file",
    type=_KEY_FILE,
    help="The key that signs tokens; a missing file is created with a random key. Without a key and without --check, "
    "only this machine can connect.",
)
@click.option(
    "--check",
    "check_name",
    metavar="MODULE:FUNCTION",
    help="A function of yours that decides about each request. With --key-file, both must allow.",
)
@click.option(
    "--check-timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=5.0,
    show_default=True,
    help="Seconds that this function may take; after them access is denied.",
)
@click.option("--allow-origin", "origins", multiple=True, metavar="URL", help="A site whose pages may connect.")
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
    _tune_collector()
    run_with_broker(config, lambda: _until_stopped(config, **given))


def _tune_collector() -> None:
    """Tune the garbage collector for many connections.

    A full collection visits 150 objects per connection and stops the server meanwhile. With the defaults it began
    several times while 5,000 connections were opened. The state of a connection is mostly freed without it.
    """
    import reknit.pipeline.screen_server.server  # noqa: F401  modules are permanent as well

    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


async def _until_stopped(
    config: Config,
    *,
    host: str,
    names: tuple[str, ...],
    origins: tuple[str, ...],
    proxies: tuple[str, ...],
    key_file: Path | None,
    check_name: str | None,
    check_timeout: float,
    index_file: Path | None,
    streams_of_a_peer: int,
    **options: Any,  # noqa: ANN401  the rest is the server's
) -> None:
    from reknit.pipeline.screen_server.gate import Limits
    from reknit.pipeline.screen_server.server import run_screens

    if options["takes_input"] and config.source_prefix not in {None, config.prefix}:
        raise InputError("inputs_foreign", "--input is not possible with --source-prefix: its inputs are only read")
    access = _Access(key_file, check_name, check_timeout)
    hosts, signer, check = _access_of(host, names, proxies, access)
    gate = _gate_of(hosts, signer, check, origins, Limits(of_peer=streams_of_a_peer), options["takes_input"])
    await unless_stopped(
        run_screens(
            config,
            gate,
            host=host,
            index_file=index_path(config, "screens", index_file),
            on_start=lambda url: _say_where(config, url),
            **options,
        )
    )


def _access_of(
    host: str, names: tuple[str, ...], proxies: tuple[str, ...], access: _Access
) -> tuple[HostNames, Signer | None, Check | None]:
    """Return the names of the server, the signer of its tokens and the operator's check.

    Raises:
        InputError: ``key_missing``, if other machines could connect without either; ``check_unknown``.
    """
    from reknit.pipeline.screen_server.access import Signer
    from reknit.pipeline.screen_server.checks import Check, load_check
    from reknit.pipeline.viewer.guard import HostNames, is_loopback

    key = "" if access.key_file is None else secret_in(access.key_file)
    if not key and access.check_name is None and (proxies or not is_loopback(host)):
        words = "only loopback can be served without access control: give --key-file or --check"
        raise InputError("key_missing", words)
    check = None if access.check_name is None else Check(load_check(access.check_name), access.check_timeout)
    return HostNames(host, names, proxies), Signer(key) if key else None, check


def _gate_of(
    hosts: HostNames,
    signer: Signer | None,
    check: Check | None,
    origins: tuple[str, ...],
    limits: Limits,
    allow_writing: bool,
) -> Gate:
    """Return the checks of requests.

    Raises:
        InputError: ``origin_unknown``.
    """
    from reknit.pipeline.screen_server.gate import Gate, is_site

    for origin in origins:
        if not is_site(origin):
            words = f"{origin!r} is not a site: give a scheme and a host, such as https://app.example.com"
            raise InputError("origin_unknown", words)
    return Gate(hosts, signer, origins, limits, check=check, allow_writing=allow_writing)


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
