"""``reknit demo``: the whole pipeline on recorded sessions, and a report on each of them.

``recordings`` holds the fleet and reports on each session, ``actors`` are the clients and the child processes, ``run``
starts a broker and connects everything, ``two_clients`` serves the page of ``--screens``, ``show`` is the output for a
person. No module outside this package imports it,
except for the table of commands, and the viewer, whose playground has the fleet's histories as examples.
"""

from __future__ import annotations

import click

from reknit.pipeline.cli import fail, say
from reknit.pipeline.errors import ReknitError


@click.command("demo")
@click.option("--once", is_flag=True, help="End after the summary; without it the pipeline stays up.")
@click.option("--json", "as_json", is_flag=True, help="Print one report a session as JSON lines to stdout.")
@click.option(
    "--bootstrap-servers",
    metavar="HOST:PORT,…",
    help="Use this broker, exactly once, instead of starting the embedded one.",
)
@click.option("--viewer", is_flag=True, help="Show the sessions in a browser as well.")
@click.option(
    "--screens",
    is_flag=True,
    help="Serve a page with two UI clients whose stream breaks off; it needs a checkout with Node.js.",
)
@click.option("--open", "open_browser", is_flag=True, help="With --viewer or --screens: open a browser on it.")
@click.option("--verbose", is_flag=True, help="A report on each session, and figures of the worker.")
@click.option("--prefix", default="demo.", show_default=True, help="The prefix of the demo's topics and its group.")
def demo_command(
    *,
    once: bool,
    as_json: bool,
    bootstrap_servers: str | None,
    viewer: bool,
    screens: bool,
    open_browser: bool,
    verbose: bool,
    prefix: str,
) -> None:
    """Run the whole pipeline on recorded sessions.

    Shows one broken history, its refusal and its repaired request; then starts a broker and a worker, feeds them broken
    histories and interrupted streams, and shows the score. --verbose shows for each session what was mended, promoted
    or retracted, and what the provider would have said without that.

    Exit codes: 0, 1 where the pipeline did not get through in time, 2 where the broker is missing or cannot be used.
    """
    if once and viewer:
        raise click.UsageError("--once ends before anybody has looked: leave it out, and Ctrl-C ends the viewer.")
    if once and screens:
        raise click.UsageError("--once ends before a browser could be opened: leave it out.")
    if open_browser and not (viewer or screens):
        raise click.UsageError("--open opens the pages that --viewer and --screens start.")
    # Imported here: brokers and clients cost a second, and `reknit demo --help` should not.
    from reknit.pipeline.demo.actors import ChildError
    from reknit.pipeline.demo.run import Options, run

    options = Options(
        bootstrap_servers=bootstrap_servers,
        prefix=prefix,
        once=once,
        as_json=as_json,
        viewer=viewer,
        screens=screens,
        open_browser=open_browser,
        verbose=verbose,
    )
    try:
        raise SystemExit(run(options))
    except ChildError as error:
        say(f"reknit: {error}")
        raise SystemExit(1) from error
    except ReknitError as error:
        fail(error)
