"""What a stage keeps of its sessions: those at work as objects (live), and of all of them the changelog's records.

The records are those that are committed; they lie in a store, which the engine chooses. A session is read from them
when it is next heard of. Once a batch is committed, its records go to the store, and the live sessions that nobody
spoke of for the longest time become records only, as many as there is no room for. A session that a batch has touched
stays live until then, so a store never has to know what is not committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from pipeline.stages.base import NO_SESSION, STATE_FORMATS, Live, Store
from pipeline.stages.endings import KINDS, Endings


class Records:
    """A store that keeps records as they are."""

    def __init__(self) -> None:
        self._records: dict[bytes, dict[bytes, bytes]] = {}

    def put(self, session: bytes, key: bytes, value: bytes | None) -> None:
        if value is not None:
            self._records.setdefault(session, {})[key] = value
        elif session in self._records:
            self._records[session].pop(key, None)
            if not self._records[session]:
                del self._records[session]

    def read(self, session: bytes) -> dict[bytes, bytes]:
        return self._records.get(session, {})


class KeptBeside(Protocol):
    """What is kept of a partition beside its sessions."""

    def restore(self, key: bytes, value: bytes | None) -> None: ...


class LiveSession(Protocol):
    """A live session. ``memory_bytes`` is about how much memory it takes, as measured by the bytes of its records."""

    memory_bytes: int


E = TypeVar("E", bound=LiveSession)


class Kept(Generic[E]):
    """The sessions of one partition. Subclasses say whose a record is, and how a session is read and written.

    ``head_kind`` + session is the key of a session's head: without it there is no session. ``known_keys`` are the kinds
    of records whose keys are known whether or not their session is live.
    """

    head_kind: bytes
    known_keys: frozenset[bytes] = frozenset()

    def __init__(self, endings: Endings | None) -> None:
        self.format = STATE_FORMATS[-1]
        # Who keeps what is no session's own, by the kind of record.
        self._endings = Endings(0) if endings is None else endings
        self._beside: dict[bytes, KeptBeside] = dict.fromkeys(KINDS, self._endings)
        self._store: Store = Records()
        self._live: dict[bytes, E] = {}  # the one touched last is the last
        self._live_bytes = 0
        # Since the last commit: which keys each session has written, and sessions whose records count no more.
        self._unstored: dict[bytes, set[bytes]] = {}
        self._gone: set[bytes] = set()
        self._closed: dict[bytes, set[bytes]] = {}

    @staticmethod
    def session_of(key: bytes) -> bytes:
        """The session whose record has this key in the changelog."""
        raise NotImplementedError

    def _read(self, session: bytes, records: Mapping[bytes, bytes]) -> E:
        raise NotImplementedError

    def _written(self, session: bytes, entry: E) -> dict[bytes, bytes | None]:
        """The records that have changed since the last time."""
        raise NotImplementedError

    def _note_key(self, key: bytes, *, stands: bool) -> None:
        """A record of the kinds ``known_keys`` is there now, or is not."""
        raise NotImplementedError

    def keep_in(self, store: Store) -> None:
        """Use this store, which may hold records already."""
        self._store = store
        for key, value in store.read(NO_SESSION).items():
            if key[:1] in self._beside:
                self._beside[key[:1]].restore(key, value)
            else:
                self._note_key(key, stands=True)
        self._endings.has_forgotten()  # of those the store has nothing left

    def restore(self, key: bytes, value: bytes | None) -> None:
        """Take one changelog record, oldest first; a session is decoded when it is next heard of."""
        if key[:1] in self._beside:
            self._beside[key[:1]].restore(key, value)
        elif key[:1] in self.known_keys:
            self._note_key(key, stands=value is not None)
        self._put(key, value)

    def _put(self, key: bytes, value: bytes | None) -> None:
        if key[:1] in self._beside:
            self._store.put(NO_SESSION, key, value)
            return
        self._store.put(self.session_of(key), key, value)
        if key[:1] in self.known_keys:
            self._store.put(NO_SESSION, key, None if value is None else b"")

    def find(self, session: bytes) -> E | None:
        """The session, if it was heard of before and not closed since.

        Raises:
            InternalError: its records cannot be read; it stays as it is.
        """
        entry = self._live.get(session)
        if entry is not None or session in self._gone:
            return entry
        records = self._store.read(session)
        if self.head_kind + session not in records:
            return None  # not known, or closed where writing is not all or nothing
        entry = self._begin(session, self._read(session, records))
        self._live_bytes += entry.memory_bytes
        return entry

    def _begin(self, session: bytes, entry: E) -> E:
        self._live[session] = entry
        return entry

    def forget_session(self, session: bytes) -> None:
        """Forget a session, one that cannot be read too; its changelog records are deleted with the batch."""
        entry = self._live.pop(session, None)
        self._live_bytes -= 0 if entry is None else entry.memory_bytes
        stored = set() if session in self._gone else self._store.read(session).keys()
        gone = stored | self._unstored.get(session, set())
        for key in gone:
            if key[:1] in self.known_keys:
                self._note_key(key, stands=False)
        self._closed.setdefault(session, set()).update(gone)
        self._gone.add(session)

    def changes(self, touched: Iterable[bytes]) -> dict[bytes, bytes | None]:
        """The changelog records of the sessions that a batch touched, deletions first, in the order of ``touched``."""
        changes: dict[bytes, bytes | None] = {}
        for session, gone in self._closed.items():
            changes |= dict.fromkeys(sorted(gone), None)
            self._unstored.setdefault(session, set()).update(gone)
        self._closed.clear()
        for session in touched:
            entry = self._live.pop(session, None)
            if entry is None:
                continue  # closed
            self._live[session] = entry
            before = entry.memory_bytes
            written = self._written(session, entry)
            self._live_bytes += entry.memory_bytes - before
            self._unstored.setdefault(session, set()).update(written)
            changes |= written
        if self.known_keys:
            for key, value in changes.items():
                if key[:1] in self.known_keys:
                    self._note_key(key, stands=value is not None)
        return changes

    def committed(self, changes: Mapping[bytes, bytes | None], room: int) -> Live:
        """Put what was committed into the store, and keep live sessions in so many bytes of memory at most."""
        for key, value in changes.items():
            self._put(key, value)
        self._unstored.clear()
        self._gone.clear()
        evicted = 0
        while self._live and self._live_bytes > room:
            entry = self._live.pop(next(iter(self._live)))
            self._live_bytes -= entry.memory_bytes
            evicted += 1
        return Live(len(self._live), self._live_bytes, evicted, erase=self._endings.has_forgotten())


class KeepsSessions:
    """The part of a stage that the engine knows state by."""

    _states: Kept[Any]

    def keep_in(self, store: Store) -> None:
        self._states.keep_in(store)

    def use_format(self, state_format: int) -> None:
        self._states.format = state_format

    def restore(self, key: bytes, value: bytes | None) -> None:
        self._states.restore(key, value)

    def committed(self, changes: Mapping[bytes, bytes | None], room: int) -> Live:
        return self._states.committed(changes, room)
