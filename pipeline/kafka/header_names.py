r"""Support for header names that are not UTF-8, at which aiokafka's consumers get stuck.

Any Kafka client can write such a name, and brokers accept it. aiokafka's decoder then raises ``UnicodeDecodeError`` in
the middle of a batch, and no public call can skip that batch: a fetch returns whole batches, and each is decoded from
its first record. Java's client replaces the bytes that it cannot decode, and so does this module: ``\xffA`` is read as
``�A``. Readers decide how to treat such a record (``reknit.topics.headers.has_bad_name``).

The module replaces ``aiokafka.consumer.fetcher.MemoryRecords``, because aiokafka has no hook for another decoder. The
compiled decoder stays in use, at an extra cost of 20 ns per record. Only a batch in which it raises is decoded again,
with aiokafka's Python decoder.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from aiokafka.consumer import fetcher
from aiokafka.errors import CorruptRecordException
from aiokafka.record import default_records, memory_records
from aiokafka.record.util import decode_varint

# Start of each batch: its first offset, and the length of the rest.
_BATCH_START = struct.Struct(">qi")
# Number of integer fields of a record (attributes, timestamp, offset), and of byte fields (key, value).
_NUMBERS, _BYTES = 3, 2


def install() -> None:
    """Make every consumer of this process accept header names that are not UTF-8. A second call changes nothing."""
    fetcher.MemoryRecords = TolerantRecords


class TolerantRecords:
    """The batches of one fetched partition, with the methods of aiokafka's ``MemoryRecords``."""

    def __init__(self, fetched: bytes) -> None:
        self._records = memory_records.MemoryRecords(fetched)
        self._fetched = memoryview(fetched)
        self._at = 0
        self.size_in_bytes = self._records.size_in_bytes
        self.has_next = self._records.has_next

    def next_batch(self) -> Any:  # noqa: ANN401  aiokafka has no types here
        """Return the next batch, or None after the last one."""
        batch = self._records.next_batch()
        if batch is None:
            return None
        begin = self._at
        self._at += _BATCH_START.size + _BATCH_START.unpack_from(self._fetched, begin)[1]
        return batch if batch.is_control_batch else _TolerantBatch(batch, self._fetched[begin : self._at])


class _TolerantBatch:
    """A batch whose records are decoded again if the compiled decoder cannot read a name."""

    def __init__(self, batch: Any, data: memoryview) -> None:  # noqa: ANN401  as above
        self._batch = batch
        self._data = data

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  as above
        return getattr(self._batch, name)

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self._batch
        except (UnicodeDecodeError, CorruptRecordException) as error:
            # Without its compiled modules aiokafka wraps the error.
            if not isinstance(error, UnicodeDecodeError) and not isinstance(error.__cause__, UnicodeDecodeError):
                raise
            # Start at the beginning of the batch: the fetcher skips records before its own position.
            yield from _TolerantDecoder(self._data)


class _TolerantDecoder(default_records._DefaultRecordBatchPy):  # type: ignore[misc] # noqa: SLF001  see above
    def _read_msg(self, decode_varint: Any = decode_varint) -> Any:  # noqa: ANN401  as above
        try:
            return super()._read_msg(decode_varint)
        except UnicodeDecodeError:
            names = self._take_names(self._pos)
        record = super()._read_msg(decode_varint)
        record.headers[:] = [
            (name.decode("utf-8", "replace"), value) for name, (_, value) in zip(names, record.headers, strict=True)
        ]
        return record

    def _take_names(self, start: int) -> list[bytes]:
        """Return the header names of the record at ``start``, and overwrite them with ASCII of the same length."""
        buffer, pos = self._buffer, start
        for _ in range(1 + _NUMBERS):  # the record's own length comes first
            _, pos = decode_varint(buffer, pos)
        for _ in range(_BYTES):
            size, pos = decode_varint(buffer, pos)
            pos += max(0, size)
        count, pos = decode_varint(buffer, pos)
        names = []
        for _ in range(count):
            size, pos = decode_varint(buffer, pos)
            names.append(bytes(buffer[pos : pos + size]))
            buffer[pos : pos + size] = b"?" * size
            pos += size
            size, pos = decode_varint(buffer, pos)
            pos += max(0, size)
        return names
