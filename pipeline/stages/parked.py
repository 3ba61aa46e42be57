"""A parked session: the record that could not be processed, and those behind it, which wait in the session's state.

A record that waits keeps its place in the log, so that what it leads to once the session is released is what it would
have led to when it came.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import Struct

from pipeline.errors import ReknitError
from pipeline.stages.base import Record


class ParkedFullError(ReknitError):
    """The session is parked, and no more of its records may wait."""

    fault = "caller"


class _Waiting(Struct, frozen=True, array_like=True):
    """A record without its key, which is the session's."""

    partition: int
    offset: int
    timestamp: int
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


class Parked(Struct, array_like=True):
    """What a session is parked for.

    ``failed`` is the record that could not be processed, as ``packed`` has it and without its value, which is in the
    dead letters. ``size`` is the bytes of what waits. ``overflowed``: some of what came went into the dead letters,
    since no more may wait.
    """

    failed: bytes
    size: int = 0
    overflowed: bool = False


def packed(record: Record, value: bytes | None) -> bytes:
    """A record with this value as it is kept."""
    return msgspec.msgpack.encode(_Waiting(record.partition, record.offset, record.timestamp, value, record.headers))


def unpacked(key: bytes, kept: bytes) -> Record:
    """The record again."""
    found = msgspec.msgpack.decode(kept, type=_Waiting)
    return Record(
        partition=found.partition,
        offset=found.offset,
        key=key,
        value=found.value,
        headers=found.headers,
        timestamp=found.timestamp,
    )


def in_order(key: bytes, waiting: dict[int, bytes]) -> Iterator[Record]:
    """The records that wait, by their offsets."""
    return (unpacked(key, waiting[offset]) for offset in sorted(waiting))
