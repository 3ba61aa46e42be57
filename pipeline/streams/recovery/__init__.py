"""Recovery: a state machine from common events to items, with one flat table for all versions of all sources.

A source streams **attempts** at messages. An attempt may be cut and replaced, with or without a notice, so streamed
content stays unconfirmed until a complete message holds it. The table decides what an attempt is worth when the next
event arrives, and names the function that carries it out. It is derived from measurements: five versions of the Claude
CLI against an API that drops, refuses and overloads.

An API's own stream (``confirmed_by`` stop) uses the same table. It repeats nothing, so its blocks are confirmed by
their stops and the message's stop reason. An attempt without them is worthless once the next one starts, and content
outside a message can only belong to one whose start was lost.

A program that sends whole blocks only (``confirmed_by`` block) keeps all content of an attempt when it asks again, so
nothing is withdrawn, and repeated content of the next attempt is marked.

A complete message of another id, in place of an attempt that has not stopped, withdraws only those confirmed blocks of
that attempt that it repeats: the source omits the others for a while, but keeps them. Another run in the same pipe
withdraws nothing.

Two inputs never change anything: events of a finished message (``LATE``: in some versions a replaced attempt still gets
its stops), and events that are not about a message (``ASIDE``). ``docs/streams.md`` is drawn from this table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from reknit.pipeline.errors import StreamError
from reknit.pipeline.streams.events import BlockDelta, Event
from reknit.pipeline.streams.recovery.attempts import (
    abandon_blocks,
    extend_block,
    ignore,
    note_member,
    open_block,
    start_again,
    start_next,
    start_unseen,
    stop_block,
    stop_message,
    take_late_stop_reason,
    take_stop_reason,
    take_stray,
    take_usage,
)
from reknit.pipeline.streams.recovery.complete import (
    confirm_blocks,
    promote_next,
    replace_said_again,
    replace_unconfirmed,
)
from reknit.pipeline.streams.recovery.memory import Context, Input, MessageState, input_of, is_another
from reknit.pipeline.streams.recovery.out_of_band import show_aside
from reknit.pipeline.streams.recovery.run_end import end_run, report_result, start_run, sum_up
from reknit.pipeline.streams.recovery.unwrapping import streamed_inputs, with_values
from reknit.topics.items import Item, ItemDelta

# An action takes the events of the inputs that lead to it, and no others.
Action: TypeAlias = Callable[[Context, Any], list[Item]]

MEANINGS: Final[dict[MessageState, str]] = {
    MessageState.IDLE: "There is no message yet in this run.",
    MessageState.OPEN: "An attempt at a message streams. Only here does a block grow.",
    MessageState.CUT: "The attempt was cut, with a false stop, without a stop reason, or by a retry. Unconfirmed "
    "content waits: a later attempt withdraws it, the end of the run keeps it.",
    MessageState.FINISHED: "The attempt has a stop reason, but not yet its stop. The connection can still be lost "
    "here, and then some versions ask again.",
    MessageState.ANSWERED: "It was finished by tool calls, and all of them have results, so it was accepted.",
    MessageState.DONE: "It is finished and stopped. Complete messages of it may still come.",
    MessageState.PROMOTED: "The message never streamed and is known from complete messages only.",
    MessageState.CLOSED: "The run's result has arrived. Items on the screen stay.",
}

S, I = MessageState, Input  # noqa: E741  the table reads best with one letter each

TABLE: dict[tuple[MessageState, Input], tuple[MessageState, Action]] = {
    # Idle: block events cannot come, without a message they are late.
    (S.IDLE, I.START): (S.OPEN, start_next),
    (S.IDLE, I.UNSTARTED): (S.OPEN, start_unseen),
    (S.IDLE, I.FOREIGN): (S.PROMOTED, promote_next),
    (S.IDLE, I.RETRY): (S.IDLE, show_aside),
    (S.IDLE, I.ASIDE): (S.IDLE, show_aside),
    (S.IDLE, I.LATE): (S.IDLE, ignore),
    (S.IDLE, I.RESULT): (S.IDLE, sum_up),
    (S.IDLE, I.END): (S.IDLE, end_run),
    # Open: the only state in which a block grows and can be confirmed afterwards.
    (S.OPEN, I.START): (S.OPEN, start_again),
    (S.OPEN, I.BLOCK_START): (S.OPEN, open_block),
    (S.OPEN, I.BLOCK_DELTA): (S.OPEN, extend_block),
    (S.OPEN, I.BLOCK_NOTE): (S.OPEN, note_member),
    (S.OPEN, I.BLOCK_STOP): (S.OPEN, stop_block),
    (S.OPEN, I.FINISH): (S.FINISHED, take_stop_reason),
    (S.OPEN, I.FINISH_ANSWERED): (S.ANSWERED, take_stop_reason),
    (S.OPEN, I.NO_FINISH): (S.CUT, ignore),
    (S.OPEN, I.USAGE): (S.OPEN, take_usage),
    (S.OPEN, I.STOP): (S.CUT, stop_message),
    (S.OPEN, I.ABANDON): (S.CUT, abandon_blocks),
    (S.OPEN, I.OWN): (S.OPEN, confirm_blocks),
    # No stop was seen, so the source forgot the attempt for now; what was confirmed stays in its transcript.
    (S.OPEN, I.FOREIGN): (S.PROMOTED, replace_said_again),
    (S.OPEN, I.RETRY): (S.CUT, show_aside),
    (S.OPEN, I.ASIDE): (S.OPEN, show_aside),
    (S.OPEN, I.LATE): (S.OPEN, ignore),
    (S.OPEN, I.RESULT): (S.CLOSED, sum_up),
    (S.OPEN, I.RESULT_BEFORE): (S.OPEN, report_result),
    (S.OPEN, I.END): (S.IDLE, end_run),
    (S.OPEN, I.NEXT_RUN): (S.IDLE, start_run),
    # Cut: confirmed content stays, whatever follows.
    (S.CUT, I.START): (S.OPEN, start_again),
    (S.CUT, I.UNSTARTED): (S.CUT, take_stray),
    (S.CUT, I.BLOCK_START): (S.CUT, take_stray),
    (S.CUT, I.BLOCK_DELTA): (S.CUT, take_stray),
    (S.CUT, I.BLOCK_NOTE): (S.CUT, take_stray),
    (S.CUT, I.BLOCK_STOP): (S.CUT, take_stray),
    (S.CUT, I.FINISH): (S.CUT, ignore),
    (S.CUT, I.FINISH_ANSWERED): (S.CUT, ignore),
    (S.CUT, I.FINISH_STOPPED): (S.DONE, take_late_stop_reason),
    (S.CUT, I.NO_FINISH): (S.CUT, ignore),
    (S.CUT, I.USAGE): (S.CUT, take_usage),
    (S.CUT, I.STOP): (S.CUT, stop_message),
    (S.CUT, I.ABANDON): (S.CUT, abandon_blocks),
    (S.CUT, I.OWN): (S.CUT, confirm_blocks),
    (S.CUT, I.FOREIGN): (S.PROMOTED, replace_unconfirmed),
    (S.CUT, I.RETRY): (S.CUT, show_aside),
    (S.CUT, I.ANSWER): (S.CUT, show_aside),
    (S.CUT, I.ASIDE): (S.CUT, show_aside),
    (S.CUT, I.LATE): (S.CUT, ignore),
    (S.CUT, I.RESULT): (S.CLOSED, sum_up),
    (S.CUT, I.RESULT_BEFORE): (S.CUT, report_result),
    (S.CUT, I.END): (S.IDLE, end_run),
    (S.CUT, I.NEXT_RUN): (S.IDLE, start_run),
    # Finished: a new attempt means that it was accepted, another complete message that it was not.
    (S.FINISHED, I.START): (S.OPEN, start_next),
    (S.FINISHED, I.BLOCK_START): (S.FINISHED, take_stray),
    (S.FINISHED, I.BLOCK_DELTA): (S.FINISHED, take_stray),
    (S.FINISHED, I.BLOCK_NOTE): (S.FINISHED, take_stray),
    (S.FINISHED, I.BLOCK_STOP): (S.FINISHED, take_stray),
    (S.FINISHED, I.FINISH): (S.FINISHED, take_stop_reason),
    (S.FINISHED, I.FINISH_ANSWERED): (S.ANSWERED, take_stop_reason),
    (S.FINISHED, I.NO_FINISH): (S.FINISHED, ignore),
    (S.FINISHED, I.USAGE): (S.FINISHED, take_usage),
    (S.FINISHED, I.STOP): (S.DONE, stop_message),
    (S.FINISHED, I.ABANDON): (S.CUT, abandon_blocks),
    (S.FINISHED, I.OWN): (S.FINISHED, confirm_blocks),
    (S.FINISHED, I.FOREIGN): (S.PROMOTED, replace_said_again),
    (S.FINISHED, I.RETRY): (S.CUT, show_aside),
    (S.FINISHED, I.ANSWER): (S.ANSWERED, show_aside),
    (S.FINISHED, I.ASIDE): (S.FINISHED, show_aside),
    (S.FINISHED, I.LATE): (S.FINISHED, ignore),
    (S.FINISHED, I.RESULT): (S.CLOSED, sum_up),
    (S.FINISHED, I.RESULT_BEFORE): (S.FINISHED, report_result),
    (S.FINISHED, I.END): (S.IDLE, end_run),
    (S.FINISHED, I.NEXT_RUN): (S.IDLE, start_run),
    # Answered: the tools ran, so nothing replaces it any more; a retry is the next message's.
    (S.ANSWERED, I.START): (S.OPEN, start_next),
    (S.ANSWERED, I.BLOCK_START): (S.ANSWERED, take_stray),
    (S.ANSWERED, I.BLOCK_DELTA): (S.ANSWERED, take_stray),
    (S.ANSWERED, I.BLOCK_NOTE): (S.ANSWERED, take_stray),
    (S.ANSWERED, I.BLOCK_STOP): (S.ANSWERED, take_stray),
    (S.ANSWERED, I.FINISH): (S.ANSWERED, ignore),
    (S.ANSWERED, I.FINISH_ANSWERED): (S.ANSWERED, ignore),
    (S.ANSWERED, I.NO_FINISH): (S.ANSWERED, ignore),
    (S.ANSWERED, I.USAGE): (S.ANSWERED, take_usage),
    (S.ANSWERED, I.STOP): (S.DONE, stop_message),
    (S.ANSWERED, I.ABANDON): (S.CUT, abandon_blocks),
    (S.ANSWERED, I.OWN): (S.ANSWERED, confirm_blocks),
    (S.ANSWERED, I.FOREIGN): (S.PROMOTED, promote_next),
    (S.ANSWERED, I.RETRY): (S.ANSWERED, show_aside),
    (S.ANSWERED, I.ANSWER): (S.ANSWERED, show_aside),
    (S.ANSWERED, I.ASIDE): (S.ANSWERED, show_aside),
    (S.ANSWERED, I.LATE): (S.ANSWERED, ignore),
    (S.ANSWERED, I.RESULT): (S.CLOSED, sum_up),
    (S.ANSWERED, I.RESULT_BEFORE): (S.ANSWERED, report_result),
    (S.ANSWERED, I.END): (S.IDLE, end_run),
    (S.ANSWERED, I.NEXT_RUN): (S.IDLE, start_run),
    # Done: complete messages of it may still come, nothing replaces it.
    (S.DONE, I.START): (S.OPEN, start_next),
    (S.DONE, I.UNSTARTED): (S.OPEN, start_unseen),
    (S.DONE, I.BLOCK_START): (S.DONE, take_stray),
    (S.DONE, I.BLOCK_DELTA): (S.DONE, take_stray),
    (S.DONE, I.BLOCK_NOTE): (S.DONE, take_stray),
    (S.DONE, I.BLOCK_STOP): (S.DONE, take_stray),
    (S.DONE, I.FINISH): (S.DONE, ignore),
    (S.DONE, I.FINISH_ANSWERED): (S.DONE, ignore),
    (S.DONE, I.NO_FINISH): (S.DONE, ignore),
    (S.DONE, I.USAGE): (S.DONE, take_usage),
    (S.DONE, I.STOP): (S.DONE, ignore),
    (S.DONE, I.ABANDON): (S.CUT, abandon_blocks),
    (S.DONE, I.OWN): (S.DONE, confirm_blocks),
    (S.DONE, I.FOREIGN): (S.PROMOTED, promote_next),
    (S.DONE, I.RETRY): (S.DONE, show_aside),
    (S.DONE, I.ANSWER): (S.DONE, show_aside),
    (S.DONE, I.ASIDE): (S.DONE, show_aside),
    (S.DONE, I.LATE): (S.DONE, ignore),
    (S.DONE, I.RESULT): (S.CLOSED, sum_up),
    (S.DONE, I.RESULT_BEFORE): (S.DONE, report_result),
    (S.DONE, I.END): (S.IDLE, end_run),
    (S.DONE, I.NEXT_RUN): (S.IDLE, start_run),
    # Promoted: no attempt, so block events and stops are another message's, and late.
    (S.PROMOTED, I.START): (S.OPEN, start_next),
    (S.PROMOTED, I.UNSTARTED): (S.OPEN, start_unseen),
    (S.PROMOTED, I.OWN): (S.PROMOTED, confirm_blocks),
    (S.PROMOTED, I.FOREIGN): (S.PROMOTED, promote_next),
    (S.PROMOTED, I.RETRY): (S.PROMOTED, show_aside),
    (S.PROMOTED, I.ASIDE): (S.PROMOTED, show_aside),
    (S.PROMOTED, I.LATE): (S.PROMOTED, ignore),
    (S.PROMOTED, I.RESULT): (S.CLOSED, sum_up),
    (S.PROMOTED, I.END): (S.IDLE, end_run),
    # Closed: only a complete message can still add content.
    (S.CLOSED, I.START): (S.OPEN, start_next),
    (S.CLOSED, I.UNSTARTED): (S.OPEN, start_unseen),
    (S.CLOSED, I.OWN): (S.CLOSED, confirm_blocks),
    (S.CLOSED, I.FOREIGN): (S.PROMOTED, promote_next),
    (S.CLOSED, I.RETRY): (S.CLOSED, show_aside),
    (S.CLOSED, I.ANSWER): (S.CLOSED, show_aside),
    (S.CLOSED, I.ASIDE): (S.CLOSED, show_aside),
    (S.CLOSED, I.LATE): (S.CLOSED, ignore),
    (S.CLOSED, I.RESULT): (S.CLOSED, sum_up),
    (S.CLOSED, I.END): (S.IDLE, end_run),
}


def transition(state: MessageState, given: Input) -> tuple[MessageState, Action]:
    """The next state, and what to do on the way.

    Raises:
        StreamError: the input cannot come in this state; the decoder that made it is at fault or its source is.
    """
    found = TABLE.get((state, given))
    if found is None:
        raise StreamError("unexpected_event", f"{given.value!r} cannot come when the message is {state.value!r}")
    return found


_OPEN: Final = MessageState.OPEN
# A run's end counts in no run, and what begins one counts in the new one.
_COUNT_FOR_THEMSELVES: Final = frozenset({end_run, start_run})


class Machine:
    """Recovery for one session, as the context says of its source."""

    def __init__(self, context: Context) -> None:
        self.memory = context.memory
        self._complete_messages = context.complete_messages
        self._context = context

    def apply(self, event: Event) -> list[Item]:
        """Take one event.

        Raises:
            StreamError: the event cannot come now.
        """
        memory = self.memory
        if type(event) is BlockDelta and memory.state is _OPEN:
            grown = self._grow_newest_block(event)
            if grown is not None:
                return [grown]
        given = input_of(event, memory.message, complete_messages=self._complete_messages)
        state, action = transition(memory.state, given)
        if action not in _COUNT_FOR_THEMSELVES:
            memory.trace.count_event(event)
        if not self._context.wrapped:
            items = action(self._context, event)
        else:
            streamed = streamed_inputs(self._context)
            items = with_values(action(self._context, event), streamed, self._context)
        memory.state = state
        return items

    def _grow_newest_block(self, event: BlockDelta) -> ItemDelta | None:
        """Append more text to the newest block, which nearly every event does; return None for anything else.

        Equivalent to the table's entry for (OPEN, BLOCK_DELTA), without a look-up, and only for a kind of event that
        the run has had before.
        """
        memory, kind, content = self.memory, event.kind, event.content
        message, counts = memory.message, memory.trace.counts
        if message is None or not message.blocks or kind not in counts:
            return None
        block = message.blocks[-1]
        # A block of its own kind (``raw``) has no content.
        if block.index != event.index or block.confirmed or block.unseen or not content or kind == "signature_delta":
            return None
        if self._complete_messages and is_another(event.message_id, message):
            return None
        counts[kind] += event.count
        at = block.length
        block.append(content)
        return ItemDelta(item_id=block.item_id, delta_type=kind, content=content, at=at)
