"""Which sessions of a partition are over, expired or forgotten, and how long that is remembered.

A session expires by its policy: so many seconds without a record of its own. Time is what the records say
(LogAppendTime), so the outcome is the same in every run; it never goes back, as a log may where its leader changes.
Each record moves it, and frees the sessions whose gap it has passed. What is left of a session is a marker, the digest
of its id, for as long as the inputs are kept: until then a straggler is told from a session that begins.

Three kinds of changelog records, told apart by their key's first byte:

- ``d`` + session: when it expires, in milliseconds since the epoch, for sessions whose policy says so
- ``x`` + digest of the session: why it is over, and since when
- ``t``: the partition's time, while there is any of the others
"""

from __future__ import annotations

import hashlib
import heapq
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from pipeline.errors import ReknitError

Why: TypeAlias = Literal["expired", "forgotten"]

DEADLINE, _MARKER, _TIME = b"d", b"x", b"t"
KINDS = frozenset({DEADLINE, _MARKER, _TIME})

# Sessions that one record frees at most: where thousands expire together, the next records free the others.
_FREED_AT_ONCE = 64

_WORDS: dict[Why, str] = {
    "expired": "the session has expired; session.opened or history.restored begins it anew",
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
    """Times by key, and which of them have passed, earliest first. A key stands in the heap at most once at its time.

    Most times move on again and again before they pass; the heap hears of it only when the former one has come.
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

    def take_passed(self, now: int, most: int) -> list[bytes]:
        passed: list[bytes] = []
        while self._heap and self._heap[0][0] < now and len(passed) < most:
            time, key = heapq.heappop(self._heap)
            if self._queued.get(key) != time:
                continue  # an earlier time was set since
            del self._queued[key]
            if key not in self.times:
                continue
            if self.times[key] > time:
                self.set_time(key, self.times[key])
            else:
                del self.times[key]
                passed.append(key)
        return passed


class Endings:
    """The ends of one partition's sessions. ``kept_ms`` is how long a marker stays."""

    def __init__(self, kept_ms: int) -> None:
        self._kept_ms = kept_ms
        self._deadlines = _Timers()
        self._markers: dict[bytes, _Marker] = {}
        self._markers_end = _Timers()
        self._now = 0
        self._saved_now = 0
        self._changes: dict[bytes, bytes | None] = {}
        self._forgotten = False

    def __bool__(self) -> bool:
        """Whether there is anything that time ends."""
        return bool(self._deadlines.times or self._markers)

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

    def pass_time(self, timestamp: int) -> list[bytes]:
        """Move the time to that of the next record; the sessions that have expired by now, longest ago first."""
        if not self:
            self._now = timestamp
            return []
        self._now = max(self._now, timestamp)
        for digest in self._markers_end.take_passed(self._now, _FREED_AT_ONCE):
            del self._markers[digest]
            self._changes[_MARKER + digest] = None
        expired = self._deadlines.take_passed(self._now, _FREED_AT_ONCE)
        for key in expired:
            self._changes[DEADLINE + key] = None
            self.end(key, "expired")
        return expired

    def has_expired(self, key: bytes) -> bool:
        """Whether a session's gap has passed though nothing has freed it yet."""
        return self._now > self._deadlines.times.get(key, self._now)

    def why_over(self, key: bytes) -> Why | None:
        """Why the session is over; None where it is not, or no longer remembered."""
        marker = self._markers.get(marker_digest(key)) if self._markers else None
        return None if marker is None else marker.why

    def prolong(self, key: bytes, seconds: int) -> None:
        """A record of the session was taken: it expires so many seconds from now, or not where that is 0."""
        if not seconds:
            self.stop_clock(key)
            return
        deadline = self._now + seconds * 1000
        self._deadlines.set_time(key, deadline)
        self._changes[DEADLINE + key] = b"%d" % deadline

    def stop_clock(self, key: bytes) -> None:
        """The session expires no more."""
        if self._deadlines.times.pop(key, None) is not None:
            self._changes[DEADLINE + key] = None

    def end(self, key: bytes, why: Why) -> None:
        """The session is over."""
        self.stop_clock(key)
        marker, digest = _Marker(why, self._now), marker_digest(key)
        self._put_marker(digest, marker)
        self._changes[_MARKER + digest] = msgspec.msgpack.encode(marker)

    def begin_anew(self, key: bytes) -> bool:
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
        """Whether a session was forgotten since the last call, or is read to have been."""
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
    """What is remembered of a session's id."""
    return hashlib.sha256(key).digest()[:16]
