"""The recovery machine: common events in, items out. What may happen when is in ``recovery``; here is how.

One machine serves one session. It holds the current message, counters from which ids are made, and the text of the
message before, against which a result is compared. All of it is a value that can be saved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct

from pipeline.errors import StreamError
from pipeline.streams.attempts import CALLS, Block, Message, UserLine, confirm
from pipeline.streams.classify import classify, is_late
from pipeline.streams.events import (
    Aside,
    BlockDelta,
    BlockStarted,
    BlockStopped,
    Event,
    MessageDelta,
    MessageStarted,
    MessageStopped,
    Notice,
    Retried,
    RunEnded,
    RunResult,
    UserMessage,
    WholeBlock,
    WholeMessage,
)
from pipeline.streams.finished import FinishedTurn, finished_turns, user_turns
from pipeline.streams.identity import Ids
from pipeline.streams.recovery import Action, State, transition
from pipeline.streams.render import (
    confirmed,
    confirmed_by_stop,
    left_incomplete,
    promoted_block,
    retracted,
    streamed_start,
    subagent_stop,
    turn_delta,
    user_message,
    whole_items,
)
from pipeline.streams.visibility import Shown, is_unseen
from topics.items import AgentError, AgentUnrecognized, Item, ItemDelta, ItemResult, TurnStop

_OPEN = State.OPEN
# The block that a delta is for, where the block's start was lost.
_KIND_OF_DELTA = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "tool_use"}


class Memory(Struct):
    """Everything that a machine knows, as state."""

    ids: Ids
    state: State = State.IDLE
    message: Message | None = None
    before: Shown | None = None
    finished: list[FinishedTurn] = []


class Machine:
    """Recovery for one session. ``confirmed_by`` is what proves a block: a complete message, or its own stop."""

    def __init__(self, memory: Memory, confirmed_by: Literal["message", "stop"], *, records: bool) -> None:
        self.memory = memory
        self._ids = memory.ids
        self._confirmed_by = confirmed_by
        self._records = records

    def step(self, event: Event) -> list[Item]:
        """Take one event.

        Raises:
            StreamError: the event cannot come now.
        """
        memory = self.memory
        message = memory.message
        if type(event) is BlockDelta and memory.state is _OPEN and not is_late(event, message):
            # Nearly every event is one of these, so the pair (OPEN, BLOCK_DELTA) is not looked up.
            return self._extend_block(event)
        state, action = transition(memory.state, classify(event, message))
        items = _ACTIONS[action](self, event)
        memory.state = state
        return items

    # -- beside the messages ------------------------------------------------------------------------------------

    def _ignore(self, event: Event) -> list[Item]:
        raw = event.raw if isinstance(event, BlockDelta | BlockStarted) else UNSET
        if raw is UNSET:
            return []
        return [AgentUnrecognized(reason="unknown content outside a message", event=raw, seq=self._ids.number())]

    def _show(self, event: Event) -> list[Item]:
        if isinstance(event, UserMessage):
            return self._user(event)
        if isinstance(event, WholeMessage):
            return self._subagent(event)
        if isinstance(event, Aside):
            return [msgspec.structs.replace(event.item, seq=self._ids.number())]
        if isinstance(event, Retried):
            return [AgentError(message=event.message, will_retry=True, seq=self._ids.number())]
        if isinstance(event, Notice):
            seq = self._ids.number()
            return [AgentError(message=event.message, code=event.code, parent_tool_use_id=event.parent, seq=seq)]
        return []

    def _user(self, event: UserMessage) -> list[Item]:
        items: list[Item] = []
        for result in event.results:
            call = self.memory.message.call(result.tool_id) if self.memory.message and not event.parent else None
            if call is not None:
                call.answered = True
            items.append(
                ItemResult(
                    item_id=self._ids.of_call(result.tool_id) if call is None else call.item_id,
                    content=result.content,
                    is_error=result.is_error,
                    tool_result=event.tool_result,
                    parent_tool_use_id=event.parent,
                    extras=event.extras,
                )
            )
        if event.rest:
            items.append(user_message(self._ids.for_user(), event))
        if self._records and event.parent is None and (event.results or event.synthetic):
            self._record_user(UserLine.of(event))
        return items

    def _record_user(self, line: UserLine) -> None:
        message = self.memory.message
        if message is not None and not message.over:
            message.users.append(line)
        else:
            self._finish_turns(user_turns(line, self._ids.turns, self._ids.prefix))

    def _finish_turns(self, turns: list[FinishedTurn]) -> None:
        self._ids.turns += len(turns)
        self.memory.finished += turns

    def _subagent(self, event: WholeMessage) -> list[Item]:
        items: list[Item] = []
        for whole in event.blocks:
            item_id = self._ids.for_subagent() if whole.tool_id is None else self._ids.for_call(whole.tool_id)
            items += whole_items(item_id, whole, parent=event.parent, sidechain=event.sidechain)
        return [*items, subagent_stop(event)]

    # -- an attempt ---------------------------------------------------------------------------------------------

    def _begin(self, event: MessageStarted) -> None:
        self.memory.message = Message(id=event.message_id, model=event.model, attempt=True)

    def _start_next(self, event: MessageStarted) -> list[Item]:
        items = self._leave("next message")
        self._begin(event)
        return items

    def _start_again(self, event: MessageStarted) -> list[Item]:
        items = [*self._withdraw(everything=False), *self._leave("next attempt")]
        self._begin(event)
        return items

    def _open_block(self, event: BlockStarted) -> list[Item]:
        message = self._message()
        is_call = event.kind in CALLS and event.tool_id is not None
        item_id = self._ids.for_call(event.tool_id) if is_call and event.tool_id else self._ids.for_streamed()
        block = Block(item_id=item_id, kind=event.kind, index=event.index, tool_id=event.tool_id, name=event.name)
        message.blocks.append(block)
        items: list[Item] = [streamed_start(item_id, event)]
        if event.text:
            items.append(ItemDelta(item_id=item_id, delta_type=f"{event.kind}_delta", content=event.text))
            block.append(event.text)
        return items

    def _extend_block(self, event: BlockDelta) -> list[Item]:
        message = self._message()
        block = message.blocks[-1] if message.blocks else None
        if block is None or block.index != event.index:
            block = message.block(event.index)
        if block is None:
            return self._open_for(event)
        if block.confirmed:
            return []
        if event.kind == "signature_delta":
            block.signature += event.content
            return []
        if not event.content and event.raw is UNSET:
            return []
        at = block.length
        block.append(event.content)
        return [ItemDelta(item_id=block.item_id, delta_type=event.kind, content=event.content, at=at, raw=event.raw)]

    def _open_for(self, event: BlockDelta) -> list[Item]:
        """Start a block whose start was lost, if the delta tells what it is."""
        kind = _KIND_OF_DELTA.get(event.kind)
        if kind is None:
            return self._ignore(event)
        return [*self._open_block(BlockStarted(index=event.index, kind=kind)), *self._extend_block(event)]

    def _stop_block(self, event: BlockStopped) -> list[Item]:
        block = self._message().block(event.index)
        if block is not None:
            block.stopped = True
        return []

    def _finish(self, event: MessageDelta) -> list[Item]:
        self._message().reason = event.stop_reason
        return self._confirm_stopped()

    def _stop(self, _event: MessageStopped) -> list[Item]:
        items = self._confirm_stopped()
        return [*items, *self._turn_stop()]

    def _confirm_stopped(self) -> list[Item]:
        """Where no complete message comes, a block's stop and the message's stop reason prove it."""
        message = self._message()
        if self._confirmed_by == "message" or message.reason is None:
            return []
        items: list[Item] = []
        for block in message.surviving():
            if block.stopped and not block.confirmed and block.reads_as_whole():
                block.confirmed = True
                items.append(confirmed_by_stop(block))
        return items

    def _turn_stop(self) -> list[Item]:
        message = self._message()
        if message.stopped:
            return []
        message.stopped = True
        return [TurnStop(incomplete=message.attempt and message.reason is None)]

    def _abandon(self, event: MessageStopped) -> list[Item]:
        message = self._message()
        message.reason = None
        for block in message.blocks:
            block.abandoned = block.abandoned or block.index >= (event.abandoned_from or 0)
        return self._turn_stop()

    # -- complete messages --------------------------------------------------------------------------------------

    def _confirm(self, event: WholeMessage) -> list[Item]:
        message = self._message()
        message.model = message.model or event.model
        message.id = message.id or event.message_id
        items: list[Item] = []
        completed: list[Item] = []
        for whole in event.blocks:
            block = message.streamed(whole)
            message.confirmed += 1
            if block is None:
                items += self._promote(message, whole)
            else:
                completed.append(confirmed(block, whole, confirm(block, whole)))
                block.raw = self._kept(whole)
        return [*items, turn_delta(event), *completed]

    def _promote(self, message: Message, whole: WholeBlock) -> list[Item]:
        item_id = self._ids.for_promoted() if whole.tool_id is None else self._ids.for_call(whole.tool_id)
        message.blocks.append(promoted_block(item_id, whole, self._kept(whole)))
        return whole_items(item_id, whole, origin="promoted")

    def _kept(self, whole: WholeBlock) -> bytes | None:
        """The block's JSON for the log. A plain text is kept as it is shown, once and not twice."""
        is_plain = whole.kind == "text" and whole.extras is UNSET
        return bytes(whole.raw) if self._records and not is_plain else None

    def _take_next(self, event: WholeMessage) -> list[Item]:
        items = self._leave("next message")
        self.memory.message = Message(id=event.message_id, model=event.model, attempt=False)
        return [*items, *self._confirm(event)]

    def _replace_rest(self, event: WholeMessage) -> list[Item]:
        return [*self._withdraw(everything=False), *self._take_next(event)]

    def _replace_all(self, event: WholeMessage) -> list[Item]:
        return [*self._withdraw(everything=True), *self._take_next(event)]

    def _withdraw(self, *, everything: bool) -> list[Item]:
        """Take blocks off the screen: all of them, or those that nothing has confirmed or that were abandoned."""
        items: list[Item] = []
        for block in self._message().surviving():
            if everything or block.abandoned or not block.confirmed:
                block.withdrawn = True
                items.append(retracted(block))
        return items

    # -- the end of a message, an answer, a run -----------------------------------------------------------------

    def _leave(self, reason: str) -> list[Item]:
        """Close the current message and remember what it shows; another one takes its place."""
        message = self.memory.message
        if message is None:
            return []
        items = self._close(message, reason)
        self.memory.before = Shown.of(message) or self.memory.before
        self.memory.message = None
        return items

    def _close(self, message: Message, reason: str) -> list[Item]:
        items: list[Item] = []
        for block in message.surviving():
            if not block.confirmed and not block.left:
                block.left = True
                items.append(left_incomplete(block, reason))
        if not message.over and message.blocks:
            items += self._turn_stop()
        message.over = True
        if self._records:
            self._finish_turns(finished_turns(message, self._ids.turns, self._ids.prefix))
        return items

    def _sum_up(self, event: RunResult) -> list[Item]:
        message = self.memory.message
        items = [] if message is None else self._close(message, "result")
        return [*items, *self._report(event)]

    def _report(self, event: RunResult) -> list[Item]:
        message = self.memory.message
        shown = [seen for seen in (Shown.of(message) if message else None, self.memory.before) if seen is not None]
        unseen = is_unseen(event.item.result, shown, event.begun)
        expanded = unseen or event.item.is_error
        return [msgspec.structs.replace(event.item, unseen=unseen, expanded=expanded, seq=self._ids.number())]

    def _end(self, event: RunEnded) -> list[Item]:
        items = self._leave(event.reason)
        self.memory.before = None
        return items

    def _message(self) -> Message:
        """The current message; actions that need one stand in the table only where there is one."""
        message = self.memory.message
        if message is None:
            raise StreamError("no_message", "there is no message that the event can be about")
        return message


# An action takes the events of the inputs that lead to it, and no others.
_ACTIONS: dict[Action, Callable[[Machine, Any], list[Item]]] = {
    action: getattr(Machine, f"_{action.name.lower()}") for action in Action
}
