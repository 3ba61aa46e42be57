"""Conversion of a history from any shape that is read into a shape that is written.

A conversion repairs nothing: a call without a result has none afterwards. Only what the other shape has no place for is
left out, and each such loss is a fix.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from reknit.pipeline.fixes import Fix
from reknit.pipeline.history.readers.shapes import read
from reknit.pipeline.history.writers import messages_of, write, writer_named
from reknit.pipeline.session import GivenHistory


class Converted(Struct, frozen=True):
    """A history in another shape.

    Attributes:
        data: the JSON of the list of messages, or the lines of a program's file.
        shape: the shape in which the history was given.
        fixes: what reading took, and a fix for everything that the other shape has no place for.
        lines: the data is the lines of a program's file.
    """

    data: bytes
    shape: str
    fixes: tuple[Fix, ...]
    lines: bool = False

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages, or the lines, as Python objects, as the framework's own function loads them."""
        return messages_of(self.data, lines=self.lines)


def convert(history: GivenHistory, to: str, source: str = "auto") -> Converted:
    """Convert a history into the shape ``to``.

    ``history`` and ``source`` are those of ``normalize``; the shapes that are written are listed in docs/works-with.md.

    Raises:
        InputError: the input cannot be used.
        UnknownTargetError: a shape does not exist, or is not written.

    Example:
        >>> done = convert([{"role": "user", "content": "Hello."}], to="ai-sdk-model")
        >>> done.messages
        [{'role': 'user', 'content': [{'type': 'text', 'text': 'Hello.'}]}]
        >>> done.fixes
        ()
    """
    writer = writer_named(to)
    found = read(history, source)
    written = write(found.conversation, writer)
    return Converted(written.data, found.shape, (*found.fixes, *written.fixes), writer.lines)
