"""``reknit convert``: a history in the shape of another framework."""

from __future__ import annotations

import click

from reknit.pipeline.cli import Exit, fail, read_input, write_bytes
from reknit.pipeline.cli.offline import FILE, QUIET
from reknit.pipeline.cli.output import show_fixes
from reknit.pipeline.conversion import convert
from reknit.pipeline.errors import ReknitError
from reknit.pipeline.history.readers.shapes import SHAPES
from reknit.pipeline.history.writers import WRITERS

WRITTEN = ", ".join(WRITERS)


@click.command("convert")
@click.option("--to", "shape", required=True, help=f"The shape to write: {WRITTEN}.")
@click.option("--from", "source", default="auto", show_default=True, help=f"Its shape: auto, {', '.join(SHAPES)}.")
@QUIET
@FILE
def convert_command(shape: str, source: str, quiet: bool, file: str) -> None:
    """Convert a history into the shape of a framework or a program, and print its list of messages or its lines.

    Nothing is repaired. Each thing that the shape has no place for is a line on stderr.

    Exit codes: 0 everything was converted, 3 something was left out or repaired in reading, 2 the input cannot be used.
    """
    try:
        done = convert(read_input(file), shape, source)
    except ReknitError as error:
        fail(error)
    write_bytes(done.data if done.lines else done.data + b"\n")
    if not quiet:
        show_fixes(done.fixes)
    raise SystemExit(int(Exit.MENDED if done.fixes else Exit.CLEAN))
