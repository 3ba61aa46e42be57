"""``reknit demo``: the whole pipeline on recorded sessions, and what it did for each of them.

``clients`` holds the fleet and sends it, ``report`` says what came of a session from the records alone, ``run`` starts
a broker and a worker and ties the two together. Nothing outside this package imports it, but for the table of commands,
and the viewer, whose playground has the fleet's histories as examples.
"""

from __future__ import annotations

import click

from pipeline.cli.output import fail, say
from pipeline.errors import ReknitError


@click.command("demo")
@click.option("--once", is_flag=True, help="End after the summary; without it the pipeline stays up.")
@click.option("--json", "as_json", is_flag=True, help="Print one report a session as JSON lines to stdout.")
@click.option(
    "--bootstrap-servers",
    metavar="HOST:PORT,…",
    help="Use this broker, exactly once, instead of starting the embedded one.",
)
@click.option("--prefix", default="demo.", show_default=True, help="Stands before the demo's topics and its group.")
def demo_command(*, once: bool, as_json: bool, bootstrap_servers: str | None, prefix: str) -> None:
    """Run the whole pipeline on recorded sessions.

    Starts a broker and a worker, feeds them broken histories and interrupted streams, and shows for each session what
    was mended, promoted or retracted, and what the provider would have said without that.

    Exit codes: 0, 1 where the pipeline did not get through in time, 2 where the broker is missing or cannot be used.
    """
    # Imported here: brokers and clients cost a second, and `reknit demo --help` should not.
    from pipeline.demo.run import Options, run
    from pipeline.demo.worker import WorkerError

    options = Options(bootstrap_servers=bootstrap_servers, prefix=prefix, once=once, as_json=as_json)
    try:
        raise SystemExit(run(options))
    except WorkerError as error:
        say(f"reknit: {error}")
        raise SystemExit(1) from error
    except ReknitError as error:
        fail(error)
