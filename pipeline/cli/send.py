"""``reknit send``: published requests to a provider or a program, and its events back."""

from __future__ import annotations

import os
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import click

from pipeline.cli import fail, say
from pipeline.cli.broker import run_with_broker, unless_stopped
from pipeline.cli.config import broker_options, configured, wait_option
from pipeline.cli.offline import SOURCE_NAMES, TARGET_NAMES
from pipeline.client import Events
from pipeline.client.consumers import Requests
from pipeline.client.sender import Http, Program, Route, Sender
from pipeline.errors import InputError, ReknitError
from pipeline.registry import target_named
from pipeline.streams.sources import find_source


@click.command("send")
@broker_options
@wait_option
@click.option("--to", "url", metavar="URL", help="POST requests there; {model} is the request's model.")
@click.option("--exec", "program", metavar="COMMAND", help="Write each request to this program's standard input.")
@click.option("--target", default="anthropic", show_default=True, help=f"Whose requests are sent: {TARGET_NAMES}.")
@click.option(
    "--source",
    default=None,
    help=f"Whose events come back: {SOURCE_NAMES}; the target's own where it is not given.",
)
@click.option("--header", "headers", multiple=True, metavar="NAME: VALUE", help="Goes with each request.")
@click.option(
    "--secret-header", "secrets", multiple=True, metavar="NAME=VARIABLE", help="As --header, from the environment."
)
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Requests a second at most.")
@click.option("--attempts", type=click.IntRange(min=1), default=6, show_default=True, help="Tries of one request.")
@click.option("--group", default="reknit-send", show_default=True, help="The consumer group of the senders.")
def send_command(
    url: str | None,
    program: str | None,
    target: str,
    source: str | None,
    headers: tuple[str, ...],
    secrets: tuple[str, ...],
    rate: float | None,
    attempts: int,
    group: str,
    config_file: str | None,
    **options: str | None,
) -> None:
    """Send published requests, and feed the answers back, until Ctrl-C.

    The loop closes: a turn becomes a request, the request an answer, the answer items on a screen and, where the policy
    says so, a turn of the session.
    """
    config = configured(config_file, **options)

    async def run() -> None:
        async with (
            _route(url, program, _headers(headers, secrets)) as route,
            Events(config, source or target) as events,
            Requests(config, group=group) as requests,
        ):
            say(f"sending requests for {target} to {url or program}; Ctrl-C ends it")
            if not await unless_stopped(
                Sender(requests, events, route, target=target, rate=rate, attempts=attempts).run()
            ):
                say("stopped")

    try:
        target_named(target)
        find_source(source or target)
    except ReknitError as error:
        fail(error)
    run_with_broker(config, run)


@asynccontextmanager
async def _route(url: str | None, program: str | None, headers: dict[str, str]) -> AsyncIterator[Route]:
    if (url is None) == (program is None):
        raise InputError("no_route", "say where requests go: --to URL, or --exec COMMAND")
    if program is not None:
        yield Program(shlex.split(program))
        return
    # An answer takes as long as it takes; only silence ends it.
    patience = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=600)
    async with aiohttp.ClientSession(timeout=patience) as client:
        yield Http(client, url or "", headers)


def _headers(given: tuple[str, ...], secrets: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for header in given:
        name, colon, value = header.partition(":")
        if not colon:
            raise InputError("bad_header", f"expected NAME: VALUE, got {header!r}", path="--header")
        found[name.strip()] = value.strip()
    for secret in secrets:
        name, equals, variable = secret.partition("=")
        if not equals or variable not in os.environ:
            raise InputError("bad_header", f"{variable or secret!r} is not set", path="--secret-header")
        found[name.strip()] = os.environ[variable]
    return found
