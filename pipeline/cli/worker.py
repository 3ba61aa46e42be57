"""``reknit worker``: the two stages on the engine, until a signal ends it."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click
import msgspec
from msgspec import structs

from pipeline.cli import configure_logs, exit_of, fail
from pipeline.cli.config import broker_options, setting_option, wait_option
from pipeline.config import load_config
from pipeline.errors import InputError, ReknitError, expected_one_of
from pipeline.objects import open_objects
from pipeline.registry import target_named
from pipeline.session.arguments import policy_from
from pipeline.settings import Config
from pipeline.stages.defaults import Defaults, refuse_chained
from pipeline.text.redaction import Redactor
from topics import AGENT_TURNS, DEAD_LETTERS, HISTORY_FIXES, PROVIDER_EVENTS, topics_of

if TYPE_CHECKING:
    from pipeline.engine import Progress, Scope, StageFactory, Tuning


log = logging.getLogger("reknit.worker")


@click.command("worker")
@broker_options
@wait_option
@setting_option("source_prefix")
@setting_option("delivery", type=click.Choice(["exactly-once", "at-least-once"]))
@setting_option("metrics_port", type=int)
@setting_option("state_dir", type=click.Path(file_okay=False))
@click.option(
    "--shadow", is_flag=True, help="Only say what would be done with another pipeline's inputs: fixes and dead letters."
)
def worker_command(config_file: str | None, *, shadow: bool, **options: str | int | None) -> None:
    """Run a worker until it is stopped.

    As a shadow it reads the inputs of --source-prefix and publishes fixes, rejections and metrics under a --prefix of
    its own; a prefix with inputs, which may be a live pipeline's, is refused.

    Exit codes: 0 after SIGTERM or SIGINT, 2 where only a person can change why it does not run, 75 where no broker
    answers at the start, or where it was fenced, got stuck or failed; what was in flight then is not committed and will
    be processed again.
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
        log.error("%s", error)  # noqa: TRY400  a sentence for the operator; where it was raised says nothing
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
        tuning: the engine's bounds, instead of the configuration's.
        ends: the offsets before which it ends, by input and number of the partition; None: it goes on for ever.
        rate: the most records that it works through in a second; None: no bound.
        factories: what makes the stages, instead of the configuration.
        on_progress: told how far all workers of the group are, where they end somewhere.
        scope: what is read and published, instead of what the configuration and ``ends`` say.

    Raises:
        ReknitError: the worker cannot start.
    """
    from pipeline.engine import Tuning, run_worker
    from pipeline.metrics import Metrics
    from pipeline.stages import WRITTEN, stages

    configure_logs(config.log_level, config.log_format)
    bounds = {name: getattr(config, name) for name in Tuning.__struct_fields__ if hasattr(config, name)}
    tuning = tuning or Tuning(**bounds)
    return run_worker(
        config,
        factories or stages(session_defaults(config)),
        Metrics(targets=config.session.targets),
        outputs=WRITTEN,
        tuning=tuning,
        objects=open_objects(config),
        scope=structs.replace(scope or scope_of(config, ends), rate=rate),
        on_progress=on_progress,
    )


def scope_of(config: Config, ends: Mapping[str, Sequence[int]] | None = None) -> Scope:
    """What a worker of this configuration reads, publishes, and where it ends.

    Raises:
        InputError: it is to publish what is no output.
    """
    from pipeline.engine import Scope

    outputs = {topic.name for topic in topics_of(config.prefix, config.source_prefix) if topic.direction == "out"}
    for name in config.publish:
        if name not in outputs:
            raise InputError("unknown_topic", expected_one_of(outputs, name), path="publish")
    # What a worker writes to inputs of its own is no output that may be left out.
    publishes = {*config.publish, AGENT_TURNS, PROVIDER_EVENTS} if config.publish else None
    return Scope(
        source_prefix=config.source_prefix, publishes=None if publishes is None else frozenset(publishes), ends=ends
    )


def shadow_of(config: Config) -> Scope:
    """What a shadow reads and publishes: what it would write to an input is left out too.

    Raises:
        InputError: it would read its own inputs, and so work beside nobody.
    """
    from pipeline.engine import Scope

    if config.source_prefix in {None, config.prefix}:
        message = "a shadow reads another pipeline's inputs: name it with --source-prefix, and give another --prefix"
        raise InputError("shadow_alone", message, path="source_prefix")
    return Scope(source_prefix=config.source_prefix, publishes=frozenset({HISTORY_FIXES, DEAD_LETTERS}))


def session_defaults(config: Config) -> Defaults:
    """The configuration's defaults for sessions, as the stages take them.

    Raises:
        UnknownTargetError: a target that does not exist.
        InputError: what is to be redacted, or its marker, cannot be used; or a parameter leads outside of the request.
    """
    given = config.session
    Redactor(config.text.redact_roots, config.text.redact_marker)  # raises here what every partition would raise later
    for name in given.targets:
        target_named(name)
    refuse_chained(given.params)
    params = dict(given.params)
    if given.max_tokens is not None:
        params.setdefault("max_tokens", msgspec.Raw(msgspec.json.encode(given.max_tokens)))
    return Defaults(
        targets=given.targets,
        model=given.model,
        params=params,
        system=given.system,
        tools=given.tools,
        policy=policy_from(given.policy),
        on_dead_letter=config.on_dead_letter,
        parked_records=config.parked_records,
        parked_bytes=config.parked_bytes,
        limits=config.limits,
        redact_roots=config.text.redact_roots,
        redact_marker=config.text.redact_marker,
    )
