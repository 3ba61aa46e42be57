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


class Marks:
    """The lines of one message: a set to look them up, and the same in the order they came, ready to be saved."""

    __slots__ = ("known", "packed")

    def __init__(self, packed: bytes = b"") -> None:
        # Saved with every batch, so it only grows at its end and is never put together anew.
        self.packed = array("Q", packed)
        self.known = set(self.packed)

    def add_mark(self, mark: int) -> None:
        self.known.add(mark)
        self.packed.append(mark)


class SeenLines:
    """The lines of the last two messages, each as 64 bits: checksums of its uuid and of its bytes."""

    __slots__ = ("_before", "_messages", "_seen")

    def __init__(self) -> None:
        self._messages: list[str] = []
        self._seen = Marks()
        self._before = Marks()

    def window(self) -> tuple[Marks, Marks]:
        """The marks of the current message and of the one before, for a loop that looks them up itself.

        They are the window's own until the next ``enter``. What is new is to be added to the first.
        """
        if len(self._seen.known) >= MOST_LINES:
            self._before, self._seen = self._seen, Marks()
        return self._seen, self._before

    def is_known(self, uuid: str, line: bytes) -> bool:
        """Whether the line came before; if not, it is known from now on."""
        seen, before = self.window()
        found = mark_of(uuid, line)
        if found in seen.known or found in before.known:
            return True
        seen.add_mark(found)
        return False

    def enter(self, message_id: str | None, uuid: str | None, line: bytes) -> None:
        """A line that says its message has come: if the message is a new one, the window moves on, to this line."""
        message_id = message_id or ""
        if message_id in self._messages:
            return
        self._messages = [*self._messages[-1:], message_id]
        self._before, self._seen = self._seen, Marks()
        if uuid:
            self._seen.add_mark(mark_of(uuid, line))

    def save(self) -> SavedLines:
        return SavedLines(self._messages, self._seen.packed.tobytes(), self._before.packed.tobytes())

    @classmethod
    def load(cls, saved: SavedLines) -> SeenLines:
        lines = cls()
        lines._messages = saved.messages
        lines._seen, lines._before = Marks(saved.seen), Marks(saved.before)
        return lines


def mark_of(uuid: str, line: bytes) -> int:
    return crc32(uuid.encode()) << 32 | crc32(line)
