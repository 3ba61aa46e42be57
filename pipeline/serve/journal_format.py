"""The format of the gateway's journal: frames with a length, a checksum and one entry each.

An entry is a record for an input topic, or the numbers of records that the brokers have. A frame that a killed process
did not finish has a wrong length or checksum; it and everything after it is ignored.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct, structs

from reknit.topics.headers import Headers

_HEAD: Final = struct.Struct(">II")


class InputRecord(Struct, frozen=True, array_like=True, tag="r"):
    """A record for an input topic.

    Attributes:
        topic: the topic's name in the contract, without prefix.
        session: its key.
        value: of the record.
        headers: of the record.
        run: the run that it belongs to, or the request of a record of turns. An end of a run of turns has no value, and
            is not sent.
        seq: its number in the run.
        ends_run: it is the last record of its run.
    """

    topic: str
    session: str
    value: bytes | None
    headers: Headers = ()
    run: str = ""
    seq: int = 0
    ends_run: bool = False


class Stored(Struct, frozen=True, array_like=True, tag="n"):
    """A record and its number. Numbers rise by one in the whole journal."""

    number: int
    record: InputRecord


class Delivered(Struct, frozen=True, array_like=True, tag="d"):
    """The brokers have these records: ranges of numbers, both ends included."""

    ranges: tuple[tuple[int, int], ...]


class Open(Struct, frozen=True, array_like=True, tag="o"):
    """The last records, without values, of the runs that had not ended when the segment began."""

    records: tuple[InputRecord, ...]


Entry: TypeAlias = Stored | Delivered | Open
_decode: Final = msgspec.msgpack.Decoder(Entry).decode
_encode: Final = msgspec.msgpack.Encoder().encode


class Frame(Struct, frozen=True):
    """An entry, and the place of its frame in the data."""

    entry: Entry
    start: int
    end: int


def encode_frame(entry: Entry) -> bytes:
    """Return the frame of an entry."""
    payload = _encode(entry)
    return _HEAD.pack(len(payload), zlib.crc32(payload)) + payload


def frames(data: bytes, start: int = 0) -> Iterator[Frame]:
    """Yield the frames from ``start`` on, up to the first that is incomplete or damaged."""
    while start + _HEAD.size <= len(data):
        length, checksum = _HEAD.unpack_from(data, start)
        end = start + _HEAD.size + length
        payload = data[start + _HEAD.size : end]
        if len(payload) < length or zlib.crc32(payload) != checksum:
            return
        try:
            entry = _decode(payload)
        except msgspec.MsgspecError:  # of a later version
            return
        yield Frame(entry, start, end)
        start = end


def ranges_of(numbers: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return numbers as ranges."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return tuple(ranges)


class OpenRuns:
    """The runs that have not ended, by their last records without values."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str, str], InputRecord] = {}

    def note(self, record: InputRecord) -> None:
        """Note the next record."""
        key = record.topic, record.session, record.run
        if record.ends_run:
            self._last.pop(key, None)
        elif record.run:
            self._last[key] = structs.replace(record, value=None)

    @property
    def records(self) -> tuple[InputRecord, ...]:
        """The last record of each run, in the order in which the runs began."""
        return tuple(self._last.values())
