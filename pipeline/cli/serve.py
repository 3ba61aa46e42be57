"""``reknit serve``: the gateway on the request path."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import click

from reknit.pipeline.cli import configure_logs, fail, say
from reknit.pipeline.cli.broker import unless_stopped
from reknit.pipeline.cli.config import configured, setting_option
from reknit.pipeline.errors import InputError, ReknitError
from reknit.pipeline.registry import TARGETS
from reknit.pipeline.scaling import check_pillow
from reknit.pipeline.serve.aws import check_botocore
from reknit.pipeline.serve.upstreams import DEFAULT_UPSTREAMS, Upstream, Upstreams
from reknit.pipeline.session.arguments import policy_from
from reknit.pipeline.settings import Config


@click.command("serve")
@click.option(
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False),
    help="A TOML file with settings  [env: REKNIT_CONFIG]",
)
@click.option("--listen", metavar="HOST:PORT", help="The address  [default: 127.0.0.1:8787]")
@click.option("--to", "url", metavar="URL", help="The only upstream: the base URL of a provider's API.")
@click.option(
    "--target", default="", help="With --to: the target that judges the requests. Default: from the request's path."
)
@click.option(
    "--key-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with the key that clients send in x-reknit-key.",
)
@click.option(
    "--tls-cert", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="The certificate for HTTPS."
)
@click.option(
    "--tls-key", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="The certificate's private key."
)
@setting_option("state_dir", type=click.Path(file_okay=False))
@setting_option("metrics_port", type=int)
def serve_command(
    config_file: str | None,
    *,
    listen: str | None,
    url: str | None,
    target: str,
    key_file: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    **options: str | int | None,
) -> None:
    """Repair the requests of agents on their way to the providers.

    Point an agent's base URL here, for example ANTHROPIC_BASE_URL=http://127.0.0.1:8787/anthropic. A request that needs
    no repair is forwarded byte for byte. Answers pass unchanged, and a broken stream never ends as if it were complete.
    No broker is needed.

    Exit codes: 0 after SIGTERM or SIGINT, 2 if a setting cannot be used.
    """
    config = configured(config_file, **{"serve.listen": listen}, **options)
    configure_logs(config.log_level, config.log_format)
    try:
        work = _until_stopped(config, _upstreams(config, url, target), _key_in(key_file), tls_cert, tls_key)
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(work)
    except ReknitError as error:
        fail(error)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes a uvloop; None on systems that do not have it."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _key_in(file: Path | None) -> str:
    key = "" if file is None else file.read_text(encoding="utf-8").strip()
    if file is not None and not key:
        raise InputError("key_missing", f"{file} holds no key")
    return key


def _upstreams(config: Config, url: str | None, target: str) -> Upstreams:
    given = config.serve.upstream or DEFAULT_UPSTREAMS
    if url is not None:
        given = (Upstream(name="upstream", to=url, target=target),)
    for upstream in given:
        if upstream.sign == "any":
            check_botocore()
        for policy in upstream.policies():
            if policy_from(policy).media == "shrink":  # an error here, not later in every request
                check_pillow()
    return Upstreams(given, TARGETS)


async def _until_stopped(
    config: Config, upstreams: Upstreams, key: str, tls_cert: Path | None, tls_key: Path | None
) -> None:
    from reknit.pipeline.client import Inputs
    from reknit.pipeline.serve.server import Listening, serve, tls_of
    from reknit.pipeline.tracing.opening import open_tracing

    host, _, port = config.serve.listen.rpartition(":")
    listening = Listening(
        host=host.strip("[]"),
        port=int(port),
        key=key,
        tls=tls_of(tls_cert, tls_key),
        metrics_port=config.metrics_port,
        drain_seconds=config.serve.drain_seconds,
        state_dir=Path(config.state_dir),
        publish=config.serve.publish,
        connect=lambda: Inputs(config),
    )
    async with aclosing(open_tracing(config.otel)) as tracing:
        await unless_stopped(
            serve(upstreams, listening, lambda url, status: _say_where(url, status, upstreams), tracing=tracing)
        )


def _say_where(url: str, status_url: str, upstreams: Upstreams) -> None:
    for upstream in upstreams:
        say(f"reknit serve: {url}{upstream.prefix} -> {upstream.to}")
    say(f"reknit serve: status and metrics: {status_url}")
