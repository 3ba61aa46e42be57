"""Where the changelog records of sessions lie that are not at work: in memory, compressed.

What was put last is kept as it came, up to a bound; what lies there longest is then compressed, a session at once,
since a session's records repeat each other. A record that comes later stands beside its compressed session until it is
compressed with it.
"""

from __future__ import annotations

import cramjam
import msgspec

from pipeline.stages.base import NO_SESSION

# Beside a session's bytes: two entries of a dictionary and two objects, as measured.
_SESSION_BYTES = 350

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(dict[bytes, bytes]).decode


class PackedRecords:
    """A store in memory. ``loose_bytes`` is how much may lie there as it came."""

    def __init__(self, loose_bytes: int) -> None:
        self._most_loose = loose_bytes
        self._packed: dict[bytes, bytes] = {}
        self._loose: dict[bytes, dict[bytes, bytes | None]] = {}
        self._loose_bytes = self._packed_bytes = 0

    @property
    def sessions(self) -> int:
        return len(self._packed) + len(self._loose.keys() - self._packed.keys())

    @property
    def size(self) -> int:
        """Its bytes of memory, roughly."""
        return self._loose_bytes + self._packed_bytes + _SESSION_BYTES * len(self._packed)

    def put(self, session: bytes, key: bytes, value: bytes | None) -> None:
        if session == NO_SESSION:
            return  # the stage remembers it
        loose = self._loose.get(session)
        if loose is None:
            loose = self._loose[session] = {}
        if key in loose:
            self._loose_bytes -= len(loose[key] or key)
        loose[key] = value
        self._loose_bytes += len(value or key)
        if self._loose_bytes > self._most_loose:
            self._pack_oldest()

    def read(self, session: bytes) -> dict[bytes, bytes]:
        packed = self._packed.get(session)
        records: dict[bytes, bytes | None] = {} if packed is None else {**_unpack(cramjam.zstd.decompress(packed))}
        records |= self._loose.get(session, {})
        return {key: value for key, value in records.items() if value is not None}

    def _pack_oldest(self) -> None:
        """Compress what lies there longest, until half of the room is free."""
        while self._loose and self._loose_bytes > self._most_loose // 2:
            session = next(iter(self._loose))
            records = self.read(session)
            for key, value in self._loose.pop(session).items():
                self._loose_bytes -= len(value or key)
            self._packed_bytes -= len(self._packed.pop(session, b""))
            if records:
                packed = self._packed[session] = bytes(cramjam.zstd.compress(_pack(records)))
                self._packed_bytes += len(packed)
