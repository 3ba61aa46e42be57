"""The result of a run, its end, and the start of the next one in the same pipe."""

from __future__ import annotations

import msgspec

from reknit.pipeline.streams.events import Aside, RunEnded, RunResult
from reknit.pipeline.streams.recovery.attempts import close_message, stop_turn
from reknit.pipeline.streams.recovery.diagnosis import diagnosis_of
from reknit.pipeline.streams.recovery.memory import Context, MessageState, Shown, Trace
from reknit.pipeline.streams.recovery.message import Message
from reknit.pipeline.streams.recovery.out_of_band import show_aside
from reknit.pipeline.streams.recovery.render import unkept
from reknit.topics.items import Item


def sum_up(context: Context, event: RunResult) -> list[Item]:
    """Complete what is open as incomplete, report the result."""
    message = context.memory.message
    succeeded = not event.item.is_error
    items = [] if message is None else close_message(context, message, "result", succeeded=succeeded)
    return [*items, *report_result(context, event)]


def report_result(context: Context, event: RunResult) -> list[Item]:
    """Report the result, and whether its text is shown nowhere else."""
    message = context.memory.message
    shown = [seen for seen in (Shown.of(message) if message else None, context.memory.before) if seen is not None]
    unseen = not event.repeated and is_unseen(event.item.result, shown, event.begun)
    expanded = unseen or event.item.is_error
    return [msgspec.structs.replace(event.item, unseen=unseen, expanded=expanded, seq=context.ids.next_number())]


def is_unseen(result: str | None, shown: list[Shown], begun: tuple[str, ...] | None) -> bool:
    """Return True if the result has text that the newest message it can be about does not show.

    ``shown`` is the newest message first. Thinking, notices and sub-agents are not in it. Whitespace does not count,
    and a part of the text is enough, for a result can be just a part of a message. A result that names the messages
    that began in it is not about a later one.
    """
    needle = " ".join((result or "").split())
    if not needle:
        return False
    if begun is not None and len(shown) > 1 and shown[0].streamed and shown[0].message_id not in begun:
        shown = shown[1:]
    if not shown:
        return True
    # A result joins the blocks of a message with nothing, or with a blank line.
    return not any(needle in " ".join(glue.join(shown[0].texts).split()) for glue in ("\n", ""))


def end_run(context: Context, event: RunEnded) -> list[Item]:
    """Complete what is open as incomplete, and say what is left of a run that has not finished."""
    memory = context.memory
    message = memory.message
    if memory.trace.counts:  # else no run has begun since the last one ended
        memory.doubted = None
    closed = memory.state is MessageState.CLOSED
    items: list[Item] = []
    if message is not None and not closed:
        items += _doubt_unstopped(context, message)
    if message is not None:
        # For a program that does not report the end of a message, only the run's result ends the turn.
        items += stop_turn(context, message) if context.whole_blocks and not closed else []
        items += close_message(context, message, event.reason)
    # An agent program's run has a result, an API's message its stop reason.
    ended = closed if context.complete_messages else message is not None and not message.is_open()
    diagnosis = diagnosis_of(memory.trace, event.reason, message, ended=ended, excerpt=context.excerpt)
    if diagnosis is not None:
        items.append(msgspec.structs.replace(diagnosis, seq=context.ids.next_number()))
    memory.message, memory.before, memory.trace, memory.called = None, None, Trace(), set()
    return items


def _doubt_unstopped(context: Context, message: Message) -> list[Item]:
    """Mark the blocks of a message as doubtful that its run ended before its stop.

    The Claude CLI writes a message into its history at the message's stop. Of a run that was killed between a complete
    block and that stop, versions from 2.1 on kept nothing in 15 of 15 runs; 2.0.77 kept the complete blocks. So none of
    it is recorded in the log, unless the program's own transcript holds it.
    """
    if not context.confirmed_by_messages or message.over or message.stopped:
        return []
    if not message.attempt and message.is_answered_with(set()):
        return []  # without streamed events there are no stops; the results show that the program continued
    message.unkept = True
    context.memory.doubted = message
    # Blocks that no complete message holds are marked as incomplete, which implies this.
    doubted = [block for block in message.surviving() if block.confirmed and not block.unseen]
    for block in doubted:
        block.doubtful = "kept"
    return [unkept(block) for block in doubted]


def start_run(context: Context, event: Aside) -> list[Item]:
    """Another run begins in the same pipe, and the one before was ended without a word."""
    items = end_run(context, RunEnded("next run"))
    context.memory.trace.count_event(event)
    return [*items, *show_aside(context, event)]
