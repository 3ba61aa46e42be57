"""Byte framing: records that may end inside an event, put together again to whole events.

Where an event ends is the source's own affair, so a decoder names its framing: a function that is shown each piece of
bytes once, in order, and says where events end in it. What it has to remember from piece to piece is ``Scan``.

- ``lines``: JSON lines and SSE. SSE whose events end in blank lines is cut there, so that an event whose data stand on
  several lines stays whole; what is written without blank lines is cut after lines that can end a JSON value.
- ``values``: JSON objects one after another, or as the elements of an array, on one line or many; or SSE.
- ``frames``: binary event-stream messages, whose length stands in front; or lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

MOST_TAIL = 64 * 1024 * 1024
# An event-stream message: a length of 4 bytes in front; at least a prelude and two checksums; at most 16 MiB by the
# format's own rules, doubled to be lenient.
SHORTEST_FRAME: Final = 16
LONGEST_FRAME: Final = 32 * 1024 * 1024

# Whitespace and a byte order mark, which may stand before everything.
BEFORE: Final = b" \t\r\n\xef\xbb\xbf"
# What the lines of SSE begin with: data, event, id, retry, and a colon for a comment.
SSE: Final = frozenset(b"deir:")
_BLANK_LINE: Final = re.compile(rb"\n\r?\n")
# A string, whole or up to where the piece ends, or a bracket.
_TOKEN: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+(")?|[{}\[\]]', re.DOTALL)
_REST_OF_STRING: Final = re.compile(rb'(?:[^"\\]++|\\.)*+(")?', re.DOTALL)


class Scan(Struct):
    """What a framing remembers of the pieces before.

    ``kind`` is what the bytes turned out to be, ``""`` before the first of them. ``last`` are the last two bytes, and
    ``blank`` says that blank lines were seen (lines). ``depth``, ``quoted`` and ``escaped`` are the place inside a
    JSON value. ``missing`` bytes of a frame are to come, and ``head`` is the beginning of its length.
    """

    kind: str = ""
    last: bytes = b""
    blank: bool = False
    depth: int = 0
    quoted: bool = False
    escaped: bool = False
    missing: int = 0
    head: bytes = b""


# The ends of the first and of the last event that end in these bytes; 0 and 0 where none does.
Ends: TypeAlias = tuple[int, int]
Framing: TypeAlias = Callable[[bytes, Scan], Ends]


def whole_lines(data: bytes, _scan: Scan) -> Ends:
    """Lines, each of them an event."""
    return data.find(b"\n") + 1, data.rfind(b"\n") + 1


def lines(data: bytes, scan: Scan) -> Ends:
    """Lines, or SSE events."""
    scan.kind = scan.kind or _kind(data, "lines")
    return _sse_ends(data, scan) if scan.kind == "sse" else whole_lines(data, scan)


def _kind(data: bytes, otherwise: str) -> str:
    """What bytes are, by the first of them that says something; ``""`` where none does."""
    first = data.lstrip(BEFORE)[:1]
    if not first:
        return ""
    return "sse" if first[0] in SSE else otherwise


def _sse_ends(data: bytes, scan: Scan) -> Ends:
    known = len(scan.last)
    seen = scan.last + data
    scan.last = seen[-2:]
    last = max(seen.rfind(b"\n\n") + 2, seen.rfind(b"\n\r\n") + 3) - known
    if last > 0 and (found := _BLANK_LINE.search(seen)):
        scan.blank = True
        return max(found.end() - known, 1), last
    end = data.rfind(b"\n") + 1
    if scan.blank or not end or data[:end].rstrip(b"\r\n")[-1:] not in {b"}", b"]"}:
        return 0, 0
    return data.find(b"\n") + 1, end


def values(data: bytes, scan: Scan) -> Ends:
    """JSON objects, on their own or as elements of an array; or SSE."""
    scan.kind = scan.kind or _kind(data, "values")
    if scan.kind == "sse":
        return _sse_ends(data, scan)
    ends = [end for _, end in value_spans(data, scan)]
    return (ends[0], ends[-1]) if ends else (0, 0)


def value_spans(data: bytes, scan: Scan) -> list[tuple[int, int]]:
    """Where JSON objects that stand in no other begin and end; one that began in an earlier piece begins at 0.

    Brackets and commas of an array around them are passed over. One look at each byte.
    """
    spans: list[tuple[int, int]] = []
    start = position = 0
    while True:
        if scan.quoted:
            position += scan.escaped
            found = _REST_OF_STRING.match(data, position)
        else:
            found = _TOKEN.search(data, position)
        if found is None:
            return spans
        position = found.end()
        token = data[found.start() : found.start() + 1]
        if scan.quoted or token == b'"':
            scan.quoted = found[1] is None
            # A backslash at the very end takes its character from the next piece.
            scan.escaped = scan.quoted and position < len(data)
            if scan.quoted:
                return spans
        elif token == b"{" or (token == b"[" and scan.depth):
            start = start if scan.depth else found.start()
            scan.depth += 1
        elif scan.depth:
            scan.depth -= 1
            if not scan.depth:
                spans.append((start, position))


def frames(data: bytes, scan: Scan) -> Ends:
    """Binary event-stream messages; or lines, where the first byte is not that of a length."""
    if not scan.kind and data:
        scan.kind = "frames" if data[0] < 2 else ""
    if scan.kind != "frames":
        return lines(data, scan)
    first = last = position = 0
    while position < len(data):
        if scan.missing:
            taken = min(scan.missing, len(data) - position)
            scan.missing -= taken
            position += taken
            if not scan.missing:
                first, last = first or position, position
            continue
        if not scan.head and data[position] == 0x0A:
            # Records that were fed together have a newline between them; no length begins with one.
            position += 1
            continue
        head = data[position : position + 4 - len(scan.head)]
        position += len(head)
        scan.head += head
        if len(scan.head) < 4:
            break
        length, scan.head = int.from_bytes(scan.head, "big"), b""
        if not SHORTEST_FRAME <= length <= LONGEST_FRAME:
            # Not a frame: nothing tells where the next one begins, so all of it goes on to be reported.
            return first or len(data), len(data)
        scan.missing = length - 4
    return first, last


class Tail(Struct):
    """What has come of an event that has not ended: its pieces and their size, or that it was given up as too long."""

    pieces: list[bytes] = []
    size: int = 0
    discarding: bool = False
    scan: Scan = msgspec.field(default_factory=Scan)

    def push(self, data: bytes, framing: Framing) -> tuple[bytes, int]:
        """Take bytes; return the events that are now whole, and how many were given up.

        An event longer than 64 MiB is given up: the rest of it is passed over up to its end. Pieces are joined only
        when their event ends, so a long one in small records costs its length and not its square.
        """
        first, end = framing(data, self.scan)
        lost, whole = 0, b""
        if end:
            start = first if self.discarding else 0
            self.discarding = False
            whole = b"".join([*self.pieces, data[start:end]])
            self.pieces, self.size = [], 0
        rest = data[end:]
        if rest and not self.discarding:
            if self.size + len(rest) > MOST_TAIL:
                self.pieces, self.size, self.discarding = [], 0, True
                lost = 1
            else:
                self.pieces.append(rest)
                self.size += len(rest)
        return whole, lost

    def flush(self) -> bytes:
        """Take out what is left, at the end of a run."""
        left = b"".join(self.pieces)
        self.pieces, self.size, self.discarding, self.scan = [], 0, False, Scan()
        return left
