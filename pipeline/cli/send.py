"""``reknit send``: send published requests to a provider or a program, and write its events."""

from __future__ import annotations

import os
import shlex
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING

import click

from reknit.pipeline.cli import configure_logs, fail, say
from reknit.pipeline.cli.broker import run_with_broker, unless_stopped
from reknit.pipeline.cli.config import with_config
from reknit.pipeline.cli.offline import SOURCE_NAMES, TARGET_NAMES
from reknit.pipeline.errors import InputError, ReknitError
from reknit.pipeline.registry import find_source, target_named
from reknit.pipeline.settings import Config
from reknit.pipeline.urls import mask_urls

if TYPE_CHECKING:
    from reknit.pipeline.client.sender import Route


@click.command("send")
@with_config
@click.option("--to", "url", metavar="URL", help="POST requests there; {model} is the request's model.")
@click.option("--exec", "program", metavar="COMMAND", help="Write each request to this program's standard input.")
@click.option(
    "--target", default="anthropic", show_default=True, help=f"The target of the requests to send: {TARGET_NAMES}."
)
@click.option(
    "--source",
    default=None,
    help=f"The source of the answers: {SOURCE_NAMES}. Default: that of the target.",
)
@click.option("--header", "headers", multiple=True, metavar="NAME: VALUE", help="A header of each request.")
@click.option(
    "--secret-header",
    "secrets",
    multiple=True,
    metavar="NAME=VARIABLE",
    help="As --header, with the value of an environment variable.",
)
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Maximum requests per second.")
@click.option(
    "--attempts", type=click.IntRange(min=1), default=6, show_default=True, help="Maximum attempts per request."
)
@click.option(
    "--longest-wait",
    type=click.FloatRange(min=0),
    default=3600.0,
    show_default=True,
    metavar="SECONDS",
    help="The longest retry-after of a provider that is obeyed.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="Maximum requests at the same time.",
)
@click.option("--group", default="reknit-send", show_default=True, help="The consumer group of the senders.")
def send_command(
    config: Config,
    url: str | None,
    program: str | None,
    target: str,
    source: str | None,
    headers: tuple[str, ...],
    secrets: tuple[str, ...],
    rate: float | None,
    attempts: int,
    longest_wait: float,
    concurrency: int,
    group: str,
) -> None:
    """Send published requests, and feed the answers back, until Ctrl-C.

    A turn becomes a request, the request an answer, and the answer items and, if the policy says so, a turn of the
    session. The command ends with 2 if only a person can help (the program is missing, the
    provider refuses the credentials, the cluster refuses a right) and with 75 if no broker answers. The next start
    sends the requests that are not answered.
    """
    # Imported here: `reknit send --help` needs no HTTP client.
    from reknit.pipeline.client import Events
    from reknit.pipeline.client.consumers import Requests
    from reknit.pipeline.client.sender import Sender
    from reknit.pipeline.tracing.opening import open_tracing

    configure_logs(config.log_level, config.log_format)

    async def run() -> None:
        async with (
            aclosing(open_tracing(config.otel)) as tracing,
            _route(url, program, _headers(headers, secrets)) as route,
            Events(config, source or target) as events,
            Requests(config, group=group) as requests,
        ):
            say(f"sending requests for {target} to {_shown(url, program)}; Ctrl-C ends it")
            sending = Sender(
                requests,
                events,
                route,
                target=target,
                rate=rate,
                attempts=attempts,
                longest_wait=longest_wait,
                at_once=concurrency,
                tracing=tracing,
            )
            if not await unless_stopped(sending.run()):
                say("stopped")

    try:
        target_named(target)
        find_source(source or target)
    except ReknitError as error:
        fail(error)
    run_with_broker(config, run)


@asynccontextmanager
async def _route(url: str | None, program: str | None, headers: dict[str, str]) -> AsyncIterator[Route]:
    from reknit.pipeline.client.sender import Http, Program

    if (url is None) == (program is None):
        raise InputError("no_route", "say where requests go: --to URL, or --exec COMMAND")
    if program is not None:
        yield Program(_words(program))
        return
    import aiohttp

    connector = aiohttp.TCPConnector(limit=0)  # --concurrency is the limit
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as client:
        yield Http(client, url or "", headers)


def _words(program: str) -> list[str]:
    try:
        return shlex.split(program)
    except ValueError as error:
        raise InputError("bad_command", f"the command cannot be read: {error}", path="--exec") from error


def _shown(url: str | None, program: str | None) -> str:
    """Name the destination without credentials: a masked URL, or a program without its arguments."""
    return mask_urls(url or "") if program is None else _words(program)[0]


def _headers(given: tuple[str, ...], secrets: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for header in given:
        name, colon, value = header.partition(":")
        if not colon:
            # The message omits the header, which may hold a credential.
            raise InputError("bad_header", "expected NAME: VALUE", path="--header")
        found[name.strip()] = value.strip()
    for number, secret in enumerate(secrets, 1):
        name, equals, variable = secret.partition("=")
        if not equals or variable not in os.environ:
            # The message omits both parts: a user may have typed the secret itself.
            where = f"--secret-header {number}" if len(secrets) > 1 else "--secret-header"
            raise InputError("bad_header", "expected NAME=VARIABLE with a variable that is set", path=where)
        found[name.strip()] = os.environ[variable]
    return found
