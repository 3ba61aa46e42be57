"""``reknit heal``: a narrower request after a provider's refusal."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from reknit.pipeline.cli import Exit, fail, read_input, say, write_bytes
from reknit.pipeline.cli.offline import FILE, TARGET_NAMES
from reknit.pipeline.errors import ReknitError
from reknit.pipeline.healing.single import NotHealed, try_healing

_WHY = {
    "unknown": "no row of the table has this sentence",
    "session": "the repair needs the history: only a session can heal this",
    "retry": "the cause may pass by itself: send the same request again, then heal it with --attempt 2",
    "no_change": "the request has nothing that the sentence names",
    "invalid": "the narrower request breaks another rule",
}


@click.command("heal")
@click.option("--target", default="anthropic", show_default=True, help=f"The target that refused it: {TARGET_NAMES}.")
@click.option("--status", type=int, default=400, show_default=True, help="The status of the answer.")
@click.option(
    "--error",
    "error_file",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with the body of the answer.",
)
@click.option("--attempt", type=int, default=1, show_default=True, help="2 if the same request was refused before.")
@FILE
def heal_command(target: str, status: int, error_file: Path, attempt: int, file: str) -> None:
    """Print a request without what its provider refused.

    Reads the body of the refused request. The sentence of the provider decides the change. An unknown sentence is
    never interpreted.

    Exit codes: 3 if the request is healed, 4 if no healing applies, 2 if the input cannot be used.
    """
    try:
        done = try_healing(read_input(file), target, status=status, error=error_file.read_bytes(), attempt=attempt)
    except ReknitError as error:
        fail(error)
    if isinstance(done, NotHealed):
        say(f"reknit heal: {done.sentence or 'an answer without a sentence'}")
        say(f"not healed: {_WHY[done.reason]}")
        raise SystemExit(int(Exit.REJECTED))
    write_bytes(done.body + b"\n")
    for code, count in Counter(fix.code for fix in done.fixes).items():
        say(f"healed: {code} x{count}")
    raise SystemExit(int(Exit.MENDED))
