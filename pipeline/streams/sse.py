"""Server-sent events and JSON lines: the payloads of whole events.

Records come as whole SSE text, as single ``data:`` lines with or without a blank line after them, or as bare JSON
lines, and several records may have been put together with newlines. So a ``data:`` line that is a whole JSON value is
a payload of its own, even where the next line is another one; only lines that are not are joined, as SSE says.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec import Raw

from pipeline.streams.framing import BEFORE, SSE, Scan, value_spans

DONE: Final = b"[DONE]"
_BOM: Final = b"\xef\xbb\xbf"
_PUNCTUATION: Final = BEFORE + b"[],"
_IGNORED: Final = (b":", b"id:", b"retry:")
# What nearly every event is: a line of data, and before it a line that only repeats its type.
_EVENT: Final = re.compile(rb"^(?:event: (?!error\n)[a-z_.]*+\n)?data: (.*+)(?<!\r)(?:\n\n|\n?\Z)", re.MULTILINE)

_value: msgspec.json.Decoder[Raw] = msgspec.json.Decoder(Raw)


def payloads(data: bytes) -> list[bytes]:
    """The payload of each event, in order; ``[DONE]`` is one, too, and so is a line that is neither JSON nor SSE.

    An ``event: error`` whose payload does not say that it is an error gives ``{"error": payload}``.
    """
    one = _EVENT.fullmatch(data)
    if one is not None:
        return [one[1]]
    data = _plain(data)
    # What stands between events, and their payloads, by turns.
    parts = _EVENT.split(data)
    if not b"".join(parts[::2]).strip(b"\n"):
        return parts[1::2]
    return [_told(name, payload) for chunk in data.split(b"\n\n") for name, payload in _read_lines(chunk)]


def named_payloads(data: bytes) -> list[tuple[bytes, bytes]]:
    """The same with the name of each event, ``b""`` where it has none; for sources that say only there what it is."""
    return [event for chunk in _plain(data).split(b"\n\n") for event in _read_lines(chunk)]


def values(data: bytes) -> list[bytes]:
    """The payloads of SSE, or of JSON objects one after another or as elements of an array, on any number of lines.

    What stands between the objects and is not an array's own punctuation is a payload, too.
    """
    first = data.lstrip(BEFORE)[:1]
    if first and first[0] in SSE:
        return payloads(data)
    found: list[bytes] = []
    position = 0
    for start, end in [*value_spans(data, Scan()), (len(data), len(data))]:
        between = data[position:start].strip(_PUNCTUATION)
        found += [payload for payload in (between, data[start:end]) if payload]
        position = end
    return found


def _plain(data: bytes) -> bytes:
    """The bytes with LF for newlines, which cannot stand inside JSON otherwise, and without a byte order mark."""
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n")
    return data.removeprefix(_BOM)


def _read_lines(chunk: bytes) -> list[tuple[bytes, bytes]]:
    """The events in lines between two blank ones, each as its name and payload."""
    found: list[tuple[bytes, bytes]] = []
    name = b""
    group: list[bytes] = []
    for line in chunk.split(b"\n"):
        if line.startswith(b"data:"):
            group.append(line[6:] if line[5:6] == b" " else line[5:])
            continue
        if not line or line.startswith(_IGNORED) or line.isspace():
            continue
        found += _one_or_each(name, group)
        group, name = [], b""
        if line.startswith(b"event:"):
            name = line[6:].strip()
        else:
            found.append((b"", line))
    return found + _one_or_each(name, group)


def _one_or_each(name: bytes, group: list[bytes]) -> list[tuple[bytes, bytes]]:
    """Neighbouring lines of data: one event each, if each is whole, or else one event of them all."""
    if len(group) < 2:
        return [(name, payload) for payload in group]
    if all(map(_is_whole, group)):
        return [(name, group[0]), *((b"", payload) for payload in group[1:])]
    return [(name, b"\n".join(group))]


def _is_whole(payload: bytes) -> bool:
    if payload == DONE:
        return True
    try:
        _value.decode(payload)
    except (msgspec.DecodeError, RecursionError):
        return False
    return payload.lstrip()[:1] == b"{"


def _told(name: bytes, payload: bytes) -> bytes:
    """The payload, told to be an error where only the event's name says so."""
    if name != b"error" or b'"error"' in payload:
        return payload
    said = payload if _is_whole(payload) else msgspec.json.encode(payload.decode("utf-8", "replace"))
    return b'{"error":%b}' % said
