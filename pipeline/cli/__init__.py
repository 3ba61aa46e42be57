"""The ``reknit`` command: a lazy group, so that ``normalize`` does not pay for importing a stream engine."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any

import click

from pipeline import __version__
from pipeline.errors import expected_one_of

# Command name -> (where it lives, the line that --help shows). The line stands here, since showing it must not import.
COMMANDS: dict[str, tuple[str, str]] = {
    "normalize": (
        "pipeline.cli.core:normalize_command",
        "Mend a history into a request that the target accepts.",
    ),
    "validate": ("pipeline.cli.core:validate_command", "Judge a request body by its provider's rules."),
    "recover": ("pipeline.cli.core:recover_command", "Turn raw provider events into items."),
    "explain": ("pipeline.cli.explain:explain_command", "Say what a fix or a rule means."),
    "test": ("pipeline.cli.cases:test_command", "Check histories of your own against every promise."),
    "demo": ("pipeline.demo:demo_command", "Run the whole pipeline on recorded sessions."),
    "worker": ("pipeline.cli.worker:worker_command", "Run a worker until it is stopped."),
    "ingest": (
        "pipeline.cli.ingest:ingest_group",
        "Pipe turns, provider events or requests to providers into their topic.",
    ),
    "send": ("pipeline.cli.send:send_command", "Send published requests, and feed the answers back."),
    "inspect": (
        "pipeline.cli.inspect:inspect_command",
        "Show what the topics and the state hold of a session.",
    ),
    "sessions": ("pipeline.cli.sessions:sessions_group", "List sessions, and release those that are parked."),
    "dead-letters": (
        "pipeline.cli.dead_letters:dead_letters_group",
        "List, show, count, retry and drop records that could not be processed.",
    ),
    "viewer": ("pipeline.cli.viewer:viewer_command", "Show sessions, fixes and streams in a browser."),
    "feedback": (
        "pipeline.cli.feedback:feedback_group",
        "List what providers refused of published requests, and what the rules say of it.",
    ),
    "replay": ("pipeline.cli.replay:replay_group", "Process again, beside the live pipeline, what it has read."),
    "report": (
        "pipeline.cli.report:report_command",
        "Say what is or would be mended, and which of the providers' errors that prevents.",
    ),
    "export": ("pipeline.cli.sessions:export_command", "Print a session as a document that restores it."),
    "import": ("pipeline.cli.sessions:import_command", "Restore sessions from what `export` printed."),
    "diff": ("pipeline.cli.diff:diff_command", "Compare what two runs over the same input published."),
    "forget": ("pipeline.cli.forget:forget_command", "Have a session forgotten, and say what still holds it."),
    "objects": ("pipeline.cli.forget:objects_group", "Delete large values that no record names any more."),
    "config": ("pipeline.cli.config:config_group", "Show the configuration and where each value comes from."),
    "topics": ("pipeline.cli.topics:topics", "List, create and compare topics; print their schemas."),
}


class Group(click.Group):
    """A group that says which command may have been meant."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            ctx.fail(f"no such command: {expected_one_of(self.list_commands(ctx), args[0])}")
        return super().resolve_command(ctx, args)


class LazyGroup(Group):
    """Imports a command's module when the command is run."""

    def main(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401  as click has it
        """As click does; a place that cannot be written to is said in a sentence."""
        try:
            return super().main(*args, **options)
        except OSError as error:
            from pipeline.cli.output import fail_to_write

            fail_to_write(error)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the README."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command, or None where there is none of that name."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)  # noqa: S101  a typo in the table above, found by its test
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print the table of commands without importing any of them."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="reknit")
def main() -> None:
    """The stream pipeline between agents and model providers.

    Commands read stdin or files and write JSON lines to stdout; words for people go to stderr.
    Exit codes: 0 clean, 2 unusable input or arguments, 3 mended, 4 rejected, 75 what may pass (no broker answers).
    """
    # The client logs each refused connection; commands say once, in their own words, that the broker is away.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
