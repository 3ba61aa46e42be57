"""Events without a message: notices, users' lines, sub-agents, rewritten words, failures and unknown input."""

from __future__ import annotations

import msgspec

from reknit.pipeline.fixes import FIXES, Fix
from reknit.pipeline.streams.events import Aside, Event, Failed, Notice, Retried, Rewritten, UserMessage, WholeMessage
from reknit.pipeline.streams.recovery.attempts import close_message
from reknit.pipeline.streams.recovery.complete import cut_newest_block
from reknit.pipeline.streams.recovery.memory import Context
from reknit.pipeline.streams.recovery.message import Message, UserLine
from reknit.pipeline.streams.recovery.render import reset_of_turns, subagent_stop, user_message, user_turns, whole_items
from reknit.topics.items import AgentError, Item, ItemResult, SessionReset


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
        path=event.path if block is None else block.item_id,
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
    return [] if message.blocks[-1].stopped else cut_newest_block(message)


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
