"""The gateway's journal: records for the input topics on disk, until the brokers have them.

It consists of segments, which are deleted oldest first once the brokers have all of their records. One thread uses it
at a time; only ``size`` is read by others. It is not synchronised to the disk: it survives the end of the process, not
that of the machine.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from reknit.pipeline.errors import InputError
from reknit.pipeline.serve.journal_format import (
    Delivered,
    Frame,
    InputRecord,
    Open,
    OpenRuns,
    Stored,
    encode_frame,
    frames,
    ranges_of,
)

MOST_BYTES: Final = 2**30
# A segment is freed as a whole, so a small journal has smaller ones.
_SEGMENT_BYTES: Final = 16 * 2**20
_SEGMENTS: Final = 16
_DIRECTORY: Final = "serve.journal"


class Place(Struct, frozen=True):
    """The place of a record in the journal, with its number."""

    number: int
    segment: int
    start: int
    end: int


class _Segment(Struct):
    """A file. ``open`` are the records that the brokers do not have."""

    number: int
    path: Path
    size: int = 0
    first: int = 0
    open: int = 0


class Journal:
    """Appends records, and reads those that were not delivered.

    Attributes:
        size: bytes on disk.
        most_bytes: beyond which the caller adds nothing but the ends of runs.
        unfinished: the last records of the runs that an earlier process did not end.

    Args:
        directory: of the state.
        most_bytes: see above.
        segment_bytes: a segment that is larger is followed by the next one; None chooses it by ``most_bytes``.

    Raises:
        InputError: ``state_dir_unusable``.
    """

    def __init__(self, directory: Path, *, most_bytes: int = MOST_BYTES, segment_bytes: int | None = None) -> None:
        self.most_bytes = most_bytes
        self.size = 0
        self._segment_bytes = segment_bytes or min(_SEGMENT_BYTES, most_bytes // _SEGMENTS)
        self._directory = directory / _DIRECTORY
        self._segments: deque[_Segment] = deque()
        self._next = 0
        self._runs = OpenRuns()
        # One byte for each number from the oldest segment's first on: 1 once the brokers have the record.
        self._delivered = bytearray()
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = _locked(self._directory / "lock")
            self._recover()
            self.unfinished = self._runs.records
            self._file = self._new_segment()
        except OSError as error:
            raise InputError("state_dir_unusable", f"{directory}: {error}. Set --state-dir.") from error
        self._delete_delivered()
        self._cursor = (self._segments[0].number, 0)

    def append(self, records: Iterable[InputRecord]) -> None:
        """Append records.

        Raises:
            OSError: none of them was stored.
        """
        numbered = [Stored(self._next + at, record) for at, record in enumerate(records)]
        self._write(b"".join(map(encode_frame, numbered)))
        self._next += len(numbered)
        self._delivered += bytes(len(numbered))
        self._segments[-1].open += len(numbered)
        for each in numbered:
            self._runs.note(each.record)
        if self._segments[-1].size >= self._segment_bytes:
            os.close(self._file)
            self._file = self._new_segment()
            if self._runs.records:
                self._write(encode_frame(Open(self._runs.records)))

    def read(self, most_bytes: int = 2**20) -> list[tuple[Place, InputRecord]]:
        """Return the next records that were not delivered; none at the end of the journal."""
        found: list[tuple[Place, InputRecord]] = []
        while not found:
            number, start = self._cursor
            segment = next(each for each in self._segments if each.number >= number)
            if segment.number > number:
                start = 0
            read = start
            for frame in frames(_read(segment.path, start, most_bytes)):
                read = start + frame.end
                if isinstance(frame.entry, Stored) and not self._is_delivered(frame.entry.number):
                    place = Place(frame.entry.number, segment.number, start + frame.start, read)
                    found.append((place, frame.entry.record))
            self._cursor = (segment.number, read)
            if read == start and start + most_bytes < segment.size:
                most_bytes *= 8  # one frame is larger than what was read
            elif read == start:
                if segment is self._segments[-1]:
                    break
                self._cursor = (segment.number + 1, 0)
        return found

    def read_again(self, places: Iterable[Place]) -> list[tuple[Place, InputRecord]]:
        """Return records that were read before and are not delivered."""
        found = []
        for place in places:
            segment = next(each for each in self._segments if each.number == place.segment)
            (frame,) = frames(_read(segment.path, place.start, place.end - place.start))
            if not isinstance(frame.entry, Stored):
                raise TypeError("the place is that of a record")
            found.append((place, frame.entry.record))
        return found

    def rewind(self) -> None:
        """Read again from the oldest record that was not delivered."""
        self._cursor = (self._segments[0].number, 0)

    def deliver(self, numbers: Sequence[int]) -> None:
        """Note that the brokers have records. Segments without others are deleted.

        Raises:
            OSError: it cannot be noted, so the records are sent again after the next start.
        """
        for number in numbers:
            self._note_delivered(number)
        try:
            self._write(encode_frame(Delivered(ranges_of(numbers))))
        finally:
            self._delete_delivered()

    def close(self) -> None:
        os.close(self._file)
        os.close(self._lock)

    def _write(self, data: bytes) -> None:
        segment = self._segments[-1]
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(self._file, left) :]
        except OSError:
            os.ftruncate(self._file, segment.size)
            raise
        segment.size += len(data)
        self.size += len(data)

    def _new_segment(self) -> int:
        number = self._segments[-1].number + 1 if self._segments else 0
        path = self._directory / f"{number:010}"
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o600)
        self._segments.append(_Segment(number, path, first=self._next))
        return file

    def _delete_delivered(self) -> None:
        while len(self._segments) > 1 and not self._segments[0].open:
            gone = self._segments.popleft()
            gone.path.unlink(missing_ok=True)
            self.size -= gone.size
            del self._delivered[: self._segments[0].first - gone.first]

    def _is_delivered(self, number: int) -> bool:
        return bool(self._delivered[number - self._segments[0].first])

    def _note_delivered(self, number: int) -> None:
        at = number - self._segments[0].first
        if not 0 <= at < len(self._delivered) or self._delivered[at]:
            return  # its segment is deleted
        self._delivered[at] = 1
        for segment in reversed(self._segments):
            if segment.first <= number:
                segment.open -= 1
                return

    def _recover(self) -> None:
        """Read the segments of an earlier process."""
        delivered: list[tuple[int, int]] = []
        for path in sorted(self._directory.glob("[0-9]" * 10)):
            segment = _Segment(int(path.name), path, first=-1)
            data = path.read_bytes()
            for frame in frames(data):
                segment.size = frame.end
                self._take_frame(frame, segment, delivered)
            if segment.size < len(data):
                os.truncate(path, segment.size)
            segment.first = self._next if segment.first < 0 else segment.first
            self._segments.append(segment)
            self.size += segment.size
        if self._segments:
            self._delivered = bytearray(self._next - self._segments[0].first)
        for first, last in delivered:
            for number in range(first, last + 1):
                self._note_delivered(number)

    def _take_frame(self, frame: Frame, segment: _Segment, delivered: list[tuple[int, int]]) -> None:
        match frame.entry:
            case Stored(number, record):
                segment.first = number if segment.first < 0 else segment.first
                segment.open += 1
                self._next = number + 1
                self._runs.note(record)
            case Delivered(ranges):
                delivered += ranges
                # The segments of these records may be deleted. Their numbers must not be used again.
                self._next = max(self._next, ranges[-1][1] + 1)
            case Open(records):
                for record in records:
                    self._runs.note(record)


def _read(path: Path, start: int, length: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(length)


def _locked(path: Path) -> int:
    """Return a lock file that no other process has locked.

    Raises:
        OSError: another gateway uses the directory.
    """
    import fcntl  # noqa: PLC0415  not on every platform, and only a gateway that publishes needs it

    file = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(file)
        raise OSError("another gateway publishes from this directory; give each its own") from error
    return file
