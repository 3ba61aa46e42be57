"""What is remembered of a choice of a chat while it grows, and how its blocks begin and end."""

from __future__ import annotations

from msgspec import Struct

from pipeline.streams.events import BlockStarted, BlockStopped, Event
from pipeline.streams.own import other_answer


class Call(Struct, array_like=True):
    """A call, and by what it is known.

    ``block`` is -1 while the call waits for what it is known by; what came of its input is ``held`` till then.
    ``free``: its input is text, which stands in an object of JSON. ``begun``: some of its input has come. ``old``: the
    API of functions made it, which has no ids. ``depth`` and ``mode`` tell where the held JSON stands: how many of its
    objects and lists are open, and whether it is outside of a string (0), in one (1), or behind a backslash (2).
    """

    block: int
    index: int
    id: str
    free: bool = False
    name: str = ""
    held: list[str] = []
    begun: bool = False
    old: bool = False
    depth: int = 0
    mode: int = 0


class Growing(Struct, array_like=True):
    """A choice as it grows; ``number`` is its own.

    ``kind`` and ``block`` are what grows now, ``thinking`` is the last block of reasoning. ``others`` are the blocks of
    members that nobody knows, by name. ``plain`` says that a chunk without a role has come; ``reason`` is why it
    stopped, ``""`` while it grows. Of the ``calls`` the first ``started`` have begun; they are found by index and by
    id. ``text`` is the last block of text, and ``waiting`` what stands beside a text that has not begun, as JSON.
    ``late`` is why it had stopped when it went on all the same.
    """

    number: int = 0
    kind: str = ""
    block: int = -1
    thinking: int = -1
    calls: list[Call] = []
    others: dict[str, int] = {}
    plain: bool = False
    reason: str = ""
    started: int = 0
    by_index: dict[int, int] = {}
    by_id: dict[str, int] = {}
    text: int = -1
    waiting: list[tuple[str, bytes, bool]] = []
    late: str = ""


class Blocks(Struct, array_like=True):
    """The blocks of one message, over all its choices; ``count`` is the next one's index."""

    count: int = 0

    def next(self) -> int:
        """The index of a new block."""
        self.count += 1
        return self.count - 1


def start(growing: Growing, started: BlockStarted, events: list[Event]) -> int:
    """Start a block; only the first choice's are the message's own."""
    events.append(other_answer(growing.number, started) if growing.number else started)
    return started.index


def leave(growing: Growing, events: list[Event]) -> None:
    """End the text or the reasoning that grows, if any does."""
    if growing.kind:
        events.append(BlockStopped(growing.block))
        growing.kind = ""
