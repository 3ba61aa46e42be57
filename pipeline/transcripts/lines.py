"""A file of JSON lines in which unchanged lines keep their bytes.

Programs in JavaScript write half surrogate pairs as escapes and read bytes that are not UTF-8 as U+FFFD. msgspec
refuses both, so such lines are read and written by the standard library.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any, Final, NoReturn

import msgspec
from msgspec import Struct

JsonObject = dict[str, Any]
_decode: Final = msgspec.json.Decoder(JsonObject).decode


class TranscriptLine(Struct, eq=False):
    """One line.

    Attributes:
        number: counted from 0 in the given file; that of the line before it if the line was inserted.
        raw: its bytes without the line break.
        value: its JSON object; None for a blank line and for one that cannot be read.
        is_utf8: False if the value has U+FFFD where the bytes are not UTF-8.
        is_document: it is the whole file, one object on many lines.
    """

    number: int
    raw: bytes
    value: JsonObject | None
    is_utf8: bool = True
    is_document: bool = False

    @property
    def members(self) -> JsonObject:
        """The members of its object; changes to them need ``change``."""
        return {} if self.value is None else self.value

    @property
    def is_unreadable(self) -> bool:
        return self.value is None and bool(self.raw.strip())

    def change(self) -> None:
        """Write the line again from its value, which the caller has changed."""
        self.raw = _encoded(self.value)
        if self.is_document:
            self.raw = msgspec.json.format(self.raw, indent=2)


class TranscriptLines:
    """The lines of a file."""

    def __init__(self, data: bytes) -> None:
        document = _object(data) if data.lstrip().startswith(b"{") else None
        if document is not None:
            self._lines = [TranscriptLine(0, data, document, _is_utf8(data), is_document=b"\n" in data.strip())]
            return
        if data.lstrip().partition(b"\n")[0].strip() == b"{":
            self._lines = [TranscriptLine(0, data, None, is_document=True)]
            return
        self._lines = [
            TranscriptLine(number, raw, None if not raw.strip() else _object(raw), _is_utf8(raw))
            for number, raw in enumerate(data.split(b"\n"))
        ]

    def __iter__(self) -> Iterator[TranscriptLine]:
        """Yield the lines with a JSON object, in order."""
        return iter([line for line in self._lines if line.value is not None])

    def unreadable(self) -> list[TranscriptLine]:
        return [line for line in self._lines if line.is_unreadable]

    def is_last(self, line: TranscriptLine) -> bool:
        """Return True if no line follows but blank ones."""
        at = self._lines.index(line)
        return not any(other.raw.strip() for other in self._lines[at + 1 :])

    def restore(self, line: TranscriptLine, data: bytes, members: Collection[str] = ()) -> bool:
        """Give a line that could not be read the JSON of an object with these members; False if it is none."""
        value = _object(data)
        if value is None or not value.keys() >= set(members):
            return False
        line.raw, line.value, line.is_utf8 = data, value, True
        if line.is_document:
            line.change()
        return True

    def end_last(self) -> None:
        """End the last line with a line break, since programs append to it."""
        if self._lines and self._lines[-1].raw.strip() and not self._lines[-1].is_document:
            self._lines.append(TranscriptLine(self._lines[-1].number, b"", None))

    def drop(self, line: TranscriptLine) -> None:
        self._lines.remove(line)

    def insert_after(self, line: TranscriptLine, value: JsonObject) -> TranscriptLine:
        inserted = TranscriptLine(line.number, _encoded(value), value)
        self._lines.insert(self._lines.index(line) + 1, inserted)
        return inserted

    def insert_first(self, value: JsonObject) -> TranscriptLine:
        inserted = TranscriptLine(0, _encoded(value), value)
        self._lines.insert(0, inserted)
        return inserted

    def encode(self) -> bytes:
        return b"\n".join(line.raw for line in self._lines)


def _object(raw: bytes) -> JsonObject | None:
    try:
        return _decode(raw)
    except RecursionError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:
        value = json.loads(raw.decode("utf-8", "replace"), parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)  # NaN and Infinity, which no other reader takes


def _encoded(value: object) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
