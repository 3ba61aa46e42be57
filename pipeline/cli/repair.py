"""``reknit repair``: a session file of an agent program, written back so that the program resumes from it."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click

from reknit.pipeline.cli import Exit, fail, fail_to_write, say
from reknit.pipeline.errors import InputError
from reknit.pipeline.transcripts import RepairedTranscript, repair_transcript
from reknit.pipeline.transcripts.changes import summary_of

_COPY = ".repaired"
_KEPT = ".before-repair"


@click.command("repair")
@click.option("--in-place", is_flag=True, help=f"Replace the file, and keep the old one with the ending {_KEPT}.")
@click.option("--dry-run", is_flag=True, help="Write nothing, and print the changes.")
@click.option("--to", "destination", type=click.Path(path_type=Path), help=f"The copy  [default: FILE{_COPY}]")
@click.option("--for", "version", default="", metavar="VERSION", help="The program's version, where versions differ.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def repair_command(*, in_place: bool, dry_run: bool, destination: Path | None, version: str, file: Path) -> None:
    """Repair a session file of Claude Code, Codex or the Gemini CLI.

    The file keeps its shape, and lines that need no repair keep their bytes. A repaired copy is written next to the
    file. Each change is printed with the number of its line.

    Exit codes: 0 nothing to repair, 3 repaired, 2 the file cannot be used or a running program has it open.
    """
    if in_place and destination is not None:
        raise click.UsageError("--in-place and --to exclude each other")
    try:
        data = file.read_bytes()
        done = repair_transcript(data, file.name, version)
        _report(done)
        if not done.fixes:
            raise SystemExit(int(Exit.CLEAN))
        if not dry_run:
            _refuse_open(file)
            _write(done.data, data, file, destination, in_place=in_place)
    except InputError as error:
        fail(error)
    except OSError as error:
        fail_to_write(error)
    raise SystemExit(int(Exit.MENDED))


def _report(done: RepairedTranscript) -> None:
    say(f"reknit repair: a session of {done.program}")
    for fix in done.fixes:
        number = int(fix.path.split(".")[1]) + 1
        detail = f" ({fix.detail})" if fix.detail else ""
        say(f"line {number}: {fix.code}: {summary_of(fix.code)}{detail}")
    lossy = sum(not fix.lossless for fix in done.fixes)
    say(f"{len(done.fixes)} changes, {lossy} of them with a loss" if done.fixes else "nothing to repair")


def _write(data: bytes, before: bytes, file: Path, destination: Path | None, *, in_place: bool) -> None:
    """Write the repaired file.

    Raises:
        InputError: ``file_changed``: the file was written while it was repaired; ``file_exists``: the copy exists.
        OSError: it cannot be written.
    """
    if in_place:
        kept = _free(file.with_name(file.name + _KEPT))
        if file.read_bytes() != before:
            raise InputError("file_changed", f"{file} was written while it was repaired; nothing was changed")
        shutil.copy2(file, kept)
        _replace(file, data)
        say(f"wrote {file}, and kept the old file as {kept.name}")
        return
    target = destination or file.with_name(file.name + _COPY)
    if target.exists():
        raise InputError("file_exists", f"{target} exists; remove it, or name another with --to")
    _replace(target, data)
    say(f"wrote {target}")


def _free(path: Path) -> Path:
    """Return a path that does not exist: the given one, or one with a number."""
    return next(each for each in _numbered(path) if not each.exists())


def _numbered(path: Path) -> Iterator[Path]:
    yield path
    number = 1
    while True:
        number += 1
        yield path.with_name(f"{path.name}.{number}")


def _replace(path: Path, data: bytes) -> None:
    """Write a file in one step: a reader sees the old content or the new one."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        temporary = Path(file.name)
        try:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            if path.exists():
                shutil.copymode(path, temporary)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def _refuse_open(file: Path) -> None:
    """Refuse a file that another process has open. Only Linux shows this; elsewhere the caller must know.

    Raises:
        InputError: ``file_open``.
    """
    if not sys.platform.startswith("linux"):
        return
    wanted = file.stat()
    for process in Path("/proc").glob("[0-9]*"):
        if process.name == str(os.getpid()):
            continue
        try:
            opened = list((process / "fd").iterdir())
        except OSError:  # another user's process, or one that ended
            continue
        for each in opened:
            try:
                found = each.stat()
            except OSError:
                continue
            if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
                message = f"process {process.name} has {file} open: end the program first"
                raise InputError("file_open", message)
