"""The output of a dry run, a folder of JSON lines: writing and reading.

``DIR/TOPIC/PARTITION.jsonl.zst`` holds the records of one partition of one output, one JSON object in a line, oldest
first; a topic's name is the contract's. Text is a string if it is UTF-8, else ``{"base64": "…"}``. A file is a sequence
of zstd frames, each preceded by a skippable frame with its size (as pzstd writes them): every zstd program reads it,
and the reader here needs the memory of one frame.

``DIR/replay.json`` is the replay's plan. ``DIR/positions/PARTITION.json`` says that a partition is complete, and up to
which offset of each input. It is renamed into place after the partition's files, so files without it are of an
interrupted run: they are not read, and written again.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, TypeAlias

import cramjam
import msgspec
from msgspec import Struct

from reknit.pipeline.errors import InputError
from reknit.pipeline.replay import Plan
from reknit.pipeline.stages.base import Output, Record
from reknit.topics.headers import Headers

PLAN = "replay.json"
_POSITIONS = "positions"
_UNFINISHED = "unfinished"
_ENDING = ".jsonl.zst"

# Lines are compressed together up to this many bytes.
_FRAME_BYTES = 1 << 20
# A skippable frame of four bytes, the size of the following frame (RFC 8878, 3.1.2).
_SIZE = struct.Struct("<III")
_SKIPPABLE = 0x184D2A50


class Binary(Struct, frozen=True):
    """Bytes that are no text."""

    base64: bytes


Text: TypeAlias = str | Binary | None


class Line(Struct, frozen=True):
    """One record. ``offset`` counts the lines of its file, ``timestamp`` is the time of the input, in milliseconds."""

    partition: int
    offset: int
    timestamp: int
    key: Text
    headers: list[tuple[str, Text]]
    value: Text


def as_text(value: bytes | None) -> Text:
    """Bytes as a line has them."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return Binary(value)


def as_bytes(text: Text) -> bytes | None:
    """Read the value that ``as_text`` was given."""
    return text.base64 if isinstance(text, Binary) else None if text is None else text.encode()


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Line).decode


class _File:
    """One file under way."""

    def __init__(self, path: Path, partition: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._opened: IO[bytes] = path.open("wb")
        self._partition = partition
        self._lines: list[bytes] = []
        self._bytes = self._count = 0

    def append(self, output: Output, timestamp: int) -> None:
        headers = [(name, as_text(value)) for name, value in output.headers]
        line = _encode(
            Line(self._partition, self._count, timestamp, as_text(output.key), headers, as_text(output.value))
        )
        self._lines.append(line)
        self._bytes += len(line)
        self._count += 1
        if self._bytes > _FRAME_BYTES:
            self._write_frame()

    def _write_frame(self) -> None:
        if self._lines:
            frame = bytes(cramjam.zstd.compress(b"\n".join([*self._lines, b""])))
            self._opened.write(_SIZE.pack(_SKIPPABLE, 4, len(frame)) + frame)
            self._lines, self._bytes = [], 0

    def abandon(self) -> None:
        self._opened.close()

    def close(self) -> None:
        self._write_frame()
        self._opened.flush()
        os.fsync(self._opened.fileno())
        self._opened.close()


class PartitionFiles:
    """The outputs of one partition of all inputs; they cannot be read before ``finish``."""

    def __init__(self, folder: Path, partition: int) -> None:
        self._folder = folder
        self._partition = partition
        self._directory = folder / _UNFINISHED / str(partition)
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir(parents=True)
        self._files: dict[str, _File] = {}

    def take(self, outputs: Iterable[Output], timestamp: int) -> None:
        """Write outputs; ``topic`` in them is the contract's name, ``timestamp`` their time in milliseconds."""
        for output in outputs:
            file = self._files.get(output.topic)
            if file is None:
                file = self._files[output.topic] = _File(self._directory / f"{output.topic}{_ENDING}", self._partition)
            file.append(output, timestamp)

    def finish(self, positions: Mapping[str, int]) -> None:
        """Rename everything into place; ``positions`` are the ends of the inputs (contract names)."""
        for topic, file in self._files.items():
            file.close()
            place = self._folder / topic / f"{self._partition}{_ENDING}"
            place.parent.mkdir(exist_ok=True)
            (self._directory / f"{topic}{_ENDING}").rename(place)
        written = self._directory / "position"
        written.write_bytes(_encode(positions))
        place = _position_file(self._folder, self._partition)
        place.parent.mkdir(exist_ok=True)
        written.rename(place)
        shutil.rmtree(self._directory)

    def close(self) -> None:
        """Give up what is not finished."""
        for file in self._files.values():
            file.abandon()


def begin(folder: Path, plan: Plan) -> Plan:
    """Create the folder of a dry run and return its plan: the existing one, if another process created it.

    Raises:
        InputError: ``folder_taken``, if it has other content, or a dry run with another plan.
    """
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / PLAN
    if not place.exists():
        if any(folder.iterdir()):
            raise InputError("folder_taken", f"{folder} holds something else; give a dry run a folder of its own")
        written = folder / f"{PLAN}.{os.getpid()}"
        written.write_bytes(msgspec.json.format(_encode(plan), indent=2))
        try:
            place.hardlink_to(written)  # another process may have been first
        except FileExistsError:
            pass
        finally:
            written.unlink()
    found = plan_of(folder)
    if (found.source_prefix, found.selection) != (plan.source_prefix, plan.selection):
        raise InputError("folder_taken", f"{folder} holds a dry run of something else; give this one its own folder")
    return found


def plan_of(folder: Path) -> Plan:
    """The plan of the dry run that a folder holds.

    Raises:
        InputError: ``no_replay``, where it holds none.
    """
    try:
        return msgspec.json.decode((folder / PLAN).read_bytes(), type=Plan)
    except FileNotFoundError:
        raise InputError("no_replay", f"{folder} holds no dry run: there is no {PLAN} in it") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError("no_replay", f"{folder / PLAN} cannot be read: {error}") from error


def is_done(folder: Path, partition: int) -> bool:
    return _position_file(folder, partition).exists()


def unfinished(folder: Path) -> list[int]:
    """The partitions of a dry run that are not there yet."""
    return [number for number in range(plan_of(folder).partitions) if not is_done(folder, number)]


def read_partition(folder: Path, topic: str, partition: int) -> Iterator[Record]:
    """The records of one partition of an output, oldest first; none where it is not done.

    Raises:
        InputError: ``not_readable``, where the file is not what a dry run writes.
    """
    place = folder / topic / f"{partition}{_ENDING}"
    if not is_done(folder, partition) or not place.exists():
        return
    try:
        for frame in _frames(place):
            for line in frame.splitlines():
                yield _record(_decode(line))
    except (cramjam.DecompressionError, msgspec.DecodeError, UnicodeDecodeError, struct.error) as error:
        raise InputError("not_readable", f"{place} cannot be read: {error}") from error


def _frames(place: Path) -> Iterator[bytes]:
    with place.open("rb") as opened:
        while announced := opened.read(_SIZE.size):
            magic, _, size = _SIZE.unpack(announced)
            # Compressed by another program: all of it at once.
            frame = opened.read(size) if magic == _SKIPPABLE else announced + opened.read()
            yield bytes(cramjam.zstd.decompress(frame))


def _record(line: Line) -> Record:
    headers: Headers = tuple((name, as_bytes(value)) for name, value in line.headers)
    return Record(
        partition=line.partition,
        offset=line.offset,
        key=as_bytes(line.key),
        value=as_bytes(line.value),
        headers=headers,
        timestamp=line.timestamp,
    )


def _position_file(folder: Path, partition: int) -> Path:
    return folder / _POSITIONS / f"{partition}.json"
