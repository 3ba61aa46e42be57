"""Releases of parked sessions that are under way.

A release of many records is done in slices: each is a transaction of its own, and what remains waits in state. So the
position is past the record that released the session, and what is still to be done is known from three facts:

- which sessions are being released, and by which record (``Release``, one small changelog record for each session)
- which records wait (``Waiting``, one changelog record for each, written when it came and deleted when it is taken)
- a session's waiting records are taken in the order of their offsets, one at a time

A slice deletes the records that it took, and writes what they changed, in the transaction that has its outputs. After a
kill at any point, either that transaction is in the changelog, and the next record in order is the first that it did
not take; or it is not, its outputs are not visible either, and the same records are taken again.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import Struct

# Of a changelog record that says that a session is being released, the first byte of its key.
RELEASE = b"r"
# The first format of state in which a release may be under way; below it a release is one step.
SLICED_RELEASES = 3


class Release(Struct, array_like=True):
    """A release that is under way.

    ``offset`` is that of the record that released the session. The records that waited before it are taken first, at
    the ``time`` of the release (milliseconds since the epoch), as if all of them had been taken at once. Those that
    came since are taken after that, each at the time when it came; ``count`` and ``size`` (bytes) are theirs.
    ``overflowed``: some records of the session are in the dead letters, since no more could wait.
    """

    offset: int
    time: int
    overflowed: bool = False
    count: int = 0
    size: int = 0


class Releases:
    """The releases of a partition that are under way: one changelog record for each, ``r`` + session."""

    def __init__(self) -> None:
        self._releases: dict[bytes, Release] = {}
        self._written: set[bytes] = set()
        self._changed: set[bytes] = set()
        self._first: bytes | None = None

    def __contains__(self, session: object) -> bool:
        return session in self._releases

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._releases)

    def __getitem__(self, session: bytes) -> Release:
        return self._releases[session]

    def __len__(self) -> int:
        return len(self._releases)

    @property
    def first(self) -> bytes | None:
        """The session that was released first. One release is finished before the next one is begun."""
        if self._first is None and self._releases:
            self._first = min(self._releases, key=lambda session: self._releases[session].offset)
        return self._first

    @property
    def count(self) -> int:
        """The number of records received for sessions during their release."""
        return sum(release.count for release in self._releases.values())

    @property
    def size(self) -> int:
        """The size of these records in bytes."""
        return sum(release.size for release in self._releases.values())

    def restore(self, key: bytes, value: bytes | None) -> None:
        """Take one changelog record of this kind, oldest first."""
        session, self._first = key[1:], None
        if value is None:
            self._releases.pop(session, None)
            self._written.discard(session)
        else:
            self._releases[session] = msgspec.msgpack.decode(value, type=Release)
            self._written.add(session)

    def begin(self, session: bytes, release: Release) -> None:
        self._releases[session], self._first = release, None
        self._changed.add(session)

    def end(self, session: bytes) -> None:
        if self._releases.pop(session, None) is not None:
            self._first = None
            self._changed.add(session)

    def note_added(self, session: bytes, size: int) -> None:
        """A record of ``size`` bytes came for a session that is being released."""
        self._change_size(session, 1, size)

    def note_taken(self, session: bytes, size: int) -> None:
        """The turn of such a record has come."""
        self._change_size(session, -1, -size)

    def _change_size(self, session: bytes, count: int, size: int) -> None:
        release = self._releases[session]
        release.count += count
        release.size += size
        self._changed.add(session)

    def changes(self) -> dict[bytes, bytes | None]:
        """The changelog records since the last call, always in the same order."""
        changes: dict[bytes, bytes | None] = {}
        for session in sorted(self._changed):
            release = self._releases.get(session)
            if release is not None:
                changes[RELEASE + session] = msgspec.msgpack.encode(release)
                self._written.add(session)
            elif session in self._written:
                changes[RELEASE + session] = None
                self._written.discard(session)
        self._changed.clear()
        return changes
