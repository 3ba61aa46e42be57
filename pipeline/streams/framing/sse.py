"""Server-sent events and JSON lines: the payloads of whole events.

Records come as whole SSE text, as single ``data:`` lines with or without a blank line after them, or as bare JSON
lines, and several records may have been put together with newlines. So a ``data:`` line that is a whole JSON object is
a payload of its own, even where the next line is another one; only lines that are not are joined, as SSE says. Where an
event ends is the rule of ``framing.Scan``, so that bytes mean the same wherever they were cut.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from pipeline.streams.framing.ends import (
    BEFORE,
    BOM,
    DONE,
    LAID_OUT,
    SSE,
    Scan,
    data_of,
    is_beside,
    is_object,
    value_spans,
)

__all__ = ["DONE", "named_payloads", "payloads", "payloads_of_each", "values"]

_PUNCTUATION: Final = BEFORE + b"[],"
_OF_SSE: Final = frozenset(bytes([byte]) for byte in SSE)
# What nearly every event is: a line of data, and before it a line that only repeats its type.
_HEAD: Final = re.compile(rb"(?:event: (?!error\n)[a-z_.]*+\n)?data: ")
_EVENT: Final = re.compile(rb"^%b(.*+)(?<!\r)(?:\n\n|\n?\Z)" % _HEAD.pattern, re.MULTILINE)


def payloads(data: bytes) -> list[bytes]:
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
        found = values(data)
        if is_object(found[0]):
            return found
    data = _plain(data)
    events = _plain_events(data)
    return [_marked_as_error(name, payload) for name, payload in _read_lines(data)] if events is None else events


def payloads_of_each(records: Sequence[bytes]) -> list[bytes] | None:
    """The payloads of records of nothing but plain events, or None: then each record is to be read on its own.

    No event goes on from one record to the next.
    """
    data = b"\n\n".join(records)
    return None if b"\r" in data else _plain_events(data)


def _plain_events(data: bytes) -> list[bytes] | None:
    # What stands between events, and their payloads, by turns.
    parts = _EVENT.split(data)
    return None if b"".join(parts[::2]).strip(b"\n") else parts[1::2]


def named_payloads(data: bytes) -> list[tuple[bytes, bytes]]:
    """The same with the name of each event, ``b""`` where it has none; for sources that say only there what it is."""
    return _read_lines(_plain(data))


def values(data: bytes) -> list[bytes]:
    """The payloads of SSE, or of JSON objects one after another or as elements of an array, on any number of lines.

    What stands between the objects and is not an array's own punctuation is a payload, too.
    """
    if data[:1] in _OF_SSE or data.lstrip(BEFORE)[:1] in _OF_SSE:
        return payloads(data)
    found: list[bytes] = []
    position, scan = 0, Scan()
    for start, end in value_spans(data, scan):
        # Only what was cut ends in anything but its bracket.
        between, value = data[position:start].strip(_PUNCTUATION), data[start:end].strip(_PUNCTUATION)
        found += [payload for payload in (between, value) if payload]
        position = end
    left = data[position:].strip(_PUNCTUATION)
    if scan.depth and any(map(is_object, left.splitlines())):
        # What was cut would take the lines behind it along: they are read one by one.
        return found + [payload for _, payload in _read_lines(_plain(left))]
    return [*found, left] if left else found


def _plain(data: bytes) -> bytes:
    """The bytes with LF for newlines, which cannot stand inside JSON otherwise, and without a byte order mark."""
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
    """The payload, told to be an error where only the event's name says so."""
    if name != b"error" or b'"error"' in payload:
        return payload
    said = payload if is_object(payload) else msgspec.json.encode(payload.decode("utf-8", "replace"))
    return b'{"error":%b}' % said
