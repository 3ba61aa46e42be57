"""The memory of recovery for a session, and the meaning of an event in its state.

``Memory`` is everything that changes, and is saved with every batch: the current message, the counters from which ids
are made, the run so far, and the text of the previous message, with which a result is compared. ``Context`` is the
argument of an action. The state of the current message, and the meaning of an event for that message, are the keys of
the transition table.
"""

from __future__ import annotations

import enum
import hashlib
from typing import Final, cast

from msgspec import Struct, field

from reknit.pipeline.errors import StreamError
from reknit.pipeline.fixes import Fix
from reknit.pipeline.streams.events import (
    BLOCK_OF_DELTA,
    Aside,
    BlockDelta,
    BlockNoted,
    BlockStarted,
    BlockStopped,
    Event,
    Failed,
    MessageDelta,
    MessageStarted,
    MessageStopped,
    Notice,
    Retried,
    Rewritten,
    RunEnded,
    RunResult,
    StreamedEvent,
    UsageKnown,
    UserMessage,
    WholeMessage,
)
from reknit.pipeline.streams.recovery.message import Message, ShownBlock
from reknit.pipeline.streams.recovery.render import FinishedTurn
from reknit.topics.items import SessionInit

# Code points of a run's text that are kept at each end.
EXCERPT: Final = 400


class Word(enum.StrEnum):
    """A word that looks itself up fast: the hash that enums have is a call in Python, and the table asks for two."""

    __hash__ = str.__hash__


class MessageState(Word):
    """The state of the current message; ``MEANINGS`` has the meaning of each."""

    IDLE = "idle"
    OPEN = "open"
    CUT = "cut"
    FINISHED = "finished"
    ANSWERED = "answered"
    DONE = "done"
    PROMOTED = "promoted"
    CLOSED = "closed"


class Input(Word):
    """A common event, seen from the current message."""

    START = "message started"
    BLOCK_START = "block started"
    BLOCK_DELTA = "block delta"
    BLOCK_NOTE = "block noted"
    BLOCK_STOP = "block stopped"
    UNSTARTED = "content of a message whose start was lost"
    FINISH = "stop reason"
    FINISH_ANSWERED = "stop reason, and all calls have results"
    FINISH_STOPPED = "stop reason of a message that stopped without one, where nothing else proves it"
    NO_FINISH = "null stop reason"
    STOP = "message stopped"
    ABANDON = "message stopped, blocks abandoned"
    OWN = "complete message, this one"
    FOREIGN = "complete message, another one"
    USAGE = "token counts"
    RETRY = "retry, or an error that ends the attempt"
    ANSWER = "the last missing tool result of a finished message"
    ASIDE = "event without a message"
    LATE = "event of a message that is over"
    RESULT = "result"
    RESULT_BEFORE = "result of messages before this one"
    END = "end of the run"
    NEXT_RUN = "another run begins while this message is not over"


class Trace(Struct, array_like=True):
    """A run so far: events by type, and its text, except for that of the current message."""

    counts: dict[str, int] = {}
    head: str = ""
    tail: str = ""
    length: int = 0

    def count_event(self, event: Event) -> None:
        """Count an event by its type; the end of the run does not count."""
        kind, number = event.counted_as, 1
        if isinstance(event, BlockDelta):
            kind, number = event.kind if event.kind in BLOCK_OF_DELTA else kind, event.count
        self.counts[kind] = self.counts.get(kind, 0) + number

    def add_text_of(self, message: Message, excerpt: int) -> None:
        for block in message.blocks:
            text = block.text()
            if text:
                self._add_text(text if not self.length else "\n" + text, excerpt)
                self.length += block.length or len(text)

    def _add_text(self, text: str, excerpt: int) -> None:
        room = excerpt - len(self.head)
        if room > 0:
            self.head += text[:room]
            text = text[room:]
        if text:
            self.tail = (self.tail + text[-excerpt:])[-excerpt:] if excerpt else ""


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
        mark = mark_of_id(item_id)
        if mark in self.calls:
            return False
        self.calls.add(mark)
        return True


def mark_of_id(call_id: str) -> int:
    """Eight bytes of a digest, in place of a call's id of any length."""
    return int.from_bytes(hashlib.blake2b(call_id.encode("utf-8", "replace"), digest_size=8).digest(), "little")


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


class Memory(Struct, omit_defaults=True):
    ids: Ids
    state: MessageState = MessageState.IDLE
    message: Message | None = None
    before: Shown | None = None
    finished: list[FinishedTurn] = []
    trace: Trace = field(default_factory=Trace)
    fixes: list[Fix] = []
    # The blocks that the run showed, if its program has a transcript to compare them with.
    shown: list[ShownBlock] = []
    # Digests of the calls' ids that the run's closed messages hold, where its program holds each id once.
    called: set[int] = set()
    # The message that the last run left doubtful, until a transcript proves it or the next run ends.
    doubted: Message | None = None


class Context(Struct, frozen=True, kw_only=True):
    """The argument of an action: the memory, and how this source's events must be taken.

    ``complete_messages``: the source sends everything in complete messages, which alone prove a block; otherwise its
    own stop does. ``whole_blocks``: it sends nothing else, and keeps the content of an attempt that was cut.
    ``records``: finished turns and fixes are kept for the log. ``issuer`` is the provider's name, for reasoning in the
    log; ``""`` if complete messages have everything. ``excerpt`` is how much of each end of a run's text a diagnosis
    keeps, in code points. ``transcribed``: the program has a transcript, with which the shown blocks are compared.
    ``wrapped`` are the names of the tools that accept no object.
    """

    memory: Memory
    complete_messages: bool
    records: bool
    whole_blocks: bool = False
    issuer: str = ""
    excerpt: int = EXCERPT
    transcribed: bool = False
    wrapped: frozenset[str] = frozenset()

    @property
    def message(self) -> Message:
        """The current message; the table names actions that need one only in states that have one."""
        message = self.memory.message
        if message is None:
            raise StreamError("no_message", "there is no message that the event can be about")
        return message

    @property
    def ids(self) -> Ids:
        return self.memory.ids

    @property
    def confirmed_by_messages(self) -> bool:
        """True if the source streams its blocks and then proves them by complete messages."""
        return self.complete_messages and not self.whole_blocks

    def add_finished(self, turns: list[FinishedTurn]) -> None:
        self.memory.ids.turns += len(turns)
        self.memory.finished += turns


# The meaning of an event for the message.


def input_of(event: Event, message: Message | None, *, complete_messages: bool) -> Input:
    """The input that the event is. ``message`` is the current message, if there is one.

    Where the source sends complete messages, what streams outside of any message is late. Without them it is the only
    word of a message whose start was lost.
    """
    plain = _STREAMED_INPUTS.get(type(event))
    if plain is None:
        return _beside_the_stream(event, message, complete_messages=complete_messages)
    if message is None or not message.attempt or message.over:
        return Input.UNSTARTED if type(event) in _CONTENT and not complete_messages else Input.LATE
    if complete_messages:
        if is_another(cast(StreamedEvent, event).message_id, message):
            return Input.LATE
    elif message.stopped and message.reason is not None and type(event) in _CONTENT:
        return Input.UNSTARTED  # the message is complete
    if type(event) is MessageDelta:
        if event.stop_reason is None:
            return Input.NO_FINISH
        if message.stopped and message.reason is None and not (complete_messages or message.failed):
            return Input.FINISH_STOPPED
        answered = event.stop_reason == "tool_use" and message.is_answered_with(set())
        return Input.FINISH_ANSWERED if answered else plain
    if type(event) is MessageStopped and event.abandoned_from is not None:
        return Input.ABANDON
    return plain


def _beside_the_stream(event: Event, message: Message | None, *, complete_messages: bool) -> Input:
    """The input of an event that is not of a message's stream."""
    if isinstance(event, WholeMessage):
        if event.parent is not None:
            return Input.ASIDE
        return Input.FOREIGN if message is None or is_another(event.message_id, message) else Input.OWN
    if isinstance(event, UserMessage):
        return Input.ANSWER if _answers_the_last_call(event, message) else Input.ASIDE
    if isinstance(event, RunResult):
        return Input.RESULT_BEFORE if _is_before(event, message) else Input.RESULT
    if isinstance(event, Aside) and type(event.item) is SessionInit:
        return Input.NEXT_RUN if complete_messages and _is_running(message) else Input.ASIDE
    return _PLAIN[type(event)]


def is_another(message_id: str | None, message: Message) -> bool:
    """Return True if an event that names its message is about another one. Only new versions of the CLI do."""
    return message_id is not None and message.id is not None and message_id != message.id


def _is_running(message: Message | None) -> bool:
    """Return True if there is an attempt that nothing has ended; one whose request is made again waits for the next."""
    return message is not None and message.attempt and not (message.over or message.retried)


def _answers_the_last_call(event: UserMessage, message: Message | None) -> bool:
    """Return True if these results are all that a message finished by tool calls was waiting for."""
    if message is None or message.reason != "tool_use" or not event.results or event.parent is not None:
        return False
    return message.is_answered_with({result.tool_id for result in event.results})


def _is_before(event: RunResult, message: Message | None) -> bool:
    """Return True if the result names the messages that began in it, and the running attempt is not among them."""
    if event.begun is None or message is None or not message.attempt or message.over:
        return False
    return message.id is not None and message.id not in event.begun


_PLAIN: dict[type, Input] = {
    MessageStarted: Input.START,
    Retried: Input.RETRY,
    Failed: Input.RETRY,
    Notice: Input.ASIDE,
    Rewritten: Input.ASIDE,
    Aside: Input.ASIDE,
    RunEnded: Input.END,
}
_STREAMED_INPUTS: dict[type, Input] = {
    BlockStarted: Input.BLOCK_START,
    BlockDelta: Input.BLOCK_DELTA,
    BlockNoted: Input.BLOCK_NOTE,
    BlockStopped: Input.BLOCK_STOP,
    UsageKnown: Input.USAGE,
    MessageDelta: Input.FINISH,
    MessageStopped: Input.STOP,
}
_CONTENT = frozenset({BlockDelta, BlockStarted})
