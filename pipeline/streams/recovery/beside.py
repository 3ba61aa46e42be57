"""Events next to a message's stream: complete messages, events without a message, the result and the end of a run.

A complete message confirms blocks that streamed, promotes those that did not, and replaces others. Events without a
message are notices, users' lines, sub-agents, rewritten words, and unknown input.

A run that ended without finishing leaves a diagnosis: a bounded head and tail of its text, counts, and the reason. The
core has no clock, so the party that ends a run reports that it stalled, looped or took too long (the reason in the
ending record). A loop is also recognised in the text, if its end repeats one passage.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

import msgspec
from msgspec import UNSET

from reknit.pipeline.fixes import FIXES, Fix
from reknit.pipeline.streams.events import (
    TEXTS,
    Aside,
    Event,
    Failed,
    Notice,
    Retried,
    Rewritten,
    RunEnded,
    RunResult,
    UserMessage,
    WholeBlock,
    WholeMessage,
)
from reknit.pipeline.streams.recovery.attempts import (
    close_message,
    leave_message,
    stop_turn,
    withdraw_block,
    withdraw_blocks,
)
from reknit.pipeline.streams.recovery.memory import Context, MessageState, Shown, Trace, mark_of_id
from reknit.pipeline.streams.recovery.message import Block, Message, UserLine, likeness
from reknit.pipeline.streams.recovery.render import (
    confirmed,
    interrupted,
    is_unspoken,
    promoted_block,
    reset_of_turns,
    subagent_stop,
    turn_delta,
    uncover,
    uncover_growing,
    unkept,
    user_message,
    user_turns,
    whole_items,
)
from reknit.topics.items import (
    AgentError,
    Cause,
    Item,
    ItemResult,
    Origin,
    SessionReset,
    TurnDelta,
    TurnDiagnosis,
)

# The reason of a caller that ran out of lines: the run may continue elsewhere.
END_OF_INPUT: Final = "end of input"
# The end of a text is a loop if it repeats one passage this often, and has this many code points in all.
_LEAST_TIMES: Final = 4
_LEAST_LOOP: Final = 80

# Causes by the words of ending reasons; the first match applies.
_CAUSES: Final[tuple[tuple[re.Pattern[str], Cause], ...]] = (
    (re.compile(r"stall|no progress|idle", re.IGNORECASE), "stall"),
    (re.compile(r"loop|repeat", re.IGNORECASE), "loop"),
    (re.compile(r"max.?wait|time.?limit|time.?out|timed out|deadline|too long", re.IGNORECASE), "time_limit"),
    (re.compile(r"connect|reset|broken pipe|eof", re.IGNORECASE), "disconnect"),
    (re.compile(r"interrupt|cancel|kill|sig[a-z]+|abort", re.IGNORECASE), "stopped"),
)
# Causes for which a run is broken off, however far its last message got.
BROKEN_OFF: Final = frozenset({"stall", "loop", "time_limit"})


# Complete messages.


def confirm_blocks(context: Context, event: WholeMessage) -> list[Item]:
    """Complete the blocks that streamed, promote those that did not."""
    message = context.message
    message.model = message.model or event.model
    message.id = message.id or event.message_id
    items: list[Item] = []
    completed: list[Item] = []
    for whole in event.blocks:
        block = message.streamed_block(whole)
        message.confirmed += 1
        if block is not None and block.confirmed:
            continue  # it was reported before, as its place shows
        if block is None:
            items += _promote_block(context, message, whole)
            block = message.blocks[-1]
        else:
            if not is_unspoken(whole):
                items += uncover(block)
            rest = block.confirm_with(whole)
            if not block.unseen:
                completed.append(confirmed(block, whole, rest))
            block.raw = _json_for_log(context, whole)
        if _is_repeated_call(context, message, block):
            completed += withdraw_block(block, "repeated id")
        if context.complete_messages:
            block.likeness = likeness(whole)  # another message in this one's place may say it again, or a transcript
    if event.interrupted:
        completed += _cut_last(message)
    delta = turn_delta(event)
    has_delta = delta != TurnDelta() or (context.complete_messages and not context.whole_blocks)
    return [*items, *([delta] if has_delta else []), *completed]


def _is_repeated_call(context: Context, message: Message, block: Block) -> bool:
    """True if the run has a call of this id already. The Claude CLI keeps the first of them in its history, alone."""
    if not context.confirmed_by_messages or block.kind != "tool_use" or block.tool_id is None:
        return False
    here = any(call is not block and call.tool_id == block.tool_id for call in message.confirmed_calls())
    return here or mark_of_id(block.tool_id) in context.memory.called


def _cut_last(message: Message) -> list[Item]:
    """Mark the newest block, which the program interrupted. A call is confirmed whole."""
    block = message.blocks[-1] if message.blocks else None
    if block is None or block.cut or block.withdrawn or not block.confirmed or block.kind not in TEXTS:
        return []
    block.cut = True
    return [] if block.unseen else [interrupted(block)]


def promote_next(context: Context, event: WholeMessage) -> list[Item]:
    """Close the message, promote the next."""
    items = leave_message(context, "next message")
    context.memory.message = Message(id=event.message_id, model=event.model, attempt=False)
    return [*items, *confirm_blocks(context, event)]


def replace_unconfirmed(context: Context, event: WholeMessage) -> list[Item]:
    """Withdraw what is unconfirmed, promote the next."""
    return [*withdraw_blocks(context.message, everything=False), *promote_next(context, event)]


def replace_said_again(context: Context, event: WholeMessage) -> list[Item]:
    """Withdraw what is unconfirmed and what the next says again, promote the next."""
    former = context.message
    items = withdraw_blocks(former, everything=False)
    items += leave_message(context, "next message", replaced=True)
    context.memory.message = Message(id=event.message_id, model=event.model, attempt=False, former=former)
    return [*items, *confirm_blocks(context, event)]


def _promote_block(context: Context, message: Message, whole: WholeBlock) -> list[Item]:
    items = uncover_growing(message)
    before = message.block_said_before(likeness(whole)) if message.former is not None else None
    # It is shown once, as a block of this message, because this one may have more content.
    items += [] if before is None else withdraw_block(before)
    ids = context.ids
    for_block = ids.for_streamed if context.whole_blocks else ids.for_promoted
    item_id = for_block() if whole.tool_id is None else ids.for_call(whole.tool_id)
    block = promoted_block(item_id, whole, _json_for_log(context, whole))
    block.unseen = not context.complete_messages and is_unspoken(whole)
    message.add_block(block)
    if block.unseen:
        return items
    origin: Origin = "stream" if context.whole_blocks else "promoted"
    repeats = message.take_said(likeness(whole)) if message.said else ""
    return [*items, *whole_items(item_id, whole, origin=origin, repeats=repeats)]


def _json_for_log(context: Context, whole: WholeBlock) -> bytes | None:
    """The block's JSON for the log. A plain text is kept as it is shown, once and not twice."""
    is_plain = whole.kind == "text" and whole.extras is UNSET
    return bytes(whole.raw) if context.records and not is_plain else None


# Events without a message.


def show_aside(context: Context, event: Event) -> list[Item]:
    """Pass on an event that is not about a message."""
    if isinstance(event, UserMessage):
        return _show_user_message(context, event)
    if isinstance(event, WholeMessage):
        return _show_subagent(context, event)
    if isinstance(event, Aside):
        ended = _end_conversation(context) if type(event.item) is SessionReset else []
        return [*ended, msgspec.structs.replace(event.item, seq=context.ids.next_number())]
    if isinstance(event, Retried):
        if context.memory.message is not None:
            context.memory.message.retried = True
        return [AgentError(message=event.message, will_retry=True, seq=context.ids.next_number())]
    if isinstance(event, Failed):
        return _show_failure(context, event)
    if isinstance(event, Rewritten):
        return _note_fix(context, event)
    if isinstance(event, Notice):
        seq = context.ids.next_number()
        return [AgentError(message=event.message, code=event.code, parent_tool_use_id=event.parent, seq=seq)]
    return []


def _end_conversation(context: Context) -> list[Item]:
    """Close the message, and note in the log that the conversation is over."""
    message = context.memory.message
    items = [] if message is None else close_message(context, message, "conversation reset")
    if context.records:
        context.add_finished([reset_of_turns(context.ids.turns, context.ids.prefix)])
    return items


def _show_failure(context: Context, event: Failed) -> list[Item]:
    message = context.memory.message
    if message is not None and not message.stopped:
        message.failed = event.code or "error"
    return [AgentError(message=event.message, code=event.code, seq=context.ids.next_number())]


def _note_fix(context: Context, event: Rewritten) -> list[Item]:
    block = context.memory.message.block_at(event.index) if context.memory.message else None
    fix = Fix(
        code=event.code,
        path="" if block is None else block.item_id,
        lossless=FIXES[event.code].lossless,
        target=context.issuer,
        detail=event.detail,
        before=event.before,
        after=event.after,
    )
    if context.records:
        context.memory.fixes += [fix] * event.times
    return []


def _show_user_message(context: Context, event: UserMessage) -> list[Item]:
    items = _cut_if_streaming(context.memory.message) if event.interrupts and event.parent is None else []
    for result in event.results:
        message = None if event.parent else context.memory.message
        call = None if message is None else message.call_answered_by(result.tool_id)
        if call is not None:
            call.answered = True
        items.append(
            ItemResult(
                item_id=context.ids.of_call(result.tool_id) if call is None else call.item_id,
                content=result.content,
                is_error=result.is_error,
                tool_result=event.tool_result,
                parent_tool_use_id=event.parent,
                extras=event.extras,
            )
        )
    if event.rest:
        items.append(user_message(context.ids.for_user(), event))
    if context.records and event.parent is None and (event.results or event.synthetic):
        _record_user_line(context, UserLine.of(event))
    return items


def _cut_if_streaming(message: Message | None) -> list[Item]:
    """Mark the block that streams: one without its stop, which the CLI sends after the complete block."""
    if message is None or not message.attempt or message.over or message.stopped or not message.blocks:
        return []
    return [] if message.blocks[-1].stopped else _cut_last(message)


def _record_user_line(context: Context, line: UserLine) -> None:
    message = context.memory.message
    if message is not None and not message.over:
        message.turn_of(line).users.append(line)
    else:
        context.add_finished(user_turns(line, context.ids.turns, context.ids.prefix))


def _show_subagent(context: Context, event: WholeMessage) -> list[Item]:
    items: list[Item] = []
    for whole in event.blocks:
        item_id = context.ids.for_subagent() if whole.tool_id is None else context.ids.for_call(whole.tool_id)
        items += whole_items(item_id, whole, parent=event.parent, sidechain=event.sidechain)
    return [*items, subagent_stop(event)]


# The result and the end of a run.


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


# The diagnosis of a run.


def diagnosis_of(
    trace: Trace, reason: str, message: Message | None, *, ended: bool, excerpt: int
) -> TurnDiagnosis | None:
    """Return the diagnosis of a run that ends for this reason; None if it has finished, as nearly every run has.

    ``message`` is its last one, whose text is only read if needed; ``ended`` says that the source reported the end of
    its output.
    """
    if reason == END_OF_INPUT:
        return None
    if message is not None:
        unfinished = not ended or bool(message.failed)
    else:
        unfinished = "error" in trace.counts and "result" not in trace.counts
    unfinished = unfinished or (bool(trace.counts) and cause_of(reason) in BROKEN_OFF)
    if not unfinished and not (message is not None and message.cut):
        return None
    if message is not None:
        trace.add_text_of(message, excerpt)
    if not unfinished and not is_loop(trace.tail):
        return None
    failed = message.failed if message is not None else ""
    cause = cause_of(reason, failed)
    loops = is_loop(trace.tail)
    return TurnDiagnosis(
        reason=reason,
        cause="loop" if loops and cause not in BROKEN_OFF else cause,
        error=failed,
        head=trace.head,
        tail=trace.tail,
        length=trace.length,
        repeats=loops,
        counts=trace.counts,
    )


@lru_cache(maxsize=256)
def cause_of(reason: str, failed: str = "") -> Cause:
    """One of a few words for why a run ended, which a metric can bear."""
    found = next((cause for pattern, cause in _CAUSES if pattern.search(reason)), None)
    if failed and found not in BROKEN_OFF:
        return "error"
    return found or "other"


def is_loop(text: str) -> bool:
    """Return True if a text ends in one passage, at least four times and 80 code points long in all."""
    for size in range(1, len(text) // _LEAST_TIMES + 1):
        times = max(_LEAST_TIMES, -(-_LEAST_LOOP // size))
        if len(text) >= times * size and text.endswith(text[-size:] * times) and not text[-size:].isspace():
            return True
    return False
