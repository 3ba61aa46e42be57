"""The gateway's memory of answered requests, so that the next request of a conversation begins with the same bytes.

A body is repaired by itself. The end of a history may get repairs that a later turn would undo: a result that comes
late would take the place of the one that was synthesised, though the model has answered that one. So the gateway
remembers of each answered request with such an end how many messages the client sent, their digest, and whether the
request ended with ``CONTINUE``. When the client sends these messages again with an answer after them, everything before
the answer is repaired in the same way again. Where the client has changed its history, what was remembered has no
effect.
"""

from __future__ import annotations

import hashlib
import logging
import sqlite3
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec import Raw, Struct

from reknit.pipeline.errors import error_name
from reknit.pipeline.serve import store
from reknit.pipeline.serve.store import Store
from reknit.pipeline.session.bindings import End
from reknit.pipeline.stages.content import ROOTS, ComparedValues

log = logging.getLogger("reknit.serve")

# A row with its index takes about 130 bytes.
_MOST_ROWS: Final = 500_000
# The part of the rows that is forgotten at once when there are too many.
_FORGOTTEN: Final = 100
_DIGEST: Final = 16
# Memory for the JSON of compared messages.
_MOST_COMPARED: Final = 16 * 2**20
_turns: Final = msgspec.json.Decoder(list[Raw] | str)
NOTHING_ANSWERED: Final[Mapping[int, bool]] = MappingProxyType({})


class Answered(Struct, frozen=True):
    """One answered request: the number of the client's messages, their digest, and whether ``CONTINUE`` ended it."""

    count: int
    digest: bytes
    is_continued: bool


class AnsweredMemory:
    """The answered requests of all conversations.

    Attributes:
        compared: the messages that were compared last.

    Args:
        kept: where they are.
        most_rows: of all conversations. Those that were used least recently are forgotten first.
    """

    def __init__(self, kept: Store, *, most_rows: int = _MOST_ROWS) -> None:
        self._store, self._database = kept, kept.database
        self._most_rows = most_rows
        self._rows = kept.rows["answered"]
        self.compared = ComparedValues(_MOST_COMPARED)

    @property
    def is_empty(self) -> bool:
        """True as long as nothing is remembered: then no key is needed."""
        return not self._rows

    def of(self, conversation: bytes) -> list[Answered]:
        """Return the answered requests of a conversation; none if they cannot be read."""
        try:
            rows = self._database.execute(
                "SELECT count, digest, continued, used FROM answered WHERE conversation = ?", (conversation,)
            ).fetchall()
            now = store.now()
            if any(used < now - store.DAY for *_, used in rows):
                self._database.execute("UPDATE answered SET used = ? WHERE conversation = ?", (now, conversation))
        except sqlite3.Error as error:
            log.warning("the answered requests of a conversation cannot be read: %s", error_name(error))
            return []
        return [Answered(count, bytes(digest), bool(continued)) for count, digest, continued, _ in rows]

    def keep(self, conversation: bytes, answered: Answered) -> None:
        """Remember an answered request. A failure costs the provider's cache of one request at most."""
        row = (conversation, answered.count, answered.digest, answered.is_continued, store.now())
        try:
            self._database.execute("INSERT OR REPLACE INTO answered VALUES (?, ?, ?, ?, ?)", row)
            self._rows += 1
            if self._rows > self._most_rows:
                self._forget_oldest()
        except sqlite3.Error as error:
            log.warning("an answered request is not remembered: %s", error_name(error))

    def _forget_oldest(self) -> None:
        """Forget rows that were not used for 30 days, then the oldest ones until there is room for more."""
        self._store.forget_unused("answered")
        (self._rows,) = self._database.execute("SELECT count(*) FROM answered").fetchone()
        excess = self._rows - self._most_rows
        if excess > 0:
            count = excess + self._most_rows // _FORGOTTEN
            self._database.execute(
                "DELETE FROM answered WHERE (conversation, count, digest) IN "
                "(SELECT conversation, count, digest FROM answered ORDER BY used, conversation, count LIMIT ?)",
                (count,),
            )
            self._rows -= count


class AnsweredHistory:
    """The answered requests of one request's conversation.

    Args:
        memory: of all conversations.
        key: returns the key of the conversation.
        members: of the body, as the client sent it.
    """

    def __init__(self, memory: AnsweredMemory, key: Callable[[], bytes], members: Mapping[str, Raw]) -> None:
        self._memory, self._key, self._members = memory, key, members
        self._known: Mapping[int, bool] | None = None

    def known(self) -> Mapping[int, bool]:
        """Return the numbers of messages of answered requests, each with whether ``CONTINUE`` ended it.

        Only those whose messages this request begins with count. Each call returns the same.
        """
        if self._known is None:
            self._known = self._find()
        return self._known

    def _find(self) -> Mapping[int, bool]:
        found = [] if self._memory.is_empty else self._memory.of(self._key())
        if not found:
            return NOTHING_ANSWERED
        digests = digests_of(self._members, {each.count for each in found}, self._memory.compared)
        return {each.count: each.is_continued for each in found if digests.get(each.count) == each.digest}

    def note(self, end: End) -> None:
        """Remember that this request was accepted.

        Args:
            end: of its body, by repair.
        """
        if not end:
            return
        count = len(_messages(self._members))
        digest = digests_of(self._members, {count}, self._memory.compared).get(count)
        if digest is not None:
            self._memory.keep(self._key(), Answered(count, digest, end == "continued"))


def digests_of(
    members: Mapping[str, Raw], counts: Collection[int], compared: ComparedValues | None = None
) -> dict[int, bytes]:
    """Return the digests of the first messages of a body, for each of some numbers of messages.

    Cache breakpoints do not count: clients move them from turn to turn. A text and a list of one text are the same.

    Args:
        members: of the body.
        counts: the numbers.
        compared: the messages that were compared last.
    """
    compared = compared or ComparedValues()
    found: dict[int, bytes] = {}
    running = hashlib.blake2b(digest_size=_DIGEST)
    last = max(counts, default=0)
    try:
        for at, message in enumerate(_messages(members)[:last], 1):
            running.update(compared.message(message).data)
            if at in counts:
                found[at] = running.copy().digest()
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {}
    return found


def _messages(members: Mapping[str, Raw]) -> list[Raw]:
    for name in ROOTS:
        if name in members:
            try:
                turns = _turns.decode(members[name])
            except (msgspec.MsgspecError, UnicodeError, RecursionError):
                return []
            return [members[name]] if isinstance(turns, str) else turns
    return []
