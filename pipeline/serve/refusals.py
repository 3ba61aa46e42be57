"""The gateway's memory of refusals, by conversation, so that a revoked value is refused once."""

from __future__ import annotations

import logging
import sqlite3
from typing import Final

import msgspec
from msgspec import structs

from reknit.pipeline.errors import error_name
from reknit.pipeline.healing.memory import NO_MEMORY, TargetMemory
from reknit.pipeline.serve import store
from reknit.pipeline.serve.store import Store

log = logging.getLogger("reknit.serve")

_MOST_BYTES: Final = 192 * 2**20
_decode: Final = msgspec.msgpack.Decoder(TargetMemory).decode


class RefusalMemory:
    """The memories of all conversations.

    Args:
        kept: where they are.
        most_bytes: of all memories. The conversations that were used least recently are forgotten first.
    """

    def __init__(self, kept: Store, *, most_bytes: int = _MOST_BYTES) -> None:
        self._store, self._database = kept, kept.database
        self._most_bytes = most_bytes
        self._is_empty = not kept.rows["memories"]

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
            now = store.now()
            if found[1] < now - store.DAY:
                self._database.execute("UPDATE memories SET used = ? WHERE conversation = ?", (now, conversation))
        except (sqlite3.Error, msgspec.MsgspecError) as error:
            log.warning("the memory of a conversation cannot be read: %s", error_name(error))
            return NO_MEMORY
        return memory if memory.is_whole() else NO_MEMORY

    def keep(self, conversation: bytes, memory: TargetMemory) -> None:
        """Remember a conversation. A failure costs one more refusal, and no request."""
        data = msgspec.msgpack.encode(without_sentences(memory))
        try:
            self._database.execute(
                "INSERT OR REPLACE INTO memories VALUES (?, ?, ?)", (conversation, store.now(), data)
            )
            self._is_empty = False
            self._forget_oldest()
        except sqlite3.Error as error:
            log.warning("a refusal is not remembered: %s", error_name(error))

    def _forget_oldest(self) -> None:
        """Forget memories that were not used for 30 days, then others until all fit."""
        self._store.forget_unused("memories")
        (size,) = self._database.execute("SELECT coalesce(sum(length(memory)), 0) FROM memories").fetchone()
        while size > self._most_bytes:
            oldest, length = self._database.execute(
                "SELECT conversation, length(memory) FROM memories ORDER BY used, conversation LIMIT 1"
            ).fetchone()
            self._database.execute("DELETE FROM memories WHERE conversation = ?", (oldest,))
            size -= length


def without_sentences(memory: TargetMemory) -> TargetMemory:
    """Return a memory that can be stored: the provider's sentences may quote the request."""
    noted = tuple(structs.replace(each, sentence="", request_id="") for each in memory.healings)
    return structs.replace(memory, healings=noted, count=0, retried=("", ""))
