"""What recovery knows of a session, and what holds for the source that is at work.

``Memory`` is all of it that changes, and is saved with every batch: the current message, the counters from which ids
are made, the text of the message before, with which a result is compared. ``Context`` is what an action works on.
"""

from __future__ import annotations

import enum
import hashlib

from msgspec import Struct, field

from pipeline.errors import StreamError
from pipeline.fixes import Fix
from pipeline.streams.recovery.diagnosis import Trace
from pipeline.streams.recovery.message import Message, ShownBlock
from pipeline.streams.recovery.render import FinishedTurn


class Word(enum.StrEnum):
    """A word that looks itself up fast: the hash that enums have is a call in Python, and the table asks for two."""

    __hash__ = str.__hash__


class MessageState(Word):
    """What is known about the current message; ``table`` says what each of them means."""

    IDLE = "idle"
    OPEN = "open"
    CUT = "cut"
    FINISHED = "finished"
    ANSWERED = "answered"
    DONE = "done"
    PROMOTED = "promoted"
    CLOSED = "closed"


class Ids(Struct):
    """Counters that a session never resets, and which call ids it has seen.

    A call keeps its own id. If the id comes again (some vendors count ``call_0`` from the start in every turn, and a
    withdrawn id must not return) its item gets a suffix. Eight bytes a call are kept for that, not the ids.
    """

    prefix: str
    streamed: int = 0
    promoted: int = 0
    subagent: int = 0
    user: int = 0
    numbered: int = 0
    turns: int = 0
    calls: set[int] = set()
    # The highest suffix of a call id that came more than once.
    again: dict[str, int] = {}

    def for_streamed(self) -> str:
        self.streamed += 1
        return f"{self.prefix}-block-{self.streamed - 1}"

    def for_promoted(self) -> str:
        self.promoted += 1
        return f"{self.prefix}-promoted-{self.promoted - 1}"

    def for_subagent(self) -> str:
        self.subagent += 1
        return f"{self.prefix}-subagent-{self.subagent - 1}"

    def for_user(self) -> str:
        self.user += 1
        return f"{self.prefix}-user-{self.user - 1}"

    def next_number(self) -> int:
        """The next number of records that have no id."""
        self.numbered += 1
        return self.numbered - 1

    def for_call(self, tool_id: str) -> str:
        suffix, item_id = self.again.get(tool_id, 1), tool_id
        while not self._is_new(item_id):
            suffix += 1
            item_id = f"{tool_id}~{suffix}"
        if item_id != tool_id:
            self.again[tool_id] = suffix
        return item_id

    def of_call(self, tool_id: str) -> str:
        """The item id of the last call with this id."""
        suffix = self.again.get(tool_id)
        return tool_id if suffix is None else f"{tool_id}~{suffix}"

    def _is_new(self, item_id: str) -> bool:
        mark = int.from_bytes(hashlib.blake2b(item_id.encode("utf-8", "replace"), digest_size=8).digest(), "little")
        if mark in self.calls:
            return False
        self.calls.add(mark)
        return True


class Shown(Struct, array_like=True):
    """The text that a message of the main turn left on the screen, block by block."""

    message_id: str | None
    streamed: bool
    texts: list[str]

    @classmethod
    def of(cls, message: Message) -> Shown | None:
        blocks = message.surviving()
        if not blocks:
            return None
        return cls(message.id, message.attempt, [block.text() for block in blocks if block.kind == "text"])


class Memory(Struct):
    ids: Ids
    state: MessageState = MessageState.IDLE
    message: Message | None = None
    before: Shown | None = None
    finished: list[FinishedTurn] = []
    trace: Trace = field(default_factory=Trace)
    fixes: list[Fix] = []
    # What the run showed, where its program has a transcript to compare it with.
    shown: list[ShownBlock] = []


class Context(Struct, frozen=True, kw_only=True):
    """What an action works on: the memory, and how this source's events are to be taken.

    ``complete_messages``: the source sends everything in complete messages, which alone prove a block; else its own
    stop does. ``whole_blocks``: it sends nothing else, and keeps what an attempt that was cut has said. ``records``:
    finished turns and fixes are kept for the log. ``issuer`` is the provider's name, for reasoning in the log; ``""``
    where complete messages tell all there is. ``excerpt`` is how much of each end of a run's text a diagnosis keeps, in
    code points. ``transcribed``: the program has a transcript, with which what was shown is compared.
    """

    memory: Memory
    complete_messages: bool
    whole_blocks: bool
    records: bool
    issuer: str
    excerpt: int
    transcribed: bool = False

    @property
    def message(self) -> Message:
        """The current message; actions that need one stand in the table only where there is one."""
        message = self.memory.message
        if message is None:
            raise StreamError("no_message", "there is no message that the event can be about")
        return message

    @property
    def ids(self) -> Ids:
        return self.memory.ids

    def add_finished(self, turns: list[FinishedTurn]) -> None:
        self.memory.ids.turns += len(turns)
        self.memory.finished += turns
