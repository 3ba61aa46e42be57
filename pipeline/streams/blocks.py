"""Blocks as events: how they begin, grow and end, and those that the canonical form does not have.

Sources whose chunks say nothing of where a block begins or ends (Gemini, chats) write their blocks with a
``BlockWriter``; what the others send has its places already.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar, get_args

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from pipeline.model import Block
from pipeline.streams.events import BlockDelta, BlockNoted, BlockStarted, BlockStopped, Event
from pipeline.streams.fields import Fields

CANONICAL: Final = frozenset(str(block.__struct_config__.tag) for block in get_args(Block))


class Answer(Struct):
    """One answer of a message as it grows: its number, and the kind and the block of the words that grow now.

    The first answer is the message's own. With no kind (``""``) nothing grows. This is saved; a source adds to it what
    else it has to remember.
    """

    number: int = 0
    kind: str = ""
    block: int = -1


A = TypeVar("A", bound=Answer)


class BlockWriter(Generic[A]):
    """Writes what comes of one answer as events of its blocks.

    One block of words is open at a time, and ends where something else begins. Blocks of any other kind begin, grow and
    end beside it, each by its index. ``next_index`` counts the blocks of the message.
    """

    __slots__ = ("_next_index", "answer", "events")

    def __init__(self, answer: A, next_index: Callable[[], int]) -> None:
        self.answer = answer
        self.events: list[Event] = []
        self._next_index = next_index

    def open_words(self, kind: str, shown_as: str) -> int:
        """End the words that are open and begin others, of a kind of the source's that is shown as text or thinking."""
        self.end_words()
        self.answer.kind = kind
        self.answer.block = self.begin_block(shown_as)
        return self.answer.block

    def end_words(self) -> None:
        if self.answer.kind:
            self.end_block(self.answer.block)
            self.answer.kind = ""

    def begin_block(
        self, kind: str, *, tool_id: str | None = None, name: str = "", raw: Raw | UnsetType = UNSET
    ) -> int:
        index = self._next_index()
        started = BlockStarted(index=index, kind=kind, tool_id=tool_id, name=name, raw=raw)
        self.events.append(other_answer(self.answer.number, started) if self.answer.number else started)
        return index

    def begin_own_block(self, kind: str, members: Fields) -> int:
        kind, raw = own_block(kind, members)
        return self.begin_block(kind, raw=raw)

    def add_delta(self, index: int, kind: str, content: str) -> None:
        """More of a block; ``kind`` is that of the delta."""
        self.events.append(BlockDelta(index, kind, content))

    def add_raw_delta(self, index: int, kind: str, raw: Raw) -> None:
        self.events.append(BlockDelta(index, kind, "", raw=raw))

    def note_member(self, index: int, name: str, value: Raw, *, appends: bool = False, aside: bool = False) -> None:
        """A member that stands beside a block's text; see ``BlockNoted``."""
        self.events.append(BlockNoted(index, name, value, appends=appends, aside=aside))

    def end_block(self, index: int) -> None:
        self.events.append(BlockStopped(index))


def own_block(kind: str, members: Fields) -> tuple[str, Raw]:
    """The type and the JSON of a block that the canonical form does not have: its members, with its type among them.

    What names itself like a block of the canonical form, and could not be read as one, must not pass for one later: it
    is of the type ``unknown`` and stands in the member ``came``.
    """
    if not kind or kind in CANONICAL:
        return "unknown", Raw(msgspec.json.encode({"type": "unknown", "came": members}))
    return kind, Raw(msgspec.json.encode({"type": kind} | members))


def other_answer(number: int, started: BlockStarted) -> BlockStarted:
    """The block of another answer than the first (a chat's choice, a candidate of Gemini's).

    It is shown as it grows, and its type keeps it out of what the model is told that it said. A block of the source's
    own type stands in the member ``block``.
    """
    about: dict[str, object] = {"type": "choice", "choice": number, "of": started.kind}
    if started.tool_id is not None:
        about |= {"id": started.tool_id, "name": started.name}
    if started.raw is not UNSET:
        about["block"] = started.raw
    return BlockStarted(index=started.index, kind="choice", name=started.name, raw=Raw(msgspec.json.encode(about)))
