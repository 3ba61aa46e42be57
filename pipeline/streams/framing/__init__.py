"""Byte framing: records that may end inside an event are joined to whole events.

The end of an event depends on the source, so a decoder names its framing: a function that sees each piece of bytes
once, in order, and returns where events end in it. ``Scan`` is its state between pieces.

- ``lines``: JSON lines and SSE. SSE whose events end in blank lines is cut there, so that an event whose data are on
  several lines stays whole; SSE without blank lines is cut after lines that end an event (``Data``). An object on
  several lines, such as an answer that was not streamed, is cut at its end.
- ``values``: JSON objects one after another, or as the elements of an array, on one line or many; or SSE.
- ``frames``: binary event-stream messages with a length prefix; or lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec
from msgspec import Raw, Struct

MOST_TAIL = 64 * 1024 * 1024
# An event-stream message: a length of 4 bytes in front; at least a prelude and two checksums; at most 16 MiB by the
# format's own rules, doubled to be lenient.
SHORTEST_FRAME: Final = 16
LONGEST_FRAME: Final = 32 * 1024 * 1024

BOM: Final = b"\xef\xbb\xbf"
# Whitespace and a byte order mark, which may precede everything.
BEFORE: Final = b" \t\r\n" + BOM
# The first bytes of SSE lines: data, event, id, retry, and a colon for a comment.
SSE: Final = frozenset(b"deir:")
DONE: Final = b"[DONE]"
_BLANK_LINE: Final = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r)")
# Lines that say something of an event; with a name alone it has not ended.
_FIELD: Final = re.compile(rb"(?:\A|[\r\n])(?:data|event):")
_BESIDE: Final = (b":", b"id:", b"retry:")
# The length of a line's beginning that identifies it; the longest is `data: [DONE]`.
_HEAD: Final = 16
# The first line of an object that is laid out on many lines; what it may still become.
LAID_OUT: Final = re.compile(rb"\{[ \t]*[\r\n]")
_MAY_BE_LAID_OUT: Final = re.compile(rb"\{[ \t]*\Z")
# A string, whole or up to where the piece or the line ends, or a bracket. No string of JSON goes beyond its line.
_TOKEN: Final = re.compile(rb'"(?:[^"\\\r\n]++|\\[^\r\n])*+("|\\?[\r\n])?|[{}\[\]]')
_REST_OF_STRING: Final = re.compile(rb'(?:[^"\\\r\n]++|\\[^\r\n])*+("|\\?[\r\n])?')
_value: Final[msgspec.json.Decoder[Raw]] = msgspec.json.Decoder(Raw)
# After one of these, the object of a line may be inside another one.
_GOES_ON: Final = (b":", b",", b"[")


class Scan(Struct):
    """The state of a framing between pieces.

    ``kind`` is the detected kind of the bytes, ``""`` before the first. ``last`` are the last two bytes, and ``blank``
    says that blank lines occurred (lines). ``depth``, ``quoted`` and ``escaped`` are the place inside a JSON value.
    ``missing`` is the number of missing bytes of a frame, and ``head`` the beginning of its length. ``line`` is the
    beginning of the unfinished line; ``named`` and ``words`` say that the unfinished event has a name, or words that
    are not an object; ``before`` is the last byte of an unfinished object.
    """

    kind: str = ""
    last: bytes = b""
    blank: bool = False
    depth: int = 0
    quoted: bool = False
    escaped: bool = False
    missing: int = 0
    head: bytes = b""
    line: bytes = b""
    named: bool = False
    words: bool = False
    before: bytes = b""

    # Where an event of SSE ends without a blank line. The same rule serves here and where payloads are read (``sse``),
    # and it looks at each line once and never back: so bytes mean the same wherever they are cut.

    def begin_data(self, payload: bytes) -> bool:
        """Note that a line of data begins; return True if it begins an event whatever preceded it.

        Data that is not an object waits for more words. An object continues in the next lines until its last bracket;
        one that was cut continues at most to a line that cannot be part of it.
        """
        if payload == DONE or (payload[:1] == b"{" and not (self.depth and self.before in _GOES_ON)):
            self.depth, self.words = 0, False
            return True
        self.words = not self.depth
        return False

    def take_data(self, payload: bytes) -> None:
        """More of a line of data, which is no more than a line."""
        if not self.words:
            value_spans(payload, self)
            self.before = (payload.rstrip()[-1:] or self.before) if self.depth else b""

    def end_data(self) -> bool:
        """The line of data ends; whether its event does, too."""
        if self.quoted:
            self.depth, self.quoted, self.escaped = 0, False, False  # it was cut inside a string
        if not (self.depth or self.words):
            self.named = False
            return True
        return False

    def end_event(self) -> None:
        self.depth, self.quoted, self.escaped, self.named, self.words = 0, False, False, False, False


# The ends of the first and of the last event that end in these bytes; 0 and 0 where none does.
Ends: TypeAlias = tuple[int, int]
Framing: TypeAlias = Callable[[bytes, Scan], Ends]


def whole_lines(data: bytes, _scan: Scan) -> Ends:
    return data.find(b"\n") + 1, data.rfind(b"\n") + 1


def lines(data: bytes, scan: Scan) -> Ends:
    """Lines, or SSE events; or objects that are laid out on many lines."""
    if not scan.kind:
        data, known = scan.line + data, len(scan.line)
        first, last = _first_lines(data, scan)
        return (max(first - known, 1), last - known) if last else (0, 0)
    if scan.kind == "values":
        return _value_ends(data, scan)
    if scan.kind == "lines":
        if not ((b"data:" in data or b"event:" in data or scan.line) and _FIELD.search(scan.line + data)):
            return _plain_ends(data, scan)
        scan.kind = "sse"
    return _sse_ends(data, scan)


def _first_lines(data: bytes, scan: Scan) -> Ends:
    """The ends in the first bytes that say what they are; until then they are remembered."""
    start = data.lstrip(BEFORE)
    scan.kind, scan.line = _kind(data, "lines"), b""
    if scan.kind == "lines" and _MAY_BE_LAID_OUT.match(start):
        scan.kind, scan.line = "", start
        return 0, 0
    if scan.kind == "lines" and LAID_OUT.match(start):
        scan.kind = "values"
    first, last = lines(start, scan) if scan.kind else (0, 0)
    skipped = len(data) - len(start)
    return (first + skipped, last + skipped) if last else (0, 0)


def _plain_ends(data: bytes, scan: Scan) -> Ends:
    first, last = whole_lines(data, scan)
    scan.line = data[last : last + _HEAD] if last else (scan.line + data[:_HEAD])[:_HEAD]
    return first, last


def _kind(data: bytes, otherwise: str) -> str:
    """Return the kind of bytes, by the first significant one; ``""`` if there is none."""
    first = data.lstrip(BEFORE)[:1]
    if not first:
        return ""
    return "sse" if first[0] in SSE else otherwise


def _sse_ends(data: bytes, scan: Scan) -> Ends:
    known = len(scan.last)
    seen = scan.last + data
    scan.last = seen[-2:]
    last = max(seen.rfind(b"\n\n") + 2, seen.rfind(b"\n\r\n") + 3)
    if seen.count(b"\r") != seen.count(b"\r\n"):
        last = max((found.end() for found in _BLANK_LINE.finditer(seen)), default=0)
    if last > known and (found := _BLANK_LINE.search(seen)):
        scan.blank = True
        return max(found.end() - known, 1), last - known
    return (0, 0) if scan.blank else _ends_without_blank_lines(data, scan)


def _ends_without_blank_lines(data: bytes, scan: Scan) -> Ends:
    first = last = position = 0
    data = data.replace(b"\r", b"\n")  # the text between CR and LF is not a line
    while position < len(data):
        newline = data.find(b"\n", position)
        part = data[position : len(data) if newline < 0 else newline]
        position += len(part) + 1
        if newline >= 0 and not scan.line and not scan.depth and is_object(data_of(part)):
            scan.end_event()
            first, last = first or position, position
            continue
        _take_line(part, scan)
        if newline < 0:
            break
        if scan.line and _ends_event(scan):
            first, last = first or position, position
        scan.line = b""
    return first, last


def is_object(payload: bytes) -> bool:
    if payload[:1] != b"{" or payload[-1:] != b"}":
        return False
    try:
        _value.decode(payload)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _take_line(part: bytes, scan: Scan) -> None:
    if len(scan.line) < _HEAD:
        line = (scan.line + part).removeprefix(BOM)
        scan.line, part = line[:_HEAD], line[_HEAD:]
        if len(scan.line) == _HEAD and scan.line.startswith(b"data:"):
            scan.begin_data(data_of(scan.line))
            scan.take_data(data_of(scan.line))
    if part and scan.line.startswith(b"data:"):
        scan.take_data(part)


def _ends_event(scan: Scan) -> bool:
    """Return True if a line that has ended ends an event, too."""
    line = scan.line
    if line.startswith(b"data:"):
        if len(line) < _HEAD:
            scan.begin_data(data_of(line))
            scan.take_data(data_of(line))
        return scan.end_data()
    if is_beside(line):
        return not (scan.depth or scan.words or scan.named)
    scan.end_event()
    scan.named = line.startswith(b"event:")
    return not scan.named


def is_beside(line: bytes) -> bool:
    """Return True if a line of SSE, not empty, is not part of its event's data; its beginning suffices."""
    return line.startswith(_BESIDE) or line.isspace()


def data_of(line: bytes) -> bytes:
    """Return the content of a line of data; ``b""`` for any other line."""
    if not line.startswith(b"data:"):
        return b""
    return line[6:] if line[5:6] == b" " else line[5:]


def values(data: bytes, scan: Scan) -> Ends:
    """JSON objects, on their own or as elements of an array; or SSE."""
    scan.kind = scan.kind or _kind(data, "values")
    return _sse_ends(data, scan) if scan.kind == "sse" else _value_ends(data, scan)


def _value_ends(data: bytes, scan: Scan) -> Ends:
    ends = [end for _, end in value_spans(data, scan)]
    return (ends[0], ends[-1]) if ends else (0, 0)


def value_spans(data: bytes, scan: Scan) -> list[tuple[int, int]]:
    """Return the spans of JSON objects that are not inside others; one that began in an earlier piece begins at 0.

    Brackets and commas of an enclosing array are skipped. Each byte is read once. An object that was cut inside a
    string ends with its line, because a JSON string cannot span lines.
    """
    spans: list[tuple[int, int]] = []
    start = position = 0
    while True:
        if scan.quoted:
            position += scan.escaped and data[:1] not in {b"\r", b"\n"}
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
            if found[1] != b'"' and scan.depth:
                scan.depth = 0
                spans.append((start, position))
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
            # Not a frame: nothing marks the start of the next one, so everything is passed on and reported.
            return first or len(data), len(data)
        scan.missing = length - 4
    return first, last


class Tail(Struct):
    """The received part of an unfinished event: its pieces and their size, or that it was dropped as too long."""

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
        left = b"".join(self.pieces)
        self.pieces, self.size, self.discarding, self.scan = [], 0, False, Scan()
        return left
