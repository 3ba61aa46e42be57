"""``reknit serve``: the gateway on the request path."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import structs

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

if TYPE_CHECKING:
    from ssl import SSLContext

    from reknit.pipeline.serve.server import Listening


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
@click.option(
    "--shadow",
    is_flag=True,
    help="Forward every body unchanged, and write turns, requests and answers to the topics for a shadow worker.",
)
@click.option(
    "--shadow-log",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The same without brokers: append the requests to this file, as lines for `reknit ingest requests`.",
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
    shadow: bool,
    shadow_log: Path | None,
    **options: str | int | None,
) -> None:
    """Repair the requests of agents on their way to the providers.

    Point an agent's base URL here, for example ANTHROPIC_BASE_URL=http://127.0.0.1:8787/anthropic. A request that needs
    no repair is forwarded byte for byte. Answers pass unchanged, and a broken stream never ends as if it were complete.
    No broker is needed.

    Exit codes: 0 after SIGTERM or SIGINT, 2 if a setting cannot be used.
    """
    config = configured(config_file, **{"serve.listen": listen}, **options)
    from reknit.pipeline.serve.server import tls_of

    configure_logs(config.log_level, config.log_format)
    try:
        upstreams = _upstreams(config, url, target, is_shadow=shadow or shadow_log is not None)
        listening = _listening(config, _key_in(key_file), tls_of(tls_cert, tls_key))
        if shadow or shadow_log is not None:
            listening = structs.replace(listening, is_shadow=True, shadow_log=shadow_log)
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_until_stopped(config, upstreams, listening))
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


def _upstreams(config: Config, url: str | None, target: str, *, is_shadow: bool) -> Upstreams:
    given = config.serve.upstream or DEFAULT_UPSTREAMS
    if url is not None:
        given = (Upstream(name="upstream", to=url, target=target),)
    for upstream in given:
        if upstream.sign == "any":
            check_botocore()
        for policy in upstream.policies():
            if policy_from(policy).media == "shrink":  # an error here, not later in every request
                check_pillow()
    return Upstreams((each.as_shadow() for each in given) if is_shadow else given, TARGETS)


def _listening(config: Config, key: str, tls: SSLContext | None) -> Listening:
    from reknit.pipeline.client import Inputs
    from reknit.pipeline.serve.server import Listening

    host, _, port = config.serve.listen.rpartition(":")
    return Listening(
        host=host.strip("[]"),
        port=int(port),
        key=key,
        tls=tls,
        metrics_host=config.metrics_host,
        metrics_port=config.metrics_port,
        drain_seconds=config.serve.drain_seconds,
        state_dir=Path(config.state_dir),
        publish=config.serve.publish,
        connect=lambda: Inputs(config),
        prefix=config.prefix,
    )


async def _until_stopped(config: Config, upstreams: Upstreams, listening: Listening) -> None:
    from reknit.pipeline.serve.server import serve
    from reknit.pipeline.tracing.opening import open_tracing

    async with aclosing(open_tracing(config.otel)) as tracing:
        await unless_stopped(
            serve(upstreams, listening, lambda url, status: _on_start(url, status, upstreams), tracing=tracing)
        )


def _on_start(url: str, status_url: str, upstreams: Upstreams) -> None:
    _say_where(url, status_url, upstreams)
    # The objects of the start stay to the end, so the garbage collector need not visit them.
    gc.collect()
    gc.freeze()


def _say_where(url: str, status_url: str, upstreams: Upstreams) -> None:
    for upstream in upstreams:
        say(f"reknit serve: {url}{upstream.prefix} -> {upstream.to}")
    say(f"reknit serve: status and metrics: {status_url}")
