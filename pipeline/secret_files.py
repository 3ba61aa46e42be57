"""Files with a secret that one process makes and others read."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def secret_bytes_in(file: Path, make: Callable[[], bytes]) -> bytes:
    """Return the content of a file that only its owner can read; a missing file is made.

    The file appears with its whole content, by a hard link, so a process that finds it can read it. If several
    processes make it, all return the content of the first.

    Args:
        file: the file, in a directory that exists.
        make: returns the content of a new file.

    Raises:
        OSError: the file cannot be read or made.
    """
    if not file.exists():
        own = file.with_name(f"{file.name}.{secrets.token_hex(8)}")
        try:
            with os.fdopen(os.open(own, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as writer:
                writer.write(make())
            with suppress(FileExistsError):  # of another process
                file.hardlink_to(own)
        finally:
            own.unlink(missing_ok=True)
    return file.read_bytes()
