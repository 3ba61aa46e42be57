"""Completeness of one streamed answer.

HTTP cannot report a cut: without a length, a closed connection ends a complete answer and a cut one alike. A stream
without its final event is a cut. The decoder of the stream's source finds the final event, as in the reference sender.
"""

from __future__ import annotations

from typing import Final

from reknit.pipeline.client.answers import AnswerFacts, AnswerReader
from reknit.pipeline.errors import InputError
from reknit.pipeline.registry import SOURCES

_FRAMES: Final = "application/vnd.amazon.eventstream"
_STREAM_TYPES: Final = ("text/event-stream", _FRAMES)
# Bytes of the beginning and of the end that an error event is made from.
_FIRST_BYTES: Final = 256 * 1024
_LAST_BYTES: Final = 64 * 1024
# Events are read once this number of bytes has come, or when one of their properties is asked. With each event read as
# it comes, an event takes 15 µs more.
_READ_BYTES: Final = 16 * 1024
_LENGTH_BYTES: Final = 4
_EVENT_ENDS: Final = (b"\n\n", b"\r\n\r\n", b"\r\r")


def is_stream(content_type: str) -> bool:
    return _media_type(content_type) in _STREAM_TYPES


def is_in_frames(content_type: str) -> bool:
    """Return True for a stream of Bedrock, whose events are binary frames; all others are server-sent events."""
    return _media_type(content_type) == _FRAMES


def is_json(content_type: str) -> bool:
    return _media_type(content_type) == "application/json"


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


class StreamWatch:
    """Follows the bytes of one answer.

    Attributes:
        is_in_frames: its events are binary frames.

    Args:
        target: of the request; the source of its stream has the same name.
        is_in_frames: as the attribute.
    """

    def __init__(self, target: str, *, is_in_frames: bool = False) -> None:
        self._answer: AnswerReader | None = AnswerReader(SOURCES[target], "bytes")
        self._unread: list[bytes] = []
        self._unread_bytes = 0
        self._first = bytearray()
        self._last = bytearray()
        self.is_in_frames = is_in_frames
        self._left_of_frame = 0
        self._length = b""

    def take(self, data: bytes) -> None:
        """Note the next bytes of the answer."""
        self._unread.append(data)
        self._unread_bytes += len(data)
        if self._unread_bytes >= _READ_BYTES:
            self._read()

    def _read(self) -> AnswerReader | None:
        """Return the reader after all bytes; None if an event was larger than a record may be."""
        if self._unread:
            data = b"".join(self._unread)
            self._unread, self._unread_bytes = [], 0
            self._keep_ends(data)
            if self.is_in_frames:
                self._follow_frames(data)
            try:
                if self._answer is not None:
                    self._answer.take(data)
            except InputError:  # completeness is unknown from now on
                self._answer = None
        return self._answer

    def _keep_ends(self, data: bytes) -> None:
        if len(self._first) < _FIRST_BYTES:
            self._first += data
        self._last += data
        if len(self._last) > 2 * _LAST_BYTES:
            del self._last[:-_LAST_BYTES]

    @property
    def first(self) -> bytes:
        """The beginning of the stream, up to 256 KiB."""
        self._read()
        return bytes(self._first[:_FIRST_BYTES])

    @property
    def last(self) -> bytes:
        """The end of the bytes so far, up to 64 KiB."""
        self._read()
        return bytes(self._last[-_LAST_BYTES:])

    def ends_whole(self) -> bool:
        """End the stream, and return True unless it is known to be cut.

        An error event of the provider is an end as well: clients report it.
        """
        reader = self._read()
        if reader is None:
            return True
        reader.finish()
        return reader.is_whole or reader.failure is not None

    @property
    def is_whole(self) -> bool:
        """True once the final event has come."""
        reader = self._read()
        return reader is not None and reader.is_whole

    @property
    def has_content(self) -> bool:
        """True if output of the model has come, or may have come."""
        reader = self._read()
        return reader is None or reader.has_content

    @property
    def losses(self) -> int:
        """The number of blocks of the request that the answer reports as dropped."""
        reader = self._read()
        return 0 if reader is None else reader.losses

    @property
    def is_refused(self) -> bool:
        """True if the provider has refused the request in the stream."""
        reader = self._read()
        failure = None if reader is None else reader.failure
        return failure is not None and failure.is_refusal

    @property
    def facts(self) -> AnswerFacts:
        """Its id, model, stop reason and tokens."""
        reader = self._read()
        return AnswerFacts() if reader is None else reader.facts

    @property
    def is_at_boundary(self) -> bool:
        """True if the last event is complete, so that another one can follow."""
        self._read()
        if self.is_in_frames:
            return not (self._left_of_frame or self._length)
        return not self._last or self._last.endswith(_EVENT_ENDS)

    def _follow_frames(self, data: bytes) -> None:
        """Follow the lengths of frames: each begins with its length, which includes these four bytes."""
        at = 0
        while at < len(data):
            if self._left_of_frame:
                step = min(self._left_of_frame, len(data) - at)
                self._left_of_frame -= step
            else:
                step = min(_LENGTH_BYTES - len(self._length), len(data) - at)
                self._length += data[at : at + step]
                if len(self._length) == _LENGTH_BYTES:
                    self._left_of_frame = max(0, int.from_bytes(self._length) - _LENGTH_BYTES)
                    self._length = b""
            at += step
