"""The file in which the gateway remembers facts about conversations beyond the end of its process.

It has no text: keys of conversations are HMACs with a secret of the gateway, everything else are digests, numbers and
names. So a restart between two turns changes no forwarded byte, and a stolen file shows no content.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import time
from pathlib import Path
from typing import Final

from reknit.pipeline.errors import InputError
from reknit.pipeline.secret_files import secret_bytes_in

DAY: Final = 24 * 3600
KEPT_SECONDS: Final = 30 * DAY
_SECRET_BYTES: Final = 32
_LOCKED_MS: Final = 100
_SCHEMA: Final = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS memories (
    conversation BLOB PRIMARY KEY, used INTEGER NOT NULL, memory BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS used ON memories (used);
CREATE TABLE IF NOT EXISTS answered (
    conversation BLOB, count INTEGER, digest BLOB, continued INTEGER NOT NULL, used INTEGER NOT NULL,
    PRIMARY KEY (conversation, count, digest)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS answered_used ON answered (used);
"""
_TABLES: Final = ("memories", "answered")


class Store:
    """The database, without rows that were not used for 30 days.

    Attributes:
        secret: for the keys of conversations.
        database: open, in autocommit mode.
        rows: the number of rows by table, at the start.

    Args:
        directory: of the file ``serve.sqlite`` and of the secret ``serve.key``; both are only for their owner. None
            keeps everything in memory until the end of the process.

    Raises:
        InputError: ``state_dir_unusable``.
    """

    def __init__(self, directory: Path | None) -> None:
        self.rows: dict[str, int] = {}
        try:
            self.secret = secrets.token_bytes(_SECRET_BYTES) if directory is None else _secret_in(directory)
            file = ":memory:" if directory is None else _file_in(directory)
            self.database = sqlite3.connect(file, isolation_level=None)
            self.database.executescript(_SCHEMA)
            for table in _TABLES:
                self.forget_unused(table)
                (self.rows[table],) = self.database.execute(f"SELECT count(*) FROM {table}").fetchone()  # noqa: S608  a name of this module
            # Another gateway may be writing. From now on a request must not wait for it long.
            self.database.execute(f"PRAGMA busy_timeout = {_LOCKED_MS}")
        except (OSError, sqlite3.Error) as error:
            raise InputError("state_dir_unusable", f"{directory}: {error}. Set --state-dir.") from error

    def forget_unused(self, table: str) -> None:
        """Delete the rows of a table that were not used for 30 days."""
        self.database.execute(f"DELETE FROM {table} WHERE used < ?", (now() - KEPT_SECONDS,))  # noqa: S608  a name of this package

    def close(self) -> None:
        self.database.close()


def now() -> int:
    """Return the time in seconds."""
    return int(time.time())


def _file_in(directory: Path) -> Path:
    file = directory / "serve.sqlite"
    os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))
    return file


def _secret_in(directory: Path) -> bytes:
    """Return the secret of a directory; the first process makes it."""
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "serve.key"
    found = secret_bytes_in(file, lambda: secrets.token_bytes(_SECRET_BYTES))
    if len(found) < _SECRET_BYTES:
        raise OSError(f"{file.name} is no key; delete it, and earlier refusals are forgotten")
    return found
