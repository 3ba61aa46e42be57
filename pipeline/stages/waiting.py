"""The records of a parked session that wait for its release, and the form in which the changelog keeps them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
from msgspec import Struct

from reknit.pipeline.stages.base import Record
from reknit.topics.headers import Headers


class _Kept(Struct, frozen=True, array_like=True):
    """A record without its key, which is the session's."""

    partition: int
    offset: int
    timestamp: int
    value: bytes | None
    headers: Headers
    base: int = 0


def packed(record: Record, value: bytes | None) -> bytes:
    """A record with this value as it is kept."""
    place = (record.partition, record.offset, record.timestamp)
    return msgspec.msgpack.encode(_Kept(*place, value, record.headers, record.base))


def unpacked(key: bytes, kept: bytes) -> Record:
    """The record again."""
    found = msgspec.msgpack.decode(kept, type=_Kept)
    return Record(
        partition=found.partition,
        offset=found.offset,
        key=key,
        value=found.value,
        headers=found.headers,
        timestamp=found.timestamp,
        base=found.base,
    )


class Waiting:
    """The waiting records of one session, packed, by their offsets, with the changes that are not in the changelog yet.

    ``is_whole`` is whether all of them are in memory, and not only those that came since the last commit.
    """

    def __init__(self) -> None:
        self._records: dict[int, bytes] = {}
        self._added: set[int] = set()
        self._removed: set[int] = set()
        self.is_whole = False

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """Offsets and records, in order."""
        return iter(sorted(self._records.items()))

    def __getitem__(self, offset: int) -> bytes:
        return self._records[offset]

    @property
    def size(self) -> int:
        """Their bytes."""
        return sum(map(len, self._records.values()))

    @property
    def first(self) -> int | None:
        """The lowest offset."""
        return min(self._records, default=None)

    @property
    def is_written(self) -> bool:
        """True if the changelog has them all, and no others."""
        return not (self._added or self._removed)

    def complete(self, written: Mapping[int, bytes]) -> None:
        """Add the records that the changelog has."""
        missing = {offset: record for offset, record in written.items() if offset not in self._removed}
        self._records = missing | self._records
        self.is_whole = True

    def add(self, offset: int, record: bytes) -> None:
        self._records[offset] = record
        if offset in self._removed:
            self._removed.discard(offset)  # the changelog still has it
        else:
            self._added.add(offset)

    def remove(self, offset: int) -> bytes:
        if offset in self._added:
            self._added.discard(offset)
        else:
            self._removed.add(offset)
        return self._records.pop(offset)

    def take_changes(self) -> dict[int, bytes | None]:
        """The changes that the changelog does not have yet, by offset; None deletes a record."""
        changes: dict[int, bytes | None] = dict.fromkeys(sorted(self._removed))
        changes |= {offset: self._records[offset] for offset in sorted(self._added)}
        self._added, self._removed = set(), set()
        return changes
