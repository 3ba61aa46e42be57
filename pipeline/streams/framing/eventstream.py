"""AWS event-stream: binary messages with headers and checksums, to JSON payloads.

A message is: its length and its headers' length (4 bytes each), a CRC-32 of these 8 bytes, the headers, the payload, a
CRC-32 of everything before. A header is a name (1 byte of length), a type (1 byte) and a value. What does not check is
passed on as it came, and is reported as what it then is: a payload that is not JSON.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterator
from typing import Final
from zlib import crc32

import msgspec
from msgspec import Raw, Struct

from pipeline.streams.framing.ends import LONGEST_FRAME, SHORTEST_FRAME

_NEWLINES: Final = b"\r\n"
# Header values by type: sizes of those that have one; bytes (6) and strings (7) begin with theirs, in 2 bytes.
_SIZES: Final = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
_SIZED: Final = frozenset({6, 7})
_STRING: Final = 7


class _Chunk(Struct):
    bytes: str


class _Message(Struct):
    message: str = ""


_chunk = msgspec.json.Decoder(_Chunk)
_message = msgspec.json.Decoder(_Message)


def is_binary(data: bytes) -> bool:
    """Whether bytes of whole events begin with a message; a byte like those of a length is not enough to tell."""
    if data[:1] > b"\r":
        return False  # nearly always
    start = data.lstrip(_NEWLINES)
    return start[:1] in {b"\x00", b"\x01"} and _checks(start[:12])


def payloads(data: bytes) -> list[bytes]:
    """The payload of each message: ``{"<event type>": ...}``, ``{"error": ...}``, or what a ``chunk`` holds."""
    return [_payload(*message) if len(message) == 2 else message[0] for message in _messages(data)]


def _messages(data: bytes) -> Iterator[tuple[dict[str, str], bytes] | tuple[bytes]]:
    """Each message as its headers and payload, or the bytes that are none."""
    position = 0
    while position < len(data):
        if data[position] in _NEWLINES:
            position += 1
            continue
        length, headers = int.from_bytes(data[position : position + 4], "big"), data[position + 4 : position + 8]
        if not (SHORTEST_FRAME <= length <= LONGEST_FRAME and _checks(data[position : position + 12])):
            yield (data[position:],)
            return
        frame = data[position : position + length]
        position += length
        size = int.from_bytes(headers, "big")
        found = _headers(frame[12 : 12 + size]) if len(frame) == length and _checks(frame) else None
        yield (frame,) if found is None else (found, frame[12 + size : -4])


def _checks(data: bytes) -> bool:
    return len(data) >= 12 and crc32(data[:-4]) == int.from_bytes(data[-4:], "big")


def _headers(data: bytes) -> dict[str, str] | None:
    """The headers that are strings; None where they do not add up."""
    found: dict[str, str] = {}
    position = 0
    while position < len(data):
        start = position + 1 + data[position]
        name, kind = data[position + 1 : start], data[start : start + 1]
        if not kind or (kind[0] not in _SIZES and kind[0] not in _SIZED):
            return None
        position = start + 1
        size = _SIZES.get(kind[0])
        if size is None:
            size = int.from_bytes(data[position : position + 2], "big")
            position += 2
        if kind[0] == _STRING:
            found[name.decode("utf-8", "replace")] = data[position : position + size].decode("utf-8", "replace")
        position += size
    return found if position == len(data) else None


def _payload(headers: dict[str, str], payload: bytes) -> bytes:
    encode = msgspec.json.encode
    kind = headers.get(":message-type", "event")
    if kind == "exception":
        return encode({"error": {"type": headers.get(":exception-type", kind), "message": _words(payload)}})
    if kind == "error":
        return encode({"error": {"type": headers.get(":error-code", kind), "message": headers.get(":error-message")}})
    name = headers.get(":event-type", "")
    if name == "chunk":
        return chunk(payload) or payload
    return b"{%b:%b}" % (encode(name), payload or b"{}")


def chunk(payload: bytes | Raw) -> bytes | None:
    """The model's own event in a ``chunk``: ``{"bytes": base64}``; None where it is not that."""
    try:
        return binascii.a2b_base64(_chunk.decode(payload).bytes)
    except (msgspec.DecodeError, UnicodeDecodeError, binascii.Error, ValueError):
        return None


def _words(payload: bytes) -> str:
    try:
        return _message.decode(payload).message
    except (msgspec.DecodeError, UnicodeDecodeError):
        return payload.decode("utf-8", "replace")
