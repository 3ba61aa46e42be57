"""Record batches with content that Kafka's format allows and that aiokafka's own producer does not write."""

from __future__ import annotations

from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


class RawName:
    """A header with its name as bytes."""

    def __init__(self, name: bytes) -> None:
        self.name = name

    def encode(self, _encoding: str) -> bytes:
        return self.name


def raw_batch(rows, codec="none", base_offset=0):
    """Build one batch. A row is key, value, headers (names may be bytes) and, optionally, a timestamp."""
    builder = _DefaultRecordBatchBuilderPy(2, CODECS[codec], 0, -1, -1, -1, 1 << 30)
    for offset, (key, value, headers, *time) in enumerate(rows):
        named = [(RawName(name) if isinstance(name, bytes) else name, content) for name, content in headers]
        builder.append(offset, time[0] if time else 1_700_000_000_000 + offset, key, value, named)
    made = builder.build()
    made[:8] = base_offset.to_bytes(8, "big")  # not covered by the checksum
    return bytes(made)
