"""Programs that run until a signal ends them: ``reknit worker`` (the stages on the engine) and ``reknit viewer``."""

from __future__ import annotations

import logging
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import click
import msgspec
from msgspec import structs

from reknit.pipeline.cli import configure_logs, exit_of, fail, say
from reknit.pipeline.cli.broker import run_with_broker, unless_stopped
from reknit.pipeline.cli.config import broker_options, session_defaults, setting_option, wait_option, with_config
from reknit.pipeline.cli.index_servers import index_path, index_server_options
from reknit.pipeline.config import load_config
from reknit.pipeline.errors import InputError, ReknitError, expected_one_of
from reknit.pipeline.objects import open_objects
from reknit.pipeline.secret_files import secret_bytes_in
from reknit.pipeline.settings import Config
from reknit.topics import AGENT_TURNS, DEAD_LETTERS, HISTORY_FIXES, PROVIDER_EVENTS, topics_of

if TYPE_CHECKING:
    from reknit.pipeline.engine import Progress, Scope, StageFactory, Tuning
    from reknit.pipeline.viewer.guard import Viewed

worker_log = logging.getLogger("reknit.worker")
viewer_log = logging.getLogger("reknit.viewer")

DEFAULT_PORT = 8760


@click.command("worker")
@broker_options
@wait_option
@setting_option("source_prefix")
@setting_option("delivery", type=click.Choice(["exactly-once", "at-least-once"]))
@setting_option("metrics_port", type=int)
@setting_option("state_dir", type=click.Path(file_okay=False))
@click.option("--shadow", is_flag=True, help="Publish only fixes and dead letters for the inputs of another pipeline.")
def worker_command(config_file: str | None, *, shadow: bool, **options: str | int | None) -> None:
    """Run a worker until it is stopped.

    As a shadow it reads the inputs of --source-prefix and publishes fixes, rejections and metrics under a --prefix of
    its own; a prefix with inputs, which may be a live pipeline's, is refused.

    Exit codes: 0 after SIGTERM or SIGINT, 2 if only a person can help, 75 if no broker answers at the start, or if the
    worker was fenced, got stuck or failed; records in flight are not committed then and will be processed again.
    """
    form = os.environ.get("REKNIT_LOG_FORMAT")
    try:
        config = load_config(config_file, overrides=options)
        form = config.log_format
        raise SystemExit(run(config, scope=shadow_of(config) if shadow else None))
    except ReknitError as error:
        if form != "json":
            fail(error)
        configure_logs(form="json")
        worker_log.error("%s", error)
        raise SystemExit(exit_of(error)) from None


def run(
    config: Config,
    tuning: Tuning | None = None,
    *,
    ends: Mapping[str, Sequence[int]] | None = None,
    rate: int | None = None,
    factories: Mapping[str, StageFactory] | None = None,
    on_progress: Progress | None = None,
    scope: Scope | None = None,
) -> int:
    """Run a worker in this process and return its exit code.

    Args:
        config: the configuration.
        tuning: the engine's limits, instead of the configuration's.
        ends: the offsets before which it ends, by input and partition; None: it runs without end.
        rate: records per second at most; None: no limit.
        factories: create the stages, instead of the configuration.
        on_progress: called with the progress of all workers of the group, if there are ``ends``.
        scope: inputs, outputs and ends, instead of those of the configuration and ``ends``.

    Raises:
        ReknitError: the worker cannot start.
    """
    from reknit.pipeline.engine import Tuning, run_worker
    from reknit.pipeline.metrics import Metrics
    from reknit.pipeline.stages import WRITTEN, stages
    from reknit.pipeline.tracing.calls import Tracing
    from reknit.pipeline.tracing.opening import open_tracing

    configure_logs(config.log_level, config.log_format)
    bounds = {name: getattr(config, name) for name in Tuning.__struct_fields__ if hasattr(config, name)}
    tuning = tuning or Tuning(**bounds)
    scope = structs.replace(scope or scope_of(config, ends), rate=rate)
    # A replay would add its spans to the traces of the live work.
    tracing = open_tracing(config.otel, config.inputs_prefix) if scope.ends is None else Tracing()
    with closing(tracing):
        return run_worker(
            config,
            factories or stages(session_defaults(config)),
            Metrics(targets=config.session.targets, pipeline=config.prefix),
            outputs=WRITTEN,
            tuning=tuning,
            objects=open_objects(config),
            scope=scope,
            on_progress=on_progress,
            observer=tracing if tracing.is_on else None,
        )


def scope_of(config: Config, ends: Mapping[str, Sequence[int]] | None = None) -> Scope:
    """Return the inputs, the outputs and the ends of a worker with this configuration.

    Raises:
        InputError: it is configured to publish a topic that is no output.
    """
    from reknit.pipeline.engine import Scope

    outputs = {topic.name for topic in topics_of(config.prefix, config.source_prefix) if topic.direction == "out"}
    for name in config.publish:
        if name not in outputs:
            raise InputError("unknown_topic", expected_one_of(outputs, name), path="publish")
    # Records that a worker writes to its own inputs are no outputs that may be left out.
    publishes = {*config.publish, AGENT_TURNS, PROVIDER_EVENTS} if config.publish else None
    return Scope(
        source_prefix=config.source_prefix, publishes=None if publishes is None else frozenset(publishes), ends=ends
    )


def shadow_of(config: Config) -> Scope:
    """Return the inputs and outputs of a shadow, which does not write to inputs either.

    Raises:
        InputError: it would read its own inputs, and so shadow no pipeline.
    """
    from reknit.pipeline.engine import Scope

    if config.source_prefix in {None, config.prefix}:
        message = "a shadow reads another pipeline's inputs: name it with --source-prefix, and give another --prefix"
        raise InputError("shadow_alone", message, path="source_prefix")
    return Scope(source_prefix=config.source_prefix, publishes=frozenset({HISTORY_FIXES, DEAD_LETTERS}))


# `reknit viewer`.


@click.command("viewer")
@with_config
@index_server_options(
    "viewer",
    port=DEFAULT_PORT,
    host_note="An address other than loopback needs --token-file.",
    forwarded="X-Forwarded-For, -Host, -Proto and -User",
)
@click.option("--allow-retry", is_flag=True, help="Let pages retry dead letters. Without it they are read-only.")
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file with the token that users log in with. A missing file is created with a random token.",
)
@click.option(
    "--audit-log",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Append a JSON line for each request to this file: its user, its page and its status.",
)
@click.option(
    "--titles",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A JSON object of titles by session id. Lists and pages show them next to the id.",
)
def viewer_command(config: Config, **given: Any) -> None:  # noqa: ANN401  click's options
    """Show sessions, fixes and streams in a browser, from an index that follows the topics.

    It reads without a group, and writes to the cluster only with --allow-retry. Exits with 0 after SIGTERM or SIGINT,
    with 2 if only a person can help, with 75 if no broker answers at the start.
    """
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
    titles: Path | None,
    **options: Any,  # noqa: ANN401  the rest is the server's
) -> None:
    from reknit.pipeline.viewer.guard import Guard
    from reknit.pipeline.viewer.server import run_viewer

    with audit_to(audit_log) as audit:
        login = "" if token_file is None else secret_in(token_file)
        await unless_stopped(
            run_viewer(
                config,
                Guard(host, names, login, proxies, audit),
                titles={} if titles is None else titles_in(titles),
                host=host,
                index_file=index_path(config, "viewer", index_file),
                on_start=lambda url: _say_where(config, url, token_file, login),
                **options,
            )
        )


def titles_in(file: Path) -> dict[str, str]:
    """Return the titles of sessions in a file.

    Raises:
        InputError: ``bad_titles``, it is not a JSON object of texts.
    """
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, str])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError("bad_titles", f"{file} is not a JSON object of titles by session id: {error}") from error


@contextmanager
def audit_to(path: Path | None) -> Iterator[Callable[[Viewed], object] | None]:
    """Return a function that appends whole lines about views to a file that only its owner can read."""
    if path is None:
        yield None
        return
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    try:
        yield lambda viewed: os.write(file, msgspec.json.encode(viewed) + b"\n")
    finally:
        os.close(file)


def secret_in(path: Path) -> str:
    """Return the token in a file; a missing file is created with a random token."""
    token = secret_bytes_in(path, _new_token).decode().strip()
    if not token:
        raise InputError("login_missing", f"{path} holds no token; without the file one is made")
    return token


def _new_token() -> bytes:
    return f"{secrets.token_urlsafe(24)}\n".encode()


def is_seen_by_a_person() -> bool:
    return sys.stderr.isatty()


def _say_where(config: Config, url: str, token_file: Path | None, login: str) -> None:
    """Report the address, with the token only on a terminal: logs are kept and passed on."""
    if token_file is None:
        shown_url = url
    elif is_seen_by_a_person():
        shown_url = f"{url}?{urlencode({'token': login})}"
    else:
        shown_url = f"{url} (log in with the token in {token_file})"
    if config.log_format == "json":
        viewer_log.info("viewer: %s", shown_url)
    else:
        say(f"reknit viewer: {shown_url}")
