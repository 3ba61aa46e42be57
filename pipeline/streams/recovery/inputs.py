"""What a common event is to the current message: the input of the transition table."""

from __future__ import annotations

from typing import cast

from pipeline.streams.events import (
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
from pipeline.streams.recovery.memory import Word
from pipeline.streams.recovery.message import Message
from topics.items import SessionInit


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
    ASIDE = "something beside the messages"
    LATE = "event of a message that is over"
    RESULT = "result"
    RESULT_BEFORE = "result of messages before this one"
    END = "end of the run"
    NEXT_RUN = "another run begins while this message is not over"


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
    """Whether an event that names its message is about another one. Only new versions of the CLI do."""
    return message_id is not None and message.id is not None and message_id != message.id


def _is_running(message: Message | None) -> bool:
    """Whether there is an attempt that nothing has ended; one whose request is made again waits for the next."""
    return message is not None and message.attempt and not (message.over or message.retried)


def _answers_the_last_call(event: UserMessage, message: Message | None) -> bool:
    """Whether these results are all that a message finished by tool calls was waiting for."""
    if message is None or message.reason != "tool_use" or not event.results or event.parent is not None:
        return False
    return message.is_answered_with({result.tool_id for result in event.results})


def _is_before(event: RunResult, message: Message | None) -> bool:
    """Whether the result names the messages that began in it, and the running attempt is none of them."""
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
