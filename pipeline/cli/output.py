"""How commands speak: JSON lines to stdout, words to stderr, one exit code for the worst that happened."""

from __future__ import annotations

import errno
import os
import sys
import time
from enum import IntEnum
from pathlib import Path
from typing import Any, NoReturn

import click
import cramjam
import msgspec

from pipeline.errors import BrokerDownError, ReknitError


class Exit(IntEnum):
    """What a command found, as its exit code."""

    CLEAN = 0
    UNUSABLE = 2
    MENDED = 3
    DIFFERENT = 3
    REJECTED = 4
    # What may pass (EX_TEMPFAIL): a broker that is down.
    DOWN = 75


# How a frame of zstd begins.
_ZSTD = b"\x28\xb5\x2f\xfd"
# From best to worst: where many documents were read, the worst decides.
_SEVERITY = (Exit.CLEAN, Exit.MENDED, Exit.REJECTED, Exit.UNUSABLE, Exit.DOWN)


def worst(codes: list[Exit]) -> Exit:
    """The exit code of several documents; no document at all is clean."""
    return max(codes, key=_SEVERITY.index, default=Exit.CLEAN)


def read_input(file: str) -> bytes:
    """All of a file, or of stdin for ``-``; what is packed with zstd, as older transcripts may be, is unpacked."""
    data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    return bytes(cramjam.zstd.decompress(data)) if data.startswith(_ZSTD) else data


def write_json(value: Any) -> None:  # noqa: ANN401  anything that msgspec encodes
    write_bytes(msgspec.json.encode(value) + b"\n")


def write_bytes(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def say(text: str) -> None:
    """A line for people, on stderr."""
    click.echo(text, err=True)


def describe(error: ReknitError) -> dict[str, str]:
    """A typed error as the JSON that reports carry."""
    found = {"code": error.code, "rule": error.rule or "", "path": error.path, "message": error.message}
    return {key: value for key, value in found.items() if value} | {"fault": error.fault}


def fail(error: ReknitError) -> NoReturn:
    """Say what is wrong and end: with the code for what may pass where it may, else with that for unusable input."""
    say(f"reknit: {error}")
    raise SystemExit(exit_of(error))


# What a place says that takes no more, or nothing at all.
_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO}


def fail_to_write(error: OSError) -> NoReturn:
    """Say which place cannot be written or read, and end; other errors of the system are raised again."""
    if error.filename is None and error.errno not in _UNWRITABLE:
        raise error
    # What is still in the buffer would fail once more at the end of the process.
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
    say(f"reknit: {error.filename or 'the output'}: {error.strerror}")
    raise SystemExit(int(Exit.UNUSABLE)) from None


def exit_of(error: ReknitError) -> int:
    """The exit code of a command that cannot do what it was asked for."""
    return int(Exit.DOWN if isinstance(error, BrokerDownError) else Exit.UNUSABLE)


# How often a command that reads for long says how far it is.
_PROGRESS_SECONDS = 2.0


class Progress:
    """Says now and then how many records of how many were looked at."""

    def __init__(self) -> None:
        self._said = time.monotonic()

    def __call__(self, done: int, every: int) -> None:
        if time.monotonic() - self._said > _PROGRESS_SECONDS:
            self._said = time.monotonic()
            say(f"reknit: {done} of {every} records looked at")
