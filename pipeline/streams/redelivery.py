"""Redelivery: which lines were seen before.

A line is a redelivery when its uuid and its content were both seen within the last two messages of its run. A uuid
alone proves nothing: two different lines of one fallback were seen to share one (Claude CLI 2.0.37). What has no uuid
is never told apart by its content, for a model may well say the same thing twice.
"""

from __future__ import annotations

from array import array
from zlib import crc32

from msgspec import Struct

# An agent program that idles writes lines without end; beyond this many in one message the oldest are forgotten.
MOST_LINES = 65_536


class SavedLines(Struct, array_like=True):
    """The window as state: message ids, and eight bytes a line."""

    messages: list[str]
    seen: bytes
    before: bytes


class SeenLines:
    """The lines of the last two messages, each as 64 bits: checksums of its uuid and of its bytes."""

    __slots__ = ("_before", "_messages", "_seen")

    def __init__(self) -> None:
        self._messages: list[str] = []
        self._seen: set[int] = set()
        self._before: set[int] = set()

    def window(self) -> tuple[set[int], set[int]]:
        """The marks of the current message and of the one before, for a loop that looks them up itself.

        They are the window's own until the next ``enter``. What is new is to be added to the first.
        """
        if len(self._seen) >= MOST_LINES:
            self._before, self._seen = self._seen, set()
        return self._seen, self._before

    def is_known(self, uuid: str, line: bytes) -> bool:
        """Whether the line came before; if not, it is known from now on."""
        seen, before = self.window()
        found = mark(uuid, line)
        if found in seen or found in before:
            return True
        seen.add(found)
        return False

    def enter(self, message_id: str | None, uuid: str | None, line: bytes) -> None:
        """A line that says its message has come: if the message is a new one, the window moves on, to this line."""
        message_id = message_id or ""
        if message_id in self._messages:
            return
        self._messages = [*self._messages[-1:], message_id]
        self._before, self._seen = self._seen, set()
        if uuid:
            self._seen.add(mark(uuid, line))

    def save(self) -> SavedLines:
        """The window as a value."""
        return SavedLines(self._messages, _pack(self._seen), _pack(self._before))

    @classmethod
    def load(cls, saved: SavedLines) -> SeenLines:
        """The window that ``save`` described."""
        lines = cls()
        lines._messages = saved.messages
        lines._seen, lines._before = _unpack(saved.seen), _unpack(saved.before)
        return lines


def mark(uuid: str, line: bytes) -> int:
    """A line as 64 bits."""
    return crc32(uuid.encode()) << 32 | crc32(line)


def _pack(marks: set[int]) -> bytes:
    return array("Q", sorted(marks)).tobytes()


def _unpack(marks: bytes) -> set[int]:
    numbers = array("Q")
    numbers.frombytes(marks)
    return set(numbers)
