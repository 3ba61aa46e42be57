"""A session's head in the changelog: whole, or as changes of the head before."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

import msgspec
from msgspec import Struct

from reknit.pipeline.errors import InternalError

CHANGE = b"c"

# The first format of state that has changes.
CHANGED_HEADS = 2

# More changes than this make reading slow: each is one more copy of the head.
_MOST_CHANGES = 4096
# The approximate overhead of one more record: its key and the lengths of its parts.
_RECORD_BYTES = 40
# Where two heads diverge, this many bytes of the old one are searched in the new one.
_PROBE_BYTES = 16
# The maximum number of searches through the new head. If two large heads diverge everywhere, writing the rest costs
# less than searching for equal parts.
_MOST_SEARCHES = 16
# In small ones that is no time at all, and each place that is found makes the change smaller.
_LEAST_SEARCHED_BYTES = 1 << 24


class _Change(Struct, frozen=True, array_like=True):
    """``parts`` repeat: the start of a piece in the previous head, its length, and the bytes after it."""

    of: bytes
    parts: list[int | bytes]


_encode_change = msgspec.msgpack.Encoder().encode
_decode_change = msgspec.msgpack.Decoder(_Change).decode


class WrittenHead:
    """A session's head as stored in the changelog, from which the next one is written: whole, or as its changes.

    A head is written with every batch that touches its session. A head of less than ``small_bytes`` is written whole,
    because finding its changes costs more than writing it. A large one (many open calls, a long answer that still
    streams) is written whole once, then as changes, each relative to the previous head, until the changes together are
    as large as the head was. The written bytes are thus a small multiple of the new ones, however large a head becomes.
    A head is one record under its own key, and its changes are records under ``c`` + number + session, numbered from 0,
    which the next whole head deletes. A change names the digest of the head that it belongs to: where writing is not
    atomic, changes of an earlier head may remain.
    """

    __slots__ = ("_changes", "_changes_bytes", "_digest", "_last", "_small_bytes", "_whole_bytes")

    def __init__(self, small_bytes: int) -> None:
        self._small_bytes = small_bytes
        self._digest = self._last = b""
        self._whole_bytes = self._changes = self._changes_bytes = 0

    @classmethod
    def read(cls, whole: bytes, changes: Mapping[int, bytes], small_bytes: int) -> tuple[WrittenHead, bytes]:
        """Read the last written head from its records.

        Raises:
            InternalError: a change does not fit the head that it names.
        """
        written, head = cls(small_bytes), whole
        if len(whole) >= small_bytes:
            written._note_whole(whole)
            for change, size in _changes_of(written._digest, changes):
                head = _changed(head, change.parts)
                written._note_change(head, size)
        written._changes = len(changes)  # those of an earlier head are deleted too
        return written, head

    def write(self, key: bytes, session: bytes, head: bytes, state_format: int) -> dict[bytes, bytes | None]:
        """The records that make this the session's head; ``key`` is that of a whole one."""
        if self._last and state_format >= CHANGED_HEADS and self._changes < _MOST_CHANGES:
            parts = _difference(self._last, head)
            change = _encode_change(_Change(self._digest, parts))
            if self._changes_bytes + len(change) < self._whole_bytes:
                changed = change_key(self._changes, session)
                self._note_change(head, len(change))
                return {changed: change}
        removed = dict.fromkeys(change_key(number, session) for number in range(self._changes))
        self._changes = 0
        if len(head) >= self._small_bytes and state_format >= CHANGED_HEADS:
            self._note_whole(head)
        else:
            self._last = b""
        return {**removed, key: head}

    def _note_whole(self, head: bytes) -> None:
        self._last, self._digest = head, hashlib.sha256(head).digest()[:8]
        self._whole_bytes, self._changes, self._changes_bytes = len(head), 0, 0

    def _note_change(self, head: bytes, size: int) -> None:
        self._last = head
        self._changes += 1
        self._changes_bytes += size + _RECORD_BYTES


def change_key(number: int, session: bytes) -> bytes:
    return CHANGE + number.to_bytes(4, "big") + session


def _changes_of(digest: bytes, changes: Mapping[int, bytes]) -> Iterator[tuple[_Change, int]]:
    """Return the changes of one whole head with their sizes, in order; changes of an earlier one may follow them."""
    for number in range(len(changes)):
        change = _decode_change(changes[number]) if number in changes else None
        if change is None or change.of != digest:
            return
        yield change, len(changes[number])


def _changed(head: bytes, parts: list[int | bytes]) -> bytes:
    pieces = []
    for start, length, added in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        if not (isinstance(start, int) and isinstance(length, int) and isinstance(added, bytes)):
            raise InternalError("state_unreadable", "a change of a session's head is none")
        pieces += [head[start : start + length], added]
    return b"".join(pieces)


def _difference(old: bytes, new: bytes) -> list[int | bytes]:
    """Return the parts that make ``new`` from ``old``: pieces of the old one and the bytes after each.

    Where they diverge, the search continues at the next place of the old one, at growing distance, that the new one has
    too.
    """
    parts: list[int | bytes] = []
    at_old = at_new = 0
    left = max(_MOST_SEARCHES * len(new), _LEAST_SEARCHED_BYTES)
    while True:
        same = _common(old, at_old, new, at_new)
        start, end_new = at_old, at_new + same
        at_old, at_new = at_old + same, end_new
        skip, found = 1, -1
        while found < 0 < left and at_new < len(new) and at_old + skip + _PROBE_BYTES <= len(old):
            found = new.find(old[at_old + skip : at_old + skip + _PROBE_BYTES], at_new)
            left -= (len(new) if found < 0 else found) - at_new
            at_found, skip = at_old + skip, skip * 2
        if found < 0:
            return [*parts, start, same, new[at_new:]]
        while at_found > at_old and found > at_new and old[at_found - 1] == new[found - 1]:
            at_found, found = at_found - 1, found - 1
        parts += (start, same, new[end_new:found])
        at_old, at_new = at_found, found


def _common(old: bytes, at_old: int, new: bytes, at_new: int) -> int:
    """Return the number of equal bytes from these places on: in growing steps, then by halves."""
    same, step = 0, 64
    while True:
        one, other = old[at_old + same : at_old + same + step], new[at_new + same : at_new + same + step]
        if one != other:
            break
        same += len(one)
        if len(one) < step:
            return same
        step *= 4
    while min(len(one), len(other)) > 256:  # where a comparison of numbers finds the place faster
        half = min(len(one), len(other)) // 2
        if one[:half] == other[:half]:
            same, one, other = same + half, one[half:], other[half:]
        else:
            one, other = one[:half], other[:half]
    most = min(len(one), len(other))
    differing = int.from_bytes(one[:most], "little") ^ int.from_bytes(other[:most], "little")
    return same + (((differing & -differing).bit_length() - 1) // 8 if differing else most)
