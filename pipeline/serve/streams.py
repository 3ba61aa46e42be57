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
        first: the beginning of the stream, up to 256 KiB.
        last: the end of the bytes so far, up to 64 KiB.
        is_in_frames: its events are binary frames.

    Args:
        target: of the request; the source of its stream has the same name.
        is_in_frames: as the attribute.
    """

    def __init__(self, target: str, *, is_in_frames: bool = False) -> None:
        self._reader: AnswerReader | None = AnswerReader(SOURCES[target], "bytes")
        self.first = b""
        self.last = b""
        self.is_in_frames = is_in_frames
        self._left_of_frame = 0
        self._length = b""

    def take(self, data: bytes) -> None:
        """Note the next bytes of the answer."""
        if len(self.first) < _FIRST_BYTES:
            self.first += data[: _FIRST_BYTES - len(self.first)]
        self.last = (self.last + data)[-_LAST_BYTES:] if len(data) < _LAST_BYTES else data[-_LAST_BYTES:]
        if self.is_in_frames:
            self._follow_frames(data)
        if self._reader is not None:
            try:
                self._reader.take(data)
            except InputError:  # an event that is larger than a record may be: completeness is unknown from now on
                self._reader = None

    def ends_whole(self) -> bool:
        """End the stream, and return True unless it is known to be cut.

        An error event of the provider is an end as well: clients report it.
        """
        if self._reader is None:
            return True
        self._reader.finish()
        return self._reader.is_whole or self._reader.failure is not None

    @property
    def is_whole(self) -> bool:
        """True once the final event has come."""
        return self._reader is not None and self._reader.is_whole

    @property
    def has_content(self) -> bool:
        """True if output of the model has come, or may have come."""
        return self._reader is None or self._reader.has_content

    @property
    def losses(self) -> int:
        """The number of blocks of the request that the answer reports as dropped."""
        return 0 if self._reader is None else self._reader.losses

    @property
    def is_refused(self) -> bool:
        """True if the provider has refused the request in the stream."""
        failure = None if self._reader is None else self._reader.failure
        return failure is not None and failure.is_refusal

    @property
    def facts(self) -> AnswerFacts:
        """Its id, model, stop reason and tokens."""
        return AnswerFacts() if self._reader is None else self._reader.facts

    @property
    def is_at_boundary(self) -> bool:
        """True if the last event is complete, so that another one can follow."""
        if self.is_in_frames:
            return not (self._left_of_frame or self._length)
        return not self.last or self.last.endswith(_EVENT_ENDS)

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
