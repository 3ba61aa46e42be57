"""``reknit worker``: the two stages on the engine, until a signal ends it."""

from __future__ import annotations

import click

from pipeline.cli.options import broker_options, configured
from pipeline.cli.output import fail, say
from pipeline.config import Config
from pipeline.errors import ReknitError


@click.command("worker")
@broker_options
@click.option("--partitions", type=int, help="How many partitions every topic has.")
@click.option("--delivery", type=click.Choice(["exactly-once", "at-least-once"]), help="What a crash may cost.")
@click.option("--metrics-port", type=int, help="Port of /metrics, /livez and /readyz; 0 takes a free one.")
@click.option("--state-dir", type=click.Path(file_okay=False), help="For what one worker writes locally.")
def worker_command(config_file: str | None, **options: str | int | None) -> None:
    """Run a worker until it is stopped.

    Exit codes: 0 after SIGTERM or SIGINT, 2 where it cannot start, 75 where it was fenced, got stuck or failed; what
    was in flight then is not committed and will be processed again.
    """
    config = configured(config_file, **options)
    try:
        raise SystemExit(run(config))
    except ReknitError as error:
        fail(error)


def run(config: Config) -> int:
    """Run a worker in this process and return its exit code.

    Raises:
        ReknitError: the worker cannot start.
    """
    # Imported here: the engine costs a second, and `reknit worker --help` should not.
    from pipeline.engine import run_worker  # noqa: PLC0415
    from pipeline.logs import configure_logs  # noqa: PLC0415
    from pipeline.metrics import Metrics  # noqa: PLC0415
    from pipeline.stages import make_stages, written_topics  # noqa: PLC0415

    configure_logs(config.log_level, config.log_format)
    say(f"reknit: delivery {config.delivery}, brokers {config.bootstrap_servers}, prefix {config.prefix!r}")
    return run_worker(config, make_stages(config.session, config), Metrics(), outputs=written_topics())
