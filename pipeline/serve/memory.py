"""The gateway's memory of refusals, by conversation, so that a revoked value is refused once.

It holds digests and names of parameters, no text. A restart between two turns therefore changes no forwarded byte.
"""

from __future__ import annotations

import logging
import os
import secrets
import sqlite3
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec import structs

from reknit.pipeline.errors import InputError, error_name
from reknit.pipeline.healing.memory import NO_MEMORY, TargetMemory

log = logging.getLogger("reknit.serve")

_SECRET_BYTES: Final = 32
_DAY: Final = 24 * 3600
_KEPT_SECONDS: Final = 30 * _DAY
_MOST_BYTES: Final = 256 * 2**20
_LOCKED_MS: Final = 100
_SCHEMA: Final = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS memories (
    conversation BLOB PRIMARY KEY, used INTEGER NOT NULL, memory BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS used ON memories (used);
"""
_decode: Final = msgspec.msgpack.Decoder(TargetMemory).decode


class RefusalMemory:
    """The memories of all conversations.

    Attributes:
        secret: for the keys of conversations.

    Args:
        directory: of the file ``serve.sqlite`` and of the secret ``serve.key``; both are only for their owner. None
            keeps everything in memory until the end of the process.
        most_bytes: of all memories. The conversations that were used least recently are forgotten first.

    Raises:
        InputError: ``state_dir_unusable``.
    """

    def __init__(self, directory: Path | None, *, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        try:
            self.secret = secrets.token_bytes(_SECRET_BYTES) if directory is None else _secret_in(directory)
            file = ":memory:" if directory is None else _file_in(directory)
            self._database = sqlite3.connect(file, isolation_level=None)
            self._database.executescript(_SCHEMA)
            self._database.execute("DELETE FROM memories WHERE used < ?", (_now() - _KEPT_SECONDS,))
            self._is_empty: bool = not self._database.execute("SELECT EXISTS (SELECT 1 FROM memories)").fetchone()[0]
            # Another gateway may be writing. From now on a request must not wait for it long.
            self._database.execute(f"PRAGMA busy_timeout = {_LOCKED_MS}")
        except (OSError, sqlite3.Error) as error:
            raise InputError("state_dir_unusable", f"{directory}: {error}. Set --state-dir.") from error

    @property
    def is_empty(self) -> bool:
        """True as long as no request was healed: then no key is needed."""
        return self._is_empty

    def of(self, conversation: bytes) -> TargetMemory:
        """Return the memory of a conversation; empty if it cannot be read."""
        try:
            found = self._database.execute(
                "SELECT memory, used FROM memories WHERE conversation = ?", (conversation,)
            ).fetchone()
            if found is None:
                return NO_MEMORY
            memory = _decode(found[0])
            if found[1] < _now() - _DAY:
                self._database.execute("UPDATE memories SET used = ? WHERE conversation = ?", (_now(), conversation))
        except (sqlite3.Error, msgspec.MsgspecError) as error:
            log.warning("the memory of a conversation cannot be read: %s", error_name(error))
            return NO_MEMORY
        return memory if memory.is_whole() else NO_MEMORY

    def keep(self, conversation: bytes, memory: TargetMemory) -> None:
        """Remember a conversation. A failure costs one more refusal, and no request."""
        # The provider's sentences may quote the request.
        noted = tuple(structs.replace(each, sentence="", request_id="") for each in memory.healings)
        data = msgspec.msgpack.encode(structs.replace(memory, healings=noted, count=0, retried=("", "")))
        try:
            self._database.execute("INSERT OR REPLACE INTO memories VALUES (?, ?, ?)", (conversation, _now(), data))
            self._is_empty = False
            self._forget_oldest()
        except sqlite3.Error as error:
            log.warning("a refusal is not remembered: %s", error_name(error))

    def close(self) -> None:
        self._database.close()

    def _forget_oldest(self) -> None:
        """Forget memories that were not used for 30 days, then others until all fit."""
        self._database.execute("DELETE FROM memories WHERE used < ?", (_now() - _KEPT_SECONDS,))
        (size,) = self._database.execute("SELECT coalesce(sum(length(memory)), 0) FROM memories").fetchone()
        while size > self._most_bytes:
            oldest, length = self._database.execute(
                "SELECT conversation, length(memory) FROM memories ORDER BY used, conversation LIMIT 1"
            ).fetchone()
            self._database.execute("DELETE FROM memories WHERE conversation = ?", (oldest,))
            size -= length


def _now() -> int:
    return int(time.time())


def _file_in(directory: Path) -> Path:
    file = directory / "serve.sqlite"
    os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))
    return file


def _secret_in(directory: Path) -> bytes:
    """Return the secret of a directory; the first process makes it."""
    directory.mkdir(parents=True, exist_ok=True)
    file, own = directory / "serve.key", directory / f"serve.key.{secrets.token_hex(8)}"
    try:
        with os.fdopen(os.open(own, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as writer:
            writer.write(secrets.token_bytes(_SECRET_BYTES))
        with suppress(FileExistsError):  # of another process, or of an earlier one
            file.hardlink_to(own)
    finally:
        own.unlink(missing_ok=True)
    found = file.read_bytes()
    if len(found) < _SECRET_BYTES:
        raise OSError(f"{file.name} is no key; delete it, and earlier refusals are forgotten")
    return found
