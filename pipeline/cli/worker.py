"""``reknit worker``: the two stages on the engine, until a signal ends it."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Literal

import click
import msgspec
import structlog

from pipeline.cli.broker import broker_options, configured
from pipeline.cli.output import fail, say
from pipeline.config import Config
from pipeline.errors import ReknitError
from pipeline.registry import target_named
from pipeline.stages.defaults import Defaults
from pipeline.text import Redactor

if TYPE_CHECKING:
    from pipeline.engine import Tuning


@click.command("worker")
@broker_options
@click.option("--partitions", type=int, help="How many partitions every topic has.")
@click.option("--delivery", type=click.Choice(["exactly-once", "at-least-once"]), help="What a crash may cost.")
@click.option("--metrics-port", type=int, help="Port of /metrics, /livez and /readyz; 0 takes a free one.")
@click.option("--state-dir", type=click.Path(file_okay=False), help="For what one worker writes locally.")
def worker_command(config_file: str | None, **options: str | int | None) -> None:
    """Run a worker until it is stopped.

    Exit codes: 0 after SIGTERM or SIGINT, 2 where only a person can change why it does not run, 75 where no broker
    answers at the start, or where it was fenced, got stuck or failed; what was in flight then is not committed and will
    be processed again.
    """
    config = configured(config_file, **options)
    try:
        raise SystemExit(run(config))
    except ReknitError as error:
        fail(error)


def run(config: Config, tuning: Tuning | None = None) -> int:
    """Run a worker in this process and return its exit code; ``tuning`` instead of the configuration's bounds.

    Raises:
        ReknitError: the worker cannot start.
    """
    from pipeline.engine import Tuning, run_worker
    from pipeline.metrics import Metrics
    from pipeline.stages.registry import WRITTEN, stages

    configure_logs(config.log_level, config.log_format)
    say(f"reknit: delivery {config.delivery}, brokers {config.bootstrap_servers}, prefix {config.prefix!r}")
    bounds = {name: getattr(config, name) for name in Tuning.__struct_fields__ if hasattr(config, name)}
    tuning = tuning or Tuning(**bounds)
    return run_worker(config, stages(session_defaults(config)), Metrics(), outputs=WRITTEN, tuning=tuning)


def session_defaults(config: Config) -> Defaults:
    """The configuration's defaults for sessions, as the stages take them.

    Raises:
        UnknownTargetError: a target that does not exist.
        InputError: what is to be redacted, or its marker, cannot be used.
    """
    given = config.session
    Redactor(config.text.redact_roots, config.text.redact_marker)  # raises here what every partition would raise later
    for name in given.targets:
        target_named(name)
    params = dict(given.params)
    if given.max_tokens is not None:
        params.setdefault("max_tokens", msgspec.Raw(msgspec.json.encode(given.max_tokens)))
    return Defaults(
        targets=given.targets,
        model=given.model,
        params=params,
        system=given.system,
        tools=given.tools,
        policy=given.policy,
        quarantine=config.on_dead_letter == "follow",
        redact_roots=config.text.redact_roots,
        redact_marker=config.text.redact_marker,
    )


# They build a log record for each message even where none is shown, and say at INFO what only they care about.
QUIET = ("faust", "aiokafka", "mode")


def configure_logs(level: str = "info", form: Literal["text", "json"] = "text") -> None:
    """Log one line an event on stderr, as text or JSON, without content; call it once, in a process of our own."""
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    last: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if form == "json" else structlog.dev.ConsoleRenderer(colors=False)
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, last],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
