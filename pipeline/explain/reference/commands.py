"""The page of commands: usage, help and options of each, as click has them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from reknit.pipeline.cli import main
from reknit.pipeline.explain.reference.markdown import WRITTEN, code, prose, table

_INTRO = (
    "Every command and option, as `reknit COMMAND --help` prints them. Commands read stdin or files and write their "
    "result to stdout; words for people go to stderr. An option with a variable can be set in the environment; "
    "settings are also read from a file ([configuration](../configuration.md))."
)
_CODES = (
    ("0", "done; a history needed no repair"),
    ("2", "unusable input, arguments or configuration"),
    ("3", "repaired; or different, where two things are compared"),
    ("4", "rejected"),
    ("75", "no broker answers, which may pass"),
)


def commands_page() -> str:
    """Return ``docs/reference/cli.md``."""
    lines = ["# Commands", "", WRITTEN, "", _INTRO, "", *table(("exit code", "meaning"), _CODES)]
    root = click.Context(main, info_name="reknit")
    for name in main.list_commands(root):
        command = main.get_command(root, name)
        if command is not None:
            lines += _section(click.Context(command, info_name=name, parent=root))
    return "\n".join(lines).rstrip() + "\n"


def _section(context: click.Context) -> Iterator[str]:
    command = context.command
    depth = len(context.command_path.split())
    yield f"{'#' * depth} {context.command_path}"
    yield ""
    yield from (f"```\n{' '.join([context.command_path, *command.collect_usage_pieces(context)])}\n```", "")
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        yield from (prose(paragraph.replace("\b", "")), "")
    options = [record for each in command.params if (record := each.get_help_record(context))]
    if options:
        yield from table(("option", "meaning"), ((code(names), prose(text)) for names, text in options))
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None:
                yield from _section(click.Context(below, info_name=name, parent=context))
