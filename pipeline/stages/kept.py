"""The sessions of a stage: live ones as objects, all of them as records, and which sessions have ended.

The records are the committed ones of the changelog, in a store that the engine chooses. A session is read from them
when its next record arrives. After a commit, its records are written to the store, and the least recently used live
sessions that exceed the memory are dropped; their records stay. A session that a batch has touched stays live until the
commit, so a store never needs uncommitted data.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from reknit.pipeline.errors import ReknitError
from reknit.pipeline.stages.base import NO_SESSION, STATE_FORMATS, Live, Record, Store

Why: TypeAlias = Literal["expired", "forgotten"]

DEADLINE, _MARKER, _TIME = b"d", b"x", b"t"
KINDS = frozenset({DEADLINE, _MARKER, _TIME})

# Sessions that one record frees at most: where thousands expire together, the next records free the others.
_FREED_AT_ONCE = 64

_WORDS: dict[Why, str] = {
    "expired": "the session has expired; session.opened or history.restored starts it again",
    "forgotten": "the session was forgotten",
}


class EndedError(ReknitError):
    """A record came for a session that is over."""

    fault = "caller"

    def __init__(self, why: Why) -> None:
        super().__init__(why, _WORDS[why])


class _Marker(Struct, frozen=True, array_like=True):
    why: Why
    since: int


class _Timers:
    """Deadlines by key, earliest first. A key has at most one valid entry in the heap.

    Most deadlines are moved several times before they pass, so the heap is updated only when the earlier one has come.
    """

    def __init__(self) -> None:
        self.times: dict[bytes, int] = {}
        self._queued: dict[bytes, int] = {}
        self._heap: list[tuple[int, bytes]] = []

    def set_time(self, key: bytes, time: int) -> None:
        self.times[key] = time
        if time < self._queued.get(key, time + 1):
            self._queued[key] = time
            heapq.heappush(self._heap, (time, key))

    def take_passed(self, now: int, most: int, held: Collection[bytes] = ()) -> list[bytes]:
        """Take up to ``most`` keys whose time is before ``now``; those that are ``held`` keep it.

        A kept time comes again only if it is set again.
        """
        passed: list[bytes] = []
        while self._heap and self._heap[0][0] < now and len(passed) < most:
            time, key = heapq.heappop(self._heap)
            if self._queued.get(key) != time:
                continue  # an earlier time was set since
            del self._queued[key]
            if key not in self.times or key in held:
                continue
            if self.times[key] > time:
                self.set_time(key, self.times[key])
            else:
                del self.times[key]
                passed.append(key)
        return passed


class SessionLifetimes:
    """The ended sessions of a partition: expired or forgotten. ``kept_ms`` is how long an ended session is remembered.

    A session expires by its policy: N seconds without a record of its own. The time is that of the records
    (LogAppendTime), so the outcome is the same in every run. It never moves backwards, as a log's time can where its
    leader changes. Each record advances the time and frees the sessions whose deadline has passed. An ended session
    leaves a marker, the digest of its id, for as long as the inputs are kept: until then a late record is distinguished
    from the start of a session.

    Three kinds of changelog records, distinguished by their key's first byte:

    - ``d`` + session: its deadline, in milliseconds since the epoch, for sessions whose policy sets one
    - ``x`` + digest of the session: why it has ended, and when
    - ``t``: the partition's time, while there is a record of another kind
    """

    def __init__(self, kept_ms: int) -> None:
        self._kept_ms = kept_ms
        self._deadlines = _Timers()
        self._markers: dict[bytes, _Marker] = {}
        self._markers_end = _Timers()
        self._now = 0
        self._saved_now = 0
        self._changes: dict[bytes, bytes | None] = {}
        self._forgotten = False
        # Sessions with records whose turn is still to come do not expire meanwhile. When their last record was taken,
        # the caller ends those that have expired by then (``has_expired``).
        self.held: Collection[bytes] = ()

    def __bool__(self) -> bool:
        """Return True if there is anything that time ends."""
        return bool(self._deadlines.times or self._markers or self.held)

    def restore(self, key: bytes, value: bytes | None) -> None:
        """Take one changelog record of these kinds, oldest first."""
        kind, rest = key[:1], key[1:]
        if kind == _TIME:
            self._now = self._saved_now = int(value or 0)
        elif value is None:
            (self._deadlines.times if kind == DEADLINE else self._markers_end.times).pop(rest, None)
            self._markers.pop(rest, None)
        elif kind == DEADLINE:
            self._deadlines.set_time(rest, int(value))
        else:
            self._put_marker(rest, msgspec.msgpack.decode(value, type=_Marker))

    @property
    def now(self) -> int:
        """The partition's time, in milliseconds since the epoch."""
        return self._now

    def pass_time(self, timestamp: int) -> list[bytes]:
        """Move the time to that of the next record; the sessions that have expired by now, longest ago first."""
        if not self:
            self._now = timestamp
            return []
        self._now = max(self._now, timestamp)
        for digest in self._markers_end.take_passed(self._now, _FREED_AT_ONCE):
            del self._markers[digest]
            self._changes[_MARKER + digest] = None
        expired = self._deadlines.take_passed(self._now, _FREED_AT_ONCE, self.held)
        for key in expired:
            self._changes[DEADLINE + key] = None
            self.end(key, "expired", self._now)
        return expired

    def has_expired(self, key: bytes, at: int) -> bool:
        """Return True if a session's gap has passed at a time though nothing has freed it yet."""
        return at > self._deadlines.times.get(key, at)

    def why_over(self, key: bytes) -> Why | None:
        """Why the session is over; None where it is not, or no longer remembered."""
        marker = self._markers.get(marker_digest(key)) if self._markers else None
        return None if marker is None else marker.why

    def prolong(self, key: bytes, seconds: int, at: int) -> None:
        """A record of the session was taken at a time: it expires ``seconds`` later, or not at all if that is 0."""
        if not seconds:
            self.stop_clock(key)
            return
        deadline = at + seconds * 1000
        self._deadlines.set_time(key, deadline)
        self._changes[DEADLINE + key] = b"%d" % deadline

    def stop_clock(self, key: bytes) -> None:
        """The session expires no more."""
        if self._deadlines.times.pop(key, None) is not None:
            self._changes[DEADLINE + key] = None

    def end(self, key: bytes, why: Why, at: int) -> None:
        """The session is over since a time."""
        self.stop_clock(key)
        marker, digest = _Marker(why, at), marker_digest(key)
        self._put_marker(digest, marker)
        self._changes[_MARKER + digest] = msgspec.msgpack.encode(marker)

    def begin_again(self, key: bytes) -> bool:
        """The session is not over any more; whether it was."""
        if self.why_over(key) is None:
            return False
        digest = marker_digest(key)
        del self._markers[digest], self._markers_end.times[digest]
        self._changes[_MARKER + digest] = None
        return True

    @property
    def forgotten(self) -> list[bytes]:
        """The digests of the sessions that were forgotten, as far as that is remembered."""
        return [digest for digest, marker in self._markers.items() if marker.why == "forgotten"]

    def has_forgotten(self) -> bool:
        """Return True if a session was forgotten since the last call, or is read to have been."""
        forgotten, self._forgotten = self._forgotten, False
        return forgotten

    def changes(self) -> dict[bytes, bytes | None]:
        """The changelog records since the last call, always in the same order."""
        now = self._now if self else 0
        if now != self._saved_now:
            self._changes[_TIME] = b"%d" % now if now else None
            self._saved_now = now
        changes, self._changes = self._changes, {}
        return dict(sorted(changes.items()))

    def _put_marker(self, digest: bytes, marker: _Marker) -> None:
        self._markers[digest] = marker
        self._forgotten = self._forgotten or marker.why == "forgotten"
        self._markers_end.set_time(digest, marker.since + self._kept_ms)


def marker_digest(key: bytes) -> bytes:
    """Return the digest of a session's id by which an ended session is remembered."""
    return hashlib.sha256(key).digest()[:16]


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


class StateOwner(Protocol):
    """State of a partition that is not part of a session."""

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

    def __init__(self, endings: SessionLifetimes | None) -> None:
        self.format = STATE_FORMATS[-1]
        # The owners of state that is not part of a session, by the kind of record.
        self._endings = SessionLifetimes(0) if endings is None else endings
        self._owners: dict[bytes, StateOwner] = dict.fromkeys(KINDS, self._endings)
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

    def _outlives(self, session: bytes, key: bytes) -> bool:
        """Return True if a record of a session stays when the session is over."""
        del session, key
        return False

    def _changes_of_owners(self, session: bytes) -> dict[bytes, bytes | None]:
        """The records that have changed of what is kept of a session whether or not there is one."""
        del session
        return {}

    def _note_key(self, key: bytes, *, exists: bool) -> None:
        """A record of the kinds ``known_keys`` is there now, or is not."""
        raise NotImplementedError

    def keep_in(self, store: Store) -> None:
        """Use this store, which may hold records already."""
        self._store = store
        for key, value in store.read(NO_SESSION).items():
            if key[:1] in self._owners:
                self._owners[key[:1]].restore(key, value)
            else:
                self._note_key(key, exists=True)
        self._endings.has_forgotten()  # of those the store has nothing left

    def restore(self, key: bytes, value: bytes | None) -> None:
        """Take one changelog record, oldest first; a session is decoded when its next record arrives."""
        if key[:1] in self._owners:
            self._owners[key[:1]].restore(key, value)
        elif key[:1] in self.known_keys:
            self._note_key(key, exists=value is not None)
        self._put(key, value)

    def _put(self, key: bytes, value: bytes | None) -> None:
        if key[:1] in self._owners:
            self._store.put(NO_SESSION, key, value)
            return
        self._store.put(self.session_of(key), key, value)
        if key[:1] in self.known_keys:
            self._store.put(NO_SESSION, key, None if value is None else b"")

    def find(self, session: bytes) -> E | None:
        """Return the session if it has begun and was not closed since.

        Raises:
            InternalError: its records cannot be read; they stay unchanged.
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
        removed = {key for key in stored | self._unstored.get(session, set()) if not self._outlives(session, key)}
        for key in removed:
            if key[:1] in self.known_keys:
                self._note_key(key, exists=False)
        self._closed.setdefault(session, set()).update(removed)
        self._gone.add(session)

    def changes(self, touched: Iterable[bytes]) -> dict[bytes, bytes | None]:
        """The changelog records of the sessions that a batch touched, deletions first, in the order of ``touched``."""
        changes: dict[bytes, bytes | None] = {}
        for session, removed in self._closed.items():
            changes |= dict.fromkeys(sorted(removed), None)
            self._unstored.setdefault(session, set()).update(removed)
        self._closed.clear()
        for session in touched:
            written: dict[bytes, bytes | None] = {}
            entry = self._live.pop(session, None)
            if entry is not None:  # else it was closed
                self._live[session] = entry
                before = entry.memory_bytes
                written = self._written(session, entry)
                self._live_bytes += entry.memory_bytes - before
            written |= self._changes_of_owners(session)
            if written:
                self._unstored.setdefault(session, set()).update(written)
                changes |= written
        self._note_keys(changes)
        return changes

    def _note_keys(self, changes: Mapping[bytes, bytes | None]) -> None:
        for key, value in changes.items() if self.known_keys else ():
            if key[:1] in self.known_keys:
                self._note_key(key, exists=value is not None)

    def committed(self, changes: Mapping[bytes, bytes | None], room: int) -> Live:
        """Write committed records to the store, and keep live sessions in at most this many bytes of memory."""
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

    def levels(self) -> dict[str, int]:
        return {}

    def due_record(self) -> Record | None:
        return None

    def drop_due(self, record: Record) -> dict[bytes, bytes | None]:
        del record
        return {}

    def released_at(self) -> int | None:
        return None

    def scales(self, key: bytes) -> bool:
        del key
        return False

    def has_room(self) -> bool:
        return True
