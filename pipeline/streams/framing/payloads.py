"""Whole events to their payloads: server-sent events, JSON lines and values, and AWS's binary event-stream.

**Text.** Records arrive as whole SSE text, as single ``data:`` lines with or without a blank line after them, or as
bare JSON lines, and several records may be joined with newlines. So a ``data:`` line that is a whole JSON object is a
payload, even if the next line is another one; only lines that are not whole objects are joined, as SSE requires.
``framing.Scan`` decides where an event ends, so bytes have the same meaning wherever they are cut.

**Frames.** A binary message is: its length and its headers' length (4 bytes each), a CRC-32 of these 8 bytes, the
headers, the payload, a CRC-32 of everything before. A header is a name (1 byte of length), a type (1 byte) and a value.
A frame whose checksum fails is passed on unchanged, and is reported as a payload that is not JSON.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator, Sequence
from typing import Final
from zlib import crc32

import msgspec
from msgspec import Raw, Struct

from reknit.pipeline.streams.framing import (
    BEFORE,
    BOM,
    LAID_OUT,
    LONGEST_FRAME,
    SHORTEST_FRAME,
    SSE,
    Scan,
    data_of,
    is_beside,
    is_object,
    value_spans,
)

_PUNCTUATION: Final = BEFORE + b"[],"
_OF_SSE: Final = frozenset(bytes([byte]) for byte in SSE)
# The form of nearly every event: a line of data, and before it a line that repeats its type.
_HEAD: Final = re.compile(rb"(?:event: (?!error\n)[a-z_.]*+\n)?data: ")
_EVENT: Final = re.compile(rb"^%b(.*+)(?<!\r)(?:\n\n|\n?\Z)" % _HEAD.pattern, re.MULTILINE)


def of_events(data: bytes) -> list[bytes]:
    """The payload of each event, in order; ``[DONE]`` is one, too, and so is a line that is neither JSON nor SSE.

    An ``event: error`` whose payload does not say that it is an error gives ``{"error": payload}``.
    """
    head = _HEAD.match(data)
    if head is not None and b"\r" not in data:
        # Nearly every record is one event: to look for its end is much faster than to match it.
        payload, _, rest = data[head.end() :].partition(b"\n")
        if not rest or rest == b"\n":
            return [payload]
    if data[:1] not in _OF_SSE and LAID_OUT.match(data.lstrip(BEFORE)):
        found = of_values(data)
        if is_object(found[0]):
            return found
    data = _plain(data)
    events = _plain_events(data)
    return [_marked_as_error(name, payload) for name, payload in _read_lines(data)] if events is None else events


def of_records(records: Sequence[bytes]) -> list[bytes] | None:
    """Return the payloads of records that hold plain events only; None if each record must be read separately.

    No event continues from one record to the next.
    """
    data = b"\n\n".join(records)
    return None if b"\r" in data else _plain_events(data)


def _plain_events(data: bytes) -> list[bytes] | None:
    # The text between events, and their payloads, alternating.
    parts = _EVENT.split(data)
    return None if b"".join(parts[::2]).strip(b"\n") else parts[1::2]


def with_names(data: bytes) -> list[tuple[bytes, bytes]]:
    """The same with the name of each event, ``b""`` where it has none; for sources that say only there what it is."""
    return _read_lines(_plain(data))


def of_values(data: bytes) -> list[bytes]:
    """Return the payloads of SSE, of JSON objects one after another, or of the elements of an array.

    They may be on any number of lines. Text between the objects that is not an array's punctuation is a payload too.
    """
    if data[:1] in _OF_SSE or data.lstrip(BEFORE)[:1] in _OF_SSE:
        return of_events(data)
    found: list[bytes] = []
    position, scan = 0, Scan()
    for start, end in value_spans(data, scan):
        # Only what was cut ends in anything but its bracket.
        between, value = data[position:start].strip(_PUNCTUATION), data[start:end].strip(_PUNCTUATION)
        found += [payload for payload in (between, value) if payload]
        position = end
    left = data[position:].strip(_PUNCTUATION)
    if scan.depth and any(map(is_object, left.splitlines())):
        # A cut object would absorb the lines after it, so they are read one by one.
        return found + [payload for _, payload in _read_lines(_plain(left))]
    return [*found, left] if left else found


def _plain(data: bytes) -> bytes:
    """Return the bytes with LF for newlines, which cannot occur inside JSON strings, and without a byte order mark."""
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return data.removeprefix(BOM)


def _read_lines(data: bytes) -> list[tuple[bytes, bytes]]:
    """The events in lines, each as its name and payload."""
    found: list[tuple[bytes, bytes]] = []
    scan, name = Scan(), b""
    group: list[bytes] = []

    def end_event() -> None:
        nonlocal group, name
        if group:
            found.append((name, b"\n".join(group)))
        group, name = [], b""

    for with_mark in data.split(b"\n"):
        line = with_mark.removeprefix(BOM)
        if line.startswith(b"data:"):
            payload = data_of(line)
            if scan.begin_data(payload) and group:
                end_event()
            group.append(payload)
            if (len(group) == 1 and is_object(payload)) or _ends(scan, payload):
                end_event()
            continue
        if line and is_beside(line):
            continue
        end_event()
        scan.end_event()
        if line.startswith(b"event:"):
            name = line[6:].strip()
        elif line:
            found.append((b"", line))
    end_event()
    return found


def _ends(scan: Scan, payload: bytes) -> bool:
    scan.take_data(payload)
    return scan.end_data()


def _marked_as_error(name: bytes, payload: bytes) -> bytes:
    """Return the payload, marked as an error if only the event's name says so."""
    if name != b"error" or b'"error"' in payload:
        return payload
    said = payload if is_object(payload) else msgspec.json.encode(payload.decode("utf-8", "replace"))
    return b'{"error":%b}' % said


# Frames.

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
    """Return True if bytes of whole events begin with a binary message, of which a length alone is no proof."""
    if data[:1] > b"\r":
        return False  # nearly always
    start = data.lstrip(_NEWLINES)
    return start[:1] in {b"\x00", b"\x01"} and _checks(start[:12])


def of_frames(data: bytes) -> list[bytes]:
    """The payload of each message: ``{"<event type>": ...}``, ``{"error": ...}``, or what a ``chunk`` holds."""
    return [_payload_of(*message) if len(message) == 2 else message[0] for message in _messages(data)]


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


def _payload_of(headers: dict[str, str], payload: bytes) -> bytes:
    encode = msgspec.json.encode
    kind = headers.get(":message-type", "event")
    if kind == "exception":
        return encode({"error": {"type": headers.get(":exception-type", kind), "message": _words(payload)}})
    if kind == "error":
        return encode({"error": {"type": headers.get(":error-code", kind), "message": headers.get(":error-message")}})
    name = headers.get(":event-type", "")
    if name == "chunk":
        return of_chunk(payload) or payload
    return b"{%b:%b}" % (encode(name), payload or b"{}")


def of_chunk(payload: bytes | Raw) -> bytes | None:
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
