"""How things end: blocks that are withdrawn or left incomplete, a turn, a message, an answer, a run."""

from __future__ import annotations

import msgspec

from pipeline.streams.events import Aside, RunEnded, RunResult
from pipeline.streams.recovery.asides import show_aside
from pipeline.streams.recovery.diagnosis import Trace
from pipeline.streams.recovery.memory import Context, MessageState, Shown
from pipeline.streams.recovery.message import Block, Message, ShownBlock
from pipeline.streams.recovery.render import finished_turns, left_incomplete, retracted, turn_stop, uncover_told
from topics.items import Item

# Blocks.


def withdraw_block(block: Block) -> list[Item]:
    block.withdrawn = True
    return [] if block.unseen else [retracted(block)]


def withdraw_blocks(message: Message, *, everything: bool) -> list[Item]:
    """Take blocks off the screen: all of them, or those that nothing has confirmed or that were abandoned."""
    items: list[Item] = []
    for block in message.surviving():
        if everything or block.abandoned or not block.confirmed:
            items += withdraw_block(block)
    return items


# The turn and the message.


def stop_turn(context: Context, message: Message, *, proven: bool = False) -> list[Item]:
    """The end of the turn, once; ``proven`` says that it is whole, whatever stops were lost."""
    if message.stopped:
        return []
    message.stopped = True
    incomplete = message.is_open() and not proven
    return [turn_stop(message, incomplete=incomplete, told_by_stop=not context.complete_messages)]


def leave_message(context: Context, reason: str, *, replaced: bool = False) -> list[Item]:
    """Close the current message and remember what it shows; another one takes its place.

    One that is ``replaced`` is not finished yet: what took its place may say its blocks again.
    """
    memory = context.memory
    message = memory.message
    if message is None:
        return []
    items = _end_blocks(context, message, reason) if replaced else close_message(context, message, reason)
    memory.trace.add_text_of(message, context.excerpt)
    memory.before = Shown.of(message) or memory.before
    memory.message = None
    return items


def close_message(context: Context, message: Message, reason: str, *, succeeded: bool = False) -> list[Item]:
    """Say how everything ends that is still open, and finish the turn for the log."""
    items = _end_blocks(context, message, reason, succeeded=succeeded)
    former, message.former = message.former, None
    for over in (former, message):
        if over is not None and context.records:
            ids = context.ids
            context.add_finished(finished_turns(over, ids.turns, ids.prefix, context.issuer))
    return items


def _end_blocks(context: Context, message: Message, reason: str, *, succeeded: bool = False) -> list[Item]:
    """Say how everything ends that is still open. ``succeeded``: the run's result is a success."""
    items: list[Item] = []
    for block in message.surviving():
        if block.confirmed or block.left:
            continue
        if context.complete_messages and block.is_blank():
            items += withdraw_block(block)  # no complete message will ever hold it, and nobody misses it
            continue
        block.left = True
        items += uncover_told(block)
        if not block.unseen:
            items.append(left_incomplete(block, block.settle_text(), message.failed or reason))
    if not message.over and (message.blocks or message.reason is not None):
        # What complete messages held in full is whole, whatever became of its stops.
        proven = context.complete_messages and message.is_confirmed()
        if proven and succeeded and message.reason is None:
            message.stopped = False  # if it was stopped, it was called incomplete
        items += stop_turn(context, message, proven=proven and (succeeded or message.is_answered_with(set())))
    if context.transcribed and not message.over:
        shown = [block for block in message.surviving() if block.kind in {"text", "tool_use"} and not block.is_blank()]
        context.memory.shown += [ShownBlock.of(block) for block in shown]
    message.over = True
    return items


# Actions: the answer and the run.


def sum_up(context: Context, event: RunResult) -> list[Item]:
    """Complete what is open as incomplete, report the result."""
    message = context.memory.message
    succeeded = not event.item.is_error
    items = [] if message is None else close_message(context, message, "result", succeeded=succeeded)
    return [*items, *report_result(context, event)]


def report_result(context: Context, event: RunResult) -> list[Item]:
    """Report the result, and whether its text is to be seen nowhere else."""
    message = context.memory.message
    shown = [seen for seen in (Shown.of(message) if message else None, context.memory.before) if seen is not None]
    unseen = is_unseen(event.item.result, shown, event.begun)
    expanded = unseen or event.item.is_error
    return [msgspec.structs.replace(event.item, unseen=unseen, expanded=expanded, seq=context.ids.next_number())]


def is_unseen(result: str | None, shown: list[Shown], begun: tuple[str, ...] | None) -> bool:
    """Whether the result has text that the newest message it can be about does not show.

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
    closed = memory.state is MessageState.CLOSED
    items: list[Item] = []
    if message is not None:
        # Of a program that tells no message's end, the run's result alone shows that it has had its say.
        items += stop_turn(context, message) if context.whole_blocks and not closed else []
        items += close_message(context, message, event.reason)
    # An agent program's run has a result, an API's message its stop reason.
    ended = closed if context.complete_messages else message is not None and not message.is_open()
    diagnosis = memory.trace.diagnosis(event.reason, message, ended=ended, excerpt=context.excerpt)
    if diagnosis is not None:
        items.append(msgspec.structs.replace(diagnosis, seq=context.ids.next_number()))
    memory.message, memory.before, memory.trace = None, None, Trace()
    return items


def start_run(context: Context, event: Aside) -> list[Item]:
    """Another run begins in the same pipe, and the one before was ended without a word."""
    items = end_run(context, RunEnded("next run"))
    context.memory.trace.count_event(event)
    return [*items, *show_aside(context, event)]
